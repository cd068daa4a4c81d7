# SPDX-License-Identifier: Apache-2.0
"""stoch.torch on a small random Llama of transformers."""

from __future__ import annotations

import gc
import json
import resource
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import stoch  # noqa: E402
import stoch.torch  # noqa: E402
from stoch import _torch_attention  # noqa: E402

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


def test_operands_that_are_refused() -> None:
    b = torch.ones(3, 4)
    packed = stoch.pack(b)
    for a, words in (
        (torch.ones(2, 4, device="meta"), "a: .*meta"),
        (torch.ones(2, 4).double(), "a is float64: allowed"),
        (torch.ones(2, 4).int(), "a is int32: allowed"),
        (torch.ones(2, 4, dtype=torch.complex64), "a is complex64: allowed"),
        (torch.eye(4).to_sparse(), "a: .*strided"),
        (torch._neg_view(torch.ones(2, 4)), "a is a negated view"),
        (torch.ones(4), "a has 1 dimensions"),
        (torch.ones(2, 5), "do not fit|5 columns"),
        (torch.full((2, 4), float("nan")), "NaN"),
    ):
        for other in (b, packed):
            with pytest.raises(stoch.InvalidInput, match=words) as caught:
                stoch.sc_matmul(a, other)
            assert "\n" not in str(caught.value)
    for out, words in (
        (torch.empty(3, 3, device="meta"), "out: .*meta"),
        (torch.empty(3, 3).double(), "out is float64"),
        (torch.empty(2, 3), "do not fit"),
    ):
        with pytest.raises(stoch.InvalidInput, match=words):
            stoch.sc_matmul(torch.ones(3, 4), b, out=out)
    with pytest.raises(stoch.InvalidInput, match="b: .*meta"):
        stoch.pack(torch.ones(2, 4, device="meta"))


@pytest.mark.parametrize(
    "options", [{"lengths": [64, 32]}, {"smooth": [1.0] * 4}, {"protected": [1], "protected_len": 128}], ids=lambda o: next(iter(o))
)
def test_lengths_and_the_like_refuse_the_same(options: dict[str, object]) -> None:
    """Made of several products, whose slices and conversions are the library's: nothing is converted that is refused."""
    good = torch.ones(2, 4)
    for bad, words in (
        (torch.ones(2, 4, device="meta"), " is on meta: allowed is cpu or cuda"),
        (torch.ones(2, 4).double(), " is float64: allowed is float32, float16, bfloat16"),
        (torch.ones(2, 4).int(), " is int32: allowed"),
        (torch.ones(2, 4, dtype=torch.complex64), " is complex64: allowed"),
        (torch.ones(2, 4).to_sparse(), " is torch.sparse_coo: allowed is torch.strided"),
    ):
        with pytest.raises(stoch.InvalidInput, match=f"^a{words}"):
            stoch.sc_matmul(bad, good, **options)
        with pytest.raises(stoch.InvalidInput, match=f"^b{words}"):
            stoch.sc_matmul(good, bad, **options)
    for kind in (np.float64, np.complex64, np.int32, np.bool_, "O", "U1"):
        other = np.ones((2, 4)).astype(kind)
        with pytest.raises(stoch.InvalidInput, match="^a is .*: allowed is float32, float16, bfloat16"):
            stoch.sc_matmul(other, good.numpy(), **options)
    assert stoch.sc_matmul(good.bfloat16(), good.half(), **options).shape == (2, 2)


class Derived(torch.Tensor):
    """A tensor that is not quite torch.Tensor."""


def test_tensors_that_only_look_like_memory() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    a, b = torch.randn(3, 2, 4), torch.randn(5, 4)
    packed = stoch.pack(b)
    want = stoch.sc_matmul(a[0], b)
    derived = a[0].as_subclass(Derived)
    assert torch.equal(stoch.sc_matmul(derived, packed).as_subclass(torch.Tensor), want)
    assert torch.equal(stoch.sc_matmul(torch.nn.Parameter(a[0], requires_grad=False), packed), want)
    with torch.inference_mode():
        assert torch.equal(stoch.sc_matmul(a[0].clone(), packed), want)
    with pytest.raises(stoch.InvalidInput, match="gradient"):
        stoch.sc_matmul(a[0].clone().requires_grad_(), packed)
    with FakeTensorMode():
        fake = torch.ones(2, 4)
    for other in (b, packed):
        with pytest.raises((stoch.InvalidInput, TypeError)):
            stoch.sc_matmul(fake, other)
        with pytest.raises(stoch.InvalidInput):
            torch.func.vmap(lambda rows, other=other: stoch.sc_matmul(rows, other))(a)


def test_tensors_are_given_back() -> None:
    """What a call holds of its operands and its result ends with it: a megabyte each time would be seen."""
    packed = stoch.pack(torch.ones(2, 1 << 18))
    for _ in range(20):
        stoch.sc_matmul(torch.ones(1, 1 << 18), packed)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(200):
        stoch.sc_matmul(torch.ones(1, 1 << 18), packed, out=torch.empty(1, 2))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10  # KiB


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


@pytest.mark.parametrize("mode", ["per_token", "per_head", "per_row"])
def test_whole_prompts_run_the_engines_attention(llama, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same definition as the products, but for the last bits of the softmax; and what torch has of it is not called."""
    ids = IDS[:1]
    with stoch.torch.patched(llama, f"attention={mode}"):
        with monkeypatch.context() as patch:
            patch.setattr(_torch_attention, "_product", None)
            whole = logits(llama, ids)
        monkeypatch.setattr(_torch_attention, "_engine_attention", lambda *_: None)
        products = logits(llama, ids)
    with stoch.torch.patched(llama, "attention=exact"):
        exact = logits(llama, ids)
    assert (whole - products).abs().mean() < 0.05 * (whole - exact).abs().mean()


ATTENTION = {
    "streams": {"sc": "preset=halved"},
    "per_row": {"sc": "attention=per_row"},
    "integers": {"sc": "av.arith=int8,qk.arith=int8"},
    "integers per_head": {"sc": "av.arith=int8,attention=per_head"},
    "lengths": {"sc": "preset=halved", "mp": True},
    "lengths per_head": {"sc": "attention=per_head", "mp": True},
}


@pytest.mark.parametrize("name", ATTENTION)
def test_a_patched_model_is_near_the_engines(demo: str, tmp_path: Path, name: str) -> None:
    """What is around the products is torch's: the difference to stoch.load is far below what SC costs."""
    options = dict(ATTENTION[name])
    if options.pop("mp", False):
        options["mp"] = write_table(tmp_path / "mp.json")
    model = transformers.LlamaForCausalLM.from_pretrained(demo, dtype=torch.float32).eval()
    with stoch.load(demo, device="cpu", **options) as engine:
        tokens = engine.tokenize("Once upon a time, there was a little girl named Lily. She liked to play in the park.")
        want = torch.from_numpy(engine.logits(tokens))
    ids = torch.tensor([tokens])
    exact = logits(model, ids)[0]
    with stoch.torch.patched(model, **options):
        got = logits(model, ids)[0]
        assert (got - want).abs().mean() < 0.1 * (want - exact).abs().mean()
        if name.startswith("integers"):
            # A step computes the rows before it again.
            with torch.no_grad():
                cache = model(ids[:, :-1], use_cache=True).past_key_values
            last = logits(model, ids[:, -1:], past_key_values=cache)[0, -1]
            if name == "integers":  # nothing that was computed depends on later tokens
                assert (last - got[-1]).abs().mean() < 0.1 * (want - exact).abs().mean()
            padding = torch.ones_like(ids)
            padding[:, :2] = 0
            with pytest.raises(stoch.InvalidInput, match="causal mask"):
                logits(model, ids, attention_mask=padding)


def test_per_token_attention_is_the_definition() -> None:
    """Codes of v by position, its scales folded into p: the sums of docs/sc_arithmetic.md, in numpy."""
    rng = np.random.default_rng(3)
    p = np.tril(rng.random((1, 6, 6), dtype=np.float32))
    v = rng.standard_normal((1, 6, 4), dtype=np.float32)
    config = stoch.ScConfig(halve=True, stoc_len=64)
    y = _torch_attention._av_per_token(torch.from_numpy(p), torch.from_numpy(v), config).numpy()
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


def test_a_class_that_does_not_use_the_interface() -> None:
    """transformers only warns of it, and attention would stay exact."""
    sizes = {"hidden_size": 32, "n_layer": 1, "n_head": 2, "vocab_size": 64}
    bloom = transformers.BloomForCausalLM(transformers.BloomConfig(**sizes)).eval()
    ids = IDS[:1]
    exact = logits(bloom, ids)
    with pytest.raises(stoch.InvalidInput, match="BloomForCausalLM does not use the attention interface"):
        stoch.torch.patch(bloom)
    assert torch.equal(logits(bloom, ids), exact)
    with stoch.torch.patched(bloom, attention=False) as report:
        assert report.operators == {"query_key_value": 1, "dense": 1, "dense_h_to_4h": 1, "dense_4h_to_h": 1}
        assert not torch.equal(logits(bloom, ids), exact)
    assert torch.equal(logits(bloom, ids), exact)


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


LEVELS = [128, 64, 32]
THRESHOLDS = [0.6, 0.3]


def write_table(path: Path, **more: object) -> Path:
    bucket = {"thresholds": THRESHOLDS, "metric_lo": 0.0, "metric_hi": 3.0}
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qk", "av")
    table = {"stoc_len_levels": LEVELS, "sc_prec": 8, "halve_bipolar_stoc_len": True}
    table["operator_defaults"] = {name: bucket for name in names}
    path.write_text(json.dumps({**table, **more}))
    return path


def lengths_of(rows: torch.Tensor) -> np.ndarray:
    u = np.clip(rows.abs().amax(dim=-1).numpy() / np.float32(3), 0, 1)
    first = [next((i for i, t in enumerate(THRESHOLDS) if value >= np.float32(t)), 2) for value in u.reshape(-1)]
    return np.array(LEVELS)[first].reshape(u.shape)


def test_mixed_lengths_and_protected_channels(llama, tmp_path: Path) -> None:
    protected = {"stoc_len": 128, "indices": {"up_proj:b1": [3, 7, 40]}}
    table = write_table(tmp_path / "mp.json", protected_channels=protected)
    report = stoch.torch.patch(llama, mp=table, attention=False)
    assert "mp=" in report.config and report.layers[1]["up_proj"].startswith("halve=1")
    x = torch.randn(6, 64) * torch.tensor([0.2, 0.4, 0.7, 1.0, 2.0, 3.0])[:, None]
    module = llama.model.layers[0].mlp.up_proj
    with torch.no_grad():
        y = module(x)
        other = llama.model.layers[1].mlp.up_proj(x)
    assert len(set(lengths_of(x).tolist())) == 3
    options = {"halve": True, "chunk_d": 128}
    assert torch.equal(y, stoch.sc_matmul(x, module.weight.detach(), lengths=lengths_of(x), **options))
    rest = [i for i in range(64) if i not in (3, 7, 40)]
    weight = llama.model.layers[1].mlp.up_proj.weight.detach()
    want = stoch.sc_matmul(
        x, weight, lengths=lengths_of(x[:, rest]), protected=[3, 7, 40], protected_len=128, **options
    )
    assert torch.equal(other, want)


@pytest.mark.parametrize("mode", ["per_token", "per_row"])
def test_mixed_lengths_of_attention(llama, tmp_path: Path, mode: str) -> None:
    """Scores and p v have the lengths of their rows: with one level for all, those of the uniform products."""
    ids = IDS[:1]
    with stoch.torch.patched(llama, f"attention={mode}", mp=write_table(tmp_path / "mp.json")):
        mixed = logits(llama, ids)
        assert torch.equal(mixed, logits(llama, ids))
    bucket = {"thresholds": [0.0, 0.0], "metric_lo": 0.0, "metric_hi": 3.0}
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qk", "av")
    one = write_table(tmp_path / "one.json", operator_defaults={name: bucket for name in names})
    with stoch.torch.patched(llama, f"attention={mode}", mp=one):
        first = logits(llama, ids)
    with stoch.torch.patched(llama, f"attention={mode}"):
        assert torch.equal(first, logits(llama, ids)) and not torch.equal(first, mixed)


def test_lengths_of_a_call(llama, tmp_path: Path) -> None:
    table = write_table(tmp_path / "mp.json")
    stoch.torch.patch(llama, mp=table, mp_normalise="call")
    assert logits(llama, IDS[:1]).shape[-1] == 200
    with pytest.raises(stoch.InvalidInput, match="batch is 1"):
        logits(llama, IDS)
    stoch.torch.unpatch(llama)
    stoch.torch.patch(llama, "attention=per_head", mp=table, mp_normalise="call")
    with pytest.raises(stoch.InvalidInput, match="batch is 1"):
        logits(llama, IDS)


@pytest.mark.parametrize("method", ["smoothquant", "awq"])
def test_published_scales(llama, tmp_path: Path, method: str) -> None:
    name = "model.layers.1.mlp.down_proj"
    module = llama.get_submodule(name)
    scales = torch.rand(160) + 0.5
    torch.save({name: scales.to(torch.float16)}, tmp_path / f"{method}.pt")
    count = stoch.torch.convert_scales(tmp_path / f"{method}.pt", llama, tmp_path / "s.safetensors", method=method)
    assert count == 1
    factors = scales.half().float()
    if method == "smoothquant":
        factors = factors.sqrt() / module.weight.detach().abs().amax(dim=0).clamp(min=1e-5).sqrt()
    stoch.torch.patch(llama, smooth=tmp_path / "s.safetensors", attention=False)
    x = torch.randn(3, 160)
    with torch.no_grad():
        y = module(x)
    assert torch.equal(y, stoch.sc_matmul(x, module.weight.detach(), halve=True, chunk_d=128, smooth=factors))
    torch.save({"lm_head": torch.ones(64)}, tmp_path / "bad.pt")
    with pytest.raises(stoch.InvalidInput, match="decoder layer"):
        stoch.torch.convert_scales(tmp_path / "bad.pt", llama, tmp_path / "t.safetensors")
    torch.save({name: torch.ones(3)}, tmp_path / "bad.pt")
    with pytest.raises(stoch.InvalidInput, match="3"):
        stoch.torch.convert_scales(tmp_path / "bad.pt", llama, tmp_path / "t.safetensors")
    (tmp_path / "bad.pt").write_bytes(b"no torch file")
    with pytest.raises(stoch.InvalidInput, match="bad.pt"):
        stoch.torch.convert_scales(tmp_path / "bad.pt", llama, tmp_path / "t.safetensors")


def test_hybrid_mask(llama, tmp_path: Path) -> None:
    mask = {"default": "sc", "schedule": {"up_proj": ["fp", "int4"], "down_proj": ["int8", "sc"]}}
    (tmp_path / "mask.json").write_text(json.dumps(mask))
    report = stoch.torch.patch(llama, mask=tmp_path / "mask.json", attention=False)
    assert report.left["model.layers.0.mlp.up_proj"] == "arith = fp" and "mask=" in report.config
    x = torch.randn(4, 64)
    module = llama.model.layers[1].mlp.up_proj
    with torch.no_grad():
        y = module(x)
    q = np.float32(7)
    scale = [np.maximum(np.abs(o).max(axis=1), np.float32(1e-8)) / q for o in (x.numpy(), module.weight.detach().numpy())]
    codes = [np.clip(np.rint(o / s[:, None]), -7, 7) for o, s in zip((x.numpy(), module.weight.detach().numpy()), scale)]
    want = (codes[0] @ codes[1].T).astype(np.float32) * (scale[0][:, None] * scale[1][None])
    assert np.array_equal(y.numpy(), want)
    (tmp_path / "mask.json").write_text(json.dumps({"default": "sc", "schedule": {"qk": ["fp", "sc"]}}))
    stoch.torch.unpatch(llama)
    with pytest.raises(stoch.InvalidInput, match="attention = exact"):
        stoch.torch.patch(llama, mask=tmp_path / "mask.json")


def test_settings_by_layer(llama) -> None:
    report = stoch.torch.patch(llama, "preset=halved,1.up_proj.stoc_len=32", attention=False)
    assert [layer["up_proj"] for layer in report.layers] == [
        stoch.ScConfig(halve=True, chunk_d=128, stoc_len=128).describe(),
        stoch.ScConfig(halve=True, chunk_d=128, stoc_len=32).describe(),
    ]
    stoch.torch.unpatch(llama)
    with pytest.raises(stoch.InvalidInput, match="layers are allowed"):
        stoch.torch.patch(llama, "0-1.qkv_proj.stoc_len=32")
    with pytest.raises(stoch.InvalidInput, match="layers 0..1"):
        stoch.torch.patch(llama, "2.up_proj.stoc_len=32")


def test_free_weights(llama) -> None:
    exact = sum(p.numel() for p in llama.parameters() if p.device.type == "cpu")
    x = torch.randn(2, 64)
    want = stoch.sc_matmul(x, llama.model.layers[0].mlp.up_proj.weight.detach(), halve=True, chunk_d=128)
    stoch.torch.patch(llama, free_weights=True, attention=False)
    kept = sum(p.numel() for p in llama.parameters() if p.device.type == "cpu")
    assert kept < exact / 2
    with torch.no_grad():
        assert torch.equal(llama.model.layers[0].mlp.up_proj(x), want)
    assert llama.generate(IDS[:1], max_new_tokens=2, do_sample=False, pad_token_id=0).shape == (1, 10)
    with pytest.raises(stoch.InvalidInput, match="free_weights"):
        stoch.torch.unpatch(llama)
    with pytest.raises(stoch.InvalidInput, match="needs the weights"):
        stoch.torch.patch(llama, grad="ste", free_weights=True)


def test_compiled(llama) -> None:
    stoch.torch.patch(llama, attention=False)
    module = llama.model.layers[0].mlp
    x = torch.randn(3, 64)
    with torch.no_grad():
        want = module(x)
        compiled = torch.compile(module, backend="eager", fullgraph=True)
        assert torch.equal(compiled(x), want)
        module.up_proj.weight.mul_(-1)
        changed = module(x)
        assert torch.equal(compiled(x), changed) and not torch.equal(changed, want)


def test_windows_and_padding(llama) -> None:
    """A mask goes by position: padding on the left changes nothing for per_token, and is refused by per_row."""
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), IDS[:1]], dim=1)
    seen = torch.cat([torch.zeros(1, 3, dtype=torch.long), torch.ones(1, 8, dtype=torch.long)], dim=1)
    positions = (seen.cumsum(dim=1) - 1).clamp(min=0)
    with stoch.torch.patched(llama, "attention=exact"):
        plain = logits(llama, IDS[:1])
        assert torch.allclose(logits(llama, padded, attention_mask=seen, position_ids=positions)[:, 3:], plain, atol=1e-4)
    with stoch.torch.patched(llama, "attention=per_row"):
        with pytest.raises(stoch.InvalidInput, match="causal"):
            logits(llama, padded, attention_mask=seen, position_ids=positions)


def test_conv1d_and_routers() -> None:
    torch.manual_seed(5)
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=100, n_positions=64)
    gpt2 = transformers.GPT2LMHeadModel(config).eval()
    report = stoch.torch.patch(gpt2, "preset=halved,c_attn.stoc_len=64")
    assert report.operators == {"c_attn": 2, "c_proj": 4, "c_fc": 2}
    module = gpt2.transformer.h[0].attn.c_attn
    x = torch.randn(3, 32)
    with torch.no_grad():
        y = module(x)
    want = stoch.sc_matmul(x, module.weight.detach().t(), halve=True, chunk_d=128, stoc_len=64) + module.bias.detach()
    assert torch.equal(y, want)
    assert logits(gpt2, IDS).shape == (2, 8, 100)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 100}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    mixtral = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **experts)).eval()
    report = stoch.torch.patch(mixtral)
    assert all(name.split(".")[-1] != "gate" for name in report.replaced)
    assert logits(mixtral, IDS).shape == (2, 8, 100)
