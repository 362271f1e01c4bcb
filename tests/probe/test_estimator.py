"""What users of scikit-learn expect of a fitted probe: files, pickles, weights, inputs."""

import json
import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file
from sklearn.base import clone

from recombine.basics.errors import InputError
from recombine.probe import Decodability
from recombine.probe.ridge import PENALTIES
from tests.probe.planted import parts, samples


@pytest.fixture(scope="module")
def fitted():
    factors = samples(600)
    factors["bright"] = np.random.default_rng(0).random(600) < 0.5
    x = parts(factors) + factors[["bright"]].to_numpy(float)
    held = (factors["shape"] == "cube") & (factors["colour"] == "red")
    return Decodability(progress=False).fit(x, factors, held_out=held), x, factors


def same(first, other, x, factors):
    pd.testing.assert_frame_equal(first.predict(x), other.predict(x))
    for name, probabilities in first.predict_proba(x).items():
        assert (probabilities == other.predict_proba(x)[name]).all()
    pd.testing.assert_frame_equal(first.rank(factors, x), other.rank(factors, x))
    pd.testing.assert_frame_equal(first.rank(factors), other.rank(factors))
    assert first.score(x, factors) == other.score(x, factors)


def test_a_saved_probe_decodes_and_ranks_as_before(fitted, tmp_path):
    probe, x, factors = fitted
    path = probe.save(tmp_path / "probe.safetensors")
    loaded = Decodability.load(path)
    same(probe, loaded, x, factors)
    pd.testing.assert_frame_equal(loaded.scores_, probe.scores_)
    pd.testing.assert_frame_equal(loaded.verdicts_, probe.verdicts_)
    assert loaded.sentence_ == probe.sentence_
    assert loaded.get_params() == probe.get_params()


def test_files_that_are_no_saved_probe_are_refused(fitted, tmp_path):
    with pytest.raises(InputError, match=r"must end in \.safetensors"):
        fitted[0].save(tmp_path / "probe.pkl")
    with pytest.raises(InputError, match="there is no file"):
        Decodability.load(tmp_path / "none.safetensors")
    path = fitted[0].save(tmp_path / "probe.safetensors")
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InputError, match="is not a saved probe"):
        Decodability.load(path)
    path.with_suffix(".json").write_text("[]")
    with pytest.raises(InputError, match="is not a saved probe"):
        Decodability.load(path)
    with pytest.raises(InputError, match=r"cannot write .*: choose another"):
        fitted[0].save(tmp_path / ("x" * 5000 + ".safetensors"))


def refused_line(path) -> str:
    """The message with which a damaged file is refused."""
    with pytest.raises(InputError) as refused:
        Decodability.load(path)
    line = str(refused.value)
    assert "\n" not in line
    return line


def test_every_missing_key_and_array_is_named(fitted, tmp_path):
    path = fitted[0].save(tmp_path / "probe.safetensors")
    text = path.with_suffix(".json").read_text()
    description = json.loads(text)
    for key in description:
        fewer = {name: value for name, value in description.items() if name != key}
        path.with_suffix(".json").write_text(json.dumps(fewer))
        assert key in refused_line(path)
    path.with_suffix(".json").write_text(text)
    arrays = load_file(path)
    for key in arrays:
        save_file({name: array for name, array in arrays.items() if name != key}, path)
        assert f"lacks '{key}'" in refused_line(path)
        save_file(arrays | {key: np.concatenate([arrays[key], arrays[key]])}, path)
        assert "do not have the shapes" in refused_line(path)
    save_file(arrays, path)
    assert Decodability.load(path).layer_ == fitted[0].layer_


def test_values_of_wrong_types_are_refused(fitted, tmp_path):
    path = fitted[0].save(tmp_path / "probe.safetensors")
    description = json.loads(path.with_suffix(".json").read_text())
    changes = [
        {key: wrong}
        for key in ("options", "factors", "widths_", "is_logistic_", "scores_", "train_factors_")
        for wrong in (None, 3, [3], {"a": "b"})
    ]
    changes += [{"options": description["options"] | {"penalties": 3}}, {"n_features_in_": "24"}]
    changes += [{"options": description["options"] | {"unknown": 3}}]
    for change in changes:
        path.with_suffix(".json").write_text(json.dumps(description | change))
        assert "save the probe again" in refused_line(path)
    path.with_suffix(".json").write_text("[" * 100_000)
    assert "is not a saved probe" in refused_line(path)


def test_fitted_probes_pickle_and_work_with_joblib(fitted, tmp_path):
    probe, x, factors = fitted
    assert pickle.dumps(probe)
    joblib.dump(probe, tmp_path / "probe.joblib")
    same(probe, joblib.load(tmp_path / "probe.joblib"), x, factors)
    assert not hasattr(clone(probe), "layer_")


def fit_one(seed: int) -> pd.DataFrame:
    """The scores of a probe with this seed."""
    factors = samples(200)
    return Decodability("ridge", seed=seed, progress=False).fit(parts(factors), factors).scores_


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_several_probes_are_fitted_in_parallel(backend):
    all_scores = joblib.Parallel(n_jobs=2, backend=backend)(
        joblib.delayed(fit_one)(i) for i in range(3)
    )
    for seed, scores in enumerate(all_scores):
        pd.testing.assert_frame_equal(scores, fit_one(seed))
    assert not all_scores[0].equals(all_scores[1])


def test_a_penalty_at_the_edge_of_the_grid_is_noted():
    factors = samples(300)
    x = parts(factors)
    noisy = parts(factors, noise=2.0, width=150)

    def notes(layer, penalties):
        return Decodability(num_permutations=0, penalties=penalties).fit(layer, factors).notes_

    at_start = "Layer activations: the best penalty of shape, size is at the edge of the "
    assert notes(x, (10.0, 100.0)) == [at_start + "grid: set penalties to a wider one."]
    assert len(notes(noisy, (1e-6, 1e-4))) == 1  # the largest penalty is too small
    assert notes(x, PENALTIES) == []
    constant = np.ones((300, 3))  # equally bad for all penalties
    assert notes(constant, (10.0, 100.0)) == []


def test_weights_are_in_the_units_of_the_model(fitted):
    probe, x, _ = fitted
    outputs = x @ probe.coef_.T + probe.intercept_
    assert probe.coef_.shape == (outputs.shape[1], x.shape[1])
    assert probe.n_features_in_ == x.shape[1]
    assert np.allclose(
        outputs[:, probe.targets_.factors[2].columns][:, 0], probe.predict(x)["size"]
    )
    logits = outputs[:, probe.targets_.factors[0].columns]
    probability = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert np.allclose(probability, probe.predict_proba(x)["shape"])
    assert probe.classes_["bright"] == (False, True)
    directions = probe.directions_
    assert directions["size"].shape == (1, x.shape[1])
    # Along the direction of a number, the decoded number grows; other units scale the weights.
    moved = probe.predict(x + directions["size"])["size"] - probe.predict(x)["size"]
    assert np.allclose(moved, (directions["size"] ** 2).sum())


def test_units_do_not_change_what_is_decoded():
    factors = samples(500)
    x = parts(factors)
    scaled = x * np.logspace(-4, 4, x.shape[1])
    plain = Decodability(num_permutations=0).fit(x, factors)
    other = Decodability(num_permutations=0).fit(scaled, factors)
    assert np.allclose(plain.scores_["score"], other.scores_["score"], atol=1e-6)
    assert np.allclose(
        plain.directions_["size"], other.directions_["size"] * np.logspace(-4, 4, x.shape[1])
    )


def test_weighted_samples_count_as_repeated_ones():
    factors = samples(300)
    x = parts(factors, noise=1.0)
    names = factors.astype(str).agg(" ".join, axis=1)
    weights = np.random.default_rng(0).integers(1, 4, 300)
    probe = Decodability(num_permutations=0, penalties=(0.01,))
    heavy = probe.fit(x, factors, names, sample_weight=weights)
    plain = clone(probe).fit(x, factors, names)
    assert (heavy.coef_ != plain.coef_).any()
    assert heavy.score(x, factors, weights) != pytest.approx(heavy.score(x, factors))
    constant = clone(probe).fit(x, factors, names, sample_weight=np.full(300, 7.0))
    assert np.allclose(constant.coef_, plain.coef_)
    for wrong in (np.ones(3), np.zeros(300), ["a"] * 300):
        with pytest.raises(InputError, match="sample_weight"):
            probe.fit(x, factors, names, sample_weight=wrong)


def test_tables_and_figures_have_one_column_or_line_per_factor(fitted):
    probe, *_ = fitted
    table = probe.to_frame()
    assert list(table) == ["shape", "colour", "size", "bright"]
    assert list(table.index) == ["activations"]
    assert probe.to_frame("verdict").at["activations", "shape"] in probe.scores_["verdict"].tolist()
    assert len(probe.plot().data) >= 4
    with pytest.raises(InputError, match="there is no column 'scores'"):
        probe.to_frame("scores")


def test_tensors_and_caches_are_accepted():
    torch = pytest.importorskip("torch")
    factors = samples(300)
    x = parts(factors).astype("f4")
    low = torch.tensor(x, dtype=torch.bfloat16)
    needs_gradient = torch.tensor(x, requires_grad=True)

    class Cache:  # as those of other libraries: names and items, but not a dict
        def __init__(self, layers):
            self.layers = layers

        def keys(self):
            return self.layers.keys()

        def items(self):
            return self.layers.items()

        def __len__(self):
            return len(self.layers)

    probe = Decodability(num_permutations=0)
    probe.fit(Cache({"low": low, "full": needs_gradient}), factors)
    scores = probe.to_frame("score")
    expected = Decodability(num_permutations=0).fit(x, factors).to_frame("score")
    assert np.allclose(scores.loc["full"], expected.loc["activations"])
    assert np.allclose(scores.loc["low"], scores.loc["full"], atol=0.05)


def test_three_axes_are_refused_with_what_to_do():
    with pytest.raises(InputError, match=r"choose or average tokens .* x\[:, -1\]"):
        Decodability().fit(np.zeros((6, 2, 3)), samples(6))


def test_the_device_cpu_of_pytorch_gives_the_same(fitted):
    pytest.importorskip("torch")
    factors = samples(300)
    x = parts(factors)
    in_numpy = Decodability(num_permutations=0).fit(x, factors)
    other = Decodability(num_permutations=0, device="cpu").fit(x, factors)
    assert np.allclose(in_numpy.scores_["score"], other.scores_["score"])
    with pytest.raises(InputError, match="device must be cpu or cuda, got 'tpu-none'"):
        Decodability(device="tpu-none").fit(x, factors)


def test_fits_on_a_cuda_device():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("NO CUDA DEVICE: fits on a GPU are not tested here")
    factors = samples(300)
    x = parts(factors)
    on_cpu = Decodability(num_permutations=0).fit(x, factors)
    other = Decodability(num_permutations=0, device="cuda").fit(x, factors)
    assert np.allclose(on_cpu.scores_["score"], other.scores_["score"], atol=1e-6)


def test_factors_that_never_vary_apart_from_their_combination_are_refused():
    factors = samples(300)
    for table in (factors[["shape"]], factors[["shape"]].assign(twin=factors["shape"] + "!")):
        with pytest.raises(InputError, match="every value of factor 'shape' occurs in one comb"):
            Decodability().fit(parts(factors), table)


def test_class_ids_are_noted_and_names_says_what_they_are(capsys):
    factors = samples(400)
    factors["kind"] = np.random.default_rng(0).integers(4, size=400)
    x = parts(factors) + np.eye(4)[factors["kind"]] @ np.random.default_rng(1).normal(size=(4, 24))
    probe = Decodability(num_permutations=0).fit(x, factors)
    assert any("kind: whole numbers are probed as numbers" in note for note in probe.notes_)
    assert "set names=['kind']" in capsys.readouterr().err
    named = Decodability(num_permutations=0, names=["kind"]).fit(x, factors)
    assert "kind" in named.classes_
    assert not named.notes_
    assert named.to_frame()["kind"].iloc[0] > 0.9
    assert "kind" not in Decodability(num_permutations=0, names=()).fit(x, factors).classes_
    with pytest.raises(InputError, match=r"there is no factor 'kin'.*kind"):
        Decodability(names="kin").fit(x, factors)
