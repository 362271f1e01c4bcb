"""Read Parquet files of unknown origin with a limit on the memory that they take.

A text that is stored once can occur in every row. So the size of a file says little about the size
of its rows: 2,000 rows of one text of 1 MB take 6 kB on disk and 2 GB in memory. Texts are
therefore read as dictionaries (each text once, and a number per row), in batches. Their sizes are
added up before a batch is expanded.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from recombine.basics.errors import InputError
from recombine.basics.size_limits import check_parquet, max_bytes, require_below

BATCH_ROWS = 2**16
pc: Any = pyarrow.compute


class LimitedFile:
    """An open Parquet file of unknown origin. Errors of pyarrow are for the caller to explain.

    Args:
        path: Names the file in error messages.
        source: Is read in place of the file, if it is given.
    """

    def __init__(self, path: Path, source: Any = None, **options: Any):
        self.path = path
        file = pq.ParquetFile(source or path, **options)
        self.schema: Any = file.schema_arrow
        self.metadata: dict[bytes, bytes] | None = file.metadata.metadata
        check_parquet(path, file.metadata)
        self.max_rows = _max_batch_rows(file.metadata)
        texts = _text_columns(file.metadata)
        self.file = file
        if texts:
            self.file = pq.ParquetFile(
                source or path, metadata=file.metadata, read_dictionary=texts, **options
            )
            if source is None:
                file.close()

    def __enter__(self) -> "LimitedFile":
        return self

    def __exit__(self, *_: Any) -> None:
        self.file.close()

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The columns of all rows. An `InputError` if they take more than the limit."""
        total = 0
        batches = []
        for batch in self._compact_batches(columns, self.max_rows):
            total += _expanded_bytes(batch.columns)
            require_below(self.path, total)
            batches.append(self._expand(batch))
        if not batches:
            return self._expand_table(self.file.read(columns))
        return pa.Table.from_batches(batches)

    def batches(self, columns: Sequence[str], num_rows: int) -> Iterator[pa.RecordBatch]:
        """The columns in batches. An `InputError` if one batch takes more than the limit."""
        for batch in self._compact_batches(columns, min(num_rows, self.max_rows)):
            require_below(self.path, _expanded_bytes(batch.columns))
            yield self._expand(batch)

    def _compact_batches(
        self, columns: Sequence[str] | None, num_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Batches with each text once. One row group at a time: each has its own dictionaries."""
        names = None if columns is None else list(columns)
        try:
            for group in range(self.file.num_row_groups):
                yield from self.file.iter_batches(num_rows, [group], names, use_threads=False)
        except pa.ArrowNotImplementedError as error:
            raise InputError(
                f"{self.path} has lists with too many different texts to check their size before "
                "they are read: save it without dictionaries (in pandas, use_dictionary=False)"
            ) from error

    def _expand(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the types that the file declares."""
        schema = self._schema_of(batch.schema.names)
        arrays = [
            values if values.type == field.type else values.cast(field.type)
            for values, field in zip(batch.columns, schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _expand_table(self, table: pa.Table) -> pa.Table:
        return table.cast(self._schema_of(table.schema.names))

    def _schema_of(self, names: Sequence[str]) -> Any:
        fields = [self.schema.field(self.schema.names.index(name)) for name in names]
        return pa.schema(fields, metadata=self.schema.metadata)


def _text_columns(metadata: Any) -> list[str]:
    """The columns to be read as dictionaries: all plain columns of text, and lists or structs of
    texts that may be larger than the limit (pyarrow cannot read all of these as dictionaries).
    """
    names = []
    for i in range(metadata.num_columns):
        column = metadata.schema.column(i)
        is_nested = "." in column.path and column.max_definition_level > 1
        chunks = _chunks(metadata, i)
        if column.physical_type == "BYTE_ARRAY" and not _has_differences(chunks):
            most = sum(chunk.num_values * chunk.total_uncompressed_size for chunk in chunks)
            if not is_nested or (most > max_bytes() and _can_repeat(chunks)):
                names.append(column.path)
    return names


def _max_batch_rows(metadata: Any) -> int:
    """Fewer rows if texts are stored as differences: each may be as long as all that is stored.

    pyarrow cannot read these as dictionaries.
    """
    num_rows = BATCH_ROWS
    for i in range(metadata.num_columns):
        chunks = _chunks(metadata, i)
        if _has_differences(chunks):
            largest = max(chunk.total_uncompressed_size for chunk in chunks)
            num_rows = min(num_rows, max_bytes() // max(largest, 1))
    return max(num_rows, 1)


def _chunks(metadata: Any, i: int) -> list[Any]:
    return [metadata.row_group(group).column(i) for group in range(metadata.num_row_groups)]


def _has_differences(chunks: list[Any]) -> bool:
    return any("DELTA_BYTE_ARRAY" in chunk.encodings for chunk in chunks)


def _can_repeat(chunks: list[Any]) -> bool:
    """Whether a text that is stored once may occur in several rows."""
    return any("DICTIONARY" in encoding for chunk in chunks for encoding in chunk.encodings)


def _expanded_bytes(columns: Sequence[Any]) -> int:
    """The bytes of arrays when each row has its own copy of its text."""
    total = 0
    for values in columns:
        if pa.types.is_dictionary(values.type):
            lengths = pc.binary_length(values.dictionary).cast(pa.int64())
            total += pc.sum(lengths.take(values.indices)).as_py() or 0
        elif pa.types.is_struct(values.type):
            total += _expanded_bytes(values.flatten())
        elif pa.types.is_map(values.type):
            total += _expanded_bytes([values.keys, values.items])
        elif pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
            total += _expanded_bytes([values.flatten()])
        else:
            total += values.nbytes
    return total
