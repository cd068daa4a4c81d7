// SPDX-License-Identifier: Apache-2.0
// Dense tensors on a device, filled from and read back to the host.
#pragma once

#include <cstring>
#include <vector>

#include "kernels/backend.h"

namespace stoch::test {

class DeviceTensor {
 public:
  // On the backend's first device unless told.
  DeviceTensor(Backend& backend, const std::vector<int64_t>& shape, const std::vector<float>& values, int device = 0)
      : backend_(&backend) {
    const Device where = backend.devices()[static_cast<size_t>(device)];
    buffer_ = backend.Allocate(where, static_cast<int64_t>(values.size() * sizeof(float)));
    view_ = {buffer_.data(), DType::kF32, where, static_cast<int>(shape.size()), {}, {}};
    int64_t stride = 1;
    for (size_t i = shape.size(); i-- > 0;) {
      view_.shape[i] = shape[i];
      view_.stride[i] = stride;
      stride *= shape[i];
    }
    backend.CopyFromHost(view_, values.data());
  }

  const TensorView& view() const { return view_; }

  std::vector<float> Read() const {
    std::vector<float> values(static_cast<size_t>(view_.numel()));
    backend_->CopyToHost(values.data(), view_);
    return values;
  }

 private:
  Backend* backend_;
  Buffer buffer_;
  TensorView view_;
};

// Equality of bits, which == of floats is not.
inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace stoch::test
