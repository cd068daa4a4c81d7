# SPDX-License-Identifier: Apache-2.0
"""Taps of shift registers that visit every state but zero.

A register of n bits has the longest period where the polynomial of its taps is primitive: x has the order 2**n - 1
modulo it, which is tested with a few squarings instead of a walk.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

# Where saved taps are looked for first; what is not there is computed.
TAPS_FILE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "stoch" / "lfsr_taps.json"

Taps = list[list[int]]


def _times(a: int, b: int, modulus: int, n: int) -> int:
    """a * b modulo a polynomial of degree n over two elements."""
    product = 0
    while b:
        if b & 1:
            product ^= a
        b >>= 1
        a <<= 1
        if a >> n:
            a ^= modulus
    return product


def _power(exponent: int, modulus: int, n: int) -> int:
    """x**exponent modulo the polynomial."""
    result, square = 1, _times(2, 1, modulus, n)
    while exponent:
        if exponent & 1:
            result = _times(result, square, modulus, n)
        square = _times(square, square, modulus, n)
        exponent >>= 1
    return result


def _prime_factors(number: int) -> list[int]:
    factors, prime = [], 2
    while prime * prime <= number:
        if number % prime == 0:
            factors.append(prime)
            while number % prime == 0:
                number //= prime
        prime += 1
    return [*factors, number] if number > 1 else factors


def _is_maximal_length(taps: Sequence[int], n_bits: int, expected_period: int) -> bool:
    """Whether a register with these taps has the period 2**n_bits - 1."""
    if expected_period != (1 << n_bits) - 1 or 0 not in taps:
        return False
    # The new top bit is the xor of the taps: x**n = sum of x**tap.
    modulus = (1 << n_bits) | functools.reduce(lambda mask, tap: mask | (1 << tap), taps, 0)
    if _power(expected_period, modulus, n_bits) != 1:
        return False
    return all(_power(expected_period // prime, modulus, n_bits) != 1 for prime in _prime_factors(expected_period))


def search_taps(n_bits: int, verbose: bool = True) -> Taps:
    """Every list of taps, descending and with the top bit, of a register with the period 2**n_bits - 1."""
    period = (1 << n_bits) - 1
    found = []
    for count in range(2, n_bits + 1, 2):
        for rest in combinations(range(n_bits - 1), count - 1):
            taps = sorted((*rest, n_bits - 1), reverse=True)
            if _is_maximal_length(taps, n_bits, period):
                found.append(taps)
    if verbose:
        print(f"{n_bits} bits: {len(found)} lists of taps")
    return found


def save_taps(taps_dict: dict[int, Taps], filepath: str | os.PathLike[str] | None = None) -> None:
    """Writes taps by number of bits as JSON."""
    path = Path(TAPS_FILE if filepath is None else filepath)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({str(bits): taps for bits, taps in taps_dict.items()}, indent=2))
    print(f"wrote {path}")


def load_taps(filepath: str | os.PathLike[str] | None = None) -> dict[int, Taps]:
    """What `save_taps` wrote; {} where there is no file."""
    path = Path(TAPS_FILE if filepath is None else filepath)
    if not path.exists():
        return {}
    return {int(bits): taps for bits, taps in json.loads(path.read_text()).items()}


@functools.lru_cache(maxsize=32)
def _computed(n_bits: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(taps) for taps in search_taps(n_bits, verbose=False))


def get_taps(n_bits: int, filepath: str | os.PathLike[str] | None = None) -> Taps:
    """Taps of a register of n_bits: those of the file, or where it has none, computed."""
    saved = load_taps(filepath).get(n_bits)
    return saved if saved is not None else [list(taps) for taps in _computed(n_bits)]


def search_and_save_all_taps(
    bit_widths: Sequence[int] | None = None,
    filepath: str | os.PathLike[str] | None = None,
    verbose: bool = True,
) -> None:
    """Adds registers that the file does not have yet; default are 4, 5, 6, 7, 8, 10 and 12 bits."""
    taps = load_taps(filepath)
    for bits in (4, 5, 6, 7, 8, 10, 12) if bit_widths is None else bit_widths:
        if bits not in taps:
            taps[bits] = search_taps(bits, verbose=verbose)
    save_taps(taps, filepath)
