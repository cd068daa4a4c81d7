# SPDX-License-Identifier: Apache-2.0
"""The package on a GPU: the bits of the CPU, the caller's streams, refusals. STOCH_REQUIRE_CUDA=1: a failure without one."""

from __future__ import annotations

import gc
import json
import os
import resource
from pathlib import Path

import numpy as np
import pytest

REQUIRED = os.environ.get("STOCH_REQUIRE_CUDA") == "1"
if REQUIRED:
    import torch
else:
    torch = pytest.importorskip("torch")

import stoch  # noqa: E402
from recorded import read  # noqa: E402

if not torch.cuda.is_available() and not REQUIRED:
    pytest.skip("no GPU", allow_module_level=True)

GPU = "cuda:0"
HALVED = stoch.ScConfig(halve=True, chunk_d=128)


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_gpu_is_used() -> None:
    packed = stoch.pack(normal(8, 64).to(GPU), HALVED)
    assert packed.device == GPU and packed.nbytes > 0
    assert stoch.sc_matmul(normal(3, 64).to(GPU), packed).device == torch.device(GPU)


def test_published_goldens(shared: Path) -> None:
    tensors, metadata = read(shared / "goldens/sc_matmul_golden.safetensors")
    for case in json.loads(metadata["cases"]):
        name = case["case"]
        parameters = {"halve" if key == "halve_bipolar_stoc_len" else key: value for key, value in case.items() if key != "case"}
        config = stoch.ScConfig(**parameters)
        a, b, want = (torch.from_numpy(tensors[f"{name}.{role}"].copy()) for role in "aby")
        on_cpu = stoch.sc_matmul(a, b, config)
        y = stoch.sc_matmul(a.to(GPU), b.to(GPU), config)
        assert torch.equal(y.cpu(), on_cpu), name
        assert (y.cpu() - want).abs().max() <= 1e-6 * want.abs().max(), name
        if a.dim() == 2 and config.mode == "bipolar":
            assert torch.equal(stoch.sc_matmul(a.to(GPU), stoch.pack(b.to(GPU), config)).cpu(), on_cpu), name


def test_research_goldens(shared: Path) -> None:
    tensors, metadata = read(shared / "goldens/research_golden.safetensors")
    seen = 0
    for case in json.loads(metadata["cases"]):
        if case["kind"] not in ("rungs", "lengths", "protected"):
            continue
        seen += 1
        tensor = {role: torch.from_numpy(tensors[name].copy()) for role, name in case["tensors"].items()}
        arguments = {"smooth": tensor.get("smooth"), "lengths": tensor.get("lengths"), "counts": True}
        if case["kind"] == "rungs":
            arguments |= {"rungs": tensor["rung"], "level_lens": case["level_lens"]}
        if case["kind"] == "protected":
            arguments |= {"protected": tensor["protected"], "protected_len": case["protected_len"]}
        a, b = tensor["a"].to(GPU), tensor["b"].to(GPU)
        y, *sums = stoch.sc_matmul(a, b, stoch.ScConfig(**case["sc"]), **arguments)
        assert y.is_cuda and torch.equal(y.cpu(), tensor["y"]), case["case"]
        if "acc" in tensor:
            assert torch.equal(sums[0].cpu(), tensor["acc"]), case["case"]
    assert seen == 19


@pytest.mark.parametrize("rows", [1, 5, 16, 33, 300])
@pytest.mark.parametrize("settings", ["halve=1,chunk_d=128", "", "halve=1,chunk_d=128,stoc_len=64", "mode=unipolar"])
def test_bits_of_the_cpu(rows: int, settings: str) -> None:
    config = stoch.ScConfig.parse(settings)
    a, b = normal(rows, 700), normal(130, 700, seed=2)
    want = stoch.sc_matmul(a, b, config)
    assert torch.equal(stoch.sc_matmul(a.to(GPU), b.to(GPU), config).cpu(), want)
    assert torch.equal(stoch.sc_matmul(a.to(GPU), stoch.pack(b.to(GPU), config)).cpu(), want)


def test_strides_types_and_out() -> None:
    a, b = normal(6, 40), normal(7, 40, seed=2)
    want = stoch.sc_matmul(a, b, HALVED)
    wide = torch.zeros(12, 120, device=GPU)
    wide[::2, ::3] = a.to(GPU)
    for view in (wide[::2, ::3], a.to(GPU).t().contiguous().t()):
        assert torch.equal(stoch.sc_matmul(view, b.to(GPU), HALVED).cpu(), want)
    for dtype in (torch.float16, torch.bfloat16):
        narrow, other = a.to(dtype), b.to(dtype)
        wanted = stoch.sc_matmul(narrow.float(), other.float(), HALVED)
        assert torch.equal(stoch.sc_matmul(narrow.to(GPU), other.to(GPU), HALVED).cpu(), wanted)
        assert torch.equal(stoch.sc_matmul(narrow.to(GPU), stoch.pack(other.to(GPU), HALVED)).cpu(), wanted)
        assert torch.equal(stoch.sc_matmul(narrow.to(GPU), stoch.pack(other.t().contiguous().t().to(GPU), HALVED)).cpu(), wanted)
    out = torch.full((6, 9), 7.0, device=GPU)
    assert stoch.sc_matmul(a.to(GPU), b.to(GPU), HALVED, out=out[:, 1:8]).data_ptr() == out[:, 1:8].data_ptr()
    assert torch.equal(out[:, 1:8].cpu(), want) and bool((out[:, ::8] == 7).all())
    heads = normal(3, 5, 24)
    batched = stoch.sc_matmul(heads.to(GPU), heads.to(GPU), granularity="per_head")
    assert torch.equal(batched.cpu(), stoch.sc_matmul(heads, heads, granularity="per_head"))


def test_no_rows() -> None:
    a, b = normal(0, 40).to(GPU), normal(7, 40).to(GPU)
    for other in (b, stoch.pack(b)):
        assert stoch.sc_matmul(a, other).shape == (0, 7)


def test_the_callers_stream() -> None:
    """Operands that a busy stream still writes, and a result that it reads at once; the host waits for nothing."""
    a, b = normal(4, 256).to(GPU), normal(8, 256, seed=2).to(GPU)
    packed = stoch.pack(b, HALVED)
    want = stoch.sc_matmul(a, packed).clone()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    for product in (lambda x: stoch.sc_matmul(x, packed), lambda x: stoch.sc_matmul(x, b, HALVED)):
        with torch.cuda.stream(stream):
            x = torch.full_like(a, float("nan"))
            torch.cuda._sleep(200_000_000)
            x.copy_(a)
            y = product(x)
            copy = y.clone()
            assert not stream.query()  # the host did not wait
        stream.synchronize()
        assert torch.equal(copy, want)
        stoch.synchronize()
    x = torch.full_like(a, float("nan"))
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        x.copy_(a)
    y = stoch.sc_matmul(x, packed, stream=stream)
    stream.synchronize()
    assert torch.equal(y, want)


def test_captured_in_a_graph() -> None:
    a, b = normal(4, 256).to(GPU), normal(8, 256, seed=2).to(GPU)
    packed = stoch.pack(b, HALVED)
    x = a.clone()
    stoch.sc_matmul(x, packed)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = stoch.sc_matmul(x, packed)
    for seed in (3, 4):
        other = normal(4, 256, seed=seed).to(GPU)
        x.copy_(other)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, stoch.sc_matmul(other, packed))


def test_not_finite() -> None:
    a, b = normal(3, 64).to(GPU), normal(5, 64, seed=2).to(GPU)
    packed = stoch.pack(b, HALVED)
    bad = a.clone()
    bad[1, 5] = float("inf")
    for other in (b, packed):
        options = {} if other is packed else {"halve": True, "chunk_d": 128}
        with pytest.raises(stoch.NotFinite):
            stoch.sc_matmul(bad, other, check_finite=True, **options)
        stoch.sc_matmul(bad, other, **options)
        with pytest.raises(stoch.NotFinite):
            stoch.synchronize()
        stoch.sc_matmul(bad, other, **options)
        torch.cuda.synchronize()
        with pytest.raises(stoch.NotFinite):
            stoch.sc_matmul(a, other, **options)
        stoch.sc_matmul(a, other, check_finite=True, **options)
    with pytest.raises(stoch.NotFinite):
        stoch.pack(bad)
    stoch.synchronize()


def test_refusals() -> None:
    a, b = normal(3, 64).to(GPU), normal(5, 64, seed=2).to(GPU)
    packed = stoch.pack(b)
    on_cpu = stoch.pack(b, device="cpu")
    assert on_cpu.device == "cpu" and stoch.pack(b.cpu(), device=GPU).device == GPU
    for left, right, words in (
        (a, b.cpu(), "b is on cpu, a on cuda:0"),
        (a.cpu(), b, "b is on cuda:0, a on cpu"),
        (a, on_cpu, "b is packed on cpu, a is on cuda:0"),
        (a.cpu(), packed, "b is packed on cuda:0, a is on cpu"),
        (a.double(), b, "a is float64: allowed"),
        (a, b.int(), "b is int32: allowed"),
        (a[:, :60], b, "do not fit"),
        (a[:, :60], packed, "60 columns"),
        (a[0], b, "1 dimensions"),
        (torch.nn.Parameter(a), b, "gradient"),
    ):
        with pytest.raises(stoch.InvalidInput, match=words):
            stoch.sc_matmul(left, right)
    for out, words in (
        (torch.empty(3, 5), "out is on cpu, a on cuda:0"),
        (torch.empty(3, 5, device=GPU, dtype=torch.float16), "out is float16"),
        (torch.empty(3, 4, device=GPU), "do not fit"),
    ):
        with pytest.raises(stoch.InvalidInput, match=words):
            stoch.sc_matmul(a, b, out=out)
    with pytest.raises(stoch.InvalidInput, match="cuda"):
        stoch.pack(b, device="cuda:99")
    assert torch.cuda.current_device() == 0
    assert torch.isfinite(stoch.sc_matmul(a, packed, check_finite=True)).all()


def test_other_libraries() -> None:
    a, b = normal(3, 64), normal(5, 64, seed=2)
    want = stoch.sc_matmul(a, b, HALVED).numpy()
    cupy = pytest.importorskip("cupy")
    left, right = cupy.asarray(a.numpy()), cupy.asarray(b.numpy())
    y = stoch.sc_matmul(left, right, HALVED)
    assert isinstance(y, cupy.ndarray) and np.array_equal(y.get(), want)
    assert np.array_equal(stoch.sc_matmul(left, stoch.pack(right, HALVED)).get(), want)
    assert np.array_equal(stoch.sc_matmul(left.T.copy().T, right, HALVED).get(), want)
    y = stoch.sc_matmul(left.astype("float16"), right, HALVED)
    assert np.array_equal(y.get(), stoch.sc_matmul(a.half().float(), b, HALVED).numpy())
    _, acc = stoch.sc_matmul(left, right, HALVED, counts=True)
    assert isinstance(acc, cupy.ndarray)


def test_ten_thousand_calls_leak_nothing() -> None:
    a, b = normal(2, 256).to(GPU), normal(64, 256, seed=2).to(GPU)
    packed = stoch.pack(b, HALVED)

    def some(count: int) -> None:
        for i in range(count):
            stoch.sc_matmul(a, packed)
            if i % 4 == 0:
                stoch.sc_matmul(a, b, HALVED)
            if i % 50 == 0:
                stoch.sc_matmul(a, stoch.pack(b, HALVED))
        stoch.synchronize()
        torch.cuda.synchronize()

    some(1000)
    gc.collect()
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    free, allocated = torch.cuda.mem_get_info()[0], torch.cuda.memory_allocated()
    some(10_000)
    gc.collect()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident < 4096  # KiB
    assert torch.cuda.memory_allocated() == allocated
    assert free - torch.cuda.mem_get_info()[0] < 1 << 20


@pytest.fixture(scope="module")
def both(demo: str):
    with stoch.load(demo, device="cpu") as on_cpu, stoch.load(demo, device=GPU) as on_gpu:
        yield on_cpu, on_gpu


def test_a_model_has_the_bits_of_the_cpu(both) -> None:
    on_cpu, on_gpu = both
    assert set(on_gpu.device_map.values()) == {GPU}
    ids = on_cpu.tokenize("Once upon a time, there was a little girl named Lily. She liked to play")
    assert np.array_equal(on_cpu.logits(ids), on_gpu.logits(ids))
    assert np.array_equal(on_cpu.hidden(ids, 2), on_gpu.hidden(ids, 2))
    assert on_cpu.logits_sha256(ids, new_tokens=8) == on_gpu.logits_sha256(ids, new_tokens=8)
    requests = [(ids[:3], ids[3:]), (ids[:1], ids[1:6])]
    assert on_cpu.loglikelihood(requests) == on_gpu.loglikelihood(requests)
    text = "Tim and Lily went to the park. They saw a big red ball. " * 9
    assert on_cpu.perplexity(text, ctx=64).nll == on_gpu.perplexity(text, ctx=64).nll
    for options in ({"max_tokens": 12}, {"max_tokens": 12, "temperature": 0.8, "seed": 3, "top_p": 0.9}):
        prompts = ["Tim was", "Lily had"]
        for one, other in zip(on_cpu.generate(prompts, **options), on_gpu.generate(prompts, **options)):
            assert (one.ids, one.logits_sha256) == (other.ids, other.logits_sha256)
    assert "".join(on_gpu.stream("The cat", max_tokens=5)) == on_cpu.generate("The cat", max_tokens=5).text


def test_sequences_by_hand(both) -> None:
    steps = []
    for model in both:
        engine = model.engine()
        sequence = engine.add(model.tokenize("Once upon a time"))
        logits = [engine.step([sequence])[0].copy()]
        sequence.append(int(logits[0].argmax()))
        twin = engine.fork(sequence)
        logits += [row.copy() for row in engine.step([sequence, twin])]
        steps.append(logits)
        engine.remove(sequence)
        engine.remove(twin)
    for one, other in zip(*steps):
        assert np.array_equal(one, other)


def test_commands(demo: str) -> None:
    rows = stoch.verify(demo, device=GPU, only=["product.halved"])
    assert rows and all(row["passed"] for row in rows)
    rows = stoch.bench(demo, device=GPU, precision=["sc"], prompt=[8], decode=4, repetitions=1)
    assert {row["device"] for row in rows} == {GPU}


def test_the_drop_in(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded products through scmp_kernels on the GPU: the bytes of stoch.sc_matmul, on either device."""
    from stoch import scmp

    monkeypatch.syspath_prepend(scmp.folder())
    monkeypatch.setenv("SCMP_KERNELS_SEMANTICS", "published")
    from scmp_kernels import sc_matmul

    tensors, metadata = read(shared / "goldens/sc_matmul_golden.safetensors")
    for case in json.loads(metadata["cases"]):
        arguments = dict(case)
        name = arguments.pop("case")
        monkeypatch.setenv("SC_OWEN_MODE", arguments.pop("scramble"))
        assert arguments.pop("scramble_masks") == 256
        a, b = (torch.from_numpy(tensors[f"{name}.{role}"].copy()) for role in "ab")
        ours = {"halve" if key == "halve_bipolar_stoc_len" else key: value for key, value in case.items() if key != "case"}
        y = sc_matmul(a.to(GPU), b.to(GPU), **arguments)
        assert y.is_cuda and torch.equal(y.cpu(), stoch.sc_matmul(a, b, **ours)), name
        weight = torch.nn.Parameter(b.to(GPU))
        assert torch.equal(sc_matmul(a.to(GPU), weight, **arguments), y), name


def test_fp16_loads_cublas(demo: str, both) -> None:
    ids = both[0].tokenize("Once upon a time, there was a little girl named Lily. She liked to play in the park.") * 2
    with stoch.load(demo, device=GPU, precision="fp16") as half, stoch.load(demo, device="cpu", precision="fp32") as exact:
        want, got = exact.logits(ids), half.logits(ids)
    assert np.abs(got - want).max() < 0.02 * np.abs(want).max() and not np.array_equal(got, want)
