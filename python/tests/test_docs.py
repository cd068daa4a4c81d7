# SPDX-License-Identifier: Apache-2.0
"""Every example of docs/python.md and of a docstring."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import pkgutil
import re
from pathlib import Path

import pytest

import stoch

ROOT = Path(__file__).resolve().parents[2]
FLAGS = doctest.IGNORE_EXCEPTION_DETAIL | doctest.NORMALIZE_WHITESPACE


# Sections whose examples need more than the package itself.
NEEDED = {"## Any Hugging Face decoder": "transformers"}


def test_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    sections = re.split(r"(?m)^(?=## )", (ROOT / "docs/python.md").read_text())
    assert all(any(part.startswith(title) for part in sections) for title in NEEDED)
    kept = []
    for part in sections:
        needed = NEEDED.get(part.partition("\n")[0])
        kept.append(part if needed is None or importlib.util.find_spec(needed) is not None else "")
    page = tmp_path / "python.md"
    page.write_text("".join(kept))
    result = doctest.testfile(str(page), module_relative=False, optionflags=FLAGS)
    assert result.failed == 0 and result.attempted > 25


def test_docstrings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    attempted = 0
    for entry in pkgutil.iter_modules(stoch.__path__, "stoch."):
        if entry.name in ("stoch._stoch", "stoch.lm_eval", "stoch.scmp", "stoch.torch") or entry.name.startswith("stoch._torch_"):
            continue
        result = doctest.testmod(importlib.import_module(entry.name), optionflags=FLAGS)
        assert result.failed == 0, entry.name
        attempted += result.attempted
    assert attempted > 10
