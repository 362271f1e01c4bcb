"""What a sweep will need before it is trained: cost, number of train tasks, and benchmarks of this machine.

Start with `estimate.py`.
"""
