# SPDX-License-Identifier: Apache-2.0
"""Commands in process: each returns a list of flat dicts, which pandas.DataFrame takes."""

from __future__ import annotations

import contextlib
import json
import numbers
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path as _File
from typing import Any

import numpy as np

from stoch import _safetensors, _stoch
from stoch._arguments import check_name, check_text, check_texts, name_or_none
from stoch._config import ModelConfig, Settings, settings_of
from stoch._progress import ProgressArgument, reporter
from stoch._rows import Plot, Row, Rows, flatten, plots_in

Path = str | os.PathLike[str]


def _flags(options: Mapping[str, Any]) -> list[str]:
    """Options as the command line takes them: None and False are left out, numbers of a list are joined by commas."""
    flags: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, np.bool_):
            value = bool(value)
        if value is None or value is False:
            continue
        if value is True:
            flags.append(flag)
        elif isinstance(value, (str, os.PathLike, numbers.Real)):
            flags.append(f"{flag}={_text(name, value)}")
        elif not isinstance(value, Iterable) or isinstance(value, bytes):
            raise _stoch.InvalidInput(f"{name} is a {type(value).__name__}: allowed is a number, a str or a list of either")
        else:
            items = list(value)
            texts = [_text(name, item) for item in items]
            if all(isinstance(item, (str, os.PathLike)) for item in items):
                flags += [f"{flag}={text}" for text in texts]
            else:
                flags.append(f"{flag}={','.join(texts)}")
    return flags


def _text(name: str, value: Any) -> str:
    """A number or a text as an option has it."""
    if isinstance(value, numbers.Real):
        return str(value)
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if "\0" in check_text(name, text):
        raise _stoch.InvalidInput(f"{name} holds a NUL character")
    return str(text)


def run(command: str, arguments: Sequence[str], options: Mapping[str, Any], progress: ProgressArgument) -> str:
    """What `stoch COMMAND ARGUMENTS --option=value ...` prints; a check that fails is no error here."""
    arguments = [_text("argument", argument) for argument in arguments]
    with reporter(progress, command) as report:
        printed, _ = _stoch.run_command([command, *arguments, *_flags(options)], report)
    return printed


def _configuration(
    sc: Settings | Sequence[Settings] | ModelConfig | None, files: Mapping[str, Path | str | int | None], each: bool
) -> dict[str, Any]:
    """--sc and its files as options. `each`: several settings are as many configurations, a ModelConfig is one."""
    options: dict[str, Any] = dict(files)
    if isinstance(sc, ModelConfig):
        own = sc.file_options
        if own and any(value is not None for value in files.values()):
            raise _stoch.InvalidInput("mp, smooth and mask: sc is a ModelConfig, which has files of its own")
        options |= own
        settings = [",".join(sc.settings)] if each else sc.settings
    else:
        settings = settings_of(sc)
    return {"sc": settings, **options}


def verify(
    model: Path = "demo",
    *,
    device: str = "auto",
    only: str | Sequence[str] = (),
    goldens: Path | None = None,
    hashes: Path | None = None,
    progress: ProgressArgument = None,
) -> Rows:
    """The checks of `stoch verify`: a row {name, passed, detail} for each.

    >>> import stoch
    >>> [row["passed"] for row in stoch.verify("demo", device="cpu", only=["product.halved"])]
    [True]
    """
    with reporter(progress, "verify") as report:
        rows = _stoch.verify(
            check_name("model", model),
            check_text("device", device),
            check_texts("only", [only] if isinstance(only, str) else only),
            name_or_none("goldens", goldens),
            name_or_none("hashes", hashes),
            report,
        )
    return Rows({"name": name, "passed": passed, "detail": detail} for name, passed, detail in rows)


def bench(
    model: Path | None = None,
    *,
    precision: str | Sequence[str] = (),
    sc: Settings | Sequence[Settings] | ModelConfig | None = None,
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
    pass_rows: int = 0,
    threads: int = 0,
    cpu_variant: str | None = None,
    mp: Path | None = None,
    mp_normalise: str | None = None,
    smooth: Path | None = None,
    mask: Path | None = None,
    mask_bits: int | None = None,
    progress: ProgressArgument = None,
) -> Rows:
    """The measurements of `stoch bench`: a row for each test and precision, with what loading it took as `load.*`.

    >>> import stoch
    >>> rows = stoch.bench("demo", device="cpu", precision="sc", prompt=8, decode=2, repetitions=1)
    >>> [(row["test"], row["precision"], row["median_ms"] > 0) for row in rows]
    [('prompt', 'sc', True), ('decode', 'sc', True)]
    """
    files = {"mp": mp, "mp_normalise": mp_normalise, "smooth": smooth, "mask": mask, "mask_bits": mask_bits}
    options = {
        "model": model,
        "precision": [precision] if isinstance(precision, str) else list(precision),
        **_configuration(sc, files, each=False),
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
        "pass_rows": pass_rows,
        "threads": threads,
        "cpu_variant": cpu_variant,
        "json": True,
    }
    report = json.loads(run("bench", [], options, progress))
    loads = {load["precision"]: load for load in report["loads"]}
    return Rows(
        flatten(
            {
                **result,
                "read_bytes_per_s": report["read_bytes_per_s"],
                "load": {key: value for key, value in loads[result["precision"]].items() if key != "precision"},
            }
        )
        for result in report["results"]
    )


def calibrate(
    kind: str,
    model: Path,
    *,
    file: Path,
    output: Path,
    alpha: float | None = None,
    share: bool = False,
    bits: int | None = None,
    levels: Sequence[int] | None = None,
    budget: float | None = None,
    ref: int | None = None,
    chunks: bool = False,
    layer_buckets: int | None = None,
    weights: Path | None = None,
    metric: str | None = None,
    sign: int | None = None,
    protect: float | None = None,
    sc: Settings | Sequence[Settings] | None = None,
    mp: Path | None = None,
    smooth: Path | None = None,
    mask: Path | None = None,
    mask_bits: int | None = None,
    ctx: int | None = None,
    max_windows: int | None = None,
    tokenizer: Path | None = None,
    device: str = "auto",
    threads: int = 0,
    progress: ProgressArgument = None,
) -> Rows:
    """What `stoch calibrate KIND` finds in the text in `file`, written to `output`.

    "smoothquant", "awq"  smoothing factors: a row for each smoothed linear, {layer, op, in_features, min, mean, max} and
                          the metadata of the file
    "mp", "rescale"       thresholds of mixed stream lengths: a row for each bucket, {bucket, chunks, thresholds, ...} and
                          what the file says of all of them
    """
    options = {
        "model": model,
        "file": file,
        "output": output,
        "alpha": alpha,
        "share": share,
        "bits": bits,
        "levels": levels,
        "budget": budget,
        "ref": ref,
        "chunks": chunks,
        "layer_buckets": layer_buckets,
        "weights": weights,
        "metric": metric,
        "sign": sign,
        "protect": protect,
        **_configuration(sc, {"mp": mp, "smooth": smooth, "mask": mask, "mask_bits": mask_bits}, each=False),
        "ctx": ctx,
        "max_windows": max_windows,
        "tokenizer": tokenizer,
        "device": device,
        "threads": threads,
    }
    run("calibrate", [kind], options, progress)
    return Rows(_length_rows(output) if kind in ("mp", "rescale") else _scale_rows(output))


def _scale_rows(file: Path) -> list[Row]:
    tensors, metadata = _safetensors.read(file)
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


def _length_rows(file: Path) -> list[Row]:
    table = json.loads(_File(file).read_text(encoding="utf-8"))
    found = [(False, table.pop("operator_defaults", {})), (False, table.pop("buckets", {}))]
    by_chunk = table.pop("per_row_chunk", None)
    if by_chunk is not None:
        found.append((True, by_chunk["buckets"]))
    table.pop("protected_channels", None)
    shared = flatten(table)
    return [
        {"bucket": name, "chunks": chunks, **flatten(bucket), **shared}
        for chunks, buckets in found
        for name, bucket in buckets.items()
    ]


@contextlib.contextmanager
def _folder(path: Path | bool | None) -> Iterator[str | None]:
    """The folder for figures: `path`, one that ends with the block where it is True, None where there are to be none."""
    if path is None or path is False:
        yield None
    elif path is True:
        with tempfile.TemporaryDirectory() as made:
            yield made
    else:
        yield os.fspath(path)


def profile(
    model: Path,
    *,
    file: Path,
    sc: Settings | Sequence[Settings] | ModelConfig | None = None,
    mode: str = "local",
    heads: bool = False,
    ctx: int | None = None,
    max_windows: int | None = None,
    mp: Path | None = None,
    mp_normalise: str | None = None,
    smooth: Path | None = None,
    mask: Path | None = None,
    mask_bits: int | None = None,
    array: str | None = None,
    tile_rows: Sequence[int] | None = None,
    energy: Path | None = None,
    trace: Path | None = None,
    trace_mode: str | None = None,
    plot: Path | bool | None = None,
    tokenizer: Path | None = None,
    device: str = "auto",
    threads: int = 0,
    progress: ProgressArgument = None,
) -> Rows:
    """The errors of `stoch profile` over the text in `file`: a row for each layer and operator (and head).

    Each of several `sc` is a configuration of its own. What belongs to the whole of one (perplexity, KL, sc_cost) is in
    its rows as `run.*`. `plot`: a folder for figures, or True; they are the `plots` of what is returned.
    """
    files = {"mp": mp, "mp_normalise": mp_normalise, "smooth": smooth, "mask": mask, "mask_bits": mask_bits}
    options = {
        "model": model,
        "file": file,
        **_configuration(sc, files, each=True),
        "mode": mode,
        "heads": heads,
        "ctx": ctx,
        "max_windows": max_windows,
        "array": array,
        "tile_rows": tile_rows,
        "energy": energy,
        "trace": trace,
        "trace_mode": trace_mode,
        "tokenizer": tokenizer,
        "device": device,
        "threads": threads,
        "quiet": True,
        "output": "jsonl",
    }
    plots: list[Plot] = []
    with _folder(plot) as folder:
        text = run("profile", [], {**options, "plot": folder}, progress)
        if folder is not None:
            plots = plots_in(sorted(_File(folder).glob("*.svg")))
    printed = [json.loads(line) for line in text.splitlines()]
    rows = [row for row in printed if row["schema"] == "stoch-profile-v1"]
    shared = {key for row in rows for key in row}
    runs = {row["config"]: row for row in printed if row["schema"] == "stoch-profile-config-v1"}
    return Rows(
        (flatten({**row, "run": {key: value for key, value in runs[row["config"]].items() if key not in shared}}) for row in rows),
        plots,
    )


@contextlib.contextmanager
def _plan_file(plan: Mapping[str, Any]) -> Iterator[str]:
    """The plan as a file while the block runs; an error that names the file says "plan"."""
    try:
        text = json.dumps(plan, default=os.fspath)
    except (TypeError, ValueError) as error:
        raise _stoch.InvalidInput(f"plan: expected what JSON can say: {error}") from None
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.json")
        _File(path).write_text(text, encoding="utf-8")
        try:
            yield path
        except (_stoch.InvalidInput, _stoch.DeviceError) as error:
            if path not in str(error):
                raise
            raise type(error)(str(error).replace(path, "plan")) from None


def sweep(
    plan: Mapping[str, Any] | Path | None = None,
    *,
    output: Path,
    resume: bool = False,
    shard: str | None = None,
    merge: Sequence[Path] | None = None,
    plot: str | None = None,
    timing: bool = False,
    device: str = "auto",
    threads: int = 0,
    progress: ProgressArgument = None,
) -> Rows:
    """The configurations of `stoch sweep` by a plan, a dict or a JSON file: a row for each in `output`, which is returned.

    A configuration that fails is a row with `error`, and the others run. `merge`, in place of a plan: the outputs of all
    shards. `plot`: "x=stoc_len,y=ppl", ...: the figure is OUTPUT.svg, or its `file=`, and in the `plots` of the rows.
    """
    options = {
        "output": output,
        "resume": resume,
        "shard": shard,
        "merge": None if merge is None else [check_name("merge", path) for path in merge],
        "plot": plot,
        "timing": timing,
        # Not said to a merge, which runs nothing and refuses them.
        "device": None if merge is not None and device == "auto" else device,
        "threads": None if merge is not None and threads == 0 else threads,
    }
    if isinstance(plan, Mapping):
        with _plan_file(plan) as path:
            run("sweep", [path], options, progress)
    else:
        run("sweep", [] if plan is None else [check_name("plan", plan)], options, progress)
    rows = [flatten(json.loads(line)) for line in _File(output).read_text(encoding="utf-8").splitlines()]
    if plot is None or merge is not None:
        return Rows(rows)
    named = [entry.partition("=")[2] for entry in plot.split(",") if entry.startswith("file=")]
    return Rows(rows, plots_in(named[-1:] or [os.fspath(output) + ".svg"]))


def trace_cost(
    trace: Path,
    *,
    energy: Path | None = None,
    array: str | None = None,
    tile_rows: Sequence[int] | None = None,
    accelergy: Path | None = None,
    usystolic: Path | None = None,
) -> Rows:
    """Stream lengths, cycles and energy of a trace, as `stoch cost` tells them: one row."""
    options = {
        "energy": energy,
        "array": array,
        "tile_rows": tile_rows,
        "accelergy": accelergy,
        "usystolic": usystolic,
        "json": True,
    }
    return Rows([flatten(json.loads(run("cost", [os.fspath(trace)], options, False)))])
