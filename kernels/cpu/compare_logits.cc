// SPDX-License-Identifier: Apache-2.0
// Rows of logits against base rows: the readable reference of kernels/cuda/sampling/compare.cu.
#include <algorithm>

#include "kernels/call_check.h"
#include "kernels/cpu/ops.h"
#include "kernels/math/divergence.h"
#include "kernels/math/sampling.h"

namespace stoch::cpu {
namespace {

struct RowSum {
  int32_t top = -1;  // the likeliest token, -1 where a logit is not finite
  LogSum sum;
};

RowSum SumRow(const Simd& simd, const float* row, int64_t vocab_size) {
  uint64_t first = 0;
  bool finite = true;
  for (int64_t i = 0; i < vocab_size; ++i) {
    first = std::max(first, RankKey(row[i], static_cast<int32_t>(i)));
    finite = finite && IsFinite(row[i]);
  }
  RowSum result;
  if (!finite) return result;
  const float max = RankLogit(first);
  result.top = RankId(first);
  result.sum = {static_cast<double>(max), Log(static_cast<double>(simd.exp_sum(row, vocab_size, max, nullptr)))};
  return result;
}

LogitComparison CompareRow(const Simd& simd, const float* base, const float* row, int64_t vocab_size, int32_t target) {
  const RowSum base_sum = SumRow(simd, base, vocab_size);
  const RowSum own = SumRow(simd, row, vocab_size);
  const double nan = BitsToDouble(kComparisonNan);
  LogitComparison result{nan, nan, nan, own.top, base_sum.top};
  if (own.top < 0 || base_sum.top < 0) return result;
  result.kld = simd.divergence(base, base_sum.sum, row, own.sum, vocab_size);
  if (target < 0 || target >= vocab_size) return result;
  result.logprob = own.sum.LogProb(row[target]);
  result.base_logprob = base_sum.sum.LogProb(base[target]);
  return result;
}

}  // namespace

void CompareLogits(Context& context, const CompareLogitsCall& call) {
  CheckCompareLogits(call);
  context.pool.ParallelFor(call.logits.dim(0), [&](int64_t i, int) {
    const float* base = call.base.ptr<const float>() + i * call.base.step(0);
    const float* row = call.logits.ptr<const float>() + i * call.logits.step(0);
    call.out.ptr<LogitComparison>()[i] =
        CompareRow(context.simd, base, row, call.logits.dim(1), call.targets.ptr<const int32_t>()[i]);
  });
}

}  // namespace stoch::cpu
