"""Activations of any PyTorch network, by plain forward hooks: `Recorder(model, layers="blocks.*").record(batches)`.

A layer's output is pooled on its device, all layers of a batch are copied to the CPU at once, and rows beyond a limit
go to disk, so that memory does not grow with the number of samples. Hooks are removed whatever happens. What comes out,
a dict of samples x features by layer, is what `Decodability().fit` takes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from recombine.basics.console import Meter
from recombine.basics.errors import InputError, require
from recombine.probe import batch as batching
from recombine.probe.copies import Copies, Rows
from recombine.probe.layers import choose, tokens_first
from recombine.probe.mask import Masks
from recombine.probe.pool import Channels, Pool, pick, pooled
from recombine.probe.store import Store

MAX_MEMORY = 2 << 30  # bytes of activations that are kept in memory
ODD = "its first axis is not the sample, so give pool a function"
TURN = "it takes tokens first, so say forward=lambda model, batch: model(batch.transpose(0, 1)), or use batch_first"


class Recorder:
    """Records layers of a network while it runs, on batches of its own or, as a context, on those of your own loop.

    `layers` are names or patterns. `pool` is "mean" or "last" (over tokens or space; padding is left out where the
    model, or the part of it that the layer is in, is called with an attention_mask), "flat", or a function of the
    layer's tensor, which has the sample first. `forward(model, batch)` says how the model is called where
    `model(batch)`, `model(*batch)` or `model(**batch)` would not do. `pick` takes the tensor out of a layer's output. A
    layer that runs more than once in a forward pass is refused unless `repeated` says which of its outputs counts. Rows
    beyond `max_memory` bytes go to files, in `folder` if they are to stay.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Any = "*",
        pool: Pool = "mean",
        forward: Callable[[Any, Any], Any] | None = None,
        *,
        channels: Channels = None,
        pick: Callable[[Any], Any] = pick,
        repeated: Literal["first", "last", "mean"] | None = None,
        max_memory: int = MAX_MEMORY,
        folder: str | Path | None = None,
        progress: bool = True,
    ):
        told = f"model must be a torch.nn.Module, got {type(model).__name__}"
        require(
            isinstance(model, nn.Module),
            f"{told}: for activations of other models use Decodability at once",
        )
        fine = callable(pool) or pool in ("mean", "last", "flat")
        require(fine, f"pool must be 'mean', 'last', 'flat' or a function, got {pool!r}")
        fine = repeated in (None, "first", "last", "mean")
        require(fine, f"repeated must be 'first', 'last' or 'mean', got {repeated!r}")
        require(
            channels in (None, "first", "last"),
            f"channels must be 'first' or 'last', got {channels!r}",
        )
        scripted = isinstance(model, torch.jit.ScriptModule)
        require(
            not scripted, "a scripted model cannot be recorded: give the one that it was made from"
        )
        self.model: Any = getattr(
            model, "_orig_mod", model
        )  # a compiled network's own hooks may never be called
        self.modules = choose(self.model, layers)
        self.pool: Pool = pool
        self.channels: Channels = channels
        self.forward, self.pick, self.repeated = forward, pick, repeated
        self.max_memory, self.folder, self.progress = (
            max_memory,
            None if folder is None else Path(folder),
            progress,
        )
        self.store, self._copies = Store(max_memory, self.folder), Copies()
        self._handles: list[Any] = []
        self._caught: dict[str, list[Tensor]] | None = None  # of the forward pass that is under way
        self._masks = Masks(self.model, self.modules)
        self._turned = tokens_first(self.model, self.modules)
        self._home: batching.Home | None = None
        self._size: int | None = None  # samples of the batch, where that can be told
        self._own_loop = True
        self._devices: set[str] = set()

    @property
    def activations(self) -> dict[str, np.ndarray]:
        """All batches that were recorded since the last start, by layer: samples x features."""
        self._keep(self._copies.rest())
        require(
            self.store.num_rows > 0,
            "nothing was recorded: call the model itself while the recorder is on",
        )
        return self.store.arrays()

    def record(self, batches: Any, batch_size: int = 32) -> dict[str, np.ndarray]:
        """Run the network on all batches, without gradients and in evaluation mode: activations by layer.

        Batches are a DataLoader, a list or a generator; one tensor (or dict of tensors) of all samples is cut into
        batches of `batch_size`.
        """
        pieces, total = batching.pieces(batches, batch_size)
        with (
            self,
            self._alone(),
            torch.no_grad(),
            Meter("recording, batches", total, self.progress) as meter,
        ):
            self.store.num_batches = total
            for piece in pieces:
                self._run(piece)
                meter.advance()
            self._keep(self._copies.rest())
        if not self.store.num_rows:
            told = "there was no batch to record"
            remedy = "a generator can be read only once, make it anew or give a list"
            raise InputError(f"{told}: {remedy}" if total is None else f"{told}: give at least one")
        return self.activations

    def __enter__(self) -> Recorder:
        require(
            not self._handles,
            "this recorder is recording already: use one of its own for each loop",
        )
        self.store, self._copies = Store(self.max_memory, self.folder), Copies()
        self._own_loop = True
        try:
            self._handles.append(
                self.model.register_forward_pre_hook(self._before, with_kwargs=True)
            )
            self._handles += self._masks.hooks()
            self._handles += [
                module.register_forward_hook(self._hook(name))
                for name, module in self.modules.items()
            ]
            self._handles.append(self.model.register_forward_hook(self._after))
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._remove()
        reason = (
            None
            if error is None
            else batching.explain(error, self.model, self._size, self._devices)
        )
        if reason is not None:
            raise InputError(reason) from error

    def _remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._caught = [], None
        self._masks.clear()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Evaluation mode while we run the network; every module gets its own mode back."""
        modes = {module: module.training for module in self.model.modules()}
        self._own_loop, self._home = False, batching.Home(self.model, cast=self.forward is None)
        try:
            self.model.eval()
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode

    def _run(self, piece: Any) -> None:
        home: Any = self._home
        self._masks.clear()
        self._caught, self._size = {}, batching.size(piece)
        piece = home.move(piece)
        if self.forward is not None:
            self._size = None  # only the user's own call knows what it does with a batch
            self.forward(self.model, piece)
        else:
            home.call(piece)
        self._finish()

    def _before(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = [*args, *kwargs.values()]
        self._devices = batching.devices(given)
        if self._own_loop:
            self._masks.clear()
            self._caught, self._size = {}, batching.size(given)

    def _hook(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            caught, tensor = self._caught, self.pick(output)
            if caught is None:
                told = f"layer {name!r} ran outside a forward pass of the model"
                raise InputError(f"{told}: call the model itself, or use record with forward=")
            if not isinstance(tensor, Tensor):
                told = f"layer {name!r} returned no tensor but {type(output).__name__}"
                raise InputError(
                    f"{told}: choose a layer within it, or say with pick= what to take"
                )
            if (
                name in self._turned and tensor.ndim == 3
            ):  # PyTorch's own way: tokens x samples x features
                tensor = tensor.transpose(0, 1)
            busy = (
                name in caught or self._copies.under_way
            )  # then it is not known where the rows will stand
            place = None if busy else functools.partial(self.store.place, name)
            mask = (
                self._masks.of(name, tensor.shape)
                if tensor.ndim == 3 and not tensor.is_nested
                else None
            )
            caught.setdefault(name, []).append(
                pooled(name, tensor, self.pool, self.channels, mask, place)
            )

        return hook

    def _after(self, model: nn.Module, args: Any, output: Any) -> None:
        if self._own_loop:
            self._finish()

    def _finish(self) -> None:
        """A batch is done: one row per sample and layer, on its way to the CPU."""
        caught, self._caught = self._caught or {}, None
        rows = {name: self._one(name, caught.get(name, [])) for name in self.modules}
        first = next(iter(rows))
        num = len(rows[first]) if self._size is None else self._size
        require(num > 0, "a batch has no sample: leave it out")
        for name, found in rows.items():
            if len(found) != num:
                told = f"layer {name!r} gave {len(found)} rows for a batch of {num} samples"
                raise InputError(f"{told}: {TURN if name in self._turned else ODD}")
            self.store.check(name, found.shape[1])
        self._keep(self._copies.send(rows))

    def _keep(self, batches: Iterator[Rows]) -> None:
        for rows in batches:
            self.store.add(rows)

    def _one(self, name: str, found: list[Tensor]) -> Tensor:
        if not found:
            told = f"layer {name!r} did not run in a forward pass of the model"
            raise InputError(
                f"{told}: choose another, or say with forward= how the model is called"
            )
        if len(found) > 1 and self.repeated is None:
            told = f"layer {name!r} ran {len(found)} times in one forward pass"
            raise InputError(
                f"{told}: say with repeated='first', 'last' or 'mean' which output counts"
            )
        if self.repeated == "mean" and len(found) > 1:
            told = f"layer {name!r} gave rows of several widths in one forward pass"
            require(
                len({row.shape for row in found}) == 1, f"{told}: choose repeated='first' or 'last'"
            )
            return torch.stack(found).mean(dim=0)
        return found[0] if self.repeated == "first" else found[-1]
