# SPDX-License-Identifier: Apache-2.0
"""progress= of everything that takes long."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from stoch import _stoch

Report = Callable[[int, int, str], None]
# None: a bar on a terminal; False: nothing; True: a bar; or what is called with (done, total, text).
ProgressArgument = bool | Report | None


def _bar(total: int, text: str) -> Any:
    try:
        module = importlib.import_module("tqdm.auto")
    except ImportError:
        return None
    return module.tqdm(total=total, desc=text, leave=False)


@contextlib.contextmanager
def reporter(progress: ProgressArgument, text: str) -> Iterator[Report | None]:
    """What the engine calls; a bar ends with the block."""
    if progress is None:
        progress = sys.stderr is not None and sys.stderr.isatty()
    if progress is False:
        yield None
        return
    if callable(progress):
        yield progress
        return
    if progress is not True:
        raise _stoch.InvalidInput(f"progress is a {type(progress).__name__}: allowed is None, a bool or a callable")
    bar: Any = None

    def report(done: int, total: int, what: str) -> None:
        nonlocal bar
        if bar is None:
            bar = _bar(total, what or text)
        if bar is not None:
            bar.update(done - bar.n)

    try:
        yield report
    finally:
        if bar is not None:
            bar.close()
