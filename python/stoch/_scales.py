# SPDX-License-Identifier: Apache-2.0
"""Scales that the published project calibrated, as a file of smoothing factors."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stoch import _stoch

_MODULE = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.(?:.*\.)?(\w+)$")


def _name_of(module: str) -> str:
    found = _MODULE.search(module)
    if found is None:
        raise _stoch.InvalidInput(f"scales of {module}: expected a module of a decoder layer, ...layers.N....OPERATOR")
    return f"layers.{found[1]}.{found[2]}"


def _write(path: Path, tensors: dict[str, npt.NDArray[np.float32]], metadata: dict[str, str]) -> None:
    header: dict[str, Any] = {"__metadata__": metadata}
    begin = 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [begin, begin + values.nbytes]}
        begin += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(values.tobytes() for values in tensors.values()))


def convert_scales(
    path: str | os.PathLike[str],
    model: Any,
    output: str | os.PathLike[str],
    *,
    method: str | None = None,
    alpha: float = 0.5,
) -> int:
    """Writes a published torch file {module: [in_features]} as a file for `smooth=`; returns how many linears it has.

    method  "smoothquant": largest inputs, of which factors are made with the weights of `model`, a torch module, and
            alpha. "awq": the factors themselves. None: awq where the file's name has it.
    """
    import torch

    source = Path(path)
    chosen = method or ("awq" if "awq" in source.name else "smoothquant")
    if chosen not in ("awq", "smoothquant"):
        raise _stoch.InvalidInput(f"method = {method}: allowed is smoothquant, awq")
    if not 0.0 <= alpha <= 1.0:
        raise _stoch.InvalidInput(f"alpha = {alpha}: allowed is 0..1")
    try:
        content = torch.load(source, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch has no type of its own for a file that is not one
        raise _stoch.InvalidInput(f"{source}: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict) or not all(isinstance(values, torch.Tensor) for values in content.values()):
        raise _stoch.InvalidInput(f"{source}: expected tensors by name of module")
    modules = dict(model.named_modules())
    tensors: dict[str, npt.NDArray[np.float32]] = {}
    for name, values in content.items():
        weight = getattr(modules.get(name), "weight", None)
        if weight is None or weight.dim() != 2:
            raise _stoch.InvalidInput(f"{source}: {name}: {type(model).__name__} has no linear of that name")
        if type(modules[name]).__name__ == "Conv1D":
            weight = weight.t()
        if values.shape != (weight.shape[1],):
            raise _stoch.InvalidInput(f"{source}: {name}: {list(values.shape)} scales for {weight.shape[1]} inputs")
        factors = values.to(torch.float32)
        if chosen == "smoothquant":
            largest = weight.detach().to("cpu", torch.float32).abs().amax(dim=0).clamp(min=1e-5)
            factors = (factors.clamp(min=1e-5).pow(alpha) / largest.pow(1.0 - alpha)).clamp(min=1e-5)
        if not bool((torch.isfinite(factors) & (factors > 0)).all()):
            raise _stoch.InvalidInput(f"{source}: {name}: allowed are finite numbers above 0")
        tensors[_name_of(name)] = np.ascontiguousarray(factors.numpy(), np.float32)
    if not tensors:
        raise _stoch.InvalidInput(f"{source}: no scales")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    metadata = {"method": chosen, "alpha": str(alpha) if chosen == "smoothquant" else "", "source_sha256": digest}
    _write(Path(output), dict(sorted(tensors.items())), metadata)
    return len(tensors)
