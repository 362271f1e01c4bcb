"""The smallest run that trains: a sweep of such runs takes seconds."""

import recombine as rc

TINY = rc.Run(
    family=rc.Hyperteacher(num_modules=6, num_hot=2, d_input=4, d_hidden=4, num_outputs=3),
    model=rc.MLP(widths=(8, 8)),
    diagnostics=(),
    num_steps=20,
    num_evals=2,
    num_tasks=8,
    num_points=4,
    num_eval_tasks=16,
    num_eval_points=4,
)
