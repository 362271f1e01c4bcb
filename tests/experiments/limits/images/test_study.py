"""A study from end to end with a network that compiles fast; groups, files and predictions."""

import itertools

import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.experiments.limits._images import compilation, denoise, judge, network_io, study
from recombine.experiments.limits._images.scenes import Crowd, Cube, Things
from recombine.experiments.limits._images.scores import rank_and_auroc
from recombine.parts.prng import new_key
from tests.experiments.limits.images.small import Small, use_small

CELL = {"num_steps": 4, "batch": 4, "per": 2, "to_image": 2, "judged": 3, "shown": True}
STAR = {"scenes": "star", "num_train": 4, "width": 8, "seed": 0} | CELL
THINGS = [{"scenes": "things", "num_train": num, "width": 8, "seed": 0} | CELL for num in (70, 90)]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    use_small(monkeypatch)
    monkeypatch.setattr(study, "EVAL_STEPS", (2,))


def test_train_combinations_are_those_of_the_split():
    things, cube = Things(), Cube()
    star, failing = (
        cube.values[study.train_combinations(name, 4, 0)].tolist() for name in ("star", "failing")
    )
    assert sorted(star) == [[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]]
    assert sorted(failing) == [[0, 0, 0], [0, 1, 0], [1, 0, 0], [1, 1, 1]]
    rows = study.train_combinations("things", 18, 1)
    assert len(np.unique(rows)) == 18
    assert things.codes[rows].any(axis=0).all(), "they have every value"
    assert not np.array_equal(rows, study.train_combinations("things", 18, 2))
    with pytest.raises(InputError, match="3 random combinations of things do not have every value"):
        study.train_combinations("things", 3, 0)


def test_distances_count_the_different_factors():
    cube, things, crowd = Cube(), Things(2, 2, 2), Crowd(4, 2)
    for scenes in (cube, things):
        assert study.distance_to_train(scenes, np.array([0, 1, 2, 4])).tolist() == [
            0,
            0,
            0,
            1,
            0,
            1,
            1,
            2,
        ]
    alone = np.flatnonzero(crowd.codes.sum(1) == 1)
    assert study.distance_to_train(crowd, alone).tolist() == [0] * 4 + [1] * 6
    assert study.distance_to_train(crowd, alone[:1]).tolist() == [0, 2, 2, 2, 1, 1, 1, 3, 3, 3]


def test_a_group_is_trained_once_and_saved(tmp_path, monkeypatch):
    cells = [STAR, *THINGS, {**STAR, "width": 16}]
    trained = []
    train = denoise.train

    def counting(shape, *args):
        trained.append(shape.num_networks)
        return train(shape, *args)

    monkeypatch.setattr(denoise, "train", counting)
    progress: list[str] = []
    networks = study.networks_of(STAR, cells, tmp_path, progress.append)
    assert list(networks) == [2, 4]
    assert progress[-1] == "1 models of width 8 train: 4 of 4 steps"
    assert list(study.networks_of(THINGS[1], cells, tmp_path)) == [4]
    study.networks_of(THINGS[0], cells, tmp_path)
    assert trained == [1, 2], "one training for a kind of scene; saved networks are loaded"
    next(tmp_path.glob("things-90-*")).unlink()
    study.networks_of(THINGS[1], cells, tmp_path)
    assert trained == [1, 2, 2]


def test_the_cube_has_rows_for_every_step_and_no_predicted_failures(tmp_path):
    cube = study.study(STAR, [STAR], tmp_path)
    assert [(row["trained_for"], row["distance"]) for row in cube[:8]] == [
        (2, d) for d in (0, 0, 0, 1, 0, 1, 1, 2)
    ]
    assert {row["trained_for"] for row in cube} == {2, 4}
    assert "expected" not in cube[0], "eight combinations are too few for probes"
    assert (tmp_path / "judge-cube.safetensors").is_file()


def test_combinations_that_are_hard_to_decode_are_predicted_to_fail():
    things, rng = Things(), np.random.default_rng(0)
    is_held_out = np.ones(108, bool)
    is_held_out[study.train_combinations("things", 70, 0)] = False
    combinations = np.repeat(np.arange(108), 4)
    fails = rng.random(108) < 0.4
    layer = things.codes[combinations] + 0.1 * rng.normal(size=(len(combinations), 15))
    is_wrong = fails[combinations] & is_held_out[combinations]
    layer[is_wrong] = rng.permutation(layer)[is_wrong]  # activations of other combinations
    activations = {"good": layer, "noise": rng.normal(size=layer.shape)}
    errors, scores = study.predict_failures(
        things, combinations, is_held_out, activations, fails.astype(float)
    )
    assert scores["expected/auroc"] > 0.95
    assert scores["control/auroc"] < 0.8
    expected = errors["expected"]
    assert np.median(expected[is_held_out & fails]) > expected[is_held_out & ~fails].max()
    assert np.isnan(expected[~is_held_out]).all()


def test_weights_of_the_package_are_used_and_must_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "PACKAGED", tmp_path)
    cell = THINGS[0] | {"num_steps": 0, "judged": 0}
    with pytest.raises(InputError, match="there is no file"):
        study.study(cell, [cell], tmp_path / "work")
    network_io.save(
        tmp_path / "things-70-8-0.safetensors", Small(new_key(0), 8, (15,)), dtype="float16"
    )
    network_io.save(
        tmp_path / "judge-things.safetensors", judge.Judge(new_key(0), 15), dtype="float16"
    )
    rows = study.study(cell, [cell], tmp_path / "work")
    assert len(rows) == 108
    assert not (tmp_path / "work").exists(), "nothing is trained"
    network_io.save(tmp_path / "things-70-8-0.safetensors", Small(new_key(0), 9, (15,)))
    with pytest.raises(InputError, match="another size: 'share' differs"):
        study.study(cell, [cell], tmp_path / "work")


def test_programs_are_compiled_once_and_again_after_a_failure():
    counted = itertools.count()
    assert [compilation.compiled("one", lambda: next(counted)) for _ in range(2)] == [0, 0]
    with pytest.raises(ZeroDivisionError):
        compilation.compiled("other", lambda: 1 // 0)
    assert compilation.compiled("other", lambda: 5) == 5


def test_rank_correlation_and_auroc_follow_their_definitions():
    error, failure = np.array([3.0, 1.0, 2.0, 0.0]), np.array([1.0, 0.6, 0.2, 0.1])
    rank, auroc = rank_and_auroc(error, failure)
    assert rank == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert auroc == pytest.approx(3 / 4)
    assert np.isnan(rank_and_auroc(error, np.zeros(4))).all()


def test_the_conditioning_of_each_kind_of_scene():
    names = ("star", "failing", "joined", "things", "crowd")
    assert {name: study.conditioning_of(name) for name in names} == {
        "star": "summed",
        "failing": "summed",
        "joined": "joint",
        "things": "joint",
        "crowd": "joint",
    }
    shared = {"num_train": 4, "width": 8, "num_steps": 2, "batch": 2}
    cells = [
        shared | {"scenes": name, "seed": seed}
        for name in ("star", "failing", "joined")
        for seed in range(2)
    ]
    for cell in cells:
        group = study.group_of(cell, cells)
        conditioning = study.conditioning_of(cell["scenes"])
        assert {study.conditioning_of(other["scenes"]) for other in group} == {conditioning}
        assert len(group) == (2 if cell["scenes"] == "joined" else 4)
        shape = study._shape(group)
        assert shape.conditioning == conditioning
        assert shape.num_networks == len(group)
    assert (
        study.train_combinations("joined", 4, 0).tolist()
        == study.train_combinations("star", 4, 0).tolist()
        == [0, 1, 2, 4]
    )
    assert study.train_combinations("failing", 4, 0).tolist() == [0, 2, 4, 7]
