# SPDX-License-Identifier: Apache-2.0
"""Attention of a patched model: whole prompts on the engine's kernels, the rest made of products."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import stoch
import torch
from stoch._operators import Operators

NAME = "stoch"  # of the attention in transformers


def _heads(x: torch.Tensor, groups: int) -> torch.Tensor:
    """[batch, kv_heads, n, d] as float32 [batch * heads, n, d]."""
    x = x.detach().to(torch.float32)
    if groups > 1:
        x = x.repeat_interleave(groups, dim=1)
    return x.reshape(-1, *x.shape[2:])


def _product(a: torch.Tensor, b: torch.Tensor, config: stoch.ScConfig, granularity: str, lengths: Any) -> torch.Tensor:
    """a @ b.T of every head; `lengths`: of every row of a, or None."""
    if lengths is None:
        result = stoch.sc_matmul(a, b, config, granularity=granularity, chunk_d=0)
    else:
        rows = lengths.reshape(a.shape[:2])
        heads = range(a.shape[0])
        result = torch.stack([stoch.sc_matmul(a[h], b[h], config, lengths=rows[h], chunk_d=0) for h in heads])
    assert isinstance(result, torch.Tensor)
    return result


def _av_per_token(
    p: torch.Tensor, v: torch.Tensor, config: stoch.ScConfig, lengths: Any = None
) -> torch.Tensor:
    """p v with a scale of v for each position, which is folded into p, and one of p for each row.

    A last position of the largest code, which no row sees, gives every channel of v the scale 1, so that its codes stay.
    """
    largest = float((1 << (int(config.sc_prec) - 1)) - 1)
    # A division by a Python number would be a multiplication by its reciprocal on CUDA.
    scale = v.abs().amax(dim=-1, keepdim=True).clamp(min=1e-5) / torch.full((), largest, device=v.device)
    codes = torch.round(v / scale).clamp(-largest, largest)
    last = codes.new_full((codes.shape[0], 1, codes.shape[2]), largest)
    b = torch.cat([codes, last], dim=1).transpose(1, 2)
    a = torch.cat([p * scale.transpose(1, 2), p.new_zeros((p.shape[0], p.shape[1], 1))], dim=2)
    return _product(a, b, config, "per_row", lengths)


def _rows(x: torch.Tensor) -> torch.Tensor:
    """[batch, heads, n, d] as new float32 [batch * n, heads * d]."""
    batch, heads, n, d = x.shape
    return x.detach().transpose(1, 2).to(torch.float32).reshape(batch * n, heads * d).clone()


@functools.lru_cache(maxsize=4)
def _no_rotation(positions: int, d: int, device: torch.device) -> torch.Tensor:
    """The table of rotations by nothing."""
    unit = torch.zeros(positions, d, device=device)
    unit[:, : d // 2] = 1
    return unit


def _engine_attention(
    settings: Operators, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> torch.Tensor | None:
    """[batch, n, heads, d] by the engine's attention, whose bits it has; None where it has no kernel.

    It computes prompts from their begin: rows that were computed before are zeros here, and what they see is dropped.
    """
    batch, heads, n, d = query.shape
    positions, ordinal = key.shape[2], int(query.get_device()) if query.is_cuda else -1
    room = settings.prompt_attention(layer, key.shape[1], d, batch, positions, ordinal)
    if room is None:
        return None
    if n < positions:
        query = torch.cat([query.new_zeros((batch, heads, positions - n, d)), query], dim=2)
    q, k, v = _rows(query), _rows(key), _rows(value)
    out = torch.empty_like(q)
    unit = _no_rotation(-(-positions // 256) * 256, d, q.device)
    stream = int(torch.cuda.current_stream(ordinal).cuda_stream) if ordinal >= 0 else 0
    room.run(q, k, v, unit, out, batch, stream)
    return out.reshape(batch, positions, heads, d)[:, positions - n :]


def _visible(
    attention_mask: torch.Tensor | None, n: int, positions: int, causal: bool, window: int | None, device: torch.device
) -> torch.Tensor | None:
    """Which positions a row sees, bool [n, positions], where no mask is given; None: all."""
    if attention_mask is not None or (n == 1 and window is None) or not causal:
        return None
    seen = torch.ones(n, positions, dtype=torch.bool, device=device).tril(positions - n)
    return seen if window is None else seen.triu(positions - n - window + 1)


def _is_causal(mask: torch.Tensor) -> bool:
    n, positions = mask.shape[-2:]
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    causal = torch.ones(n, positions, dtype=torch.bool, device=mask.device).tril(positions - n)
    return bool((seen == causal).all())


def _require_causal(mask: torch.Tensor, mode: str) -> None:
    """attention = per_head and per_row have scales of the whole window, so what is in it has to be seen."""
    if not _is_causal(mask):
        raise stoch.InvalidInput(f"attention = {mode}: allowed is a causal mask, without padding or windows")


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    sliding_window: int | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers' AttentionInterface calls it; both products in the configuration of the patched model."""
    settings: Operators | None = getattr(module, "_stoch_settings", None)
    layer: int = getattr(module, "_stoch_layer", 0)
    if s_aux is not None:
        raise stoch.InvalidInput(f"{type(module).__name__}: attention sinks are not supported: give attention=False")
    if settings is None:
        raise stoch.InvalidInput(f"{type(module).__name__}: attention 'stoch' needs stoch.torch.patch(model)")
    if dropout > 0:
        raise stoch.InvalidInput(f"dropout = {dropout}: attention in SC is for inference, allowed is 0")
    batch, heads, n, d = query.shape
    mode = settings.attention
    if mode in ("per_head", "per_row") and batch > 1:
        raise stoch.InvalidInput(f"attention = {mode}: a result depends on its whole pass, so the batch is 1, got {batch}")
    if settings.has_lengths and settings.per_call and batch > 1:
        raise stoch.InvalidInput(f"mp_normalise = call: lengths depend on the whole call, so the batch is 1, got {batch}")
    if attention_mask is not None and mode in ("per_head", "per_row"):
        _require_causal(attention_mask[..., : key.shape[2]], mode)
    groups = heads // key.shape[1]
    causal = getattr(module, "is_causal", True)
    engine_only = settings.engine_only(layer)
    if attention_mask is not None and engine_only and _is_causal(attention_mask[..., : key.shape[2]]):
        attention_mask = None
    scale = np.float32(d**-0.5)
    plain = scaling is None or np.float32(scaling) == scale
    plain = plain and causal and attention_mask is None and softcap is None and sliding_window is None
    if engine_only and not plain:
        raise stoch.InvalidInput(f"{engine_only}: allowed is a causal mask without padding or windows, scaling 1/sqrt(d)")
    if mode != "exact" and plain and (engine_only or (n > 1 and n == key.shape[2])):
        with torch.no_grad():
            rows = _engine_attention(settings, layer, query, key, value)
        if rows is not None:
            return rows.to(query.dtype), None

    def lengths_of(operator: str, rows: torch.Tensor) -> Any:
        return settings.row_lengths(layer, operator, rows.flatten(0, 1)) if settings.has_lengths else None

    with torch.no_grad():
        q, k, v = _heads(query, 1), _heads(key, groups), _heads(value, groups)
        granularity = "per_head" if mode == "per_head" else "per_row"
        if mode == "exact":
            scores = q @ k.transpose(1, 2)
        else:
            scores = _product(q, k, settings.of(layer, "qk"), granularity, lengths_of("qk", q))
        scores = scores * (d**-0.5 if scaling is None else scaling)
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        scores = scores.reshape(batch, heads, n, -1)
        positions = scores.shape[-1]
        if attention_mask is not None:
            mask = attention_mask[..., :positions]
            if mask.dtype == torch.bool:
                scores = scores.masked_fill(~mask, torch.finfo(torch.float32).min)
            else:
                scores = scores + mask.to(torch.float32).clamp(min=torch.finfo(torch.float32).min)
        seen = _visible(attention_mask, n, positions, causal, sliding_window, q.device)
        if seen is not None:
            scores = scores.masked_fill(~seen, torch.finfo(torch.float32).min)
        p = torch.softmax(scores, dim=-1).reshape(batch * heads, n, positions)
        if mode == "exact":
            out = p @ v
        elif mode == "per_token":
            out = _av_per_token(p, v, settings.of(layer, "av"), lengths_of("av", p))
        else:
            out = _product(p, v.transpose(1, 2), settings.of(layer, "av"), granularity, lengths_of("av", p))
    return out.reshape(batch, heads, n, -1).transpose(1, 2).contiguous().to(query.dtype), None


@functools.cache
def _register_attention() -> None:
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask
    except ImportError:
        import transformers

        raise stoch.InvalidInput(
            f"transformers {transformers.__version__} has no AttentionMaskInterface: give attention=False, or a newer one"
        ) from None

    def mask_of(*arguments: Any, **options: Any) -> Any:
        """A mask of booleans; None for whole prompts without padding."""
        if options.get("q_length") is None or options.get("q_length") != options.get("kv_length"):
            options["allow_is_causal_skip"] = False
        return sdpa_mask(*arguments, **options)

    untraced: Any = torch.compiler.disable
    AttentionInterface.register(NAME, untraced(attention_forward))
    AttentionMaskInterface.register(NAME, mask_of)


def patch_attention(model: Any, layers: torch.nn.ModuleList, settings: Operators) -> None:
    if not hasattr(model, "set_attn_implementation"):
        raise _not_of_the_interface(model)
    _register_attention()
    model._stoch_attention_before = model.config._attn_implementation
    attentions = []
    for number, layer in enumerate(layers):
        for module in layer.modules():
            if "Attention" in type(module).__name__:
                module._stoch_settings = settings  # type: ignore[assignment]
                module._stoch_layer = number  # type: ignore[assignment]
                attentions.append(module)
    try:
        model.set_attn_implementation(NAME)
        # A class that does not use the interface is left as it was, with a warning.
        if not any(getattr(getattr(module, "config", None), "_attn_implementation", "") == NAME for module in attentions):
            raise _not_of_the_interface(model)
    except Exception as error:
        unpatch_attention(model)
        if isinstance(error, stoch.InvalidInput):
            raise
        raise _not_of_the_interface(model, f" ({error})") from error


def _not_of_the_interface(model: Any, why: str = "") -> stoch.InvalidInput:
    return stoch.InvalidInput(f"{type(model).__name__} does not use the attention interface: give attention=False{why}")


def unpatch_attention(model: Any) -> None:
    """Nothing where attention is as it was."""
    before: Any = model.__dict__.pop("_stoch_attention_before", None)
    if before is not None:
        model.set_attn_implementation(before)
        for module in model.modules():
            module.__dict__.pop("_stoch_settings", None)
            module.__dict__.pop("_stoch_layer", None)
