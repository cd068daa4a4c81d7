# SPDX-License-Identifier: Apache-2.0
"""The product of two arrays in stochastic computing."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np

from stoch import _arrays, _mixed, _stoch
from stoch._arguments import check_text
from stoch._config import ScConfig, ScValue, config_of
from stoch._products import product, sums_of


class Packed:
    """A weight prepared once for one configuration, by `pack`."""

    __slots__ = ("_handle", "config")

    def __init__(self, handle: _stoch.Packed, config: ScConfig) -> None:
        self._handle = handle
        self.config = config

    @property
    def shape(self) -> tuple[int, int]:
        """(out_features, in_features)"""
        return self._handle.shape

    @property
    def nbytes(self) -> int:
        """Memory of its device that it takes."""
        return self._handle.nbytes

    @property
    def device(self) -> str:
        """'cpu' or 'cuda:N'"""
        return self._handle.device

    def __repr__(self) -> str:
        return f"Packed({self.shape[0]} x {self.shape[1]}, {self.config.describe() or 'defaults'}, {self.device})"


def pack(b: Any, config: ScConfig | None = None, *, device: str | None = None, **parameters: ScValue) -> Packed:
    """Prepares b, float [m, d], for any number of products: codes and scales on its device.

    `device`: 'cpu' or 'cuda:N', where it is not to be that of b. A tensor of torch is read on its GPU, another array on
    CUDA through the host, once. b is not referred to afterwards.

    >>> import numpy as np, stoch
    >>> b = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    >>> packed = stoch.pack(b, stoc_len=64)
    >>> packed.shape
    (3, 4)
    >>> bool((stoch.sc_matmul(b, packed) == stoch.sc_matmul(b, b, stoc_len=64)).all())
    True
    """
    chosen = config_of(config, parameters)
    _arrays.check_kind(b, "b")
    ordinal = _arrays.cuda_ordinal(b) if device is None else _ordinal_of(device)
    operand, stream = _arrays.packable(b, ordinal)
    return Packed(_stoch.pack(operand, chosen._handle, ordinal, stream), chosen)


def _ordinal_of(device: str) -> int:
    kind, _, index = str(device).partition(":")
    if kind == "cpu" and not index:
        return -1
    if kind == "cuda" and (not index or index.isdecimal()):
        return int(index or 0)
    raise _stoch.InvalidInput(f"device = {device}: allowed is cpu or cuda:N")


def sc_matmul(
    a: Any,
    b: Any,
    config: ScConfig | None = None,
    *,
    smooth: Any = None,
    lengths: Any = None,
    rungs: Any = None,
    level_lens: Any = None,
    protected: Any = None,
    protected_len: int | None = None,
    counts: bool = False,
    out: Any = None,
    stream: Any = None,
    check_finite: bool = False,
    **parameters: ScValue,
) -> Any:
    """a @ b.T in stochastic computing.

    a is [n, d] or [batch, n, d], b [m, d] or [batch, m, d] (or what `pack` returned): float32, float16 or bfloat16 of
    numpy, torch, cupy, jax, or anything with the buffer protocol or __dlpack__, of any strides. The result is float32,
    of a's library and on its device, or `out`.

    config, or parameters by name, or both, say how; the default is ScConfig(), streams of 256 cycles.
    smooth       [d]: a / smooth and b * smooth are multiplied.
    lengths      [n] or [n, chunks]: stream lengths by row of a, or by row and chunk of chunk_d channels; 0 adds nothing.
    rungs        the same as indices of `level_lens`.
    protected    channels that form a product of their own with streams of protected_len cycles.
    counts       also return the integer sums before the gain, int32 [n, chunks, m], computed on the host (and, where
                 channels are protected, theirs as a third value).
    stream       of CUDA arrays, where it is not to be the current one of a's library. The host does not wait.
    check_finite CUDA: wait, and raise NotFinite at once. On the CPU that is always so.

    >>> import numpy as np, stoch
    >>> a = np.float32([[1, -1, 0.5, 0], [0, 0.25, 1, 1]])
    >>> stoch.sc_matmul(a, a, halve=True).round(1)
    array([[2.3, 0.3],
           [0.3, 2.1]], dtype=float32)
    >>> y, acc = stoch.sc_matmul(a, a, halve=True, counts=True)
    >>> acc.shape
    (2, 1, 2)
    """
    chosen = config_of(config, parameters) if not isinstance(b, Packed) else _config_of_packed(b, config, parameters)
    extras = (smooth, lengths, rungs, level_lens, protected, protected_len)
    if any(map(_is_given, extras)):
        if isinstance(b, Packed):
            raise _stoch.InvalidInput("b is packed: smooth, lengths, rungs and protected take an array")
        plan = _mixed.plan(a, b, chosen, *extras)
        if out is not None:
            _mixed.check_out(a, b, out)
        y, sums = _mixed.run(a, b, plan, counts=counts, stream=stream, check_finite=check_finite)
        if out is not None:
            _mixed.write(out, y)
            y = out
        return (y, *sums) if counts else y
    if isinstance(b, Packed):
        if counts:
            raise _stoch.InvalidInput("b is packed: counts take an array")
        return _packed_product(a, b, out, stream, check_finite)
    y = product(a, b, chosen, out=out, stream=stream, check_finite=check_finite)
    return (y, sums_of(a, b, chosen)) if counts else y


def streams(config: ScConfig | None, level: int, side: str, mask: int = 0, **parameters: ScValue) -> np.ndarray:
    """The bits of one side of a product, uint8 [stoc_len]: 1 in cycles whose number is below the bound of `level`.

    level is what a quantizer makes (its sign lies outside, but for xnor), side 'a' (activations) or 'b', where the stream
    runs freely: gate=enabled takes b's bits one by one, while a's are on. Dimension d of a chunk has mask d mod M, M the
    masks of the configuration.

    >>> import stoch
    >>> stoch.streams(stoch.ScConfig(sc_prec=3, scramble="off"), 2, "a")
    array([1, 1, 0, 1, 1, 0, 0, 1], dtype=uint8)
    """
    chosen = config_of(config, parameters)
    bits = _stoch.streams(chosen._handle, operator.index(level), check_text("side", side), operator.index(mask))
    return np.array(bits, dtype=np.uint8)


_is_given = functools.partial(operator.is_not, None)


def _config_of_packed(b: Packed, config: ScConfig | None, parameters: dict[str, ScValue]) -> ScConfig:
    if config is None and not parameters:
        return b.config
    chosen = config_of(b.config if config is None else config, parameters)
    if chosen != b.config:
        raise _stoch.InvalidInput(f"b was packed for '{b.config.describe()}', asked is '{chosen.describe()}'")
    return chosen


def _packed_product(a: Any, b: Packed, out: Any, stream: Any, check_finite: bool) -> Any:
    left = _arrays.shape_of(a, "a")
    if len(left) != 2:
        raise _stoch.InvalidInput(f"a has {len(left)} dimensions: a packed b takes 2")
    ordinal = _arrays.cuda_ordinal(a)
    target = _arrays.empty(a, (left[0], b.shape[0])) if out is None else out
    left_operand = a if ordinal < 0 else _arrays.as_float(a, "a")
    _stoch.packed_product(left_operand, b._handle, target, _arrays.caller_stream(a, ordinal, stream), check_finite)
    return _arrays.finished(a, target) if out is None else out


def synchronize() -> None:
    """Waits for the work of every device, and raises NotFinite if it met NaN or infinity."""
    _stoch.synchronize()
