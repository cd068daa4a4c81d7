# SPDX-License-Identifier: Apache-2.0
"""Where the tests find the demo model, the program and the recorded data."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def demo() -> str:
    return str(ROOT / "demo")


@pytest.fixture(scope="session")
def program() -> str:
    """The command line of the same tree, to compare with."""
    for candidate in (os.environ.get("STOCH_PROGRAM"), ROOT / "build/release/tools/stoch/stoch"):
        if candidate and Path(candidate).exists():
            return str(candidate)
    pytest.skip("no stoch program: build it, or set STOCH_PROGRAM")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The recorded data."""
    folder = Path(os.environ.get("STOCH_SHARED", ROOT.parent / "shared"))
    if not (folder / "goldens").is_dir():
        pytest.skip("no reference data in STOCH_SHARED or ../shared")
    return folder


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Python leaves SIGINT ignored where it was, as of what a shell starts in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def run(program: str):
    def call(*arguments: str) -> str:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=True, timeout=300)
        return done.stdout

    return call


@pytest.fixture(scope="session")
def model(demo: str):
    import stoch

    with stoch.load(demo, device="cpu") as loaded:
        yield loaded
