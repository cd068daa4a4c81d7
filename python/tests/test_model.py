# SPDX-License-Identifier: Apache-2.0
"""Model against the command line, by bytes."""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import stoch
from recorded import read

PROMPT = "Once upon a time, a dog named"


def test_generate_equals_the_program(model: stoch.Model, run, demo: str) -> None:
    for options, flags in (
        ({}, []),
        ({"temperature": 0.8, "seed": 7, "top_k": 40}, ["--temperature", "0.8", "--seed", "7", "--top-k", "40"]),
        ({"stop": "."}, ["--stop", "."]),
        ({"top_logprobs": 3}, ["--top-logprobs", "3"]),
    ):
        result = model.generate(PROMPT, max_tokens=24, **options)
        printed = json.loads(
            run("generate", "--model", demo, "--device", "cpu", "--prompt", PROMPT, "--max-tokens", "24", "--json", *flags)
        )
        for field in ("model", "precision", "sc", "device", "prompt_ids", "ids", "text", "logprobs", "logits_sha256"):
            assert getattr(result, field) == printed[field], field
        assert result.finish_reason == printed["finish_reason"]
        assert [[list(pair) for pair in row] for row in result.top_logprobs] == printed.get("top_logprobs", [])


def test_several_at_once_are_each_alone(model: stoch.Model) -> None:
    prompts = [f"{word} was" for word in ("Tim", "The cat", "A", "Mom", "One day it", "He", "She", "Lily", "Bob", "It")]
    together = model.generate(prompts, max_tokens=12, temperature=0.7, seed=3)
    alone = [model.generate(prompt, max_tokens=12, temperature=0.7, seed=3) for prompt in prompts]
    assert [result.logits_sha256 for result in together] == [result.logits_sha256 for result in alone]
    assert len({result.logits_sha256 for result in alone}) == len(prompts)
    with pytest.raises(stoch.InvalidInput, match="empty"):
        model.generate(["Tim", []], max_tokens=1)


def test_stream(model: stoch.Model) -> None:
    stream = model.stream(PROMPT, max_tokens=16)
    pieces = list(stream)
    assert len(pieces) > 3
    assert "".join(pieces) == stream.result.text == model.generate(PROMPT, max_tokens=16).text
    unfinished = model.stream(PROMPT)
    next(unfinished)
    with pytest.raises(stoch.InvalidInput, match="has not ended"):
        unfinished.result  # noqa: B018
    unfinished.close()


SCHEMA = {"type": "object", "required": ["kind", "age"], "properties": {
    "kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "minimum": 0, "maximum": 30}}}


class Animal:
    """As a pydantic model has it."""

    @staticmethod
    def model_json_schema() -> dict:
        return SCHEMA


def test_guided(model: stoch.Model) -> None:
    options = {"max_tokens": 60, "temperature": 1, "seed": 2}
    try:
        text = model.generate(PROMPT, guided_json=SCHEMA, **options).text
    except stoch.InvalidInput as error:
        if "this build has no grammars" in str(error):
            pytest.skip(str(error))
        raise
    animal = json.loads(text)
    assert animal["kind"] in ("cat", "dog") and 0 <= animal["age"] <= 30
    assert list(animal) == ["kind", "age"]
    assert model.generate(PROMPT, guided_json=json.dumps(SCHEMA), **options).text == text
    assert model.generate(PROMPT, guided_json=Animal, **options).text == text
    assert "".join(model.stream(PROMPT, guided_json=SCHEMA, **options)) == text
    assert model.generate(PROMPT, guided_choice=["yes", "no"], **options).text in ("yes", "no")
    assert model.generate(PROMPT, guided_regex="[0-9]{5}", **options).text.isdigit()
    assert set(model.generate(PROMPT, guided_grammar='root ::= "a" root | "b"', **options).text) <= {"a", "b"}
    for bad, message in (({"guided_regex": "(a"}, "not closed"), ({"guided_regex": ""}, "guided_regex is empty"),
                         ({"guided_json": 5}, "guided_json is a int"), ({"guided_choice": []}, "guided_choice is empty"),
                         ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_regex and guided_choice")):
        with pytest.raises(stoch.InvalidInput, match=message):
            model.generate(PROMPT, **bad)


def test_tokens(model: stoch.Model, run, demo: str) -> None:
    ids = json.loads(run("tokenize", "--model", demo, "--prompt", PROMPT, "--json"))["ids"]
    assert model.tokenize(PROMPT) == ids
    assert model.tokenize(PROMPT, add_bos=False) == ids[1:]
    assert model.detokenize(ids) == model.detokenize(np.array(ids)) == PROMPT


def test_the_demo_model_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demo: str) -> None:
    packaged = Path(stoch.__file__).parent / "demo"
    if packaged.exists():  # not in a source tree
        names = {path.name for path in packaged.iterdir()}
        assert names >= {"config.json", "generation_config.json", "model.safetensors", "tokenizer.model"}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()  # no model
    with stoch.load("demo", device="cpu") as here, stoch.load(demo, device="cpu") as there:
        ids = here.tokenize(PROMPT)
        assert here.logits_sha256(ids) == there.logits_sha256(ids)
    assert stoch.verify("demo", device="cpu", only=["logits.fp32"])[0]["passed"]


def test_logits_and_hash(model: stoch.Model, demo: str) -> None:
    ids = model.tokenize(PROMPT)
    logits = model.logits(ids)
    assert logits.shape == (len(ids), model.config["vocab_size"]) and logits.dtype == np.float32
    import hashlib

    assert hashlib.sha256(logits.tobytes()).hexdigest() == model.logits_sha256(ids)
    # What the repository records of this model, in the default configuration.
    with stoch.load(demo, device="cpu", sc="preset=halved", threads=1, cpu_variant="scalar") as scalar:
        assert scalar.logits_sha256(ids, new_tokens=4) == model.logits_sha256(ids, new_tokens=4)
    assert model.logits_sha256(ids, new_tokens=4) != model.logits_sha256(ids, new_tokens=5)


def test_loglikelihood(model: stoch.Model) -> None:
    ids = model.tokenize("Once upon a time there was a little girl named Lily. She loved to play.")
    requests = [(ids[:cut], ids[cut:]) for cut in range(1, len(ids))]
    greedy = model.generate(ids[:5], max_tokens=6).ids
    scores = model.loglikelihood(requests)
    logits = model.logits(ids).astype(np.float64)
    tokens = logits - logits.max(axis=1, keepdims=True)
    tokens -= np.log(np.exp(tokens).sum(axis=1, keepdims=True))
    for (context, continuation), (logprob, is_greedy) in zip(requests, scores, strict=True):
        rows = range(len(context) - 1, len(ids) - 1)
        assert logprob == pytest.approx(sum(tokens[row, ids[row + 1]] for row in rows), abs=1e-4)
        assert is_greedy == all(logits[row].argmax() == ids[row + 1] for row in rows)
    likeliest, other = model.loglikelihood([(ids[:5], greedy), (ids[:5], [*greedy[:-1], (greedy[-1] + 1) % 2048])])
    assert likeliest[1] and not other[1] and likeliest[0] > other[0]
    assert model.loglikelihood(requests[3:4]) == scores[3:4]
    for bad in (([], [1]), ([1], []), ([1], [99999])):
        with pytest.raises(stoch.InvalidInput, match="request 0"):
            model.loglikelihood([bad])


def test_perplexity_equals_the_program(model: stoch.Model, run, demo: str, tmp_path) -> None:
    text = "Tim and Lily went to the park. They saw a big red ball. " * 20
    file = tmp_path / "text"
    file.write_text(text)
    printed = json.loads(run("perplexity", "--model", demo, "--device", "cpu", "--file", str(file), "--ctx", "64", "--json"))
    row = printed["results"][0]
    result = model.perplexity(text, ctx=64)
    assert (result.nll, result.ppl, result.error) == (row["mean_nll"], row["ppl"], row["ppl_error"])
    assert (result.windows, result.predictions) == (row["windows"], row["predictions"])


def test_sequences_by_hand(model: stoch.Model) -> None:
    ids = model.tokenize("One day, a boy named Tim went to the park with his mom. He saw a big tree. " * 4)
    assert len(ids) > 70
    engine = model.engine()
    want = model.logits(ids)
    sequence = engine.add(ids[:-3])
    assert np.array_equal(engine.step([sequence])[0], want[-4])
    twin = engine.fork(sequence)
    assert twin.computed == (len(ids) - 4) // 64 * 64 and twin.ids == ids[:-3]
    twin.append(ids[-3:])
    sequence.append(5)
    both = engine.step([sequence, twin])
    assert np.array_equal(both[1], want[-1]) and not np.array_equal(both[0], both[1])
    assert len(sequence) == len(ids) - 2 and sequence.pending == 0
    with pytest.raises(stoch.InvalidInput, match="no token to run"):
        engine.step([sequence])
    with pytest.raises(stoch.InvalidInput, match="given twice"):
        twin.append(1)
        engine.step([twin, twin])
    engine.remove(twin)
    with pytest.raises(stoch.InvalidInput, match="removed"):
        twin.append(1)


def test_load_options(demo: str, tmp_path) -> None:
    with stoch.load(demo, device="cpu:2", device_map={"": 0, "model.layers.4": 1}, sc="stoc_len=64") as model:
        assert model.device_map["model.layers.4"] == "cpu:1" and model.device_map["model.layers.0"] == "cpu:0"
        assert model.sc == stoch.ModelConfig("stoc_len=64")
    with stoch.load(demo, device="cpu", precision="fp32") as exact:
        assert exact.sc is None and exact.precision == "fp32"
        assert exact.generate("Once", max_tokens=1).precision == "fp32"
    with pytest.raises(stoch.InvalidInput, match="closed"):
        exact.generate("Once")
    for arguments, message in (
        ({"sc": "stoc_len=0.5"}, "stoc_len"),
        ({"precision": "fp64"}, "fp64"),
        ({"precision": "fp32", "sc": "stoc_len=64"}, "no meaning"),
        ({"device": "tpu"}, "tpu"),
        ({"context": 100000}, "context"),
        ({"split": "columns"}, "split"),
        ({"pass_rows": 70000}, "pass_rows"),
        ({"seed": 3}, "seed"),
        ({"device_map": {"model.nowhere": 0}}, "model.nowhere"),
    ):
        with pytest.raises(stoch.InvalidInput, match=message):
            stoch.load(demo, **{"device": "cpu", **arguments})
    with pytest.raises(stoch.InvalidInput):
        stoch.load(tmp_path, device="cpu")


def test_pass_rows_change_no_bit(demo: str) -> None:
    hashes = []
    for rows in (0, 3):
        with stoch.load(demo, device="cpu", pass_rows=rows) as model:
            hashes.append(model.generate("Once upon a time", max_tokens=3, temperature=0).logits_sha256)
    assert hashes[0] == hashes[1] is not None


def test_speculation_changes_no_bit(demo: str) -> None:
    answers = []
    for speculate in ("off", "ngram", "demo"):
        with stoch.load(demo, device="cpu", speculate=speculate) as model:
            answers.append(model.generate("Tom had a dog. Tom had a cat. Tom had a", max_tokens=40, temperature=0))
    assert answers[0].text == answers[1].text == answers[2].text
    assert answers[0].logits_sha256 == answers[1].logits_sha256 is not None
    assert answers[0].drafts is None
    assert set(answers[1].drafts or {}) == {"passes", "drafted", "accepted"}
    assert set(answers[2].drafts or {}) == {"passes", "drafted", "accepted"}
    with pytest.raises(stoch.InvalidInput, match="draft model random:llama-3.2-1b: has no tokenizer"):
        stoch.load(demo, device="cpu", speculate="random:llama-3.2-1b")
    with pytest.raises(stoch.InvalidInput, match="speculate = 'draft': allowed is ngram, off"):
        stoch.load(demo, device="cpu", speculate="draft")
    with pytest.raises(stoch.InvalidInput, match="draft_tokens = 16"):
        stoch.load(demo, device="cpu", speculate="ngram", draft_tokens=16)
    with pytest.raises(stoch.InvalidInput, match="draft_tokens = 7: rows of a pass"):
        stoch.load(demo, device="cpu", speculate="ngram", sc="attention=per_head")


def test_progress(demo: str) -> None:
    seen: list[tuple[int, int, str]] = []
    with stoch.load(demo, device="cpu", progress=lambda *args: seen.append(args)) as model:
        assert seen and seen[-1][0] == seen[-1][1] and seen[0][2] == "loading"
        seen.clear()
        model.generate(["a", "b"], max_tokens=2, progress=lambda *args: seen.append(args))
        assert seen[-1][:2] == (2, 2)

        def fail(*_: object) -> None:
            raise KeyError("from a callback")

        with pytest.raises(KeyError, match="from a callback"):
            model.generate(["a", "b"], max_tokens=2, progress=fail)
        assert model.generate("a", max_tokens=2).ids
        ids = model.tokenize(PROMPT) * 40
        for call in (model.logits, lambda ids, progress: model.hidden(ids, 1, progress=progress)):
            seen.clear()
            call(ids, progress=lambda *args: seen.append(args))
            assert [done for done, _, _ in seen] == sorted({done for done, _, _ in seen})
            assert seen[-1][:2] == (len(ids), len(ids)) and seen[0][2] in ("logits", "hidden")
            with pytest.raises(KeyError, match="from a callback"):
                call(ids, progress=fail)
        assert len(model.logits(ids[:3], progress=True)) == 3


@pytest.mark.usefixtures("interruptible")
def test_interrupt_leaves_the_model_usable(model: stoch.Model) -> None:
    want = model.generate(PROMPT, max_tokens=8).ids
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    began = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        for _ in range(200):
            model.generate([PROMPT] * 8, ignore_eos=True)
    timer.join()
    assert time.monotonic() - began < 20
    assert model.generate(PROMPT, max_tokens=8).ids == want


def test_other_threads_run_while_it_computes(model: stoch.Model) -> None:
    ticks = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    results = []
    workers = [threading.Thread(target=lambda: results.append(model.generate(PROMPT, max_tokens=100).ids)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    done.set()
    thread.join()
    assert ticks > 5 and len(results) == 3 and results[0] == results[1] == results[2]


def test_chat_needs_messages(model: stoch.Model) -> None:
    with pytest.raises(stoch.InvalidInput, match="role, content"):
        model.chat(["Hi"])  # type: ignore[list-item]
    with pytest.raises(stoch.InvalidInput, match="JSON"):
        model.chat([{"role": "user", "content": object()}])
    with pytest.raises(stoch.InvalidInput, match="chatml"):
        stoch.load("demo", device="cpu", chat_template="no-such-format")


def test_chat_is_rendered(demo: str, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    template = tmp_path / "mine.jinja"
    template.write_text("{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                        "{% if add_generation_prompt %}{{ who | default('bot') }}:{% endif %}{{ tools | tojson if tools }}")
    hello = [{"role": "user", "content": "Once upon a </s>"}]
    with stoch.load(demo, device="cpu", chat_template=template) as talking:
        text = talking.apply_chat_template(hello, tokenize=False, add_generation_prompt=True, who="cat")
        assert text == "<s>user: Once upon a </s>\ncat:"
        ids = talking.apply_chat_template(hello)
        assert ids[0] == talking.config["bos_token_id"]
        assert ids.count(2) == 0, "an EOS that a message writes is text"
        assert talking.detokenize(ids) == "user: Once upon a </s>\n"
        prompt = talking.apply_chat_template(hello, add_generation_prompt=True)
        expected = talking.generate(prompt, max_tokens=5)
        assert talking.chat(hello, max_tokens=5).ids == expected.ids
        tools = [{"z": 1, "a": {"c": 2, "b": 3}}]
        assert talking.apply_chat_template(hello, tools=tools, tokenize=False).endswith(
            '[{"z": 1, "a": {"c": 2, "b": 3}}]'
        )
        assert talking.chat_template == template.read_text()


def test_hidden(model: stoch.Model, demo: str) -> None:
    ids = model.tokenize(PROMPT)
    layers = model.config["num_hidden_layers"]
    streams = [model.hidden(ids, layer) for layer in range(layers + 1)]
    assert all(each.shape == (len(ids), model.config["hidden_size"]) for each in streams)
    # The embeddings of a token are the same everywhere; what layers add is not.
    assert np.array_equal(model.hidden([ids[3], ids[1]], 0), streams[0][[3, 1]])
    assert len({each.tobytes() for each in streams}) == layers + 1
    # The final norm and the LM head make logits of the last one.
    with stoch.load(demo, device="cpu", precision="fp32") as exact:
        last = exact.hidden(ids, layers).astype(np.float64)
        tensors, _ = read(Path(demo) / "model.safetensors")
        scale = np.sqrt((last**2).mean(axis=1, keepdims=True) + exact.config["rms_norm_eps"])
        normed = last / scale * tensors["model.norm.weight"]
        assert np.allclose(normed @ tensors["model.embed_tokens.weight"].T, exact.logits(ids), atol=1e-3)
        assert np.abs(last - streams[-1]).max() > 1e-3
        # Neither what follows nor layers on several devices change it.
        with stoch.load(demo, device="cpu:2", precision="fp32", device_map={"": 0, "model.layers.1": 1}) as divided:
            for layer in range(layers + 1):
                assert np.array_equal(divided.hidden(ids, layer), exact.hidden(ids, layer)), layer
        long = (ids * 80)[:500]
        assert np.array_equal(exact.hidden(long, 2)[:300], exact.hidden(long[:300], 2))
    with pytest.raises(stoch.InvalidInput, match=f"layer {layers + 1}: allowed is 0 .*{layers}"):
        model.hidden(ids, layers + 1)
    with pytest.raises(stoch.InvalidInput, match="layer -1"):
        model.hidden(ids, -1)
    assert model.hidden([], 0).shape == (0, model.config["hidden_size"])


def test_models_leak_nothing(demo: str) -> None:
    def some(count: int) -> None:
        for _ in range(count):
            with stoch.load(demo, device="cpu", context=64, batch=2) as model:
                ids = model.generate("Once", max_tokens=2).ids
                model.logits(ids)
                model.hidden(ids, 1)
                engine = model.engine()
                engine.step([engine.fork(engine.add(ids))])
        gc.collect()

    some(4)
    before = resident_kib()
    some(24)
    assert resident_kib() - before < 8192


def resident_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 1 << 70}, "max_tokens is a number that 64 bits do not hold"),
        ({"max_tokens": 1.5}, "max_tokens is a float"),
        ({"top_k": 1 << 64}, "top_k"),
        ({"top_logprobs": 1 << 31}, "top_logprobs = 2147483648: allowed is 0 to 1000"),
        ({"stop": "\ud800"}, "stop has half a surrogate pair at 0"),
        ({"stop": [5]}, "stop is a int"),
    ],
)
def test_what_the_engine_cannot_hold_is_one_sentence(model, options, message: str) -> None:
    with pytest.raises(stoch.InvalidInput, match=message) as caught:
        model.generate("a", **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.generate(5), "prompt is a int"),
        (lambda m: m.generate(None), "prompt is a NoneType"),
        (lambda m: m.generate([1, 2.5]), "prompt is a list"),
        (lambda m: m.generate([[1], None]), "prompt is a NoneType"),
        (lambda m: m.generate(np.float32([1, 2])), "prompt is a ndarray"),
        (lambda m: m.logits([[1, 2]]), "ids is a list"),
        (lambda m: m.logits([-1]), "token id -1"),
        (lambda m: m.logits([1 << 31]), "token id 2147483648"),
        (lambda m: m.logits([1 << 30]), "vocab|token"),
        (lambda m: m.hidden([1], 99), "layer"),
        (lambda m: m.loglikelihood([([1],)]), "requests"),
        (lambda m: m.loglikelihood(5), "requests"),
        (lambda m: m.loglikelihood([([1], 5)]), "continuation is a int"),
        (lambda m: m.detokenize("text"), "ids is a str"),
        (lambda m: m.tokenize(b"text"), "text is a bytes"),
        (lambda m: m.chat("hello"), "messages"),
        (lambda m: m.perplexity("a", ctx=4), "token"),
    ],
)
def test_arguments_of_other_kinds(model: stoch.Model, call, message: str) -> None:
    with pytest.raises(stoch.InvalidInput, match=message):
        call(model)


def test_prompts_of_arrays(model: stoch.Model) -> None:
    ids = model.tokenize("Once upon a time")
    want = model.generate(ids, max_tokens=3).ids
    assert model.generate(np.array(ids), max_tokens=3).ids == want
    assert [result.ids for result in model.generate(np.array([ids, ids]), max_tokens=3)] == [want, want]
    torch = pytest.importorskip("torch")
    assert model.generate(torch.tensor(ids), max_tokens=3).ids == want
    assert [result.ids for result in model.generate(torch.tensor([ids]), max_tokens=3)] == [want]


def test_text_that_is_no_unicode(model, demo: str) -> None:
    for call in (lambda: model.generate("a\ud800"), lambda: stoch.ScConfig(gate="\udfff"), lambda: stoch.ModelConfig("\ud800")):
        with pytest.raises(stoch.InvalidInput, match="surrogate"):
            call()
    with pytest.raises(stoch.InvalidInput, match="NUL"):
        stoch.load("a\0b")
    with pytest.raises(stoch.InvalidInput, match="context is a number"):
        stoch.load(demo, context=1 << 64)
