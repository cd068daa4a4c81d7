// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/sc_quantize.h"

#include <algorithm>

#include "kernels/math/elementary.h"
#include "kernels/math/number_formats.h"
#include "kernels/math/quantize.h"

namespace stoch::cpu {

ScScopes ScopesOf(const ScOperator& op, ScOperand side, int64_t batch, int64_t batch_rows) {
  switch (op.config.granularity) {
    case ScGranularity::kPerTensor: return {batch * batch_rows, batch * batch_rows};
    case ScGranularity::kPerHead: return {batch_rows, batch_rows};
    case ScGranularity::kPerRow: break;
  }
  return {batch_rows, side == ScOperand::kA ? op.config.group_a : op.config.group_b};
}

ScChunks::ScChunks(const ScOperator& op, int64_t dims) : cols(dims) {
  size = op.config.chunk_d > 0 ? std::min(op.config.chunk_d, dims) : dims;
  count = size > 0 ? (dims + size - 1) / size : 0;
}

ScQuantizer::ScQuantizer(ThreadPool& pool, const Simd& simd, const ScOperator& op, const ScChunks& chunks,
                         const ScScopes& scopes, int64_t rows, const RowReader& reader)
    : simd_(simd), op_(op), chunks_(chunks), scopes_(scopes) {
  if (scopes.group == 1) return;
  std::vector<Extremes> of_rows(static_cast<size_t>(rows * chunks.count));
  pool.ParallelFor(rows, [&](int64_t row, int) {
    std::vector<float> scratch(static_cast<size_t>(chunks.cols));
    const float* x = reader(row, scratch.data());
    for (int64_t c = 0; c < chunks.count; ++c) {
      of_rows[static_cast<size_t>(row * chunks.count + c)] = Observe(x + chunks.begin(c), chunks.dims(c));
    }
  });
  shared_.resize(static_cast<size_t>((scopes.of(rows - 1) + 1) * chunks.count));
  for (int64_t row = 0; row < rows; ++row) {
    const bool first = row == 0 || scopes.of(row) != scopes.of(row - 1);
    for (int64_t c = 0; c < chunks.count; ++c) {
      Extremes& scope = shared_[static_cast<size_t>(scopes.of(row) * chunks.count + c)];
      const Extremes& own = of_rows[static_cast<size_t>(row * chunks.count + c)];
      if (first) {
        scope = own;
      } else {
        Merge(scope, own);
      }
    }
  }
}

ScQuantizer::Extremes ScQuantizer::Observe(const float* x, int64_t n) const {
  Extremes result;
  result.max_abs_bits = simd_.max_abs_bits(x, n);
  if (op_.code != ScCode::kAsymmetric) return result;
  const auto [min, max] = std::minmax_element(x, x + n);
  result.min = *min;
  result.max = *max;
  return result;
}

void ScQuantizer::Merge(Extremes& into, const Extremes& other) {
  into.max_abs_bits = std::max(into.max_abs_bits, other.max_abs_bits);
  into.min = std::min(into.min, other.min);
  into.max = std::max(into.max, other.max);
}

bool ScQuantizer::Quantize(int64_t row, const float* x, const Row& out) const {
  bool finite = true;
  for (int64_t c = 0; c < chunks_.count; ++c) {
    const float* values = x + chunks_.begin(c);
    const int64_t n = chunks_.dims(c);
    const Extremes extremes =
        shared_.empty() ? Observe(values, n) : shared_[static_cast<size_t>(scopes_.of(row) * chunks_.count + c)];
    finite = QuantizeChunk(values, n, extremes, out, c) && finite;
  }
  return finite;
}

bool ScQuantizer::QuantizeChunk(const float* x, int64_t n, const Extremes& extremes, const Row& out,
                                int64_t chunk) const {
  uint8_t* codes = out.codes + chunks_.begin(chunk);
  const bool finite = IsFinite(BitsToFloat(extremes.max_abs_bits));
  if (!finite) {
    std::fill(codes, codes + n, uint8_t{0});
    out.scales[chunk] = 0.0f;
    if (op_.code == ScCode::kAsymmetric) {
      *out.zero = 0.0f;
      *out.sum = 0;
    }
    return false;
  }
  if (op_.code == ScCode::kAsymmetric) {
    const float scale = UnipolarScale(extremes.min, extremes.max, op_.q_max);
    const float zero = UnipolarZero(extremes.min, scale, op_.q_max);
    int32_t sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      codes[i] = UnipolarCode(x[i], scale, zero, op_.q_max);
      sum += codes[i];
    }
    out.scales[chunk] = scale;
    *out.zero = zero;
    *out.sum = sum;
    return true;
  }
  out.scales[chunk] = ScaleOf(BitsToFloat(extremes.max_abs_bits));
  MakeCodes(x, n, out.scales[chunk], codes);
  return true;
}

float ScQuantizer::ScaleOf(float max_abs) const {
  if (op_.config.arith == ScArith::kFp8E4m3) return E4m3Scale(max_abs);
  if (op_.config.arith == ScArith::kMxInt8) return MxScale(max_abs);
  return BipolarScale(max_abs, op_.q_max, op_.scale_floor);
}

void ScQuantizer::MakeCodes(const float* x, int64_t n, float scale, uint8_t* codes) const {
  if (op_.code == ScCode::kSignMagnitude) return simd_.quantize(x, n, scale, op_.q_max, codes);
  if (op_.config.arith == ScArith::kFp8E4m3) {
    for (int64_t i = 0; i < n; ++i) codes[i] = E4m3Code(x[i] / scale);
    return;
  }
  for (int64_t i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(BipolarLevel(x[i], scale, op_.q_max) + op_.q_max);
}

}  // namespace stoch::cpu
