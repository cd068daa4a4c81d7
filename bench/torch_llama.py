# SPDX-License-Identifier: Apache-2.0
"""A Llama decoder in PyTorch, written for speed as its users write it, and the plain one that checks it.

q|k|v and gate|up are one linear each, attention is SDPA over a static KV cache, element-wise parts are compiled by
torch.compile, and a decode step is one CUDA graph. Weights are random: only the time matters.
"""

import contextlib
import dataclasses

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


@dataclasses.dataclass(frozen=True)
class Shape:
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool = False  # the LM head is the embedding
    eps: float = 1e-5
    theta: float = 500000.0


# As `random:NAME` of stoch; "tiny" is the demo model's.
SHAPES = {
    "llama-3.1-8b": Shape(4096, 14336, 32, 32, 8, 128, 128256),
    "llama-3.2-1b": Shape(2048, 8192, 16, 32, 8, 64, 128256, tied=True),
    "tiny": Shape(256, 512, 5, 8, 4, 32, 2048, tied=True),
}
VERIFIED = Shape(256, 512, 2, 8, 2, 64, 1000)


class Weights:
    """Random weights of a shape. Linears are [out_features, in_features]."""

    def __init__(self, shape, device, dtype, seed=0):
        generator = torch.Generator(device).manual_seed(seed)

        def matrix(rows, columns):
            return torch.randn(rows, columns, device=device, dtype=dtype, generator=generator) * columns**-0.5

        def norm():
            return 1 + 0.1 * torch.randn(shape.hidden, device=device, dtype=dtype, generator=generator)

        q_width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.embedding = matrix(shape.vocab, shape.hidden)
        self.head = self.embedding if shape.tied else matrix(shape.vocab, shape.hidden)
        self.norm = norm()
        self.blocks = [{
            "attention_norm": norm(),
            "qkv": matrix(q_width + 2 * kv_width, shape.hidden),
            "o": matrix(shape.hidden, q_width),
            "mlp_norm": norm(),
            "gate_up": matrix(2 * shape.intermediate, shape.hidden),
            "down": matrix(shape.hidden, shape.intermediate),
        } for _ in range(shape.layers)]


def rms_norm(hidden, weight, eps):
    wide = hidden.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(hidden.dtype) * weight


def add_norm(hidden, delta, weight, eps):
    hidden = hidden + delta
    return hidden, rms_norm(hidden, weight, eps)


def rotated(x, cos, sin):
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


def rotate_and_store(qkv, cos, sin, keys, values):
    """q [batch, tokens, heads, head_dim] with RoPE; k with RoPE and v go to their slots of the cache."""
    batch, tokens, kv_heads, head_dim = keys.shape
    heads = qkv.shape[-1] // head_dim
    q, k, v = qkv.view(batch, tokens, heads, head_dim).split((heads - 2 * kv_heads, kv_heads, kv_heads), dim=2)
    keys.copy_(rotated(k, cos, sin))
    values.copy_(v)
    return rotated(q, cos, sin)


def silu_mul(gate_up):
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def attend(q, keys, values):
    """Causal attention of the last positions of a cache; all [batch, tokens, heads, head_dim]."""
    tokens, visible = q.shape[1], keys.shape[1]
    q, keys, values = (each.transpose(1, 2) for each in (q, keys, values))
    if 1 < tokens < visible:  # a later chunk of a prompt, always by flash attention: its causal form is aligned to the end
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            out = F.scaled_dot_product_attention(q, keys, values, attn_mask=causal_lower_right(tokens, visible), enable_gqa=True)
    else:
        out = F.scaled_dot_product_attention(q, keys, values, is_causal=tokens == visible > 1, enable_gqa=True)
    return out.transpose(1, 2)


def decode_block(hidden, w, keys, values, at, visible, cos, sin, eps):
    """A whole block of one new token, for torch.compile; `at` [1] is its position, `visible` the positions up to it."""
    batch, _, kv_heads, head_dim = keys.shape
    qkv = F.linear(rms_norm(hidden, w["attention_norm"], eps), w["qkv"])
    heads = qkv.shape[-1] // head_dim
    q, k, v = qkv.view(batch, 1, heads, head_dim).split((heads - 2 * kv_heads, kv_heads, kv_heads), dim=2)
    keys.index_copy_(1, at, rotated(k, cos, sin))
    values.index_copy_(1, at, v)
    out = attend(rotated(q, cos, sin), keys[:, :visible], values[:, :visible])
    hidden = hidden + F.linear(out.reshape(batch, 1, -1), w["o"])
    return hidden + F.linear(silu_mul(F.linear(rms_norm(hidden, w["mlp_norm"], eps), w["gate_up"])), w["down"])


class Parts:
    """The functions of a decoder, compiled or not: compiled is "none", "parts" (element-wise ones) or "blocks" (steps)."""

    def __init__(self, compiled):
        import torch._dynamo.config
        import torch._inductor.config

        limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"  # until 2.5
        setattr(torch._dynamo.config, limit, 64)
        self.block = None
        wrap = torch.compile if compiled != "none" else lambda function: function
        self.add_norm, self.rotate_and_store, self.silu_mul = map(wrap, (add_norm, rotate_and_store, silu_mul))
        if compiled == "blocks":
            torch._inductor.config.coordinate_descent_tuning = True  # products of one row become tuned reductions
            self.block = torch.compile(decode_block, dynamic=False, fullgraph=True)


class Decoder:
    """Weights with a KV cache of `batch` sequences of at most `positions` tokens."""

    def __init__(self, shape, weights, parts, batch, positions):
        device, dtype = weights.embedding.device, weights.embedding.dtype
        self.shape, self.weights, self.parts = shape, weights, parts
        cache = (shape.layers, batch, positions, shape.kv_heads, shape.head_dim)
        self.keys, self.values = (torch.zeros(cache, device=device, dtype=dtype) for _ in range(2))
        inverse = shape.theta ** (-torch.arange(0, shape.head_dim, 2, device=device).float() / shape.head_dim)
        angles = torch.arange(positions, device=device).float()[:, None] * inverse.repeat(2)
        self.cos, self.sin = angles.cos().to(dtype)[:, None], angles.sin().to(dtype)[:, None]

    @torch.no_grad()
    def logits(self, ids, first):
        """Logits [batch, vocab] of the last of the tokens `ids` [batch, tokens], at positions `first` and after."""
        shape, weights, parts = self.shape, self.weights, self.parts
        tokens = ids.shape[1]
        end = first + tokens
        cos, sin = self.cos[first:end], self.sin[first:end]
        hidden = F.embedding(ids, weights.embedding)
        if parts.block is not None and tokens == 1:
            at = torch.full((1,), first, device=ids.device)
            for layer, w in enumerate(weights.blocks):
                hidden = parts.block(hidden, w, self.keys[layer], self.values[layer], at, end, cos, sin, shape.eps)
            return F.linear(rms_norm(hidden[:, -1], weights.norm, shape.eps), weights.head)
        delta = torch.zeros_like(hidden)
        for layer, w in enumerate(weights.blocks):
            keys, values = self.keys[layer], self.values[layer]
            hidden, x = parts.add_norm(hidden, delta, w["attention_norm"], shape.eps)
            q = parts.rotate_and_store(F.linear(x, w["qkv"]), cos, sin, keys[:, first:end], values[:, first:end])
            out = attend(q, keys[:, :end], values[:, :end])
            hidden, x = parts.add_norm(hidden, F.linear(out.flatten(2), w["o"]), w["mlp_norm"], shape.eps)
            delta = F.linear(parts.silu_mul(F.linear(x, w["gate_up"])), w["down"])
        _, x = add_norm(hidden[:, -1], delta[:, -1], weights.norm, shape.eps)
        return F.linear(x, weights.head)

    def prompt(self, ids, chunk):
        """Logits after a prompt, run in chunks of at most `chunk` tokens."""
        for first in range(0, ids.shape[1], chunk):
            logits = self.logits(ids[:, first:first + chunk], first)
        return logits


class Step:
    """One greedy decode step at a position: a CUDA graph, or plain calls on a CPU. Each takes the tokens of the one before."""

    def __init__(self, decoder, ids, position):
        self.decoder, self.position = decoder, position
        self.ids = ids.clone()  # [batch, 1]
        self.graph = None
        if not ids.is_cuda:
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())  # `ids` and the prompt's cache are made there
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._run()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            self._run()

    def _run(self):
        self.logits = self.decoder.logits(self.ids, self.position)
        self.ids.copy_(self.logits.argmax(dim=-1, keepdim=True))

    def __call__(self):
        self._run() if self.graph is None else self.graph.replay()


@contextlib.contextmanager
def choice(attention, blas):
    """The SDPA backend and the library of linears; a CPU has one of each."""
    if not torch.cuda.is_available():
        yield
        return
    torch.backends.cuda.preferred_blas_library(blas)
    with sdpa_kernel([BACKENDS[attention]]):
        yield


@torch.no_grad()
def reference_logits(shape, weights, ids):
    """Logits of the last token of one sequence `ids` [tokens]: float32, no cache, no fused linear, a head at a time."""

    def norm(x, weight):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + shape.eps) * weight.float()

    tokens, d, group = len(ids), shape.head_dim, shape.heads // shape.kv_heads
    hidden = weights.embedding[ids].float()
    position = torch.arange(tokens, device=ids.device).float()
    angle = position[:, None] / shape.theta ** (torch.arange(d // 2, device=ids.device).float() * 2 / d)
    cos, sin = angle.cos(), angle.sin()

    def rope(x):
        a, b = x[:, :d // 2], x[:, d // 2:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=1)

    hidden_after = torch.ones(tokens, tokens, device=ids.device).triu(1).bool()
    for w in weights.blocks:
        x = norm(hidden, w["attention_norm"])
        rows = (x @ w["qkv"].float().T).split(d, dim=1)
        heads = []
        for head in range(shape.heads):
            k, v = rows[shape.heads + head // group], rows[shape.heads + shape.kv_heads + head // group]
            scores = rope(rows[head]) @ rope(k).T / d**0.5
            heads.append(scores.masked_fill(hidden_after, float("-inf")).softmax(-1) @ v)
        hidden = hidden + torch.cat(heads, dim=1) @ w["o"].float().T
        x = norm(hidden, w["mlp_norm"])
        gate, up = w["gate_up"].float().chunk(2)
        gated = x @ gate.T
        hidden = hidden + (gated / (1 + torch.exp(-gated)) * (x @ up.T)) @ w["down"].float().T
    return norm(hidden[-1], weights.norm) @ weights.head.float().T


def error(got, expected):
    return ((got.float() - expected).norm() / expected.norm()).item()


def verify(device, dtype, parts, attention, blas, shape=VERIFIED):
    """The largest relative error of a prompt, of one in chunks and of two steps against the plain reference."""
    weights = Weights(shape, device, dtype, seed=1)
    ids = torch.randint(shape.vocab, (2, 90), device=device, generator=torch.Generator(device).manual_seed(2))
    errors = []
    with choice(attention, blas):
        for chunk in (64, 24):
            decoder = Decoder(shape, weights, parts, batch=2, positions=96)
            got = decoder.prompt(ids[:, :64], chunk)
            errors += [error(got[row], reference_logits(shape, weights, ids[row, :64])) for row in range(2)]
        for tokens in (65, 66):
            step = Step(decoder, ids[:, tokens - 1:tokens], tokens - 1)
            step.ids.copy_(ids[:, tokens - 1:tokens])
            step()
            errors += [error(step.logits[row], reference_logits(shape, weights, ids[row, :tokens])) for row in range(2)]
    return max(errors)
