"""Training: compiled programs, the trainer, checkpoints, the scheduler and the executors.

This room knows no experiment and draws no figure. Start with `scheduler.py`, then `trainer.py` and
`program.py`.
"""
