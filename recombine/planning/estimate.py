"""Estimate the cost of a sweep before it is trained: seconds and money, on one machine or many."""

import heapq
from collections.abc import Sequence
from typing import Any

from recombine.basics.errors import require
from recombine.basics.suggest import did_you_mean
from recombine.sweeps.run import Run, structure
from recombine.training import cost
from recombine.training.chunk import MAX_WIDTH_CPU, make_chunks
from recombine.training.progress import expected_seconds
from recombine.training.scheduler import MAX_WIDTH_GPU


def estimate(
    runs: Sequence[Run], kind: str, num_workers: int = 1, price: float | None = None
) -> dict[str, Any]:
    """Estimate the seconds of a sweep by the cost model of a device, and its price.

    Each worker has one device of this `kind`, at a `price` per hour. Workers take the longest chunk
    that is left. Each program is compiled once and shared through the program cache. Runs from
    which others start are counted, each once.
    """
    kinds = cost.measured_kinds()
    require(
        kind in kinds, f"there is no cost model of the device {kind!r}: {did_you_mean(kind, kinds)}"
    )
    require(num_workers >= 1, f"the number of workers must be at least 1, got {num_workers}")
    require(price is None or price >= 0, f"the price per hour must not be negative, got {price}")
    chunks = make_chunks(runs, MAX_WIDTH_CPU if kind == "cpu" else MAX_WIDTH_GPU)
    model = cost.load(kind)
    chunk_seconds = expected_seconds(chunks, model)
    device_seconds = sum(chunk_seconds.values())
    num_runs = sum(len(chunk.runs) for chunk in chunks)
    num_programs = len({structure(chunk.runs[0]) for chunk in chunks})
    result = {
        "device": kind,
        "workers": num_workers,
        "runs": num_runs,
        "chunks": len(chunks),
        "programs": num_programs,
        "seconds": _makespan(list(chunk_seconds.values()), num_workers),
        "device_seconds": device_seconds,
        "compile_seconds": num_programs * model.compile_seconds,
        "seconds_per_1000_runs": 1000 * device_seconds / num_runs,
    }
    if price is not None:
        total_price = price * device_seconds / 3600
        result["price"] = total_price
        result["price_per_1000_runs"] = total_price * 1000 / num_runs
    return result


def _makespan(job_seconds: Sequence[float], num_workers: int) -> float:
    """The seconds until all jobs are done, if workers take the longest job that is left."""
    busy_until = [0.0] * num_workers
    for seconds in sorted(job_seconds, reverse=True):
        heapq.heappush(busy_until, heapq.heappop(busy_until) + seconds)
    return max(busy_until)
