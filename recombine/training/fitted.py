"""A trained network, to be used, saved and loaded. Arrays are written as equinox leaves, the run as JSON; no pickle."""

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

from recombine.basics.atomic_io import replace
from recombine.basics.errors import InputError, require
from recombine.parts.prng import new_key
from recombine.parts.protocols import examples_of
from recombine.sweeps import discovery
from recombine.sweeps.run import Run, from_json, to_json
from recombine.training.program import fresh


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained network, the world that it was trained on, the arrays of its encoding, and its rows."""

    run: Run
    net: Any
    world: Any
    encoding: Any
    rows: pd.DataFrame = field(default_factory=pd.DataFrame)

    def examples(self, task: Any, n: int, key: Any = None) -> tuple[Any, Any]:
        """Draw n true pairs (x, y) of the task with the given module weights."""
        return self.run.family.sample(
            self.world, new_key(0) if key is None else key, self._task(task), n
        )

    def predict(self, x: Any, task: Any, key: Any = None) -> jax.Array:
        """Predict points x of the task with the given module weights; `key` draws a few-shot code's examples."""
        weights = self._task(task)
        examples = examples_of(self.run.family, self.world, weights)
        code = self.run.encoding.encode(
            self.encoding, new_key(1) if key is None else key, weights, examples
        )
        x = jnp.asarray(x)
        require(len(x) > 0, "there are no points to predict: give at least one")
        at_once = self.run.num_points if getattr(self.run.model, "together", False) else len(x)
        return jnp.concatenate(
            [self.net(x[i : i + at_once], code)[0] for i in range(0, len(x), at_once)]
        )

    def save(self, folder: str | Path) -> Path:
        """Write the network into a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").unlink(missing_ok=True)  # a folder with a run.json is complete
        arrays = io.BytesIO()
        eqx.tree_serialise_leaves(arrays, (self.net, self.world, self.encoding))
        replace(folder / "arrays.eqx", arrays.getvalue())
        self.rows.to_parquet(folder / "rows.parquet")
        replace(folder / "run.json", json.dumps(to_json(self.run), indent=1).encode())
        return folder

    @classmethod
    def load(cls, folder: str | Path, parts: Iterable[type] = ()) -> "Fitted":
        """Read what `save` wrote. Classes of your own are passed in `parts`; nothing else is imported."""
        folder = Path(folder)
        try:
            described = json.loads((folder / "run.json").read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"{folder} holds no saved network ({error})") from error
        if not isinstance(described, dict) or described.get("part") != "Run":
            raise InputError(f"{folder}/run.json does not describe a run: save the network again")
        known = {name: part for kind in discovery.parts().values() for name, part in kind.items()}
        run = from_json(described, {"Run": Run, **known, **{part.__name__: part for part in parts}})
        try:
            arrays = eqx.tree_deserialise_leaves(
                folder / "arrays.eqx", jax.eval_shape(lambda: fresh(run))
            )
        except Exception as error:
            raise InputError(
                f"{folder}/arrays.eqx cannot be read, or belongs to another run ({error})"
            ) from error
        return cls(run, *arrays, rows=pd.read_parquet(folder / "rows.parquet"))

    def _task(self, weights: Any) -> jax.Array:
        task, family = jnp.asarray(weights, jnp.float32), self.run.family
        wanted = jax.eval_shape(family.weigh, new_key(0), family.tasks()[0]).shape
        require(
            task.shape == wanted, f"a task of this family has {wanted[0]} weights, got {task.size}"
        )
        return task
