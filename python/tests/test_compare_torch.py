# SPDX-License-Identifier: Apache-2.0
"""bench/compare_torch, whose numbers README.md quotes: that its model is a Llama decoder, and that it runs from end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPARE = ROOT / "bench/compare_torch"


@pytest.fixture
def llama(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import torch_llama

    return torch_llama


def off(llama) -> float:
    import torch

    return llama.verify(torch.device("cpu"), torch.float32, llama.Parts("none"), "default", "default")


def test_the_model_is_a_llama_decoder(llama) -> None:
    assert off(llama) < 1e-5


@pytest.mark.parametrize("name", ["rotated", "causal_lower_right", "silu_mul"])
def test_a_wrong_part_is_noticed(llama, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    right = getattr(llama, name)
    wrong = {
        "rotated": lambda x, cos, sin: right(x, cos, -sin),
        "causal_lower_right": lambda tokens, visible: None,  # every token sees what comes after it
        "silu_mul": lambda gate_up: right(gate_up.roll(gate_up.shape[-1] // 2, -1)),
    }
    monkeypatch.setattr(llama, name, wrong[name])
    assert off(llama) > 1e-2


def test_it_runs_from_end_to_end(llama, program: str, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    shown = subprocess.run(
        [sys.executable, COMPARE, program, "--shape", "tiny", "--rounds", "2", "--batches", "1,2", "--prompts", "16",
         "--output", record],
        capture_output=True, text=True, check=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )
    said = json.loads(shown.stdout)
    assert said == json.loads(record.read_text())
    rows = [(row["test"], row["batch"], row["precision"]) for row in said["results"]]
    assert rows == [(test, batch, precision) for test, batch in (("decode", 1), ("decode", 2), ("prompt", 1))
                    for precision in ("sc", "fp32", "torch-fp32")]
    for row in said["results"]:
        assert len(row["samples_ms"]) == (6 if row["test"] == "prompt" else 4) and min(row["samples_ms"]) > 0
        assert ("ratio_to_fastest" in row) == (row["precision"] == "sc")


@pytest.mark.parametrize("arguments, message", [
    (["--batches", "0"], "'0' are not numbers of at least 1"),
    (["--batches", "", "--prompts", ""], "nothing to measure"),
    (["--chunk", "0"], "expected at least 1"),
    ([], "expected the program stoch"),
])
def test_wrong_arguments_are_refused(arguments: list[str], message: str, tmp_path: Path) -> None:
    shown = subprocess.run([sys.executable, COMPARE, tmp_path / "stoch", *arguments], capture_output=True, text=True)
    assert shown.returncode != 0 and message in shown.stderr
