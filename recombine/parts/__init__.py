"""The parts of a run: task families, supports, encodings, models, diagnostics and recipes.

A part is a frozen dataclass of plain numbers with pure methods. It is written for one task; the
trainer vectorizes it over tasks and over runs. Each part has a file of its own in `families/`,
`supports/`, `encodings/`, `models/`, `diagnostics/` or `recipes/`. The files beside these folders
hold code that several parts share. Tables, files and training loops do not belong here. Start with
`protocols.py`.

In these files, "the paper" is "Scaling can lead to compositional generalization" (arXiv
2507.07207, NeurIPS 2025), and "the public code" is the code that its authors published.
"""
