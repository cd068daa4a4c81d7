// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/weight_reader.h"

#include <algorithm>

namespace stoch::cpu {

const float* ReadRow(const Simd& simd, const WeightSource& source, int64_t row, float* scratch) {
  const int64_t begin = row * source.cols;
  if (source.host != nullptr) {
    const char* address = static_cast<const char*>(source.host) + begin * static_cast<int64_t>(DTypeSize(source.dtype));
    if (source.dtype == DType::kF32 && reinterpret_cast<uintptr_t>(address) % alignof(float) == 0) {
      return reinterpret_cast<const float*>(address);
    }
    simd.load(address, source.dtype, source.cols, scratch);
  } else if (source.decoder != nullptr) {
    source.decoder->Decode(source.first + begin, source.cols, scratch);
  } else if (source.stddev == 0.0f) {
    std::fill(scratch, scratch + source.cols, source.constant);
  } else {
    simd.random(source.seed, source.stream, static_cast<uint64_t>(source.first + begin), source.cols, source.stddev,
                scratch);
  }
  return scratch;
}

StackedRows::StackedRows(std::span<const WeightSource> parts) : parts_(parts) {
  int64_t end = 0;
  for (const WeightSource& part : parts) ends_.push_back(end += part.rows);
}

size_t StackedRows::part(int64_t row) const {
  return static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), row) - ends_.begin());
}

const float* StackedRows::Read(const Simd& simd, int64_t row, float* scratch) const {
  return ReadRow(simd, parts_[part(row)], row_in_part(row), scratch);
}

}  // namespace stoch::cpu
