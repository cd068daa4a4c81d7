# SPDX-License-Identifier: Apache-2.0
"""Boundaries of a FreeBoundaryMPConfig by search: forward passes only, block after block.

For one operator the boundaries are moved in turn over a grid between their neighbours; what counts is the error of the
block that a ridge regression on the block's input leaves, or, with a budget, first that the cost is within it.
auto_calibrate_mp installs the regression with `qwt_sc.compensation`, which is not part of this package, or does
without it (fit_compensation=False).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch

from ._logs import AutoMPBudgetLogger
from .config import FreeBoundaryMPConfig, set_current_block_idx

__all__ = ["RidgeFitter", "auto_calibrate_mp", "oracle_search_block", "oracle_search_op"]

Tensor: TypeAlias = torch.Tensor
Log: TypeAlias = Callable[[str], None]

_CLOSE = 1e-9


def _silent(_: str) -> None: ...


class RidgeFitter:
    """A ridge regression on X [n, d] and a constant, factorized once; the constant is not shrunk."""

    def __init__(self, X: Tensor, ridge: float = 1e-2) -> None:
        self.X_aug = torch.cat([X, X.new_ones(X.shape[0], 1)], dim=1)
        shrink = torch.full((X.shape[1] + 1,), float(ridge), dtype=X.dtype, device=X.device)
        shrink[-1] = 0
        self.G_inv: Tensor = torch.linalg.inv(self.X_aug.T @ self.X_aug + torch.diag(shrink))

    def residual_norm_sq(self, R: Tensor) -> float:
        """The square of the norm of what the regression leaves of R [n, outputs]."""
        left = R - self.X_aug @ (self.G_inv @ (self.X_aug.T @ R))
        return float(left.square().sum())


@dataclass(frozen=True)
class _Trial:
    """What a choice of boundaries gives."""

    score: float
    cost: float | None = None  # None: not measured
    budget: float | None = None

    @property
    def over(self) -> float:
        if self.cost is None or self.budget is None or self.cost <= self.budget + _CLOSE:
            return 0.0
        return self.cost - self.budget

    def beats(self, other: _Trial) -> bool:
        """Within the budget before beyond it; beyond it the nearer; then the smaller error, then the smaller cost."""
        if (self.over == 0) != (other.over == 0):
            return self.over == 0
        if abs(self.over - other.over) > _CLOSE:
            return self.over < other.over
        if abs(self.score - other.score) > _CLOSE:
            return self.score < other.score
        cheaper = self.cost is not None and other.cost is not None and self.cost < other.cost - _CLOSE
        return cheaper and self.over == 0


def _grid(boundaries: Tensor, j: int, count: int, eps: float) -> list[float]:
    """Where boundary j may be: strictly between its neighbours, which descend, or 0 and 1."""
    high = float(boundaries[j - 1]) - eps if j > 0 else 1.0 - eps
    low = float(boundaries[j + 1]) + eps if j + 1 < boundaries.numel() else eps
    places: list[float] = torch.linspace(low, high, count).tolist()
    return places if high > low else [float(boundaries[j])]


def oracle_search_op(
    *,
    run_block_sc: Callable[[], Tensor],
    Y_fp: Tensor,
    fitter: RidgeFitter,
    cfg: FreeBoundaryMPConfig,
    block_idx: int,
    op: str,
    init_boundaries: Tensor | None = None,
    n_candidates: int = 10,
    n_outer: int = 2,
    eps: float = 1e-3,
    run_block_sc_with_budget: Callable[[], tuple[Tensor, dict[str, Any] | None]] | None = None,
    budget_target_actual: float | None = None,
    score_fn: Callable[[Tensor], float] | None = None,
    log_fn: Log = _silent,
) -> tuple[Tensor, float]:
    """(the best boundaries of one operator of one block, their score); cfg has them too.

    run_block_sc gives the block's output [n, outputs] as cfg is then; with a budget, run_block_sc_with_budget gives it
    and {"actual": cost}. score_fn replaces the residual of the regression.
    """
    chosen = (cfg.default_boundaries() if init_boundaries is None else init_boundaries).detach().clone().float()

    def trial(boundaries: Tensor) -> _Trial:
        cfg.set_boundaries(op, block_idx, boundaries)
        facts: dict[str, Any] | None = None
        if run_block_sc_with_budget is None:
            y = run_block_sc()
        else:
            y, facts = run_block_sc_with_budget()
        score = fitter.residual_norm_sq(Y_fp - y) if score_fn is None else float(score_fn(y))
        return _Trial(score, None if facts is None else float(facts.get("actual", 0.0)), budget_target_actual)

    best = trial(chosen)
    log_fn(f"    {op}: score {best.score:.4e} at the start")
    for turn in range(n_outer):
        moved = False
        for j in range(chosen.numel()):
            kept = best
            for place in _grid(chosen, j, n_candidates, eps):
                moving = chosen.clone()
                moving[j] = place
                found = trial(moving)
                if found.beats(kept):
                    kept, better = found, moving
            if kept is not best:
                best, chosen, moved = kept, better, True
            cfg.set_boundaries(op, block_idx, chosen)
        log_fn(f"    {op}: score {best.score:.4e} after turn {turn}, boundaries {chosen.tolist()}")
        if not moved:
            break
    return chosen, best.score


def _search_in_turns(
    search: Callable[..., tuple[Tensor, float]],
    cfg: FreeBoundaryMPConfig,
    block_idx: int,
    ops: Sequence[str],
    turns: int,
    log_fn: Log,
) -> dict[str, tuple[Tensor, float]]:
    """What `search` finds of every operator of a block, each from where it is, several turns: they act together."""
    found = dict[str, tuple[Tensor, float]]()
    for turn in range(turns):
        log_fn(f"  block {block_idx}, turn {turn}")
        for op in ops:
            begin = cfg.get_boundaries(op, block_idx)
            found[op] = search(op=op, cfg=cfg, block_idx=block_idx, init_boundaries=begin, log_fn=log_fn)
    return found


def oracle_search_block(
    *,
    run_block_sc_for_op: Callable[[str], Callable[[], Tensor]],
    Y_fp: Tensor,
    fitter: RidgeFitter,
    cfg: FreeBoundaryMPConfig,
    block_idx: int,
    ops: Sequence[str],
    n_candidates: int = 10,
    n_outer_per_op: int = 2,
    n_outer_block: int = 2,
    log_fn: Log = _silent,
) -> dict[str, dict[str, Any]]:
    """{operator: {"boundaries", "score"}} of one block, from equal steps; operators in turns, as they act together."""
    for op in ops:
        cfg.set_boundaries(op, block_idx, cfg.default_boundaries())
    search = partial(oracle_search_op, Y_fp=Y_fp, fitter=fitter, n_candidates=n_candidates, n_outer=n_outer_per_op)
    found = _search_in_turns(
        lambda op, **options: search(run_block_sc=run_block_sc_for_op(op), op=op, **options),
        cfg,
        block_idx,
        ops,
        n_outer_block,
        log_fn,
    )
    return {op: {"boundaries": boundaries, "score": score} for op, (boundaries, score) in found.items()}


def _outputs(block: Any, x: Tensor, device: Any, chunk: int) -> Tensor:
    """The block's outputs on the host, some samples at a time."""
    parts = [x[first : first + chunk] for first in range(0, x.shape[0], chunk)]
    return torch.cat([block(part.to(device)).detach().float().cpu() for part in parts])


def _mean_square(wanted: Tensor, y: Tensor) -> float:
    return float((wanted - y).square().mean())


def _flat(x: Tensor, device: Any) -> Tensor:
    return x.reshape(-1, x.shape[-1]).to(device)


def _rmse(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


def _first_inputs(model: Any, block: Any, loader: Any, device: Any, count: int) -> Tensor:
    """What the first block reads of `count` samples."""
    seen: list[Tensor] = []
    handle = block.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach().float().cpu()))
    try:
        for batch in loader:
            model((batch[0] if isinstance(batch, (list, tuple)) else batch).to(device))
            if sum(len(x) for x in seen) >= count:
                break
    finally:
        handle.remove()
    return torch.cat(seen)[:count]


def _number_blocks(block: Any, index: int) -> None:
    block.register_forward_pre_hook(lambda *_: set_current_block_idx(index))


class _Block:
    """Runs one block on its inputs, several times where draws are averaged."""

    def __init__(self, block: Any, x: Tensor, device: Any, chunk: int, draws: int) -> None:
        self.run: Callable[[], Tensor] = lambda: _flat(_outputs(block, x, device, chunk), device)
        self.draws = max(draws, 1)

    def mean(self) -> Tensor:
        total = self.run()
        for _ in range(self.draws - 1):
            total = total + self.run()
        return total / self.draws

    def mean_and_cost(self) -> tuple[Tensor, dict[str, Any]]:
        """The cost is that of one draw."""
        AutoMPBudgetLogger.clear()
        AutoMPBudgetLogger.enable()
        try:
            total = self.run()
        finally:
            AutoMPBudgetLogger.disable()
        entries = AutoMPBudgetLogger.snapshot(clear=True)
        for _ in range(self.draws - 1):
            total = total + self.run()
        cost = {key: sum(entry[key] for entry in entries) for key in ("baseline", "actual")}
        return total / self.draws, {**cost, "entries": entries}


@torch.no_grad()
def auto_calibrate_mp(
    *,
    model_fp: Any,
    model_sc: Any,
    blocks_fp: Sequence[Any],
    blocks_sc_container: Any,
    calib_loader: Any,
    device: Any,
    n_calib: int,
    cfg: FreeBoundaryMPConfig,
    ops_per_block: Sequence[str],
    ridge: float = 1e-2,
    start_block: int = 0,
    fwd_chunk: int = 32,
    avg_sc_draws: int = 1,
    n_candidates: int = 10,
    n_outer_per_op: int = 2,
    n_outer_block: int = 2,
    budget_ratio: float | None = None,
    search_objective: str = "comp_residual",
    comp_factory: Callable[[Tensor, Tensor], Any] | None = None,
    comp_factory_variants: list[tuple[str, Callable[[Tensor, Tensor], Any]]] | None = None,
    comp_refit_iters: int = 0,
    fit_compensation: bool = True,
    install_compensation: bool = True,
    log_fn: Log = print,
) -> list[dict[str, Any]]:
    """Searches the boundaries of every block in order, each on what the blocks before it give. Returns a row for each.

    budget_ratio   the cost of a block, as a share of its longest streams; what a block leaves, the next may use.
    search_objective  "comp_residual", or "raw_mse": the error without a regression.
    comp_factory, comp_factory_variants  modules that compute the regression themselves; of variants the best is taken.
    """
    if search_objective not in ("comp_residual", "raw_mse"):
        raise AssertionError(f"search_objective = {search_objective}: allowed is comp_residual, raw_mse")
    if len(blocks_fp) != len(blocks_sc_container):
        raise AssertionError(f"{len(blocks_fp)} exact blocks, {len(blocks_sc_container)} in SC: expected as many")
    if install_compensation and not fit_compensation:
        raise AssertionError("install_compensation needs fit_compensation")
    if budget_ratio is not None and budget_ratio < 0:
        raise AssertionError(f"budget_ratio = {budget_ratio}: allowed is 0 or more")
    qwt: Any = None
    if fit_compensation:
        from qwt_sc import compensation as qwt  # type: ignore[import-not-found,no-redef]
    ratio = None if budget_ratio is None else min(float(budget_ratio), 1.0)
    for index, block in enumerate(blocks_sc_container):
        _number_blocks(block, index)
    x = _first_inputs(model_sc, blocks_sc_container[0], calib_loader, device, n_calib)
    spent, allowed = 0.0, 0.0
    report: list[dict[str, Any]] = []
    for index, exact in enumerate(blocks_fp):
        begin = time.monotonic()
        block = blocks_sc_container[index]
        set_current_block_idx(index)
        inputs, wanted = _flat(x, device), _flat(_outputs(exact, x, device, fwd_chunk), device)
        fitter = RidgeFitter(inputs, ridge=ridge)
        runs = _Block(block, x, device, fwd_chunk, avg_sc_draws)
        before, facts = (runs.mean(), None) if ratio is None else runs.mean_and_cost()
        baseline = 0.0 if facts is None else float(facts["baseline"])
        target = None if ratio is None else min(max(ratio * (baseline + allowed) - spent, 0.0), baseline)
        search = partial(
            oracle_search_op,
            run_block_sc=runs.mean,
            Y_fp=wanted,
            fitter=fitter,
            n_candidates=n_candidates,
            n_outer=n_outer_per_op,
            run_block_sc_with_budget=None if ratio is None else runs.mean_and_cost,
            budget_target_actual=target,
            score_fn=partial(_mean_square, wanted) if search_objective == "raw_mse" else None,
        )
        found = _search_in_turns(search, cfg, index, ops_per_block, n_outer_block, log_fn)
        per_op = {op: {"boundaries": boundaries.tolist(), "score": score} for op, (boundaries, score) in found.items()}
        after, facts = (runs.mean(), None) if ratio is None else runs.mean_and_cost()
        actual = 0.0 if facts is None else float(facts["actual"])
        fit = _Compensation(qwt, inputs, wanted - after, ridge, comp_factory, comp_refit_iters, device)
        enabled = fit_compensation and index >= start_block and fit.r2 > 0
        if install_compensation:
            module = fit.install(block, enabled, comp_factory_variants)
            blocks_sc_container[index] = block = module
            _number_blocks(block, index)
        x = _outputs(block, x, device, fwd_chunk)
        allowed, spent = allowed + baseline, spent + actual
        report.append(
            {
                "block": index,
                "r2": fit.r2,
                "enabled": enabled,
                "objective": search_objective,
                "rmse_before": _rmse(wanted - before),
                "rmse_after": fit.rmse,
                "raw_rmse_after": _rmse(wanted - after),
                "block_budget_target": target,
                "block_compute_baseline": baseline,
                "block_compute_actual": actual,
                "boundaries_per_op": per_op,
                "variant": fit.variant,
                "variant_rmses": fit.variant_rmses,
                "noise_aware_refit": fit.refits,
                "dt_s": time.monotonic() - begin,
            }
        )
        log_fn(f"block {index}: rmse {report[-1]['rmse_before']:.4e} -> {fit.rmse:.4e} ({report[-1]['dt_s']:.1f} s)")
    return report


class _Compensation:
    """The regression of what a block lacks on its inputs, and the module that adds it."""

    def __init__(
        self, qwt: Any, x: Tensor, residual: Tensor, ridge: float, factory: Any, refits: int, device: Any
    ) -> None:
        self.qwt, self.x, self.residual, self.factory, self.device = qwt, x, residual, factory, device
        self.variant: str | None = None
        self.variant_rmses: dict[str, float] = {}
        self.refits: list[dict[str, Any]] = []
        if qwt is None:
            self.w, self.b = x.new_zeros(x.shape[1], residual.shape[1]), x.new_zeros(residual.shape[1])
            self.r2, self.rmse = 0.0, _rmse(residual)
            return
        self.w, self.b, self.r2 = qwt.closed_form_ridge(x, residual, ridge=ridge)
        self.rmse = _rmse(residual - (x @ self.w + self.b))
        for turn in range(refits if factory is not None else 0):
            # The module has errors of its own, which the next regression is not to make up for.
            noise = self._result(factory) - (x @ self.w + self.b)
            self.w, self.b, self.r2 = qwt.closed_form_ridge(x, residual - noise, ridge=ridge)
            self.rmse = _rmse(residual - (x @ self.w + self.b) - noise)
            facts = {"iter": turn, "r2": self.r2, "after_rmse_with_delta": self.rmse, "delta_rmse": _rmse(noise)}
            self.refits.append(facts)

    def _made(self, factory: Any) -> Any:
        return factory(self.w.detach().cpu(), self.b.detach().cpu()).to(self.device)

    def _result(self, factory: Any) -> Tensor:
        result: Tensor = self._made(factory)(self.x)
        return result

    def install(self, block: Any, enabled: bool, variants: Any) -> Any:
        chosen = self.factory
        if variants:
            self.variant_rmses = {name: _rmse(self.residual - self._result(factory)) for name, factory in variants}
            self.variant, chosen = min(variants, key=lambda entry: self.variant_rmses[entry[0]])
        return self.qwt.CompensationBlock(
            block=block,
            W=self.w.detach().cpu(),
            b=self.b.detach().cpu(),
            r2=self.r2,
            enabled=enabled,
            comp_module=None if chosen is None else self._made(chosen),
        ).to(self.device)
