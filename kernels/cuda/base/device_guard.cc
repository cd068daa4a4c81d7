// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/base/device_guard.h"

#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/ordinal.h"

namespace stoch::cuda {

DeviceGuard::DeviceGuard(const Device& device) {
  STOCH_CHECK(device.kind == DeviceKind::kCuda);
  STOCH_CUDA(cudaGetDevice(&previous_));
  const int ordinal = OrdinalOf(device.index);
  if (previous_ == ordinal) return;
  STOCH_CUDA(cudaSetDevice(ordinal));
  changed_ = true;
}

DeviceGuard::~DeviceGuard() {
  if (changed_) (void)cudaSetDevice(previous_);
}

}  // namespace stoch::cuda
