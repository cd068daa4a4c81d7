# SPDX-License-Identifier: Apache-2.0
"""Commands in process, and what commands and models take besides settings: files and multiplier tables."""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import stoch
from recorded import read
from stoch import _stoch

TEXT = "Tim and Lily went to the park. They saw a big red ball. " * 20


def test_bench_is_the_program(run, demo: str) -> None:
    arguments = ["-p", "8,16", "-n", "2", "-b", "1,2", "-r", "2", "--precision", "sc,fp32", "-o", "json"]
    printed = json.loads(run("bench", "--model", demo, "--device", "cpu", *arguments))
    rows = stoch.bench(
        demo, device="cpu", prompt=[8, 16], decode=2, batch=[1, 2], repetitions=2, precision=["sc", "fp32"]
    )
    said = ("test", "precision", "prompt", "depth", "batch", "sc", "tokens", "model", "device")
    assert [[row[key] for key in said] for row in rows] == [[row[key] for key in said] for row in printed["results"]]
    for row, other in zip(rows, printed["results"], strict=True):
        assert set(row) == {*other, "read_bytes_per_s", *(f"load.{key}" for key in printed["loads"][0] if key != "precision")}
        assert len(row["samples_ms"]) == 2 and row["median_ms"] > 0
        assert not any(isinstance(value, dict) for value in row.values())
    assert {row["load.decoder_bytes"] for row in rows} == {load["decoder_bytes"] for load in printed["loads"]}


def test_refusals_are_those_of_the_program(demo: str) -> None:
    with pytest.raises(stoch.InvalidInput, match="stoc_len"):
        stoch.bench(demo, device="cpu", precision="sc", sc="stoc_len=1.5", prompt=4, decode=0)
    with pytest.raises(stoch.InvalidInput, match="repetitions"):
        stoch.bench(demo, device="cpu", repetitions=0)
    with pytest.raises(stoch.InvalidInput, match="tpu"):
        stoch.bench(demo, device="tpu", prompt=4, decode=0)
    with pytest.raises(stoch.InvalidInput, match="serve"):
        _stoch.run_command(["serve"], None)


def test_nothing_is_printed(demo: str, capfd: pytest.CaptureFixture[str]) -> None:
    stoch.bench(demo, device="cpu", precision="sc", prompt=4, decode=1, repetitions=1)
    stoch.verify(demo, device="cpu", only=["product.halved"])
    assert capfd.readouterr() == ("", "")


def test_progress_of_a_command(demo: str) -> None:
    seen: list[tuple[int, int, str]] = []
    stoch.bench(
        demo, device="cpu", precision="sc", prompt=4, decode=1, repetitions=2, progress=lambda *now: seen.append(now)
    )
    measured = [now for now in seen if now[2] == "measuring sc"]
    assert measured[-1][:2] == (6, 6) and [now[0] for now in measured] == sorted(now[0] for now in measured)
    assert "loading" in {now[2] for now in seen}


@pytest.mark.usefixtures("interruptible")
def test_interrupt_ends_a_command(demo: str) -> None:
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        stoch.bench(demo, device="cpu", precision="sc", prompt=256, decode=64, repetitions=10000)
    timer.join()
    assert stoch.verify(demo, device="cpu", only=["product.halved"])[0]["passed"]


def test_calibrate_and_smooth(run, demo: str, tmp_path: Path) -> None:
    text, ours, theirs = tmp_path / "text", tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    text.write_text(TEXT)
    rows = stoch.calibrate("smoothquant", demo, file=text, output=ours, ctx=64, max_windows=2, device="cpu")
    options = ["--file", str(text), "-o", str(theirs), "--ctx", "64", "--max-windows", "2", "--device", "cpu"]
    run("calibrate", "smoothquant", "--model", demo, *options)
    assert ours.read_bytes() == theirs.read_bytes()
    tensors, metadata = read(ours)
    assert len(rows) == len(tensors) and all(row["method"] == metadata["method"] == "smoothquant" for row in rows)
    row = next(row for row in rows if (row["layer"], row["op"]) == (1, "down_proj"))
    assert (row["min"], row["max"]) == (tensors["layers.1.down_proj"].min(), tensors["layers.1.down_proj"].max())
    assert row["in_features"] == tensors["layers.1.down_proj"].size

    config = stoch.ModelConfig("stoc_len=64", smooth=ours)
    assert config != stoch.ModelConfig("stoc_len=64") and "smooth=" in config.describe()
    assert pickle.loads(pickle.dumps(config)) == config
    with stoch.load(demo, device="cpu", sc=config) as smooth, stoch.load(demo, device="cpu", sc="stoc_len=64") as plain:
        assert smooth.sc == config
        hashed = smooth.generate("Once upon a time", max_tokens=2).logits_sha256
        assert hashed != plain.generate("Once upon a time", max_tokens=2).logits_sha256
    printed = json.loads(
        run(
            *("generate", "--model", demo, "--device", "cpu", "--sc", "stoc_len=64", "--smooth", str(ours)),
            *("--prompt", "Once upon a time", "--max-tokens", "2", "--json"),
        )
    )
    assert printed["logits_sha256"] == hashed and printed["sc"] == config.describe()
    with pytest.raises(stoch.InvalidInput, match="files of its own"):
        stoch.load(demo, device="cpu", sc=config, smooth=ours)
    with pytest.raises(stoch.InvalidInput, match="precision"):
        stoch.load(demo, device="cpu", precision="fp32", smooth=ours)
    with pytest.raises(stoch.InvalidInput, match="nowhere"):
        stoch.ModelConfig(mask=tmp_path / "nowhere")


def test_log_goes_to_python(demo: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mask = tmp_path / "mask.json"
    mask.write_text(json.dumps({"default": "sc", "unheard_of": 1}))
    with caplog.at_level(logging.WARNING, "stoch"):
        stoch.ModelConfig(mask=mask)
    assert [record.name for record in caplog.records] == ["stoch"] and "unheard_of" in caplog.text


def test_a_warning_without_handlers_prints_nothing(tmp_path: Path) -> None:
    mask = tmp_path / "mask.json"
    mask.write_text(json.dumps({"default": "sc", "unheard_of": 1}))
    done = subprocess.run(
        [sys.executable, "-c", f"import stoch; stoch.ModelConfig(mask={str(mask)!r})"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture(scope="module")
def tables(shared: Path):
    tensors, metadata = read(shared / "goldens/research_golden.safetensors")
    return tensors, [case for case in json.loads(metadata["cases"]) if case["kind"] == "table"]


def test_recorded_tables(tables) -> None:
    tensors, cases = tables
    assert len(cases) == 4
    for case in cases:
        tensor = {role: tensors[name] for role, name in case["tensors"].items()}
        signed = case["code"] == "signed"
        entries = tensor["table"].reshape(256, 256)
        table = stoch.multiplier_table(
            entries if signed else entries.astype(np.uint16), code=case["code"], order="numeric" if signed else ""
        )
        assert (table.sha256, table.code) == (case["table_sha256"], case["code"])
        metrics = table.metrics()
        for pairs in ("all", "used"):
            for name, value in case["metrics"][pairs].items():
                assert metrics[f"{pairs}.{name}"] == pytest.approx(value, rel=1e-12), (case["case"], pairs, name)
        config = stoch.ScConfig(gate="table", table=table, table_code=case["code"], chunk_d=case["chunk_d"])
        y = stoch.sc_matmul(tensor["a"], tensor["b"], config)
        assert y.tobytes() == tensor["y"].tobytes(), case["case"]
        assert stoch.ScConfig.parse(config.describe()) == config


def test_multiplier_table(run, tmp_path: Path) -> None:
    numbers = np.arange(-128, 128)
    entries = np.outer(numbers, numbers) & ~3  # the two lowest bits are gone
    by_bytes = entries[np.ix_(np.arange(256) - 128, np.arange(256) - 128)]
    file = tmp_path / "truncated.npy"
    np.save(file, by_bytes.astype(np.int32))
    read_back = stoch.multiplier_table(file)
    table = stoch.multiplier_table(entries, order="numeric")
    assert table.sha256 == read_back.sha256 and table.code == "signed"
    printed = json.loads(run("inspect", "--table", str(file), "--json"))
    assert table.metrics()["all.mae"] == printed["all"]["mae"] == np.abs(entries - np.outer(numbers, numbers)).mean()
    assert table.sha256 == printed["sha256"]
    a = np.sin(np.arange(24, dtype=np.float32)).reshape(3, 8)
    y = stoch.sc_matmul(a, a, gate="table", table=table)
    assert np.array_equal(y, stoch.sc_matmul(a, a, gate="table", table=file))
    exact = stoch.multiplier_table(np.outer(numbers, numbers), order="numeric")
    assert not np.array_equal(y, stoch.sc_matmul(a, a, gate="table", table=exact))
    with pytest.raises(stoch.InvalidInput, match=r"\[256, 256\]"):
        stoch.multiplier_table(entries[:255])
    with pytest.raises(stoch.InvalidInput, match="signed"):
        stoch.multiplier_table(by_bytes.astype(np.int32), order="numeric")
    with pytest.raises(stoch.InvalidInput):
        stoch.ScConfig(gate="table", table="0123456789abcdef")


def test_profile_is_the_program(run, demo: str, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text(TEXT)
    configs = ["stoc_len=64", "stoc_len=32"]
    options = ["--file", str(text), "--ctx", "32", "--device", "cpu", "-o", "jsonl", "--quiet"]
    printed = run("profile", "--model", demo, "--sc", configs[0], "--sc", configs[1], *options)
    expected = [json.loads(line) for line in printed.splitlines()]
    operators = [row for row in expected if row["schema"] == "stoch-profile-v1"]
    rows = stoch.profile(demo, file=text, sc=configs, ctx=32, device="cpu")
    assert len(rows) == len(operators) > 0
    for row, other in zip(rows, operators, strict=True):
        assert {key: row[key] for key in other} == other
    summaries = {row["config"]: row["ppl"] for row in expected if row["schema"] == "stoch-profile-config-v1"}
    assert {row["config"]: row["run.ppl"] for row in rows} == summaries and len(summaries) == 2


def test_profile_takes_files_and_draws(run, demo: str, tmp_path: Path) -> None:
    text, smooth, mask = tmp_path / "text", tmp_path / "s.safetensors", tmp_path / "mask.json"
    text.write_text(TEXT)
    mask.write_text(json.dumps({"default": "sc", "schedule": {"up_proj": ["fp"] * 5}}))
    stoch.calibrate("smoothquant", demo, file=text, output=smooth, ctx=32, max_windows=1, device="cpu")
    options = {"file": text, "ctx": 32, "max_windows": 1, "device": "cpu"}
    plain = stoch.profile(demo, sc="stoc_len=64", **options)
    assert plain.plots == [] and "<svg" not in plain._repr_html_()
    config = stoch.ModelConfig("preset=halved", "stoc_len=64", smooth=smooth, mask=mask)
    rows = stoch.profile(demo, sc=config, plot=True, **options)
    assert rows == stoch.profile(demo, sc="stoc_len=64", smooth=smooth, mask=mask, **options)
    assert [row["config"] for row in rows] == [config.describe()] * len(rows) and rows != plain
    assert {row["mse"] for row in rows if row["op"] == "up_proj"} == {0} != {row["mse"] for row in plain if row["op"] == "up_proj"}
    stoch.profile(demo, sc=config, plot=tmp_path / "ours", **options)
    flags = ["--file", str(text), "--ctx", "32", "--max-windows", "1", "--device", "cpu", "--plot", str(tmp_path / "theirs")]
    run("profile", "--model", demo, "--sc", "stoc_len=64", "--smooth", str(smooth), "--mask", str(mask), *flags)
    drawn = {file.stem: file.read_text() for file in (tmp_path / "theirs").glob("*.svg")}
    assert {plot.name: plot.svg for plot in rows.plots} == drawn and drawn
    assert [file.read_text() for file in sorted((tmp_path / "ours").glob("*"))] == [plot.svg for plot in rows.plots]
    assert rows.plots[0]._repr_svg_() in rows._repr_html_()
    with pytest.raises(stoch.InvalidInput, match="files of its own"):
        stoch.profile(demo, sc=config, smooth=smooth, **options)


def test_bench_takes_files(demo: str, tmp_path: Path) -> None:
    mask = tmp_path / "mask.json"
    mask.write_text(json.dumps({"default": "sc", "schedule": {"up_proj": ["fp"] * 5}}))
    options = {"device": "cpu", "precision": "sc", "prompt": 4, "decode": 0, "repetitions": 1}
    for given in ({"sc": stoch.ModelConfig(mask=mask)}, {"mask": mask}):
        (row,) = stoch.bench(demo, **given, **options)
        assert row["sc"] == stoch.ModelConfig(mask=mask).describe() and "mask" in row["sc"]


def test_calibrated_lengths(run, demo: str, tmp_path: Path) -> None:
    text, ours, theirs, fixed = (tmp_path / name for name in ("text", "ours.json", "theirs.json", "fixed.json"))
    text.write_text(TEXT)
    options = {"file": text, "ctx": 64, "max_windows": 2, "device": "cpu"}
    rows = stoch.calibrate("mp", demo, output=ours, levels=[128, 64, 32], budget=0.4, chunks=True, **options)
    flags = ["--file", str(text), "--ctx", "64", "--max-windows", "2", "--device", "cpu"]
    run("calibrate", "mp", "--model", demo, "--levels", "128,64,32", "--budget", "0.4", "--chunks", "-o", str(theirs), *flags)
    table = json.loads(theirs.read_text())
    assert ours.read_bytes() == theirs.read_bytes()
    buckets = {(False, name) for name in table["buckets"]} | {(True, name) for name in table["per_row_chunk"]["buckets"]}
    assert {(row["chunks"], row["bucket"]) for row in rows} == buckets and len(rows) == len(buckets)
    for row in rows:
        group = table["per_row_chunk"]["buckets"] if row["chunks"] else table["buckets"]
        assert row["thresholds"] == group[row["bucket"]]["thresholds"]
        assert row["expected_flop_avg_stoc_len"] == table["expected_flop_avg_stoc_len"]
        assert row["metadata.budget"] == "0.4" and not any(isinstance(value, dict) for value in row.values())
    rows = stoch.calibrate("rescale", demo, output=fixed, mp=ours, **options)
    assert rows and all("metric_lo" in row for row in rows)
    with stoch.load(demo, device="cpu", mp=fixed) as model:
        assert "mp=" in model.sc.describe()
    with pytest.raises(stoch.InvalidInput, match="--alpha"):
        stoch.calibrate("mp", demo, output=ours, alpha=0.5, **options)
    with pytest.raises(stoch.InvalidInput, match="smoothquant, awq, mp, rescale"):
        stoch.calibrate("lengths", demo, output=ours, **options)


@pytest.mark.parametrize(
    "options",
    [{"prompt": object()}, {"prompt": "many"}, {"sc": [3]}, {"sc": "stoc_len=\ud800"}, {"prompt": [None]}, {"threads": 2**70},
     {"model": "a\0b"}, {"precision": [b"sc"]}],
)
def test_arguments_that_are_none(demo: str, options: dict[str, object]) -> None:
    with pytest.raises(stoch.InvalidInput):
        stoch.bench(**{"model": demo, "device": "cpu", "decode": 0, "repetitions": 1, **options})


def test_sweep_draws_and_merges(demo: str, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text(TEXT)
    plan = {"model": demo, "text": str(text), "ctx": 32, "max_windows": 1, "grid": {"stoc_len": [32, 64]},
            "metrics": ["ppl"]}
    whole = stoch.sweep(plan, output=tmp_path / "whole.jsonl", device="cpu", plot="x=stoc_len,y=ppl")
    (plot,) = whole.plots
    assert plot.svg == (tmp_path / "whole.jsonl.svg").read_text()
    named = stoch.sweep(plan, output=tmp_path / "whole.jsonl", resume=True, plot=f"x=stoc_len,y=ppl,file={tmp_path}/a.svg")
    assert named.plots == [stoch.Plot("a", plot.svg)] and named == whole
    plot.save(tmp_path / "copy.svg")
    assert (tmp_path / "copy.svg").read_bytes() == (tmp_path / "a.svg").read_bytes()
    parts = [tmp_path / f"part{i}.jsonl" for i in range(2)]
    for i, part in enumerate(parts):
        stoch.sweep(plan, output=part, shard=f"{i}/2", device="cpu")
    assert stoch.sweep(merge=parts, output=tmp_path / "merged.jsonl") == whole
    assert (tmp_path / "merged.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    with pytest.raises(stoch.InvalidInput, match="give a plan"):
        stoch.sweep(output=tmp_path / "none.jsonl")


def test_sweep_is_the_program(run, demo: str, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text(TEXT)
    plan = {"model": demo, "text": str(text), "ctx": 32, "max_windows": 1, "grid": {"stoc_len": [32, 64]},
            "metrics": ["ppl"]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    theirs, ours, again = (tmp_path / name for name in ("theirs.jsonl", "ours.jsonl", "again.jsonl"))
    run("sweep", str(tmp_path / "plan.json"), "-o", str(theirs), "--device", "cpu")
    rows = stoch.sweep(plan, output=ours, device="cpu")
    assert stoch.sweep(tmp_path / "plan.json", output=again, device="cpu") == rows
    assert ours.read_bytes() == theirs.read_bytes() == again.read_bytes()
    assert [row["key"] for row in rows] == [json.loads(line)["key"] for line in theirs.read_text().splitlines()]
    with pytest.raises(stoch.InvalidInput, match="exists: --resume"):
        stoch.sweep(plan, output=ours, device="cpu")


def test_trace_cost_is_the_program(run, demo: str, tmp_path: Path) -> None:
    text, trace = tmp_path / "text", tmp_path / "trace.json"
    text.write_text(TEXT)
    run("perplexity", "--model", demo, "--file", str(text), "--ctx", "32", "--max-windows", "1", "--device", "cpu",
        "--trace", str(trace), "--array", "32,32,64")
    expected = json.loads(run("cost", str(trace), "--json"))
    (row,) = stoch.trace_cost(trace)
    assert row == stoch._rows.flatten(expected) and any(key.endswith("mac_avg_stoc_len") for key in row)
