"""How runs are computed: compiled programs, the trainer, checkpoints, the scheduler and where chunks run.

Knows no experiment and draws nothing. Start with `scheduler.py`, then `trainer.py` and `program.py`.
"""
