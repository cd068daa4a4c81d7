# SPDX-License-Identifier: Apache-2.0
"""What an installed wheel must do on a system that has nothing but Python: run by tools/check_bare, without pytest.

Text, a chat, products, an answer of the server, and two runs of lm-evaluation-harness.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import numpy as np

import stoch

EXPECTED = ", there was a little girl named Lily"  # of docs/python.md
STORIES = [
    {"text": "Once upon a time, there was a little", "choices": [" girl", " quantum"], "answer": 0},
    {"text": "Lily and her mom went to the", "choices": [" therefore", " park"], "answer": 1},
]
TASK = """
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


def ask(address: str, path: str, body: dict[str, object] | None = None) -> dict[str, object]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def check_server() -> None:
    command = [sys.executable, "-m", "stoch", "serve", "--model", "demo", "--device", "cpu", "--port", "0", "--threads", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        address = server.stdout.readline().removeprefix("listening on ").strip()
        ready = next(line for line in server.stderr if " ready " in line)
        assert "chat=none" not in ready, ready
        answer = ask(address, "/v1/completions", {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0})
        assert answer["choices"][0]["text"] == EXPECTED, answer
        messages = [{"role": "user", "content": "Tell me a story"}]
        chat = ask(address, "/v1/chat/completions", {"messages": messages, "max_tokens": 8, "temperature": 0})
        assert chat["choices"][0]["message"]["content"].strip(), chat
        server.send_signal(signal.SIGTERM)
        for _ in server.stderr:
            pass
    assert server.returncode == 0, server.returncode


def check_harness() -> None:
    """lm-evaluation-harness by its own command line, without and with the chat template of the model."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": "/tmp/hub"}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "stories.jsonl")
        data.write_text("".join(json.dumps(story) + "\n" for story in STORIES))
        Path(folder, "choice.yaml").write_text(TASK.format(data=data))
        command = [sys.executable, "-m", "stoch.lm_eval", "--model", "stoch", "--model_args", "model=demo,device=cpu",
                   "--tasks", "stoch_choice", "--include_path", folder, "--output_path"]
        for name, options in (("plain", []), ("chat", ["--apply_chat_template"])):
            out = Path(folder, name)
            subprocess.run([*command, str(out), *options], env=environment, check=True, capture_output=True)
            (result,) = out.rglob("results*.json")
            accuracy = json.loads(result.read_text())["results"]["stoch_choice"]["acc,none"]
            assert name == "chat" or accuracy == 1, (name, accuracy)


def main() -> None:
    assert not os.path.exists("/usr/lib/x86_64-linux-gnu/libsentencepiece.so.0"), "this system is not bare"
    a = np.sin(np.arange(12, dtype=np.float32)).reshape(3, 4)
    assert stoch.sc_matmul(a, a, stoc_len=64).shape == (3, 3)
    with stoch.load("demo", device="cpu") as model:
        assert model.generate("Once upon a time", max_new_tokens=8).text == EXPECTED
        print(model.chat([{"role": "user", "content": "Tell me a story about a dog"}], max_tokens=24).text)
    assert all(row["passed"] for row in stoch.verify("demo", device="cpu", only=["product.halved"]))
    check_server()
    check_harness()
    print("stoch", stoch.__version__, "on Python", sys.version.split()[0], "without the distribution's libraries: ok")


main()
