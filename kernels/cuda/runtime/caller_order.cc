// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/caller_order.h"

#include "kernels/base/error.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/device_guard.h"
#include "kernels/cuda/base/memory.h"

namespace stoch::cuda {

CallerOrder::CallerOrder(DeviceContext& context) : context_(context), flag_(AllocatePinned(sizeof(int))) {
  for (cudaEvent_t* event : {&entered_, &left_, &seen_}) {
    STOCH_CUDA(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  }
}

CallerOrder::~CallerOrder() {
  try {
    DeviceGuard guard(context_.device);
    // The copy to `flag_` may still be in flight.
    if (context_.stream != nullptr) (void)cudaStreamSynchronize(context_.stream);
    for (cudaEvent_t event : {entered_, left_, seen_}) {
      if (event != nullptr) (void)cudaEventDestroy(event);
    }
  } catch (const DeviceError&) {
  }
}

bool CallerOrder::IsCaptured() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  STOCH_CUDA(cudaStreamIsCapturing(context_.stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

void CallerOrder::RunAfter(cudaStream_t stream) {
  STOCH_CUDA(cudaEventRecord(entered_, stream));
  STOCH_CUDA(cudaStreamWaitEvent(context_.stream, entered_, 0));
}

void CallerOrder::RunBefore(cudaStream_t stream) {
  if (!IsCaptured()) {
    const int* flag = context_.Reporter({-1, "sc_matmul"}).flag;
    STOCH_CUDA(cudaMemcpyAsync(flag_.data(), flag, sizeof(int), cudaMemcpyDeviceToHost, context_.stream));
    STOCH_CUDA(cudaEventRecord(seen_, context_.stream));
    copied_ = true;
  }
  STOCH_CUDA(cudaEventRecord(left_, context_.stream));
  STOCH_CUDA(cudaStreamWaitEvent(stream, left_, 0));
}

std::string CallerOrder::PollFinite() {
  if (!copied_ || IsCaptured()) return {};
  // Another stream of this process may be in capture; relaxed mode keeps this query out of that capture.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  STOCH_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
  const cudaError_t ended = cudaEventQuery(seen_);
  STOCH_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
  if (ended == cudaErrorNotReady) return {};
  STOCH_CUDA(ended);
  copied_ = false;
  if (*static_cast<const int*>(flag_.data()) == 0) return {};
  try {
    context_.CheckFinite();
  } catch (const InvalidInput& met) {
    return met.what();
  }
  return {};
}

}  // namespace stoch::cuda
