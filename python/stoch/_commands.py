# SPDX-License-Identifier: Apache-2.0
"""Commands in process: each returns a list of flat dicts, which pandas.DataFrame takes."""

from __future__ import annotations

import os
from collections.abc import Sequence

from stoch import _stoch
from stoch._progress import ProgressArgument, reporter

Row = dict[str, str | int | float | bool | None]


def verify(
    model: str | os.PathLike[str],
    *,
    device: str = "auto",
    only: Sequence[str] = (),
    goldens: str | os.PathLike[str] | None = None,
    hashes: str | os.PathLike[str] | None = None,
    progress: ProgressArgument = None,
) -> list[Row]:
    """The checks of `stoch verify`: a row {name, passed, detail} for each.

    >>> import stoch
    >>> [row["passed"] for row in stoch.verify("demo", device="cpu", only=["product.halved"])]
    [True]
    """
    with reporter(progress, "verify") as report:
        rows = _stoch.verify(
            os.fspath(model),
            device,
            list(only),
            "" if goldens is None else os.fspath(goldens),
            "" if hashes is None else os.fspath(hashes),
            report,
        )
    return [{"name": name, "passed": passed, "detail": detail} for name, passed, detail in rows]
