# SPDX-License-Identifier: Apache-2.0
"""Flat dicts, which pandas.DataFrame takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
