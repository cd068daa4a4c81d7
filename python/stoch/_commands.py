# SPDX-License-Identifier: Apache-2.0
"""Commands in process: each returns a list of flat dicts, which pandas.DataFrame takes."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stoch import _safetensors, _stoch
from stoch._config import ModelConfig
from stoch._progress import ProgressArgument, reporter
from stoch._rows import Row, flatten

Path = str | os.PathLike[str]


def _flags(options: Mapping[str, Any]) -> list[str]:
    """Options as the command line takes them: None and False are left out, numbers of a list are joined by commas."""
    flags: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            flags.append(flag)
        elif isinstance(value, (str, os.PathLike, int, float)):
            flags.append(f"{flag}={os.fspath(value) if isinstance(value, os.PathLike) else value}")
        elif all(isinstance(item, str) for item in value):
            flags += [f"{flag}={item}" for item in value]
        else:
            flags.append(f"{flag}={','.join(str(item) for item in value)}")
    return flags


def run(command: str, arguments: Sequence[str], options: Mapping[str, Any], progress: ProgressArgument) -> str:
    """What `stoch COMMAND ARGUMENTS --option=value ...` prints; a check that fails is no error here."""
    with reporter(progress, command) as report:
        printed, _ = _stoch.run_command([command, *arguments, *_flags(options)], report)
    return printed


def _settings(sc: str | Sequence[str] | ModelConfig | None) -> list[str] | None:
    if isinstance(sc, ModelConfig):
        return sc.settings
    return [sc] if isinstance(sc, str) else None if sc is None else list(sc)


def verify(
    model: Path = "demo",
    *,
    device: str = "auto",
    only: Sequence[str] = (),
    goldens: Path | None = None,
    hashes: Path | None = None,
    progress: ProgressArgument = None,
) -> list[Row]:
    """The checks of `stoch verify`: a row {name, passed, detail} for each.

    >>> import stoch
    >>> [row["passed"] for row in stoch.verify("demo", device="cpu", only=["product.halved"])]
    [True]
    """
    with reporter(progress, "verify") as report:
        rows = _stoch.verify(
            os.fspath(model),
            device,
            list(only),
            "" if goldens is None else os.fspath(goldens),
            "" if hashes is None else os.fspath(hashes),
            report,
        )
    return [{"name": name, "passed": passed, "detail": detail} for name, passed, detail in rows]


def bench(
    model: Path | None = None,
    *,
    precision: str | Sequence[str] = (),
    sc: str | Sequence[str] | ModelConfig | None = None,
    prompt: int | Sequence[int] | None = None,
    decode: int | None = None,
    depth: int | Sequence[int] | None = None,
    batch: int | Sequence[int] | None = None,
    temperature: float | Sequence[float] | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    logprobs: int | None = None,
    repetitions: int = 5,
    device: str = "auto",
    device_map: str = "auto",
    max_memory: str | None = None,
    split: str = "layer",
    threads: int = 0,
    cpu_variant: str | None = None,
    progress: ProgressArgument = None,
) -> list[Row]:
    """The measurements of `stoch bench`: a row for each test and precision, with what loading it took as `load.*`.

    >>> import stoch
    >>> rows = stoch.bench("demo", device="cpu", precision="sc", prompt=8, decode=2, repetitions=1)
    >>> [(row["test"], row["precision"], row["median_ms"] > 0) for row in rows]
    [('prompt', 'sc', True), ('decode', 'sc', True)]
    """
    options = {
        "model": model,
        "precision": [precision] if isinstance(precision, str) else list(precision),
        "sc": _settings(sc),
        "prompt": prompt,
        "decode": decode,
        "depth": depth,
        "batch": batch,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "logprobs": logprobs,
        "repetitions": repetitions,
        "device": device,
        "device_map": device_map,
        "max_memory": max_memory,
        "split": split,
        "threads": threads,
        "cpu_variant": cpu_variant,
        "json": True,
    }
    report = json.loads(run("bench", [], options, progress))
    loads = {load["precision"]: load for load in report["loads"]}
    return [
        flatten(
            {
                **result,
                "read_bytes_per_s": report["read_bytes_per_s"],
                "load": {key: value for key, value in loads[result["precision"]].items() if key != "precision"},
            }
        )
        for result in report["results"]
    ]


def calibrate(
    kind: str,
    model: Path,
    *,
    file: Path,
    output: Path,
    alpha: float | None = None,
    share: bool = False,
    bits: int | None = None,
    ctx: int | None = None,
    max_windows: int | None = None,
    tokenizer: Path | None = None,
    device: str = "auto",
    threads: int = 0,
    progress: ProgressArgument = None,
) -> list[Row]:
    """Smoothing factors of `stoch calibrate KIND` from the text in `file`, written to `output`.

    A row for each smoothed linear: {layer, op, in_features, min, mean, max} and the metadata of the file.
    """
    options = {
        "model": model,
        "file": file,
        "output": output,
        "alpha": alpha,
        "share": share,
        "bits": bits,
        "ctx": ctx,
        "max_windows": max_windows,
        "tokenizer": tokenizer,
        "device": device,
        "threads": threads,
    }
    run("calibrate", [kind], options, progress)
    tensors, metadata = _safetensors.read(output)
    rows = []
    for name, values in tensors.items():
        _, layer, op = name.split(".")
        rows.append(
            {
                "layer": int(layer),
                "op": op,
                "in_features": int(values.size),
                "min": float(values.min()),
                "mean": float(values.mean(dtype=np.float64)),
                "max": float(values.max()),
                **metadata,
            }
        )
    return sorted(rows, key=lambda row: int(row["layer"]))


def profile(
    model: Path,
    *,
    file: Path,
    sc: str | Sequence[str] | ModelConfig | None = None,
    mode: str = "local",
    heads: bool = False,
    ctx: int | None = None,
    max_windows: int | None = None,
    array: str | None = None,
    tokenizer: Path | None = None,
    device: str = "auto",
    threads: int = 0,
    progress: ProgressArgument = None,
) -> list[Row]:
    """The errors of `stoch profile` over the text in `file`: a row for each layer and operator (and head).

    Each of several `sc` is a configuration of its own. What belongs to the whole of one (perplexity, KL, sc_cost) is in
    its rows as `run.*`.
    """
    options = {
        "model": model,
        "file": file,
        "sc": _settings(sc),
        "mode": mode,
        "heads": heads,
        "ctx": ctx,
        "max_windows": max_windows,
        "array": array,
        "tokenizer": tokenizer,
        "device": device,
        "threads": threads,
        "quiet": True,
        "output": "jsonl",
    }
    printed = [json.loads(line) for line in run("profile", [], options, progress).splitlines()]
    rows = [row for row in printed if row["schema"] == "stoch-profile-v1"]
    shared = {key for row in rows for key in row}
    runs = {row["config"]: row for row in printed if row["schema"] == "stoch-profile-config-v1"}
    return [
        flatten({**row, "run": {key: value for key, value in runs[row["config"]].items() if key not in shared}})
        for row in rows
    ]


def sweep(
    plan: Mapping[str, Any] | Path,
    *,
    output: Path,
    resume: bool = False,
    shard: str | None = None,
    plot: str | None = None,
    timing: bool = False,
    device: str = "auto",
    threads: int = 0,
    progress: ProgressArgument = None,
) -> list[Row]:
    """The configurations of `stoch sweep` by a plan, a dict or a JSON file: a row for each in `output`, which is returned.

    A configuration that fails is a row with `error`, and the others run.
    """
    options = {
        "output": output,
        "resume": resume,
        "shard": shard,
        "plot": plot,
        "timing": timing,
        "device": device,
        "threads": threads,
    }
    if isinstance(plan, Mapping):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.json")
            with open(path, "w", encoding="utf-8") as made:
                json.dump(plan, made)
            run("sweep", [path], options, progress)
    else:
        run("sweep", [os.fspath(plan)], options, progress)
    with open(output, encoding="utf-8") as lines:
        return [flatten(json.loads(line)) for line in lines]


def trace_cost(
    trace: Path,
    *,
    energy: Path | None = None,
    array: str | None = None,
    tile_rows: Sequence[int] | None = None,
    accelergy: Path | None = None,
    usystolic: Path | None = None,
) -> list[Row]:
    """Stream lengths, cycles and energy of a trace, as `stoch cost` tells them: one row."""
    options = {
        "energy": energy,
        "array": array,
        "tile_rows": tile_rows,
        "accelergy": accelergy,
        "usystolic": usystolic,
        "json": True,
    }
    return [flatten(json.loads(run("cost", [os.fspath(trace)], options, False)))]
