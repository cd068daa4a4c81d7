# SPDX-License-Identifier: Apache-2.0
"""Programs of examples/, on a small slice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_tutorial(tmp_path: Path, run, demo: str) -> None:
    """The figures of docs/tutorial.md, and the text that the program writes with the same seed."""
    environment = {**os.environ, "TUTORIAL_FOLDER": str(tmp_path), "TUTORIAL_WINDOWS": "1"}
    done = subprocess.run([sys.executable, str(ROOT / "examples/tutorial.py")], cwd=ROOT, env=environment, timeout=600,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("perplexity") == 19 and "the worst" in done.stdout
    for figure in (tmp_path / "ablation.jsonl.svg", tmp_path / "front.jsonl.svg", *(tmp_path / "profile").glob("*.svg")):
        assert figure.read_text().rstrip().endswith("</svg>"), figure
    assert len(list((tmp_path / "profile").glob("*.svg"))) == 4
    options = ["--precision", "fp32", "--prompt", "Once upon a time", "--max-tokens", "400", "--ignore-eos", "--temperature", "1"]
    text = run("generate", "--model", demo, "--device", "cpu", *options, "--seed", "1", "--quiet")
    assert (tmp_path / "calibration.txt").read_text() == text
