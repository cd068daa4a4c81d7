# SPDX-License-Identifier: Apache-2.0
"""Records of products for simulators of hardware: `sc_matmul` adds one where `_ENABLED`.

Standard library only, and loads by file path. Formats: docs/research.md. "summary" keeps sums by operator, block and
settings; "trace" keeps every call, and writes them to the file from time to time.

SC_MP_TRACE=FILE enables it at import, SC_MP_TRACE_MODE chooses the mode. SC_MP_TRACE_MAX_SHAPES (32) is how many
shapes one operator has groups for; what comes after shares one whose dims_vary is true. What is left at the end of the
process is written then, with "atexit": true in its header.

A context (operator, block, unit) is that of its thread.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any, TextIO

__all__ = ["clear_context", "disable", "enable", "flush", "is_enabled", "reset", "set_context"]

_MODES = ("summary", "trace")
_FACTS = ("stoc_len", "sc_prec", "halve", "mode", "granularity", "rng_levels", "chunk_d", "smoothed")
_SPILL = 100_000  # calls in memory at most
_COVERAGE = "calls of sc_matmul only: no lm_head, embeddings, router, norms or softmax"

_ENABLED = False
_MODE = "summary"
_PATH: str | None = None
_SEQ = 0
_LOCK = threading.Lock()
_TLS = threading.local()
_GROUPS: dict[tuple[Any, ...], dict[str, Any]] = {}
_SHAPES: dict[tuple[Any, ...], set[tuple[int, int]]] = {}
_TRACE: list[dict[str, Any]] = []
_FH: TextIO | None = None


def _limit() -> int:
    text = os.environ.get("SC_MP_TRACE_MAX_SHAPES", "32")
    return max(int(text), 1) if text.strip().lstrip("-").isdecimal() else 32


_MAX_SHAPES = _limit()


def is_enabled() -> bool:
    """Whether calls are recorded."""
    return _ENABLED


def enable(path: str, mode: str = "summary") -> None:
    """Records from now on, for the file `path`."""
    global _ENABLED, _MODE, _PATH
    if mode not in _MODES:
        raise ValueError(f"trace: mode = {mode!r}: allowed is summary, trace")
    if _SEQ and mode != _MODE:
        raise RuntimeError(f"trace: {_SEQ} calls of mode {_MODE} are not written: flush() or reset() before {mode}")
    _MODE, _PATH, _ENABLED = mode, path, True


def disable() -> None:
    """Records nothing more; what is there stays."""
    global _ENABLED
    _ENABLED = False


def _forget() -> None:
    global _SEQ, _FH
    _GROUPS.clear()
    _SHAPES.clear()
    _TRACE.clear()
    _SEQ = 0
    if _FH is not None:
        _FH.close()
        _FH = None


def reset() -> None:
    """Forgets what was recorded."""
    with _LOCK:
        _forget()


def set_context(op: str | None, block: int | None, unit: int | None = None) -> None:
    """Names the operator, block and unit (expert or head) of the calls of this thread that follow."""
    _TLS.context = (op, block, unit)


def clear_context() -> None:
    """No names."""
    set_context(None, None)


def record_matmul(
    *,
    rows: int,
    d_in: int,
    d_out: int,
    batch: int,
    stoc_len: int,
    sc_prec: int,
    mode: str,
    granularity: str,
    halve: bool,
    rng_levels: int | None,
    chunk_d: int,
    smoothed: bool = False,
) -> None:
    """Adds a call of `batch` products of rows x d_in by d_in x d_out."""
    global _SEQ
    op, block, unit = getattr(_TLS, "context", (None, None, None))
    values = (stoc_len, sc_prec, halve, mode, granularity, rng_levels, chunk_d, smoothed)
    total = batch * rows
    sums = {"rows": total, "macs": total * d_in * d_out, "row_cycles": total * stoc_len}
    with _LOCK:
        if _MODE == "trace":
            names = {"seq": _SEQ, "op": op, "block": block, "unit": unit}
            shape = {"rows": total, "d_in": d_in, "d_out": d_out, "batch": batch}
            _TRACE.append({**names, **shape, **dict(zip(_FACTS, values)), **sums})
            if len(_TRACE) >= _SPILL:
                _spill()
        else:
            _add((block, op, unit, *values), (d_in, d_out), sums)
        _SEQ += 1


def _add(base: tuple[Any, ...], shape: tuple[int, int], sums: dict[str, int]) -> None:
    known = _SHAPES.setdefault(base, set())
    own = shape in known or len(known) < _MAX_SHAPES
    if own:
        known.add(shape)
    fresh = {"d_in": shape[0], "d_out": shape[1], "dims_vary": not own, "calls": 0, "rows": 0, "macs": 0, "row_cycles": 0}
    group = _GROUPS.setdefault((base, shape if own else None), fresh)
    group["calls"] += 1
    for name, value in sums.items():
        group[name] += value


def _header(extra: dict[str, Any] | None) -> dict[str, Any]:
    masks = os.environ.get("SC_SCRAMBLE_MASKS", "64")
    return {
        "owen_mode": os.environ.get("SC_OWEN_MODE", "bitrev"),
        "scramble_masks": int(masks) if masks.isdecimal() else masks,
        "mode": _MODE,
        "n_records": _SEQ,
        "coverage": _COVERAGE,
        **(extra or {}),
    }


def _open(path: str) -> TextIO:
    Path(path).resolve().parent.mkdir(parents=True, exist_ok=True)
    return open(path, "w", encoding="utf-8")


def _write_calls(file: TextIO) -> None:
    file.writelines(json.dumps(call) + "\n" for call in _TRACE)
    _TRACE.clear()


def _spill() -> None:
    """Moves calls to the file; their number is not known yet, so a trailer will have it."""
    global _FH
    if _PATH is None:
        return
    if _FH is None:
        _FH = _open(_PATH)
        header = _header({"n_records": None})
        _FH.write(json.dumps({"schema": "scmp-trace-v1", "header": header}) + "\n")
    _write_calls(_FH)


def _sorted_groups() -> list[dict[str, Any]]:
    rows = []
    for (base, _), group in _GROUPS.items():
        names = dict(zip(("block", "op", "unit"), base))
        rows.append({**names, **dict(zip(_FACTS, base[3:])), **group})
    return sorted(
        rows,
        key=lambda row: (-1 if row["block"] is None else row["block"], str(row["op"]), str(row["unit"]), -row["stoc_len"]),
    )


def flush(
    path: str | None = None, header_extra: dict[str, Any] | None = None, reset_after: bool = True
) -> str | None:
    """Writes what was recorded and says where; None if there is nothing. `path` is ignored once calls were spilled."""
    global _FH
    with _LOCK:
        out = _PATH if path is None else path
        if _SEQ == 0 or out is None:
            return None
        if _FH is not None:
            if path is not None and path != _PATH:
                print(f"trace: calls are in {_PATH} already, not in {path}", file=sys.stderr)
            _write_calls(_FH)
            _FH.write(json.dumps({"trailer": True, "n_records": _SEQ, **(header_extra or {})}) + "\n")
            _FH.close()
            _FH, out = None, _PATH
        elif _MODE == "trace":
            calls = list(_TRACE)
            with _open(out) as file:
                file.write(json.dumps({"schema": "scmp-trace-v1", "header": _header(header_extra)}) + "\n")
                _write_calls(file)
            if not reset_after:
                _TRACE.extend(calls)
        else:
            with _open(out) as file:
                content = {"schema": "scmp-trace-summary-v1", "header": _header(header_extra), "groups": _sorted_groups()}
                json.dump(content, file, indent=1)
        if reset_after:
            _forget()
        return out


def _flush_at_exit() -> None:
    if _ENABLED and _SEQ:
        try:
            flush(header_extra={"atexit": True})
        except OSError as error:
            print(f"trace: {error}", file=sys.stderr)


def _enable_from_environment() -> None:
    path = os.environ.get("SC_MP_TRACE", "").strip()
    if not path:
        return
    mode = os.environ.get("SC_MP_TRACE_MODE", "summary").strip() or "summary"
    if mode not in _MODES:
        print(f"trace: SC_MP_TRACE_MODE = {mode}: allowed is summary, trace; summary is used", file=sys.stderr)
        mode = "summary"
    enable(path, mode)


atexit.register(_flush_at_exit)
_enable_from_environment()
