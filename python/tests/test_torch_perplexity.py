# SPDX-License-Identifier: Apache-2.0
"""Perplexity of patched transformers models against the engine's, each held against its own exact one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import stoch  # noqa: E402
import stoch.torch  # noqa: E402

CTX = 128
WINDOWS = 8


def exp_of_mean(model: torch.nn.Module, windows: torch.Tensor) -> float:
    """exp of the mean negative log-likelihood of the predictions inside the windows, each a pass of its own."""
    total = 0.0
    for window in windows:
        with torch.no_grad():
            logits = model(window[None, :-1]).logits[0].double()
        total += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
    return math.exp(total / (windows.shape[0] * (windows.shape[1] - 1)))


def stories(engine: stoch.Model) -> list[int]:
    """What the model itself tells, a window each: the text of a model whose tests need no files but the repository's."""
    ids: list[int] = []
    for seed in range(WINDOWS):
        prompt = engine.tokenize("Once upon a time, there was a")
        more = engine.generate(prompt, max_tokens=CTX, temperature=0.8, seed=seed, ignore_eos=True)
        ids += (prompt + list(more.ids))[:CTX]
    return ids


def perplexities(folder: str, text: str, sc: str) -> dict[str, float]:
    with stoch.load(folder, device="cpu", precision="fp32") as engine:
        ids = engine.tokenize(text) if text else stories(engine)
        result = engine.perplexity(ids, ctx=CTX, max_windows=WINDOWS)
        assert result.windows == WINDOWS
        ppl = {"engine exact": result.ppl}
    with stoch.load(folder, device="cpu", sc=sc) as engine:
        ppl["engine"] = engine.perplexity(ids, ctx=CTX, max_windows=WINDOWS).ppl
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    windows = torch.tensor(ids[: CTX * WINDOWS]).reshape(WINDOWS, CTX)
    ppl["torch exact"] = exp_of_mean(model, windows)
    with stoch.torch.patched(model, sc):
        ppl["patched"] = exp_of_mean(model, windows)
    return ppl


@pytest.mark.parametrize("sc", ["preset=halved", "preset=halved,stoc_len=64"])
@pytest.mark.parametrize("name", ["demo", "stories260K", "TinyStories-656K", "babyllama-936K"])
def test_sc_costs_a_patched_llama_what_it_costs_the_engine(
    request: pytest.FixtureRequest, demo: str, name: str, sc: str
) -> None:
    """The error of the perplexity against the exact model is at most 1.5 times the engine's. The two part where the
    layers around the products are rounded otherwise, so that a few codes differ."""
    folder, text = demo, ""
    if name != "demo":
        shared: Path = request.getfixturevalue("shared")
        folder = str(shared / "models" / name)
        text = (shared / "text" / "tinystories_val.txt").read_text()[:16000]
    ppl = perplexities(folder, text, sc)
    print(f"{name} {sc}: {ppl}")
    assert ppl["torch exact"] == pytest.approx(ppl["engine exact"], rel=1e-4)
    of_engine = ppl["engine"] / ppl["engine exact"] - 1
    assert of_engine > 2e-3, "SC costs nothing here, so nothing is compared"
    assert abs(ppl["patched"] / ppl["torch exact"] - 1) <= 1.5 * of_engine
