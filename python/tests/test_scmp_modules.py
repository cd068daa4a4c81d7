# SPDX-License-Identifier: Apache-2.0
"""The other modules of the drop-in: against the engine, against each other, against torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import stoch  # noqa: E402
from stoch import scmp  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def drop_in():
    sys.path.insert(0, scmp.folder())
    yield
    sys.path.remove(scmp.folder())


@pytest.mark.parametrize("mode", ["bipolar", "unipolar"])
@pytest.mark.parametrize("method", ["k_shortcut", "cycle_by_cycle"])
def test_enable_is_the_engine(mode: str, method: str) -> None:
    from scmp_kernels.sc.sc_enable import sc_matmul_enable

    torch.manual_seed(5)
    a, b = torch.randn(6, 40), torch.randn(5, 40)
    ranges = [float(edge) for x in (a, b) for edge in (x.max(), x.min())]
    y = sc_matmul_enable(a, b, *ranges, mode=mode, sc_prec=6, method=method)
    want = stoch.sc_matmul(a, b, mode=mode, sc_prec=6, granularity="per_tensor")
    assert (y - want).abs().max() <= 1e-6 * want.abs().max()
    if mode == "bipolar":
        assert torch.equal(y, want)


@pytest.mark.parametrize("mode", ["bipolar", "unipolar"])
def test_explicit_ranges(mode: str) -> None:
    """A range given to an entry point is that of the oracle, which takes it as it is; values outside are clamped."""
    from scmp_kernels.sc import kernels
    from scmp_kernels.sc.sc_enable import sc_matmul_enable

    torch.manual_seed(6)
    a, b = torch.randn(4, 30), torch.randn(3, 30)
    for ranges in ((5.0, -4.0, 3.0, -3.5), (1.0, -0.5, 0.75, -1.25)):
        y = kernels._sc_matmul_per_tensor(a, b, *ranges, mode=mode, sc_prec=7)
        want = sc_matmul_enable(a, b, *ranges, mode=mode, sc_prec=7)
        assert (y - want).abs().max() <= 2e-6 * want.abs().max()
    heads = torch.randn(2, 4, 8)
    tops = torch.tensor([9.0, 5.0])
    y = kernels._sc_matmul_per_head_bipolar(heads, heads, tops, -tops, tops, -tops, 8, None)
    for i in range(2):
        assert torch.equal(y[i], kernels._sc_matmul_per_tensor(heads[i], heads[i], float(tops[i]), -float(tops[i])))


@pytest.mark.parametrize("settings", [{}, {"chunk_d": 16}, {"stoc_len": 64}, {"stoc_len": 100, "rng_levels": 128}])
@pytest.mark.parametrize("scramble", ["bitrev", "random", "off"])
def test_tables_are_those_of_the_engine(monkeypatch: pytest.MonkeyPatch, settings: dict, scramble: str) -> None:
    """A config that says the default by channel takes the tables; the engine multiplies the same without it."""
    from scmp_kernels import sc_matmul
    from scmp_kernels.sc import kernels
    from scmp_kernels.sc.config_helpers import make_sobol_simple_config

    monkeypatch.setenv("SC_OWEN_MODE", scramble)
    torch.manual_seed(7)
    a, b = torch.randn(5, 40), torch.randn(4, 40)
    config = make_sobol_simple_config(40, 40)
    assert torch.equal(sc_matmul(a, b, config=config, **settings), sc_matmul(a, b, **settings))
    config["sng"]["q"][3]["scramble"] = list(range(8))  # a permutation that changes nothing, of one channel
    assert kernels._source_of(config, 8) is None
    assert torch.equal(sc_matmul(a, b, config=config, **settings), sc_matmul(a, b, **settings))


def test_tables_of_other_granularities() -> None:
    from scmp_kernels import sc_matmul
    from scmp_kernels.sc.config_helpers import make_sobol_simple_config

    torch.manual_seed(8)
    config = make_sobol_simple_config(24, 24)
    config["sng"]["k"][0]["scramble"] = list(range(8))
    a, b = torch.randn(3, 4, 24), torch.randn(3, 5, 24)
    for granularity in ("per_row", "per_head", "per_tensor"):
        assert torch.equal(sc_matmul(a, b, granularity, config=config), sc_matmul(a, b, granularity)), granularity
    y, want = (sc_matmul(a[0], b[0], "per_tensor", mode="unipolar", config=c) for c in (config, None))
    assert (y - want).abs().max() <= 2e-6 * want.abs().max()
    with pytest.raises(ValueError, match="24 channels"):
        sc_matmul(torch.randn(2, 30), torch.randn(2, 30), config=config)


def test_configs() -> None:
    """Every helper makes a config that multiplies, and those of shift registers use all of their states."""
    from scmp_kernels import sc_matmul
    from scmp_kernels.sc import config_helpers as helpers
    from scmp_kernels.sc.lfsr_taps import get_taps
    from scmp_kernels.sc.rng import LFSR

    for bits in (4, 6, 8):
        walked = []
        for rest in range(1 << (bits - 1)):
            taps = [bits - 1, *(bit for bit in reversed(range(bits - 1)) if rest >> bit & 1)]
            states = LFSR(1, bits, taps).simulate((1 << bits) - 1).tolist()
            if sorted(states) == list(range(1, 1 << bits)):
                walked.append(taps)
        assert sorted(get_taps(bits)) == sorted(walked) and walked
    torch.manual_seed(9)
    a, b = torch.randn(4, 16), torch.randn(4, 16)
    exact = a @ b.T
    taps = helpers.get_default_taps(8)
    made = [
        helpers.make_default_config(16, 16, 8),
        helpers.make_independent_config(16, 16, 8, taps, taps, 3, 77),
        helpers.make_per_element_scramble_config(16, 16, 8),
        helpers.make_fully_independent_config(16, 16, 8),
        helpers.make_separated_random_config(16, 16, 8),
        helpers.make_random_config(16, 16, 8),
        helpers.make_single_rng_reverse_config(16, 16, 8),
        helpers.make_sobol_antithetic_config(16, 16),
        helpers.make_sobol_altseed_config(16, 16),
        helpers.make_sobol_dse_config(16, 16, 8),
        helpers.make_sobol_custom_seed_config(16, 16, 8, use_scrambling=True),
    ]
    for config in made:
        y = sc_matmul(a, b, config=config)
        assert (y - exact).abs().max() < 0.6 * exact.abs().max(), config["rng_pool"]


def test_saved_configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scmp_kernels.sc import config_helpers as helpers

    monkeypatch.setattr(helpers, "CONFIG_DIR", tmp_path)
    monkeypatch.setattr(helpers, "CONFIG_REGISTRY_FILE", tmp_path / "registry.json")
    config = helpers.make_sobol_simple_config(2, 2)
    assert helpers.load_best_config() == (None, None)
    helpers.save_config(config, tmp_path / "one.json", error=0.5)
    assert helpers.load_config(tmp_path / "one.json")[0] == config
    helpers.save_best_config(config, 0.25)
    other = helpers.make_sobol_antithetic_config(2, 2)
    helpers.save_best_config(other, 0.5)
    assert [entry["error"] for entry in helpers.list_saved_configs()] == [0.25]


@pytest.mark.parametrize("bipolar", [True, False])
def test_quantizers_and_tables_multiply(bipolar: bool) -> None:
    """The published pieces, put together by hand, are the product."""
    from scmp_kernels.quant import fused_quantize_bipolar_perrow, fused_quantize_unipolar
    from scmp_kernels.sc import kernels
    from scmp_kernels.sc.sng import RNGPool

    torch.manual_seed(10)
    a, b = torch.randn(4, 20), torch.randn(3, 20)
    pool = RNGPool([{"type": "sobol", "seed_type": side} for side in "qk"], 8)
    rng = [torch.from_numpy(pool.get_sequence(i, 256)).expand(20, 256) for i in (0, 1)]
    cum, k = kernels.build_enable_tables(*rng, 8, 128, 128)
    assert cum.dtype == k.dtype == torch.int16 and cum.shape == (20, 129, 256)
    assert torch.equal(k, kernels.build_k_table_only(rng[0], 8, 128, 128))
    if bipolar:
        (ba, sa, la), (bb, sb, lb) = (fused_quantize_bipolar_perrow(x, 8, 128) for x in (a, b))
        assert ba.dtype == torch.int16 and sa.dtype == torch.int8 and la.dtype == torch.float32
        arguments = (ba, bb, sa, sb, 4, 3, 20, 128, 127.0 * 127.0, True)
        y = kernels.enable_matmul_triton(cum, k, *arguments)
        prepared = kernels._prepare_rng_prefix(rng[1], 8, 128, 128)
        assert torch.equal(y, kernels.enable_matmul_compact(prepared, k, *arguments))
        assert torch.equal(y * (la[:, None] * lb[None]), stoch.sc_matmul(a, b, halve=True))
    else:
        ba, scale, zero, sums = fused_quantize_unipolar(a, float(a.max()), float(a.min()), 8, compute_sum=True)
        assert ba.dtype == torch.int32 and isinstance(scale, float) and isinstance(zero, float)
        codes = ((a / scale) + zero).round()
        assert sums is not None and torch.equal(sums, codes.clamp(0, 255).sum(dim=1))


@pytest.mark.parametrize(
    "shape, options",
    [
        ((6, 8, 1, 1), {}),
        ((6, 8, 3, 3), {"padding": 1, "stride": 2}),
        ((6, 8, 3, 2), {"dilation": (2, 1)}),
        ((8, 1, 3, 3), {"groups": 8, "padding": 1}),
        ((6, 4, 3, 3), {"groups": 2}),
    ],
)
def test_convolutions(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], options: dict) -> None:
    import scmp_kernels.sc.conv as conv

    torch.manual_seed(11)
    x, weight, bias = torch.randn(2, 8, 7, 9), torch.randn(shape), torch.randn(shape[0])
    exact = torch.nn.functional.conv2d(x, weight, bias, **options)
    y = conv.sc_conv2d(x, weight, bias, **options)
    assert y.shape == exact.shape and (y - exact).abs().max() < 0.2 * exact.abs().max()
    rows = conv.conv2d_lowered_rows(x, weight, **options)
    assert (rows is None) == (options.get("groups", 1) > 1)
    if rows is not None:
        want = stoch.sc_matmul(rows, weight.flatten(1)).reshape(2, *exact.shape[2:], -1).permute(0, 3, 1, 2)
        assert torch.equal(y, want + bias[None, :, None, None])
    monkeypatch.setattr(conv, "sc_matmul", lambda a, b, **_: a @ b.transpose(-1, -2))
    assert torch.allclose(conv.sc_conv2d(x, weight, bias, **options), exact, atol=1e-4)
    with pytest.raises(ValueError, match="groups"):
        conv.sc_conv2d(x, weight, groups=3)


def test_mixed_lengths_of_rows() -> None:
    from scmp_kernels import sc_conv2d
    from scmp_kernels.mp import AdaptiveMPConfig, MPConfig, classify_rows_by_metric

    torch.manual_seed(12)
    x, weight = torch.randn(1, 16, 4, 4), torch.randn(6, 16, 1, 1)
    levels = [128, 32, 0]
    config = MPConfig(levels, [0.25, 0.5, 0.25])
    y = sc_conv2d(x, weight, mp_config=config, halve_bipolar_stoc_len=True)
    rows = x.permute(0, 2, 3, 1).reshape(16, 16)
    assigned = classify_rows_by_metric(rows.abs().amax(dim=1), levels, config.level_fractions).level_row_indices
    assert [len(assigned[level]) for level in levels] == [4, 8, 4]
    got = y.permute(0, 2, 3, 1).reshape(16, 6)
    for level in levels:
        want = torch.zeros(16, 6)
        if level:
            uniform = sc_conv2d(x, weight, stoc_len=level, halve_bipolar_stoc_len=True)
            want = uniform.permute(0, 2, 3, 1).reshape(16, 6)
        assert torch.equal(got[assigned[level]], want[assigned[level]])
    with pytest.raises(TypeError, match="MPConfig"):
        sc_conv2d(x, weight, mp_config="halves")
    with pytest.raises(AssertionError, match="descending"):
        AdaptiveMPConfig([64, 128])


def test_trace_of_rungs(tmp_path: Path) -> None:
    """A call with rungs is recorded by length, so that its cycles are those that run."""
    from scmp_kernels import sc_matmul, trace

    table = torch.tensor([[0, 1, 1], [0, 0, 1]])
    trace.enable(str(tmp_path / "t.json"))
    try:
        sc_matmul(
            torch.randn(2, 300), torch.randn(5, 300), chunk_d=128, stoc_len=128, halve_bipolar_stoc_len=True,
            rung_table=table, level_lens=[32, 96],
        )
        trace.flush()
    finally:
        trace.disable()
        trace.reset()
    groups = json.loads((tmp_path / "t.json").read_text())["groups"]
    assert sum(group["macs"] for group in groups) == 2 * 300 * 5
    assert sum(group["macs"] * group["stoc_len"] for group in groups) == 5 * (32 * (256 + 128) + 96 * (128 + 2 * 44))


def test_trace_of_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scmp_kernels import sc_matmul, trace

    monkeypatch.setattr(trace, "_SPILL", 2)
    path = tmp_path / "calls.jsonl"
    trace.enable(str(path), mode="trace")
    try:
        for _ in range(3):
            sc_matmul(torch.randn(2, 8), torch.randn(3, 8))
        with pytest.raises(RuntimeError, match="not written"):
            trace.enable(str(path))
        assert trace.flush(header_extra={"model": "m"}) == str(path)
    finally:
        trace.disable()
        trace.reset()
    header, *calls, trailer = [json.loads(line) for line in path.read_text().splitlines()]
    assert header["schema"] == "scmp-trace-v1" and header["header"]["n_records"] is None
    assert [call["seq"] for call in calls] == [0, 1, 2] and calls[0]["macs"] == 48
    assert trailer == {"trailer": True, "n_records": 3, "model": "m"}


class Noisy(torch.nn.Module):
    """A block whose error is smallest, 0, at boundaries of its own, and whose cost falls with them."""

    def __init__(self, cfg, best: list[float], index: int) -> None:
        super().__init__()
        self.cfg, self.best, self.index = cfg, torch.tensor(best), index
        self.exact = torch.nn.Linear(4, 4)
        self.noise = torch.randn(4, generator=torch.Generator().manual_seed(index))

    def forward(self, x):
        from scmp_kernels.mp import AutoMPBudgetLogger

        boundaries = self.cfg.get_boundaries("qk")  # of the block that a hook has named
        AutoMPBudgetLogger.record(self.index, "qk", 10.0, 10.0 * (1 - float(boundaries.mean())))
        return self.exact(x) + float((boundaries - self.best).square().sum()) * self.noise * x.square()


def calibrated(**options: object):
    from scmp_kernels.mp import FreeBoundaryMPConfig, auto_calibrate_mp

    torch.manual_seed(3)
    cfg = FreeBoundaryMPConfig([128, 64, 32])
    blocks = torch.nn.ModuleList([Noisy(cfg, [0.8, 0.3], 0), Noisy(cfg, [0.6, 0.5], 1)])
    exact = [block.exact for block in blocks]
    model = torch.nn.Sequential(*blocks)
    report = auto_calibrate_mp(
        model_fp=None, model_sc=model, blocks_fp=exact, blocks_sc_container=blocks, calib_loader=[torch.randn(6, 4)] * 2,
        device="cpu", n_calib=10, cfg=cfg, ops_per_block=["qk"], fit_compensation=False, install_compensation=False,
        n_candidates=41, n_outer_per_op=4, log_fn=lambda _: None, **options,
    )
    return cfg, report


def test_auto_calibration_finds_the_boundaries() -> None:
    for objective in ("raw_mse", "comp_residual"):
        cfg, report = calibrated(search_objective=objective)
        for index, best in ((0, [0.8, 0.3]), (1, [0.6, 0.5])):
            assert (cfg.get_boundaries("qk", index) - torch.tensor(best)).abs().max() < 0.03, objective
            assert report[index]["raw_rmse_after"] < 0.1 * report[index]["rmse_before"]
    assert report[0]["boundaries_per_op"]["qk"]["boundaries"] == cfg.get_boundaries("qk", 0).tolist()


def test_auto_calibration_keeps_its_budget() -> None:
    cfg, report = calibrated(budget_ratio=0.3, search_objective="raw_mse")
    costs = [row["block_compute_actual"] / row["block_compute_baseline"] for row in report]
    assert sum(costs) / 2 <= 0.3 + 1e-6 and min(costs) > 0.2
    with pytest.raises(AssertionError, match="search_objective"):
        calibrated(search_objective="mse")


def test_ridge_fitter() -> None:
    from scmp_kernels.mp import RidgeFitter

    torch.manual_seed(2)
    x, w = torch.randn(50, 3, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64)
    noise = torch.randn(50, 2, dtype=torch.float64)
    augmented = torch.cat([x, torch.ones(50, 1, dtype=torch.float64)], dim=1)
    best = torch.linalg.lstsq(augmented, noise).solution
    want = float((noise - augmented @ best).square().sum())
    assert abs(RidgeFitter(x, ridge=1e-12).residual_norm_sq(x @ w + 5 + noise) - want) < 1e-6
    assert RidgeFitter(x, ridge=1e6).residual_norm_sq(x @ w) > 1
