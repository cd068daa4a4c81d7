// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/weights/uploader.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/base/parallel_for.h"
#include "kernels/base/usable_threads.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/device_guard.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/weights/decode.h"
#include "kernels/cuda/weights/pack.h"

namespace stoch::cuda {
namespace {

constexpr int64_t kSlabBytes = int64_t{32} << 20;
constexpr int64_t kDecodedSlabBytes = int64_t{64} << 20;  // large, because each slab starts its threads again
constexpr int64_t kDecodeThreads = 16;                    // more threads take longer to start than they save
constexpr int64_t kCopyThreads = 8;                       // enough threads to keep up with PCIe
constexpr int64_t kMinBytesPerThread = int64_t{1} << 20;
constexpr int64_t kDecodedBytes = sizeof(float);  // bytes of a decoded number

// Number of threads for a copy of `bytes` bytes: one for every kMinBytesPerThread, but at least 1 and at most `most`
// and UsableThreads().
int64_t ThreadsFor(int64_t bytes, int64_t most) {
  return std::clamp<int64_t>(bytes / kMinBytesPerThread, 1, std::min<int64_t>(most, UsableThreads()));
}

// Calls work(begin, end) for parts of [0, count), one on each thread.
template <typename Work>
void InParts(int64_t count, int64_t threads, const Work& work) {
  const int64_t part = (count + threads - 1) / threads;
  ParallelFor((count + part - 1) / part, static_cast<int>(threads),
              [&](int64_t i) { work(i * part, std::min(count, (i + 1) * part)); });
}

void ParallelCopy(char* to, const char* from, int64_t bytes) {
  InParts(bytes, ThreadsFor(bytes, kCopyThreads),
          [&](int64_t begin, int64_t end) { std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin)); });
}

// Decodes `count` elements from element `first` of the part on, by several threads, because decoding is slower than
// PCIe. A thread takes whole rows.
void ParallelDecode(const WeightSource& part, int64_t first, int64_t count, float* to) {
  InParts(count / part.cols, ThreadsFor(count * kDecodedBytes, kDecodeThreads), [&](int64_t begin, int64_t end) {
    part.decoder->Decode(part.first + first + begin * part.cols, (end - begin) * part.cols, to + begin * part.cols);
  });
}

// Bytes of `rows` rows of codes with their scales and zero points, as CopyCodes orders them.
int64_t CodeBytes(const WeightCodes& codes, int64_t rows) {
  const int64_t stored = codes.form == WeightCodes::Form::kE4m3 ? codes.cols : codes.cols / 2;
  return rows * (2 * codes.blocks() * static_cast<int64_t>(sizeof(float)) + stored);
}

// Writes three arrays to `to`, one after another: scales, zero points and codes of rows [first, first + rows).
void CopyCodes(const WeightDecoder& decoder, int64_t first, int64_t rows, char* to) {
  const WeightCodes& codes = *decoder.codes();
  auto* const scales = reinterpret_cast<float*>(to);
  float* const zeros = scales + rows * codes.blocks();
  char* const stored = reinterpret_cast<char*>(zeros + rows * codes.blocks());
  const auto* const data = reinterpret_cast<const char*>(codes.data);
  InParts(rows, ThreadsFor(CodeBytes(codes, rows), kCopyThreads), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      decoder.Scales(first + row, scales + row * codes.blocks(), zeros + row * codes.blocks());
    }
    if (codes.form == WeightCodes::Form::kE4m3) {
      std::memcpy(stored + begin * codes.cols, data + (first + begin) * codes.cols,
                  static_cast<size_t>((end - begin) * codes.cols));
      return;
    }
    constexpr int64_t kWord = sizeof(uint32_t);
    for (int64_t eight = 0; eight < codes.cols / 8; ++eight) {
      std::memcpy(stored + (eight * rows + begin) * kWord, data + (eight * codes.rows + first + begin) * kWord,
                  static_cast<size_t>((end - begin) * kWord));
    }
  });
}

// The codes of a part that the device decodes; null for other parts.
const WeightCodes* CodesOf(const WeightSource& part) {
  return part.decoder == nullptr ? nullptr : part.decoder->codes();
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

Uploader::Stage& Uploader::NextStage(size_t sent, size_t bytes) {
  Stage& stage = stages_[static_cast<size_t>(next_)];
  next_ = 1 - next_;
  if (stage.copied == nullptr) {
    STOCH_CUDA(cudaEventCreateWithFlags(&stage.copied, cudaEventDisableTiming));
    STOCH_CUDA(cudaEventCreateWithFlags(&stage.consumed, cudaEventDisableTiming));
  }
  if (stage.used) STOCH_CUDA(cudaEventSynchronize(stage.copied));
  if (stage.pinned.bytes() < sent) stage.pinned = AllocatePinned(sent);
  if (stage.device.bytes() < bytes) {
    if (stage.used) STOCH_CUDA(cudaEventSynchronize(stage.consumed));
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
  if (const WeightCodes* codes = CodesOf(part); codes != nullptr) {
    const int64_t rows = count / codes->cols;
    CopyCodes(*part.decoder, (part.first + first) / codes->cols, rows, pinned);
    auto* const numbers = static_cast<float*>(stage.device.data());
    const float* scales = numbers + count;
    const float* zeros = scales + rows * codes->blocks();
    Send(stage, CodeBytes(*codes, rows), count * kDecodedBytes);
    LaunchDecodeCodes(ctx_, *codes,
                      {scales, zeros, reinterpret_cast<const uint32_t*>(zeros + rows * codes->blocks()), rows},
                      numbers);
    return;
  }
  if (part.decoder != nullptr) {
    ParallelDecode(part, first, count, reinterpret_cast<float*>(pinned));
  } else {
    ParallelCopy(pinned, static_cast<const char*>(part.host) + first * size, count * size);
  }
  Send(stage, count * size, 0);
}

void Uploader::Send(Stage& stage, int64_t bytes, int64_t offset) {
  if (stage.used) STOCH_CUDA(cudaStreamWaitEvent(ctx_.copy_stream, stage.consumed));
  STOCH_CUDA(cudaMemcpyAsync(static_cast<char*>(stage.device.data()) + offset, stage.pinned.data(),
                             static_cast<size_t>(bytes), cudaMemcpyHostToDevice, ctx_.copy_stream));
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
      const int64_t most_rows = std::min(slab_rows, part.rows);
      const WeightCodes* codes = CodesOf(part);
      const auto bytes = static_cast<size_t>(most_rows * row_bytes);
      const auto code_bytes = static_cast<size_t>(codes == nullptr ? 0 : CodeBytes(*codes, most_rows));
      Stage& stage = NextStage(codes == nullptr ? bytes : code_bytes, bytes + code_bytes);
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
