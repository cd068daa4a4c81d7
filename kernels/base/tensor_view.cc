#include "kernels/base/tensor_view.h"

#include "kernels/base/check.h"

namespace stoch {

TensorView Slice(const TensorView& view, int axis, int64_t begin, int64_t count) {
  STOCH_CHECK(axis >= 0 && axis < view.rank);
  STOCH_CHECK(begin >= 0 && count >= 0 && begin + count <= view.dim(axis));
  TensorView result = view;
  result.data = static_cast<char*>(view.data) + begin * view.step(axis) * static_cast<int64_t>(DTypeSize(view.dtype));
  result.shape[static_cast<size_t>(axis)] = count;
  return result;
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
