# SPDX-License-Identifier: Apache-2.0
"""The drop-in for scmp_kernels: its numbers, words and environment. Its own tests: tools/test --scmp."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import stoch  # noqa: E402
from recorded import read  # noqa: E402
from stoch import scmp  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def drop_in():
    sys.path.insert(0, scmp.folder())
    yield
    sys.path.remove(scmp.folder())


def test_recorded_products(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scmp_kernels import sc_matmul

    monkeypatch.setenv("SCMP_KERNELS_SEMANTICS", "published")
    tensors, metadata = read(shared / "goldens/sc_matmul_golden.safetensors")
    for case in json.loads(metadata["cases"]):
        arguments = dict(case)
        name = arguments.pop("case")
        monkeypatch.setenv("SC_OWEN_MODE", arguments.pop("scramble"))
        assert arguments.pop("scramble_masks") == 256
        a, b, want = (torch.from_numpy(tensors[f"{name}.{role}"].copy()) for role in "aby")
        y = sc_matmul(a, b, **arguments)
        assert y.device.type == "cpu" and y.dtype == torch.float32
        assert (y - want).abs().max() <= 1e-6 * want.abs().max(), name
        ours = {"halve" if key == "halve_bipolar_stoc_len" else key: value for key, value in case.items() if key != "case"}
        assert torch.equal(y, stoch.sc_matmul(a, b, **ours)), name


def test_recorded_rungs(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cases of rungs, and lengths with smoothing as rungs: the recorded bytes, which are those of stoch.sc_matmul."""
    from scmp_kernels import sc_matmul

    tensors, metadata = read(shared / "goldens/research_golden.safetensors")
    seen = 0
    for case in json.loads(metadata["cases"]):
        if case["kind"] != "rungs" and case["case"] != "smooth":
            continue
        seen += 1
        sc = dict(case["sc"])
        monkeypatch.setenv("SCMP_KERNELS_SEMANTICS", "published-2026" if sc["scramble_masks"] == 64 else "published")
        monkeypatch.setenv("SC_OWEN_MODE", sc["scramble"])
        tensor = {role: torch.from_numpy(tensors[name].copy()) for role, name in case["tensors"].items()}
        levels, rungs = case.get("level_lens"), tensor.get("rung")
        if rungs is None:
            chunks = -(-tensor["a"].shape[1] // sc["chunk_d"])
            lengths = tensor["lengths"].reshape(tensor["a"].shape[0], -1).expand(-1, chunks)
            found, rungs = torch.unique(lengths, return_inverse=True)
            levels = found.tolist()
        arguments = {"rung_table": rungs.to(torch.int32), "level_lens": levels, "smooth_scales": tensor.get("smooth")}
        settings = {name: sc[name] for name in ("sc_prec", "stoc_len", "rng_levels", "chunk_d")}
        y = sc_matmul(tensor["a"], tensor["b"], halve_bipolar_stoc_len=sc["halve"], **settings, **arguments)
        assert y.numpy().tobytes() == tensor["y"].numpy().tobytes(), case["case"]
        own = stoch.sc_matmul(
            tensor["a"], tensor["b"], stoch.ScConfig(**sc), rungs=rungs, level_lens=levels, smooth=tensor.get("smooth")
        )
        assert torch.equal(y, own), case["case"]
    assert seen == 11


def test_semantics(monkeypatch: pytest.MonkeyPatch) -> None:
    from scmp_kernels import sc_matmul

    a, b = torch.randn(3, 300), torch.randn(4, 300)
    newer = sc_matmul(a, b, stoc_len=64)
    monkeypatch.setenv("SCMP_KERNELS_SEMANTICS", "published")
    older = sc_matmul(a, b, stoc_len=64)
    assert not torch.equal(newer, older)  # 64 masks, 256 masks
    monkeypatch.setenv("SC_OWEN_MODE", "counter")
    assert torch.equal(sc_matmul(a, b, stoc_len=64), stoch.sc_matmul(a, b, stoc_len=64, scramble="counter", scramble_masks=256))
    monkeypatch.setenv("SC_DISABLE_OWEN", "1")
    assert torch.equal(sc_matmul(a, b, stoc_len=64), stoch.sc_matmul(a, b, stoc_len=64, scramble="off"))
    monkeypatch.delenv("SCMP_KERNELS_SEMANTICS")
    with pytest.raises(ValueError, match="counter"):
        sc_matmul(a, b)
    monkeypatch.delenv("SC_OWEN_MODE")
    with pytest.raises(RuntimeError, match="SC_DISABLE_OWEN"):
        sc_matmul(a, b)
    monkeypatch.delenv("SC_DISABLE_OWEN")
    with pytest.raises(ValueError, match="halve"):
        sc_matmul(a, b, halve_bipolar_stoc_len=True, stoc_len=200)
    monkeypatch.setenv("SC_SCRAMBLE_MASKS", "128")
    with pytest.raises(ValueError, match="SC_SCRAMBLE_MASKS"):
        sc_matmul(a, b)


def test_words() -> None:
    from scmp_kernels import sc_matmul

    a, b, c = torch.randn(3, 8), torch.randn(4, 8), torch.randn(2, 3, 8)
    for arguments, word in (
        ({"granularity": "per_block"}, "granularity"),
        ({"mode": "ternary"}, "mode"),
        ({"method": "lookup"}, "method"),
        ({"granularity": "per_tensor", "chunk_d": 4}, "chunk_d"),
        ({"mode": "unipolar", "chunk_d": 4}, "chunk_d"),
        ({"granularity": "per_head"}, "per_head"),
        ({"method": "table"}, "per_tensor"),
    ):
        with pytest.raises(ValueError, match=word):
            sc_matmul(a, b, **arguments)
    with pytest.raises(ValueError, match="chunk_d"):
        sc_matmul(c, c, chunk_d=4)


def test_packed_weights_follow_their_content() -> None:
    from scmp_kernels import sc_matmul
    from scmp_kernels.sc import clear_rng_cache, kernels

    clear_rng_cache()
    a, weight = torch.randn(3, 64), torch.nn.Parameter(torch.randn(5, 64))
    first = sc_matmul(a, weight)
    assert len(kernels._packed_cache) == 1
    assert torch.equal(first, sc_matmul(a, weight)) and len(kernels._packed_cache) == 1
    assert torch.equal(first, stoch.sc_matmul(a, weight.detach()))
    with torch.no_grad():
        weight.mul_(-2).add_(1)
    changed = sc_matmul(a, weight)
    assert torch.equal(changed, stoch.sc_matmul(a, weight.detach())) and not torch.equal(changed, first)
    for _ in range(kernels._ENABLE_TABLE_CACHE_MAX + 5):
        sc_matmul(a, torch.nn.Parameter(torch.randn(5, 64)))
    assert len(kernels._packed_cache) <= kernels._ENABLE_TABLE_CACHE_MAX
    clear_rng_cache()


def test_config_dict() -> None:
    from scmp_kernels import sc_matmul

    a, b = torch.randn(3, 8), torch.randn(4, 8)

    def config(side: dict[str, object]) -> dict[str, object]:
        entries = {"q": [{"rng_id": 0, "scramble": None}] * 8, "k": [{"rng_id": 1, "scramble": None}] * 8}
        return {"rng_pool": [{"type": "sobol", "seed_type": "q"}, side], "sng": entries}

    default = sc_matmul(a, b, config=config({"type": "sobol", "seed_type": "k"}))
    assert torch.equal(default, sc_matmul(a, b))
    other = sc_matmul(a, b, config=config({"type": "sobol", "seed": [1, 3, 7, 15, 31, 63, 127, 255]}))
    assert not torch.equal(other, default) and (other - a @ b.T).abs().max() < 1


def test_a_matrix_is_packed_when_it_comes_again() -> None:
    from scmp_kernels import sc_matmul
    from scmp_kernels.sc import clear_rng_cache, kernels

    clear_rng_cache()
    a, weight = torch.randn(3, 64), torch.randn(5, 64, dtype=torch.bfloat16)
    want = stoch.sc_matmul(a, weight.float())
    for packed in (False, True, True):
        assert torch.equal(sc_matmul(a, weight), want)
        (entry,) = kernels._packed_cache.values()
        assert (entry[2] is not None) == packed
    half = weight[:, :32]
    assert torch.equal(sc_matmul(a[:, :32], half), stoch.sc_matmul(a[:, :32], half.float()))
    assert len(kernels._packed_cache) == 2
    del weight, half
    sc_matmul(a, torch.randn(2, 64))
    assert len(kernels._packed_cache) == 1  # what was freed is forgotten
    clear_rng_cache()


def test_rungs_are_checked() -> None:
    from scmp_kernels import sc_matmul

    a, b = torch.randn(4, 300), torch.randn(2, 300)
    good = {"chunk_d": 128, "stoc_len": 128, "halve_bipolar_stoc_len": True}
    good |= {"rung_table": torch.zeros(4, 3, dtype=torch.int32), "level_lens": [32, 128]}
    assert torch.equal(sc_matmul(a, b, **good), sc_matmul(a, b, chunk_d=128, stoc_len=32, halve_bipolar_stoc_len=True))
    for change, words in (
        ({"rung_table": torch.zeros(4, 2, dtype=torch.int32)}, "expected"),
        ({"rung_table": torch.zeros(4, 3)}, "whole numbers"),
        ({"rung_table": torch.full((4, 3), 2)}, "0..1"),
        ({"level_lens": None}, "both or none"),
        ({"stoc_len": 64}, "at most stoc_len"),
        ({"chunk_d": 0}, "chunk_d above 0"),
        ({"stoc_len": 256, "halve_bipolar_stoc_len": False, "level_lens": [64, 256]}, "nest"),
    ):
        with pytest.raises(ValueError, match=words):
            sc_matmul(a, b, **{**good, **change})
