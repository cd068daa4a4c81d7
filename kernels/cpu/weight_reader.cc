#include "kernels/cpu/weight_reader.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "kernels/math/elementary.h"

namespace stoch::cpu {

const float* ReadRow(const Simd& simd, const WeightSource& source, int64_t row, float* scratch) {
  const int64_t begin = row * source.cols;
  if (source.host != nullptr) {
    const char* address = static_cast<const char*>(source.host) + begin * static_cast<int64_t>(DTypeSize(source.dtype));
    if (source.dtype == DType::kF32 && reinterpret_cast<uintptr_t>(address) % alignof(float) == 0) {
      return reinterpret_cast<const float*>(address);
    }
    simd.load(address, source.dtype, source.cols, scratch);
  } else if (source.stddev == 0.0f) {
    std::fill(scratch, scratch + source.cols, source.constant);
  } else {
    simd.random(source.seed, source.stream, static_cast<uint64_t>(source.first + begin), source.cols, source.stddev,
                scratch);
  }
  return scratch;
}

void CheckParts(std::span<const WeightSource> parts) {
  if (parts.empty()) throw InvalidInput("a weight needs at least one tensor");
  for (const WeightSource& part : parts) {
    if (part.rows < 1 || part.cols < 1 || part.cols != parts.front().cols) {
      throw InvalidInput("tensor " + part.name + ": shape [" + std::to_string(part.rows) + ", " +
                         std::to_string(part.cols) + "] cannot be stacked with columns " +
                         std::to_string(parts.front().cols));
    }
    if (part.host != nullptr && part.dtype != DType::kF32 && part.dtype != DType::kF16 && part.dtype != DType::kBF16) {
      throw InvalidInput("tensor " + part.name + ": type " + std::string(DTypeName(part.dtype)) +
                         " holds no weights, expected F32, F16 or BF16");
    }
  }
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

void StackedRows::RejectRow(const Simd& simd, int64_t row) const {
  const WeightSource& source = parts_[part(row)];
  std::vector<float> scratch(static_cast<size_t>(source.cols));
  const float* x = Read(simd, row, scratch.data());
  const float* bad = std::find_if(x, x + source.cols, [](float value) { return !IsFinite(value); });
  STOCH_CHECK(bad != x + source.cols);
  throw InvalidInput("tensor " + source.name + ": NaN or infinity at (" + std::to_string(row_in_part(row)) + ", " +
                     std::to_string(bad - x) + ")");
}

}  // namespace stoch::cpu
