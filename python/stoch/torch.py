# SPDX-License-Identifier: Apache-2.0
"""Any Hugging Face decoder in stochastic computing: its linears and its attention on the engine's kernels."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

try:
    import torch
except ImportError:
    raise ImportError("stoch.torch needs torch: pip install torch") from None

import stoch
from stoch import _stoch

_NAME = "stoch"


@dataclass(frozen=True)
class Report:
    """What `patch` did."""

    replaced: dict[str, str]  # module: its configuration
    left: dict[str, str]  # module: why
    attention: str  # the mode; "" where it was left alone
    operators: dict[str, int] = field(default_factory=dict)  # how many of each

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {name}" for name, count in self.operators.items())
        return f"{len(self.replaced)} linears in SC ({kinds}); attention: {self.attention or 'as it was'}"


class _Settings:
    """SC settings by the name of an operator, which need not be one of the engine's."""

    def __init__(self, sc: str | Sequence[str] | stoch.ModelConfig) -> None:
        if isinstance(sc, stoch.ModelConfig):
            if sc.has_files:
                raise stoch.InvalidInput("sc has files (mp, smooth or mask): stoch.load takes them, patch does not")
            sc = sc.settings
        texts = [sc] if isinstance(sc, str) else list(sc)
        entries = [entry for text in texts for entry in text.split(",") if entry]
        known = {name for name, _ in _stoch.operator_configs([])[0]}
        own, self.extra = [], dict[str, dict[str, str]]()
        for entry in entries:
            name, _, value = entry.partition("=")
            operator, dot, parameter = name.rpartition(".")
            if dot and operator not in known:
                self.extra.setdefault(operator, {})[parameter] = value
            else:
                own.append(entry)
        configs, self.attention = _stoch.operator_configs(own)
        if self.attention == "dilated":
            raise stoch.InvalidInput("attention = dilated: stoch.load runs it, patch does not")
        self.configs = {name: stoch.ScConfig.parse(text) for name, text in configs}
        general = [entry for entry in own if "." not in entry.partition("=")[0]]
        self.general = stoch.ScConfig.parse(dict(_stoch.operator_configs(general)[0])["q_proj"])

    def of(self, operator: str) -> stoch.ScConfig:
        base = self.configs.get(operator, self.general)
        changes: dict[str, Any] = self.extra.get(operator, {})
        return base.replace(**changes)


def _decoder_layers(model: torch.nn.Module) -> tuple[str, torch.nn.ModuleList]:
    names = set(getattr(model, "_no_split_modules", None) or ())
    lists = [(name, each) for name, each in model.named_modules() if isinstance(each, torch.nn.ModuleList) and len(each)]
    for name, each in lists:
        if type(each[0]).__name__ in names:
            return name, each
    same = [(name, each) for name, each in lists if len({type(entry) for entry in each}) == 1]
    if not same:
        raise stoch.InvalidInput(f"{type(model).__name__}: no list of decoder layers was found")
    return max(same, key=lambda pair: len(pair[1]))


def _is_conv1d(module: torch.nn.Module) -> bool:
    return type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers.")


def _num_experts(model: torch.nn.Module) -> int:
    config = getattr(model, "config", None)
    for name in ("num_local_experts", "num_experts", "n_routed_experts"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    return 0


class _Linear:
    """What a patched linear computes; its weight is packed at first use, and again when it changed."""

    def __init__(self, module: torch.nn.Module, config: stoch.ScConfig, grad: str | None) -> None:
        self.module = weakref.ref(module)
        self.config = config
        self.grad = grad
        self.transposed = _is_conv1d(module)
        self.key: tuple[Any, ...] = ()
        self.packed: stoch.Packed | None = None

    def weight(self) -> torch.Tensor:
        module = self.module()
        assert module is not None
        weight = module.weight
        assert isinstance(weight, torch.Tensor)
        return weight.detach().t() if self.transposed else weight.detach()

    def pack(self) -> stoch.Packed:
        weight = self.weight()
        key = (weight.data_ptr(), weight._version, weight.device, weight.dtype)
        if self.packed is None or key != self.key:
            self.packed = stoch.pack(weight, self.config)
            self.key = key
        return self.packed

    def exact(self, x: torch.Tensor) -> torch.Tensor:
        module = self.module()
        assert module is not None
        result = type(module).forward(module, x)
        assert isinstance(result, torch.Tensor)
        return result

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        module = self.module()
        assert module is not None
        needs_grad = torch.is_grad_enabled() and x.requires_grad
        if needs_grad and self.grad is None:
            raise stoch.InvalidInput("an input needs a gradient: patch with grad='ste', or run under torch.no_grad()")
        with torch.no_grad():
            packed = self.pack()
            rows = x.detach().to(torch.float32).reshape(-1, x.shape[-1]).contiguous()
            y = stoch.sc_matmul(rows, packed) if rows.shape[0] else rows.new_zeros((0, packed.shape[0]))
            bias = getattr(module, "bias", None)
            if bias is not None:
                y = y + bias.detach().to(torch.float32)
            result: torch.Tensor = y.to(x.dtype).reshape(*x.shape[:-1], packed.shape[0])
        if self.grad == "ste" and (needs_grad or any(p.requires_grad for p in module.parameters())):
            exact = self.exact(x)
            return exact + (result - exact).detach()
        return result


def _heads(x: torch.Tensor, groups: int) -> torch.Tensor:
    """[batch, kv_heads, n, d] as float32 [batch * heads, n, d]."""
    x = x.detach().to(torch.float32)
    if groups > 1:
        x = x.repeat_interleave(groups, dim=1)
    return x.reshape(-1, *x.shape[2:])


def _av_per_token(p: torch.Tensor, v: torch.Tensor, config: stoch.ScConfig) -> torch.Tensor:
    """p v with a scale of v for each position, which is folded into p, and one of p for each row.

    A last position of the largest code, which no row sees, gives every channel of v the scale 1, so that its codes stay.
    """
    largest = float((1 << (int(config.sc_prec) - 1)) - 1)
    scale = v.abs().amax(dim=-1, keepdim=True).clamp(min=1e-5) / largest
    codes = torch.round(v / scale).clamp(-largest, largest)
    last = codes.new_full((codes.shape[0], 1, codes.shape[2]), largest)
    b = torch.cat([codes, last], dim=1).transpose(1, 2)
    a = torch.cat([p * scale.transpose(1, 2), p.new_zeros((p.shape[0], p.shape[1], 1))], dim=2)
    result = stoch.sc_matmul(a, b, config, granularity="per_row", chunk_d=0)
    assert isinstance(result, torch.Tensor)
    return result


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers' AttentionInterface calls it; both products in the configuration of the patched model."""
    settings: _Settings | None = getattr(module, "_stoch_settings", None)
    if settings is None:
        raise stoch.InvalidInput(f"{type(module).__name__}: attention 'stoch' needs stoch.torch.patch(model)")
    if dropout > 0:
        raise stoch.InvalidInput(f"dropout = {dropout}: attention in SC is for inference, allowed is 0")
    batch, heads, n, d = query.shape
    mode = settings.attention
    if mode in ("per_head", "per_row") and batch > 1:
        raise stoch.InvalidInput(f"attention = {mode}: a result depends on its whole pass, so the batch is 1, got {batch}")
    groups = heads // key.shape[1]
    with torch.no_grad():
        q, k, v = _heads(query, 1), _heads(key, groups), _heads(value, groups)
        granularity = "per_head" if mode == "per_head" else "per_row"
        if mode == "exact":
            scores = q @ k.transpose(1, 2)
        else:
            scores = stoch.sc_matmul(q, k, settings.of("qk"), granularity=granularity, chunk_d=0)
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
        elif n > 1 and getattr(module, "is_causal", True):
            seen = torch.ones(n, positions, dtype=torch.bool, device=q.device).tril(positions - n)
            scores = scores.masked_fill(~seen, torch.finfo(torch.float32).min)
        p = torch.softmax(scores, dim=-1).reshape(batch * heads, n, positions)
        if mode == "exact":
            out = p @ v
        elif mode == "per_token":
            out = _av_per_token(p, v, settings.of("av"))
        else:
            out = stoch.sc_matmul(p, v.transpose(1, 2), settings.of("av"), granularity=granularity, chunk_d=0)
    return out.reshape(batch, heads, n, -1).transpose(1, 2).contiguous().to(query.dtype), None


@functools.cache
def _register_attention() -> None:
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import eager_mask
    except ImportError:
        import transformers

        raise stoch.InvalidInput(
            f"transformers {transformers.__version__} has no AttentionMaskInterface: give attention=False, or a newer one"
        ) from None
    AttentionInterface.register(_NAME, attention_forward)
    AttentionMaskInterface.register(_NAME, eager_mask)


def _patch_attention(model: Any, layers: torch.nn.ModuleList, settings: _Settings) -> None:
    if not hasattr(model, "set_attn_implementation"):
        raise stoch.InvalidInput(f"{type(model).__name__} does not use the attention interface: give attention=False")
    _register_attention()
    model._stoch_attention_before = model.config._attn_implementation
    for layer in layers.modules():
        if "Attention" in type(layer).__name__:
            layer._stoch_settings = settings  # type: ignore[assignment]
    try:
        model.set_attn_implementation(_NAME)
    except Exception as error:
        raise stoch.InvalidInput(
            f"{type(model).__name__} does not use the attention interface: give attention=False ({error})"
        ) from error


def patch(
    model: torch.nn.Module,
    sc: str | Sequence[str] | stoch.ModelConfig = "preset=halved",
    *,
    operators: Sequence[str] | None = None,
    skip: Sequence[str] = ("lm_head",),
    attention: bool = True,
    grad: str | None = None,
) -> Report:
    """Puts the linears of the decoder layers, and attention, of a Hugging Face model into stochastic computing.

    sc         settings of --sc; an operator is the last name of a module, any name will do: qkv_proj.stoc_len=64.
    operators  only these; `skip`: not these. A linear whose outputs number the experts (a router) is never replaced.
    attention  False leaves it alone.
    grad       None: inference. "ste": gradients of the exact linear pass through.

    Modules keep their parameters and their state_dict. A weight is packed at first use, and again once it changed.
    """
    if grad not in (None, "ste"):
        raise stoch.InvalidInput(f"grad = {grad}: allowed is None, 'ste'")
    if getattr(model, "_stoch_patched", None):
        raise stoch.InvalidInput(f"{type(model).__name__} is patched: unpatch it first")
    settings = _Settings(sc)
    prefix, layers = _decoder_layers(model)
    experts = _num_experts(model)
    replaced, left, counts = dict[str, str](), dict[str, str](), dict[str, int]()
    patched = []
    for name, module in layers.named_modules(prefix=prefix):
        if not (isinstance(module, torch.nn.Linear) or _is_conv1d(module)):
            continue
        operator = name.rpartition(".")[2]
        weight = module.weight
        assert isinstance(weight, torch.Tensor)
        outputs = weight.shape[1] if _is_conv1d(module) else weight.shape[0]
        if operator in skip or (operators is not None and operator not in operators):
            left[name] = "not asked for"
        elif experts > 1 and outputs == experts:
            left[name] = "a router"
        else:
            linear = _Linear(module, settings.of(operator), grad)
            patched.append((module, linear))
            replaced[name] = linear.config.describe()
            counts[operator] = counts.get(operator, 0) + 1
    if not patched:
        raise stoch.InvalidInput(f"{type(model).__name__}: no linear to replace was found in {prefix}")
    if attention:
        _patch_attention(model, layers, settings)
    for module, linear in patched:
        module.forward = linear
    model._stoch_patched = [module for module, _ in patched]  # type: ignore[assignment]
    return Report(replaced, left, settings.attention if attention else "", counts)


def unpatch(model: torch.nn.Module) -> None:
    """Undoes `patch`."""
    patched: Any = getattr(model, "_stoch_patched", None)
    if not patched:
        raise stoch.InvalidInput(f"{type(model).__name__} is not patched")
    for module in patched:
        del module.__dict__["forward"]
    del model._stoch_patched
    before: Any = model.__dict__.pop("_stoch_attention_before", None)
    if before is not None:
        model.set_attn_implementation(before)  # type: ignore[operator]
        for module in model.modules():
            module.__dict__.pop("_stoch_settings", None)


@contextlib.contextmanager
def patched(model: torch.nn.Module, sc: str | Sequence[str] | stoch.ModelConfig = "preset=halved", **options: Any) -> Iterator[Report]:
    """`patch` for a block."""
    report = patch(model, sc, **options)
    try:
        yield report
    finally:
        unpatch(model)
