"""Read a table of examples as distinct combinations: columns of factors, and columns of sets.

Files are read in batches and each batch is counted, so memory grows with the number of distinct
combinations, not of rows. All cells are read as text. A module is a value of a factor, or a concept
of a set. A combination is a row of module numbers.
"""

from __future__ import annotations

import csv as csv_module
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute
from pyarrow import csv
from pyarrow.parquet import ParquetFile

from recombine.basics import user_files
from recombine.basics.errors import InputError, require
from recombine.basics.parquet_reader import LimitedFile
from recombine.basics.suggest import did_you_mean

pc: Any = pyarrow.compute  # its functions are created at import, so type checkers do not know them

Source = pd.DataFrame | str | Path

MAX_COMBINATIONS = 1_000_000  # distinct ones, kept in memory: some hundred MB
MAX_MODULES = 1_000  # of all factors: the analysis takes cubic time, seconds at this number
MIN_ROWS_OF_MEASUREMENT = 100  # a column with more rows, all different, looks like a measurement
CSV_BATCH_BYTES = 1 << 24
BATCH_ROWS = 1 << 20
NUM_EXAMPLES = "\x1fexamples"  # column names that no table has
TOTAL_COST = "\x1fcost"
CSV_DELIMITERS = (",", ";", "\t", "|")  # the first one that gives the named columns is used
CONCEPT_SEPARATOR = "\x1f"  # between concepts, after reading: the ASCII unit separator


class Counts(NamedTuple):
    """Distinct combinations as text: their columns, the number of examples, and the total cost."""

    table: pa.Table
    num_rows: int
    num_skipped: int  # rows with an empty cell; sets beside factors may be empty


class Combinations(NamedTuple):
    """Distinct combinations as rows of ascending module numbers, padded with -1 for small sets."""

    codes: np.ndarray  # (combinations, largest size)
    examples: np.ndarray  # (combinations,): the number of examples
    costs: np.ndarray | None = None  # (combinations,): the mean cost of an example


class Modules(NamedTuple):
    """The values of each column, numbered one column after the other."""

    factors: list[str]
    values: list[list[str]]
    constant: list[str]  # factors with one value: left out, since they would link everything
    sets: frozenset[str] = frozenset()  # the columns that hold sets

    @property
    def starts(self) -> np.ndarray:
        """The number of each factor's first module, then the number of modules."""
        return np.cumsum([0, *map(len, self.values)])

    @property
    def names(self) -> list[str]:
        """The name of each module: its column and value, or the concept of the only column."""
        if len(self.factors) == 1:
            return self.values[0]
        return [
            f"{factor}={value}"
            for factor, values in zip(self.factors, self.values, strict=True)
            for value in values
        ]


def count(
    source: Source,
    columns: Sequence[str],
    separator: str,
    sets: Sequence[str] | None = None,
    cost: str | None = None,
    may_be_empty: bool = False,
) -> Counts:
    """Count the distinct combinations of a table of any length.

    The columns in `sets` hold sets of concepts with this separator, or lists. Without `sets`, a
    single column does. `cost` names a column with the cost of each example. A row with an empty
    cell is left out, unless the cells may be empty.
    """
    set_columns = _set_columns(columns, sets)
    parts: list[pa.Table] = []
    num_rows = num_complete = 0
    names = [*columns, cost] if cost else list(columns)
    for batch in _batches(source, names):
        table = pa.table(
            [_cells(batch, name, separator, set_columns) for name in columns], list(columns)
        )
        may_be_null = [
            name for name in columns if may_be_empty or (name in set_columns and len(columns) > 1)
        ]
        for name in may_be_null:  # in a set beside factors, an empty cell is the empty set
            position = columns.index(name)
            table = table.set_column(position, name, pc.fill_null(table.column(name), ""))
        table = table.append_column(NUM_EXAMPLES, pa.array(np.ones(len(batch), np.int64)))
        if cost:
            table = table.append_column(TOTAL_COST, _as_costs(batch.column(cost), cost))
        complete = table.drop_null()
        num_rows += len(batch)
        num_complete += len(complete)
        parts.append(_merge_duplicates(complete, columns))
        if sum(map(len, parts)) > MAX_COMBINATIONS:
            parts = [_merge_duplicates(pa.concat_tables(parts), columns)]
            _check_num_combinations(parts[0], columns)
    require(num_rows > 0, "the table has no rows: name a table with training examples")
    require(
        num_complete > 0,
        f"{' or '.join(columns)} is empty in each of the {num_rows} rows: name other columns",
    )
    merged = _merge_duplicates(pa.concat_tables(parts), columns)
    return Counts(merged, num_rows, num_rows - num_complete)


def _set_columns(columns: Sequence[str], sets: Sequence[str] | None) -> frozenset[str]:
    """The columns that hold sets: the named ones, or else a single column."""
    if sets is None:
        return frozenset(columns if len(columns) == 1 else ())
    for name in sets:
        require(
            name in columns,
            f"the column of sets {name!r} is not among the factors: {did_you_mean(name, columns)}",
        )
    return frozenset(sets)


def _cells(batch: pa.RecordBatch, name: str, separator: str, sets: frozenset[str]) -> pa.Array:
    """A column as text, with null for empty cells."""
    return _as_text(batch.column(name), name, separator if name in sets else None)


def _as_costs(column: pa.Array, name: str) -> pa.Array:
    try:
        text = pc.utf8_trim_whitespace(column.cast(pa.string()))
        costs = pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text).cast(
            pa.float64()
        )
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise InputError(f"the cost column {name!r} must hold numbers ({error})") from error
    smallest = pc.min(costs).as_py()
    is_valid = smallest is None or (smallest > 0 and bool(pc.all(pc.is_finite(costs)).as_py()))
    require(is_valid, f"a cost must be a positive number: correct the column {name!r}")
    return costs


def encode(
    counts: Sequence[Counts],
    columns: Sequence[str],
    sets: Sequence[str] | None = None,
    declared: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Modules, list[Combinations]]:
    """Number the modules of all tables, and encode the combinations of each table.

    `declared` are values by column that may occur, even if they do not in any table.
    """
    set_columns = _set_columns(columns, sets)
    declared = declared or {}
    for name in declared:
        require(name in columns, f"there is no factor {name!r}: {did_you_mean(name, columns)}")
    values = {
        name: _distinct_values(counts, name, name in set_columns, declared.get(name, ()))
        for name in columns
    }
    varying = [name for name in columns if len(values[name]) > (name not in set_columns)]
    constant = [name for name in columns if name not in varying]
    modules = Modules(
        varying, [values[name] for name in varying], constant, set_columns & set(varying)
    )
    total = int(modules.starts[-1])
    if len(varying) == 1 and varying[0] in set_columns:
        cells = pc.unique(counts[0].table.column(varying[0])).to_pylist()
        require(
            max(len(_concepts(cell)) for cell in cells) > 1,
            f"no cell of {varying[0]!r} holds more than one concept: name the separator between "
            "concepts, or name two or more columns, one per factor",
        )
    else:
        require(
            len(varying) > 1,
            f"only {' and '.join(varying) or 'no column'} has more than one value: name two or "
            "more factors that vary",
        )
    num_values = dict(zip(modules.factors, map(len, modules.values), strict=True))
    largest = max(num_values, key=lambda factor: num_values[factor])
    require(
        total <= MAX_MODULES,
        f"{total:,} values are too many ({largest} has {num_values[largest]:,}): bin the values, "
        "or leave a factor out",
    )
    return modules, [_encode_table(each.table, modules) for each in counts]


def _encode_table(table: pa.Table, modules: Modules) -> Combinations:
    """The distinct combinations of a table, in the order of their module numbers."""
    columns = []
    for name, values, first in zip(
        modules.factors, modules.values, modules.starts[:-1].tolist(), strict=True
    ):
        texts = table.column(name).combine_chunks().dictionary_encode()
        cells = texts.dictionary.to_pylist()
        numbers = {value: first + number for number, value in enumerate(values)}
        if name in modules.sets:
            members = [sorted(numbers[concept] for concept in _concepts(cell)) for cell in cells]
        else:
            members = [[numbers[cell]] for cell in cells]
        options = np.full((len(cells), max(1, *map(len, members))), -1, np.int64)
        for option, own in zip(options, members, strict=True):
            option[: len(own)] = own
        columns.append(options[texts.indices.to_numpy()])
    # "a;b" and "b;a" are the same set.
    codes, inverse = np.unique(np.concatenate(columns, axis=1), axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    examples = np.bincount(inverse, table.column(NUM_EXAMPLES).to_numpy()).astype(np.int64)
    costs = None
    if TOTAL_COST in table.column_names:
        costs = np.bincount(inverse, table.column(TOTAL_COST).to_numpy()) / examples
    return Combinations(codes, examples, costs)


def _distinct_values(
    counts: Sequence[Counts], name: str, is_set: bool, declared: Sequence[str]
) -> list[str]:
    """The values of a column in all tables and the declared ones, in natural order."""
    chunks = [chunk for table, _, _ in counts for chunk in table.column(name).chunks]
    cells = pc.unique(pa.chunked_array(chunks, pa.string())).to_pylist()
    num_rows = counts[0].num_rows
    all_different = len(cells) >= num_rows > MIN_ROWS_OF_MEASUREMENT and not is_set
    require(
        not all_different,
        f"{name} has a different value in each of {num_rows} rows: is it a measurement? "
        "bin it first",
    )
    values = {concept for cell in cells for concept in _concepts(cell)} if is_set else set(cells)
    values = list(values | {str(value).strip() for value in declared} - {""})
    return sorted(values, key=_natural_key(values))


def _concepts(cell: str) -> set[str]:
    return {concept.strip() for concept in cell.split(CONCEPT_SEPARATOR)} - {""}


def _natural_key(values: list[str]) -> Callable[[str], Any]:
    """A sorting key for the order that people expect: 9 before 10, and size2 before size10."""
    try:
        numbers = {value: float(value) for value in values}
    except ValueError:
        numbers = {}
    if numbers and not any(map(math.isnan, numbers.values())):  # NaN has no order
        return lambda value: (numbers[value], value)
    return lambda value: (re.sub(r"\d+", lambda digits: digits[0].zfill(9), value), value)


def _merge_duplicates(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The distinct rows, with their numbers of examples and their costs added up."""
    sums = [name for name in (NUM_EXAMPLES, TOTAL_COST) if name in table.column_names]
    return (
        table.group_by(list(columns), use_threads=False)
        .aggregate([(name, "sum") for name in sums])
        .rename_columns([*columns, *sums])
    )


def _check_num_combinations(table: pa.Table, columns: Sequence[str]) -> None:
    num_values = {name: len(pc.unique(table.column(name))) for name in columns}
    largest = max(columns, key=lambda name: num_values[name])
    require(
        len(table) <= MAX_COMBINATIONS,
        f"more than {MAX_COMBINATIONS:,} distinct combinations ({largest} alone has "
        f"{num_values[largest]:,} values): bin the values first, or leave a factor out",
    )


def _as_text(column: pa.Array, name: str, separator: str | None) -> pa.Array:
    """A column as trimmed text, with null for empty cells.

    With a separator, a cell is a set of concepts. The result has CONCEPT_SEPARATOR between them.
    """
    try:
        if separator is not None and pa.types.is_list(column.type):
            text = pc.binary_join(column.cast(pa.list_(pa.string())), CONCEPT_SEPARATOR)
        else:
            text = column.cast(pa.string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise InputError(
            f"the column {name!r} holds {column.type}, not plain values: name another column, or "
            "name it as a column of sets"
        ) from error
    if separator:
        text = pc.replace_substring(text, separator, CONCEPT_SEPARATOR)
    text = pc.utf8_trim_whitespace(text)
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)


def _batches(source: Source, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The named columns of a frame or file, in batches of rows."""
    if isinstance(source, pd.DataFrame):
        return _frame_batches(source, columns)
    path = _checked_path(source)
    read = _csv_batches if path.suffix.lower() == ".csv" else _parquet_batches
    return _with_read_errors(path, read(path, columns))


def _checked_path(source: str | Path) -> Path:
    path = Path(source)
    require(user_files.is_file(path), f"there is no file {path}: name a .csv or .parquet table")
    require(
        path.suffix.lower() in (".csv", ".parquet"),
        f"{path} is neither a .csv nor a .parquet table: convert it to one of these",
    )
    return path


def column_names(source: Source, required: Sequence[str]) -> list[str]:
    """The columns of a table, which has at least the required ones."""
    if isinstance(source, pd.DataFrame):
        names = list(map(str, source.columns))
        _check_columns(names, required)
        return names
    path = _checked_path(source)
    if path.suffix.lower() == ".csv":
        return _csv_header(path, required)[1]
    with ParquetFile(path) as file:
        _check_columns(file.schema_arrow.names, required)
        return file.schema_arrow.names


def _with_read_errors(path: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same batches; errors of the reader become one line for the user."""
    try:
        yield from batches
    except pa.ArrowMemoryError:
        raise
    except (pa.ArrowException, csv_module.Error, OSError) as error:
        remedy = ": save it as UTF-8" if "UTF8" in str(error) else ""
        raise InputError(
            f"{path} cannot be read as a {path.suffix} table: {error}{remedy}"
        ) from error


def _frame_batches(frame: pd.DataFrame, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    _check_columns(list(map(str, frame.columns)), columns)
    try:
        table = pa.Table.from_pandas(frame[list(columns)], preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(
            f"a factor's column must hold values of one type: convert it to text ({error})"
        ) from error
    return iter(table.to_batches(BATCH_ROWS))


def _csv_batches(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    require(path.stat().st_size > 0, f"{path} is empty: it needs a line of column names, and rows")
    read_options = csv.ReadOptions(block_size=CSV_BATCH_BYTES)
    delimiter, _ = _csv_header(path, columns)
    parse_options = csv.ParseOptions(delimiter=delimiter)
    # Read as text: types that are guessed from the first batch may not fit the next one.
    convert_options = csv.ConvertOptions(
        include_columns=list(columns), column_types=dict.fromkeys(columns, pa.string())
    )
    with csv.open_csv(path, read_options, parse_options, convert_options) as reader:
        yield from reader


def _csv_header(path: Path, columns: Sequence[str]) -> tuple[str, list[str]]:
    """The delimiter with which the first line of a CSV file has these columns, and all columns."""
    with path.open("rb") as file:
        first_line = file.readline(CSV_BATCH_BYTES).removeprefix(b"\xef\xbb\xbf")
    header = first_line.decode(errors="replace").rstrip("\r\n")
    names_by_delimiter = {
        delimiter: next(csv_module.reader([header], delimiter=delimiter), [])
        for delimiter in CSV_DELIMITERS
    }
    for delimiter, names in names_by_delimiter.items():
        if set(columns) <= set(names):
            _check_columns(names, columns)
            return delimiter, names
    _check_columns(max(names_by_delimiter.values(), key=len), columns)
    raise AssertionError  # the line above refuses


def _parquet_batches(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with LimitedFile(path) as file:
        _check_columns(file.schema.names, columns)
        yield from file.batches(columns, BATCH_ROWS)


def _check_columns(known: Sequence[str], wanted: Sequence[str]) -> None:
    for name in wanted:
        require(name in known, f"the table has no column {name!r}: {did_you_mean(name, known)}")
        require(
            list(known).count(name) == 1,
            f"the table has several columns {name!r}: give them different names",
        )
        require(
            list(wanted).count(name) == 1,
            f"the factor {name!r} is named twice: name every column once",
        )
