"""Activations of any PyTorch network, by forward hooks.

    activations = Recorder(model, layers="blocks.*").record(batches)

A layer's output is pooled on its device, all layers of a batch are copied to the CPU at once, and
rows beyond a memory limit go to disk, so memory does not grow with the number of samples. Hooks are
always removed, also after an error. The result, a dict of samples x features by layer, is an input
for `Decodability().fit`.
"""

from __future__ import annotations

import array
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from recombine.basics.console import Meter
from recombine.basics.errors import InputError, require
from recombine.probe import batching
from recombine.probe.activation_store import ActivationStore
from recombine.probe.attention_masks import AttentionMasks
from recombine.probe.device_transfer import HostTransfer, Rows
from recombine.probe.layer_selection import layers_with_tokens_first, select_modules
from recombine.probe.pooling import (
    EVERY,
    Channels,
    Pool,
    count_rows,
    find_tensor,
    is_position,
    pool_output,
)

MAX_MEMORY = 2 << 30  # bytes of activations in memory
SAMPLES_NOT_FIRST = "its first axis is not the sample, so set pool to a function"
TOKENS_FIRST = (
    "it expects tokens first, so set forward=lambda model, batch: model(batch.transpose(0, 1)), or "
    "use batch_first"
)


class _Output(NamedTuple):
    """The rows of a layer's output, and the number of rows of every sample."""

    rows: Tensor
    counts: list[int]


class Recorder:
    """Records layers of a network, with `record(batches)` or, as a context, in your own loop.

    - `layers`: names or patterns
    - `pool`: "mean" (over tokens or space), "first" or "last" (token), the index of a token, a span
      (start, stop) of tokens to average, "flat", or a function of the layer's tensor, whose first
      axis is the sample. With "every", every token is a row, and `groups` has the sample of each
      row, for `Decodability().fit(…, groups=recorder.groups)`. Padding is left out if the model, or
      the module that the layer is in, is called with an attention_mask or a key_padding_mask: token
      0 is the first that is not padding.
    - `forward(model, batch)`: how to call the model, if not `model(batch)`, `model(*batch)` or
      `model(**batch)`
    - `channels`: "first" or "last", the axis of features, if it is not found automatically
    - `pick`: takes the tensor out of a layer's output
    - `repeated`: which output counts for a layer that runs more than once in a forward pass; such
      layers are refused by default
    - `max_memory`: rows beyond this number of bytes go to files, which stay if you set `folder`
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Any = "*",
        pool: Pool = "mean",
        forward: Callable[[Any, Any], Any] | None = None,
        *,
        channels: Channels = None,
        pick: Callable[[Any], Any] = find_tensor,
        repeated: Literal["first", "last", "mean"] | None = None,
        max_memory: int = MAX_MEMORY,
        folder: str | Path | None = None,
        progress: bool = True,
    ):
        _check_options(model, pool, repeated, channels)
        self.model: Any = getattr(
            model, "_orig_mod", model
        )  # hooks of a compiled model may not run
        self.modules = select_modules(self.model, layers)
        self.pool: Pool = pool
        self.channels: Channels = channels
        self.forward = forward
        self.pick = pick
        self.repeated = repeated
        self.max_memory = max_memory
        self.folder = None if folder is None else Path(folder)
        self.progress = progress
        self.store = ActivationStore(max_memory, self.folder)
        self._transfer = HostTransfer()
        self._handles: list[Any] = []
        self._exit_stack = contextlib.ExitStack()
        self._thread: threading.Thread | None = None  # that of the current forward pass
        self._outputs: dict[str, list[_Output]] | None = None  # of the current forward pass
        # Of all batches. One growing array: small ones between the rows would fragment the memory.
        self._rows_per_sample = array.array("q")
        self._masks = AttentionMasks(self.model, self.modules)
        self._tokens_first = layers_with_tokens_first(self.model, self.modules)
        self._caller: batching.ModelCaller | None = None
        self._batch_size: int | None = None  # None if unknown
        self._in_own_loop = True  # the user calls the model
        self._input_devices: set[str] = set()

    @property
    def activations(self) -> dict[str, np.ndarray]:
        """All batches that were recorded since the last start, by layer: samples x features."""
        self._store_rows(self._transfer.finish())
        require(
            self.store.num_rows > 0,
            "nothing was recorded: call the model itself inside the `with` block",
        )
        return self.store.arrays()

    @property
    def groups(self) -> np.ndarray:
        """The sample that each row of the activations belongs to: 0 for the first sample."""
        counts = np.array(self._rows_per_sample, dtype=int)
        return np.repeat(np.arange(len(counts)), counts)

    def record(self, batches: Any, batch_size: int = 32) -> dict[str, np.ndarray]:
        """Run the network on all batches, in evaluation mode without gradients.

        Returns activations by layer. Batches are a DataLoader, a list or a generator. One tensor
        (or dict of tensors) of all samples is cut into batches of `batch_size`.
        """
        iterable, num_batches = batching.split_into_batches(batches, batch_size)
        meter = Meter("recording, batches", num_batches, self.progress)
        with self, self._evaluation_mode(), torch.no_grad(), meter:
            self.store.num_batches = num_batches
            for batch in iterable:
                self._run(batch)
                meter.advance()
            self._store_rows(self._transfer.finish())
        if not self.store.num_rows:
            remedy = "provide at least one"
            if num_batches is None:
                remedy = "a generator is empty after its first use, so make a new one or use a list"
            raise InputError(f"there was no batch to record: {remedy}")
        return self.activations

    def __enter__(self) -> Recorder:
        require(
            not self._handles,
            "this recorder is already recording: use a separate recorder for each loop",
        )
        self.store = ActivationStore(self.max_memory, self.folder)
        self._transfer = HostTransfer()
        self._rows_per_sample = array.array("q")
        self._in_own_loop = True
        self._exit_stack = contextlib.ExitStack()
        try:
            # Compiled code does not run hooks that were added after its compilation.
            self._exit_stack.enter_context(_without_compiled_code())
            before = self.model.register_forward_pre_hook(self._before_forward, with_kwargs=True)
            self._handles.append(before)
            self._handles += self._masks.register_hooks()
            for name, module in self.modules.items():
                self._handles.append(module.register_forward_hook(self._layer_hook(name)))
            self._handles.append(self.model.register_forward_hook(self._after_forward))
        except BaseException:
            self._remove_hooks()
            raise
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._remove_hooks()
        if error is None:
            return
        explanation = batching.explain_error(
            error, self.model, self._batch_size, self._input_devices
        )
        if explanation is not None:
            raise InputError(explanation) from error

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._outputs = None
        self._masks.clear()
        self._exit_stack.close()

    @contextlib.contextmanager
    def _evaluation_mode(self) -> Iterator[None]:
        """Evaluation mode while we run the network; then every module gets its own mode back."""
        modes = {module: module.training for module in self.model.modules()}
        self._in_own_loop = False
        self._caller = batching.ModelCaller(self.model, cast=self.forward is None)
        try:
            self.model.eval()
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode

    def _run(self, batch: Any) -> None:
        """Run the network on one batch."""
        caller: Any = self._caller
        self._start_pass(batching.num_samples(batch))
        batch = caller.prepare(batch)
        if self.forward is None:
            caller.call(batch)
        else:
            self._batch_size = None  # the user's function may do anything with a batch
            self.forward(self.model, batch)
        self._finish_pass()

    def _start_pass(self, batch_size: int | None) -> None:
        current = threading.current_thread()
        is_other = self._outputs is not None and self._thread is not current
        require(
            not (is_other and self._thread is not None and self._thread.is_alive()),
            "two threads run the model at the same time, so their rows would mix: use one recorder "
            "and one copy of the model in each thread, or a lock around the model",
        )
        self._thread = current
        self._masks.clear()
        self._outputs = {}
        self._batch_size = batch_size

    def _before_forward(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        inputs = [*args, *kwargs.values()]
        self._input_devices = batching.tensor_devices(inputs)
        if self._in_own_loop:
            self._start_pass(batching.num_samples(inputs))

    def _after_forward(self, model: nn.Module, args: Any, output: Any) -> None:
        if self._in_own_loop:
            self._finish_pass()

    def _layer_hook(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self._record_output(name, output)

        return hook

    def _record_output(self, name: str, output: Any) -> None:
        """Pool the output of a layer, and keep the rows until the forward pass ends."""
        if self._outputs is None:
            raise InputError(
                f"layer {name!r} ran outside a forward pass of the model: call the model itself, "
                "or use record with forward="
            )
        tensor = self.pick(output)
        if not isinstance(tensor, Tensor):
            raise InputError(
                f"layer {name!r} returned {type(output).__name__} without a tensor: choose a layer "
                "inside it, or set pick to a function that returns the tensor"
            )
        if name in self._tokens_first and tensor.ndim == 3:  # tokens x samples x features
            tensor = tensor.transpose(0, 1)
        mask = None
        if tensor.ndim == 3 and not tensor.is_nested:
            mask = self._masks.mask_of(name, tensor.shape)
        # The rows' final memory is known unless an earlier output or batch still has to go before.
        is_next = name not in self._outputs and not self._transfer.is_pending
        find_memory = functools.partial(self.store.next_rows, name) if is_next else None
        rows = pool_output(name, tensor, self.pool, self.channels, mask, find_memory)
        counts = [1] * len(rows)
        if self.pool == EVERY:
            counts = count_rows(name, tensor, mask).tolist()
        self._outputs.setdefault(name, []).append(_Output(rows, counts))

    def _finish_pass(self) -> None:
        """Check that every layer has the same samples, and send the rows to the CPU."""
        outputs = self._outputs or {}
        self._outputs = None
        chosen = {name: self._select_output(name, outputs.get(name, [])) for name in self.modules}
        first = next(iter(chosen))
        counts = chosen[first].counts
        num_samples = len(counts) if self._batch_size is None else self._batch_size
        require(num_samples > 0, "a batch has no sample: leave it out")
        for name, (rows, own_counts) in chosen.items():
            if len(own_counts) != num_samples:
                reason = TOKENS_FIRST if name in self._tokens_first else SAMPLES_NOT_FIRST
                raise InputError(
                    f"layer {name!r} returned {len(own_counts)} rows for a batch of {num_samples} "
                    f"samples: {reason}"
                )
            require(
                own_counts == counts,
                f"layers {first!r} and {name!r} have different numbers of tokens: record them with "
                "separate recorders, or set another pool",
            )
            self.store.check_width(name, rows.shape[1])
        self._rows_per_sample.extend(counts)
        self._store_rows(self._transfer.send({name: each.rows for name, each in chosen.items()}))

    def _store_rows(self, batches: Iterator[Rows]) -> None:
        for rows in batches:
            self.store.add(rows)

    def _select_output(self, name: str, outputs: list[_Output]) -> _Output:
        """The rows of a layer that may have run several times."""
        if not outputs:
            raise InputError(
                f"layer {name!r} did not run in a forward pass of the model: choose another layer, "
                "or set forward to a function that calls it"
            )
        if len(outputs) > 1 and self.repeated is None:
            raise InputError(
                f"layer {name!r} ran {len(outputs)} times in one forward pass: set "
                "repeated='first', 'last' or 'mean' to choose an output"
            )
        if self.repeated == "mean" and len(outputs) > 1:
            first = outputs[0]
            is_same = [
                each.rows.shape == first.rows.shape and each.counts == first.counts
                for each in outputs
            ]
            require(
                all(is_same),
                f"layer {name!r} returned rows of different widths in one forward pass: set "
                "repeated='first' or 'last'",
            )
            return _Output(torch.stack([each.rows for each in outputs]).mean(dim=0), first.counts)
        return outputs[0] if self.repeated == "first" else outputs[-1]


def _without_compiled_code() -> Any:
    """A context in which functions that were compiled by PyTorch run as they were written."""
    set_stance = getattr(torch.compiler, "set_stance", None)  # from PyTorch 2.6 on
    return contextlib.nullcontext() if set_stance is None else set_stance("force_eager")


def _check_options(model: Any, pool: Any, repeated: Any, channels: Any) -> None:
    require(
        isinstance(model, nn.Module),
        f"model must be a torch.nn.Module, got {type(model).__name__}: pass activations of other "
        "models directly to Decodability",
    )
    require(
        callable(pool) or is_position(pool) or pool in ("mean", "first", "last", "flat", EVERY),
        "pool must be 'mean', 'first', 'last', 'flat', 'every', the index of a token, a span of "
        f"two indices or a function, got {pool!r}",
    )
    require(
        repeated in (None, "first", "last", "mean"),
        f"repeated must be 'first', 'last' or 'mean', got {repeated!r}",
    )
    require(
        channels in (None, "first", "last"),
        f"channels must be 'first' or 'last', got {channels!r}",
    )
    require(
        not isinstance(model, torch.jit.ScriptModule),
        "a scripted model cannot be recorded: record the model that it was made from",
    )
