# SPDX-License-Identifier: Apache-2.0
"""sc_matmul and pack: arrays of every kind, and refusals."""

from __future__ import annotations

import gc
import resource
import sys

import numpy as np
import pytest

import stoch

RNG = np.random.default_rng(8)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def test_strides_do_not_matter() -> None:
    a, b = floats(6, 40), floats(7, 40)
    want = stoch.sc_matmul(a, b, halve=True, chunk_d=16)
    wide = np.zeros((12, 120), np.float32)
    wide[::2, ::3] = a
    views = [a.T.copy().T, wide[::2, ::3], np.asfortranarray(a), a[::-1].copy()[::-1], a[:, ::-1].copy()[:, ::-1]]
    for view in views:
        assert np.array_equal(stoch.sc_matmul(view, b, halve=True, chunk_d=16), want)
    assert np.array_equal(stoch.sc_matmul(a, np.asfortranarray(b), halve=True, chunk_d=16), want)
    broadcast = np.broadcast_to(a[:1], (4, 40))
    assert np.array_equal(stoch.sc_matmul(broadcast, b), np.repeat(stoch.sc_matmul(a[:1], b), 4, axis=0))


def test_read_only_operands_and_plain_buffers() -> None:
    a, b = floats(3, 8), floats(2, 8)
    want = stoch.sc_matmul(a, b)
    a.setflags(write=False)
    assert np.array_equal(stoch.sc_matmul(a, b), want)
    assert np.array_equal(stoch.sc_matmul(memoryview(a), memoryview(b)), want)


def test_half_operands_are_widened_exactly() -> None:
    a, b = floats(5, 33).astype(np.float16), floats(4, 33).astype(np.float16)
    a[0, :3] = [6e-8, -6e-8, 65504]  # subnormal and largest
    want = stoch.sc_matmul(a.astype(np.float32), b.astype(np.float32))
    assert np.array_equal(stoch.sc_matmul(a, b), want)
    assert np.array_equal(stoch.sc_matmul(a[:, ::-1], b[:, ::-1]), stoch.sc_matmul(a[:, ::-1].astype("f4"), b[:, ::-1].astype("f4")))


def test_batches() -> None:
    a, b = floats(3, 5, 24), floats(3, 6, 24)
    y, acc = stoch.sc_matmul(a, b, stoc_len=64, counts=True)
    assert y.shape == (3, 5, 6) and acc.shape == (3, 5, 1, 6)
    for i in range(3):
        one, sums = stoch.sc_matmul(a[i], b[i], stoc_len=64, counts=True)
        assert np.array_equal(y[i], one) and np.array_equal(acc[i], sums)
    heads = stoch.sc_matmul(a, b, granularity="per_head", halve=True)
    assert np.array_equal(heads[1], stoch.sc_matmul(a[1], b[1], granularity="per_tensor", halve=True))


def test_out_is_written_where_it_lies() -> None:
    a, b = floats(4, 16), floats(3, 16)
    want = stoch.sc_matmul(a, b)
    backing = np.full((8, 9), 7, np.float32)
    out = backing[::2, ::3]
    assert stoch.sc_matmul(a, b, out=out) is out
    assert np.array_equal(out, want)
    assert (backing[1::2] == 7).all() and (backing[:, 1] == 7).all()


@pytest.mark.parametrize("settings", ["", "halve=1,chunk_d=128", "mode=unipolar", "gate=xnor", "granularity=per_tensor", "group_b=3"])
def test_packed_is_the_same_product(settings: str) -> None:
    config = stoch.ScConfig.parse(settings)
    a, b = floats(5, 300), floats(70, 300)
    packed = stoch.pack(b, config)
    assert packed.shape == (70, 300) and packed.device == "cpu" and packed.config == config
    want = stoch.sc_matmul(a, b, config)
    assert np.array_equal(stoch.sc_matmul(a, packed), want)
    assert np.array_equal(stoch.sc_matmul(np.asfortranarray(a), packed, config), want)
    b[:] = 0  # nothing of it is kept
    assert np.array_equal(stoch.sc_matmul(a, packed), want)
    with pytest.raises(stoch.InvalidInput, match="was packed for"):
        stoch.sc_matmul(a, packed, stoc_len=17)


A, B = np.ones((2, 4), np.float32), np.ones((3, 4), np.float32)
REFUSED = [
    (A.astype(np.float64), B, {}, "a is float64: allowed is float32, float16, bfloat16"),
    (A, B.astype(np.int32), {}, "b is int32: allowed"),
    (A.astype(">f4"), B, {}, "a is >f4: allowed"),
    (A, B[:, :3], {}, r"a \[2, 4\] and b \[3, 3\] do not fit"),
    (A[None], B, {}, "b has 2 dimensions, a 3"),
    (A[0], B, {}, "a has 1 dimensions"),
    ([[1.0]], B, {}, "a is a list"),
    (A, B, {"stoc_len": 257}, "stoc_len = 257: allowed is"),
    (A, B, {"stoc_length": 1}, "SC parameter stoc_length: did you mean stoc_len"),
    (A, B, {"stoc_len": 2.5}, "stoc_len = 2.5"),
    (A, B, {"granularity": "per_head"}, "granularity"),
    (A, B, {"out": np.zeros((2, 2), np.float32)}, "do not fit"),
    (A, B, {"out": np.zeros((2, 3), np.float16)}, "out is float16: allowed is float32"),
    (A, B, {"out": A}, "do not fit|overlap"),
    (A, B, {"config": "stoc_len=3"}, "config is a str"),
    (A, B, {"lengths": [1, 2, 3]}, "lengths"),
    (A, B, {"lengths": [300, 2]}, "allowed is 0..256"),
    (A, B, {"lengths": [1, 2], "mode": "unipolar"}, "mode = unipolar"),
    (A, B, {"rungs": [0, 1]}, "rungs and level_lens"),
    (A, B, {"rungs": [0, 2], "level_lens": [8, 16]}, "level_lens has 0..1"),
    (A, B, {"protected": [4], "protected_len": 8}, "protected lists channel 4: a has 0..3"),
    (A, B, {"smooth": [1, 1, 0, 1]}, r"smooth\[2\] = 0"),
]


@pytest.mark.parametrize(("a", "b", "arguments", "message"), REFUSED, ids=[row[3] for row in REFUSED])
def test_refusals(a: object, b: object, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(stoch.InvalidInput, match=message) as caught:
        stoch.sc_matmul(a, b, **arguments)
    assert isinstance(caught.value, ValueError)


def test_read_only_out_is_refused() -> None:
    out = np.zeros((2, 3), np.float32)
    out.setflags(write=False)
    with pytest.raises(stoch.InvalidInput, match="out"):
        stoch.sc_matmul(A, B, out=out)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_not_finite_raises_at_once_on_the_cpu(bad: float) -> None:
    a = floats(3, 8)
    a[1, 5] = bad
    for left, right in ((a, B[:, :1] * np.ones((1, 8), np.float32)), (floats(2, 8), a)):
        with pytest.raises(stoch.NotFinite) as caught:
            stoch.sc_matmul(left, right)
        assert isinstance(caught.value, stoch.InvalidInput)
    with pytest.raises(stoch.NotFinite):
        stoch.pack(a)
    stoch.synchronize()
    assert np.isfinite(stoch.sc_matmul(floats(3, 8), floats(2, 8))).all()


def test_many_calls_leak_nothing() -> None:
    a, b = floats(2, 64), floats(3, 64)

    def some(count: int) -> None:
        for _ in range(count):
            stoch.sc_matmul(a, b, halve=True)
            stoch.sc_matmul(a, stoch.pack(b))

    some(500)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    some(5000)
    gc.collect()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096  # KiB


class Exporter:
    """Says of an array's memory what a test wants it to say."""

    def __init__(self, array: np.ndarray, device: tuple[int, int], capsule: object = None) -> None:
        self.array, self.device, self.capsule = array, device, capsule
        self.shape, self.dtype = array.shape, array.dtype

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, stream: int | None = None) -> object:
        if isinstance(self.capsule, Exception):
            raise self.capsule
        return self.array.__dlpack__() if self.capsule is None else self.capsule


CPU, CUDA_1, METAL = (1, 0), (2, 1), (8, 0)


def test_exporters_of_any_library() -> None:
    a = floats(3, 8)
    strided = a[:, ::2]
    want = stoch.sc_matmul(strided, strided)
    assert np.array_equal(stoch.sc_matmul(Exporter(strided, CPU), strided), want)
    # Its capsule is taken, not copied, and given back once.
    before = sys.getrefcount(strided)
    stoch.sc_matmul(strided, Exporter(strided, CPU))
    assert sys.getrefcount(strided) == before


@pytest.mark.parametrize(
    ("b", "message"),
    [
        (Exporter(B, CUDA_1), "b: its tensor is on another device than it says"),
        (Exporter(B, METAL), "b is on a device of DLPack type 8: allowed is cpu or cuda"),
        (Exporter(B, CPU, "no capsule"), "b: __dlpack__ gave no tensor"),
        (Exporter(B, CPU, BufferError("not now")), "b: not now"),
        (Exporter(B.astype(np.float64), CPU), "b is float64: allowed"),
        (Exporter(B.astype(np.complex64), CPU), "b is complex64: allowed"),
        (np.zeros((3, 4), [("tag", "u1"), ("value", "f4")])["value"], "b has a stride of|not aligned"),
        (np.frombuffer(bytearray(49), np.uint8)[1:].view(np.float32).reshape(3, 4), "b is not aligned"),
    ],
    ids=["device", "metal", "text", "raises", "float64", "complex", "stride", "alignment"],
)
def test_exporters_that_are_refused(b: object, message: str) -> None:
    with pytest.raises(stoch.InvalidInput, match=message):
        stoch.sc_matmul(A, b)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": [[1, 2], [3]]}, "lengths is a ragged list"),
        ({"stoc_len": [1, [2]]}, "stoc_len = "),
        ({"stoc_len": {}}, "stoc_len = "),
        ({"lengths": [16, 16], "out": np.zeros((2, 3))}, "out is float64"),
        ({"lengths": [16, 16], "out": np.zeros((1, 3), np.float32)}, "out .1, 3.: expected .2, 3."),
        ({"lengths": [16, 16], "out": np.broadcast_to(np.float32(0), (2, 3))}, "out: .*read-only"),
    ],
)
def test_options_that_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(stoch.InvalidInput, match=message):
        stoch.sc_matmul(A, B, **options)


def test_a_mask_is_not_forgotten() -> None:
    masked = np.ma.array(A, mask=A > 0)
    for call in (lambda: stoch.sc_matmul(masked, B), lambda: stoch.sc_matmul(A, np.ma.array(B)), lambda: stoch.pack(masked)):
        with pytest.raises(stoch.InvalidInput, match="masked array"):
            call()


def test_arrays_of_jax() -> None:
    jax = pytest.importorskip("jax")
    if jax.default_backend() == "gpu":  # arrays of jax cannot be written to, and a copy by way of the host is refused
        with pytest.raises(stoch.InvalidInput, match="give out= of torch or cupy"):
            stoch.sc_matmul(jax.numpy.asarray(A), jax.numpy.asarray(B))
    cpu = jax.devices("cpu")[0]
    a, b = jax.device_put(A, cpu), jax.device_put(B, cpu)
    for options in ({}, {"lengths": [16, 64]}, {"smooth": [1, 2, 1, 0.5]}, {"protected": [3], "protected_len": 128},
                    {"lengths": [16, 64], "counts": True}):
        ours, want = (stoch.sc_matmul(*operands, halve=True, **options) for operands in ((a, b), (A, B)))
        for one, other in zip(ours if isinstance(ours, tuple) else [ours], want if isinstance(want, tuple) else [want]):
            assert isinstance(one, jax.Array) and np.array_equal(np.asarray(one), other), options
    assert np.array_equal(np.asarray(stoch.sc_matmul(a, stoch.pack(b))), stoch.sc_matmul(A, B))
    with pytest.raises(stoch.InvalidInput, match="out"):
        stoch.sc_matmul(a, b, out=jax.device_put(np.zeros((2, 3), np.float32), cpu))


def test_lengths_on_grids_of_their_own() -> None:
    a, b = (np.random.default_rng(seed).normal(size=(2, 70)).astype(np.float32) for seed in (1, 2))
    mixed = stoch.sc_matmul(a, b, halve=True, lengths=[24, 100], rng_grid="pow2")
    for row, (length, grid) in enumerate([(24, 16), (100, 64)]):
        alone = stoch.sc_matmul(a[row : row + 1], b, halve=True, stoc_len=length, rng_levels=grid)
        assert np.array_equal(mixed[row : row + 1], alone)
    assert not np.array_equal(mixed, stoch.sc_matmul(a, b, halve=True, lengths=[24, 100]))


def test_packing_refuses_what_products_refuse() -> None:
    for bad, message in (
        (B.astype(np.float64), "b is float64"),
        (B[0], "b has 1 dimensions"),
        (B[None], "b has 3 dimensions"),
        (B[:0], "b is empty"),
    ):
        with pytest.raises(stoch.InvalidInput, match=message):
            stoch.pack(bad)
    packed = stoch.pack(B)
    for bad, message in ((A[:, :3], "a has 3 columns, the packed b has 4"), (A[None], "a has 3 dimensions")):
        with pytest.raises(stoch.InvalidInput, match=message):
            stoch.sc_matmul(bad, packed)
    with pytest.raises(stoch.InvalidInput, match="device = tpu: allowed is cpu or cuda:N"):
        stoch.pack(B, device="tpu")
    with pytest.raises(stoch.InvalidInput, match="cuda"):
        stoch.pack(B, device="cuda:4096")


def test_a_matrix_without_rows() -> None:
    a, b = np.ones((2, 8), np.float32), np.ones((0, 8), np.float32)
    assert stoch.sc_matmul(a, b).shape == (2, 0)
    assert stoch.sc_matmul(b, a).shape == (0, 2)


def test_counts_of_ones_own() -> None:
    exact = np.outer(np.arange(8), np.arange(8))
    config = stoch.ScConfig(sc_prec=4, gate="counts", counts=exact, stoc_len=49)
    a = np.float32([[7, -7, 3]])
    assert stoch.sc_matmul(a, a, config).tolist() == [[107.0]]
    assert stoch.ScConfig.parse(config.describe()) == config
    assert len(config.counts) == 16
    other = config.replace(counts=exact[None].repeat(2, axis=0))
    assert other.counts != config.counts and np.array_equal(stoch.sc_matmul(a, a, other), stoch.sc_matmul(a, a, config))
    with pytest.raises(stoch.InvalidInput, match="is \\[masks, 8, 8\\] or \\[masks, 16, 16\\]"):
        stoch.ScConfig(sc_prec=4, gate="counts", counts=np.zeros((4, 4), np.int8), stoc_len=9).resolve()
    with pytest.raises(stoch.InvalidInput, match="counts has entries up to 40000"):
        config.replace(counts=np.full((8, 8), 40000))
    assert stoch.ScConfig(source="lfsr").source_seed_b is None


@pytest.mark.parametrize("text", ["gate=and,stoc_len=128", "gate=xnor,stoc_len=128", "halve=1,stoc_len=96", "source=lfsr,sc_prec=6,mode=unipolar,stoc_len=48"])
def test_streams_have_the_counts_of_products(text: str) -> None:
    config = stoch.ScConfig.parse(text)
    levels = 2 ** (config.sc_prec - 1) - 1 if config.mode == "bipolar" else 2**config.sc_prec - 1
    xnor, enabled = config.gate == "xnor", config.gate == "enabled"
    # Codes that are the numbers: a scope with its largest level in it, here dimension 0; dimension d has mask d.
    a = np.arange(7, dtype=np.float32) * 4 + 1
    a[0] = levels
    b = a[::-1].copy()
    b[0] = levels
    if config.mode == "unipolar":
        a[-1] = b[-1] = 0
    _, acc = stoch.sc_matmul(a[None], b[None], config, counts=True)
    total = 0
    for d in range(len(a)):
        bits, other = stoch.streams(config, int(a[d]), "a", d), stoch.streams(config, int(b[d]), "b", d)
        assert bits.shape == (config.resolve().stoc_len,) and bits.dtype == np.uint8
        if enabled:
            other = other[np.cumsum(bits) - bits]
        total += 2 * int((bits == other).sum()) - len(bits) if xnor else int((bits & other).sum())
    assert acc.item() == total


def test_streams_refuse_what_has_none() -> None:
    for arguments, words in [
        (("arith=int8", 1, "a", 0), "arith = sc"),
        (("", 128, "a", 0), "level = 128: allowed is -127..127"),
        (("mode=unipolar", -1, "a", 0), "allowed is 0..255"),
        (("", 1, "c", 0), "'a' or 'b'"),
        (("scramble_masks=16,stoc_len=64", 1, "b", 16), "mask = 16: allowed is 0..15"),
    ]:
        with pytest.raises(stoch.InvalidInput, match=words.replace("(", r"\(")):
            stoch.streams(stoch.ScConfig.parse(arguments[0]), *arguments[1:])
