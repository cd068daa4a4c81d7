#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes random tiny checkpoints of the decoder families in many settings, with the logits and greedy text that
transformers makes of them, for family_oracle_test.

Needs torch, transformers and safetensors (pip install torch transformers). Each setting is a folder as save_pretrained
writes it, or with the config.json of an older transformers; NAME_golden.safetensors next to it has the keys of the
reference data's goldens. The oracle runs on the CPU: the stored weights in float32, eager attention and eager experts,
no cache. A setting whose choices (greedy tokens, experts) hang on a difference of rounding gets another seed.
    make_family_models.py FOLDER [PART_OF_A_NAME]
    STOCH_FAMILY_MODELS=FOLDER build/release/tests/engine/family_oracle_test
"""
import json
import pathlib
import shutil
import sys

try:
    import torch
    import transformers
    from safetensors.torch import save_file
except ImportError as error:
    sys.exit(f"make_family_models: skipped, {error}")

GREEDY = 24
PROMPTS = [7, 45, 150]
BASE = dict(vocab_size=509, hidden_size=48, intermediate_size=100, num_hidden_layers=3, num_attention_heads=6,
            num_key_value_heads=2, max_position_embeddings=256, bos_token_id=1, eos_token_id=2)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
MOE = dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=32, num_experts=7,
           num_experts_per_tok=3, moe_intermediate_size=36, num_hidden_layers=4)


def rope(theta=10000.0, **more):
    return dict(rope_parameters=dict({"rope_type": "default"}, rope_theta=theta, **more))


# name: (class prefix, settings on top of BASE, how it is stored)
CASES = {
    "llama-plain": ("Llama", {}, {}),
    "llama-heads-as-kv": ("Llama", dict(num_key_value_heads=3, hidden_size=66, intermediate_size=131,
                                        num_attention_heads=3, head_dim=22, vocab_size=33), {}),
    "llama-one-kv-head-tied": ("Llama", dict(num_key_value_heads=1, tie_word_embeddings=True), dict(dtype="float16")),
    "llama-attention-bias": ("Llama", dict(attention_bias=True), {}),
    "llama-mlp-bias": ("Llama", dict(mlp_bias=True), dict(dtype="float32")),
    "llama-all-biases-tied-old": ("Llama", dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
                                  dict(older=True)),
    "llama-head-dim": ("Llama", dict(head_dim=14, rms_norm_eps=1e-3), {}),
    "llama-theta-sharded": ("Llama", rope(77777.5), dict(shard="40KB")),
    "llama-linear": ("Llama", rope(rope_type="linear", factor=2.5), {}),
    "llama-linear-old": ("Llama", rope(5000.0, rope_type="linear", factor=4.0), dict(older="type")),
    "llama-dynamic": ("Llama", rope(rope_type="dynamic", factor=2.0), {}),
    "llama-dynamic-old": ("Llama", rope(rope_type="dynamic", factor=3.0), dict(older="type")),
    "llama-llama3": ("Llama", rope(500000.0, **LLAMA3), {}),
    "llama-llama3-old": ("Llama", rope(10000.0, **dict(LLAMA3, factor=32.0, high_freq_factor=8.0)), dict(older=True)),
    "llama-llama3-no-original": ("Llama", rope(10000.0, rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                                               high_freq_factor=4.0), dict(drop="original_max_position_embeddings")),
    "llama-yarn": ("Llama", rope(**YARN), {}),
    "llama-yarn-old": ("Llama", rope(**YARN), dict(older="type")),
    "llama-yarn-attention-factor": ("Llama", rope(attention_factor=0.8, **YARN), {}),
    "llama-yarn-mscale": ("Llama", rope(mscale=0.707, mscale_all_dim=1.1, **YARN), {}),
    "llama-yarn-mscale-alone": ("Llama", rope(mscale=0.707, **YARN), {}),
    "llama-yarn-no-truncate": ("Llama", rope(truncate=False, beta_fast=24.0, beta_slow=1.5, **YARN), {}),
    "llama-yarn-theta": ("Llama", dict(rope(1e6, **dict(YARN, original_max_position_embeddings=32)), head_dim=32),
                         dict(older=True)),
    "qwen2-tied": ("Qwen2", dict(tie_word_embeddings=True, **rope(1e6)), {}),
    "qwen2-untied-f32": ("Qwen2", rope(1e6), dict(dtype="float32")),
    "qwen2-window": ("Qwen2", dict(use_sliding_window=True, sliding_window=16, max_window_layers=1), {}),
    "qwen2-window-old": ("Qwen2", dict(use_sliding_window=True, sliding_window=9, max_window_layers=2,
                                       tie_word_embeddings=True), dict(older=True)),
    "qwen2-window-off-old": ("Qwen2", dict(use_sliding_window=False, sliding_window=9, max_window_layers=0),
                             dict(older=True)),
    "qwen2-layer-types": ("Qwen2", dict(use_sliding_window=True, sliding_window=13, layer_types=[
        "sliding_attention", "full_attention", "sliding_attention"]), {}),
    "qwen2-yarn": ("Qwen2", rope(1e6, **YARN), dict(older="type", dtype="float16")),
    "qwen2-sharded-tied": ("Qwen2", dict(tie_word_embeddings=True), dict(shard="30KB")),
    "qwen3-head-dim": ("Qwen3", dict(head_dim=32, **rope(1e6)), {}),
    "qwen3-tied-bias": ("Qwen3", dict(head_dim=16, attention_bias=True, tie_word_embeddings=True), {}),
    "qwen3-default-head-dim-old": ("Qwen3", dict(num_attention_heads=2, num_key_value_heads=1, head_dim=128),
                                   dict(older=True, drop="head_dim")),
    "qwen3-window": ("Qwen3", dict(head_dim=20, use_sliding_window=True, sliding_window=7, max_window_layers=0), {}),
    "qwen3-yarn": ("Qwen3", dict(head_dim=32, **rope(1e6, **YARN)), dict(older=True)),
    "moe-norm": ("Qwen3Moe", dict(norm_topk_prob=True, **MOE), {}),
    "moe-no-norm-old": ("Qwen3Moe", dict(norm_topk_prob=False, **MOE), dict(older=True)),
    "moe-dense-layers": ("Qwen3Moe", dict(mlp_only_layers=[0, 2], norm_topk_prob=True, **MOE), dict(older=True)),
    "moe-sparse-step": ("Qwen3Moe", dict(decoder_sparse_step=2, **MOE), dict(dtype="float16")),
    "moe-step-and-dense": ("Qwen3Moe", dict(decoder_sparse_step=2, mlp_only_layers=[3], norm_topk_prob=True, **MOE),
                           {}),
    "moe-tied-sharded": ("Qwen3Moe", dict(tie_word_embeddings=True, attention_bias=True, **MOE), dict(shard="60KB")),
    "moe-one-of-many": ("Qwen3Moe", dict(MOE, num_experts=33, num_experts_per_tok=1, norm_topk_prob=True), {}),
    "moe-all-chosen": ("Qwen3Moe", dict(MOE, num_experts=4, num_experts_per_tok=4), dict(dtype="float32")),
    "moe-no-head-dim": ("Qwen3Moe", {key: value for key, value in MOE.items() if key != "head_dim"}, {}),
    "moe-window-all": ("Qwen3Moe", dict(use_sliding_window=True, sliding_window=11, **MOE), {}),
    "mistral-no-window": ("Mistral", dict(sliding_window=None), {}),
    "mistral-window": ("Mistral", dict(sliding_window=8), dict(older=True)),
    "mistral-window-one": ("Mistral", dict(sliding_window=1), {}),
    "mistral-head-dim": ("Mistral", dict(sliding_window=20, head_dim=24, **rope(1e6)), dict(dtype="float16")),
    "mistral-default-window": ("Mistral", dict(sliding_window=4096, tie_word_embeddings=True),
                               dict(drop="sliding_window")),
    "mistral-yarn": ("Mistral", dict(sliding_window=None, **rope(1e6, **YARN)), {}),
    "mixtral-window": ("Mixtral", dict(num_local_experts=5, num_experts_per_tok=3, sliding_window=12), {}),
    "mixtral-one-of-many-tied-old": ("Mixtral", dict(num_local_experts=9, num_experts_per_tok=1, head_dim=24,
                                                     tie_word_embeddings=True), dict(older=True, dtype="float16")),
    "phi3-plain-tied": ("Phi3", dict(pad_token_id=0, tie_word_embeddings=True), {}),
    "phi3-part-window": ("Phi3", dict(pad_token_id=0, sliding_window=14, **rope(partial_rotary_factor=0.5)), {}),
    "phi3-longrope": ("Phi3", dict(pad_token_id=0, max_position_embeddings=1024, original_max_position_embeddings=256,
                                   **rope(rope_type="longrope", short_factor=[1.0, 1.1, 1.5, 3.0],
                                          long_factor=[1.0, 2.0, 8.0, 30.0])), {}),
    "smollm3-interval": ("SmolLM3", dict(pad_token_id=0, no_rope_layer_interval=2), {}),
    "smollm3-list-bias": ("SmolLM3", dict(pad_token_id=0, no_rope_layers=[0, 1, 1], attention_bias=True,
                                          tie_word_embeddings=False), dict(dtype="float16")),
    "granite-biases": ("Granite", dict(attention_bias=True, mlp_bias=True, embedding_multiplier=6.5,
                                       residual_multiplier=0.4, attention_multiplier=0.2, logits_scaling=2.5), {}),
    "olmo2-heads": ("Olmo2", dict(pad_token_id=0, num_key_value_heads=6), {}),
    "olmo2-yarn": ("Olmo2", dict(pad_token_id=0, **rope(1e6, **YARN)), dict(older=True)),
    "gemma2-caps": ("Gemma2", dict(head_dim=20, query_pre_attn_scalar=14, attn_logit_softcapping=5.0,
                                   final_logit_softcapping=12.0, sliding_window=11), {}),
    "gemma2-no-caps-untied-old": ("Gemma2", dict(head_dim=16, query_pre_attn_scalar=16, attn_logit_softcapping=None,
                                                 final_logit_softcapping=None, sliding_window=7,
                                                 tie_word_embeddings=False), dict(older=True, dtype="float16")),
    "gemma2-layer-types-bias": ("Gemma2", dict(head_dim=24, query_pre_attn_scalar=24, attn_logit_softcapping=30.0,
                                               attention_bias=True, sliding_window=13, layer_types=[
                                                   "full_attention", "full_attention", "sliding_attention"]), {}),
    "gemma3-layer-types": ("Gemma3Text", dict(head_dim=20, query_pre_attn_scalar=14, num_key_value_heads=1,
                                              sliding_window=9, layer_types=[
                                                  "sliding_attention", "full_attention", "sliding_attention"]), {}),
    "gemma3-thetas-final-cap": ("Gemma3Text", dict(head_dim=32, query_pre_attn_scalar=32, sliding_window=30,
                                                   final_logit_softcapping=14.0, layer_types=[
                                                       "sliding_attention", "sliding_attention", "full_attention"],
                                                   rope_parameters=dict(
                                                       full_attention=dict(rope_type="linear", factor=4.0,
                                                                           rope_theta=2e5),
                                                       sliding_attention=dict(rope_type="default", rope_theta=777.0))),
                                {}),
}


def randomize(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator)
        if name.endswith("bias"):
            values *= 0.3
        elif parameter.dim() == 1:
            values = 0.2 * values + (0 if model.config.model_type.startswith("gemma") else 1)  # Gemma's are 1 + w
        elif "lm_head" in name or (model.config.tie_word_embeddings and "embed_tokens" in name):
            values *= 3 / parameter.shape[-1] ** 0.5
        elif "embed_tokens" not in name:
            values *= 1.2 / parameter.shape[-1] ** 0.5
        parameter.data.copy_(values)


def older_config(config, how):
    """config.json in the words of transformers 4."""
    parameters = config.pop("rope_parameters", None) or {}
    config["rope_theta"] = parameters.pop("rope_theta", 10000.0)
    kind = parameters.pop("rope_type", "default")
    config["rope_scaling"] = None if kind == "default" else {("type" if how == "type" else "rope_type"): kind,
                                                             **parameters}
    config["torch_dtype"] = config.pop("dtype", "float32")
    config.pop("layer_types", None)
    if "num_local_experts" in config:
        config["num_experts"] = config.pop("num_local_experts")
    config["transformers_version"] = "4.51.3"
    return config


def write_folder(folder, prefix, settings, stored, seed):
    config = getattr(transformers, prefix + "Config")(**{**BASE, **settings})
    model = getattr(transformers, prefix.removesuffix("Text") + "ForCausalLM")(config)
    randomize(model, seed)
    dtype = stored.get("dtype", "bfloat16")
    shutil.rmtree(folder, ignore_errors=True)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=stored.get("shard", "1GB"))
    path = folder / "config.json"
    written = json.loads(path.read_text())
    if stored.get("older"):
        for key in ("sliding_window", "use_sliding_window", "max_window_layers"):
            if key in settings:
                written[key] = settings[key]
        written = older_config(written, stored["older"])
    if "drop" in stored:
        for part in (written, written.get("rope_parameters") or {}, written.get("rope_scaling") or {}):
            part.pop(stored["drop"], None)
    path.write_text(json.dumps(written, indent=2))


def load(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model.eval()


def gap_of_two_best(rows, best):
    if rows.shape[-1] == best:
        return float("inf")
    values = rows.topk(best + 1, dim=-1).values
    return float((values[..., best - 1] - values[..., best]).min())


def run(model, seed):
    """(tensors, smallest distance of the two best tokens, smallest distance of a chosen and a refused expert)"""
    router = []
    for module in model.modules():
        if type(module).__name__.endswith("TopKRouter"):
            module.register_forward_hook(lambda _, __, output, top=module.top_k:
                                         router.append(gap_of_two_best(output[0], top)))
    tensors, closest = {}, float("inf")
    generator = torch.Generator().manual_seed(seed + 1)
    for number, length in enumerate(PROMPTS):
        ids = torch.randint(0, model.config.vocab_size, (1, length), generator=generator)
        text = ids
        for step in range(GREEDY + 1):
            logits = model(text, use_cache=False).logits[0]
            if step == 0:
                tensors[f"exact.{number}.ids"] = ids[0].to(torch.int32)
                tensors[f"exact.{number}.logits"] = logits.contiguous()
                tensors[f"exact.{number}.argmax"] = logits.argmax(-1).to(torch.int32)
                closest = min(closest, gap_of_two_best(logits, 1))
            if step == GREEDY:
                break
            closest = min(closest, gap_of_two_best(logits[-1:], 1))
            text = torch.cat([text, logits[-1:].argmax(-1)[None]], dim=1)
        tensors[f"exact.{number}.greedy"] = text[0].to(torch.int32)
    return tensors, closest, min(router, default=float("inf"))


def main():
    folder = pathlib.Path(sys.argv[1])
    part = sys.argv[2] if len(sys.argv) > 2 else ""
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for name, (prefix, settings, stored) in CASES.items():
        if part not in name:
            continue
        for seed in range(100, 140):
            write_folder(folder / name, prefix, settings, stored, seed)
            with torch.no_grad():
                tensors, greedy, router = run(load(folder / name), seed)
            if greedy > 1e-3 and router > 2e-4:
                break
        else:
            sys.exit(f"{name}: no seed without close choices")
        spread = max(float(t.max() - t.min()) for key, t in tensors.items() if key.endswith("logits"))
        save_file(tensors, folder / f"{name}_golden.safetensors",
                  {"transformers": transformers.__version__, "torch": torch.__version__})
        print(f"{name}: seed {seed}, logits spread {spread:.1f}, greedy {greedy:.4f}, router {router:.4f}", flush=True)


if __name__ == "__main__":
    main()
