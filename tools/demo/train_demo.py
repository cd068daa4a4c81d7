#!/usr/bin/env python3
"""Trains the bundled demo model (models/demo): a small Llama that tells short stories in stochastic computing.

What it does, in one run on one GPU:
  1. samples stories from a small teacher (TinyStories-656K), because 2 MiB of real text alone overfits;
  2. trains a SentencePiece BPE tokenizer on real and sampled text;
  3. trains the student on sampled text with a few percent of real text, with the quantization of the SC linears and
     noise of the size of their counting error in every linear, so that SC inference stays coherent;
  4. writes a Hugging Face folder in fp16 and a JSON record of the run with held-out losses.

Needs torch, transformers, tokenizers, sentencepiece, safetensors. Not part of the build.
Usage: train_demo.py --text train.txt --val val.txt --teacher DIR --out DIR [--sample-minutes 2] [--train-minutes 5]
"""

import argparse
import json
import math
import multiprocessing
import os
import time

import sentencepiece
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": 2048,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "float16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attention_bias": False,
    "mlp_bias": False,
}
CONTEXT = CONFIG["max_position_embeddings"]
CHUNK = 128
# RMS error of one SC product at L = 128 (halved, bitrev, 64 masks), in counts, and the gain Q * Q / L that turns counts
# into units of scale_a * scale_b.
COUNT_ERROR = 0.613
GAIN = 127.0 * 127.0 / 128.0


def plain_quotes(text):
    return text.translate({0x201C: '"', 0x201D: '"', 0x2018: "'", 0x2019: "'", 0x2013: "-", 0x2014: "-", 0x2026: "..."})


def read_stories(path):
    with open(path, encoding="utf-8", errors="ignore") as file:
        parts = plain_quotes(file.read()).split("<|endoftext|>")
    return [part.strip() for part in parts if len(part.strip()) > 80]


# ------------------------------------------------------------------------------------------------- teacher text


@torch.inference_mode()
def sample_teacher(folder, minutes, batch=6144, length=320):
    from tokenizers import Tokenizer
    from transformers import LlamaForCausalLM

    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).cuda().eval()
    bos, eos = model.config.bos_token_id, model.config.eos_token_id
    stories, started, rounds = [], time.time(), 0
    while time.time() - started < 60 * minutes:
        # Most stories near the teacher's mode (coherent), some wider (varied).
        temperature = (0.7, 0.8, 0.9, 1.0)[rounds % 4]
        rounds += 1
        ids = torch.full((batch, 1), bos, device="cuda")
        past, done, columns = None, torch.zeros(batch, dtype=torch.bool, device="cuda"), []
        for _ in range(length):
            out = model(ids, past_key_values=past, use_cache=True)
            past = out.past_key_values
            logits = out.logits[:, -1] / temperature
            top = logits.topk(60, dim=-1)
            choice = torch.multinomial(top.values.softmax(-1), 1)
            ids = top.indices.gather(1, choice)
            done |= ids[:, 0] == eos
            columns.append(ids[:, 0])
        rows = torch.stack(columns, 1).cpu().tolist()
        for row in rows:
            if eos in row:  # only whole stories
                stories.append(row[: row.index(eos)])
        print(f"teacher: {len(stories)} stories after {time.time() - started:.0f} s", flush=True)
    texts = tokenizer.decode_batch(stories)
    return [plain_quotes(text).strip() for text in texts if len(text) > 80]


# ------------------------------------------------------------------------------------------------- tokenizer


def train_tokenizer(texts, out):
    lines = os.path.join(out, "sp_input.txt")
    with open(lines, "w", encoding="utf-8") as file:
        for text in texts:
            file.write(text.replace("\n", " ") + "\n")
    sentencepiece.SentencePieceTrainer.train(
        input=lines, model_prefix=os.path.join(out, "tokenizer"), vocab_size=CONFIG["vocab_size"], model_type="bpe",
        byte_fallback=True, normalization_rule_name="identity", character_coverage=0.9999, split_digits=True,
        unk_id=0, bos_id=1, eos_id=2, pad_id=-1, remove_extra_whitespaces=False, max_sentence_length=20000,
        num_threads=16, minloglevel=2)
    os.remove(lines)
    os.remove(os.path.join(out, "tokenizer.vocab"))


def encode_all(texts, model_file):
    with multiprocessing.get_context("fork").Pool(14, initializer=_open_tokenizer, initargs=(model_file,)) as pool:
        return pool.map(_encode, texts, chunksize=512)


def _open_tokenizer(model_file):
    global _processor
    _processor = sentencepiece.SentencePieceProcessor(model_file=model_file)


def _encode(text):
    return [1] + _processor.encode(text) + [2]


def pack(rows):
    flat = torch.tensor([token for row in rows for token in row], dtype=torch.int32)
    usable = flat.numel() // (CONTEXT + 1) * (CONTEXT + 1)
    return flat[:usable].view(-1, CONTEXT + 1)


# ------------------------------------------------------------------------------------------------- student


def fake_quantize(x):
    """Values after the bipolar quantizer in chunks of CHUNK (straight-through gradient), and the chunks' scales."""
    rows = F.pad(x, (0, -x.shape[-1] % CHUNK)).unflatten(-1, (-1, CHUNK))
    scale = rows.detach().abs().amax(-1, keepdim=True).clamp_min(1e-5) / 127.0
    quantized = rows + ((rows / scale).round() * scale - rows).detach()
    return quantized.flatten(-2)[..., : x.shape[-1]], scale.squeeze(-1)


class ScLinear(torch.nn.Linear):
    """A linear with the quantizers of the SC arithmetic and noise of the size of its counting error."""

    noise = True

    def forward(self, x):
        if not ScLinear.noise:
            return super().forward(x)
        xq, sx = fake_quantize(x)
        wq, sw = fake_quantize(self.weight)
        with torch.no_grad():
            sigma = (COUNT_ERROR * math.sqrt(CHUNK) * GAIN) * (sx.square() @ sw.square().T).sqrt()
            noise = torch.randn_like(sigma) * sigma
        return F.linear(xq, wq) + noise


def linear(inputs, outputs):
    layer = ScLinear(inputs, outputs, bias=False)
    torch.nn.init.normal_(layer.weight, std=0.02 if outputs != CONFIG["hidden_size"] else 0.008)
    return layer


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
        self.heads, self.kv_heads, self.head_dim = (
            CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"], CONFIG["head_dim"])
        self.input_layernorm = torch.nn.RMSNorm(hidden, CONFIG["rms_norm_eps"])
        self.post_attention_layernorm = torch.nn.RMSNorm(hidden, CONFIG["rms_norm_eps"])
        self.q_proj = linear(hidden, self.heads * self.head_dim)
        self.k_proj = linear(hidden, self.kv_heads * self.head_dim)
        self.v_proj = linear(hidden, self.kv_heads * self.head_dim)
        self.o_proj = linear(self.heads * self.head_dim, hidden)
        self.gate_proj, self.up_proj, self.down_proj = linear(hidden, inner), linear(hidden, inner), linear(inner, hidden)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        h = self.input_layernorm(x)
        q = rotate(self.q_proj(h).view(batch, length, self.heads, -1).transpose(1, 2), cos, sin)
        k = rotate(self.k_proj(h).view(batch, length, self.kv_heads, -1).transpose(1, 2), cos, sin)
        v = self.v_proj(h).view(batch, length, self.kv_heads, -1).transpose(1, 2)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o_proj(a.transpose(1, 2).reshape(batch, length, -1))
        h = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class Student(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(CONFIG["vocab_size"], CONFIG["hidden_size"])
        torch.nn.init.normal_(self.embed.weight, std=0.02)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(CONFIG["num_hidden_layers"]))
        self.norm = torch.nn.RMSNorm(CONFIG["hidden_size"], CONFIG["rms_norm_eps"])
        half = CONFIG["head_dim"] // 2
        frequency = CONFIG["rope_theta"] ** (-torch.arange(half) / half)
        angles = torch.arange(CONTEXT)[:, None] * frequency
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids, targets):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, self.cos[: ids.shape[1]], self.sin[: ids.shape[1]])
        logits = F.linear(self.norm(x), self.embed.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


@torch.inference_mode()
def held_out_loss(model, rows, noise):
    ScLinear.noise = noise
    total = 0.0
    for begin in range(0, len(rows), 64):
        batch = rows[begin : begin + 64].long()
        total += model(batch[:, :-1], batch[:, 1:]).item() * len(batch)
    ScLinear.noise = True
    return total / len(rows)


def train(sampled, real, val, minutes, real_share, batch=128, peak=2.5e-3):
    torch.set_float32_matmul_precision("high")
    model = Student().cuda()
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=peak, betas=(0.9, 0.95),
        fused=True)
    step_model = torch.compile(model)
    sampled, real, val = sampled.cuda(), real.cuda(), val.cuda()
    num_real = max(1, round(batch * real_share))
    history, started, step = [], None, 0
    while True:
        rows = torch.cat((sampled[torch.randint(len(sampled), (batch - num_real,), device="cuda")],
                          real[torch.randint(len(real), (num_real,), device="cuda")])).long()
        elapsed = 0.0 if started is None else time.time() - started
        progress = min(1.0, elapsed / (60 * minutes))
        rate = peak * min(1.0, (step + 1) / 200) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast("cuda", torch.bfloat16):
            loss = step_model(rows[:, :-1], rows[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step == 5:
            torch.cuda.synchronize()
            started = time.time()  # compilation does not count
        if step % 500 == 0:
            point = {"step": step, "train": round(loss.item(), 4), "exact": round(held_out_loss(model, val, False), 4),
                     "noisy": round(held_out_loss(model, val, True), 4), "seconds": round(elapsed, 1)}
            history.append(point)
            print(json.dumps(point), flush=True)
        if progress >= 1.0:
            return model, history, step


def export(model, out):
    tensors = {"model.embed_tokens.weight": model.embed.weight, "model.norm.weight": model.norm.weight}
    for index, layer in enumerate(model.layers):
        for name, parameter in layer.named_parameters():
            block = "" if "layernorm" in name else ("mlp." if name.split("_")[0] in ("gate", "up", "down") else "self_attn.")
            tensors[f"model.layers.{index}.{block}{name}"] = parameter
    save_file({name: tensor.detach().half().cpu().contiguous() for name, tensor in tensors.items()},
              os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as file:
        json.dump(CONFIG, file, indent=2)
    with open(os.path.join(out, "generation_config.json"), "w", encoding="utf-8") as file:
        json.dump({"bos_token_id": 1, "eos_token_id": 2}, file)
    with open(os.path.join(out, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False,
                   "model_max_length": CONTEXT, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}, file, indent=1)


def main():
    parser = argparse.ArgumentParser()
    for name in ("text", "val", "teacher", "out"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--sample-minutes", type=float, default=2)
    parser.add_argument("--train-minutes", type=float, default=5)
    parser.add_argument("--real-share", type=float, default=0.06)
    args = parser.parse_args()
    torch.manual_seed(1)
    os.makedirs(args.out, exist_ok=True)

    real = read_stories(args.text)
    sampled = sample_teacher(args.teacher, args.sample_minutes)
    started = time.time()
    train_tokenizer(real * 4 + sampled[:10000], args.out)
    model_file = os.path.join(args.out, "tokenizer.model")
    sampled_rows, real_rows = pack(encode_all(sampled, model_file)), pack(encode_all(real, model_file))
    with open(args.val, encoding="utf-8") as file:
        val_ids = sentencepiece.SentencePieceProcessor(model_file=model_file).encode(plain_quotes(file.read()))
    windows = len(val_ids) // CONTEXT
    val_rows = torch.tensor([[1] + val_ids[i * CONTEXT : (i + 1) * CONTEXT] for i in range(windows)], dtype=torch.int32)
    print(f"tokens: sampled {sampled_rows.numel()}, real {real_rows.numel()}, held out {val_rows.numel()}; "
          f"prepared in {time.time() - started:.0f} s", flush=True)

    model, history, steps = train(sampled_rows, real_rows, val_rows, args.train_minutes, args.real_share)
    export(model, args.out)
    record = {"steps": steps, "parameters": sum(p.numel() for p in model.parameters()), "gpu": torch.cuda.get_device_name(),
              "sampled_stories": len(sampled), "sampled_tokens": sampled_rows.numel(), "real_tokens": real_rows.numel(),
              "real_share": args.real_share, "held_out_exact": held_out_loss(model, val_rows.cuda(), False),
              "held_out_noisy": held_out_loss(model, val_rows.cuda(), True), "history": history}
    with open(os.path.join(args.out, "training.json"), "w", encoding="utf-8") as file:
        json.dump(record, file, indent=1)
    print({key: value for key, value in record.items() if key != "history"})


if __name__ == "__main__":
    main()
