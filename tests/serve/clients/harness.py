#!/usr/bin/env python3
"""lm-evaluation-harness, unmodified, against a running server of the demo model: harness.py BASE_URL STOCH MODEL.

Runs a loglikelihood and a generate_until task and compares with what the binary STOCH gives offline for MODEL.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import lm_eval
from lm_eval.tasks import TaskManager

STORIES = [
    {"text": "Once upon a time, there was a little", "choices": [" girl", " quantum", " however"], "answer": 0},
    {"text": "Lily and her mom went to the", "choices": [" therefore", " park", " equation"], "answer": 1},
    {"text": "The dog was very", "choices": [" happy", " of", " them"], "answer": 0},
    {"text": "Tom said, \"Thank", "choices": [" zoo", " red", " you"], "answer": 2},
]

LOGLIKELIHOOD = """
task: stoch_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
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


def offline(stoch, model, prompt, *options):
    command = [stoch, "generate", "--model", model, "--prompt", prompt, "--json", *options]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def evaluate(base_url, task, folder, **model_args):
    results = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={"model": "demo", "base_url": base_url + "/v1/completions", "tokenizer_backend": "remote",
                    "max_length": 512, "num_concurrent": 2, "max_retries": 1, **model_args},
        tasks=[task],
        task_manager=TaskManager(include_path=folder),
        batch_size=3,
        bootstrap_iters=0,
        log_samples=True,
    )
    return [(STORIES[sample["doc_id"]], sample["resps"]) for sample in results["samples"][task]]


def main(base_url, stoch, model):
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder, "stories.jsonl")
        data.write_text("".join(json.dumps(story) + "\n" for story in STORIES))
        pathlib.Path(folder, "choice.yaml").write_text(LOGLIKELIHOOD.format(data=data))
        pathlib.Path(folder, "continue.yaml").write_text(GENERATE.format(data=data))
        for story, responses in evaluate(base_url, "stoch_choice", folder):
            likelihoods = [float(response[0][0]) for response in responses]
            best = likelihoods.index(max(likelihoods))
            print(story["text"], [round(value, 3) for value in likelihoods], "->", story["choices"][best])
            failed += best != story["answer"]
        # Prompts as text: the server's ids, BOS included, are those of the command line.
        for story, responses in evaluate(base_url, "stoch_continue", folder, tokenized_requests=False):
            text = responses[0][0]
            expected = offline(stoch, model, story["text"], "--max-tokens", "20", "--stop", ".")["text"]
            print(repr(text), "offline", repr(expected))
            failed += text != expected
    if failed:
        sys.exit(f"{failed} answers are not those expected")


if __name__ == "__main__":
    main(*sys.argv[1:])
