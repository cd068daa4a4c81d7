# SPDX-License-Identifier: Apache-2.0
"""What the operators of a model of another framework run: settings by any name, and files."""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stoch import _arrays, _stoch
from stoch._config import ModelConfig, ScConfig, Settings, checked_files, settings_of
from stoch._matmul import Packed, pack

_ROOM = 256  # positions that room for prompts is a multiple of
_MAX_PROMPTS = 4
_LAYERS = re.compile(r"\d+(-\d+)?(\+\d+(-\d+)?)*")


def _split(texts: Sequence[str]) -> tuple[list[str], dict[str, dict[str, str]]]:
    """(settings of the engine's operators and of all, parameters of operators of other names)"""
    known = {name for name, _ in _stoch.operator_configs([])[0]}
    own, extra = [], dict[str, dict[str, str]]()
    for entry in (entry for text in texts for entry in text.split(",") if entry):
        name, _, value = entry.partition("=")
        place, _, parameter = name.rpartition(".")
        layers, dot, operator = place.partition(".") if _LAYERS.match(place) else ("", "", place)
        if not operator or operator in known:
            own.append(entry)
        elif layers and dot:
            raise _stoch.InvalidInput(f"SC setting {entry}: layers are allowed with {', '.join(sorted(known))}")
        else:
            extra.setdefault(operator, {})[parameter] = value
    return own, extra


class Operators:
    """Settings of every operator, by layer; those with a name of the engine's also have what files say."""

    def __init__(
        self,
        sc: Settings | Sequence[Settings] | ModelConfig,
        *,
        layers: int,
        sizes: tuple[int, int, int],  # inputs of q_proj, down_proj and o_proj
        attention: bool,
        mp: str | os.PathLike[str] | None = None,
        mp_normalise: str = "fixed",
        smooth: str | os.PathLike[str] | None = None,
        mask: str | os.PathLike[str] | None = None,
        mask_bits: int = 0,
    ) -> None:
        files = checked_files(mp, mp_normalise, smooth, mask, mask_bits)
        if isinstance(sc, ModelConfig):
            if sc.has_files:
                if any((files[0], files[2], files[3])):
                    raise _stoch.InvalidInput("mp, smooth and mask: sc has files of its own")
                files = sc._files
            sc = sc.settings
        own, self._extra = _split(settings_of(sc))
        if not attention:
            own.append("attention=exact")
        configs, self.attention = _stoch.operator_configs(own)
        if self.attention == "dilated":
            raise _stoch.InvalidInput("attention = dilated: stoch.load runs it, patch does not")
        self._known = {name for name, _ in configs}
        general = [entry for entry in own if "." not in entry.partition("=")[0]]
        self._general = ScConfig.parse(dict(_stoch.operator_configs(general)[0])["q_proj"])
        self._plan = _stoch.ModelPlan(own, _stoch.ScFiles(*files), layers, sizes)
        self.per_call = bool(self._plan.per_call)  # a row's length depends on all rows of its call
        self._configs: dict[tuple[int, str], ScConfig] = {}
        self.has_lengths = self._plan.has_lengths and self.attention != "exact"
        if self.has_lengths:
            self._engine_only = ["mp with attention = per_head" if self.attention == "per_head" else ""] * layers
        else:
            self._engine_only = [self._integers(layer) for layer in range(layers)]
        self._prompts: OrderedDict[Any, Any] = OrderedDict()

    def _integers(self, layer: int) -> str:
        """The first product of a layer's attention that has no streams."""
        if self.attention == "exact":
            return ""
        kinds = {name: self._plan.arith(layer, name) for name in ("qk", "av")}
        if "fp" in kinds.values():
            name = next(name for name, kind in kinds.items() if kind == "fp")
            raise _stoch.InvalidInput(f"SC setting {layer}.{name}.arith = fp: allowed in attention is attention = exact")
        return next((f"{name}.arith = {kind}" for name, kind in kinds.items() if kind != "sc"), "")

    def engine_only(self, layer: int) -> str:
        """What only the engine's own attention computes in a layer; "" where products of `sc_matmul` do too."""
        return self._engine_only[layer]

    def prompt_attention(self, layer: int, kv_heads: int, head_dim: int, prompts: int, positions: int, cuda: int) -> Any:
        """The engine's attention of a layer with room for this; None, or InvalidInput, where it has no kernel."""
        products = layer if self.has_lengths else tuple(self._plan.config(layer, name) for name in ("qk", "av"))
        arith = tuple(self._plan.arith(layer, name) for name in ("qk", "av"))
        key = (products, arith, kv_heads, head_dim, prompts, -(-positions // _ROOM) * _ROOM, cuda)
        if key in self._prompts:
            self._prompts.move_to_end(key)
            return self._prompts[key]
        made = None
        try:
            made = self._plan.attention(layer, kv_heads, head_dim, prompts, key[5], cuda)
        except _stoch.InvalidInput:
            if self._engine_only[layer]:
                raise
        self._prompts[key] = made
        if len(self._prompts) > _MAX_PROMPTS:
            self._prompts.popitem(last=False)
        return made

    def describe(self) -> str:
        """The settings and files, as the command line names them."""
        return self._plan.describe()

    def is_exact(self, layer: int, operator: str) -> bool:
        """Whether an operator is to stay as it is."""
        return operator in self._known and self._plan.arith(layer, operator) == "fp"

    def of(self, layer: int, operator: str) -> ScConfig:
        """The configuration; where lengths are mixed, that of the longest."""
        key = (layer, operator)
        if key not in self._configs:
            changes: dict[str, Any] = self._extra.get(operator, {})
            if operator in self._known:
                self._configs[key] = ScConfig.parse(self._plan.config(layer, operator))
            else:
                self._configs[key] = self._general.replace(**changes)
        return self._configs[key]

    def pack(self, layer: int, operator: str, weight: Any) -> Packed:
        """A weight [outputs, inputs], packed for all that its operator does."""
        config = self.of(layer, operator)
        if operator not in self._known:
            return pack(weight, config)
        ordinal = _arrays.cuda_ordinal(weight)
        operand, stream = _arrays.packable(weight, ordinal)
        return Packed(self._plan.pack(layer, operator, operand, ordinal, stream), config)

    def row_lengths(self, layer: int, operator: str, rows: Any) -> npt.NDArray[np.int64]:
        """Stream lengths of the rows of one call of qk or av."""
        return np.asarray(self._plan.row_lengths(layer, operator, _arrays.to_host(rows)), np.int64)
