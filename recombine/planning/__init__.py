"""What a sweep needs before it is trained: cost, number of train tasks, speed of this machine.

Start with `estimate.py`.
"""
