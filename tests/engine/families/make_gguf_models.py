#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes GGUF files of random models of every family in every type that is read, with the gguf package, and next to
each NAME.gguf the folder NAME.twin: the same numbers, as the package dequantizes them, in F32.

Needs what make_family_models.py needs, and gguf. Keys and tensors follow the rules of llama.cpp's converter: rows of q
and k permuted for architecture llama, norms, biases and routers in F32, experts of a layer in one tensor. Types that
the package cannot write (of k and iq) are random blocks. Every fifth file is split.
    make_gguf_models.py FOLDER [PART_OF_A_NAME]
    STOCH_FAMILY_MODELS=FOLDER build/release/tests/engine/family_oracle_test
"""
import json
import pathlib
import re
import shutil
import sys

try:
    import gguf
    import numpy as np
    import torch
    from safetensors.torch import save_file
    import transformers
    from make_family_models import randomize
except ImportError as error:
    sys.exit(f"make_gguf_models: skipped, {error}")

BASE = dict(vocab_size=301, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=256, bos_token_id=1, eos_token_id=2)
# name: (class prefix, architecture in GGUF, settings on top of BASE)
MODELS = {
    "llama": ("Llama", "llama", dict(rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=5e5))),
    "llama-bias-tied": ("Llama", "llama", dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    "mistral": ("Mistral", "llama", dict(sliding_window=9, head_dim=128, num_key_value_heads=1)),
    "qwen2": ("Qwen2", "qwen2", dict(tie_word_embeddings=True, rope_parameters=dict(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=64, rope_theta=1e6))),
    "qwen3": ("Qwen3", "qwen3", dict(head_dim=128)),
    "moe": ("Qwen3Moe", "qwen3moe", dict(head_dim=128, num_experts=5, num_experts_per_tok=2, norm_topk_prob=True,
                                         moe_intermediate_size=256, mlp_only_layers=[1])),
}
TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "Q2_K",
         "Q3_K", "IQ4_XS", "IQ4_NL", "MXFP4"]
HALVES = {"Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "Q2_K": [80, 82], "Q3_K": [108], "IQ4_XS": [0], "IQ4_NL": [0]}  # where scales in F16 are
NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
         "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name):
    part, kind = name.rsplit(".", 1)
    layer = re.match(r"model\.layers\.(\d+)\.(.*)", part)
    return f"blk.{layer[1]}.{NAMES[layer[2]]}.{kind}" if layer else f"{NAMES[part]}.{kind}"


def encode(values, kind, rng):
    """(bytes of the rows, the floats that they stand for)"""
    kind = gguf.GGMLQuantizationType[kind]
    if kind.name in HALVES:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        count = values.size // block
        data = rng.integers(0, 256, (count, size), dtype=np.uint8)
        for at in HALVES[kind.name]:
            data[:, at:at + 2] = (rng.standard_normal(count) * 4e-4).astype("<f2").view(np.uint8).reshape(count, 2)
        data = data.reshape(*values.shape[:-1], -1)
    else:
        data = gguf.quants.quantize(values, kind)
    return data, kind, gguf.quants.dequantize(data, kind).reshape(values.shape).astype(np.float32)


def permuted(rows, heads):
    """As llama.cpp's converter: row h*d + 2i + j is row h*d + j*d/2 + i of Hugging Face."""
    split = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


def restored(rows, heads):
    split = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


def write_keys(writer, config, architecture):
    rope = config.rope_parameters
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    if architecture == "llama":
        writer.add_rope_dimension_count(head_dim)
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if config.model_type == "mistral":
        writer.add_sliding_window(config.sliding_window)
    if architecture == "qwen3moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)


def unfused(state):
    """Experts under the names of checkpoints, whatever transformers calls them inside."""
    result = {}
    for name, value in state.items():
        if name.endswith("mlp.experts.gate_up_proj"):
            for i, both in enumerate(value):
                for part, half in zip(("gate_proj", "up_proj"), both.chunk(2)):
                    result[f"{name[:-len('gate_up_proj')]}{i}.{part}.weight"] = half
        elif name.endswith("mlp.experts.down_proj"):
            result.update({f"{name[:-len('down_proj')]}{i}.down_proj.weight": one for i, one in enumerate(value)})
        else:
            result[name] = value
    return {name: value.float().numpy() for name, value in result.items()}


def write_model(folder, name, kind, number):
    prefix, architecture, settings = MODELS[name]
    config = getattr(transformers, prefix + "Config")(**{**BASE, **settings})
    model = getattr(transformers, prefix + "ForCausalLM")(config)
    randomize(model, 7)
    state = unfused(model.state_dict())
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    rng = np.random.default_rng(11)
    stem = f"{name}-{kind}"
    writer = gguf.GGUFWriter(folder / f"{stem}.gguf", architecture, split_max_tensors=7 if number % 5 == 4 else 0)
    write_keys(writer, config, architecture)
    twin, experts = {}, {}
    for tensor, values in state.items():
        if expert := re.match(r"(.*)\.experts\.(\d+)\.(\w+)_proj\.weight", tensor):
            experts.setdefault((expert[1], expert[3]), []).append((tensor, values))
            continue
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        heads = heads.get(tensor.split(".")[-2]) if architecture == "llama" else None
        if heads:
            values = permuted(values, heads)
        plain = values.ndim == 1 or tensor.endswith("mlp.gate.weight")
        data, coded, floats = encode(values, "F32" if plain else kind, rng)
        writer.add_tensor(gguf_name(tensor), np.ascontiguousarray(data), raw_dtype=coded)
        twin[tensor] = restored(floats, heads) if heads else floats
    for (layer, part), parts in experts.items():
        data, coded, floats = encode(np.stack([values for _, values in parts]), kind, rng)
        block = re.match(r"model\.layers\.(\d+)\.", layer)[1]
        writer.add_tensor(f"blk.{block}.ffn_{part}_exps.weight", np.ascontiguousarray(data), raw_dtype=coded)
        twin.update({tensor: floats[i] for i, (tensor, _) in enumerate(parts)})
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path = folder / f"{stem}.twin"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    written = config.to_dict()
    written.update(architectures=[prefix + "ForCausalLM"], dtype="float32",
                   rms_norm_eps=float(np.float32(config.rms_norm_eps)))
    (path / "config.json").write_text(json.dumps(written, indent=2))
    save_file({key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in twin.items()},
              path / "model.safetensors")
    print(stem, flush=True)


def main():
    folder = pathlib.Path(sys.argv[1])
    part = sys.argv[2] if len(sys.argv) > 2 else ""
    folder.mkdir(parents=True, exist_ok=True)
    cases = [(name, kind) for name in MODELS for kind in TYPES]
    for number, (name, kind) in enumerate(cases):
        if part in f"{name}-{kind}":
            write_model(folder, name, kind, number)


if __name__ == "__main__":
    main()
