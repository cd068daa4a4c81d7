// SPDX-License-Identifier: Apache-2.0
#include "loader/checkpoint/rotary_rows.h"

#include "kernels/base/check.h"
#include "loader/checkpoint/quantized/decoders.h"

namespace stoch {

RotaryRows::RotaryRows(const WeightSource& source, int64_t head_dim, int64_t rotary_dim)
    : source_(source), head_dim_(head_dim), rotary_dim_(rotary_dim) {
  STOCH_CHECK(!source.generated() && source.rows % head_dim == 0 && head_dim % 2 == 0 && rotary_dim % 2 == 0);
}

int64_t RotaryRows::StoredRow(int64_t row) const {
  const int64_t half = head_dim_ / 2, turned = rotary_dim_ / 2;
  const int64_t within = row % head_dim_;
  const int64_t side = within / half, i = within % half;
  const int64_t stored = i < turned ? side * turned + i : rotary_dim_ + side * (half - turned) + (i - turned);
  return row - within + stored;
}

void RotaryRows::Decode(int64_t first, int64_t count, float* out) const {
  const int64_t cols = source_.cols;
  for (int64_t row = first / cols; count > 0; ++row, count -= cols, out += cols) {
    const int64_t begin = StoredRow(row) * cols;
    if (source_.decoder != nullptr) {
      source_.decoder->Decode(source_.first + begin, cols, out);
      continue;
    }
    const quantized::StoredFloats stored{static_cast<const std::byte*>(source_.host), source_.dtype};
    for (int64_t i = 0; i < cols; ++i) out[i] = stored[begin + i];
  }
}

int64_t RotaryRows::StoredBytes(int64_t count) const {
  if (source_.decoder != nullptr) return source_.decoder->StoredBytes(count);
  return count * static_cast<int64_t>(DTypeSize(source_.dtype));
}

}  // namespace stoch
