#include "kernels/cpu/scores.h"

#include <cstring>

#include "kernels/cpu/pass.h"
#include "kernels/cpu/views.h"

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

void CheckLogits(std::string_view op, const TensorView& logits, int64_t count) {
  RequireView(op, "logits", logits, logits.device, DType::kF32, {count, kAnySize});
  if (logits.dim(1) < 1) Reject(op, "logits have no columns");
}

}  // namespace

void GatherOutputRows(const Pass& pass, const TensorView& x, const TensorView& out) {
  const PassLayout& layout = LayoutOf(pass);
  const int64_t n = x.rank == 2 ? x.dim(1) : kAnySize;
  RequireView("gather", "x", x, pass.device(), DType::kF32, {static_cast<int64_t>(layout.ids.size()), kAnySize});
  RequireView("gather", "out", out, pass.device(), DType::kF32, {static_cast<int64_t>(layout.output_rows.size()), n});
  RequireDisjoint("gather", out, x);
  for (size_t i = 0; i < layout.output_rows.size(); ++i) {
    memcpy(out.ptr<float>() + static_cast<int64_t>(i) * out.step(0),
           x.ptr<const float>() + layout.output_rows[i] * x.step(0), static_cast<size_t>(n) * sizeof(float));
  }
}

void Argmax(Context& context, const TensorView& logits, const TensorView& ids) {
  CheckLogits("argmax", logits, logits.dim(0));
  RequireView("argmax", "ids", ids, logits.device, DType::kI32, {logits.dim(0)});
  context.pool.ParallelFor(logits.dim(0), [&](int64_t i, int) {
    ids.ptr<int32_t>()[i * ids.step(0)] = ArgmaxOf(logits.ptr<const float>() + i * logits.step(0), logits.dim(1));
  });
}

}  // namespace stoch::cpu
