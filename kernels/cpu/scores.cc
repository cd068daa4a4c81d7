// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/scores.h"

#include <cstring>

#include "kernels/call_check.h"
#include "kernels/cpu/pass.h"

namespace stoch::cpu {
namespace {

// The lowest index of the largest value; 0 if there is no number at all.
int32_t ArgmaxOf(const float* x, int64_t n) {
  int64_t best = 0;
  for (int64_t i = 1; i < n; ++i) {
    if (x[i] > x[best]) best = i;
  }
  return static_cast<int32_t>(best);
}

}  // namespace

void SelectRows(const Pass& pass, const TensorView& x, const TensorView& out) {
  const PassLayout& layout = LayoutOf(pass);
  CheckSelectRows(pass, static_cast<int64_t>(layout.ids.size()), static_cast<int64_t>(layout.output_rows.size()), x,
                  out);
  for (size_t i = 0; i < layout.output_rows.size(); ++i) {
    memcpy(out.ptr<float>() + static_cast<int64_t>(i) * out.step(0),
           x.ptr<const float>() + layout.output_rows[i] * x.step(0), static_cast<size_t>(x.dim(1)) * sizeof(float));
  }
}

void Argmax(Context& context, const TensorView& logits, const TensorView& ids) {
  CheckArgmax(logits, ids);
  context.pool.ParallelFor(logits.dim(0), [&](int64_t i, int) {
    ids.ptr<int32_t>()[i * ids.step(0)] = ArgmaxOf(logits.ptr<const float>() + i * logits.step(0), logits.dim(1));
  });
}

}  // namespace stoch::cpu
