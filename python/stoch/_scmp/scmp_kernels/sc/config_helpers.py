# SPDX-License-Identifier: Apache-2.0
"""Configurations of number sources: {"rng_pool": [sources], "sng": {"q": [channels of a], "k": [channels of b]}}.

A channel names its source (rng_id), may permute the bits of its values (scramble) and may mirror them (complement).
"""

from __future__ import annotations

import json
import os
import random
from datetime import datetime
from pathlib import Path
from typing import Any

from .lfsr_taps import get_taps, load_taps
from .rng import Sobol
from .sng import generate_random_permutation, reverse_permutation

__all__ = [
    "CONFIG_DIR",
    "CONFIG_REGISTRY_FILE",
    "get_default_taps",
    "get_taps_choices",
    "list_saved_configs",
    "load_best_config",
    "load_config",
    "load_taps",
    "make_default_config",
    "make_fully_independent_config",
    "make_independent_config",
    "make_per_element_scramble_config",
    "make_random_config",
    "make_separated_random_config",
    "make_single_rng_reverse_config",
    "make_sobol_altseed_config",
    "make_sobol_antithetic_config",
    "make_sobol_custom_seed_config",
    "make_sobol_dse_config",
    "make_sobol_simple_config",
    "save_best_config",
    "save_config",
]

# Where configurations are saved by default: not next to this file, which may be installed read-only.
CONFIG_DIR = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "stoch" / "scmp_configs"
CONFIG_REGISTRY_FILE = CONFIG_DIR / "config_registry.json"

Config = dict[str, Any]
Bits = list[int]


def get_taps_choices(sc_prec: int) -> list[list[int]]:
    """Every list of taps of a register of sc_prec bits with the longest period."""
    taps = get_taps(sc_prec)
    if not taps:
        raise ValueError(f"sc_prec = {sc_prec}: no register of so many bits has taps")
    return taps


def get_default_taps(sc_prec: int) -> list[int]:
    """The first of them."""
    return get_taps_choices(sc_prec)[0]


def _channel(rng_id: int, scramble: Bits | None = None) -> Config:
    return {"rng_id": rng_id, "scramble": scramble}


def _config(pool: list[Config], q: list[Config], k: list[Config]) -> Config:
    return {"rng_pool": pool, "sng": {"q": q, "k": k}}


def _uniform(pool: list[Config], q_e: int, k_e: int, q: Config, k: Config) -> Config:
    """All channels of a side alike."""
    return _config(pool, [dict(q) for _ in range(q_e)], [dict(k) for _ in range(k_e)])


def _lfsr(seed: int, taps: list[int]) -> Config:
    return {"type": "lfsr", "seed": seed, "taps": taps}


def _random_lfsr(sc_prec: int, choices: list[list[int]]) -> Config:
    taps = random.choice(choices)
    return _lfsr(random.randint(1, (1 << sc_prec) - 1), taps)


def _maybe_permuted(count: int, rng_id: int, sc_prec: int, use_scrambling: bool) -> list[Config]:
    """Channels of which about half permute their bits."""
    return [
        _channel(rng_id, generate_random_permutation(sc_prec) if use_scrambling and random.random() > 0.5 else None)
        for _ in range(count)
    ]


def _equal_sides(q_e: int, k_e: int) -> None:
    if q_e != k_e:
        raise AssertionError(f"q_e = {q_e}, k_e = {k_e}: expected as many, channels are paired")


def make_default_config(
    q_e: int, k_e: int, sc_prec: int, taps: list[int] | None = None, seed: int = 125
) -> Config:
    """One shift register; side k reads its bits in reverse."""
    pool = [_lfsr(seed, get_default_taps(sc_prec) if taps is None else taps)]
    return _uniform(pool, q_e, k_e, _channel(0), _channel(0, reverse_permutation(sc_prec)))


def make_independent_config(
    q_e: int,
    k_e: int,
    sc_prec: int,
    q_taps: list[int],
    k_taps: list[int],
    q_seed: int,
    k_seed: int,
    q_scramble: Bits | None = None,
    k_scramble: Bits | None = None,
) -> Config:
    """A shift register for each side."""
    pool = [_lfsr(q_seed, q_taps), _lfsr(k_seed, k_taps)]
    return _uniform(pool, q_e, k_e, _channel(0, q_scramble), _channel(1, k_scramble))


def make_per_element_scramble_config(
    q_e: int, k_e: int, sc_prec: int, taps: list[int] | None = None, seed: int = 125, k_reverse_of_q: bool = True
) -> Config:
    """One shift register; every channel permutes its bits, side k in reverse of q or at random."""
    _equal_sides(q_e, k_e)
    pool = [_lfsr(seed, get_default_taps(sc_prec) if taps is None else taps)]
    q, k = [], []
    for _ in range(q_e):
        scramble = generate_random_permutation(sc_prec)
        q.append(_channel(0, scramble))
        k.append(_channel(0, scramble[::-1] if k_reverse_of_q else generate_random_permutation(sc_prec)))
    return _config(pool, q, k)


def make_fully_independent_config(
    q_e: int, k_e: int, sc_prec: int, taps_choices: list[list[int]] | None = None
) -> Config:
    """A shift register of its own for every channel."""
    choices = get_taps_choices(sc_prec) if taps_choices is None else taps_choices
    pool = [_random_lfsr(sc_prec, choices) for _ in range(q_e + k_e)]
    return _config(pool, [_channel(i) for i in range(q_e)], [_channel(q_e + i) for i in range(k_e)])


def make_separated_random_config(
    q_e: int, k_e: int, sc_prec: int, taps_choices: list[list[int]] | None = None
) -> Config:
    """A random shift register for each side."""
    choices = get_taps_choices(sc_prec) if taps_choices is None else taps_choices
    pool = [_random_lfsr(sc_prec, choices), _random_lfsr(sc_prec, choices)]
    return _uniform(pool, q_e, k_e, _channel(0), _channel(1))


def make_random_config(
    q_e: int,
    k_e: int,
    sc_prec: int,
    taps_choices: list[list[int]] | None = None,
    use_scrambling: bool = True,
) -> Config:
    """The same with random permutations of bits in about half of the channels."""
    choices = get_taps_choices(sc_prec) if taps_choices is None else taps_choices
    pool = [_random_lfsr(sc_prec, choices), _random_lfsr(sc_prec, choices)]
    return _config(
        pool, _maybe_permuted(q_e, 0, sc_prec, use_scrambling), _maybe_permuted(k_e, 1, sc_prec, use_scrambling)
    )


def make_single_rng_reverse_config(
    q_e: int,
    k_e: int,
    sc_prec: int,
    taps_choices: list[list[int]] | None = None,
    use_per_element_scrambling: bool = True,
) -> Config:
    """One random shift register; side k reads the bits of q in reverse."""
    _equal_sides(q_e, k_e)
    choices = get_taps_choices(sc_prec) if taps_choices is None else taps_choices
    pool = [_random_lfsr(sc_prec, choices)]
    if not use_per_element_scrambling:
        return _uniform(pool, q_e, k_e, _channel(0), _channel(0, reverse_permutation(sc_prec)))
    scrambles = [generate_random_permutation(sc_prec) for _ in range(q_e)]
    return _config(pool, [_channel(0, s) for s in scrambles], [_channel(0, s[::-1]) for s in scrambles])


def make_sobol_simple_config(q_e: int, k_e: int, sc_prec: int = 8) -> Config:
    """The default Sobol sequences of the two sides."""
    return _uniform(_sobol_pool(), q_e, k_e, _channel(0), _channel(1))


def _sobol_pool() -> list[Config]:
    return [{"type": "sobol", "seed_type": "q"}, {"type": "sobol", "seed_type": "k"}]


def make_sobol_antithetic_config(q_e: int, k_e: int, sc_prec: int = 8) -> Config:
    """The default Sobol sequences, the values of side k mirrored: x becomes 2**sc_prec - 1 - x."""
    return _uniform(_sobol_pool(), q_e, k_e, _channel(0), {**_channel(1), "complement": True})


def make_sobol_altseed_config(
    q_e: int, k_e: int, sc_prec: int = 8, k_seed: list[int] | None = None
) -> Config:
    """The default sequence of q, other direction numbers for k: 1, 3, 7, 15, ... unless given."""
    seed = [(2 << bit) - 1 for bit in range(sc_prec)] if k_seed is None else list(k_seed)
    return _uniform(
        [{"type": "sobol", "seed_type": "q"}, {"type": "sobol", "seed": seed}], q_e, k_e, _channel(0), _channel(1)
    )


def make_sobol_dse_config(q_e: int, k_e: int, sc_prec: int, use_scrambling: bool = True) -> Config:
    """Random direction numbers for each side, and random permutations of bits in about half of the channels."""
    pool = [{"type": "sobol", "seed": Sobol.random_seed(sc_prec)} for _ in range(2)]
    return _config(
        pool, _maybe_permuted(q_e, 0, sc_prec, use_scrambling), _maybe_permuted(k_e, 1, sc_prec, use_scrambling)
    )


def make_sobol_custom_seed_config(
    q_e: int,
    k_e: int,
    sc_prec: int,
    q_seed: list[int] | None = None,
    k_seed: list[int] | None = None,
    use_scrambling: bool = False,
) -> Config:
    """Given direction numbers; with use_scrambling every channel permutes its bits at random."""
    pool = [{"type": "sobol", "seed": q_seed, "seed_type": "q"}, {"type": "sobol", "seed": k_seed, "seed_type": "k"}]

    def channels(count: int, rng_id: int) -> list[Config]:
        return [_channel(rng_id, generate_random_permutation(sc_prec) if use_scrambling else None) for _ in range(count)]

    return _config(pool, channels(q_e, 0), channels(k_e, 1))


# ------------------------------------------------------------------------------------------------------- files ----


def save_config(
    config: Config,
    filepath: str | os.PathLike[str] | None = None,
    operation: str = "matmul",
    sc_prec: int = 8,
    binary_prec: str = "fp8_e4m3",
    operand_sizes: Config | None = None,
    error: float | None = None,
    input_seed: int | None = None,
    dse_params: Config | None = None,
    notes: str = "",
) -> Path:
    """Writes {"metadata", "config"} as JSON and says where."""
    now = datetime.now()
    if filepath is None:
        CONFIG_DIR.mkdir(parents=True, exist_ok=True)
        filepath = CONFIG_DIR / f"{operation}_{sc_prec}bit_{now.strftime('%Y%m%d_%H%M%S')}.json"
    metadata = {
        "operation": operation,
        "sc_prec": sc_prec,
        "binary_prec": binary_prec,
        "operand_sizes": operand_sizes or {},
        "error": error,
        "input_seed": input_seed,
        "created_at": now.isoformat(),
        "dse_params": dse_params,
        "notes": notes,
    }
    path = Path(filepath)
    path.write_text(json.dumps({"metadata": metadata, "config": config}, indent=2))
    return path


def load_config(filepath: str | os.PathLike[str]) -> tuple[Config, Config]:
    """(config, metadata) of a file of `save_config`."""
    content = json.loads(Path(filepath).read_text())
    return content["config"], content["metadata"]


def save_best_config(
    config: Config,
    error: float,
    operation: str = "matmul",
    sc_prec: int = 8,
    binary_prec: str = "fp8_e4m3",
    operand_sizes: Config | None = None,
    input_seed: int | None = None,
    dse_params: Config | None = None,
    notes: str = "",
) -> Path:
    """Saves it, and registers it where no configuration of that kind has an error as small."""
    path = save_config(
        config,
        operation=operation,
        sc_prec=sc_prec,
        binary_prec=binary_prec,
        operand_sizes=operand_sizes,
        error=error,
        input_seed=input_seed,
        dse_params=dse_params,
        notes=notes,
    )
    registry = _load_registry()
    key = _registry_key(operation, sc_prec, binary_prec)
    before = registry.get(key, {}).get("error")
    if before is None or error < before:
        registry[key] = {
            "filepath": str(path),
            "error": error,
            "operation": operation,
            "sc_prec": sc_prec,
            "binary_prec": binary_prec,
            "operand_sizes": operand_sizes,
            "input_seed": input_seed,
            "updated_at": datetime.now().isoformat(),
        }
        CONFIG_REGISTRY_FILE.write_text(json.dumps(registry, indent=2))
    return path


def load_best_config(
    operation: str = "matmul", sc_prec: int = 8, binary_prec: str = "fp8_e4m3"
) -> tuple[Config | None, Config | None]:
    """(config, metadata) of the registered one, or (None, None)."""
    entry = _load_registry().get(_registry_key(operation, sc_prec, binary_prec))
    if entry is None or not Path(entry["filepath"]).exists():
        return None, None
    return load_config(entry["filepath"])


def list_saved_configs() -> list[Config]:
    """What is registered."""
    return list(_load_registry().values())


def _registry_key(operation: str, sc_prec: int, binary_prec: str) -> str:
    return f"{operation}_{sc_prec}bit_{binary_prec}"


def _load_registry() -> dict[str, Config]:
    if not CONFIG_REGISTRY_FILE.exists():
        return {}
    registry: dict[str, Config] = json.loads(CONFIG_REGISTRY_FILE.read_text())
    return registry
