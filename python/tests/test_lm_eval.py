# SPDX-License-Identifier: Apache-2.0
"""The harness's model class on the demo model."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lm_eval")

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.api.registry import get_model  # noqa: E402

import stoch  # noqa: E402
import stoch.lm_eval  # noqa: E402


def asked(kind: str, *arguments: object) -> Instance:
    return Instance(kind, {}, arguments, 0)


@pytest.fixture(scope="module")
def harness(demo: str):
    return stoch.lm_eval.StochLM(pretrained=demo, device="cpu", sc="preset=halved;stoc_len=64")


def test_registered(harness, demo: str) -> None:
    assert get_model("stoch") is stoch.lm_eval.StochLM
    assert harness.model.sc == stoch.ModelConfig("stoc_len=64")
    with pytest.raises(stoch.InvalidInput, match="model=DIR"):
        stoch.lm_eval.StochLM()


def test_entry_point() -> None:
    (found,) = (entry for entry in importlib.metadata.entry_points(group="lm_eval.models") if entry.name == "stoch")
    assert found.load() is stoch.lm_eval.StochLM


def test_chat_templates(demo: str) -> None:
    """--apply_chat_template: the harness has conversations rendered, and special tokens of the text are tokens."""
    pytest.importorskip("jinja2")
    harness = stoch.lm_eval.StochLM(pretrained=demo, device="cpu", sc="stoc_len=64", chat_template="llama-2")
    assert harness.chat_template(False) == ""
    assert "[INST]" in harness.chat_template(True)
    assert harness.tokenizer_name == harness.model.name
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}, {"role": "user", "content": "a"}]
    text = harness.apply_chat_template(turns)
    assert text == "<s>[INST] Hi [/INST] Ho </s><s>[INST] a [/INST]"
    ids = harness.tok_encode(text)
    assert ids == harness.model.apply_chat_template(turns, add_generation_prompt=True)
    assert (ids.count(1), ids.count(2)) == (2, 1)
    context, rest = harness._encode_pair(text, " b")
    assert context == ids and len(rest) > 0
    going_on = harness.apply_chat_template(turns[:2], add_generation_prompt=False)
    assert going_on == "<s>[INST] Hi [/INST] Ho"


STORIES = [
    {"text": "Once upon a time, there was a little", "choices": [" girl", " quantum", " however"], "answer": 0},
    {"text": "Lily and her mom went to the", "choices": [" therefore", " park", " equation"], "answer": 1},
    {"text": "Tom said, \"Thank", "choices": [" zoo", " red", " you"], "answer": 2},
]
TASKS = {
    "stoch_choice": ("output_type: multiple_choice", "doc_to_target: '{{answer}}'", "doc_to_choice: '{{choices}}'",
                     "target_delimiter: ''", "metric_list: [{metric: acc}]"),
    "stoch_continue": ("output_type: generate_until", "doc_to_target: '{{text}}'",
                       "generation_kwargs: {until: ['.'], max_gen_toks: 12, do_sample: false}",
                       "metric_list: [{metric: exact_match}]"),
    "stoch_rolling": ("output_type: loglikelihood_rolling", "doc_to_target: '{{text}}'",
                      "metric_list: [{metric: word_perplexity}]"),
}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tasks on local data, for all kinds of requests."""
    folder = tmp_path_factory.mktemp("tasks")
    data = folder / "stories.jsonl"
    data.write_text("".join(json.dumps(story) + "\n" for story in STORIES))
    for name, lines in TASKS.items():
        shared = (f"task: {name}", "dataset_path: json", f"dataset_kwargs: {{data_files: {{test: {data}}}}}",
                  "test_split: test", "doc_to_text: '{{text}}'" if name != "stoch_rolling" else "doc_to_text: ''")
        (folder / f"{name}.yaml").write_text("\n".join((*shared, *lines)) + "\n")
    return folder


def test_the_command_line(tasks: Path, demo: str, tmp_path: Path) -> None:
    """The harness's own command line, with tasks on local data; its answers are those of the model."""
    pytest.importorskip("datasets")
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    command = [sys.executable, "-m", "stoch.lm_eval", "--model", "stoch", "--tasks", ",".join(TASKS), "--include_path", str(tasks),
               "--model_args", f"pretrained={demo},sc=preset=halved;stoc_len=64,device=cpu",
               "--output_path", str(tmp_path / "out"), "--log_samples", "--batch_size", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env={**os.environ, **offline}, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found = {}
    for name in TASKS:
        (file,) = (tmp_path / "out").rglob(f"samples_{name}_*.jsonl")
        samples = [json.loads(line) for line in file.read_text().splitlines()]
        found[name] = {sample["doc_id"]: sample["resps"] for sample in samples}
    with stoch.load(demo, sc="preset=halved,stoc_len=64", device="cpu") as model:
        for i, story in enumerate(STORIES):
            context = model.tokenize(story["text"])
            for choice, answer in zip(story["choices"], found["stoch_choice"][i], strict=True):
                whole = model.tokenize(story["text"] + choice)
                ((want, greedy),) = model.loglikelihood([(whole[: len(context)], whole[len(context) :])])
                assert (float(answer[0][0]), str(answer[0][1])) == (want, str(greedy)), choice
            text = model.generate(story["text"], max_tokens=12, stop=".").text
            assert found["stoch_continue"][i] == [[text]]
            ids = model.tokenize(story["text"], add_bos=False)
            ((want, _),) = model.loglikelihood([([model.config["bos_token_id"]], ids)])
            assert float(found["stoch_rolling"][i][0][0]) == want


def test_loglikelihood_is_that_of_the_model(harness) -> None:
    model = harness.model
    context, continuation = "Once upon a time", " there was a dog"
    whole = model.tokenize(context + continuation)
    cut = len(model.tokenize(context))
    pairs = [(context, continuation), (context + " ", continuation[1:]), ("", continuation)]
    scores = harness.loglikelihood([asked("loglikelihood", *pair) for pair in pairs], disable_tqdm=True)
    assert scores[0] == scores[1] == model.loglikelihood([(whole[:cut], whole[cut:])])[0]
    alone = [model.config["bos_token_id"]], model.tokenize(continuation, add_bos=False)
    assert scores[2] == model.loglikelihood([alone])[0]


def test_rolling(harness) -> None:
    text = "Once upon a time there was a dog. "
    short, long = harness.loglikelihood_rolling(
        [asked("loglikelihood_rolling", text), asked("loglikelihood_rolling", text * 80)], disable_tqdm=True
    )
    ids = harness.model.tokenize(text, add_bos=False)
    assert short == harness.model.loglikelihood([([harness.prefix_token_id], ids)])[0][0]
    assert len(harness.model.tokenize(text * 80)) > harness.max_length and long < short


def test_generate_until(harness) -> None:
    prompts = ["Once upon a time", "The cat"]
    options = {"until": ["."], "max_gen_toks": 20}
    texts = harness.generate_until([asked("generate_until", prompt, options) for prompt in prompts], disable_tqdm=True)
    assert texts == [harness.model.generate(prompt, max_tokens=20, stop=".").text for prompt in prompts]
