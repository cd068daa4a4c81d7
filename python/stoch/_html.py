# SPDX-License-Identifier: Apache-2.0
"""Tables for notebooks."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

_MOST = 60  # rows that are shown
_LONGEST = 200  # characters of a cell


def _cell(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)
    return html.escape(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "\u2026")


def table(rows: Sequence[Mapping[str, Any]], most: int = _MOST) -> str:
    """The rows as HTML: a column for every key of any of them, in the order in which they come."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{_cell(row.get(column))}</td>" for column in columns) + "</tr>" for row in rows[:most])
    more = f"<p>{len(rows) - most} more rows</p>" if len(rows) > most else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"
