"""Records as comma-separated values: a line a row, a column a number."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from steelyard.analyse.rows import Row
from steelyard.report.formats import Compared, Format
from steelyard.report.json_report import comparison_record, row_record


def dumps(made: Sequence[Row]) -> str:
    """Return rows as text, with the keys of JSON's rows.

    Axes stand in columns ``axes.NAME``, a ledger's parts in ``ledger.NAME``; doubts are
    separated by blanks, errors by semicolons.
    """
    return text_of(row_record(row) for row in made)


def _compared(found: Compared) -> str:
    return text_of(map(comparison_record, found.rows))


def text_of(records: Iterable[Mapping[str, Any]]) -> str:
    """Return records of plain values as text, one a line."""
    flat = [dict(_flat(record)) for record in records]
    text = io.StringIO()
    names = dict.fromkeys(name for record in flat for name in record)
    writer = csv.DictWriter(text, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _flat(record: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{key}", _cell(part)) for key, part in value.items())
        elif isinstance(value, list):
            yield name, ("; " if name == "errors" else " ").join(map(_cell, value))
        else:
            yield name, _cell(value)


def _cell(value: Any) -> Any:
    """Return a value that a cell can hold; what has parts is JSON."""
    plain = value is None or isinstance(value, (str, int, float))
    return value if plain and not isinstance(value, bool) else json.dumps(value)


FORMAT: Final = Format(lambda found: dumps(found.rows), _compared)
