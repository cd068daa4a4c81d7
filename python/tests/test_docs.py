# SPDX-License-Identifier: Apache-2.0
"""Every example of docs/python.md and of a docstring."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import stoch

ROOT = Path(__file__).resolve().parents[2]
FLAGS = doctest.IGNORE_EXCEPTION_DETAIL | doctest.NORMALIZE_WHITESPACE


def test_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = doctest.testfile(str(ROOT / "docs/python.md"), module_relative=False, optionflags=FLAGS)
    assert result.failed == 0 and result.attempted > 25


def test_docstrings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    attempted = 0
    for entry in pkgutil.iter_modules(stoch.__path__, "stoch."):
        if entry.name in ("stoch._stoch", "stoch._torch_attention", "stoch.lm_eval", "stoch.scmp", "stoch.torch"):
            continue
        result = doctest.testmod(importlib.import_module(entry.name), optionflags=FLAGS)
        assert result.failed == 0, entry.name
        attempted += result.attempted
    assert attempted > 10
