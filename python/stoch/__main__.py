# SPDX-License-Identifier: Apache-2.0
"""`python -m stoch ...`, and the command `stoch` of the wheel: the program that the package brings."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """Becomes the program."""
    program = Path(__file__).parent / "bin/stoch"
    # jinja2 is where this Python is.
    os.environ.setdefault("STOCH_CHAT_PYTHON", sys.executable)
    os.execv(program, ["stoch", *sys.argv[1:]])


if __name__ == "__main__":
    main()
