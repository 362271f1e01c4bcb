import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.paper import transformer_decodability
from recombine.experiments.paper.transformer_decodability import DECODER, UNTRAINED
from recombine.experiments.plots import figures_of
from recombine.sweeps.run import describe, identity
from tests.experiments.neutral import claims_of


def rows_of(decoded=lambda score: 0.5 + 0.48 * score, before=lambda score: 0.2):
    """Rows of the full sweep with test R2 from .99 to .2, and the decodability of this score."""
    rng = np.random.default_rng(0)
    fractions = transformer_decodability.FRACTIONS["full"]
    rows = []
    for run in transformer_decodability.runs("full"):
        score = np.linspace(0.99, 0.2, len(fractions))[fractions.index(run.frac_test)]
        value = (decoded if run.recipe.learning_rate else before)(score)
        about = {"run": identity(run), "step": run.num_steps, **describe(run)}
        noise = 0.001 * rng.normal(size=2)
        rows.append(about | {"test/r2": score + noise[0], DECODER: value + noise[1]})
    return pd.DataFrame(rows)


def verdicts(rows):
    return {claim.name: claim.verdict for claim in claims_of(transformer_decodability, rows)}


def test_every_student_has_its_own_baseline():
    runs = transformer_decodability.runs("full")
    assert len(set(runs)) == len(runs) == 2 * 3 * (6 + 2 * 6)
    assert {type(run.model) for run in runs} == {rc.Transformer}
    final = transformer_decodability.prepare(rows_of(before=lambda score: score / 2))
    assert len(final) == len(runs) // 2
    assert final[UNTRAINED].to_numpy() == pytest.approx(final["test/r2"] / 2, abs=0.01)


def test_decodability_by_training_is_reproduced():
    judged = verdicts(rows_of())
    assert len(judged) == 6 + 6 + 2
    assert set(judged.values()) == {"reproduced"}


@pytest.mark.parametrize(
    ("changes", "verdicts_of"),
    [
        (
            {"before": lambda score: 0.5 + 0.48 * score},
            {"Language: by training": "not reproduced", "Identity: block2": "not reproduced"},
        ),
        (
            {"before": lambda score: 0.95},
            {"Language: decoded": "not reproduced"},  # the untrained network decodes them, too
        ),
        (
            {"decoded": lambda score: 0.8},
            {"Language: decoded": "not reproduced", "IntervalShuffle: block2": "not reproduced"},
        ),
    ],
)
def test_controls_and_low_scores_change_the_verdict(changes, verdicts_of):
    judged = verdicts(rows_of(**changes))
    assert {name: judged[name] for name in verdicts_of} == verdicts_of


def test_a_correlation_that_the_untrained_network_has_is_confounded():
    for before, is_confounded in ((lambda score: 0.5 + 0.48 * score, True), (lambda _: 0.2, False)):
        rows = rows_of(before=before)
        claims = {claim.name: claim for claim in claims_of(transformer_decodability, rows)}
        assert claims["Identity: block2"].holds
        assert claims["Identity: block2"].confounded is is_confounded


def test_missing_rows_are_not_judged():
    rows = rows_of()
    judged = verdicts(rows[(rows["encoding"] != "FewShot") & (rows["frac_test"] == 0.25)])
    assert judged["FewShot: decoded"] == judged["Identity: block2"] == "not yet run"
    assert judged["Orthogonal: decoded"] == "reproduced"
    assert set(verdicts(None).values()) == {"not yet run"}


def check_tiny(rows):
    final = transformer_decodability.prepare(rows)
    assert final[[DECODER, UNTRAINED]].notna().all(axis=None)
    summary = transformer_decodability.summary(rows)
    assert {"FewShot, decodability", "Identity, untrained"} < set(summary)
    assert set(figures_of(transformer_decodability, rows)) == {"correlation", "data"}
