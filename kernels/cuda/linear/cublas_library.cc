// SPDX-License-Identifier: Apache-2.0
// The cuBLAS functions that this program calls. Each loads libcublas at its first call, so one build also runs where
// CUDA's libraries are not installed: on CPUs, and on GPUs in SC and fp32. The functions have cuBLAS's own names, so
// that callers need only cublas_v2.h. Their visibility is hidden, so that they do not shadow a cuBLAS that the process
// loads otherwise.
#include <cuComplex.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <dlfcn.h>
#include <driver_types.h>
#include <library_types.h>

#include <string>

#include "kernels/base/error.h"
#pragma GCC visibility push(hidden)
#include <cublas_v2.h>
#pragma GCC visibility pop

namespace stoch::cuda {
namespace {

std::string LibraryName() { return "libcublas.so." + std::to_string(CUBLAS_VER_MAJOR); }

void* OpenLibrary() {
  // The second folder is for toolkits outside the loader's path, such as those of NVIDIA's installer.
  for (const std::string& folder : {std::string(), std::string("/usr/local/cuda/lib64/")}) {
    void* handle = dlopen((folder + LibraryName()).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) return handle;
  }
  throw InvalidInput("fp16 on a GPU: " + LibraryName() +
                     " was not found (install CUDA's libraries, or name its folder in LD_LIBRARY_PATH)");
}

template <typename F>
F Find(F /*own*/, const char* name) {
  static void* const library = OpenLibrary();
  void* found = dlsym(library, name);
  if (found == nullptr) throw InvalidInput(LibraryName() + " has no " + name);
  return reinterpret_cast<F>(found);
}

}  // namespace
}  // namespace stoch::cuda

using stoch::cuda::Find;

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  static const auto found = Find(&cublasCreate_v2, "cublasCreate_v2");
  return found(handle);
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  static const auto found = Find(&cublasDestroy_v2, "cublasDestroy_v2");
  return found(handle);
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  static const auto found = Find(&cublasSetStream_v2, "cublasSetStream_v2");
  return found(handle, stream);
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, size_t bytes) {
  static const auto found = Find(&cublasSetWorkspace_v2, "cublasSetWorkspace_v2");
  return found(handle, workspace, bytes);
}

const char* cublasGetStatusName(cublasStatus_t status) {
  static const auto found = Find(&cublasGetStatusName, "cublasGetStatusName");
  return found(status);
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                            const void* alpha, const void* a, cudaDataType type_a, int lda, const void* b,
                            cudaDataType type_b, int ldb, const void* beta, void* c, cudaDataType type_c, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algorithm) {
  static const auto found =
      Find<cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*,
                              const void*, cudaDataType, int, const void*, cudaDataType, int, const void*, void*,
                              cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t)>(&cublasGemmEx, "cublasGemmEx");
  return found(handle, op_a, op_b, m, n, k, alpha, a, type_a, lda, b, type_b, ldb, beta, c, type_c, ldc, compute,
               algorithm);
}

}  // extern "C"
