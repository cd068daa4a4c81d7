# SPDX-License-Identifier: Apache-2.0
"""Any Hugging Face decoder in stochastic computing: its linears and its attention on the engine's kernels."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

try:
    import torch
except ImportError:
    raise ImportError("stoch.torch needs torch: pip install torch") from None

import stoch
from stoch._config import Settings
from stoch._operators import Operators
from stoch._scales import convert_scales
from stoch._torch_attention import attention_forward, patch_attention, unpatch_attention
from stoch._torch_experts import MATRICES, Experts, is_experts

__all__ = ["Report", "attention_forward", "convert_scales", "patch", "patched", "unpatch"]

@dataclass(frozen=True)
class Report:
    """What `patch` did."""

    replaced: dict[str, str]  # module: its configuration
    left: dict[str, str]  # module: why
    attention: str  # the mode; "" where it was left alone
    operators: dict[str, int] = field(default_factory=dict)  # how many of each
    layers: list[dict[str, str]] = field(default_factory=list)  # of each decoder layer: operator and configuration
    config: str = ""  # settings, and hashes of files

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {name}" for name, count in self.operators.items())
        return f"{len(self.replaced)} linears in SC ({kinds}); attention: {self.attention or 'as it was'}"


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

    def __init__(
        self, module: torch.nn.Module, settings: Operators, place: tuple[int, str], grad: str | None, free: bool
    ) -> None:
        self.module = weakref.ref(module)
        self.settings = settings
        self.place = place
        self.grad = grad
        self.transposed = _is_conv1d(module)
        self.key: tuple[Any, ...] = ()
        self.packed: stoch.Packed | None = None
        self.freed = False
        self.handle = id(self)
        _LINEARS[self.handle] = self
        if free:
            self.pack()
            weight = module.weight
            assert isinstance(weight, torch.Tensor)
            module.weight = torch.nn.Parameter(weight.detach().to("meta"), requires_grad=False)
            self.freed = True

    def weight(self) -> torch.Tensor:
        module = self.module()
        assert module is not None
        weight = module.weight
        assert isinstance(weight, torch.Tensor)
        return weight.detach().t() if self.transposed else weight.detach()

    def pack(self) -> stoch.Packed:
        if self.freed:
            assert self.packed is not None
            return self.packed
        weight = self.weight()
        version = 0 if weight.is_inference() else weight._version
        key = (weight.data_ptr(), version, weight.device, weight.dtype)
        if self.packed is None or key != self.key:
            self.packed = self.settings.pack(*self.place, weight)
            self.key = key
        return self.packed

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """float32 [rows, outputs] of contiguous float32 [rows, inputs]."""
        packed = self.pack()
        if rows.shape[0] == 0:
            return rows.new_zeros((0, packed.shape[0]))
        result = stoch.sc_matmul(rows, packed)
        assert isinstance(result, torch.Tensor)
        return result

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
        if self.settings.per_call and x.dim() > 2 and x.shape[0] > 1:
            raise stoch.InvalidInput(
                f"mp_normalise = call: a row's length depends on its whole call, so the batch is 1, got {x.shape[0]}"
            )
        weight = module.weight
        assert isinstance(weight, torch.Tensor)
        outputs = weight.shape[1] if self.transposed else weight.shape[0]
        with torch.no_grad():
            rows = x.detach().to(torch.float32).reshape(-1, x.shape[-1]).contiguous()
            y = _packed_linear(rows, self.handle, outputs) if _is_compiling() else self.product(rows)
            bias = getattr(module, "bias", None)
            if bias is not None:
                y = y + bias.detach().to(torch.float32)
            result: torch.Tensor = y.to(x.dtype).reshape(*x.shape[:-1], outputs)
        if self.grad == "ste" and (needs_grad or any(p.requires_grad for p in module.parameters())):
            exact = self.exact(x)
            return exact + (result - exact).detach()
        return result


# What the op of torch.library finds by number: a graph holds no Python objects.
_LINEARS: weakref.WeakValueDictionary[int, _Linear] = weakref.WeakValueDictionary()


def _is_compiling() -> bool:
    return bool(torch.compiler.is_compiling())


def _linear_product(rows: torch.Tensor, handle: int, outputs: int) -> torch.Tensor:
    return _LINEARS[handle].product(rows)


def _linear_shape(rows: torch.Tensor, handle: int, outputs: int) -> torch.Tensor:
    return rows.new_empty((rows.shape[0], outputs))


# Not as decorators, whose types differ between versions of torch.
_custom_op: Any = torch.library.custom_op
_packed_linear: Any = _custom_op("stoch::packed_linear", mutates_args=())(_linear_product)
_packed_linear.register_fake(_linear_shape)


def _sizes(layers: torch.nn.ModuleList) -> tuple[int, int, int]:
    """Inputs of q_proj, down_proj and o_proj; 1 where there is none."""
    inputs: dict[str, int] = {}
    for name, module in layers[0].named_modules():
        if isinstance(module, torch.nn.Linear):
            inputs.setdefault(name.rpartition(".")[2], module.in_features)
    hidden = next((inputs[name] for name in ("q_proj", "k_proj", "gate_proj", "up_proj") if name in inputs), 1)
    return hidden, inputs.get("down_proj", 1), inputs.get("o_proj", 1)


def patch(
    model: torch.nn.Module,
    sc: Settings | Sequence[Settings] | stoch.ModelConfig = "preset=halved",
    *,
    operators: Sequence[str] | None = None,
    skip: Sequence[str] = ("lm_head",),
    attention: bool = True,
    mp: str | os.PathLike[str] | None = None,
    mp_normalise: str = "fixed",
    smooth: str | os.PathLike[str] | None = None,
    mask: str | os.PathLike[str] | None = None,
    mask_bits: int = 0,
    grad: str | None = None,
    free_weights: bool = False,
) -> Report:
    """Puts the linears of the decoder layers, and attention, of a Hugging Face model into stochastic computing.

    sc         settings of --sc; an operator is the last name of a module, any name will do: qkv_proj.stoc_len=64. Experts
               that are one tensor have gate_proj, up_proj and down_proj.
    operators  only these; `skip`: not these. A linear whose outputs number the experts (a router) is never replaced.
    attention  False leaves it alone.
    mp, mp_normalise, smooth, mask, mask_bits
               files, as `stoch.load` takes them, for operators with the engine's names (q_proj, ..., down_proj, qk, av).
    grad       None: inference. "ste": gradients of the exact linear pass through.
    free_weights  pack at once and drop the original weights; such a model cannot be unpatched.

    Modules keep their parameters and their state_dict. A weight is packed at first use, and again once it changed.
    """
    if grad not in (None, "ste"):
        raise stoch.InvalidInput(f"grad = {grad}: allowed is None, 'ste'")
    if free_weights and grad is not None:
        raise stoch.InvalidInput("free_weights: grad='ste' needs the weights")
    if getattr(model, "_stoch_patched", None):
        raise stoch.InvalidInput(f"{type(model).__name__} is patched: unpatch it first")
    prefix, layers = _decoder_layers(model)
    settings = Operators(
        sc,
        layers=len(layers),
        sizes=_sizes(layers),
        attention=attention,
        mp=mp,
        mp_normalise=mp_normalise,
        smooth=smooth,
        mask=mask,
        mask_bits=mask_bits,
    )
    experts = _num_experts(model)
    replaced, left, counts = dict[str, str](), dict[str, str](), dict[str, int]()
    by_layer: list[dict[str, str]] = [{} for _ in layers]
    chosen: list[tuple[torch.nn.Module, int, str]] = []

    def take(name: str, number: int, operator: str, outputs: int) -> bool:
        """Whether a linear is replaced; the report says so."""
        if operator in skip or (operators is not None and operator not in operators):
            left[name] = "not asked for"
        elif experts > 1 and outputs == experts:
            left[name] = "a router"
        elif settings.is_exact(number, operator):
            left[name] = "arith = fp"
        else:
            by_layer[number][operator] = replaced[name] = settings.of(number, operator).describe()
            counts[operator] = counts.get(operator, 0) + 1
            return True
        return False

    tensors: list[tuple[torch.nn.Module, int, dict[str, bool]]] = []
    for number, layer in enumerate(layers):
        for name, module in layer.named_modules(prefix=f"{prefix}.{number}"):
            operator = name.rpartition(".")[2]
            if isinstance(module, torch.nn.Linear) or _is_conv1d(module):
                weight = module.weight
                assert isinstance(weight, torch.Tensor)
                if take(name, number, operator, weight.shape[1] if _is_conv1d(module) else weight.shape[0]):
                    chosen.append((module, number, operator))
            elif is_experts(module):
                taken = {each: take(f"{name}.{each}", number, each, 0) for each in MATRICES}
                if any(taken.values()):
                    tensors.append((module, number, taken))
            else:
                wide = [each for each in module.parameters(recurse=False) if each.dim() > 1]
                if wide:
                    router = experts > 1 and len(wide) == 1 and wide[0].shape[0] == experts and wide[0].dim() == 2
                    left[name] = "a router" if router else f"a {type(module).__name__}, no Linear"
    if not chosen and not tensors:
        raise stoch.InvalidInput(f"{type(model).__name__}: no linear to replace was found in {prefix}")
    if free_weights and not all(all(taken.values()) for _, _, taken in tensors):
        raise stoch.InvalidInput("free_weights: experts that are one tensor are replaced whole, or not at all")
    if attention:
        patch_attention(model, layers, settings)
    try:
        patched: list[tuple[torch.nn.Module, _Linear | Experts]] = [
            (module, _Linear(module, settings, (number, operator), grad, free_weights)) for module, number, operator in chosen
        ]
        patched += [
            (module, Experts(module, settings, number, taken, grad, free_weights)) for module, number, taken in tensors
        ]
    except BaseException:
        unpatch_attention(model)
        raise
    for module, body in patched:
        module.forward = body
    model._stoch_patched = [module for module, _ in patched]  # type: ignore[assignment]
    mode = settings.attention if attention else ""
    return Report(replaced, left, mode, counts, by_layer, settings.describe())


def unpatch(model: torch.nn.Module) -> None:
    """Undoes `patch`."""
    patched: Any = getattr(model, "_stoch_patched", None)
    if not patched:
        raise stoch.InvalidInput(f"{type(model).__name__} is not patched")
    if any(module.forward.freed for module in patched):
        raise stoch.InvalidInput(f"{type(model).__name__} was patched with free_weights: load it again")
    for module in patched:
        del module.__dict__["forward"]
    del model._stoch_patched
    unpatch_attention(model)


@contextlib.contextmanager
def patched(model: torch.nn.Module, sc: Settings | Sequence[Settings] | stoch.ModelConfig = "preset=halved", **options: Any) -> Iterator[Report]:
    """`patch` for a block."""
    report = patch(model, sc, **options)
    try:
        yield report
    finally:
        unpatch(model)
