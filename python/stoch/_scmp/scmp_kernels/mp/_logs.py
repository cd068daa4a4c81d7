# SPDX-License-Identifier: Apache-2.0
"""Records of which rows got which lengths, kept by class."""

from __future__ import annotations

import csv
from typing import Any, ClassVar

import torch

from ._classify import RowAssignment

Entry = dict[str, Any]


class AutoMPBudgetLogger:
    """Costs by block and operator while enabled: at the longest streams, and as assigned."""

    _enabled: ClassVar[bool] = False
    _log: ClassVar[list[Entry]] = []

    @classmethod
    def enable(cls) -> None:
        """Records from now on."""
        cls._enabled = True

    @classmethod
    def disable(cls) -> None:
        """Records nothing more."""
        cls._enabled = False

    @classmethod
    def clear(cls) -> None:
        """Forgets."""
        cls._log.clear()

    @classmethod
    def record(cls, block_idx: int, operator: str, baseline: float, actual: float) -> None:
        """Adds costs, where enabled."""
        if cls._enabled:
            entry = {"block": int(block_idx), "operator": operator}
            cls._log.append({**entry, "baseline": float(baseline), "actual": float(actual)})

    @classmethod
    def snapshot(cls, clear: bool = False) -> list[Entry]:
        """What was recorded."""
        entries = list(cls._log)
        if clear:
            cls.clear()
        return entries

    @classmethod
    def totals(cls, clear: bool = False) -> dict[str, float]:
        """Its sums."""
        entries = cls.snapshot(clear)
        return {name: float(sum(entry[name] for entry in entries)) for name in ("baseline", "actual")}


class MPDistributionLogger:
    """Numbers of rows at each length by timestep, block and operator, and costs where rows have several lengths."""

    _log: ClassVar[list[Entry]] = []
    _compute_log: ClassVar[list[Entry]] = []

    @classmethod
    def log(cls, timestep: int, block_idx: int, operator: str, assignment: RowAssignment, total_rows: int) -> None:
        """Adds one assignment."""
        entry: Entry = {"timestep": timestep, "block": block_idx, "operator": operator, "total_rows": total_rows}
        for length in sorted(assignment.level_row_indices, reverse=True):
            count = len(assignment.level_row_indices[length])
            entry[f"sl_{length}_count"] = count
            entry[f"sl_{length}_frac"] = round(count / max(total_rows, 1), 4)
        cls._log.append(entry)

    @classmethod
    def log_compute(cls, timestep: int, block_idx: int, operator: str, baseline: float, actual: float) -> None:
        """Adds costs: at the longest streams, and as assigned."""
        entry = {"timestep": timestep, "block": block_idx, "operator": operator}
        cls._compute_log.append({**entry, "baseline": baseline, "actual": actual})

    @classmethod
    def dump_csv(cls, path: str = "debug_mp_distribution.csv") -> None:
        """Writes the assignments and forgets them."""
        if not cls._log:
            return
        lengths = sorted({int(name.split("_")[1]) for entry in cls._log for name in entry if name.startswith("sl_")})
        columns = ["timestep", "block", "operator", "total_rows"]
        columns += [f"sl_{length}_{what}" for length in reversed(lengths) for what in ("count", "frac")]
        _write_csv(path, columns, cls._log)
        print(f"{path}: {len(cls._log)} rows")
        cls._log.clear()

    @classmethod
    def _costs(cls, max_stoc_len: int) -> dict[str, list[float]]:
        """[at the longest streams, as assigned] by operator."""
        costs: dict[str, list[float]] = {}
        exact = {entry["operator"] for entry in cls._compute_log}
        for entry in cls._compute_log:
            pair = costs.setdefault(entry["operator"], [0.0, 0.0])
            pair[0] += entry["baseline"]
            pair[1] += entry["actual"]
        for entry in cls._log:
            if entry["operator"] in exact:
                continue
            pair = costs.setdefault(entry["operator"], [0.0, 0.0])
            pair[0] += entry["total_rows"] * max_stoc_len
            pair[1] += sum(int(name.split("_")[1]) * n for name, n in entry.items() if name.endswith("_count"))
        return costs

    @classmethod
    def summary(cls, max_stoc_len: int = 256, save_path: str | None = None) -> None:
        """Prints what was saved against streams of max_stoc_len; writes it to a file too, where one is given."""
        costs = cls._costs(max_stoc_len)
        if not costs:
            print("no assignments were logged")
            return
        lines = [f"{'operator':<16}{f'at {max_stoc_len}':>16}{'assigned':>16}{'saved':>9}"]
        total = [sum(pair[i] for pair in costs.values()) for i in (0, 1)]
        for name, (baseline, actual) in [*sorted(costs.items()), ("total", (total[0], total[1]))]:
            lines.append(f"{name:<16}{baseline:>16,.0f}{actual:>16,.0f}{1 - actual / max(baseline, 1):>9.1%}")
        text = "\n".join(lines)
        print(text)
        if save_path:
            with open(save_path, "w", encoding="utf-8") as file:
                file.write(text + "\n")

    @classmethod
    def clear(cls) -> None:
        """Forgets."""
        cls._log.clear()
        cls._compute_log.clear()


class MetricProfiler:
    """Statistics of metrics by timestep, block and operator, while enabled."""

    _log: ClassVar[list[Entry]] = []
    _enabled: ClassVar[bool] = False

    @classmethod
    def enable(cls) -> None:
        """Records from now on."""
        cls._enabled = True

    @classmethod
    def disable(cls) -> None:
        """Records nothing more."""
        cls._enabled = False

    @classmethod
    def record(cls, metric: torch.Tensor, timestep: int, block_idx: int, operator: str) -> None:
        """Adds one metric, where enabled."""
        if not cls._enabled:
            return
        values = metric.to(torch.float32)
        entry: Entry = {"timestep": timestep, "block": block_idx, "operator": operator, "N": values.numel()}
        entry |= {"mean": values.mean().item(), "std": values.std().item()}
        entry |= {"min": values.min().item(), "max": values.max().item()}
        entry |= {f"q{q}": values.quantile(q / 100).item() for q in (25, 75, 95, 99)}
        cls._log.append(entry)

    @classmethod
    def dump_csv(cls, path: str = "profile_metric_sigma.csv") -> None:
        """Writes the statistics and forgets them."""
        if not cls._log:
            print("no metrics were recorded")
            return
        _write_csv(path, list(cls._log[0]), cls._log)
        print(f"{path}: {len(cls._log)} rows")
        cls._log.clear()

    @classmethod
    def clear(cls) -> None:
        """Forgets."""
        cls._log.clear()


def _write_csv(path: str, columns: list[str], rows: list[Entry]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
