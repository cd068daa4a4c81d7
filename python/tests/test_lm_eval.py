# SPDX-License-Identifier: Apache-2.0
"""The harness's model class on the demo model."""

from __future__ import annotations

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
