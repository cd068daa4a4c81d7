# SPDX-License-Identifier: Apache-2.0
"""Recorded products: of the published simulator, and of the definition of mixed lengths."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import stoch
from recorded import read

# Of the published names, those that are others here.
_NAMES = {"halve_bipolar_stoc_len": "halve"}


@pytest.fixture(scope="module")
def published(shared: Path):
    tensors, metadata = read(shared / "goldens/sc_matmul_golden.safetensors")
    return tensors, json.loads(metadata["cases"])


@pytest.fixture(scope="module")
def research(shared: Path):
    tensors, metadata = read(shared / "goldens/research_golden.safetensors")
    return tensors, json.loads(metadata["cases"])


def config_of(case: dict[str, object]) -> stoch.ScConfig:
    return stoch.ScConfig(**{_NAMES.get(name, name): value for name, value in case.items() if name != "case"})


def test_published(published) -> None:
    tensors, cases = published
    assert len(cases) > 20
    for case in cases:
        name = case["case"]
        a, b, want = (tensors[f"{name}.{role}"] for role in "aby")
        y = stoch.sc_matmul(a, b, config_of(case))
        assert np.abs(y - want).max() <= 1e-6 * np.abs(want).max(), name


def test_published_is_the_program(published, run, shared: Path) -> None:
    listed = json.loads(run("verify", "--goldens", str(shared / "goldens/sc_matmul_golden.safetensors"), "--json"))
    rows = stoch.verify("demo", device="cpu", goldens=shared / "goldens/sc_matmul_golden.safetensors")
    assert rows == listed["checks"]
    assert all(row["passed"] for row in rows)


def test_counts_explain_the_product(published) -> None:
    tensors, cases = published
    bipolar = [case for case in cases if case.get("mode", "bipolar") == "bipolar" and "3d" not in case["case"]]
    for case in bipolar:
        name = case["case"]
        a, b = tensors[f"{name}.a"], tensors[f"{name}.b"]
        if a.ndim == 3:
            continue
        config = config_of(case)
        y, acc = stoch.sc_matmul(a, b, config, counts=True)
        full = config.resolve()
        q = np.float32((1 << (full.sc_prec - 1)) - 1)
        gain = np.float32(q * q) / np.float32(full.stoc_len)
        size = full.chunk_d or a.shape[1]

        def scales(x: np.ndarray, c: int, group: int) -> np.ndarray:
            m = np.abs(x[:, c * size : (c + 1) * size]).max(axis=1)
            if full.granularity == "per_tensor":
                m = np.full_like(m, m.max())
            for first in range(0, len(m), group):
                m[first : first + group] = m[first : first + group].max()
            return (np.maximum(m, np.float32(1e-5)) / q).astype(np.float32)

        want = np.zeros_like(y)
        for c in range(acc.shape[1]):
            left, right = scales(a, c, full.group_a), scales(b, c, full.group_b)
            want = want + (acc[:, c].astype(np.float32) * gain) * (left[:, None] * right[None, :])
        assert np.array_equal(y, want), name


def test_mixed_lengths(research) -> None:
    tensors, cases = research
    seen = 0
    for case in cases:
        if case["kind"] not in ("rungs", "lengths", "protected"):
            continue
        seen += 1
        tensor = {role: tensors[name] for role, name in case["tensors"].items()}
        arguments = {"smooth": tensor.get("smooth"), "lengths": tensor.get("lengths"), "counts": True}
        if case["kind"] == "rungs":
            arguments |= {"rungs": tensor["rung"], "level_lens": case["level_lens"]}
        if case["kind"] == "protected":
            arguments |= {"protected": tensor["protected"], "protected_len": case["protected_len"]}
        y, *sums = stoch.sc_matmul(tensor["a"], tensor["b"], stoch.ScConfig(**case["sc"]), **arguments)
        assert y.tobytes() == tensor["y"].tobytes(), case["case"]
        if "acc" in tensor:
            assert np.array_equal(sums[0], tensor["acc"]), case["case"]
        if "acc_protected" in tensor:
            assert np.array_equal(sums[1], tensor["acc_protected"]), case["case"]
    assert seen == 19
