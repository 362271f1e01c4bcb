"""Measure the cost of recording activations, compared with a forward pass without recording.

    python benchmarks/recorder.py [WIDTH BLOCKS TOKENS BATCH]

Every block of a transformer is averaged over its tokens, copied to the CPU and stored. The same
batches also go through the network without recording. Both alternate, and the result is the median
ratio. Dense layers are the worst case: they are cheap, and every activation is stored. The narrower
they are, the less is computed per stored number, so half the width is measured too.

It runs on a GPU if there is one. Otherwise it runs on one core, in seconds of that core; other
processes still slow down memory. PyTorch's fused encoder layer is turned off, since it is not used
with hooks.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from recombine.probe import Recorder

ON_GPU = torch.cuda.is_available()
NUM_REPEATS = 15
NUM_WARMUP = 2
NUM_BATCHES = 16 if ON_GPU else 4  # of one recording; they share the time to start it


def main(width: int = 384, num_blocks: int = 6, num_tokens: int = 64, batch: int = 16) -> None:
    device = "cuda" if ON_GPU else "cpu"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)
    print(torch.cuda.get_device_name() if ON_GPU else "one core", "torch", torch.__version__)
    layer = nn.TransformerEncoderLayer(
        width, width // 64, 4 * width, batch_first=True, norm_first=True
    )
    transformer = nn.TransformerEncoder(layer, num_blocks, enable_nested_tensor=False)
    print(f"transformer, {num_blocks} blocks of {width}, batches of {batch} x {num_tokens} tokens:")
    tokens = torch.randn(batch, num_tokens, width, device=device)
    compare(transformer.to(device), "layers.*", tokens)
    for dense_width in (width, width // 2):
        layers = [
            nn.Sequential(nn.Linear(dense_width, dense_width), nn.ReLU()) for _ in range(num_blocks)
        ]
        num_samples = batch * num_tokens
        print(f"dense, {num_blocks} layers of {dense_width}, batches of {num_samples} samples:")
        samples = torch.randn(num_samples, dense_width, device=device)
        compare(nn.Sequential(*layers).to(device), "*", samples)


def compare(model: nn.Module, layers: str, x: torch.Tensor) -> None:
    """Print the time of a batch without and with recording, and their ratio."""
    model.eval()
    recorder = Recorder(model, layers, progress=False)
    times = []
    with torch.no_grad():
        for _ in range(NUM_WARMUP + NUM_REPEATS):
            bare = timed(lambda: [model(x) for _ in range(NUM_BATCHES)])
            recorded = timed(lambda: recorder.record([x] * NUM_BATCHES))
            times.append((bare, recorded))
    bare, recorded = np.array(times[NUM_WARMUP:]).T
    low, median, high = np.percentile(recorded / bare - 1, [25, 50, 75])
    bare_ms = 1e3 * np.median(bare) / NUM_BATCHES
    recorded_ms = 1e3 * np.median(recorded) / NUM_BATCHES
    print(
        f"  {bare_ms:.2f} ms per batch, recorded {recorded_ms:.2f} ms: {median:+.0%} "
        f"(half of {NUM_REPEATS} repeats between {low:+.0%} and {high:+.0%})"
    )


def timed(work: Callable[[], object]) -> float:
    """The seconds that a function takes: wall time on a GPU, time of this thread on a core."""
    clock = time.perf_counter if ON_GPU else time.thread_time
    if ON_GPU:
        torch.cuda.synchronize()
    start = clock()
    work()
    if ON_GPU:
        torch.cuda.synchronize()
    return clock() - start


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
