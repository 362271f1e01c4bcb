"""What recording costs, against a forward pass without it.

    python benchmarks/recorder.py [WIDTH BLOCKS TOKENS BATCH]

Every block of a transformer is pooled over its tokens, copied to the CPU and kept, while the same batches also go
through the bare network; both in turn, and the median of the ratios counts. Also for dense layers alone, the worst
case: they are cheap, and every number of every layer is kept. The narrower they are, the less is computed for each
number that is kept, so half that width is measured too. On a GPU if there is one, and else on one core, in seconds of
that core; memory that others keep busy still makes copies slower. PyTorch's fused encoder layer, which it does not use
where anything is hooked, is turned off for both.
"""

import sys
import time

import numpy as np
import torch
from torch import nn

from recombine.probe import Recorder

REPEATS = 15
BATCHES = (
    16 if torch.cuda.is_available() else 4
)  # of a recording: what begins one is shared by them


def main(width: int = 384, num_blocks: int = 6, num_tokens: int = 64, batch: int = 16) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)
    print(
        torch.cuda.get_device_name() if device == "cuda" else "one core", "torch", torch.__version__
    )
    layer = nn.TransformerEncoderLayer(
        width, width // 64, 4 * width, batch_first=True, norm_first=True
    )
    transformer = nn.TransformerEncoder(layer, num_blocks, enable_nested_tensor=False)
    print(f"transformer, {num_blocks} blocks of {width}, batches of {batch} x {num_tokens} tokens:")
    compare(
        transformer.to(device), "layers.*", torch.randn(batch, num_tokens, width, device=device)
    )
    for narrow in (width, width // 2):
        dense = nn.Sequential(
            *(nn.Sequential(nn.Linear(narrow, narrow), nn.ReLU()) for _ in range(num_blocks))
        )
        print(f"dense, {num_blocks} layers of {narrow}, batches of {batch * num_tokens} samples:")
        compare(dense.to(device), "*", torch.randn(batch * num_tokens, narrow, device=device))


def compare(model: nn.Module, layers: str, x: torch.Tensor) -> None:
    model.eval()
    recorder, times = Recorder(model, layers, progress=False), []
    with torch.no_grad():
        for _ in range(REPEATS + 2):
            bare = timed(lambda: [model(x) for _ in range(BATCHES)])
            recorded = timed(lambda: recorder.record([x] * BATCHES))
            times.append((bare, recorded))
    bare, recorded = np.array(times[2:]).T
    low, ratio, high = np.percentile(recorded / bare - 1, [25, 50, 75])
    print(
        f"  {1e3 * np.median(bare) / BATCHES:.2f} ms a batch, recorded {1e3 * np.median(recorded) / BATCHES:.2f} ms: "
        f"{ratio:+.0%} (half of {REPEATS} repeats within {low:+.0%} and {high:+.0%})"
    )


def timed(work) -> float:
    now = time.perf_counter if torch.cuda.is_available() else time.thread_time
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    clock = now()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return now() - clock


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
