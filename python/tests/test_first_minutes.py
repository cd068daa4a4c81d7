# SPDX-License-Identifier: Apache-2.0
"""What somebody who comes from transformers tries first."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

import stoch

TEXT = "Tim and Lily went to the park. They saw a big red ball. " * 20


def test_text_is_tokenized(model: stoch.Model) -> None:
    ids = model.tokenize("Once upon a time")
    assert np.array_equal(model.logits("Once upon a time"), model.logits(ids))
    assert np.array_equal(model.hidden("Once upon a time", 1), model.hidden(ids, 1))
    assert model.logits_sha256("Once upon a time") == model.logits_sha256(ids)
    with pytest.raises(stoch.InvalidInput, match="ids is a float: allowed are text or token ids"):
        model.logits(0.5)
    with pytest.raises(stoch.InvalidInput, match=r"context is a str: allowed are token ids, as model.tokenize\(text\)"):
        model.loglikelihood([("Once", "upon")])


def test_names_of_transformers(model: stoch.Model) -> None:
    plain = model.generate("Once upon a time", max_tokens=6)
    same = {"max_new_tokens": 6, "do_sample": False, "num_beams": 1, "use_cache": True, "pad_token_id": 0, "attention_mask": None}
    assert model.generate("Once upon a time", **same).ids == plain.ids
    drawn = model.generate("Once upon a time", max_tokens=6, temperature=1.0, seed=5)
    assert model.generate("Once upon a time", max_new_tokens=6, do_sample=True, seed=5).ids == drawn.ids != plain.ids
    assert model.generate("Once upon a time", max_new_tokens=6, do_sample=True, temperature=0.5, seed=5).logprobs == model.generate(
        "Once upon a time", max_tokens=6, temperature=0.5, seed=5).logprobs
    signed = model.generate("Once upon a time", max_tokens=6, temperature=1.0, seed=-1)
    assert signed.ids == model.generate("Once upon a time", max_tokens=6, temperature=1.0, seed=2**64 - 1).ids
    stopped = model.generate("Once upon a time", max_new_tokens=6, eos_token_id=plain.ids[2])
    assert stopped.ids[:2] == plain.ids[:2] and stopped.finish_reason == "stop"
    assert model.generate("Once upon a time", max_new_tokens=6, stop_strings=" was").text == ", there"
    assert "".join(model.stream("Once upon a time", max_new_tokens=6)) == plain.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokns": 3}, r"Model.generate\(\) has no argument 'max_tokns': did you mean max_tokens\? allowed are max_tokens, "),
        ({"nonsense": 3}, r"Model.generate\(\) has no argument 'nonsense': allowed are max_tokens, "),
        ({"num_beams": 4}, r"Model.generate\(\) has no num_beams=4: no beam search"),
        ({"max_length": 9}, r"Model.generate\(\) has no max_length=9: it counts the prompt too: use max_new_tokens"),
        ({"streamer": object()}, r"Model.generate\(\) has no streamer=.*use Model.stream"),
    ],
)
def test_names_that_no_request_has(model: stoch.Model, options: dict[str, object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        model.generate("Once", **options)


def test_names_of_the_hub(demo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """org/name[@revision] is what a client of the hub has left in its cache; nothing is downloaded."""
    repository = tmp_path / "hub" / "models--some-org--Model_1.5"
    snapshot = repository / "snapshots" / "0a1b2c"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0a1b2c\n")
    for file in Path(demo).iterdir():
        (snapshot / file.name).symlink_to(file)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for name in ("some-org/Model_1.5", "some-org/Model_1.5@main", "some-org/Model_1.5@0a1b2c"):
        with stoch.load(name, device="cpu") as found:
            assert found.generate("Once", max_tokens=2).model == "some-org/Model_1.5"
    with pytest.raises(stoch.InvalidInput, match="hf download some-org/other"):
        stoch.load("some-org/other", device="cpu")
    with pytest.raises(stoch.InvalidInput, match="hf download some-org/Model_1.5 --revision v2"):
        stoch.load("some-org/Model_1.5@v2", device="cpu")


def test_whose_argument_it_is(model: stoch.Model) -> None:
    with pytest.raises(TypeError, match=r"Model.stream\(\) has no argument 'n'"):
        model.stream("Once", n=1)
    with pytest.raises(TypeError, match=r"Model.chat\(\) has no argument 'top'"):
        model.chat([{"role": "user", "content": "Hi"}], top=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 3, "max_tokens": 4}, "is the same as max_tokens; give one"),
        ({"do_sample": True, "temperature": 0}, "do_sample=True with temperature = 0"),
        ({"do_sample": False, "temperature": 0.7}, "do_sample=False with temperature = 0.7"),
    ],
)
def test_names_that_contradict(model: stoch.Model, options: dict[str, object], message: str) -> None:
    with pytest.raises(stoch.InvalidInput, match=message):
        model.generate("Once", **options)


def test_perplexity_of_a_file(model: stoch.Model, run, demo: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes((TEXT + "\r\nO\u2019Brien\n").encode())
    of_file = model.perplexity(file=text, ctx=64)
    assert of_file.nll == model.perplexity(text.read_bytes().decode(), ctx=64).nll
    printed = json.loads(run("perplexity", "--model", demo, "--device", "cpu", "--file", str(text), "--ctx", "64", "--json"))
    assert of_file.ppl == printed["results"][0]["ppl"]
    for path in (text, str(text)):
        with pytest.raises(stoch.InvalidInput, match=r"perplexity takes a text, and .*text.txt is a file: perplexity\(file=...\) reads it"):
            model.perplexity(path)
    with pytest.raises(stoch.InvalidInput, match="nowhere: No such file"):
        model.perplexity(file=tmp_path / "nowhere")
    text.write_bytes(b"abc\xff")
    with pytest.raises(stoch.InvalidInput, match="not UTF-8 at byte 3"):
        model.perplexity(file=text)
    with pytest.raises(stoch.InvalidInput, match="give a text, or file="):
        model.perplexity()
    with pytest.raises(stoch.InvalidInput, match="give a text, or file="):
        model.perplexity("abc", file=text)


@pytest.mark.parametrize(
    "plan",
    [{"model": "demo"}, {"model": "demo", "text": "nowhere"}, {"unheard_of": 1}, {"model": "demo", "text": "x", "grid": {"stoc_len": [9999]}}, {}],
)
def test_errors_of_a_plan_name_no_file_of_ours(plan: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(stoch.InvalidInput) as caught:
        stoch.sweep(plan, output=tmp_path / "out.jsonl", device="cpu")
    assert tempfile.gettempdir() + "/tmp" not in str(caught.value) and "plan.json" not in str(caught.value), str(caught.value)


def test_a_plan_that_is_no_json(tmp_path: Path) -> None:
    with pytest.raises(stoch.InvalidInput, match="plan: expected what JSON can say"):
        stoch.sweep({"model": object()}, output=tmp_path / "out.jsonl")


def test_settings_as_a_dict(demo: str, tmp_path: Path) -> None:
    nested = {
        "down_proj": {"stoc_len": 64, "halve": True},
        "0-1": {"up_proj": {"stoc_len": 32}},
        1: {"stoc_len": 48},
        "fault_product": 0.001,
        "preset": "halved",
    }
    text = "preset=halved,down_proj.stoc_len=64,down_proj.halve=1,0-1.up_proj.stoc_len=32,1.stoc_len=48,fault_product=0.001"
    config = stoch.ModelConfig(nested)
    assert config == stoch.ModelConfig(text)
    assert stoch.ModelConfig("preset=halved", {"down_proj": {"stoc_len": 64}}) == stoch.ModelConfig({"down_proj.stoc_len": 64.0})
    for sc in (nested, [nested], text):
        with stoch.load(demo, device="cpu", sc=sc) as loaded:
            assert loaded.sc == config
    (row,) = stoch.bench(demo, device="cpu", precision="sc", sc={"stoc_len": 32}, prompt=4, decode=0, repetitions=1)
    assert row["sc"] == stoch.ModelConfig("stoc_len=32").describe()
    file = tmp_path / "text"
    file.write_text(TEXT)
    rows = stoch.profile(demo, file=file, sc=[{"preset": "halved", "stoc_len": 32}, {"stoc_len": 64}], ctx=32, max_windows=1, device="cpu")
    assert len({row["config"] for row in rows}) == 2


@pytest.mark.parametrize(
    ("sc", "message"),
    [
        ({"stoc_len": 1.5}, "SC parameter stoc_len = 1.5"),
        ({"down_proj": {"stoc_lenn": 4}}, "stoc_lenn"),
        ({("a",): 1}, r"sc has a key \('a',\)"),
        ({"stoc_len": "4,halve=1"}, "a comma separates settings"),
        (3, "sc has a int"),
        ([3], "sc has a int"),
    ],
)
def test_settings_that_are_none(sc: object, message: str) -> None:
    with pytest.raises(stoch.InvalidInput, match=message):
        stoch.load("demo", device="cpu", sc=sc)


def test_did_you_mean() -> None:
    with pytest.raises(stoch.InvalidInput, match=r"SC parameter stoc_lenn: did you mean stoc_len\? allowed is "):
        stoch.ScConfig(stoc_lenn=3)
    with pytest.raises(stoch.InvalidInput, match=r"unknown SC parameter 'stoc_length': known are .*; did you mean stoc_len\?$"):
        stoch.ModelConfig({"down_proj": {"stoc_length": 64}})
    with pytest.raises(stoch.InvalidInput, match="unknown SC parameter 'qqqq': known are "):
        stoch.ModelConfig("qqqq=64")
    with pytest.raises(stoch.InvalidInput, match="SC parameter qqqq: allowed is "):
        stoch.ScConfig(qqqq=3)


def test_notebooks_show_tables(model: stoch.Model) -> None:
    rows = stoch.Rows([{"a": 1, "b": 0.1 + 0.2}, {"a": "<b>", "c": None}])
    assert rows._repr_html_() == (
        "<table><thead><tr><th>a</th><th>b</th><th>c</th></tr></thead><tbody><tr><td>1</td><td>0.3</td><td></td></tr>"
        "<tr><td>&lt;b&gt;</td><td></td><td></td></tr></tbody></table>"
    )
    assert stoch.Rows([{"a": "x" * 999}])._repr_html_().count("x") == 199
    assert "40 more rows" in stoch.Rows([{"a": i} for i in range(100)])._repr_html_()
    assert "<td>hidden_size</td><td>256</td>" in model._repr_html_()
    assert dict(model.__rich_repr__())["layers"] == 5
    result = model.generate("Once upon a time", max_tokens=4)
    assert "<td>, there was a</td>" in result._repr_html_() and dict(result.__rich_repr__())["tokens"] == 4
    shown = stoch.ScConfig(stoc_len=64)._repr_html_()
    assert "<td>stoc_len</td><td>64</td><td>given</td>" in shown and "<td>sc_prec</td><td>8</td><td>default</td>" in shown
    assert dict(stoch.ScConfig(stoc_len=64).__rich_repr__()) == {"stoc_len": 64}
    assert list(stoch.ModelConfig("stoc_len=64").__rich_repr__()) == [stoch.ModelConfig("stoc_len=64").describe()]


def test_rich_prints_what_it_is_told(model: stoch.Model) -> None:
    rich = pytest.importorskip("rich.pretty")
    assert "stoc_len=64" in rich.pretty_repr(stoch.ScConfig(stoc_len=64))
    assert "hidden_size=256" in rich.pretty_repr(model)


def test_figures_as_pdf(tmp_path: Path) -> None:
    svg = (Path(__file__).resolve().parents[2] / "docs/plots/front.svg").read_text()
    plot = stoch.Plot("front", svg)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        with pytest.raises(stoch.InvalidInput, match="pdf needs matplotlib"):
            plot.save(tmp_path / "front.pdf")
        pytest.skip("without matplotlib: the refusal was tested, PDF was not")
    plot.save(tmp_path / "front.pdf")
    plot.save(tmp_path / "again.pdf")
    plot.save(tmp_path / "front.png")
    assert (tmp_path / "front.pdf").read_bytes()[:5] == b"%PDF-"
    assert (tmp_path / "front.pdf").read_bytes() == (tmp_path / "again.pdf").read_bytes()
    from matplotlib import image

    pixels = image.imread(tmp_path / "front.png")[..., :3]
    assert (1.2 < pixels.shape[1] / pixels.shape[0] < 1.8) and len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20
    with pytest.raises(stoch.InvalidInput, match="allowed is .svg, "):
        plot.save(tmp_path / "front.xyz")
    assert os.listdir(tmp_path).count("front.xyz") == 0
