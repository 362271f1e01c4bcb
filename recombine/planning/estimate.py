"""What a sweep would cost before it is trained: seconds and money, on one machine or many, by the cost model."""

import heapq
from collections.abc import Sequence
from typing import Any

from recombine.basics.errors import require
from recombine.basics.suggest import nearest
from recombine.sweeps.run import Run, structure
from recombine.training import cost
from recombine.training.chunk import MAX_WIDTH, cut
from recombine.training.progress import expected_seconds
from recombine.training.scheduler import MAX_WIDTH_GPU


def estimate(
    runs: Sequence[Run], kind: str, num_workers: int = 1, price: float | None = None
) -> dict[str, Any]:
    """The expected seconds of a sweep on workers with one device of a kind each, and its price at so much an hour.

    The longest chunks are begun first, each by whoever is free. A program is taken to be compiled once, and then found
    on the disk that all workers share.
    """
    require(
        kind in cost.kinds(),
        f"no cost model of a device {kind!r} is known: {nearest(kind, cost.kinds())}",
    )
    require(num_workers >= 1, f"the number of workers must be at least 1, got {num_workers}")
    require(price is None or price >= 0, f"a price per hour cannot be negative, got {price}")
    chunks = cut(runs, MAX_WIDTH if kind == "cpu" else MAX_WIDTH_GPU)
    model, num_programs = cost.load(kind), len({structure(chunk.runs[0]) for chunk in chunks})
    expected = expected_seconds(chunks, model)
    free = [0.0] * num_workers
    for chunk in sorted(chunks, key=lambda chunk: -expected[chunk]):
        heapq.heappush(free, heapq.heappop(free) + expected[chunk])
    num_runs, seconds, busy = (
        sum(len(chunk.runs) for chunk in chunks),
        max(free),
        sum(expected.values()),
    )
    found = {
        "device": kind,
        "workers": num_workers,
        "runs": num_runs,
        "chunks": len(chunks),
        "programs": num_programs,
        "seconds": seconds,
        "device_seconds": busy,
        "compile_seconds": num_programs * model.compile_seconds,
        "seconds_per_1000_runs": 1000 * busy / num_runs,
    }
    if price is not None:
        found |= {
            "price": price * busy / 3600,
            "price_per_1000_runs": price * busy / 3600 * 1000 / num_runs,
        }
    return found
