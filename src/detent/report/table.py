"""A tidy table: named columns of equal length, one row per observation."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Table:
    """Columns by name. A cell without a value is None."""

    columns: dict[str, list[Any]]

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any]], names: Iterable[str] = ()) -> Table:
        """Make a table of all keys of `rows` in order of first appearance; `names` come first and always exist."""
        rows = list(rows)
        keys = dict.fromkeys([*names, *(key for row in rows for key in row)])
        return cls({key: [row.get(key) for row in rows] for key in keys})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def __getitem__(self, name: str) -> list[Any]:
        return self.columns[name]

    def rows(self) -> Iterator[dict[str, Any]]:
        for values in zip(*self.columns.values(), strict=True):
            yield dict(zip(self.columns, values, strict=True))

    def where(self, **equal: Any) -> Table:
        """Return the rows whose columns have these values."""
        kept = [row for row in self.rows() if all(row[name] == value for name, value in equal.items())]
        return Table.from_rows(kept, self.columns)

    def array(self, name: str) -> NDArray[np.float64]:
        """Return a column of numbers; NaN where a value is missing."""
        return np.array([np.nan if value is None else value for value in self.columns[name]], dtype=float)

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame; pandas is not one of Detent's own dependencies."""
        from pandas import DataFrame

        return DataFrame(self.columns)

    def to_csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(zip(*self.columns.values(), strict=True))
        return out.getvalue()

    def shown(self) -> list[list[str]]:
        """Format the table for display, column names first: few digits, an interval beside its number."""
        ends = {f"{name}_{end}" for name in self.columns for end in ("low", "high")}
        names = [name for name in self.columns if name not in ends]
        lines = [[name.replace("_", " ") for name in names]]
        for row in self.rows():
            cells = []
            for name in names:
                low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
                interval = f" [{_shown(low)}, {_shown(high)}]" if low is not None and high is not None else ""
                cells.append(_shown(row[name]) + interval)
            lines.append(cells)
        return lines

    def to_markdown(self) -> str:
        head, *cells = ([cell.replace("|", "\\|") for cell in line] for line in self.shown())
        return "".join(f"| {' | '.join(line)} |\n" for line in [head, ["---"] * len(head), *cells])


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
