"""CPU time, for tests that compare two computations with each other.

No test compares a time with a fixed number of seconds, since machines differ. The exceptions are
promises of the design (`recombine --help` answers in half a second) and limits after which a test
that waits gives up.
"""

import time
from collections.abc import Callable


def cpu_seconds(function: Callable[[], object], num_repeats: int = 3) -> float:
    """The CPU time of the fastest of several calls: other processes slow down some of them."""
    times = []
    for _ in range(num_repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)
