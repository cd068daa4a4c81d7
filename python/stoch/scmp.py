# SPDX-License-Identifier: Apache-2.0
"""Prints the folder that holds our `scmp_kernels`: PYTHONPATH=$(python -m stoch.scmp) python their_script.py

It is not on the path by itself, so an original that is installed is never shadowed.
"""

from __future__ import annotations

from pathlib import Path


def folder() -> str:
    """The folder to put on the path."""
    return str(Path(__file__).resolve().parent / "_scmp")


if __name__ == "__main__":
    print(folder())
