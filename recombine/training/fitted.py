"""A trained network: use it, save it, load it.

Arrays are stored as equinox leaves and the run as JSON. No pickle is used.
"""

import hashlib
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pandas as pd
import pyarrow as pa

from recombine.basics.atomic_io import write_atomically
from recombine.basics.errors import InputError, require
from recombine.basics.parquet_reader import LimitedFile
from recombine.parts.prng import new_key
from recombine.parts.protocols import example_sampler
from recombine.sweeps import discovery
from recombine.sweeps.run import Run, from_json, to_json
from recombine.training.program import initialize

SAVE_AGAIN = "save the network again"
FILES = {"arrays.eqx", "rows.parquet", "run.json"}
CHECKSUMS = "checksums.json"  # of the other files. A folder of an older version has none


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained network with its run, hidden teacher (world), encoding arrays and rows."""

    run: Run
    net: Any
    world: Any
    encoding: Any
    rows: pd.DataFrame = field(default_factory=pd.DataFrame)

    def examples(self, task: Any, n: int, key: Any = None) -> tuple[Any, Any]:
        """Draw n true pairs (x, y) of the task with the given module weights."""
        key = new_key(0) if key is None else key
        return self.run.family.sample(self.world, key, self._check_task(task), n)

    def predict(self, x: Any, task: Any, key: Any = None) -> jax.Array:
        """Predict points x of the task with the given module weights.

        `key` draws the examples of a few-shot code.
        """
        weights = self._check_task(task)
        key = new_key(1) if key is None else key
        examples = example_sampler(self.run.family, self.world, weights)
        code = self.run.encoding.encode(self.encoding, key, weights, examples)
        x = jnp.asarray(x)
        require(len(x) > 0, "there are no points to predict: give at least one")
        points_together = getattr(self.run.model, "together", False)
        at_once = self.run.num_points if points_together else len(x)
        batches = [x[first : first + at_once] for first in range(0, len(x), at_once)]
        return jnp.concatenate([self.net(batch, code)[0] for batch in batches])

    def save(self, folder: str | Path) -> Path:
        """Save the network in a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").unlink(missing_ok=True)  # written last: it marks a complete folder
        arrays = io.BytesIO()
        eqx.tree_serialise_leaves(arrays, (self.net, self.world, self.encoding))
        rows = io.BytesIO()
        self.rows.to_parquet(rows)
        files = {
            "arrays.eqx": arrays.getvalue(),
            "rows.parquet": rows.getvalue(),
            "run.json": json.dumps(to_json(self.run), indent=1).encode(),
        }
        checksums = {name: _checksum(data) for name, data in files.items()}
        write_atomically(folder / CHECKSUMS, json.dumps(checksums, indent=1).encode())
        for name, data in files.items():
            write_atomically(folder / name, data)
        return folder

    @classmethod
    def load(cls, folder: str | Path, parts: Iterable[type] = ()) -> "Fitted":
        """Load what `save` saved. Pass classes of your own in `parts`: nothing else is imported."""
        folder = Path(folder)
        check_folder(folder)
        try:
            run_json = json.loads((folder / "run.json").read_text())
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{folder} holds no saved network ({error})") from error
        if not isinstance(run_json, dict) or run_json.get("part") != "Run":
            raise InputError(f"{folder}/run.json does not describe a run: save the network again")
        our_parts = {
            name: part for kind in discovery.parts().values() for name, part in kind.items()
        }
        user_parts = {part.__name__: part for part in parts}
        run = from_json(run_json, {"Run": Run} | our_parts | user_parts)
        return cls(run, *_load_arrays(run, folder), rows=_load_rows(folder / "rows.parquet"))

    def _check_task(self, weights: Any) -> jax.Array:
        """The module weights of a task as an array of the right shape."""
        task = jnp.asarray(weights, jnp.float32)
        family = self.run.family
        shape = jax.eval_shape(family.weigh, new_key(0), family.tasks()[0]).shape
        require(
            task.shape == shape, f"a task of this family has {shape[0]} weights, got {task.size}"
        )
        return task


def load_network(run: Run, folder: Path) -> Any:
    """The trained network of this run, which `Fitted.save` saved in a folder."""
    require(
        (folder / "run.json").exists(),
        f"the network of run {folder.name}, from which other runs start, is not in {folder.parent}:"
        " run the same command again, with workers that see this folder",
    )
    check_folder(folder)
    return _load_arrays(run, folder)[0]


def _load_arrays(run: Run, folder: Path) -> Any:
    """The network, the hidden teacher and the encoding's arrays of a saved run."""
    try:
        shapes = jax.eval_shape(lambda: initialize(run))
        return eqx.tree_deserialise_leaves(folder / "arrays.eqx", shapes)
    except Exception as error:
        raise InputError(
            f"{folder}/arrays.eqx cannot be read, or belongs to another run ({error}): "
            "save the network again"
        ) from error


def check_folder(folder: Path) -> bool:
    """Raise an `InputError` if a file of a saved network was changed. False without checksums."""
    try:
        checksums = json.loads((folder / CHECKSUMS).read_bytes())
    except FileNotFoundError:
        return False
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{folder / CHECKSUMS} cannot be read ({error}): {SAVE_AGAIN}") from error
    is_valid = isinstance(checksums, dict) and set(checksums) == FILES
    require(is_valid, f"{folder / CHECKSUMS} does not name the files of a network: {SAVE_AGAIN}")
    for name, checksum in checksums.items():
        try:
            data = (folder / name).read_bytes()
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"{folder / name} cannot be read ({reason}): {SAVE_AGAIN}") from error
        require(
            _checksum(data) == checksum,
            f"{folder / name} has changed since the network was saved: {SAVE_AGAIN}",
        )
    return True


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _load_rows(path: Path) -> pd.DataFrame:
    """The rows of a saved network. A network of an older version may have none."""
    try:
        with LimitedFile(path) as file:
            return file.read().to_pandas()
    except FileNotFoundError:
        return pd.DataFrame()
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path} cannot be read ({reason}): {SAVE_AGAIN}") from error
