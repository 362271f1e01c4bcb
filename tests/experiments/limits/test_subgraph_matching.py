import pandas as pd
import pytest

from recombine.experiments.limits import subgraph_matching
from recombine.experiments.plots import figures_of
from recombine.sweeps.run import describe, identity
from tests.experiments.neutral import FAILED, claims_of


def rows_of(correlation=0.4, within=0.2, untrained=0.0, untrained_all=0.0):
    """Rows of the full sweep with these correlations."""
    rows = []
    for run in subgraph_matching.runs("full"):
        row = {"run": identity(run), "step": run.num_steps, **describe(run)}
        is_untrained = row["recipe.learning_rate"] == 0
        own = untrained if is_untrained else within
        everywhere = untrained_all if is_untrained else correlation
        row["SubgraphFrequency/test/correlation"] = everywhere + 0.001 * run.seed
        row["SubgraphFrequency/test/within/correlation"] = own + 0.001 * run.seed
        rows.append(row)
    return pd.DataFrame(rows)


def verdicts(rows):
    return {claim.name: claim.verdict for claim in claims_of(subgraph_matching, rows)}


def test_claims_hold_where_frequency_predicts_correctness():
    assert set(verdicts(rows_of()).values()) == {"reproduced"}


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({"correlation": 0.0}, {"frequency"}),
        ({"within": 0.0}, {"beyond depth", "frequency"}),
        ({"untrained": 0.2}, {"untrained", "beyond depth"}),
        ({"untrained_all": 0.2}, {"frequency"}),
    ],
)
def test_each_claim_can_fail(changes, failing):
    verdict_of = verdicts(rows_of(**changes))
    assert {name for name, verdict in verdict_of.items() if verdict in FAILED} == failing


def test_the_correlation_is_confounded_if_depth_explains_it():
    assert verdicts(rows_of(within=0.0))["frequency"] == "confounded"
    assert verdicts(rows_of(untrained_all=0.2))["frequency"] == "confounded"


def check_tiny(rows):
    assert set(figures_of(subgraph_matching, rows)) == {"all", "within"}
    assert {claim.verdict for claim in claims_of(subgraph_matching, rows)} == {"not yet run"}
