// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/tensor_view.h"

#include <cstdint>
#include <utility>

#include "kernels/base/check.h"

namespace stoch {
namespace {

// First and one past the last byte a view touches. Addresses, not pointers: those may not leave their object, and none
// may be computed from the null of a view without storage.
std::pair<uintptr_t, uintptr_t> Extent(const TensorView& view) {
  int64_t low = 0;
  int64_t high = 0;
  for (int i = 0; i < view.rank; ++i) {
    const int64_t reach = (view.dim(i) - 1) * view.step(i);
    (reach < 0 ? low : high) += reach;
  }
  const auto base = reinterpret_cast<uintptr_t>(view.data);
  const auto size = static_cast<int64_t>(DTypeSize(view.dtype));
  return {base + static_cast<uintptr_t>(low * size), base + static_cast<uintptr_t>((high + 1) * size)};
}

// Two column ranges of matrices with one row stride never meet, whatever their rows.
bool AreDisjointColumns(const TensorView& a, const TensorView& b) {
  if (a.rank != 2 || b.rank != 2 || a.dtype != b.dtype || a.step(0) != b.step(0)) return false;
  const auto size = static_cast<int64_t>(DTypeSize(a.dtype));
  const int64_t stride = a.step(0) * size;
  if (a.step(1) != 1 || b.step(1) != 1 || stride < a.dim(1) * size || stride < b.dim(1) * size) return false;
  int64_t offset = (static_cast<const char*>(b.data) - static_cast<const char*>(a.data)) % stride;
  if (offset < 0) offset += stride;
  return offset >= a.dim(1) * size && offset + b.dim(1) * size <= stride;
}

}  // namespace

TensorView Slice(const TensorView& view, int axis, int64_t begin, int64_t count) {
  STOCH_CHECK(axis >= 0 && axis < view.rank);
  STOCH_CHECK(begin >= 0 && count >= 0 && begin + count <= view.dim(axis));
  TensorView result = view;
  if (view.data != nullptr) {  // a view without storage has parts without storage
    result.data = static_cast<char*>(view.data) + begin * view.step(axis) * static_cast<int64_t>(DTypeSize(view.dtype));
  }
  result.shape[static_cast<size_t>(axis)] = count;
  return result;
}

bool MayOverlap(const TensorView& a, const TensorView& b) {
  if (a.device != b.device || a.numel() == 0 || b.numel() == 0 || AreDisjointColumns(a, b)) return false;
  const auto [a_begin, a_end] = Extent(a);
  const auto [b_begin, b_end] = Extent(b);
  return a_begin < b_end && b_begin < a_end;
}

std::string Describe(const TensorView& view) {
  std::string text(DTypeName(view.dtype));
  text += '[';
  for (int i = 0; i < view.rank; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(view.dim(i));
  }
  return text + "] on " + DeviceName(view.device);
}

}  // namespace stoch
