# SPDX-License-Identifier: Apache-2.0
"""What is needed of the libraries that arrays come from; none but numpy is imported before an array of it is seen."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from stoch import _stoch

_CUDA = (2, 13)  # DLPack device types


def library_of(array: Any) -> str:
    """'numpy', 'torch', 'cupy', 'jax', or 'other': has the buffer protocol or __dlpack__, and nothing else is known."""
    root = type(array).__module__.partition(".")[0]
    if root in ("numpy", "cupy"):
        return root
    if root in ("jax", "jaxlib"):
        return "jax"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return "torch"
    return "other"


def cuda_ordinal(array: Any) -> int:
    """The CUDA device an array is on, -1 for the CPU."""
    if isinstance(array, np.ndarray):
        return -1
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return int(array.get_device()) if array.is_cuda else -1
    if not hasattr(array, "__dlpack_device__"):
        return -1
    kind, index = array.__dlpack_device__()
    return int(index) if int(kind) in _CUDA else -1


def check_kind(array: Any, name: str) -> None:
    """Refuses what has memory that does not say all: numpy's masked arrays."""
    if type(array).__module__.startswith("numpy.ma"):
        raise _stoch.InvalidInput(f"{name} is a masked array: pass filled()")


def shape_of(array: Any, name: str) -> tuple[int, ...]:
    if type(array) is not np.ndarray:
        check_kind(array, name)
    shape = getattr(array, "shape", None)
    if shape is None:
        try:
            shape = memoryview(array).shape
        except TypeError:
            shape = None
    if shape is None:
        raise _stoch.InvalidInput(
            f"{name} is a {type(array).__name__}: allowed is an array with the buffer protocol or __dlpack__"
        )
    return tuple(shape)


def check_operand(array: Any, name: str) -> None:
    """Refuses what a product would refuse of an operand, in its words, before a library converts it by itself."""
    dtype = array.dtype if hasattr(array, "dtype") else np.asarray(array).dtype
    kind = str(dtype).rpartition(".")[2]
    if kind not in ("float32", "float16", "bfloat16"):
        raise _stoch.InvalidInput(f"{name} is {kind}: allowed is float32, float16, bfloat16")
    if library_of(array) == "torch":
        if array.device.type not in ("cpu", "cuda"):
            raise _stoch.InvalidInput(f"{name} is on {array.device}: allowed is cpu or cuda")
        if str(array.layout) != "torch.strided":
            raise _stoch.InvalidInput(f"{name} is {array.layout}: allowed is torch.strided")


def as_float(array: Any, name: str) -> Any:
    """The array itself, or where it is 16-bit on CUDA, its exact float32 values made by its own library there."""
    torch = sys.modules.get("torch")
    if torch is not None and type(array) is torch.Tensor and array.dtype is torch.float32:
        return array
    if cuda_ordinal(array) < 0:
        return array
    kind = str(array.dtype).rpartition(".")[2]
    if kind not in ("float16", "bfloat16"):
        return array
    library = library_of(array)
    if library == "torch":
        return array.float()
    if library in ("cupy", "jax"):
        return array.astype("float32")
    raise _stoch.InvalidInput(f"{name} is {kind} on cuda: pass a torch or cupy array, or float32")


def empty(like: Any, shape: tuple[int, ...], dtype: str = "float32") -> Any:
    """Memory of `like`'s library on its device; of numpy where that library's arrays cannot be written to."""
    torch = sys.modules.get("torch")
    if torch is not None and type(like) is torch.Tensor:  # by far the quickest way
        return like.new_empty(shape, dtype=getattr(torch, dtype))
    library = library_of(like)
    if library == "torch":
        return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)  # type: ignore[union-attr]
    if library == "cupy":
        import cupy

        with cupy.cuda.Device(like.device.id):
            return cupy.empty(shape, dtype=dtype)
    if cuda_ordinal(like) >= 0:
        raise _stoch.InvalidInput(f"a is a {type(like).__name__} on cuda: give out= of torch or cupy")
    return np.empty(shape, dtype=dtype)


def finished(like: Any, out: Any) -> Any:
    """The result as `like`'s library holds it."""
    if type(out) is np.ndarray and type(like) is not np.ndarray and library_of(like) == "jax":
        import jax.numpy

        return jax.numpy.asarray(out)
    return out


def caller_stream(like: Any, ordinal: int, stream: Any) -> int:
    """The address of the stream that the caller works on."""
    if ordinal < 0:
        return 0
    if stream is not None:
        for attribute in ("cuda_stream", "ptr"):
            if hasattr(stream, attribute):
                return int(getattr(stream, attribute))
        return int(stream)
    library = library_of(like)
    if library == "torch":
        import torch

        known = _stoch.current_stream(like, ordinal)
        return int(torch.cuda.current_stream(ordinal).cuda_stream) if known is None else known
    if library == "cupy":
        import cupy

        return int(cupy.cuda.get_current_stream(ordinal).ptr)
    return 0


def to_host(array: Any) -> Any:
    """The array on the CPU, copied (and waited for) only where it is on CUDA."""
    if cuda_ordinal(array) < 0:
        return array
    library = library_of(array)
    if library == "torch":
        return array.cpu()
    if library == "cupy":
        return array.get()
    return np.from_dlpack(array)


def packable(array: Any, ordinal: int) -> tuple[Any, int]:
    """(what packing for a device reads, the address of the caller's stream): a tensor of torch on that device as it lies
    there, else the array on the host."""
    if ordinal < 0 or cuda_ordinal(array) != ordinal or library_of(array) != "torch" or array.dim() != 2:
        return to_host(array), 0
    dense = array.contiguous()
    if dense.is_floating_point() and not bool(dense.detach().isfinite().all()):
        raise _stoch.NotFinite("sc_matmul: NaN or infinity in b")
    return dense, caller_stream(dense, ordinal, None)


def integers(array: Any, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Whole numbers of any library or of lists, on the host."""
    try:
        values = np.asarray(to_host(array))
    except ValueError:
        raise _stoch.InvalidInput(f"{name} is a ragged list: allowed are whole numbers") from None
    if values.dtype.kind not in "iu":
        raise _stoch.InvalidInput(f"{name} is {values.dtype}: allowed are whole numbers")
    return values.astype(np.int64)


def from_host(like: Any, values: np.ndarray[Any, Any]) -> Any:
    """Host values as an array of `like`'s library on its device."""
    library = library_of(like)
    if library == "torch":
        import torch

        return torch.from_numpy(values).to(like.device)
    if library == "cupy":
        import cupy

        return cupy.asarray(values)
    return finished(like, values)
