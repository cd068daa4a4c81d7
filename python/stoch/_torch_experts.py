# SPDX-License-Identifier: Apache-2.0
"""Experts that transformers 5 keeps in one tensor, each of their matrices a linear in SC."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import stoch
import torch
from stoch._operators import Operators

# Rows of the tensors that are matrices of an expert: its name among the engine's operators, tensor, and part of it.
MATRICES = {"gate_proj": ("gate_up_proj", 0), "up_proj": ("gate_up_proj", 1), "down_proj": ("down_proj", 0)}
# What transformers' use_experts_implementation says of the layout.
_LAYOUT = {"has_gate": True, "has_bias": False, "is_transposed": False, "is_concatenated": True}
# The same of versions that have it; before, there is no such norm.
_LATER = {"has_post_expert_norm": False}


def is_experts(module: torch.nn.Module) -> bool:
    """Whether a module is experts in the layout that is known here: gate above up [experts, 2 * width, inputs], and down."""
    tensors = [getattr(module, name, None) for name in ("gate_up_proj", "down_proj")]
    if not all(isinstance(tensor, torch.nn.Parameter) and tensor.dim() == 3 for tensor in tensors):
        return False
    known = all(getattr(module, name, None) is value for name, value in _LAYOUT.items())
    return hasattr(module, "_apply_gate") and known and all(getattr(module, name, value) is value for name, value in _LATER.items())


class Experts:
    """What a patched experts module computes. A matrix is packed at its first use, and again when it changed."""

    def __init__(
        self, module: torch.nn.Module, settings: Operators, layer: int, operators: Mapping[str, bool], grad: str | None, free: bool
    ) -> None:
        self.module = weakref.ref(module)
        self.settings = settings
        self.layer = layer
        self.in_sc = operators  # of each of MATRICES; `free` requires all
        self.grad = grad
        self.packed: dict[tuple[int, str], tuple[tuple[Any, ...], stoch.Packed]] = {}
        self.freed = False
        if free:
            for expert in range(int(self._tensor("down_proj").shape[0])):
                for operator in MATRICES:
                    self._pack(expert, operator)
            for name in ("gate_up_proj", "down_proj"):
                setattr(module, name, torch.nn.Parameter(self._tensor(name).detach().to("meta"), requires_grad=False))
            self.freed = True

    def _own(self) -> Any:
        module = self.module()
        assert module is not None
        return module

    def _tensor(self, name: str) -> torch.Tensor:
        tensor = getattr(self._own(), name)
        assert isinstance(tensor, torch.Tensor)
        return tensor

    def weight(self, expert: int, operator: str) -> torch.Tensor:
        """[outputs, inputs]"""
        name, part = MATRICES[operator]
        matrix = self._tensor(name).detach()[expert]
        return matrix.chunk(2)[part] if name == "gate_up_proj" else matrix

    def _pack(self, expert: int, operator: str) -> stoch.Packed:
        known = self.packed.get((expert, operator))
        if self.freed:
            assert known is not None
            return known[1]
        tensor = self._tensor(MATRICES[operator][0])
        version = 0 if tensor.is_inference() else tensor._version
        key = (tensor.data_ptr(), version, tensor.device, tensor.dtype)
        if known is None or known[0] != key:
            known = (key, self.settings.pack(self.layer, operator, self.weight(expert, operator)))
            self.packed[expert, operator] = known
        return known[1]

    def _linear(self, x: torch.Tensor, expert: int, operator: str) -> torch.Tensor:
        if not self.in_sc[operator]:
            return torch.nn.functional.linear(x, self.weight(expert, operator))
        result = stoch.sc_matmul(x.to(torch.float32).contiguous(), self._pack(expert, operator))
        assert isinstance(result, torch.Tensor)
        return result.to(x.dtype)

    def _products(self, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The sum over a token's experts, in the order of its choice."""
        module = self._own()
        tokens, choices = index.shape
        by_pair = torch.zeros((tokens * choices, x.shape[-1]), dtype=torch.float32, device=x.device)
        flat = index.reshape(-1)
        for expert in torch.unique(flat).tolist():
            if expert >= module.num_experts:  # another device's
                continue
            pairs = torch.nonzero(flat == expert).flatten()
            rows = x[pairs // choices]
            both = torch.cat([self._linear(rows, expert, "gate_proj"), self._linear(rows, expert, "up_proj")], dim=-1)
            result = self._linear(module._apply_gate(both), expert, "down_proj")
            by_pair[pairs] = result.to(torch.float32) * weights.reshape(-1)[pairs, None].to(torch.float32)
        return by_pair.reshape(tokens, choices, -1).sum(dim=1).to(x.dtype)

    def __call__(self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _untraced(self, hidden_states, top_k_index, top_k_weights)
        return result

    def _run(self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
        module = self._own()
        needs_grad = torch.is_grad_enabled() and hidden_states.requires_grad
        if needs_grad and self.grad is None:
            raise stoch.InvalidInput("an input needs a gradient: patch with grad='ste', or run under torch.no_grad()")
        if self.settings.per_call:
            raise stoch.InvalidInput("mp_normalise = call: experts whose rows come from several sequences do not allow it")
        with torch.no_grad():
            result = self._products(hidden_states.detach(), top_k_index, top_k_weights.detach())
        if self.grad == "ste" and (needs_grad or any(p.requires_grad for p in module.parameters())):
            exact: torch.Tensor = type(module).forward(module, hidden_states, top_k_index, top_k_weights)
            return exact + (result - exact).detach()
        return result


# Not as a decorator, whose type differs between versions of torch.
_disable: Any = torch.compiler.disable
_untraced: Any = _disable(Experts._run)
