// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/base/ordinal.h"

#include <cuda_runtime.h>

#include <cstdlib>

#include "kernels/cuda/base/cuda_check.h"

namespace stoch::cuda {
namespace {

int LogicalGpus() {
  static const char* const value = std::getenv("STOCH_TEST_LOGICAL_GPUS");
  static const int count = value == nullptr ? 0 : std::atoi(value);
  return count;
}

int Gpus() {
  int count = 0;
  STOCH_CUDA(cudaGetDeviceCount(&count));
  return count;
}

}  // namespace

int OrdinalOf(int device_index) {
  if (LogicalGpus() <= 0) return device_index;
  static const int gpus = Gpus();
  return device_index % gpus;
}

bool SharesStreams() {
  static const bool shares = LogicalGpus() > 0 && std::getenv("STOCH_TEST_SHARED_STREAM") != nullptr;
  return shares;
}

bool ShareGpu(int device_index, int other_index) {
  return device_index != other_index && OrdinalOf(device_index) == OrdinalOf(other_index) && !SharesStreams();
}

int DeviceNumbers(int gpus) { return gpus > 0 && LogicalGpus() > gpus ? LogicalGpus() : gpus; }

}  // namespace stoch::cuda
