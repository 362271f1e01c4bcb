import pandas as pd
import pytest

from recombine.experiments.limits import grokked_composition
from recombine.experiments.plots import figures_of
from recombine.parts.families.two_hop import APART, PAIR, TwoHop
from recombine.sweeps.run import describe, identity
from tests.experiments.neutral import FAILED, claims_of


def rows_of(final=0.98, early=0.3, apart=0.1, facts=1.0, executor=1.0, low_decay=0.6):
    """Rows in which the train tasks are known from the first evaluation on."""
    rows = []
    for run in grokked_composition.runs("small"):
        columns = {"run": identity(run), **describe(run)}
        is_executor = columns["model"] == "Executor"
        best = final if run.recipe.weight_decay == 0.1 else low_decay
        for part in (1, 4, 8):
            inside = early + (best - early) * (part - 1) / 7 + 0.001 * run.seed
            row = {"step": run.num_steps * part // 8, **columns, "seen/accuracy": 0.96}
            row["test/kind=2/accuracy"] = executor if is_executor else inside
            row["test/kind=4/accuracy"] = executor if is_executor else apart
            row["seen/kind=1/accuracy"] = facts
            rows.append(row)
    return pd.DataFrame(rows)


def verdicts(rows):
    return {claim.name: claim.verdict for claim in claims_of(grokked_composition, rows)}


def test_claims_hold_where_composition_comes_late_and_not_for_facts_apart():
    verdict_of = verdicts(rows_of())
    assert len(verdict_of) == 6
    assert set(verdict_of.values()) == {"reproduced"}


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({"final": 0.7}, {"in distribution", "out of distribution"}),
        ({"early": 0.9}, {"late"}),
        ({"apart": 0.9}, {"out of distribution"}),
        ({"facts": 0.5}, {"known facts", "out of distribution"}),
        ({"executor": 0.2}, {"executor", "out of distribution"}),
        ({"low_decay": 0.98}, {"weight decay"}),
    ],
)
def test_each_claim_can_fail(changes, failing):
    verdict_of = verdicts(rows_of(**changes))
    assert {name for name, verdict in verdict_of.items() if verdict in FAILED} == failing


def test_a_failure_out_of_distribution_is_confounded_if_the_facts_are_not_known():
    assert verdicts(rows_of(facts=0.5))["out of distribution"] == "confounded"
    assert verdicts(rows_of(final=0.7))["out of distribution"] == "confounded", "nothing composed"
    assert verdicts(rows_of(executor=0.2))["out of distribution"] == "confounded"


def test_students_that_never_know_their_train_tasks_show_no_late_gain():
    rows = rows_of().assign(**{"seen/accuracy": 0.5})
    assert verdicts(rows)["late"] == "not yet run"


def test_the_likeliest_answer_is_little_better_than_chance():
    family = TwoHop(60, 12, facts=True)
    assert (family.kinds(family.tasks()) == APART).sum() > 300
    assert 0 < grokked_composition.guessed_accuracy(family, APART) < 4 / 60
    in_distribution = grokked_composition.guessed_accuracy(family, PAIR)
    assert in_distribution < 6 / 60
    assert in_distribution > 1 / 60, "the likeliest answer is at least an average one"


def test_composition_is_confounded_if_it_can_be_guessed(monkeypatch):
    monkeypatch.setattr(grokked_composition, "guessed_accuracy", lambda family, kind: 0.9)
    assert verdicts(rows_of())["in distribution"] == "confounded"


def check_tiny(rows):
    assert len(rows) == 4, "all evaluations are kept"
    figures = figures_of(grokked_composition, rows)
    assert {trace.name for trace in figures["steps"].data} == {
        grokked_composition.IN,
        grokked_composition.OUT,
        grokked_composition.FACTS,
    }
    assert set(verdicts(rows).values()) == {"not yet run"}
