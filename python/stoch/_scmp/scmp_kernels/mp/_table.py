# SPDX-License-Identifier: Apache-2.0
"""Entries of a threshold table: docs/research.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

BucketKey = tuple[str, int, int]  # operator, bucket of timesteps, bucket of layers


def _bucket_index(value: int, total: int, num_buckets: int) -> int:
    """The bucket of element `value` of `total`."""
    if num_buckets <= 1 or total <= 1:
        return 0
    return min(num_buckets - 1, int(value / (total - 1) * num_buckets))


def _number(text: str, letter: str) -> int:
    if not text.startswith(letter) or not text[1:].isdecimal():
        raise ValueError(text)
    return int(text[1:])


def _parse_bucket_key(bucket_key: str) -> BucketKey:
    """("q_proj", 0, 1) of "q_proj:t0:l1"."""
    try:
        operator, timestep, layer = bucket_key.split(":")
        return operator, _number(timestep, "t"), _number(layer, "l")
    except ValueError:
        raise ValueError(f"bucket {bucket_key!r}: expected OPERATOR:tN:lN") from None


def _parse_protected_channel_key(key: str) -> tuple[str, int, int | None]:
    """("q_proj", 12, None) of "q_proj:b12", ("up_proj", 3, 7) of "up_proj:b3:u7"."""
    try:
        operator, block, *unit = key.split(":")
        if len(unit) > 1:
            raise ValueError(key)
        return operator, _number(block, "b"), _number(unit[0], "u") if unit else None
    except ValueError:
        raise ValueError(f"module {key!r}: expected OPERATOR:bN or OPERATOR:bN:uN") from None


def _extract_group_levels(payload: Any, source: str) -> list[int] | None:
    """Stream lengths of an entry of its own; None where it has none."""
    raw = payload.get("stoc_len_levels") if isinstance(payload, Mapping) else None
    if raw is None:
        return None
    levels = [int(length) for length in raw]
    if len(levels) < 2:
        raise ValueError(f"{source}: stoc_len_levels {levels}: expected >= 2 rungs")
    if any(after >= before for before, after in zip(levels, levels[1:])):
        raise ValueError(f"{source}: stoc_len_levels {levels}: expected strictly descending")
    if levels[-1] < 0:
        raise ValueError(f"{source}: stoc_len_levels {levels}: allowed is 0 and more")
    return levels


def _extract_thresholds(payload: Any, n_levels: int, source: str) -> list[float]:
    """Thresholds of an entry, one less than levels."""
    raw = payload.get("thresholds") if isinstance(payload, Mapping) else payload
    if raw is None:
        raise ValueError(f"{source}: no thresholds")
    thresholds, expected = [float(value) for value in raw], max(n_levels - 1, 0)
    if len(thresholds) != expected:
        raise ValueError(f"{source}: thresholds have length {len(thresholds)}, expected {expected} for {n_levels} levels")
    if any(not 0.0 <= value <= 1.0 for value in thresholds):
        raise ValueError(f"{source}: thresholds {thresholds}: allowed is 0..1")
    if any(after > before + 1e-6 for before, after in zip(thresholds, thresholds[1:])):
        raise ValueError(f"{source}: thresholds {thresholds}: expected non-increasing")
    return thresholds


def residual_chunk_widths(residual_width: int, chunk_d: int) -> list[int]:
    """Widths of the chunks that so many channels are cut into; the last may be shorter."""
    if residual_width <= 0 or chunk_d <= 0:
        return []
    return [min(chunk_d, residual_width - begin) for begin in range(0, residual_width, chunk_d)]


def _band_widths(band_of_chunk: Sequence[int], chunk_widths: Sequence[int], n_bands: int) -> list[int]:
    """Channels of every band."""
    return [sum(w for band, w in zip(band_of_chunk, chunk_widths) if band == b) for b in range(n_bands)]


class _Bands:
    """The section k_bands, checked: chunks of a row in bands, a ladder of lengths for each band."""

    def __init__(
        self, section: Mapping[str, Any], cap: int, parents: Any, overspend: float, underspend: float
    ) -> None:
        self.n_bands = int(section.get("n_bands", 0))
        if self.n_bands < 2:
            raise ValueError(f"k_bands: n_bands must be >= 2, got {self.n_bands}")
        self.chunk_d = int(section.get("chunk_d", 128))
        self.cap, self.overspend, self.underspend = cap, overspend, underspend
        self.residual = {str(op): int(width) for op, width in (section.get("residual_width") or {}).items()}
        if not self.residual:
            raise ValueError("k_bands: residual_width is required: the cost of a band is that of its channels")
        self.widths: dict[str, list[int]] = {}
        self.chunks: dict[tuple[str, int], list[int]] = {}
        for key, bands in (section.get("chunk_bands") or {}).items():
            self._add_chunks(key, [int(band) for band in bands])
        self.ladders: dict[BucketKey, list[list[int]]] = {}
        for key, ladders in (section.get("ladders") or {}).items():
            bucket = _parse_bucket_key(key)
            self._add_ladders(key, bucket, [[int(rung) for rung in ladder] for ladder in ladders], parents(bucket))
        silent = {operator for operator, _ in self.chunks} - {operator for operator, _, _ in self.ladders}
        if silent:
            raise ValueError(f"k_bands: chunk_bands name {', '.join(sorted(silent))}, for which there are no ladders")

    def _add_chunks(self, key: str, bands: list[int]) -> None:
        where = f"k_bands: chunk_bands {key}"
        operator, block, _ = _parse_protected_channel_key(key)
        if operator not in self.residual:
            raise ValueError(f"{where}: no residual_width of {operator}")
        widths = residual_chunk_widths(self.residual[operator], self.chunk_d)
        if len(bands) != len(widths):
            raise ValueError(f"{where}: {len(bands)} entries but the residual has {len(widths)} chunks")
        if any(not 0 <= band < self.n_bands for band in bands):
            raise ValueError(f"{where}: a band is outside of 0..{self.n_bands - 1}")
        count = max(bands) + 1
        fewest = min(bands.count(band) for band in range(count))
        if fewest < 2:
            raise ValueError(f"{where}: a band has {fewest} chunks, and needs >= 2")
        found = _band_widths(bands, widths, count)
        if self.widths.setdefault(operator, found) != found:
            raise ValueError(
                f"{where}: bands of {found} channels, in another block {self.widths[operator]}: band widths must be "
                "constant per operator"
            )
        self.chunks[(operator, block)] = bands

    def _add_ladders(self, key: str, bucket: BucketKey, ladders: list[list[int]], parent: Sequence[int]) -> None:
        where, operator = f"k_bands: ladders {key}", bucket[0]
        if not 2 <= len(ladders) <= self.n_bands:
            raise ValueError(f"{where}: {len(ladders)} ladders: allowed is 2..{self.n_bands}")
        for band, rungs in enumerate(ladders):
            if len(rungs) != len(parent):
                raise ValueError(f"{where}: band {band} has {len(rungs)} rungs but the row ladder has {len(parent)}")
            if min(rungs) <= 0:
                raise ValueError(f"{where}: band {band} has a non-positive rung: {rungs}")
            if max(rungs) > self.cap:
                raise ValueError(f"{where}: band {band} exceeds the stream-length cap {self.cap}: {rungs}")
        widths = self.widths.get(operator)
        if widths is None:
            raise ValueError(f"{where}: no matching chunk_bands of {operator}")
        if len(widths) != len(ladders):
            raise ValueError(f"{where}: {len(ladders)} ladders for {len(widths)} bands")
        for rung, length in enumerate(parent):
            mean = sum(width * ladder[rung] for width, ladder in zip(widths, ladders)) / sum(widths)
            if mean - length > self.overspend:
                raise ValueError(
                    f"{where}: OVERSPENDS at rung {rung}: {mean:.4f} cycles for {length}: allowed is {self.overspend} more"
                )
            if length - mean > self.underspend:
                raise ValueError(
                    f"{where}: UNDERSPENDS at rung {rung}: {mean:.4f} cycles for {length}: allowed is "
                    f"{self.underspend} less"
                )
        self.ladders[bucket] = ladders


def _row_chunk_entry(key: str, payload: Mapping[str, Any]) -> tuple[list[int], list[float]]:
    """(levels ascending, thresholds ascending) of an entry of per_row_chunk."""
    levels = [int(length) for length in payload["levels"]]
    thresholds = [float(value) for value in payload["thresholds"]]
    if len(levels) < 2 or levels[0] < 0 or any(after <= before for before, after in zip(levels, levels[1:])):
        raise ValueError(f"per_row_chunk {key}: levels {levels}: expected strictly ascending, at least two")
    if len(thresholds) != len(levels) - 1:
        raise ValueError(f"per_row_chunk {key}: thresholds have length {len(thresholds)}, expected {len(levels) - 1}")
    if any(not 0.0 <= v <= 1.0 for v in thresholds) or thresholds != sorted(thresholds):
        raise ValueError(f"per_row_chunk {key}: thresholds {thresholds}: expected non-decreasing in 0..1")
    return levels, thresholds
