# SPDX-License-Identifier: Apache-2.0
"""Comparator sequences of the channels of an operand: a source each, and a permutation of its bits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .rng import RNG, create_rng

Array = npt.NDArray[Any]
Permutation = Sequence[int]


def apply_scramble(sequence: Array, scramble: Permutation) -> Array:
    """The values with permuted bits: bit i is bit scramble[i] of the original."""
    result = np.zeros_like(sequence)
    for to, source in enumerate(scramble):
        result |= ((sequence >> source) & 1) << to
    return result


def apply_scramble_batch(sequences: Array, scrambles: Sequence[Permutation | None], sc_prec: int) -> Array:
    """The same for each row of [channels, cycles]; None leaves a row as it is."""
    identity = range(sc_prec)
    result = np.zeros_like(sequences)
    for row, scramble in enumerate(scrambles):
        result[row] = apply_scramble(sequences[row], identity if scramble is None else scramble)
    return result


def reverse_permutation(n_bits: int) -> list[int]:
    """The permutation that reverses the bits."""
    return list(range(n_bits))[::-1]


def generate_random_permutation(n_bits: int) -> list[int]:
    """A permutation drawn from Python's random module."""
    return random.sample(range(n_bits), n_bits)


class RNGPool:
    """Sources by number, their values kept."""

    def __init__(self, rng_configs: Sequence[dict[str, Any]], sc_prec: int) -> None:
        self.sc_prec = sc_prec
        self.rngs: list[RNG] = []
        for entry in rng_configs:
            rest = {name: value for name, value in entry.items() if name != "type"}
            self.rngs.append(create_rng(rng_type=entry.get("type", "lfsr"), length=sc_prec, **rest))
        self._sequence_cache: dict[int, Array] = {}

    def __len__(self) -> int:
        return len(self.rngs)

    def get_sequence(self, rng_id: int, stoc_len: int) -> Array:
        """The first stoc_len values of a source."""
        kept = self._sequence_cache.get(rng_id)
        if kept is None or len(kept) < stoc_len:
            kept = self._sequence_cache[rng_id] = self.rngs[rng_id].simulate(stoc_len)
        return kept[:stoc_len]

    def clear_cache(self) -> None:
        """Forgets the values."""
        self._sequence_cache.clear()


class SNG:
    """One source of a pool, its bits permuted and its values mirrored where that is asked for."""

    def __init__(
        self, rng_pool: RNGPool, rng_id: int, scramble: Permutation | None = None, complement: bool = False
    ) -> None:
        self.rng_pool = rng_pool
        self.rng_id = rng_id
        self.scramble = scramble
        self.complement = complement

    def get_sequence(self, stoc_len: int) -> Array:
        """Its first stoc_len values."""
        values = self.rng_pool.get_sequence(self.rng_id, stoc_len)
        values = values.copy() if self.scramble is None else apply_scramble(values, self.scramble)
        return (1 << self.rng_pool.sc_prec) - 1 - values if self.complement else values


class SNGBank:
    """The generators of all channels of an operand."""

    def __init__(self, rng_pool: RNGPool, sng_configs: Sequence[dict[str, Any]]) -> None:
        self.rng_pool = rng_pool
        self.sng_configs = sng_configs
        self.sngs = [
            SNG(rng_pool, entry["rng_id"], entry.get("scramble"), bool(entry.get("complement"))) for entry in sng_configs
        ]

    def __len__(self) -> int:
        return len(self.sngs)

    def get_all_sequences(self, stoc_len: int) -> Array:
        """int32 [channels, stoc_len]"""
        made: dict[tuple[Any, ...], Array] = {}
        result = np.empty((len(self.sngs), stoc_len), np.int32)
        for row, sng in enumerate(self.sngs):
            key = (sng.rng_id, None if sng.scramble is None else tuple(sng.scramble), sng.complement)
            if key not in made:
                made[key] = sng.get_sequence(stoc_len)
            result[row] = made[key]
        return result
