# SPDX-License-Identifier: Apache-2.0
"""Reads the recorded data, and the demo model: safetensors files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

_TYPES = {"F16": np.float16, "F32": np.float32, "I32": np.int32, "U8": np.uint8, "I64": np.int64}


def read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(data[begin:end], _TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors, metadata
