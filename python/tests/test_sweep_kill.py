# SPDX-License-Identifier: Apache-2.0
"""A sweep of 20 seeds and 6 settings that is killed twice: the bytes of one that is not, and numpy's statistics."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import numpy as np

T95_OF_19 = 2.093024  # Student's t, two-sided 95 %
SEEDS, SETTINGS = 20, 6


def test_killed_twice_and_resumed(program: str, demo: str, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("Once upon a time, a little dog saw a bird in the garden and wanted to fly. " * 4)
    plan = tmp_path / "plan.json"
    grid = {"source": ["lfsr", "random"], "stoc_len": [16, 32, 64]}
    plan.write_text(json.dumps({"model": demo, "text": str(text), "ctx": 12, "max_windows": 2, "grid": grid, "repeat": SEEDS}))

    def command(out: str) -> list[str]:
        return [program, "sweep", str(plan), "-o", str(tmp_path / out), "--device", "cpu", "--threads", "1", "--quiet", "--resume"]

    subprocess.run(command("whole"), check=True, timeout=600)
    killed = tmp_path / "killed"
    for least in (15, 70):  # rows that are there when it is killed
        with subprocess.Popen(command("killed")) as process:
            while process.poll() is None and (not killed.exists() or killed.read_bytes().count(b"\n") < least):
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        assert least <= killed.read_bytes().count(b"\n") < SEEDS * SETTINGS
    subprocess.run(command("killed"), check=True, timeout=600)
    whole = (tmp_path / "whole").read_bytes()
    assert killed.read_bytes() == whole

    lines = [json.loads(line) for line in whole.splitlines()]
    rows, summaries = lines[: SEEDS * SETTINGS], lines[SEEDS * SETTINGS :]
    assert len(summaries) == SETTINGS
    for i, summary in enumerate(summaries):
        own = rows[i * SEEDS : (i + 1) * SEEDS]
        assert summary["n"] == SEEDS and summary["seeds"] == [row["seed"] for row in own] == list(range(1, SEEDS + 1))
        for metric in ("ppl", "mean_nll"):
            values = np.array([row["metrics"][metric] for row in own])
            got = summary["metrics"][metric]
            half = T95_OF_19 * values.std(ddof=1) / np.sqrt(SEEDS)
            want = {
                "mean": values.mean(),
                "sd": values.std(ddof=1),
                "se": values.std(ddof=1) / np.sqrt(SEEDS),
                "min": values.min(),
                "max": values.max(),
                "ci95_low": values.mean() - half,
                "ci95_high": values.mean() + half,
            }
            assert values.std() > 0
            for name, value in want.items():
                assert abs(got[name] - value) <= 1e-12 * abs(value), (summary["config"], metric, name)
