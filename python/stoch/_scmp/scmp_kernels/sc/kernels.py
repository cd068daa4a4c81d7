# SPDX-License-Identifier: Apache-2.0
"""The original's entry points by granularity, each one call of the engine.

A configuration that the engine does not have (channels with sources or permutations of their own) is multiplied by
tables in torch: the same counts, slower.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

import numpy as np
import stoch
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..quant import (
    _grouped_asymmetric_quant,
    _grouped_symmetric_quant,
    _grouped_symmetric_quant_batched,
    _quant_dummy,
    fused_quantize_bipolar,
    fused_quantize_bipolar_perrow,
    fused_quantize_unipolar,
)
from ..quant.fused import _resolve_rng_levels
from ._environment import _keeps_cum_indicator, _scrambling, _semantics
from ._tables import (
    _prepare_rng_prefix,
    _table_product,
    build_enable_tables,
    build_k_table_only,
    enable_matmul_compact,
    enable_matmul_compact_mlp,
    enable_matmul_triton,
)
from .constants import FP8_E4M3_MAX, FP8_E5M2_MAX, INT8_MAX
from .sng import RNGPool, SNGBank

__all__ = [
    "FP8_E4M3_MAX",
    "FP8_E5M2_MAX",
    "INT8_MAX",
    "RNGPool",
    "SNGBank",
    "_grouped_asymmetric_quant",
    "_grouped_symmetric_quant",
    "_grouped_symmetric_quant_batched",
    "_prepare_rng_prefix",
    "_quant_dummy",
    "_resolve_rng_levels",
    "_semantics",
    "build_enable_tables",
    "build_k_table_only",
    "clear_rng_cache",
    "det_kernel_tuning",
    "enable_matmul_compact",
    "enable_matmul_compact_mlp",
    "enable_matmul_triton",
    "fused_quantize_bipolar",
    "fused_quantize_bipolar_perrow",
    "fused_quantize_unipolar",
]

Cache = OrderedDict[Any, Any]

_ENABLE_TABLE_CACHE_MAX = 64
# Weights packed for the engine, by storage, place in it and configuration: (the storage, version, packed or None).
_packed_cache: Cache = OrderedDict()
# What the original's tables are here: the engine's configuration of a key, for products without and with chunks.
_enable_table_cache: Cache = OrderedDict()
_cum_indicator_cache: Cache = OrderedDict()
# (source, parameters) of a config dict, by what it says.
_rng_seq_cache: Cache = OrderedDict()
# Of the original; the engine keeps what it needs with a configuration.
_k_table_cache: Cache = OrderedDict()


def _lru_get(cache: Cache, key: Any) -> Any:
    """The value, which is now the youngest; None if there is none."""
    if key not in cache:
        return None
    cache.move_to_end(key)
    return cache[key]


def _lru_put(cache: Cache, key: Any, value: Any) -> None:
    """Adds the youngest; the oldest go."""
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > _ENABLE_TABLE_CACHE_MAX:
        cache.popitem(last=False)


def clear_rng_cache() -> None:
    """Forgets packed weights and configurations. The environment is read at every call, so nothing depends on it."""
    for cache in (_packed_cache, _enable_table_cache, _cum_indicator_cache, _rng_seq_cache, _k_table_cache):
        cache.clear()


class det_kernel_tuning:
    """Chose tile sizes in the original; the engine chooses its own."""

    def __enter__(self) -> det_kernel_tuning:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def _default_sides(sc_prec: int) -> tuple[list[int], list[int]]:
    pool = RNGPool([{"type": "sobol", "seed_type": side} for side in ("q", "k")], sc_prec)
    q, k = (pool.get_sequence(i, 1 << sc_prec).tolist() for i in (0, 1))
    return q, k


def _source_of(config: Any, sc_prec: int) -> dict[str, Any] | None:
    """What a config dict asks for, as parameters of ScConfig: {} for the default sequences, None where there are none."""
    if config is None:
        return {}
    key = (json.dumps(config, sort_keys=True), sc_prec)
    found = _lru_get(_rng_seq_cache, key)
    if found is not None:
        return found[0]  # type: ignore[no-any-return]
    parameters: dict[str, Any] | None = None
    alike = all(entry == config["sng"][side][0] for side in ("q", "k") for entry in config["sng"][side])
    if alike:
        pool = RNGPool(config["rng_pool"], sc_prec)
        q, k = (SNGBank(pool, config["sng"][side][:1]).get_all_sequences(1 << sc_prec)[0] for side in ("q", "k"))
        sides = (q.tolist(), k.tolist())
        parameters = {}
        if sides != _default_sides(sc_prec):
            parameters = {"source": "list", "source_list_a": sides[0], "source_list_b": sides[1]}
    _lru_put(_rng_seq_cache, key, (parameters,))
    return parameters


def _config(
    granularity: str,
    mode: str,
    sc_prec: int,
    stoc_len: int | None,
    rng_levels: int | None,
    config: Any = None,
    chunk_d: int = 0,
    group_a: int = 1,
    group_b: int = 1,
) -> stoch.ScConfig:
    full = 1 << sc_prec
    levels = full if rng_levels is None else int(rng_levels)
    length = full if stoc_len is None else int(stoc_len)
    scramble, masks = _scrambling(sc_prec, levels != full)
    if levels == full and length == full:
        scramble, masks = "off", 1  # the whole grid over the whole period is not scrambled, whatever is asked for
    source = _source_of(config, sc_prec) or {}
    listed = tuple(tuple(source[name]) for name in ("source_list_a", "source_list_b")) if source else ()
    key = (granularity, mode, sc_prec, length, levels, chunk_d, group_a, group_b, scramble, masks, listed)
    keeps = chunk_d == 0 or _keeps_cum_indicator()
    cache = _cum_indicator_cache if chunk_d > 0 else _enable_table_cache
    found = _lru_get(cache, key) if keeps else None
    if found is None:
        found = stoch.ScConfig(
            granularity=granularity,
            mode=mode,
            sc_prec=sc_prec,
            stoc_len=length,
            rng_levels=levels,
            chunk_d=chunk_d,
            group_a=group_a,
            group_b=group_b,
            scramble=scramble,
            scramble_masks=masks,
            **source,
        )
        if keeps:
            _lru_put(cache, key, found)
    assert isinstance(found, stoch.ScConfig)
    return found


def _float32(x: Any) -> torch.Tensor:
    tensor = x if isinstance(x, torch.Tensor) else torch.as_tensor(np.asarray(x))
    return tensor.detach().to(torch.float32)


def _packed(b: Any, config: stoch.ScConfig) -> Any:
    """b packed, where it is a weight: a parameter, or a matrix that was multiplied before and did not change since."""
    if not isinstance(b, torch.Tensor) or b.dim() != 2 or b.numel() == 0 or b.is_inference():
        return None
    storage = b.untyped_storage()
    key = (storage._cdata, b.storage_offset(), tuple(b.shape), b.stride(), b.dtype, b.device, config)
    found = _lru_get(_packed_cache, key)
    known = found is not None and not found[0].expired() and found[1] == b._version
    if known and found[2] is not None:
        return found[2]
    packed = stoch.pack(b.detach(), config) if known or isinstance(b, torch.nn.Parameter) else None
    for other in [other for other, entry in _packed_cache.items() if entry[0].expired()]:
        del _packed_cache[other]
    reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
    _lru_put(_packed_cache, key, (reference, b._version, packed))
    return packed


def _product(a: Any, b: Any, config: stoch.ScConfig, source: Any = None) -> torch.Tensor:
    left = _float32(a)
    if source is not None and _source_of(source, int(config.sc_prec)) is None:
        return _table_product(left, _float32(b), source, config)
    packed = _packed(b, config) if left.dim() == 2 else None
    if packed is None:
        result = stoch.sc_matmul(left, _float32(b), config)
    else:
        result = stoch.sc_matmul(left.contiguous(), packed)
    assert isinstance(result, torch.Tensor)
    return result


def _ranged(x: Any, high: Any, low: Any, mode: str) -> torch.Tensor:
    """x with two rows more that give it this range; what is outside is clamped."""
    x = _float32(x)
    shape = (*x.shape[:-2], 1, 1)
    top, bottom = (
        torch.as_tensor(value, dtype=torch.float32, device=x.device).reshape(-1, *([1] * (x.dim() - 1))).expand(shape)
        if x.dim() == 3
        else torch.as_tensor(value, dtype=torch.float32, device=x.device).reshape(shape)
        for value in (high, low)
    )
    if mode == "bipolar":
        top = torch.maximum(top.abs(), bottom.abs())
        bottom = -top
    rows = [edge.expand(*x.shape[:-2], 1, x.shape[-1]) for edge in (top, bottom)]
    return torch.cat([torch.minimum(torch.maximum(x, bottom), top), *rows], dim=-2)


def _product_in_ranges(a: Any, b: Any, ranges: tuple[Any, ...], chosen: stoch.ScConfig, source: Any) -> torch.Tensor:
    """The product with the ranges given (high and low of a, then of b), or those of the operands where there are none."""
    high_a, low_a, high_b, low_b = ranges
    if high_a is None:
        return _product(a, b, chosen, source)
    if low_a is None:
        raise ValueError("the range of a has a largest value and no smallest")
    wide_a = _ranged(a, high_a, low_a, str(chosen.mode))
    wide_b = _ranged(b, high_a if high_b is None else high_b, low_a if low_b is None else low_b, str(chosen.mode))
    result = _product(wide_a, wide_b, chosen, source)
    return result[..., :-2, :-2].contiguous()


def _sc_matmul_per_tensor(
    a: Any,
    b: Any,
    max_fp_a: float | None = None,
    min_fp_a: float | None = None,
    max_fp_b: float | None = None,
    min_fp_b: float | None = None,
    mode: str = "bipolar",
    sc_prec: int = 8,
    config: Any = None,
    stoc_len: int | None = None,
    rng_levels: int | None = None,
) -> torch.Tensor:
    """One scale for each operand, from the ranges given or those of the operands; b has that of a where it has none."""
    chosen = _config("per_tensor", mode, sc_prec, stoc_len, rng_levels, config)
    return _product_in_ranges(a, b, (max_fp_a, min_fp_a, max_fp_b, min_fp_b), chosen, config)


def _sc_matmul_per_row(
    a: Any,
    b: Any,
    group_a: int = 1,
    group_b: int = 1,
    mode: str = "unipolar",
    sc_prec: int = 8,
    config: Any = None,
    stoc_len: int | None = None,
    rng_levels: int | None = None,
) -> torch.Tensor:
    """A scale for each row, or group of rows."""
    chosen = _config("per_row", mode, sc_prec, stoc_len, rng_levels, config, 0, group_a, group_b)
    return _product(a, b, chosen, config)


def _sc_matmul_per_row_batched(
    a: Any,
    b: Any,
    group_a: int = 1,
    group_b: int = 1,
    mode: str = "bipolar",
    sc_prec: int = 8,
    config: Any = None,
    stoc_len: int | None = None,
    rng_levels: int | None = None,
) -> torch.Tensor:
    """The same of every slice of a batch."""
    return _sc_matmul_per_row(a, b, group_a, group_b, mode, sc_prec, config, stoc_len, rng_levels)


def _sc_matmul_per_row_mlp(
    a: Any,
    b: Any,
    max_fp_a: float = 0.0,
    min_fp_a: float = 0.0,
    max_fp_b: float | None = None,
    min_fp_b: float | None = None,
    mode: str = "bipolar",
    sc_prec: int = 8,
    config: Any = None,
    group_a: int = 1,
    group_b: int = 1,
    chunk_d: int = 0,
    stoc_len: int | None = None,
    rng_levels: int | None = None,
) -> torch.Tensor:
    """A scale for each row and chunk of channels; ranges are those of the operands, whatever is given."""
    chosen = _config("per_row", mode, sc_prec, stoc_len, rng_levels, config, chunk_d, group_a, group_b)
    return _product(a, b, chosen, config)


def _sc_matmul_per_head_bipolar(
    q_flat: Any,
    k_flat: Any,
    q_maxs: Any = None,
    q_mins: Any = None,
    k_maxs: Any = None,
    k_mins: Any = None,
    sc_prec: int = 8,
    config: Any = None,
    stoc_len: int | None = None,
    rng_levels: int | None = None,
) -> torch.Tensor:
    """A scale for each leading slice, from the ranges given or those of the operands."""
    chosen = _config("per_head", "bipolar", sc_prec, stoc_len, rng_levels, config)
    return _product_in_ranges(q_flat, k_flat, (q_maxs, q_mins, k_maxs, k_mins), chosen, config)
