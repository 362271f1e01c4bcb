"""A study from end to end with a network that compiles at once, and what it promises of groups and files."""

import itertools

import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.experiments.limits._images import ahead, denoise, judge, saved, study
from recombine.experiments.limits._images.rows import ranked
from recombine.experiments.limits._images.scenes import Crowd, Cube, Things
from recombine.parts.prng import new_key
from tests.experiments.limits.images.small import Small

CELL = {"num_steps": 4, "batch": 4, "per": 2, "to_image": 2, "judged": 3, "shown": True}
STAR = {"scenes": "star", "num_train": 4, "width": 8, "seed": 0} | CELL
THINGS = [{"scenes": "things", "num_train": num, "width": 8, "seed": 0} | CELL for num in (70, 90)]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(denoise, "UNet", Small)
    monkeypatch.setattr(study, "UNet", Small)
    monkeypatch.setattr(ahead, "_made", {})
    monkeypatch.setattr(study, "STOPS", (2,))
    study._like.cache_clear()
    yield
    study._like.cache_clear()


def test_what_is_trained_is_what_a_split_says():
    things, cube = Things(), Cube()
    star, failing = (
        cube.values[study.trained(name, 4, 0)].tolist() for name in ("star", "failing")
    )
    assert sorted(star) == [[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]]
    assert sorted(failing) == [[0, 0, 0], [0, 1, 0], [1, 0, 0], [1, 1, 1]]
    rows = study.trained("things", 18, 1)
    assert len(np.unique(rows)) == 18
    assert things.codes[rows].any(axis=0).all(), "every value is there"
    assert not np.array_equal(rows, study.trained("things", 18, 2))
    with pytest.raises(InputError, match="3 random combinations of things do not hold every value"):
        study.trained("things", 3, 0)


def test_distances_count_the_factors_that_differ():
    cube, things, crowd = Cube(), Things(2, 2, 2), Crowd(4, 2)
    for scenes in (cube, things):
        assert study.distance(scenes, np.array([0, 1, 2, 4])).tolist() == [0, 0, 0, 1, 0, 1, 1, 2]
    alone = np.flatnonzero(crowd.codes.sum(1) == 1)
    assert study.distance(crowd, alone).tolist() == [0] * 4 + [1] * 6
    assert study.distance(crowd, alone[:1]).tolist() == [0, 2, 2, 2, 1, 1, 1, 3, 3, 3]


def test_a_group_is_trained_once_and_kept(tmp_path, monkeypatch):
    cells, trained = [STAR, *THINGS, {**STAR, "width": 16}], []
    train = denoise.train
    monkeypatch.setattr(denoise, "train", lambda *args: trained.append(args[0].num) or train(*args))
    told: list[str] = []
    nets = study.nets_of(STAR, cells, tmp_path, told.append)
    assert list(nets) == [2, 4]
    assert told[-1] == "1 models of width 8 train: 4 of 4 steps"
    assert list(study.nets_of(THINGS[1], cells, tmp_path)) == [4]
    study.nets_of(THINGS[0], cells, tmp_path)
    assert trained == [1, 2], (
        "one program for a kind of scenes, and what is kept is not trained again"
    )
    next(tmp_path.glob("things-90-*")).unlink()
    study.nets_of(THINGS[1], cells, tmp_path)
    assert trained == [1, 2, 2]


def test_rows_tell_what_was_made_and_what_was_expected(tmp_path):
    rows = study.study(THINGS[0], THINGS[:1], tmp_path)
    assert len(rows) == 108
    assert sum(row["unseen"] for row in rows) == 38
    assert all(row["distance"] == 0 for row in rows if not row["unseen"])
    assert all(0 <= row["right"] <= 1 and 0 <= row["judge"] <= 1 for row in rows)
    unseen = [row for row in rows if row["unseen"]]
    assert all(np.isfinite([row["expected"], row["control"], row["rare"]]).all() for row in unseen)
    assert all(row["images"].startswith("iVBOR") for row in unseen)
    assert rows[0]["combination"] == "small red disc"
    assert (tmp_path / "judge-things.safetensors").is_file()
    cube = study.study(STAR, [STAR], tmp_path)
    assert [(row["trained_for"], row["distance"]) for row in cube[:8]] == [
        (2, d) for d in (0, 0, 0, 1, 0, 1, 1, 2)
    ]
    assert {row["trained_for"] for row in cube} == {2, 4}
    assert "expected" not in cube[0], "eight combinations are too few for probes"


def test_what_is_read_badly_is_expected_to_fail():
    things, rng = Things(), np.random.default_rng(0)
    held = np.ones(108, bool)
    held[study.trained("things", 70, 0)] = False
    number = np.repeat(np.arange(108), 4)
    lost = rng.random(108) < 0.4
    layer = things.codes[number] + 0.1 * rng.normal(size=(len(number), 15))
    wrong = lost[number] & held[number]
    layer[wrong] = rng.permutation(layer)[wrong]  # what another combination's images hold
    seen = {"good": layer, "noise": rng.normal(size=layer.shape)}
    told, scores = study.expected(things, number, held, seen, lost.astype(float))
    assert scores["expected/auroc"] > 0.95
    assert scores["control/auroc"] < 0.8
    assert np.median(told["expected"][held & lost]) > told["expected"][held & ~lost].max()
    assert np.isnan(told["expected"][~held]).all()


def test_what_comes_with_the_package_is_taken_and_must_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "COMMITTED", tmp_path)
    cell = THINGS[0] | {"num_steps": 0, "judged": 0}
    with pytest.raises(InputError, match="there is no file"):
        study.study(cell, [cell], tmp_path / "work")
    saved.save(tmp_path / "things-70-8-0.safetensors", Small(new_key(0), 8, (15,)), kind="float16")
    saved.save(tmp_path / "judge-things.safetensors", judge.Judge(new_key(0), 15), kind="float16")
    rows = study.study(cell, [cell], tmp_path / "work")
    assert len(rows) == 108
    assert not (tmp_path / "work").exists(), "nothing is trained"
    saved.save(tmp_path / "things-70-8-0.safetensors", Small(new_key(0), 9, (15,)))
    with pytest.raises(InputError, match="another size: 'share' differs"):
        study.study(cell, [cell], tmp_path / "work")


def test_programs_are_made_once_and_what_failed_is_made_again():
    counted = itertools.count()
    assert [ahead.made("one", lambda: next(counted)) for _ in range(2)] == [0, 0]
    with pytest.raises(ZeroDivisionError):
        ahead.made("other", lambda: 1 // 0)
    assert ahead.made("other", lambda: 5) == 5


def test_ranks_are_those_of_the_definition():
    error, failure = np.array([3.0, 1.0, 2.0, 0.0]), np.array([1.0, 0.6, 0.2, 0.1])
    rank, auroc = ranked(error, failure)
    assert rank == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert auroc == pytest.approx(3 / 4)
    assert np.isnan(ranked(error, np.zeros(4))).all()


def test_networks_of_the_cube_are_told_as_their_name_says():
    tellings = {
        name: study.telling(name) for name in ("star", "failing", "joined", "things", "crowd")
    }
    assert tellings == {
        "star": "apart",
        "failing": "apart",
        **dict.fromkeys(("joined", "things", "crowd"), "together"),
    }
    shared = {"num_train": 4, "width": 8, "num_steps": 2, "batch": 2}
    cells = [
        shared | {"scenes": name, "seed": seed}
        for name in ("star", "failing", "joined")
        for seed in range(2)
    ]
    for cell in cells:
        group = study.group_of(cell, cells)
        assert {study.telling(one["scenes"]) for one in group} == {study.telling(cell["scenes"])}
        assert len(group) == (2 if cell["scenes"] == "joined" else 4)
        shape = study._shape(group)
        assert (shape.told, shape.num) == (study.telling(cell["scenes"]), len(group))
    assert (
        study.trained("joined", 4, 0).tolist()
        == study.trained("star", 4, 0).tolist()
        == [0, 1, 2, 4]
    )
    assert study.trained("failing", 4, 0).tolist() == [0, 2, 4, 7]
