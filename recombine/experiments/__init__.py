"""The record: each claim of the field as one experiment, with what judges and shows them.

`paper`, `theory`, `limits` and `instrument` hold the experiments, `quickstart.py` the first one to
run. Start with `claim.py` and `runner.py`.
"""
