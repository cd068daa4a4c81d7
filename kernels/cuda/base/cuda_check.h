// SPDX-License-Identifier: Apache-2.0
// CUDA calls that throw: STOCH_CUDA(call), STOCH_CUBLAS(call), STOCH_CUDA_LAUNCH("KernelName") after every launch.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include "kernels/base/device_fault.h"
#include "kernels/base/error.h"

namespace stoch::cuda {

// A CUDA or cuBLAS call that failed: code, call, place and device are in the message.
class CudaError : public DeviceError {
 public:
  CudaError(const std::string& message, int code) : DeviceError(message), code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

// Throw when `code` is not success: OutOfMemory where that is the reason, DeviceRefusal where the device goes on
// (device_fault.h), else CudaError. The runtime's "last error" is cleared first.
void ThrowIfFailed(cudaError_t code, const char* call, const char* file, int line);
void ThrowIfFailed(cublasStatus_t code, const char* call, const char* file, int line);

}  // namespace stoch::cuda

#define STOCH_CUDA(call) ::stoch::cuda::ThrowIfFailed((call), #call, __FILE__, __LINE__)
#define STOCH_CUBLAS(call) ::stoch::cuda::ThrowIfFailed((call), #call, __FILE__, __LINE__)
#define STOCH_CUDA_LAUNCH(name) ::stoch::cuda::ThrowIfFailed(cudaGetLastError(), "launch of " name, __FILE__, __LINE__)
