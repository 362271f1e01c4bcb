"""A table of examples as its distinct combinations: one column per factor, or one column of sets of concepts.

Files are read in pieces and each piece is counted, so memory is bounded by the number of distinct combinations. All
cells are read as text. A module is a value of a factor, or a concept; a combination is a row of module numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute
from pyarrow import csv
from pyarrow.parquet import ParquetFile

from recombine.basics.errors import InputError, require
from recombine.basics.suggest import nearest

pc: Any = pyarrow.compute  # its functions are made when it is imported, so no checker knows them

Source = pd.DataFrame | str | Path

MAX_COMBINATIONS = 1_000_000  # distinct ones, held in memory: some hundred MB
MAX_MODULES = (
    1_000  # of all factors: what is asked of a table takes the cube of it, seconds at this number
)
MOST_ALONE = 100  # more rows than these, each with a value of its own, are taken for measurements
BLOCK = 1 << 24  # bytes of text that are read at a time
ROWS = 1 << 20  # rows of anything else
EXAMPLES = "\x1fexamples"  # no column is called so
BETWEEN = "\x1f"  # what stands between concepts once they are read: ASCII's own separator of units


class Tally(NamedTuple):
    """Distinct combinations as text, a column per factor and one of how many examples each has."""

    table: pa.Table
    num_rows: int
    num_skipped: int  # rows with an empty cell


class Combinations(NamedTuple):
    """Distinct combinations as rows of module numbers in ascending order, -1 where a set has fewer."""

    codes: np.ndarray
    examples: np.ndarray


class Modules(NamedTuple):
    """What combinations are made of: the values of each factor, one factor after the other."""

    factors: list[str]
    values: list[list[str]]
    constant: list[str]  # factors of one value, which are left out: they would link everything

    @property
    def starts(self) -> np.ndarray:
        """The number of each factor's first module, and of all modules."""
        return np.cumsum([0, *map(len, self.values)])

    @property
    def names(self) -> list[str]:
        """Every module's name: its factor and value, or the concept."""
        if len(self.factors) == 1:
            return self.values[0]
        return [
            f"{factor}={value}"
            for factor, own in zip(self.factors, self.values, strict=True)
            for value in own
        ]


def count(source: Source, columns: Sequence[str], separator: str) -> Tally:
    """Count the distinct combinations of a table of any length; of one column, sets of concepts."""
    merged: list[pa.Table] = []
    num_rows = num_kept = 0
    between = separator if len(columns) == 1 else None
    for batch in _batches(source, columns):
        cells = [_text(batch.column(name), name, between) for name in columns]
        whole = pa.table(cells, list(columns)).drop_null()
        num_rows, num_kept = num_rows + len(batch), num_kept + len(whole)
        merged.append(
            _grouped(whole.append_column(EXAMPLES, pa.array(np.ones(len(whole), np.int64))))
        )
        if sum(map(len, merged)) > MAX_COMBINATIONS:
            merged = [_grouped(pa.concat_tables(merged))]
            _check_number(merged[0], columns)
    told = (
        "has no rows"
        if num_rows == 0
        else f"lacks a value of {' or '.join(columns)} in each of its {num_rows} rows"
    )
    require(num_kept > 0, f"the table {told}: nothing is covered")
    return Tally(_grouped(pa.concat_tables(merged)), num_rows, num_rows - num_kept)


def encode(tallies: Sequence[Tally], columns: Sequence[str]) -> tuple[Modules, list[Combinations]]:
    """Number the modules that occur in any of these tables, and give each table's combinations by these numbers."""
    modules, coded = (_sets if len(columns) == 1 else _factored)(tallies, columns)
    total = int(modules.starts[-1])
    most = max(zip(modules.factors, modules.values, strict=True), key=lambda pair: len(pair[1]))
    told = f"{total:,} values are too many ({most[0]} has {len(most[1]):,}): bin the values, or leave a factor out"
    require(total <= MAX_MODULES, told)
    return modules, coded


def _factored(
    tallies: Sequence[Tally], columns: Sequence[str]
) -> tuple[Modules, list[Combinations]]:
    found = {}
    for name in columns:
        column = pa.chunked_array(
            [chunk for tally in tallies for chunk in tally.table.column(name).chunks]
        )
        found[name] = sorted(
            pc.unique(column).to_pylist(), key=_natural(pc.unique(column).to_pylist())
        )
        alone = len(found[name]) >= tallies[0].num_rows > MOST_ALONE
        told = f"{name} has a different value in each of {tallies[0].num_rows} rows: is it a measurement? bin it first"
        require(not alone, told)
    kept = [name for name in columns if len(found[name]) > 1]
    constant = [name for name in columns if name not in kept]
    told = f"only {' and '.join(kept) or 'no column'} has more than one value: name two or more factors that vary"
    require(len(kept) > 1, told)
    modules, coded = Modules(kept, [found[name] for name in kept], constant), []
    for tally in tallies:
        places = [
            pc.index_in(tally.table.column(n), pa.array(found[n], pa.string())).to_numpy()
            for n in kept
        ]
        codes = np.stack(places, axis=1).astype(np.int64) + modules.starts[:-1]
        order = np.lexsort(codes.T[::-1])  # whatever the order of the rows, the advice is the same
        coded.append(Combinations(codes[order], tally.table.column(EXAMPLES).to_numpy()[order]))
    return modules, coded


def _sets(tallies: Sequence[Tally], columns: Sequence[str]) -> tuple[Modules, list[Combinations]]:
    told = [
        [_split(cell) for cell in tally.table.column(columns[0]).to_pylist()] for tally in tallies
    ]
    concepts = {concept for cells in told for cell in cells for concept in cell}
    ordered = sorted(concepts, key=_natural(list(concepts)))
    number, most = {concept: place for place, concept in enumerate(ordered)}, max(map(len, told[0]))
    require(
        most > 1,
        f"no cell of {columns[0]!r} holds more than one concept: give the separator that stands between them, or name "
        "two or more columns, one per factor",
    )
    coded = []
    for tally, cells in zip(tallies, told, strict=True):
        codes = np.full((len(cells), max(map(len, cells))), -1, np.int64)
        for row, cell in zip(codes, cells, strict=True):
            row[: len(cell)] = sorted(number[concept] for concept in cell)
        # "a;b" and "b;a" are one set.
        distinct, place = np.unique(codes, axis=0, return_inverse=True)
        examples = np.bincount(place, tally.table.column(EXAMPLES).to_numpy()).astype(np.int64)
        coded.append(Combinations(distinct, examples))
    return Modules(list(columns), [ordered], []), coded


def _split(cell: str) -> set[str]:
    return {concept.strip() for concept in cell.split(BETWEEN)} - {""}


def _natural(values: list[str]) -> Callable[[str], Any]:
    """The order that a reader expects: numbers by size, and size2 before size10."""
    try:
        numbers = {value: float(value) for value in values}
    except ValueError:
        numbers = {}
    if numbers and not any(map(math.isnan, numbers.values())):  # NaN has no place among numbers
        return lambda value: (numbers[value], value)
    return lambda value: (re.sub(r"\d+", lambda digits: digits[0].zfill(9), value), value)


def _grouped(table: pa.Table) -> pa.Table:
    """The distinct rows, with their examples summed."""
    names = table.column_names[:-1]
    return (
        table.group_by(names, use_threads=False)
        .aggregate([(EXAMPLES, "sum")])
        .rename_columns([*names, EXAMPLES])
    )


def _check_number(table: pa.Table, columns: Sequence[str]) -> None:
    sizes = {name: len(pc.unique(table.column(name))) for name in columns}
    most = max(columns, key=lambda name: sizes[name])
    require(
        len(table) <= MAX_COMBINATIONS,
        f"more than {MAX_COMBINATIONS:,} distinct combinations ({most} alone has {sizes[most]:,} values): bin the "
        "values first, or leave a factor out",
    )


def _text(column: pa.Array, name: str, separator: str | None) -> pa.Array:
    """A column as trimmed text, empty cells as null; with a separator, sets of concepts."""
    try:
        if separator is not None and pa.types.is_list(column.type):
            text = pc.binary_join(column.cast(pa.list_(pa.string())), BETWEEN)
        else:
            text = column.cast(pa.string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise InputError(
            f"the column {name!r} holds {column.type}, not plain values: name another one"
        ) from error
    text = pc.utf8_trim_whitespace(
        pc.replace_substring(text, separator, BETWEEN) if separator else text
    )
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)


def _batches(source: Source, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The named columns of a frame or file, piece by piece."""
    if isinstance(source, pd.DataFrame):
        _check_columns(list(map(str, source.columns)), columns)
        try:
            table = pa.Table.from_pandas(source[list(columns)], preserve_index=False)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise InputError(
                f"a factor's column must hold values of one kind: make them text ({error})"
            ) from error
        return iter(table.to_batches(ROWS))
    path = Path(source)
    require(path.is_file(), f"there is no file {path}: name a .csv or .parquet table")
    kinds = {".csv": _csv, ".parquet": _parquet}
    require(
        path.suffix.lower() in kinds,
        f"{path} is neither a .csv nor a .parquet table: convert it to one of these",
    )
    return _readable(path, kinds[path.suffix.lower()](path, columns))


def _readable(path: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except (pa.ArrowException, OSError) as error:
        remedy = ": save it as UTF-8" if "UTF8" in str(error) else ""
        raise InputError(
            f"{path} cannot be read as a {path.suffix} table: {error}{remedy}"
        ) from error


def _csv(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    reading = csv.ReadOptions(block_size=BLOCK)
    require(path.stat().st_size > 0, f"{path} is empty: it needs a line of column names, and rows")
    with csv.open_csv(path, read_options=reading) as head:
        _check_columns(head.schema.names, columns)
    # As text from the start: types that are guessed from the first piece may not fit the next one.
    kept = csv.ConvertOptions(
        include_columns=list(columns), column_types=dict.fromkeys(columns, pa.string())
    )
    with csv.open_csv(path, read_options=reading, convert_options=kept) as rows:
        yield from rows


def _parquet(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with ParquetFile(path) as file:
        _check_columns(file.schema_arrow.names, columns)
        yield from file.iter_batches(ROWS, columns=list(columns))


def _check_columns(known: Sequence[str], wanted: Sequence[str]) -> None:
    for name in wanted:
        require(name in known, f"the table has no column {name!r}: {nearest(name, known)}")
        require(
            list(known).count(name) == 1,
            f"the table has several columns {name!r}: give them different names",
        )
        require(
            list(wanted).count(name) == 1,
            f"the factor {name!r} is named twice: name every column once",
        )
