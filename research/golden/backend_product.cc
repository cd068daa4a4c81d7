// SPDX-License-Identifier: Apache-2.0
#include "research/golden/backend_product.h"

#include <limits>

namespace stoch {

std::vector<float> ProductOnBackend(Backend& backend, const HostMatrix& a, const HostMatrix& b, const ScConfig& config,
                                    const ScExtras* extras, std::span<const int> lengths) {
  const Device device = backend.devices()[0];
  std::vector<Buffer> buffers;
  const auto view = [&](int64_t rows, int64_t cols, const std::vector<float>& values) {
    Buffer& buffer = buffers.emplace_back(backend.Allocate(device, rows * cols * 4));
    const TensorView result = MakeView(buffer.data(), DType::kF32, device, rows, cols);
    backend.CopyFromHost(result, values.data());
    return result;
  };
  const TensorView va = view(a.rows, a.cols, a.values);
  const TensorView vb = view(b.rows, b.cols, b.values);
  // NaN where nothing is written, so that an op that does nothing cannot pass.
  std::vector<float> y(static_cast<size_t>(a.rows * b.rows), std::numeric_limits<float>::quiet_NaN());
  const TensorView vy = view(a.rows, b.rows, y);
  const ScOperatorPtr op = MakeScOperator(config);
  if (extras == nullptr) {
    backend.ScMatmul(va, vb, *op, vy);
  } else {
    backend.ScMixedMatmul(va, vb, op, *extras, lengths, vy);
  }
  backend.CopyToHost(y.data(), vy);
  backend.CheckFinite(device);
  return y;
}

}  // namespace stoch
