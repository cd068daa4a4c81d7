# SPDX-License-Identifier: Apache-2.0
"""Flat dicts, which pandas.DataFrame takes, and the figures that come with them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoch import _figure
from stoch._html import table

Row = dict[str, Any]


def flatten(value: Mapping[str, Any], prefix: str = "") -> Row:
    """A dict of dicts with its keys joined by "."; lists stay as they are."""
    row: Row = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            row.update(flatten(item, f"{prefix}{key}."))
        else:
            row[prefix + key] = item
    return row


@dataclass(frozen=True)
class Plot:
    """A figure that a command drew. A notebook shows it where a cell ends with it."""

    name: str
    svg: str

    def save(self, path: str | os.PathLike[str]) -> None:
        """As SVG; with another suffix (.pdf, .png, .eps) as matplotlib writes it, where that is installed."""
        if Path(path).suffix in ("", ".svg"):
            Path(path).write_text(self.svg, encoding="utf-8")
        else:
            _figure.save(self.svg, path)

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"Plot({self.name!r})"


class Rows(list[Row]):
    """The rows of a command: a list of flat dicts, for `pandas.DataFrame(rows)`.

    `plots` are the figures that it drew; a notebook shows them, and a table, where a cell ends with the rows.
    """

    plots: list[Plot]

    def __init__(self, rows: Iterable[Row] = (), plots: Iterable[Plot] = ()) -> None:
        super().__init__(rows)
        self.plots = list(plots)

    def _repr_html_(self) -> str:
        return "".join(f"<figure>{plot.svg}</figure>" for plot in self.plots) + table(self)


def plots_in(paths: Iterable[str | os.PathLike[str]]) -> list[Plot]:
    """The figures in these files."""
    return [Plot(Path(path).stem, Path(path).read_text(encoding="utf-8")) for path in paths]
