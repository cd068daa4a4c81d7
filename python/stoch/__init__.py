# SPDX-License-Identifier: Apache-2.0
"""Llama language models in stochastic computing: the engine in this process, with the bits of the command line.

>>> import numpy as np, stoch
>>> a = np.eye(2, 4, dtype=np.float32)
>>> stoch.sc_matmul(a, a, stoc_len=64).shape
(2, 2)
"""

import logging as _logging

from stoch._commands import bench, calibrate, profile, sweep, trace_cost, verify
from stoch._config import ModelConfig, ScConfig
from stoch._matmul import Packed, pack, sc_matmul, streams, synchronize
from stoch._model import Engine, Model, Perplexity, Result, Sequence, Stream, load
from stoch._multiplier import MultiplierTable, multiplier_table
from stoch._rows import Plot, Rows
from stoch._stoch import DeviceError, InvalidInput, NotFinite
from stoch._stoch import version_text as _version_text

for _error in (DeviceError, InvalidInput, NotFinite):
    _error.__module__ = "stoch"
del _error

# Nothing prints: without a handler of its own, warnings would go to standard error.
_logging.getLogger("stoch").addHandler(_logging.NullHandler())

__version__ = _version_text().splitlines()[0].split(" ", 1)[1]

__all__ = [
    "DeviceError",
    "Engine",
    "InvalidInput",
    "Model",
    "ModelConfig",
    "MultiplierTable",
    "NotFinite",
    "Packed",
    "Perplexity",
    "Plot",
    "Result",
    "Rows",
    "ScConfig",
    "Sequence",
    "Stream",
    "bench",
    "calibrate",
    "load",
    "multiplier_table",
    "pack",
    "profile",
    "sc_matmul",
    "streams",
    "sweep",
    "synchronize",
    "trace_cost",
    "verify",
]
