// SPDX-License-Identifier: Apache-2.0
// Arrays of other libraries as views: the buffer protocol and DLPack, without a copy.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/base/tensor_view.h"

namespace stoch::python {

struct DlTensor;

// An array of somebody else, and what keeps its memory alive. Threads: made and destroyed with the GIL held; the view
// may be read without it.
class Array {
 public:
  // Any object with the buffer protocol or __dlpack__, of rank 2 or 3, on a CPU or a CUDA device.
  // `name` is how messages call it; `writable`: it will be written to, so F32 only.
  // Bits:   nothing is converted: F32, F16 or BF16 as it is.
  // Errors: InvalidInput for another type, rank or device, memory that is not aligned to its elements, or (writable)
  //         memory that is read-only.
  // Async:  on CUDA the exporter is told to order nothing (stream -1): the caller does.
  static Array Import(nanobind::handle object, std::string_view name, bool writable);

  const TensorView& view() const { return view_; }
  // Requires: what Import gave with `writable`, dense and on the host.
  std::span<float> floats() const { return {view_.ptr<float>(), static_cast<size_t>(view_.numel())}; }
  bool on_cpu() const { return view_.device.kind == DeviceKind::kCpu; }

 private:
  static Array OfBuffer(nanobind::handle object, std::string_view name, bool writable);
  // `object` is what messages are about, `owner` gives the tensor back.
  static Array OfTensor(nanobind::handle object, std::string_view name, bool writable, const DlTensor& tensor,
                        bool read_only, std::shared_ptr<void> owner);

  TensorView view_;
  std::shared_ptr<void> owner_;
};

// F32 values of a host view of any strides and type, dense and row-major: the view itself where it is that already.
// Bits: exact.
TensorView WidenHost(const TensorView& view, std::vector<float>* storage);

// The stream that an object's library works on now, on a CUDA device, where the library says so without a call of Python.
// Requires: the GIL is held.
std::optional<uintptr_t> CurrentStream(nanobind::handle object, int ordinal);

// "cpu", "cuda:1".
std::string PlaceName(const Device& device);

}  // namespace stoch::python
