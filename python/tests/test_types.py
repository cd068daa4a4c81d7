# SPDX-License-Identifier: Apache-2.0
"""Types: mypy --strict over the package, and the stub of the extension module against the module."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import stoch

ROOT = Path(__file__).resolve().parents[2]


def test_mypy() -> None:
    pytest.importorskip("mypy")
    done = subprocess.run([sys.executable, str(ROOT / "tools/check_types")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout


def test_stub_is_that_of_the_module(tmp_path: Path) -> None:
    if importlib.util.find_spec("nanobind") is None:
        pytest.skip("nanobind is not installed")
    made = tmp_path / "_stoch.pyi"
    code = (
        "import importlib.util, sys\n"
        "spec = importlib.util.spec_from_file_location('_stoch', sys.argv[1])\n"
        "sys.modules['_stoch'] = module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "from nanobind.stubgen import main\n"
        "main(['-q', '-m', '_stoch', '-o', sys.argv[2]])\n"
    )
    subprocess.run([sys.executable, "-c", code, stoch._stoch.__file__, str(made)], check=True, timeout=120)
    assert made.read_text() == (ROOT / "python/stoch/_stoch.pyi").read_text(), "make it again: python/README.md"


def test_package_is_typed() -> None:
    assert (Path(stoch.__file__).parent / "py.typed").exists()
