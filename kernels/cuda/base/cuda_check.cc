// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/base/cuda_check.h"

namespace stoch::cuda {
namespace {

std::string Where(const char* call, const char* file, int line) {
  int device = -1;
  (void)cudaGetDevice(&device);
  return std::string(call) + " at " + file + ":" + std::to_string(line) + " on cuda:" + std::to_string(device);
}

}  // namespace

void ThrowIfFailed(cudaError_t code, const char* call, const char* file, int line) {
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();
  if (code == cudaErrorMemoryAllocation) throw OutOfMemory("out of device memory in " + Where(call, file, line));
  const std::string message = std::string("CUDA error ") + cudaGetErrorName(code) + " (" + cudaGetErrorString(code) +
                              ") in " + Where(call, file, line);
  if (!IsSticky(code)) throw DeviceRefusal(message);
  throw CudaError(message, static_cast<int>(code));
}

void ThrowIfFailed(cublasStatus_t code, const char* call, const char* file, int line) {
  if (code == CUBLAS_STATUS_SUCCESS) return;
  if (code == CUBLAS_STATUS_ALLOC_FAILED) throw OutOfMemory("out of device memory in " + Where(call, file, line));
  throw CudaError(std::string("cuBLAS error ") + cublasGetStatusName(code) + " in " + Where(call, file, line),
                  static_cast<int>(code));
}

}  // namespace stoch::cuda
