// SPDX-License-Identifier: Apache-2.0
// CUDA calls that throw on failure: STOCH_CUDA(call), STOCH_CUBLAS(call), and STOCH_CUDA_LAUNCH("KernelName") after
// every kernel launch.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include "kernels/base/device_fault.h"
#include "kernels/base/error.h"

namespace stoch::cuda {

// A CUDA or cuBLAS call that failed. The message names the error code, the call, file and line, and the device.
class CudaError : public DeviceError {
 public:
  CudaError(const std::string& message, int code) : DeviceError(message), code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

// Throws if `code` is not success: OutOfMemory if an allocation failed, DeviceRefusal if only this call failed and the
// device stays usable (device_fault.h), else CudaError. After a CUDA call, clears the runtime's "last error" before it
// throws.
void ThrowIfFailed(cudaError_t code, const char* call, const char* file, int line);
void ThrowIfFailed(cublasStatus_t code, const char* call, const char* file, int line);

}  // namespace stoch::cuda

#define STOCH_CUDA(call) ::stoch::cuda::ThrowIfFailed((call), #call, __FILE__, __LINE__)
#define STOCH_CUBLAS(call) ::stoch::cuda::ThrowIfFailed((call), #call, __FILE__, __LINE__)
#define STOCH_CUDA_LAUNCH(name) ::stoch::cuda::ThrowIfFailed(cudaGetLastError(), "launch of " name, __FILE__, __LINE__)
