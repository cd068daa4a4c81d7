# SPDX-License-Identifier: Apache-2.0
"""The original's entry points by granularity, each one call of the engine."""

from __future__ import annotations

import os
import weakref
from collections import OrderedDict
from typing import Any

import stoch
import torch

_ENABLE_TABLE_CACHE_MAX = 64
# Weights packed for the engine, by storage, place in it, version and configuration.
_packed_cache: OrderedDict[Any, Any] = OrderedDict()


def _lru_get(cache: OrderedDict[Any, Any], key: Any) -> Any:
    """The value, which is now the youngest; None if there is none."""
    if key not in cache:
        return None
    cache.move_to_end(key)
    return cache[key]


def _lru_put(cache: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    """Adds the youngest; the oldest go."""
    cache[key] = value
    cache.move_to_end(key)
    while len(cache) > _ENABLE_TABLE_CACHE_MAX:
        cache.popitem(last=False)


def clear_rng_cache() -> None:
    """Forgets packed weights. The environment is read at every call, so nothing else is kept."""
    _packed_cache.clear()


class det_kernel_tuning:
    """Chose tile sizes in the original; the engine chooses its own."""

    def __enter__(self) -> det_kernel_tuning:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def _semantics() -> str:
    name = os.environ.get("SCMP_KERNELS_SEMANTICS", "published-2026")
    if name not in ("published", "published-2026"):
        raise ValueError(f"SCMP_KERNELS_SEMANTICS = {name}: allowed is published, published-2026")
    return name


def _scrambling(sc_prec: int, rescaled: bool) -> tuple[str, int]:
    """(scramble, scramble_masks) as the environment says now."""
    newer = _semantics() == "published-2026"
    scramble = os.environ.get("SC_OWEN_MODE", "bitrev").lower()
    if scramble not in ("bitrev", "counter", "off"):
        scramble = "random"
    if newer and scramble == "counter":
        raise ValueError("SC_OWEN_MODE=counter: allowed is bitrev, random, off (SCMP_KERNELS_SEMANTICS=published has it)")
    unscrambled = os.environ.get("SC_DISABLE_OWEN", "0") == "1"
    if newer and unscrambled:
        raise RuntimeError("SC_DISABLE_OWEN=1: SCMP_KERNELS_SEMANTICS=published has it")
    raw_rescale = os.environ.get("SC_SCRAMBLE_RESCALE", "1") != "1"
    if newer and raw_rescale:
        raise RuntimeError("SC_SCRAMBLE_RESCALE=0: SCMP_KERNELS_SEMANTICS=published has it")
    masks = 1 << sc_prec
    if newer:
        text = os.environ.get("SC_SCRAMBLE_MASKS", "64")
        if not text.isdecimal() or int(text) < 1 or int(text) > 64 or int(text) & (int(text) - 1):
            raise ValueError(f"SC_SCRAMBLE_MASKS = {text}: allowed is a power of two, at most 64")
        masks = min(masks, int(text))
    if unscrambled or (raw_rescale and rescaled):
        scramble = "off"
    return scramble, masks


def _sobol(entry: Any, length: int) -> list[int]:
    """The values of one Sobol entry of a config, by Gray code from its direction numbers."""
    if entry.get("type") != "sobol":
        raise ValueError(f"config: rng type {entry.get('type')}: allowed is sobol")
    seed = entry.get("seed")
    if seed is None:
        seed = [1] * length
        if entry.get("seed_type", "q") == "k":
            if length == 8:
                seed = [1, 1, 1, 1, 9, 1, 41, 255]
            else:
                seed = [9 if i == 4 else 41 if i == 6 else 1 for i in range(length)]
    directions = [int(seed[i]) << (length - 1 - i) for i in range(length)]
    values, value = [], 0
    for n in range(1 << length):
        values.append(value)
        lowest_zero = (~n & (n + 1)).bit_length() - 1
        if lowest_zero < length:
            value ^= directions[lowest_zero]
    return values


def _source_of(config: Any, sc_prec: int) -> dict[str, Any]:
    """What a config dict asks for, as parameters of ScConfig; {} for the default sequences."""
    if config is None:
        return {}
    sides = []
    for side in ("q", "k"):
        entries = config["sng"][side]
        first = entries[0]
        if any(entry != first for entry in entries) or first.get("scramble") is not None:
            raise ValueError("config: entries of sng that differ by channel, or permute bits, are not supported")
        values = _sobol(config["rng_pool"][first["rng_id"]], sc_prec)
        if first.get("complement"):
            values = [(1 << sc_prec) - 1 - value for value in values]
        sides.append(values)
    default = [_sobol({"type": "sobol", "seed_type": side}, sc_prec) for side in ("q", "k")]
    if sides == default:
        return {}
    return {"source": "list", "source_list_a": sides[0], "source_list_b": sides[1]}


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
    scramble, masks = _scrambling(sc_prec, levels != full)
    return stoch.ScConfig(
        granularity=granularity,
        mode=mode,
        sc_prec=sc_prec,
        stoc_len=full if stoc_len is None else int(stoc_len),
        rng_levels=levels,
        chunk_d=chunk_d,
        group_a=group_a,
        group_b=group_b,
        scramble=scramble,
        scramble_masks=masks,
        **_source_of(config, sc_prec),
    )


def _float32(x: Any) -> torch.Tensor:
    tensor = x if isinstance(x, torch.Tensor) else torch.as_tensor(x)
    return tensor.detach().to(torch.float32)


def _pack(b: torch.Tensor, config: stoch.ScConfig) -> Any:
    """b packed, from the cache where the same numbers were packed before."""
    storage = b.untyped_storage()
    key = (storage.data_ptr(), b.storage_offset(), tuple(b.shape), b.stride(), str(b.dtype), str(b.device), config)
    found = _lru_get(_packed_cache, key)
    if found is not None:
        owner, version, packed = found
        if owner() is not None and owner() is _owner(b) and version == b._version:
            return packed
    packed = stoch.pack(b, config)
    _lru_put(_packed_cache, key, (weakref.ref(_owner(b)), b._version, packed))
    return packed


def _owner(b: torch.Tensor) -> torch.Tensor:
    """The tensor that a view is of, which lives as long as the caller keeps the weight."""
    base = b._base
    return b if base is None else base


def _product(a: Any, b: Any, config: stoch.ScConfig) -> torch.Tensor:
    left, right = _float32(a), _float32(b)
    keeps = isinstance(b, torch.Tensor) and b.dtype == torch.float32 and b.dim() == 2 and b.numel() > 0
    if keeps and left.dim() == 2 and isinstance(b, torch.nn.Parameter):
        result = stoch.sc_matmul(left.contiguous(), _pack(b.detach(), config))
    else:
        result = stoch.sc_matmul(left, right, config)
    assert isinstance(result, torch.Tensor)
    return result


def _sc_matmul_per_tensor(
    a: Any,
    b: Any,
    max_fp_a: float | None = None,
    min_fp_a: float | None = None,
    max_fp_b: float | None = None,
    min_fp_b: float | None = None,
    mode: str = "bipolar",
    sc_prec: int = 8,
    stoc_len: int | None = None,
    rng_levels: int | None = None,
    config: Any = None,
) -> torch.Tensor:
    """One scale for each operand. The ranges are those of the operands, whatever is given."""
    return _product(a, b, _config("per_tensor", mode, sc_prec, stoc_len, rng_levels, config))


def _sc_matmul_per_row(
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
    """A scale for each row, or group of rows."""
    chosen = _config("per_row", mode, sc_prec, stoc_len, rng_levels, config, 0, group_a, group_b)
    return _product(a, b, chosen)


# The same of every slice of a batch.
_sc_matmul_per_row_batched = _sc_matmul_per_row


def _sc_matmul_per_row_mlp(
    a: Any,
    b: Any,
    mode: str = "bipolar",
    sc_prec: int = 8,
    config: Any = None,
    group_a: int = 1,
    group_b: int = 1,
    chunk_d: int = 0,
    stoc_len: int | None = None,
    rng_levels: int | None = None,
) -> torch.Tensor:
    """A scale for each row and chunk of channels."""
    chosen = _config("per_row", mode, sc_prec, stoc_len, rng_levels, config, chunk_d, group_a, group_b)
    return _product(a, b, chosen)


def _sc_matmul_per_head_bipolar(
    q: Any,
    k: Any,
    q_maxs: Any = None,
    q_mins: Any = None,
    k_maxs: Any = None,
    k_mins: Any = None,
    sc_prec: int = 8,
    config: Any = None,
    stoc_len: int | None = None,
    rng_levels: int | None = None,
) -> torch.Tensor:
    """A scale for each leading slice. The ranges are those of the operands, whatever is given."""
    return _product(q, k, _config("per_head", "bipolar", sc_prec, stoc_len, rng_levels, config))
