# SPDX-License-Identifier: Apache-2.0
"""What the binary gives without a server, for the clients to be compared with."""

import json
import pathlib
import subprocess
import tempfile


class Offline:
    def __init__(self, stoch, model):
        self.stoch = stoch
        self.model = model
        self.name = pathlib.Path(model).name

    def _json(self, command, *options):
        words = [self.stoch, command, "--model", self.model, *options, "--json"]
        return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)

    def ids(self, text):
        return self._json("tokenize", "--prompt", text)["ids"]

    def generate(self, prompt, max_tokens, *options):
        return self._json("generate", "--device", "cpu", "--prompt", prompt, "--max-tokens", str(max_tokens), *options)

    def chat(self, text, max_tokens, *options):
        """The answer to one message."""
        words = [self.stoch, "generate", "--model", self.model, "--device", "cpu", "--chat", "--max-tokens", str(max_tokens), "--quiet"]
        run = subprocess.run([*words, *options], input=text + "\n", check=True, capture_output=True, text=True)
        return run.stdout.removesuffix("\n")

    def log_likelihood(self, text):
        """Of every token of text but BOS, summed."""
        tokens = len(self.ids(text))
        if tokens < 2:
            return 0.0
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "text")
            path.write_text(text)
            result = self._json("perplexity", "--device", "cpu", "--file", str(path), "--ctx", str(tokens))
        return -next(value for value in find(result, "mean_nll")) * (tokens - 1)


def find(value, key):
    """Every value of `key` in a tree of JSON."""
    if isinstance(value, dict):
        if key in value:
            yield value[key]
        value = list(value.values())
    if isinstance(value, list):
        for child in value:
            yield from find(child, key)
