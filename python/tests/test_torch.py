# SPDX-License-Identifier: Apache-2.0
"""stoch.torch on a small random Llama of transformers."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import stoch  # noqa: E402
import stoch.torch  # noqa: E402

IDS = torch.arange(3, 19).reshape(2, 8)


@pytest.fixture
def llama():
    torch.manual_seed(4)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=200,
        max_position_embeddings=128,
    )
    return transformers.LlamaForCausalLM(config).eval()


def logits(model: torch.nn.Module, ids: torch.Tensor = IDS, **options: object) -> torch.Tensor:
    with torch.no_grad():
        return model(ids, **options).logits


def test_operands_of_other_libraries() -> None:
    a, b = torch.randn(5, 40), torch.randn(7, 40)
    want = stoch.sc_matmul(a.numpy(), b.numpy(), halve=True)
    y = stoch.sc_matmul(a, b, halve=True)
    assert isinstance(y, torch.Tensor) and np.array_equal(y.numpy(), want)
    assert np.array_equal(stoch.sc_matmul(a.t().contiguous().t(), b, halve=True).numpy(), want)
    for dtype in (torch.float16, torch.bfloat16):
        narrow, other = a.to(dtype), b.to(dtype)
        assert torch.equal(stoch.sc_matmul(narrow, other), stoch.sc_matmul(narrow.float(), other.float()))
    with pytest.raises(stoch.InvalidInput, match="gradient"):
        stoch.sc_matmul(torch.nn.Parameter(a), b)
    with pytest.raises(stoch.InvalidInput, match="a is float64"):
        stoch.sc_matmul(a.double(), b)


def test_linears_are_those_of_the_engine(llama) -> None:
    before = {name: value.clone() for name, value in llama.state_dict().items()}
    exact = logits(llama)
    report = stoch.torch.patch(llama, "preset=halved,down_proj.stoc_len=64", attention=False)
    assert len(report.replaced) == 14 and report.operators["q_proj"] == 2 and report.attention == ""
    assert not any("lm_head" in name for name in report.replaced)
    assert list(llama.state_dict()) == list(before)
    for name in ("q_proj", "down_proj"):
        module = next(m for n, m in llama.named_modules() if n.endswith(name))
        x = torch.randn(2, 3, module.in_features)
        with torch.no_grad():
            y = module(x)
        want = stoch.sc_matmul(
            x.reshape(6, -1), module.weight.detach(), halve=True, chunk_d=128, stoc_len=64 if name == "down_proj" else 128
        )
        assert torch.equal(y.reshape(6, -1), want), name
    patched = logits(llama)
    assert not torch.equal(patched, exact) and (patched - exact).abs().max() < 0.5 * exact.abs().max()
    assert torch.equal(patched, logits(llama))
    stoch.torch.unpatch(llama)
    assert torch.equal(logits(llama), exact)


def test_a_changed_weight_is_packed_again(llama) -> None:
    stoch.torch.patch(llama, attention=False)
    module = llama.model.layers[0].mlp.up_proj
    x = torch.randn(3, 64)
    with torch.no_grad():
        first = module(x)
        module.weight.mul_(2)
        assert torch.equal(module(x), 2 * first)  # a power of two changes scales only


@pytest.mark.parametrize("mode", ["per_token", "per_head", "per_row", "exact"])
def test_attention(llama, mode: str) -> None:
    ids = IDS[:1]
    exact = logits(llama, ids)
    with stoch.torch.patched(llama, f"attention={mode}") as report:
        assert report.attention == mode
        patched = logits(llama, ids)
        assert (patched - exact).abs().max() < 0.5 * exact.abs().max()
        if mode != "exact":
            assert not torch.equal(patched, exact)
        if mode in ("per_token", "exact"):  # nothing depends on later tokens
            assert torch.allclose(logits(llama, ids[:, :5]), patched[:, :5], atol=1e-5)
            assert torch.allclose(logits(llama)[:1], patched, atol=1e-5)
        else:
            with pytest.raises(stoch.InvalidInput, match="batch"):
                logits(llama)
    assert torch.equal(logits(llama, ids), exact)


def test_per_token_attention_is_the_definition() -> None:
    """Codes of v by position, its scales folded into p: the sums of docs/sc_arithmetic.md, in numpy."""
    rng = np.random.default_rng(3)
    p = np.tril(rng.random((1, 6, 6), dtype=np.float32))
    v = rng.standard_normal((1, 6, 4), dtype=np.float32)
    config = stoch.ScConfig(halve=True, stoc_len=64)
    y = stoch.torch._av_per_token(torch.from_numpy(p), torch.from_numpy(v), config).numpy()
    q = np.float32(127)
    scale_v = (np.maximum(np.abs(v).max(axis=2), np.float32(1e-5)) / q).astype(np.float32)
    codes_v = np.rint(v / scale_v[..., None])
    folded = (p * scale_v[:, None, :]).astype(np.float32)
    scale_p = (np.maximum(np.abs(folded).max(axis=2), np.float32(1e-5)) / q).astype(np.float32)
    # A product of operands that are codes already, one position at a time: |q| = 127 next to it keeps the scale 1.
    want = np.zeros_like(y)
    codes_p = np.rint(folded / scale_p[..., None])
    for n in range(6):
        for d in range(4):
            a = np.append(codes_p[0, n], 127).astype(np.float32)[None]
            b = np.append(codes_v[0, :, d], 0).astype(np.float32)[None]
            b2 = np.append(b, np.float32(127))[None]
            a2 = np.append(a, np.float32(0))[None]
            _, acc = stoch.sc_matmul(a2, b2, config, counts=True)
            gain = np.float32(q * q) / np.float32(64)
            want[0, n, d] = (np.float32(acc[0, 0, 0]) * gain) * (scale_p[0, n] * np.float32(1))
    assert np.array_equal(y, want)


def test_generate_and_refusals(llama) -> None:
    report = stoch.torch.patch(llama)
    assert "14 linears" in str(report)
    out = llama.generate(IDS[:1], max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert out.shape == (1, 12)
    with pytest.raises(stoch.InvalidInput, match="gradient"):
        llama.model.layers[0].mlp.up_proj(torch.randn(2, 64, requires_grad=True))
    with pytest.raises(stoch.InvalidInput, match="patched"):
        stoch.torch.patch(llama)
    stoch.torch.unpatch(llama)
    with pytest.raises(stoch.InvalidInput, match="not patched"):
        stoch.torch.unpatch(llama)
    with pytest.raises(stoch.InvalidInput, match="no linear"):
        stoch.torch.patch(llama, operators=["nothing"])
    with pytest.raises(stoch.InvalidInput, match="grad"):
        stoch.torch.patch(llama, grad="exact")


def test_gradients_pass_through(llama) -> None:
    stoch.torch.patch(llama, attention=False, grad="ste")
    module = llama.model.layers[0].mlp.up_proj
    x = torch.randn(2, 64, requires_grad=True)
    y = module(x)
    assert torch.equal(y.detach(), stoch.sc_matmul(x.detach(), module.weight.detach(), halve=True, chunk_d=128)) or (
        y.detach() - stoch.sc_matmul(x.detach(), module.weight.detach(), halve=True, chunk_d=128)
    ).abs().max() < 1e-6
    y.sum().backward()
    assert torch.allclose(x.grad, module.weight.detach().sum(0).expand(2, -1))
