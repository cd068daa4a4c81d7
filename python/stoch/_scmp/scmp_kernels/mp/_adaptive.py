# SPDX-License-Identifier: Apache-2.0
"""Stream lengths by a table of thresholds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ._classify import ROW_METRIC_NAMES
from ._table import (
    BucketKey,
    _Bands,
    _bucket_index,
    _extract_group_levels,
    _extract_thresholds,
    _parse_bucket_key,
    _parse_protected_channel_key,
    _row_chunk_entry,
)


def _require_descending(levels: list[int]) -> None:
    if len(levels) < 2 or any(after >= before for before, after in zip(levels, levels[1:])):
        raise AssertionError(f"stoc_len_levels {levels}: expected at least 2 levels, strictly descending")


@dataclass
class AdaptiveMPConfig:
    """Lengths by thresholds of a table, or by fractions where target_fractions is given.

    A table has thresholds by operator and bucket of layers, and may have ladders of lengths of their own, lengths by
    bands of channels (k_bands), lengths by row and chunk (per_row_chunk), protected channels and other metrics.
    escape_gate_k: rows above metric_mean + k * metric_std of their bucket get escape_stoc_len.
    """

    # How much longer or shorter than the row's ladder the mean of its bands may be.
    K_BAND_ISO_COST_TOL: ClassVar[float] = 0.25
    K_BAND_MAX_UNDERSPEND: ClassVar[float] = 2.0

    stoc_len_levels: list[int]
    enable_pruning: bool = True
    threshold_table_path: str | None = None
    timestep_buckets: int = 1
    layer_buckets: int = 1
    operator_default_thresholds: dict[str, list[float]] = field(default_factory=dict)
    bucket_thresholds: dict[BucketKey, list[float]] = field(default_factory=dict)
    bucket_stoc_len_levels: dict[BucketKey, list[int]] = field(default_factory=dict)
    operator_default_stoc_len_levels: dict[str, list[int]] = field(default_factory=dict)
    protected_channel_stoc_len: int | None = None
    protected_channel_indices: dict[tuple[str, int, int | None], list[int]] = field(default_factory=dict)
    k_band_count: int = 0
    k_band_chunk_d: int = 128
    k_band_chunks: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    k_band_ladders: dict[BucketKey, list[list[int]]] = field(default_factory=dict)
    k_band_residual_width: dict[str, int] = field(default_factory=dict)
    dispatch_metrics: dict[str, tuple[str, float]] = field(default_factory=dict)
    target_fractions: list[float] | None = None
    escape_gate_k: float | None = None
    escape_stoc_len: int = 128
    bucket_escape_thresholds: dict[BucketKey, float] = field(default_factory=dict)
    operator_default_escape_thresholds: dict[str, float] = field(default_factory=dict)
    per_row_chunk: dict[BucketKey, tuple[list[int], list[float]]] = field(default_factory=dict)
    per_row_chunk_layer_buckets: int = 0

    def __post_init__(self) -> None:
        _require_descending(self.stoc_len_levels)
        if not self.enable_pruning:
            self.stoc_len_levels = [length for length in self.stoc_len_levels if length > 0]
        if self.escape_gate_k is not None:
            self.escape_gate_k, self.escape_stoc_len = float(self.escape_gate_k), int(self.escape_stoc_len)
            if self.escape_stoc_len <= 0:
                raise ValueError(f"escape_stoc_len = {self.escape_stoc_len}: allowed is above 0")
            if not self.threshold_table_path:
                raise ValueError("escape_gate_k needs threshold_table_path, a table with metric_mean and metric_std")
        if self.threshold_table_path:
            self.load_threshold_table(self.threshold_table_path)
        if self.target_fractions is not None:
            if len(self.target_fractions) != len(self.stoc_len_levels):
                raise AssertionError(
                    f"target_fractions has {len(self.target_fractions)} entries, stoc_len_levels "
                    f"{len(self.stoc_len_levels)}"
                )
            if abs(sum(self.target_fractions) - 1.0) >= 1e-6:
                raise AssertionError(f"target_fractions must sum to 1.0, got {sum(self.target_fractions)}")

    # ---------------------------------------------------------------------------------------------- reading ----

    def load_threshold_table(self, path: str) -> None:
        """Takes everything from a table; its levels are those given."""
        payload = json.loads(Path(path).read_text())
        levels = [int(length) for length in payload["stoc_len_levels"]]
        if levels != self.stoc_len_levels:
            raise ValueError(f"{path}: stoc_len_levels {levels} are not those given, {self.stoc_len_levels}")
        self.timestep_buckets = int(payload.get("timestep_buckets", 1))
        self.layer_buckets = int(payload.get("layer_buckets", 1))
        self.operator_default_thresholds, self.operator_default_stoc_len_levels = {}, {}
        self.operator_default_escape_thresholds = {}
        self.bucket_thresholds, self.bucket_stoc_len_levels, self.bucket_escape_thresholds = {}, {}, {}
        for operator, entry in payload.get("operator_defaults", {}).items():
            self._load_entry(operator, entry, f"operator default {operator}")
        for key, entry in payload.get("buckets", {}).items():
            self._load_entry(_parse_bucket_key(key), entry, f"bucket {key}")
        gates = self.bucket_escape_thresholds or self.operator_default_escape_thresholds
        if self.escape_gate_k is not None and not gates:
            raise ValueError(f"{path}: no metric_mean and metric_std, which escape_gate_k needs")
        halve = bool(payload.get("halve_bipolar_stoc_len", True))
        self._load_k_bands(payload.get("k_bands"), int(payload.get("sc_prec", 8)), halve)
        self._load_per_row_chunk(payload.get("per_row_chunk"))
        protected = payload.get("protected_channels") or {}
        indices = protected.get("indices") or {}
        self.protected_channel_stoc_len = int(protected.get("stoc_len", 128)) if indices else None
        self.protected_channel_indices = {
            _parse_protected_channel_key(key): [int(channel) for channel in channels]
            for key, channels in indices.items()
        }
        self.dispatch_metrics = {}
        for operator, entry in (payload.get("dispatch_metrics") or {}).items():
            name = str(entry.get("metric", "amax"))
            if name not in ROW_METRIC_NAMES:
                raise ValueError(f"{path}: metric {name!r} of {operator}: allowed is {', '.join(ROW_METRIC_NAMES)}")
            self.dispatch_metrics[operator] = (name, float(entry.get("sign", 1.0)))

    def _load_entry(self, key: Any, entry: Any, source: str) -> None:
        default = isinstance(key, str)
        own = _extract_group_levels(entry, source)
        thresholds = _extract_thresholds(entry, len(own or self.stoc_len_levels), source)
        gate = self._escape_threshold_from_payload(entry)
        tables: tuple[dict[Any, Any], dict[Any, Any], dict[Any, Any]] = (
            self.operator_default_thresholds if default else self.bucket_thresholds,
            self.operator_default_stoc_len_levels if default else self.bucket_stoc_len_levels,
            self.operator_default_escape_thresholds if default else self.bucket_escape_thresholds,
        )
        for table, value in zip(tables, (thresholds, own, gate)):
            if value is not None:
                table[key] = value

    def _load_k_bands(self, section: Mapping[str, Any] | None, sc_prec: int = 8, halve: bool = True) -> None:
        if not section:
            self.k_band_count, self.k_band_chunks, self.k_band_ladders, self.k_band_residual_width = 0, {}, {}, {}
            return
        cap = 1 << (sc_prec - 1 if halve else sc_prec)

        def parents(bucket: BucketKey) -> list[int]:
            return self._of(self.bucket_stoc_len_levels, self.operator_default_stoc_len_levels, bucket) or (
                self.stoc_len_levels
            )

        bands = _Bands(section, cap, parents, self.K_BAND_ISO_COST_TOL, self.K_BAND_MAX_UNDERSPEND)
        self.k_band_count, self.k_band_chunk_d = bands.n_bands, bands.chunk_d
        self.k_band_chunks, self.k_band_ladders = bands.chunks, bands.ladders
        self.k_band_residual_width = bands.residual

    def _load_per_row_chunk(self, section: Mapping[str, Any] | None) -> None:
        section = section or {}
        self.per_row_chunk_layer_buckets = int(section.get("layer_buckets", 0))
        self.per_row_chunk = {
            _parse_bucket_key(key): _row_chunk_entry(key, entry) for key, entry in section.get("buckets", {}).items()
        }

    def _escape_threshold_from_payload(self, bucket_payload: Any) -> float | None:
        if self.escape_gate_k is None or not isinstance(bucket_payload, Mapping):
            return None
        mean, deviation = bucket_payload.get("metric_mean"), bucket_payload.get("metric_std")
        if mean is None or deviation is None:
            return None
        return float(mean) + self.escape_gate_k * float(deviation)

    # --------------------------------------------------------------------------------------------- answering ----

    @staticmethod
    def _of(buckets: Mapping[BucketKey, Any], defaults: Mapping[str, Any], bucket: BucketKey | None) -> Any:
        if bucket is None:
            return None
        found = buckets.get(bucket)
        return defaults.get(bucket[0]) if found is None else found

    def _bucket(
        self, timestep: int, total_timesteps: int, operator: str | None, block: int | None, blocks: int | None
    ) -> BucketKey | None:
        """The bucket of a module; of an unknown layer one that no table has, so its operator default is taken."""
        if not operator:
            return None
        if block is None or blocks is None:
            return operator, -1, -1
        time = _bucket_index(timestep, total_timesteps, self.timestep_buckets)
        return operator, time, _bucket_index(block, blocks, self.layer_buckets)

    def get_thresholds(
        self,
        timestep: int,
        total_timesteps: int,
        operator: str | None = None,
        block_idx: int | None = None,
        total_blocks: int | None = None,
    ) -> list[float] | None:
        """Of the module's bucket, else of its operator, else None."""
        bucket = self._bucket(timestep, total_timesteps, operator, block_idx, total_blocks)
        found: list[float] | None = self._of(self.bucket_thresholds, self.operator_default_thresholds, bucket)
        return found

    def get_levels(
        self,
        timestep: int = 0,
        total_timesteps: int = 1,
        operator: str | None = None,
        block_idx: int | None = None,
        total_blocks: int | None = None,
    ) -> list[int]:
        """Lengths of the module's bucket, else of its operator, else stoc_len_levels itself."""
        bucket = self._bucket(timestep, total_timesteps, operator, block_idx, total_blocks)
        found: list[int] | None = self._of(self.bucket_stoc_len_levels, self.operator_default_stoc_len_levels, bucket)
        return self.stoc_len_levels if found is None else found

    def get_escape_threshold(
        self,
        timestep: int,
        total_timesteps: int,
        operator: str | None = None,
        block_idx: int | None = None,
        total_blocks: int | None = None,
    ) -> float | None:
        """The metric, from 0 to 1, above which a row escapes; None where no row does."""
        if self.escape_gate_k is None:
            return None
        bucket = self._bucket(timestep, total_timesteps, operator, block_idx, total_blocks)
        found: float | None = self._of(self.bucket_escape_thresholds, self.operator_default_escape_thresholds, bucket)
        return found

    def classify_level_values(
        self,
        timestep: int = 0,
        total_timesteps: int = 1,
        operator: str | None = None,
        block_idx: int | None = None,
        total_blocks: int | None = None,
    ) -> list[int]:
        """The length of every index of row_levels: the ladder, and after it escape_stoc_len where it is not in there."""
        levels = self.get_levels(timestep, total_timesteps, operator, block_idx, total_blocks)
        if self.escape_gate_k is None or self.escape_stoc_len in levels:
            return levels
        return [*levels, self.escape_stoc_len]

    def get_dispatch_metric(self, operator: str | None) -> tuple[str, float]:
        """(metric, sign)"""
        return self.dispatch_metrics.get(operator or "", ("amax", 1.0))

    def get_protected_channels(
        self, operator: str | None = None, block_idx: int | None = None, unit_idx: int | None = None
    ) -> list[int] | None:
        """Input channels of a module that have a product of their own; those of its block where its unit has none."""
        if not operator or block_idx is None:
            return None
        found = self.protected_channel_indices.get((operator, int(block_idx), unit_idx))
        return self.protected_channel_indices.get((operator, int(block_idx), None)) if found is None else found

    def get_k_bands(
        self,
        operator: str | None,
        block_idx: int | None,
        total_blocks: int | None,
        *,
        timestep: int = 0,
        total_timesteps: int = 1,
    ) -> tuple[list[int], list[list[int]]] | None:
        """(the band of each chunk, the ladder of each band); None where rows are not cut."""
        if not self.k_band_count or operator is None or block_idx is None:
            return None
        bands = self.k_band_chunks.get((operator, int(block_idx)))
        time = _bucket_index(timestep, total_timesteps, self.timestep_buckets)
        layer = 0 if total_blocks is None else _bucket_index(block_idx, total_blocks, self.layer_buckets)
        ladders = self.k_band_ladders.get((operator, time, layer))
        return None if bands is None or ladders is None else (bands, ladders)

    def get_per_row_chunk(
        self, operator: str | None, block_idx: int | None, total_blocks: int | None = None
    ) -> tuple[list[int], list[float]] | None:
        """(levels, thresholds), both ascending, of a module whose lengths differ by row and chunk; None of others."""
        if not operator or block_idx is None:
            return None
        buckets = self.per_row_chunk_layer_buckets or self.layer_buckets
        layer = 0 if total_blocks is None else _bucket_index(block_idx, total_blocks, buckets)
        return self.per_row_chunk.get((operator, 0, layer))
