"""Write the rows of a sweep as chunks finish: into its table, then to its mirror.

No finished row is lost. A full disk or a missing folder does not stop training: rows wait in memory
and are written together with the next ones. Rows that cannot be written until the end are saved in
the system's temporary folder.
"""

import contextlib
import errno
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pandas as pd

from recombine.basics.errors import InputError
from recombine.storage.table import Table
from recombine.training import checkpoint

MAX_PARTS = 64  # files of rows: more are merged into one, so that a large table opens quickly


class RowWriter:
    """Writes the rows of finished chunks. Without a table it keeps them in memory."""

    def __init__(
        self,
        table: Table | None,
        mirror: Callable[[pd.DataFrame], None] | None = None,
        written_before: Iterable[str] = (),
    ):
        self.table = table
        self.mirror = mirror
        self.written_before = set(written_before)  # runs with rows when the sweep began
        self.written: set[str] = set()  # runs written since
        self.waiting: list[pd.DataFrame] = []  # rows to be written
        self.waiting_runs: list[str] = []
        self.in_memory: list[pd.DataFrame] = []  # all rows, if there is no table
        self.notify: Callable[[str], None] = lambda _: None

    @property
    def checkpoint_folder(self) -> Path | None:
        """The folder for checkpoints of chunks in training."""
        if self.table is None:
            return None
        path = self.table.path
        if self.table.packed:
            return path.with_name(f".{path.name}.checkpoints")
        return path / "checkpoints"

    @contextlib.contextmanager
    def writing(self, notify: Callable[[str], None]) -> Iterator[None]:
        """Write rows in this block. At its end all are in the table, or an error says where.

        `notify` shows the user a message.
        """
        self.notify = notify
        try:
            yield
        finally:
            error = self._flush()
            if error is not None:
                raise self._save_elsewhere(error) from error
            self.tidy()

    def add(self, rows: pd.DataFrame, run_hashes: Iterable[str]) -> set[str]:
        """Write the rows of a finished chunk. Returns the runs that are written so far."""
        if len(rows):
            self.waiting.append(rows)
        self.waiting_runs += run_hashes
        error = self._flush()
        if self.table is None:
            return self.written
        if error is not None:
            num_runs = sum(frame["run"].nunique() for frame in self.waiting)
            self.notify(
                f"cannot write to {self.table.path} ({_reason(error)}): "
                f"{num_runs} runs wait in memory; free some space"
            )
        elif self.table.num_parts() > MAX_PARTS:
            _try_to_compact(self.table)
        return self.written

    def tidy(self) -> None:
        """Merge the parts of the table, and remove checkpoints of runs that have rows.

        Call it only while the table is locked.
        """
        if self.table is not None:
            _try_to_compact(self.table)
            with contextlib.suppress(OSError, InputError):
                finished = self.written_before | self.written
                checkpoint.remove_checkpoints(self.checkpoint_folder, finished)

    def rows(self) -> pd.DataFrame:
        """All rows of the table. Without a table, all rows that were added."""
        if self.table is None:
            return pd.concat(self.in_memory, ignore_index=True)
        return self.table.read()

    def _flush(self) -> Exception | None:
        """Write the waiting rows. Returns the error if that is not possible now."""
        if self.waiting:
            rows = pd.concat(self.waiting, ignore_index=True)
            if self.table is None:
                self.in_memory += self.waiting
            else:
                error = self._append(rows)
                if error is not None:
                    return error
            self.waiting.clear()
            self.send_to_mirror(rows)
        self.written |= set(self.waiting_runs)
        checkpoint.remove_checkpoints(self.checkpoint_folder, self.waiting_runs)
        self.waiting_runs.clear()
        return None

    def _append(self, rows: pd.DataFrame) -> Exception | None:
        """Add rows to the table. Returns the error if that is not possible now.

        On a full disk, checkpoints are dropped first: they only save time, rows are results.
        """
        assert self.table is not None
        try:
            self.table.append(rows)
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            if not is_full or not checkpoint.drop_all(self.checkpoint_folder):
                return error
            self.notify("the disk is full: checkpoints were dropped to make room for rows")
            try:
                self.table.append(rows)
            except (OSError, InputError) as second_error:
                return second_error
        except InputError as error:
            return error
        return None

    def send_to_mirror(self, rows: pd.DataFrame) -> None:
        """Send rows to the mirror. After an error the mirror is not used any more."""
        if self.mirror is None:
            return
        try:
            self.mirror(rows)
        except Exception as error:
            self.mirror = None
            self.notify(
                "no more rows are sent to the mirror, but the table has them all "
                f"({type(error).__name__}: {error})"
            )

    def _save_elsewhere(self, error: Exception) -> InputError:
        """Save the waiting rows in a temporary folder. Returns the error that says so."""
        assert self.table is not None
        rows = pd.concat(self.waiting, ignore_index=True)
        problem = f"cannot write to {self.table.path} ({_reason(error)})"
        try:
            saved = Table(Path(tempfile.mkdtemp(prefix="recombine-"))).append(rows)
        except OSError as second_error:
            return InputError(
                f"{problem} nor to the temporary folder ({_reason(second_error)}): "
                "free some space and start again"
            )
        move = "" if self.table.packed else f"move that file into {self.table.path / 'rows'}, or "
        return InputError(
            f"{problem}: the rows of the last {rows['run'].nunique()} runs are in {saved}; "
            f"free some space and {move}run the same command again"
        )


def lock_table(table: Table, stack: contextlib.ExitStack) -> InputError | None:
    """Lock a table for writing until the stack ends, and merge its parts.

    Returns the error if it cannot be locked: it is read-only, or another process writes to it.
    """
    try:
        if not table.path.exists():
            table.check_writable()  # makes its folder
        stack.enter_context(table.held())
    except InputError as error:
        return error
    except OSError as error:
        return InputError(f"cannot write to {table.path} ({_reason(error)}): name another --out")
    _try_to_compact(table)
    return None


def _try_to_compact(table: Table) -> None:
    # It may fail on a nearly full disk or for a damaged part. A later attempt may succeed.
    with contextlib.suppress(OSError, InputError):
        table.compact()


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
