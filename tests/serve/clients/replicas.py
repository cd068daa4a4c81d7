#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lm-evaluation-harness, unmodified, through HAProxy as tools/serve/haproxy.cfg has it: replicas.py STOCH MODEL.

The results, and the answer to every request, are those of one replica, with three and where one of three is killed on the way.
"""

import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import lm_eval
from lm_eval.tasks import TaskManager

import harness

CONFIGURATION = pathlib.Path(__file__).parents[3] / "tools/serve/haproxy.cfg"
DOCUMENTS = 24
CLIENTS = 6


def get(url):
    with urllib.request.urlopen(url, timeout=10) as reply:
        return reply.read().decode()


def wait_for(what, is_true, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if is_true():
                return
        except OSError:  # it does not listen yet
            pass
        time.sleep(0.05)
    sys.exit(f"{what}: not within {seconds} s")


class Replica:
    def __init__(self, stoch, model, folder, number):
        out = pathlib.Path(folder, f"out{number}")
        with open(out, "w") as file, open(pathlib.Path(folder, f"err{number}"), "w") as err:
            self.process = subprocess.Popen([stoch, "serve", "--model", model, "--device", "cpu", "--threads", "1",
                                             "--port", "0", "--quiet"], stdout=file, stderr=err)
        wait_for("a replica listens", lambda: "http://" in out.read_text())
        self.url = re.search(r"http://\S+", out.read_text()).group()
        wait_for("a replica is ready", lambda: get(self.url + "/health"))

    def tokens(self):
        """Of prompts, so far."""
        return float(re.search(r"^stoch_prompt_tokens_total\S* (\S+)", get(self.url + "/metrics"), re.MULTILINE).group(1))

    def kill(self):
        self.process.kill()
        self.process.wait()


class Balancer:
    """HAProxy in front of some replicas, on a free port."""

    def __init__(self, replicas, folder):
        text = CONFIGURATION.read_text()
        servers = re.findall(r"^  server .*\n", text, re.MULTILINE)
        assert len(servers) == 2 and text.endswith("".join(servers)), "the servers are not the last lines"
        text = text[: -len("".join(servers))]
        for i, replica in enumerate(replicas):
            text += f"  server r{i} {replica.url.removeprefix('http://')}\n"
        port = free_port()
        assert "bind :8000\n" in text
        path = pathlib.Path(folder, f"haproxy-{len(replicas)}.cfg")
        path.write_text(text.replace("bind :8000\n", f"bind 127.0.0.1:{port}\n"))
        environment = dict(os.environ, PATH=os.environ["PATH"] + ":/usr/sbin:/sbin")
        self.process = subprocess.Popen(["haproxy", "-db", "-f", str(path)], env=environment, stderr=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{port}"
        wait_for("the balancer passes on", lambda: get(self.url + "/health"))

    def kill(self):
        self.process.kill()
        self.process.wait()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def evaluate(url, model, folder):
    """As JSON: the table of results, and for each document the answers of the model."""
    results = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={"base_url": url + "/v1/completions", "model": pathlib.Path(model).name, "tokenizer_backend": "remote",
                    "max_length": 512, "num_concurrent": CLIENTS, "max_retries": 1},
        tasks=["stoch_choice", "stoch_continue"],
        task_manager=TaskManager(include_path=folder),
        batch_size=1,
        bootstrap_iters=0,
        log_samples=True,
    )
    answers = {task: [[sample["doc_id"], sample["resps"]] for sample in samples]
               for task, samples in results["samples"].items()}
    return json.dumps({"results": results["results"], "answers": answers}, sort_keys=True)


def write_tasks(folder):
    data = pathlib.Path(folder, "stories.jsonl")
    stories = [dict(story, text=f"One day {i} " + story["text"]) for i in range(DOCUMENTS // 4) for story in harness.STORIES]
    data.write_text("".join(json.dumps(story) + "\n" for story in stories))
    pathlib.Path(folder, "choice.yaml").write_text(harness.LOGLIKELIHOOD.format(data=data))
    pathlib.Path(folder, "continue.yaml").write_text(harness.GENERATE.format(data=data))


def compare(replicas, alone, evaluated):
    """Differences, as sentences."""
    wrong = []
    before = [replica.tokens() for replica in replicas]
    if evaluated() != alone:
        wrong.append("three replicas have other results")
    parts = [int(replica.tokens() - earlier) for replica, earlier in zip(replicas, before)]
    print("three replicas: prompt tokens of each:", *parts)
    if min(parts) <= 0:
        wrong.append("a replica had no part of it")

    lost = replicas[-1]
    enough = lost.tokens() + parts[-1] / 3
    is_over = threading.Event()

    def kill():
        wait_for("the replica to be killed has a part", lambda: lost.tokens() > enough)
        if is_over.is_set():
            wrong.append("the evaluation ended before a replica was killed")
        lost.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    rest = evaluated()
    is_over.set()
    killer.join()
    if rest != alone:
        wrong.append("other results where one of three is killed")
    return wrong


def main(stoch, model):
    running = []
    with tempfile.TemporaryDirectory() as folder:
        write_tasks(folder)
        try:
            replicas = []
            for i in range(3):
                replicas.append(Replica(stoch, model, folder, i))
                running.append(replicas[-1])
            single, balancer = Balancer(replicas[:1], folder), Balancer(replicas, folder)
            running += [single, balancer]
            alone = evaluate(single.url, model, folder)
            assert len(json.loads(alone)["answers"]["stoch_choice"]) == DOCUMENTS
            print("results:", json.loads(alone)["results"])
            wrong = compare(replicas, alone, lambda: evaluate(balancer.url, model, folder))
        finally:
            for process in running:
                process.kill()
    if wrong:
        sys.exit("\n".join(wrong))
    print("ok: through HAProxy, 1 replica, 3, and 3 of which one is killed: the same results and answers")


if __name__ == "__main__":
    main(*sys.argv[1:])
