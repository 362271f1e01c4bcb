"""What is studied: families of tasks, supports, encodings, models, diagnostics and recipes, one file per part.

A part is a frozen dataclass of plain numbers with pure methods, written for one task. No tables, files or training
loops here. Start with `protocols.py`.
"""
