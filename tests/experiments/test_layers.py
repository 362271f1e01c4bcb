import pandas as pd

from recombine.experiments.layers import by_layer, probe_column, probed_layers


def test_layers_are_in_the_order_of_the_network():
    names = ["output", "hidden1", "pre10", "code", "pre1", "hidden0", "pre0", "best"]
    columns = {f"LinearDecodability/{name}/test/r2": i for i, name in enumerate(names)}
    frame = pd.DataFrame([{"run": "a"} | columns])
    long = by_layer(frame, ["run"], "LinearDecodability")
    order = ["code", "pre0", "hidden0", "pre1", "hidden1", "pre10", "output"]
    assert list(long["layer"].cat.categories) == order
    assert list(probed_layers(frame, "LinearDecodability").values()) == order
    assert dict(zip(long["layer"], long["decodability r2"], strict=True))["pre10"] == 2


def test_columns_of_other_probes_and_sides_are_left_out():
    columns = [
        probe_column("LinearDecodability", "pre0"),
        probe_column("LinearDecodability", "pre1", side="seen"),
        probe_column("LinearDecodability-paper", "pre2"),
    ]
    frame = pd.DataFrame([[1.0, 2.0, 3.0]], columns=columns)
    assert probed_layers(frame, "LinearDecodability") == {columns[0]: "pre0"}
