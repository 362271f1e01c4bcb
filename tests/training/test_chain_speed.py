from recombine.parts.encodings.language import Language
from recombine.parts.families.chain import Chain
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.models.sequence_transformer import SequenceTransformer
from recombine.sweeps.run import Run
from recombine.training import trainer
from tests.timing import cpu_seconds

MAX_RATIO = 1.3


def prepared(family):
    """A sweep of one run of a student with six words and inputs and outputs of size 16."""
    run = Run(
        family=family,
        encoding=Language(),
        model=SequenceTransformer(2, 64, 2, 256),
        diagnostics=(),
        num_steps=60,
        num_evals=1,
        num_tasks=16,
        num_eval_tasks=8,
    )
    return trainer.prepare([run])


def test_a_step_on_chains_takes_about_as_long_as_one_on_sums():
    sums = prepared(Hyperteacher(num_modules=3, num_hot=2))  # two words for each module
    chains = prepared(Chain(num_modules=8, max_length=6, size=16, max_per_length=50))
    seconds = {}
    for _ in range(2):  # in turns: other processes slow down both
        for name, ready in (("sums", sums), ("chains", chains)):
            used = cpu_seconds(lambda ready=ready: trainer.train_prepared(ready), 2)
            seconds[name] = min(used, seconds.get(name, used))
    assert seconds["chains"] < MAX_RATIO * seconds["sums"]
