#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lm-evaluation-harness, unmodified, against a running server of MODEL: harness.py BASE_URL STOCH MODEL [chats].

Runs a loglikelihood and a generate_until task, the latter also as chats (--apply_chat_template), with "chats" those alone.
Every number must be what the binary STOCH gives offline for MODEL.
"""

import json
import pathlib
import sys
import tempfile

import lm_eval
from lm_eval.tasks import TaskManager

from offline import Offline

STORIES = [
    {"text": "Once upon a time, there was a little", "choices": [" girl", " quantum", " however"], "answer": 0},
    {"text": "Lily and her mom went to the", "choices": [" therefore", " park", " equation"], "answer": 1},
    {"text": "The dog was very", "choices": [" happy", " of", " them"], "answer": 0},
    {"text": "Tom said, \"Thank", "choices": [" zoo", " red", " you"], "answer": 2},
]

# The harness asks for ids without BOS; written out, the server's /tokenize knows it.
LOGLIKELIHOOD = """
task: stoch_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "<s>{{{{text}}}}"
doc_to_target: "{{{{answer}}}}"
doc_to_choice: "{{{{choices}}}}"
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""

GENERATE = """
task: stoch_continue
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{text}}}}"
doc_to_target: "{{{{text}}}}"
generation_kwargs: {{until: ["."], max_gen_toks: 20, do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""

# The binary prints a mean, which is multiplied and subtracted again here.
ROUNDING = 1e-12


def evaluate(base_url, task, folder, *, api="local-completions", path="/v1/completions", chats=False, **model_args):
    """The score of the task, and (story, answers of the model) of each of its documents."""
    results = lm_eval.simple_evaluate(
        model=api,
        model_args={"base_url": base_url + path, "max_length": 512, "num_concurrent": 2, "max_retries": 1, **model_args},
        tasks=[task],
        task_manager=TaskManager(include_path=folder),
        batch_size=1 if chats else 3,
        apply_chat_template=chats,
        bootstrap_iters=0,
        log_samples=True,
    )
    samples = [(STORIES[sample["doc_id"]], sample["resps"]) for sample in results["samples"][task]]
    return results["results"][task], samples


def check_loglikelihoods(base_url, offline, folder):
    """Number of differences."""
    wrong = right_offline = 0
    score, samples = evaluate(base_url, "stoch_choice", folder, model=offline.name, tokenizer_backend="remote")
    for story, answers in samples:
        context = story["text"]
        expected = [offline.log_likelihood(context + choice) - offline.log_likelihood(context)
                    for choice in story["choices"]]
        right_offline += expected.index(max(expected)) == story["answer"]
        for choice, answer, value in zip(story["choices"], answers, expected):
            likelihood, greedy = float(answer[0][0]), str(answer[0][1]) == "True"
            tokens = offline.ids(context + choice)[len(offline.ids(context)):]
            most_likely = offline.generate(context, len(tokens))["ids"] == tokens
            same = abs(likelihood - value) <= ROUNDING * max(1, abs(value)) and greedy == most_likely
            wrong += not same
            print("ok:" if same else "DIFFERS:", repr(context + choice), likelihood, greedy, "offline", value, most_likely)
    accuracy = right_offline / len(STORIES)
    print("accuracy", score["acc,none"], "offline", accuracy)
    return wrong + (score["acc,none"] != accuracy) + (len(samples) != len(STORIES))


def check_generations(base_url, offline, folder):
    # Prompts as text: the server's ids, BOS included, are those of the command line.
    _, samples = evaluate(base_url, "stoch_continue", folder, model=offline.name, tokenizer_backend="remote",
                          tokenized_requests=False)
    return differences(samples, lambda text: offline.generate(text, 20, "--stop", ".")["text"])


def check_chats(base_url, offline, folder):
    """--apply_chat_template of the harness hands conversations to the server."""
    _, samples = evaluate(base_url, "stoch_continue", folder, api="local-chat-completions", path="/v1/chat/completions",
                          chats=True, model=offline.name)

    return differences(samples, lambda text: offline.chat(text, 20, "--stop", "."))


def differences(samples, expect):
    """How many answers are not expect(text of the story)."""
    wrong = 0
    for story, answers in samples:
        text = answers[0][0]
        expected = expect(story["text"])
        wrong += text != expected
        print("ok:" if text == expected else "DIFFERS:", repr(text), "offline", repr(expected))
    return wrong + (len(samples) != len(STORIES))


def main(base_url, stoch, model, which="all"):
    offline = Offline(stoch, model)
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder, "stories.jsonl")
        data.write_text("".join(json.dumps(story) + "\n" for story in STORIES))
        pathlib.Path(folder, "choice.yaml").write_text(LOGLIKELIHOOD.format(data=data))
        pathlib.Path(folder, "continue.yaml").write_text(GENERATE.format(data=data))
        wrong = check_chats(base_url, offline, folder)
        if which == "all":
            wrong += check_loglikelihoods(base_url, offline, folder) + check_generations(base_url, offline, folder)
    if wrong:
        sys.exit(f"{wrong} numbers are not those computed offline")


if __name__ == "__main__":
    main(*sys.argv[1:])
