"""Where the rows of a sweep go as chunks finish: into its table, then to its mirror. Nothing finished is lost.

A disk that is full, or a folder that has gone, does not stop the training: rows wait in memory and are tried again with
the next ones. What still cannot be written in the end is left in the system's temporary folder.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pandas as pd

from recombine.basics.errors import InputError
from recombine.storage.table import Table
from recombine.training import checkpoint

MAX_PARTS = (
    64  # files of rows; more are put into one, so that a table of thousands of runs opens at once
)


class Writer:
    """Takes the rows of finished chunks; without a table it only keeps them."""

    def __init__(
        self,
        table: Table | None,
        mirror: Callable[[pd.DataFrame], None] | None = None,
        before: Iterable[str] = (),
    ):
        self.table, self.mirror = table, mirror
        self.before = set(before)  # runs that had rows when the sweep began
        self.waiting: list[pd.DataFrame] = []  # to be written
        self.kept: list[pd.DataFrame] = []  # where there is no table
        self.names: list[str] = []  # of the runs that wait
        self.written: set[str] = set()
        self.tell: Callable[[str], None] = lambda _: None

    @property
    def checkpoints(self) -> Path | None:
        """The folder for the checkpoints of chunks in training."""
        if self.table is None:
            return None
        path = self.table.path
        return (
            path.with_name(f".{path.name}.checkpoints")
            if self.table.packed
            else path / "checkpoints"
        )

    @contextlib.contextmanager
    def writing(self, tell: Callable[[str], None]) -> Iterator[None]:
        """While rows come in; at the end they are all in the table, or the user is told where they are."""
        self.tell = tell
        try:
            yield
        finally:
            error = self._flush()
            if error is not None:
                raise self._rescue(error) from error
            self.tidy()

    def add(self, rows: pd.DataFrame, names: Iterable[str]) -> set[str]:
        """Take the rows of a finished chunk of these runs, and tell which runs are written by now."""
        self.waiting += [rows] if len(rows) else []
        self.names += names
        error = self._flush()
        if error is not None:
            num_runs = sum(frame["run"].nunique() for frame in self.waiting)
            told = f"cannot write to {self._place} ({_reason(error)})"
            self.tell(f"{told}: {num_runs} runs wait in memory; free some space")
        elif self.table is not None and self.table.num_parts() > MAX_PARTS:
            self._compact()
        return self.written

    def tidy(self) -> None:
        """Put the rows into one part, and remove checkpoints of runs that have rows; for who holds the table."""
        if self.table is not None:
            self._compact()
            with contextlib.suppress(OSError, InputError):
                checkpoint.forget(self.checkpoints, self.before | self.written)

    def _compact(self) -> None:
        with contextlib.suppress(
            OSError, InputError
        ):  # a disk that is nearly full, a damaged part: later, then
            if self.table is not None:
                self.table.compact()

    def rows(self) -> pd.DataFrame:
        """All rows of the table, or all that came in."""
        return pd.concat(self.kept, ignore_index=True) if self.table is None else self.table.read()

    def _flush(self) -> Exception | None:
        """Write what waits; the error if that is not possible now."""
        rows = pd.concat(self.waiting, ignore_index=True) if self.waiting else None
        if rows is not None and self.table is not None:
            try:
                self.table.append(rows)
            except (OSError, InputError) as error:
                return error
        if rows is not None:
            self.kept += self.waiting if self.table is None else []
            self.waiting.clear()
            self.copy(rows)
        self.written |= set(self.names)
        checkpoint.forget(self.checkpoints, self.names)
        self.names.clear()
        return None

    def copy(self, rows: pd.DataFrame) -> None:
        """Give rows to the mirror; one that fails is told and dropped."""
        if self.mirror is not None:
            try:
                self.mirror(rows)
            except Exception as error:
                self.mirror = None
                self.tell(
                    f"the mirror gets no more rows, the table has them all ({type(error).__name__}: {error})"
                )

    @property
    def _place(self) -> Path | str:
        return "memory" if self.table is None else self.table.path

    def _rescue(self, error: Exception) -> InputError:
        assert self.table is not None
        rows = pd.concat(self.waiting, ignore_index=True)
        told = f"cannot write to {self.table.path} ({_reason(error)})"
        try:
            left = Table(Path(tempfile.mkdtemp(prefix="recombine-"))).append(rows)
        except OSError as second:
            return InputError(
                f"{told} nor to the temporary folder ({_reason(second)}): free some space and start again"
            )
        move = "" if self.table.packed else f"move that file into {self.table.path / 'rows'}, or "
        return InputError(
            f"{told}: the rows of the last {rows['run'].nunique()} runs are in {left}; free some space and {move}run "
            "the same command again"
        )


def hold(table: Table, stack: contextlib.ExitStack) -> InputError | None:
    """Hold a table until the stack ends, its rows in one part; or why it cannot be held (read-only, another writer)."""
    try:
        if not table.path.exists():
            table.check_writable()  # which makes its folder
        stack.enter_context(table.held())
    except InputError as error:
        return error
    except OSError as error:
        return InputError(f"cannot write to {table.path} ({_reason(error)}): name another --out")
    with contextlib.suppress(
        OSError, InputError
    ):  # a disk that is nearly full, a damaged part: later, then
        table.compact()
    return None


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
