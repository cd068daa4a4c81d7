#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the bundled demo model (demo): a small Llama that tells short stories in stochastic computing.

What it does, in one run on one GPU:
  1. samples stories from small teachers (TinyStories-656K, stories260K), because 2 MiB of real text alone overfits,
     and drops those that go round in circles;
  2. trains a SentencePiece BPE tokenizer on real and sampled text;
  3. trains the student on the teachers' text, then for a few epochs on real text, with the quantization of the SC
     linears and noise of the size of their counting error in every linear, so that SC inference stays coherent;
  4. writes a Hugging Face folder in fp16 and a JSON record of the run with held-out losses.

Needs torch, transformers, tokenizers, sentencepiece, safetensors. Not part of the build.
Usage: train_demo.py --text train.txt --val val.txt --teacher DIR [--teacher DIR] --out DIR
       [--sample-minutes 1] [--train-minutes 5] [--real-epochs 14]
"""

import argparse
import json
import math
import multiprocessing
import os
import random
import time
import zlib

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


def open_teacher(folder):
    """A teacher and the function that turns its ids into text."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).cuda().eval()
    if os.path.exists(os.path.join(folder, "tokenizer.model")):
        processor = sentencepiece.SentencePieceProcessor(model_file=os.path.join(folder, "tokenizer.model"))
        return model, processor.decode
    from tokenizers import Tokenizer

    return model, Tokenizer.from_file(os.path.join(folder, "tokenizer.json")).decode_batch


@torch.inference_mode()
def sample_teacher(folder, minutes, batch=6144, length=400):
    model, decode = open_teacher(folder)
    bos, eos = model.config.bos_token_id, model.config.eos_token_id
    rows, started, rounds = [], time.time(), 0
    while time.time() - started < 60 * minutes:
        # Most stories near the teacher's mode (coherent), some wider (varied).
        temperature = (0.7, 0.8, 0.9, 1.0)[rounds % 4]
        rounds += 1
        ids = torch.full((batch, 1), bos, device="cuda")
        past, columns = None, []
        for _ in range(length):
            out = model(ids, past_key_values=past, use_cache=True)
            past = out.past_key_values
            top = (out.logits[:, -1] / temperature).topk(60, dim=-1)
            ids = top.indices.gather(1, torch.multinomial(top.values.softmax(-1), 1))
            columns.append(ids[:, 0])
        for row in torch.stack(columns, 1).cpu().tolist():
            ends = [i for i, token in enumerate(row) if token in (eos, bos)]
            if ends:  # only whole stories
                rows.append(row[: ends[0]])
    texts = [plain_quotes(text).replace("<|end_story|>", "").strip() for text in decode(rows)]
    return [text for text in texts if len(text) > 80]


def variety(text):
    """Compressed over plain size: low for a story that goes round in circles."""
    data = text[:800].encode()
    return len(zlib.compress(data)) / len(data)


def drop_repetitive(texts, real):
    """Teacher stories at least as varied as all but the most repetitive tenth of the real ones of like length."""
    ratios = sorted(variety(text) for text in real if len(text) >= 800)
    limit = ratios[len(ratios) // 10]
    return [text for text in texts if len(text) >= 300 and variety(text) * min(1.0, len(text) / 800) ** 0.15 >= limit]


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


def train(sampled, real, select, minutes, epochs, batch=128, peak=2.5e-3):
    """First `minutes` on the teachers' text, then `epochs` over the real text, half and half with the teachers'.
    Returns the weights of the second part with the lowest loss on `select`."""
    torch.set_float32_matmul_precision("high")
    model = Student().cuda()
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=peak, betas=(0.9, 0.95),
        fused=True)
    step_model = torch.compile(model)
    sampled, real, select = sampled.cuda(), real.cuda(), select.cuda()
    history, step = [], 0

    def update(real_rows, rate):
        rows = sampled[torch.randint(len(sampled), (batch - real_rows,), device="cuda")]
        if real_rows:
            rows = torch.cat((rows, real[torch.randint(len(real), (real_rows,), device="cuda")]))
        rows = rows.long()
        for group in optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast("cuda", torch.bfloat16):
            loss = step_model(rows[:, :-1], rows[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    def record(phase, loss):
        point = {"phase": phase, "step": step, "train": round(loss.item(), 4),
                 "exact": round(held_out_loss(model, select, False), 4),
                 "noisy": round(held_out_loss(model, select, True), 4)}
        history.append(point)
        print(json.dumps(point), flush=True)
        return point["noisy"]

    started, progress = None, 0.0
    while progress < 1.0:
        loss = update(0, peak * min(1.0, (step + 1) / 200) * (1.0 - 0.7 * progress))
        step += 1
        if step == 5:
            torch.cuda.synchronize()
            started = time.time()  # compilation does not count
        if started is not None:
            progress = (time.time() - started) / (60 * minutes)
        if step % 2000 == 0:
            record("teachers", loss)

    steps = round(epochs * len(real) / (batch // 2))
    best, best_state = float("inf"), None
    for index in range(steps):
        loss = update(batch // 2, 0.3 * peak * (1 - index / steps))
        step += 1
        if index % 20 == 19 or index == steps - 1:
            noisy = record("real", loss)
            if noisy < best:
                best, best_state = noisy, {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(best_state)
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
    for name in ("text", "val", "out"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--teacher", required=True, action="append")
    parser.add_argument("--sample-minutes", type=float, default=1, help="for each teacher")
    parser.add_argument("--train-minutes", type=float, default=5)
    parser.add_argument("--real-epochs", type=float, default=14)
    args = parser.parse_args()
    torch.manual_seed(1)
    os.makedirs(args.out, exist_ok=True)

    real = read_stories(args.text)
    sampled = []
    for teacher in args.teacher:
        stories = sample_teacher(teacher, args.sample_minutes)
        kept = drop_repetitive(stories, real)
        print(f"{os.path.basename(teacher)}: {len(stories)} stories, kept {len(kept)}; e.g. {kept[0][:300]!r}", flush=True)
        sampled += kept
    random.Random(1).shuffle(sampled)
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

    # The first half chooses the weights, the second is reported.
    select_rows, report_rows = val_rows[: windows // 2], val_rows[windows // 2 :].cuda()
    model, history, steps = train(sampled_rows, real_rows, select_rows, args.train_minutes, args.real_epochs)
    export(model, args.out)
    record = {"steps": steps, "parameters": sum(p.numel() for p in model.parameters()), "gpu": torch.cuda.get_device_name(),
              "sampled_stories": len(sampled), "sampled_tokens": sampled_rows.numel(), "real_tokens": real_rows.numel(),
              "real_epochs": args.real_epochs, "held_out_exact": held_out_loss(model, report_rows, False),
              "held_out_noisy": held_out_loss(model, report_rows, True), "history": history}
    with open(os.path.join(args.out, "training.json"), "w", encoding="utf-8") as file:
        json.dump(record, file, indent=1)
    print({key: value for key, value in record.items() if key != "history"})


if __name__ == "__main__":
    main()
