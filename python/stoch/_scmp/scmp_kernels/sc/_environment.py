# SPDX-License-Identifier: Apache-2.0
"""What environment variables say, read at every call."""

from __future__ import annotations

import os


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


def _keeps_cum_indicator() -> bool:
    """Whether chunked products keep their configurations."""
    return os.environ.get("SC_CUM_INDICATOR_CACHE", "1") != "0"
