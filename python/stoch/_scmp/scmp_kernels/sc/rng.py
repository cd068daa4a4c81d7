# SPDX-License-Identifier: Apache-2.0
"""Sources of comparator values: lists of whole numbers below 2**length, one for each cycle."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.int32]


class RNG(ABC):
    """A source that always starts with the same value."""

    @abstractmethod
    def simulate(self, num_cycles: int) -> Values:
        """The first num_cycles values."""

    @abstractmethod
    def reset(self) -> None:
        """Back to the first value."""


class LFSR(RNG):
    """A Fibonacci shift register that shifts towards bit 0; the xor of its taps enters at the top."""

    def __init__(self, seed: int, length: int, taps: Sequence[int]) -> None:
        if seed == 0:
            raise ValueError("LFSR: seed = 0: allowed is another number, a register of zeros stays so")
        self.seed = seed
        self.length = length
        self.taps = taps
        self.reg = seed

    def reset(self) -> None:
        self.reg = self.seed

    def step(self) -> int:
        """The register, which then shifts once."""
        now = self.reg
        top = sum(now >> tap for tap in self.taps) & 1
        self.reg = (now >> 1) | (top << (self.length - 1))
        return now

    def simulate(self, num_cycles: int | None = None) -> Values:
        self.reset()
        return np.array([self.step() for _ in range(_cycles(num_cycles, self.length))], np.int32)


class TrueRandom(RNG):
    """The generator of Python's random module, seeded."""

    def __init__(self, seed: int, length: int) -> None:
        self.seed = seed
        self.length = length
        self.max_val = (1 << length) - 1

    def reset(self) -> None:
        random.seed(self.seed)

    def simulate(self, num_cycles: int | None = None) -> Values:
        self.reset()
        return np.array([random.randint(0, self.max_val) for _ in range(_cycles(num_cycles, self.length))], np.int32)


class Sobol(RNG):
    """A Sobol sequence in Gray-code order. seed[i] is the direction number of bit i: odd, below 2**(i + 1)."""

    def __init__(self, length: int, seed: Sequence[int] | None = None, seed_type: str = "q") -> None:
        self.length = length
        self.max_val = 1 << length
        self.seed = list(seed) if seed is not None else _default_seed(length, seed_type)
        self._directions = [(int(s) << length) >> (i + 1) for i, s in enumerate(self.seed[:length])]
        self._index = 0
        self._value = 0

    def reset(self) -> None:
        self._index = 0
        self._value = 0

    def step(self) -> int:
        """The next value, below 2**length."""
        now = self._value
        lowest_zero = (~self._index & (self._index + 1)).bit_length() - 1
        self._index += 1
        if lowest_zero < self.length:
            self._value ^= self._directions[lowest_zero]
        return now

    def simulate(self, num_cycles: int | None = None) -> Values:
        self.reset()
        return np.array([self.step() for _ in range(_cycles(num_cycles, self.length))], np.int32)

    @staticmethod
    def random_seed(length: int) -> list[int]:
        """Direction numbers drawn from Python's random module."""
        return [2 * random.randrange(1 << i) + 1 for i in range(length)]


def _cycles(num_cycles: int | None, length: int) -> int:
    return (1 << length) if num_cycles is None else num_cycles


def _default_seed(length: int, seed_type: str) -> list[int]:
    seed = [1] * length
    if seed_type == "k":
        if length == 8:
            return [1, 1, 1, 1, 9, 1, 41, 255]
        for bit, number in ((4, 9), (6, 41)):
            if bit < length:
                seed[bit] = number
    return seed


def create_rng(rng_type: str, length: int, **kwargs: Any) -> RNG:
    """An RNG by name: lfsr (seed, taps), true_random (seed) or sobol (seed or seed_type)."""
    if rng_type == "lfsr":
        return LFSR(seed=kwargs["seed"], length=length, taps=kwargs["taps"])
    if rng_type == "true_random":
        return TrueRandom(seed=kwargs["seed"], length=length)
    if rng_type == "sobol":
        return Sobol(length=length, seed=kwargs.get("seed"), seed_type=kwargs.get("seed_type", "q"))
    raise ValueError(f"rng type {rng_type}: allowed is lfsr, true_random, sobol")
