// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/weights/uploader.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/usable_threads.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/device_guard.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/weights/pack.h"

namespace stoch::cuda {
namespace {

constexpr int64_t kSlabBytes = int64_t{32} << 20;
constexpr int64_t kDecodedSlabBytes = int64_t{64} << 20;  // starting threads takes a share of each
constexpr int64_t kDecodeThreads = 16;                    // more take longer to start than they save
// One core copies 5 to 10 GB/s out of the page cache; a few cores keep up with PCIe.
constexpr int64_t kCopyThreads = 4;
constexpr int64_t kMinBytesPerThread = int64_t{1} << 20;

void ParallelCopy(char* to, const char* from, int64_t bytes) {
  const int64_t cores = UsableThreads();
  const int64_t pieces = std::clamp<int64_t>(bytes / kMinBytesPerThread, 1, std::min(kCopyThreads, cores));
  const int64_t piece = (bytes + pieces - 1) / pieces;
  std::vector<std::jthread> threads;
  for (int64_t begin = piece; begin < bytes; begin += piece) {
    const size_t size = static_cast<size_t>(std::min(piece, bytes - begin));
    threads.emplace_back([=] { std::memcpy(to + begin, from + begin, size); });
  }
  std::memcpy(to, from, static_cast<size_t>(std::min(piece, bytes)));
}

// Decodes `count` elements from element `first` of the part on, whole rows per thread, on up to kDecodeThreads cores: decoding is slower
// than PCIe.
void ParallelDecode(const WeightSource& part, int64_t first, int64_t count, float* to) {
  const int64_t cores = UsableThreads();
  const int64_t rows = count / part.cols;
  const int64_t pieces =
      std::clamp<int64_t>(count * 4 / kMinBytesPerThread, 1, std::min({cores, rows, kDecodeThreads}));
  const int64_t piece = (rows + pieces - 1) / pieces * part.cols;
  const auto decode = [&](int64_t begin) {
    part.decoder->Decode(part.first + first + begin, std::min(piece, count - begin), to + begin);
  };
  std::vector<std::jthread> threads;
  for (int64_t begin = piece; begin < count; begin += piece) threads.emplace_back([&decode, begin] { decode(begin); });
  decode(0);
}

bool IsOnDevice(const void* data) {
  cudaPointerAttributes attributes{};
  STOCH_CUDA(cudaPointerGetAttributes(&attributes, data));
  return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
}

}  // namespace

Uploader::~Uploader() {
  for (Stage& stage : stages_) {
    if (stage.copied != nullptr) (void)cudaEventDestroy(stage.copied);
    if (stage.consumed != nullptr) (void)cudaEventDestroy(stage.consumed);
  }
}

Uploader::Stage& Uploader::NextStage(size_t bytes) {
  Stage& stage = stages_[static_cast<size_t>(next_)];
  next_ = 1 - next_;
  if (stage.copied == nullptr) {
    STOCH_CUDA(cudaEventCreateWithFlags(&stage.copied, cudaEventDisableTiming));
    STOCH_CUDA(cudaEventCreateWithFlags(&stage.consumed, cudaEventDisableTiming));
  }
  if (stage.used) STOCH_CUDA(cudaEventSynchronize(stage.copied));
  if (stage.device.bytes() < bytes) {
    if (stage.used) STOCH_CUDA(cudaEventSynchronize(stage.consumed));
    stage.pinned = AllocatePinned(bytes);
    stage.device = AllocateDevice(ctx_.device, bytes);
  }
  return stage;
}

void Uploader::Fill(Stage& stage, const WeightSource& part, int64_t first, int64_t count) {
  if (part.generated()) {
    LaunchGenerate(ctx_, part, first, count, stage.device.data());
    return;
  }
  const int64_t size = static_cast<int64_t>(DTypeSize(part.dtype));
  if (part.decoder == nullptr && IsOnDevice(part.host)) {
    // The source is memory of this device, owned by another library.
    STOCH_CUDA(cudaMemcpyAsync(stage.device.data(), static_cast<const char*>(part.host) + first * size,
                               static_cast<size_t>(count * size), cudaMemcpyDeviceToDevice, ctx_.stream));
    return;
  }
  char* pinned = static_cast<char*>(stage.pinned.data());
  if (part.decoder != nullptr) {
    ParallelDecode(part, first, count, reinterpret_cast<float*>(pinned));
  } else {
    ParallelCopy(pinned, static_cast<const char*>(part.host) + first * size, count * size);
  }
  if (stage.used) STOCH_CUDA(cudaStreamWaitEvent(ctx_.copy_stream, stage.consumed));
  STOCH_CUDA(cudaMemcpyAsync(stage.device.data(), pinned, static_cast<size_t>(count * size), cudaMemcpyHostToDevice,
                             ctx_.copy_stream));
  STOCH_CUDA(cudaEventRecord(stage.copied, ctx_.copy_stream));
  STOCH_CUDA(cudaStreamWaitEvent(ctx_.stream, stage.copied));
}

void Uploader::ForEachSlab(std::span<const WeightSource> parts, int64_t granule,
                           const std::function<void(const WeightSlab&)>& consume) {
  int64_t part_first = 0;
  for (const WeightSource& part : parts) {
    const DType dtype = part.type();
    STOCH_CHECK(dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16);
    STOCH_CHECK(part_first % granule == 0);
    const int64_t row_bytes = part.cols * static_cast<int64_t>(DTypeSize(dtype));
    const int64_t slab_bytes = part.decoder != nullptr ? kDecodedSlabBytes : kSlabBytes;
    const int64_t slab_rows = std::max<int64_t>(1, slab_bytes / (row_bytes * granule)) * granule;
    for (int64_t first = 0; first < part.rows; first += slab_rows) {
      const int64_t rows = std::min(slab_rows, part.rows - first);
      Stage& stage = NextStage(static_cast<size_t>(std::min(slab_rows, part.rows) * row_bytes));
      Fill(stage, part, first * part.cols, rows * part.cols);
      consume(WeightSlab{stage.device.data(), dtype, part_first + first, rows, part.cols});
      STOCH_CUDA(cudaEventRecord(stage.consumed, ctx_.stream));
      stage.used = true;
    }
    part_first += part.rows;
  }
}

void Uploader::Release() {
  STOCH_CUDA(cudaStreamSynchronize(ctx_.stream));
  for (Stage& stage : stages_) {
    stage.pinned = Buffer();
    stage.device = Buffer();
    stage.used = false;
  }
}

}  // namespace stoch::cuda
