# SPDX-License-Identifier: Apache-2.0
"""stoch.torch on a GPU: the linears have the bits of the CPU, attention those of the engine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

REQUIRED = os.environ.get("STOCH_REQUIRE_CUDA") == "1"
if REQUIRED:
    import torch
    import transformers
else:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")

import stoch  # noqa: E402
import stoch.torch  # noqa: E402
from test_torch import IDS, lengths_of, logits, write_table  # noqa: E402

if not torch.cuda.is_available() and not REQUIRED:
    pytest.skip("no GPU", allow_module_level=True)

GPU = "cuda:0"
IDS = IDS.to(GPU)


@pytest.fixture
def llama():
    torch.manual_seed(4)
    sizes = {"hidden_size": 256, "intermediate_size": 320, "num_hidden_layers": 2, "vocab_size": 200}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).eval().to(GPU)


@pytest.mark.parametrize("rows", [1, 6, 40, 300])
def test_linears(llama, rows: int) -> None:
    report = stoch.torch.patch(llama, "preset=halved,down_proj.stoc_len=64", attention=False)
    assert len(report.replaced) == 14
    for name in ("q_proj", "down_proj"):
        module = next(m for n, m in llama.named_modules() if n.endswith(name))
        x = torch.randn(rows, module.in_features)
        with torch.no_grad():
            y = module(x.to(GPU))
        weight = module.weight.detach().cpu()
        want = stoch.sc_matmul(x, weight, halve=True, chunk_d=128, stoc_len=64 if name == "down_proj" else 128)
        assert torch.equal(y.cpu(), want), name
    with torch.no_grad():
        module.weight.mul_(2)
        assert torch.equal(module(x.to(GPU)), 2 * y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", ["per_token", "per_head", "per_row", "exact"])
def test_attention(llama, mode: str, dtype: torch.dtype) -> None:
    llama = llama.to(dtype)
    ids = IDS[:1]
    exact = logits(llama, ids)
    with stoch.torch.patched(llama, f"attention={mode}") as report:
        assert report.attention == mode
        patched = logits(llama, ids)
        assert (patched - exact).abs().max() < 0.5 * exact.abs().max()
        assert torch.equal(patched, logits(llama, ids))
        out = llama.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
        assert out.shape == (1, 12) and out.is_cuda
    assert torch.equal(logits(llama, ids), exact)


@pytest.mark.parametrize("normalise", ["fixed", "call"])
def test_mixed_lengths(llama, tmp_path: Path, normalise: str) -> None:
    table = write_table(tmp_path / "mp.json", protected_channels={"stoc_len": 128, "indices": {"up_proj:b1": [3, 7, 40]}})
    stoch.torch.patch(llama, mp=table, mp_normalise=normalise, attention=False)
    x = torch.randn(6, 256) * torch.tensor([0.2, 0.4, 0.7, 1.0, 2.0, 3.0])[:, None]
    module = llama.model.layers[0].mlp.up_proj
    with torch.no_grad():
        y = module(x.to(GPU)).cpu()
    if normalise == "fixed":
        options = {"halve": True, "chunk_d": 128, "lengths": lengths_of(x)}
        assert torch.equal(y, stoch.sc_matmul(x, module.weight.detach().cpu(), **options))
    assert torch.isfinite(logits(llama, IDS[:1])).all()


def test_files(llama, tmp_path: Path) -> None:
    """Smoothing and a mask of the published kind: the bits of the same model on the CPU."""
    factors = {f"model.layers.{layer}.mlp.down_proj": torch.rand(320) + 0.5 for layer in range(2)}
    torch.save(factors, tmp_path / "awq.pt")
    stoch.torch.convert_scales(tmp_path / "awq.pt", llama, tmp_path / "s.safetensors", method="awq")
    (tmp_path / "mask.json").write_text(json.dumps({"default": "sc", "schedule": {"up_proj": ["fp", "int4"]}}))
    files = {"smooth": tmp_path / "s.safetensors", "mask": tmp_path / "mask.json", "attention": False}
    x = torch.randn(4, 256), torch.randn(4, 320)
    results = []
    for device in (GPU, "cpu"):
        with stoch.torch.patched(llama.to(device), **files), torch.no_grad():
            mlp = llama.model.layers[1].mlp
            results.append([mlp.up_proj(x[0].to(device)).cpu(), mlp.down_proj(x[1].to(device)).cpu()])
    for on_gpu, on_cpu in zip(*results):
        assert torch.equal(on_gpu, on_cpu)


def test_compiled_and_free_weights(llama) -> None:
    stoch.torch.patch(llama, attention=False, free_weights=True)
    module = llama.model.layers[0].mlp
    x = torch.randn(3, 256, device=GPU)
    with torch.no_grad():
        want = module(x)
        assert torch.equal(torch.compile(module, backend="eager", fullgraph=True)(x), want)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = module(x)
        x.neg_()
        graph.replay()
        assert torch.equal(y, module(x))
