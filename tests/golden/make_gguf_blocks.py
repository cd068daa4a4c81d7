#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes gguf_blocks.json: blocks of every GGUF type that is read, and the floats they stand for.

Two rows of 256 elements per type, random bits with scales that are finite, negative and subnormal ones among them. The
floats are those of the gguf package (pip install gguf==0.19.0 numpy), as the bits of their F32, in hexadecimal.
    make_gguf_blocks.py > gguf_blocks.json
"""
import importlib.metadata
import json
import sys

import gguf
import numpy as np

SEED = 20261123
ROWS, COLS = 2, 256
# Where the halves of a block are: scale, and offset or scale of offsets.
HALVES = {"F16": [0], "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2],
          "Q5_K": [0, 2], "Q6_K": [208], "Q2_K": [80, 82], "Q3_K": [108], "IQ4_XS": [0], "IQ4_NL": [0]}
TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K", "IQ4_XS",
         "IQ4_NL", "MXFP4"]


def blocks_of(kind, rng):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    count = ROWS * COLS // block
    data = rng.integers(0, 256, (count, size), dtype=np.uint8)
    if kind.name == "F32":
        return rng.standard_normal(ROWS * COLS).astype("<f4").view(np.uint8).reshape(ROWS, -1)
    if kind.name == "BF16":
        exact = rng.standard_normal(ROWS * COLS).astype("<f4").view("<u4") >> 16
        return exact.astype("<u2").view(np.uint8).reshape(ROWS, -1)
    if kind.name == "MXFP4":
        data[:, 0] = rng.integers(0, 200, count)  # powers of two, whose largest would be infinite
        data[:3, 0] = 0, 1, 2
        return data.reshape(ROWS, -1)
    for at in HALVES[kind.name]:
        scales = (rng.standard_normal(count) * 0.05).astype("<f2")
        scales[count // 2] = np.float16(3e-6)  # subnormal
        data[:, at:at + 2] = scales.view(np.uint8).reshape(count, 2)
    return data.reshape(ROWS, -1)


def main():
    rng = np.random.default_rng(SEED)
    types = {}
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        blocks = blocks_of(kind, rng)
        values = np.asarray(gguf.quants.dequantize(blocks, kind), dtype="<f4")
        assert values.shape == (ROWS, COLS) and np.isfinite(values).all()
        types[name] = {"number": int(kind), "blocks": [row.tobytes().hex() for row in blocks],
                       "values": [row.tobytes().hex() for row in values]}
    json.dump({"generator": "make_gguf_blocks.py", "gguf": importlib.metadata.version("gguf"), "seed": SEED,
               "types": types}, sys.stdout, indent=0)
    print()


if __name__ == "__main__":
    main()
