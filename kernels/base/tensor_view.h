// SPDX-License-Identifier: Apache-2.0
// A non-owning view of a strided tensor that knows its device.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "kernels/base/device.h"
#include "kernels/base/dtype.h"

namespace stoch {

// Pointer, shape and strides (in elements, may be 0 for a broadcast or negative for a reversed axis).
// Units:  offsets are int64_t: views past 2^31 elements are legal.
// Owns:   nothing; valid as long as the Buffer behind it.
struct TensorView {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::kF32;
  Device device;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> stride{};

  template <typename T>
  T* ptr() const {
    return static_cast<T*>(data);
  }
  int64_t dim(int i) const { return shape[static_cast<size_t>(i)]; }
  int64_t step(int i) const { return stride[static_cast<size_t>(i)]; }
  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dim(i);
    return n;
  }
  int64_t bytes() const { return numel() * static_cast<int64_t>(DTypeSize(dtype)); }  // requires a dense view
  // Rows are dense (last stride 1); every op accepts this at least.
  bool rows_dense() const { return rank > 0 && (dim(rank - 1) <= 1 || step(rank - 1) == 1); }
  // Elements lie in row-major order without gaps: one copy of numel() elements is all of it.
  bool is_dense() const {
    int64_t expected = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (dim(i) != 1 && step(i) != expected) return false;
      expected *= dim(i);
    }
    return true;
  }
};

// Dense row-major views.
inline TensorView MakeView(void* data, DType dtype, Device device, int64_t d0) {
  return TensorView{data, dtype, device, 1, {d0}, {1}};
}
inline TensorView MakeView(void* data, DType dtype, Device device, int64_t d0, int64_t d1) {
  return TensorView{data, dtype, device, 2, {d0, d1}, {d1, 1}};
}
inline TensorView MakeView(void* data, DType dtype, Device device, int64_t d0, int64_t d1, int64_t d2) {
  return TensorView{data, dtype, device, 3, {d0, d1, d2}, {d1 * d2, d2, 1}};
}

// The view of elements [begin, begin + count) of one axis. No checks beyond STOCH_CHECK of the range.
TensorView Slice(const TensorView& view, int axis, int64_t begin, int64_t count);

// Whether two views may share a byte: exact for contiguous views and for column ranges of one matrix, else by the
// extents of both (views that interleave in another way count as overlapping).
bool MayOverlap(const TensorView& a, const TensorView& b);

// "F32[3, 128] on cuda:1", for messages.
std::string Describe(const TensorView& view);

}  // namespace stoch
