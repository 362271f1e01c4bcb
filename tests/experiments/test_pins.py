"""Identities of runs and public names stay as they are (`pins.py`; `test_record.py` has the
measured claims).
"""

from tests import pins


def test_every_experiment_lists_the_same_runs_and_cells():
    assert pins.identities() == pins.held()["identities"]


def test_public_names_stay():
    assert pins.public_names() == pins.held()["names"]
