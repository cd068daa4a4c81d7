// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/all_gather.h"

#include <cstring>

#include "kernels/all_gather_check.h"
#include "kernels/cpu/linear.h"

namespace stoch::cpu {

void AllGather(Context& context, const AllGatherCall& call) {
  const GatherPlan plan = CheckAllGather(call);
  const bool two = HasSecondOperand(call);
  for (const TensorView& to : call.to) {
    for (size_t i = 0; i < call.from.size(); ++i) {
      const TensorView& from = call.from[i];
      const int64_t cols = plan.cols_of(i);
      if (cols == 0 || IsInPlace(call, plan, i, to)) continue;
      context.pool.ParallelFor(plan.rows, [&](int64_t row, int) {
        const float* x = from.ptr<const float>() + row * from.step(0);
        float* out = to.ptr<float>() + row * to.step(0) + plan.begin[i];
        if (two) {
          const float* x2 = call.from2[i].ptr<const float>() + row * call.from2[i].step(0);
          SiluMul(context.simd, call.table, x, x2, cols, out);
        } else {
          memcpy(out, x, static_cast<size_t>(cols) * sizeof(float));
        }
      });
    }
  }
}

}  // namespace stoch::cpu
