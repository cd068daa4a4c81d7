# SPDX-License-Identifier: Apache-2.0
"""The classes of transformers that docs/models.md names: each patched with stoch.torch, and back."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import stoch.torch  # noqa: E402

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {"num_key_value_heads": 2}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 64}
# Class: (configuration, its settings).
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "LlamaForCausalLM": ("LlamaConfig", SIZES | GROUPED),
    "MistralForCausalLM": ("MistralConfig", SIZES | GROUPED | {"sliding_window": 5}),
    "MixtralForCausalLM": ("MixtralConfig", SIZES | GROUPED | EXPERTS),
    "Qwen2ForCausalLM": ("Qwen2Config", SIZES | GROUPED),
    "Qwen3ForCausalLM": ("Qwen3Config", SIZES | GROUPED | {"head_dim": 16}),
    "GemmaForCausalLM": ("GemmaConfig", SIZES | GROUPED | {"head_dim": 16}),
    "Gemma2ForCausalLM": ("Gemma2Config", SIZES | GROUPED | {"head_dim": 16, "sliding_window": 5}),
    "Phi3ForCausalLM": ("Phi3Config", SIZES | GROUPED),
    "GraniteForCausalLM": ("GraniteConfig", SIZES | GROUPED),
    "Olmo2ForCausalLM": ("Olmo2Config", SIZES | GROUPED),
    "SmolLM3ForCausalLM": ("SmolLM3Config", SIZES | GROUPED),
    "StableLmForCausalLM": ("StableLmConfig", SIZES | GROUPED),
    "Starcoder2ForCausalLM": ("Starcoder2Config", SIZES | GROUPED),
    "CohereForCausalLM": ("CohereConfig", SIZES | GROUPED),
    "PhiForCausalLM": ("PhiConfig", SIZES),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", SIZES),
    "GPT2LMHeadModel": ("GPT2Config", GPT2),
    "OPTForCausalLM": ("OPTConfig", SIZES | {"ffn_dim": 96, "word_embed_proj_dim": 64}),
}
IDS = torch.arange(3, 19).reshape(1, 16)


def made(name: str, config: str, settings: dict[str, Any]) -> Any:
    torch.manual_seed(6)
    model = getattr(transformers, name)(getattr(transformers, config)(**settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # so large that products decide the output
            if parameter.dim() > 1:
                parameter.mul_(4)
    return model


def expect_patched(model: Any, attention: str, **inputs: torch.Tensor) -> None:
    """Every linear of the layers runs in SC, and attention; the output is near the exact one, and that again afterwards."""

    def output() -> torch.Tensor:
        with torch.no_grad():
            result = model(**inputs)
        y = result.logits if hasattr(result, "logits") else result.last_hidden_state
        assert isinstance(y, torch.Tensor)
        return y

    exact = output()
    with stoch.torch.patched(model, "preset=halved") as report:
        y = output()
    assert report.attention == attention
    assert len(report.layers) == 2
    assert len(report.replaced) >= 2 * 4
    assert y.shape == exact.shape and bool(torch.isfinite(y).all())
    assert not torch.equal(y, exact)
    # Errors of random models: far from nothing and far from everything.
    assert (y - exact).norm() < 0.5 * exact.norm()
    assert torch.equal(output(), exact)


@pytest.mark.parametrize("name", DECODERS)
def test_decoders(name: str) -> None:
    expect_patched(made(name, *DECODERS[name]), "per_token", input_ids=IDS)


def test_bert() -> None:
    model = made("BertModel", "BertConfig", SIZES)
    expect_patched(model, "per_token", input_ids=IDS, attention_mask=torch.ones_like(IDS))


def test_vit() -> None:
    settings = SIZES | {"image_size": 16, "patch_size": 4}
    model = made("ViTModel", "ViTConfig", {key: settings[key] for key in settings if not key.endswith("token_id")})
    expect_patched(model, "per_token", pixel_values=torch.randn(2, 3, 16, 16))
