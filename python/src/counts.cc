// SPDX-License-Identifier: Apache-2.0
#include "python/src/counts.h"

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/error.h"

namespace stoch::python {
namespace {

// Codes of `rows` dense rows of one scope of operands, [rows, cols].
std::vector<uint8_t> CodesOf(Backend& cpu, const float* values, int64_t rows, int64_t cols, const ScConfig& config) {
  WeightSource source;
  source.name = "operand";
  source.rows = rows;
  source.cols = cols;
  source.host = values;
  const LinearSpec spec{Precision::kSc, MakeScOperator(config)};
  const auto weight = cpu.MakeLinear(cpu.devices().front(), {&source, 1}, spec);
  return cpu.Unpack(*weight).codes;
}

// Codes of one side. A linear's matrix is side b, so its groups are those of b; a head is a tensor of its own.
std::vector<uint8_t> CodesOfSide(Backend& cpu, const TensorView& view, const ScConfig& config, int64_t group) {
  const int64_t batch = view.rank == 3 ? view.dim(0) : 1;
  const int64_t rows = view.dim(view.rank - 2);
  const int64_t cols = view.dim(view.rank - 1);
  ScConfig side = config;
  side.group_a = 1;
  side.group_b = group;
  if (side.granularity == ScGranularity::kPerTensor) {
    return CodesOf(cpu, view.ptr<const float>(), batch * rows, cols, side);
  }
  if (side.granularity == ScGranularity::kPerHead) side.granularity = ScGranularity::kPerTensor;
  std::vector<uint8_t> codes;
  for (int64_t i = 0; i < batch; ++i) {
    const std::vector<uint8_t> slice = CodesOf(cpu, view.ptr<const float>() + i * rows * cols, rows, cols, side);
    codes.insert(codes.end(), slice.begin(), slice.end());
  }
  return codes;
}

int32_t OneProduct(const ScOperator& op, int mask, uint8_t a, uint8_t b) {
  if (op.code != ScCode::kSignMagnitude) return op.count(mask, a, b);
  const int count = op.count(mask, a & 127, b & 127);
  return ((a ^ b) & 128) != 0 ? -count : count;
}

}  // namespace

void SumCounts(Backend& cpu, const TensorView& a, const TensorView& b, const ScOperator& op, std::span<int32_t> sums) {
  const int64_t batch = a.rank == 3 ? a.dim(0) : 1;
  const int64_t n = a.dim(a.rank - 2);
  const int64_t m = b.dim(b.rank - 2);
  const int64_t d = a.dim(a.rank - 1);
  if (a.rank != b.rank || b.dim(b.rank - 1) != d || (b.rank == 3 && b.dim(0) != batch)) {
    throw InvalidInput("sc_matmul: a " + Describe(a) + " and b " + Describe(b) + " do not fit a @ b^T");
  }
  if (op.config.arith == ScArith::kFp8E4m3) {
    throw InvalidInput("counts: arith = fp8_e4m3 has sums beyond 32 bits: allowed is another arith");
  }
  const int64_t size = op.config.chunk_d > 0 ? op.config.chunk_d : std::max<int64_t>(d, 1);
  const int64_t chunks = (d + size - 1) / size;
  STOCH_CHECK(static_cast<int64_t>(sums.size()) == batch * n * chunks * m);
  if (sums.empty()) return;
  const std::vector<uint8_t> codes_a = CodesOfSide(cpu, a, op.config, op.config.group_a);
  const std::vector<uint8_t> codes_b = CodesOfSide(cpu, b, op.config, op.config.group_b);
  size_t at = 0;
  for (int64_t i = 0; i < batch * n; ++i) {
    const uint8_t* left = codes_a.data() + i * d;
    for (int64_t c = 0; c < chunks; ++c) {
      const int64_t begin = c * size;
      const int64_t end = std::min(begin + size, d);
      for (int64_t j = 0; j < m; ++j) {
        const uint8_t* right = codes_b.data() + (i / n * m + j) * d;
        int32_t sum = 0;
        for (int64_t k = begin; k < end; ++k) {
          sum += OneProduct(op, static_cast<int>((k - begin) & (op.masks - 1)), left[k], right[k]);
        }
        sums[at++] = sum;
      }
    }
  }
}

}  // namespace stoch::python
