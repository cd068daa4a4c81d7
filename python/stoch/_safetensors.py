# SPDX-License-Identifier: Apache-2.0
"""Files of `stoch calibrate`: safetensors of F32. The package that reads any needs more than numpy."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt


def read(path: str | os.PathLike[str]) -> tuple[dict[str, npt.NDArray[np.float32]], dict[str, str]]:
    """Tensors by name, and the metadata, of a file that the engine wrote."""
    data = Path(path).read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        first, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(data[begin + first : begin + end], np.float32).reshape(entry["shape"])
    return tensors, metadata
