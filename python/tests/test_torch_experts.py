# SPDX-License-Identifier: Apache-2.0
"""stoch.torch on experts that transformers 5 keeps in one tensor."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import stoch  # noqa: E402
import stoch.torch  # noqa: E402
from test_torch import IDS, logits  # noqa: E402


@pytest.fixture
def mixtral():
    torch.manual_seed(6)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 100}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **experts)).eval()
    if not hasattr(model.model.layers[0].mlp, "experts") or not hasattr(model.model.layers[0].mlp.experts, "gate_up_proj"):
        pytest.skip("experts are linears in this transformers")
    return model


def expert_of(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, **config: object) -> torch.Tensor:
    gate, up = (stoch.sc_matmul(x, part.contiguous(), halve=True, chunk_d=128) for part in gate_up.chunk(2))
    return stoch.sc_matmul(torch.nn.functional.silu(gate) * up, down, halve=True, chunk_d=128, **config)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_experts_that_are_one_tensor(mixtral, device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    ids = IDS.to(device)
    mixtral = mixtral.to(device)
    exact = logits(mixtral, ids)
    report = stoch.torch.patch(mixtral, "preset=halved,down_proj.stoc_len=64", attention=False)
    assert report.operators | {"gate_proj": 2, "up_proj": 2, "down_proj": 2} == report.operators
    assert [why for name, why in report.left.items() if name.endswith("gate")] == ["a router"] * 2
    module = mixtral.model.layers[1].mlp.experts
    x, index = torch.randn(5, 32), torch.tensor([[0, 3], [3, 1], [1, 0], [0, 3], [3, 0]])
    x, index, weights = x.to(device), index.to(device), torch.rand(5, 2).to(device)
    gate_up, down = module.gate_up_proj.detach(), module.down_proj.detach()
    parts = [expert_of(x, gate_up[e], down[e], stoc_len=64) for e in range(4)]
    want = torch.stack([sum(parts[int(index[n, k])][n] * weights[n, k] for k in range(2)) for n in range(5)])
    with torch.no_grad():
        assert torch.equal(module(x, index, weights), want)
        module.down_proj.mul_(2)  # a power of two changes scales only
        assert torch.equal(module(x, index, weights), 2 * want)
        module.down_proj.div_(2)
    patched = logits(mixtral, ids)
    assert not torch.equal(patched, exact) and (patched - exact).abs().max() < 0.5 * exact.abs().max()
    with pytest.raises(stoch.InvalidInput, match="gradient"):
        module(x.requires_grad_(), index, weights)
    stoch.torch.unpatch(mixtral)
    assert torch.equal(logits(mixtral, ids), exact)


def test_some_of_the_experts_operators(mixtral) -> None:
    exact = logits(mixtral)
    with stoch.torch.patched(mixtral, operators=["down_proj"], attention=False) as report:
        assert set(report.operators) == {"down_proj"} and len(report.replaced) == 2
        assert not torch.equal(logits(mixtral), exact)
    with stoch.torch.patched(mixtral, attention=False, grad="ste"):
        ids = IDS[:1]
        mixtral(ids, labels=ids).loss.backward()
        assert mixtral.model.layers[0].mlp.experts.down_proj.grad.abs().sum() > 0
    stoch.torch.patch(mixtral, attention=False)
    kept = logits(mixtral)
    stoch.torch.unpatch(mixtral)
    with pytest.raises(stoch.InvalidInput, match="whole"):
        stoch.torch.patch(mixtral, operators=["down_proj"], attention=False, free_weights=True)
    stoch.torch.patch(mixtral, attention=False, free_weights=True)
    assert mixtral.model.layers[0].mlp.experts.gate_up_proj.is_meta and torch.equal(logits(mixtral), kept)
    with pytest.raises(stoch.InvalidInput, match="load it again"):
        stoch.torch.unpatch(mixtral)


def test_a_patched_moe_is_near_the_engines(shared: Path) -> None:
    folder = shared / "models/tiny-qwen3-moe"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with stoch.load(folder, device="cpu") as engine:
        ids = torch.arange(3, 40).remainder(int(engine.config["vocab_size"]))[None]
        want = torch.from_numpy(engine.logits(ids[0].tolist()))
    exact = logits(model, ids)[0]
    with stoch.torch.patched(model) as report:
        assert not any("experts" in name for name in report.left)
        got = logits(model, ids)[0]
    assert (got - want).abs().mean() < 0.1 * (want - exact).abs().mean()
