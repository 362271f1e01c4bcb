"""Saved networks: a damaged folder is refused in one line."""

import shutil

import pandas as pd
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.training import fitted
from tests.tiny import TINY


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return rc.fit(TINY).save(tmp_path_factory.mktemp("saved") / "net")


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "net")


@pytest.mark.parametrize("name", [*sorted(fitted.FILES), fitted.CHECKSUMS])
def test_one_flipped_bit_is_refused(folder, name):
    data = (folder / name).read_bytes()
    for position in (0, len(data) // 3, len(data) // 2, len(data) - 2):
        flipped = bytearray(data)
        flipped[position] ^= 1
        (folder / name).write_bytes(flipped)
        with pytest.raises(InputError, match="save the network again") as caught:
            rc.Fitted.load(folder)
        assert "\n" not in str(caught.value)
    (folder / name).write_bytes(data)
    assert len(rc.Fitted.load(folder).rows) == 2


@pytest.mark.parametrize("name", sorted(fitted.FILES))
def test_a_missing_file_is_refused(folder, name):
    (folder / name).unlink()
    with pytest.raises(InputError, match=rf"{name} cannot be read \(No such file"):
        rc.Fitted.load(folder)


def test_a_network_of_an_older_version_has_no_checksums_and_maybe_no_rows(folder):
    (folder / fitted.CHECKSUMS).unlink()
    assert not fitted.check_folder(folder)
    assert len(rc.Fitted.load(folder).rows) == 2
    (folder / "rows.parquet").unlink()
    assert rc.Fitted.load(folder).rows.empty
    (folder / "rows.parquet").write_bytes(b"theirs")
    with pytest.raises(InputError, match=r"rows.parquet cannot be read .*save the network again"):
        rc.Fitted.load(folder)


def test_a_network_without_rows_can_be_saved(folder, tmp_path):
    loaded = rc.Fitted.load(folder)
    without = rc.Fitted(loaded.run, loaded.net, loaded.world, loaded.encoding, pd.DataFrame())
    assert rc.Fitted.load(without.save(tmp_path / "other")).rows.empty
