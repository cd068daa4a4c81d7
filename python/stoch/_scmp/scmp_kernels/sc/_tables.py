# SPDX-License-Identifier: Apache-2.0
"""Products by tables of counts, in torch: the definition of docs/sc_arithmetic.md sections 3 to 5 for any sequences.

The engine has one sequence for each side. Configurations whose channels differ are multiplied here, on any device.
"""

from __future__ import annotations

import functools
from typing import Any, TypeAlias

import numpy as np
import stoch
import torch

from ..quant.fused import _boundary, _resolve_rng_levels
from ..quant.grouped import _grouped_asymmetric_quant, _grouped_symmetric_quant
from ._environment import _scrambling
from .sng import RNGPool, SNGBank

Tensor: TypeAlias = torch.Tensor

_CHUNK = 128  # channels whose tables are in memory at once


def _mixed_bits(x: int) -> int:
    """SplitMix64's output function, as the engine draws its masks."""
    wrap = (1 << 64) - 1
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & wrap
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & wrap
    return x ^ (x >> 31)


@functools.lru_cache(maxsize=64)
def _mask_values(scramble: str, masks: int, sc_prec: int) -> tuple[int, ...]:
    if scramble == "off":
        return (0,)
    if scramble == "counter":
        return tuple(range(masks))
    if scramble == "bitrev":
        return tuple(int(f"{i:0{sc_prec}b}"[::-1], 2) for i in range(masks))
    golden, seed = 0x9E3779B97F4A7C15, int(stoch.ScConfig().source_seed)
    start = _mixed_bits((seed * golden + 4) % (1 << 64))
    return tuple(_mixed_bits((start + (i + 1) * golden) % (1 << 64)) >> (64 - sc_prec) for i in range(masks))


def _prepare_rng_prefix(rng: Tensor, sc_prec: int, stoc_len: int, rng_levels: int | None) -> Tensor:
    """The first stoc_len values of every channel, [channels, stoc_len], scrambled and on the comparator grid."""
    full, levels = 1 << sc_prec, _resolve_rng_levels(sc_prec, rng_levels)
    prefix = rng[:, :stoc_len]
    if levels == full and stoc_len >= rng.shape[1]:
        return prefix.contiguous()
    values = _mask_values(*_scrambling(sc_prec, levels != full), sc_prec)
    masks = torch.tensor(values, dtype=rng.dtype, device=rng.device)
    channel = torch.arange(rng.shape[0], device=rng.device) % len(values)
    return ((prefix ^ masks[channel][:, None]) * levels) >> sc_prec


def _columns(levels: int, device: torch.device) -> Tensor:
    """Boundaries 0..levels and up, a power of two of them."""
    return torch.arange(1 << levels.bit_length(), device=device)


def _cum_indicator(rng_b: Tensor, columns: Tensor) -> Tensor:
    """[channels, cycles + 1, columns]: how many of the first cycles side b is 1, for each boundary."""
    ones = (columns[None, None, :] > rng_b[:, :, None]).to(torch.int16)
    return torch.cat([ones.new_zeros((ones.shape[0], 1, ones.shape[2])), ones.cumsum(dim=1, dtype=torch.int16)], dim=1)


def build_k_table_only(
    rng_a: Tensor, sc_prec: int, stoc_len: int | None = None, rng_levels: int | None = None
) -> Tensor:
    """int16 [channels, boundaries]: how many cycles side a enables, for each boundary."""
    length, levels = (1 << sc_prec) if stoc_len is None else stoc_len, _resolve_rng_levels(sc_prec, rng_levels)
    prefix = _prepare_rng_prefix(rng_a, sc_prec, length, levels)
    return (_columns(levels, rng_a.device)[None, None, :] > prefix[:, :, None]).sum(dim=1, dtype=torch.int16)


def build_enable_tables(
    rng_a: Tensor, rng_b: Tensor, sc_prec: int, stoc_len: int | None = None, rng_levels: int | None = None
) -> tuple[Tensor, Tensor]:
    """(cum_indicator int16 [channels, stoc_len + 1, boundaries], k_table int16 [channels, boundaries])

    A product of channel d with boundaries v_a and v_b counts cum_indicator[d, k_table[d, v_a], v_b]. The number of
    boundaries is rounded up to a power of two.
    """
    length, levels = (1 << sc_prec) if stoc_len is None else stoc_len, _resolve_rng_levels(sc_prec, rng_levels)
    prefix = _prepare_rng_prefix(rng_b, sc_prec, length, levels)
    table = _cum_indicator(prefix, _columns(levels, rng_b.device))
    return table, build_k_table_only(rng_a, sc_prec, length, levels)


def _gain(q_max_sq: float, stoc_len: int) -> float:
    return float(np.float32(q_max_sq) / np.float32(stoc_len))


def _sums(cum: Tensor, k: Tensor, ba: Tensor, bb: Tensor, sa: Tensor | None, sb: Tensor | None) -> Tensor:
    """int32 [n, m]: the signed counts, added over channels."""
    acc = torch.zeros((ba.shape[0], bb.shape[0]), dtype=torch.int32, device=ba.device)
    for d in range(ba.shape[1]):
        rows = cum[d].index_select(0, k[d].long().index_select(0, ba[:, d].long()))
        count = rows.index_select(1, bb[:, d].long()).to(torch.int32)
        if sa is not None and sb is not None:
            count = count * (sa[:, d, None].to(torch.int32) * sb[None, :, d].to(torch.int32))
        acc += count
    return acc


def enable_matmul_triton(
    cum_indicator: Tensor,
    k_table: Tensor,
    boundary_a: Tensor,
    boundary_b: Tensor,
    sign_a: Tensor,
    sign_b: Tensor,
    N: int,
    M: int,
    D: int,
    stoc_len: int,
    q_max_sq: float,
    is_bipolar: bool,
) -> Tensor:
    """float32 [N, M]: the counts of boundaries [N, D] and [M, D], times q_max_sq / stoc_len."""
    signs = (sign_a, sign_b) if is_bipolar else (None, None)
    acc = _sums(cum_indicator, k_table, boundary_a[:N, :D], boundary_b[:M, :D], *signs)
    return acc.to(torch.float32) * _gain(q_max_sq, stoc_len)


def enable_matmul_compact(
    rng_b: Tensor,
    k_table: Tensor,
    boundary_a: Tensor,
    boundary_b: Tensor,
    sign_a: Tensor,
    sign_b: Tensor,
    N: int,
    M: int,
    D: int,
    stoc_len: int,
    q_max_sq: float,
    is_bipolar: bool,
) -> Tensor:
    """The same from the prepared values of side b, [D, stoc_len], without all of its tables in memory."""
    acc = torch.zeros((N, M), dtype=torch.int32, device=boundary_a.device)
    columns = torch.arange(k_table.shape[1], device=rng_b.device)
    for begin in range(0, D, _CHUNK):
        part = slice(begin, min(begin + _CHUNK, D))
        signs = (sign_a[:, part], sign_b[:, part]) if is_bipolar else (None, None)
        table = _cum_indicator(rng_b[part, :stoc_len], columns)
        acc += _sums(table, k_table[part], boundary_a[:, part], boundary_b[:, part], *signs)
    return acc.to(torch.float32) * _gain(q_max_sq, stoc_len)


# The original differs in how it keeps tables in caches; there is nothing to choose here.
enable_matmul_compact_mlp = enable_matmul_compact


def _sequences(config: dict[str, Any], sc_prec: int, channels: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """int32 [channels, 2**sc_prec] of sides a and b."""
    pool, sides = RNGPool(config["rng_pool"], sc_prec), []
    for side in ("q", "k"):
        entries = config["sng"][side][:channels]
        if len(entries) < channels:
            raise ValueError(f"config: sng {side} has {len(entries)} channels, the operands {channels}")
        sides.append(torch.from_numpy(SNGBank(pool, entries).get_all_sequences(1 << sc_prec)).to(device))
    return sides[0], sides[1]


class _Side:
    """Codes of one 2-D operand."""

    def __init__(self, x: Tensor, group: int, mode: str, sc_prec: int, levels: int) -> None:
        bipolar = mode == "bipolar"
        self.q_max = (1 << (sc_prec - 1)) - 1 if bipolar else (1 << sc_prec) - 1
        self.zero: Tensor | None = None
        self.sign: Tensor | None = None
        if bipolar:
            self.scale, codes, self.sign = _grouped_symmetric_quant(x, group, self.q_max)
        else:
            self.scale, self.zero, codes = _grouped_asymmetric_quant(x, group, self.q_max)
            self.sums = codes.sum(dim=1)
        self.boundary = _boundary(codes.abs(), self.q_max, levels)


def _decode(acc: Tensor, left: _Side, right: _Side, stoc_len: int, channels: int) -> Tensor:
    """Back to real numbers: docs/sc_arithmetic.md section 5."""
    y = acc.to(torch.float32) * _gain(float(left.q_max * left.q_max), stoc_len)
    if left.zero is not None and right.zero is not None:
        za, zb = left.zero[:, None], right.zero[None, :]
        y = y + (-zb * left.sums[:, None] - za * right.sums[None, :] + channels * za * zb)
    return y * (left.scale[:, None] * right.scale[None, :])


def _table_product_2d(
    a: Tensor, b: Tensor, sequences: tuple[Tensor, Tensor], mode: str, groups: tuple[int, int], settings: dict[str, int]
) -> Tensor:
    sc_prec, stoc_len, levels = settings["sc_prec"], settings["stoc_len"], settings["rng_levels"]
    left, right = (_Side(x, group, mode, sc_prec, levels) for x, group in zip((a, b), groups))
    k = build_k_table_only(sequences[0], sc_prec, stoc_len, levels)
    values = _prepare_rng_prefix(sequences[1], sc_prec, stoc_len, levels)
    acc = torch.zeros((a.shape[0], b.shape[0]), dtype=torch.int32, device=a.device)
    columns = _columns(levels, a.device)
    for begin in range(0, a.shape[1], _CHUNK):
        part = slice(begin, min(begin + _CHUNK, a.shape[1]))
        signs = [None if side.sign is None else side.sign[:, part] for side in (left, right)]
        table = _cum_indicator(values[part], columns)
        acc += _sums(table, k[part], left.boundary[:, part], right.boundary[:, part], *signs)
    return _decode(acc, left, right, stoc_len, a.shape[1])


def _table_product(a: Tensor, b: Tensor, source: dict[str, Any], chosen: stoch.ScConfig) -> Tensor:
    """a @ b.T with the sequences of a config dict; everything else as `chosen` says."""
    how = chosen.resolve()
    settings = {name: int(getattr(how, name)) for name in ("sc_prec", "stoc_len", "rng_levels")}
    size = int(how.chunk_d) or max(a.shape[-1], 1)
    sequences = _sequences(source, settings["sc_prec"], min(size, a.shape[-1]), a.device)
    if a.dim() == 3:
        if how.granularity == "per_tensor":  # one scale for all slices: as one tall operand
            tall = _table_product_2d(
                a.flatten(0, 1), b.flatten(0, 1), sequences, how.mode, (a[..., 0].numel(), b[..., 0].numel()), settings
            )
            blocks = tall.reshape(a.shape[0], a.shape[1], b.shape[0], b.shape[1])
            return torch.stack([blocks[i, :, i] for i in range(a.shape[0])])
        return torch.stack([_table_product(x, y, source, chosen) for x, y in zip(a, b)])
    groups = (int(how.group_a), int(how.group_b))
    if how.granularity != "per_row":
        groups = (a.shape[0], b.shape[0])
    y = torch.zeros((a.shape[0], b.shape[0]), dtype=torch.float32, device=a.device)
    for begin in range(0, a.shape[1], size):
        left, right = a[:, begin : begin + size], b[:, begin : begin + size]
        part = (sequences[0][: left.shape[1]], sequences[1][: left.shape[1]])
        y = y + _table_product_2d(left, right, part, how.mode, groups, settings)
    return y
