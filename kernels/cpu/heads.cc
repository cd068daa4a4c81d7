// SPDX-License-Identifier: Apache-2.0
// Changes of the results of linears in place, as some families have them: biases, norms of the heads of q and k, GELU, caps of logits.
#include "kernels/cpu/ops.h"
#include "kernels/cpu/rms_norm.h"
#include "kernels/family_check.h"
#include "kernels/math/gated.h"

namespace stoch::cpu {

void AddBias(Context& context, const AddBiasCall& call) {
  CheckAddBias(call);
  const float* bias = call.bias.ptr<const float>();
  const int64_t cols = call.x.dim(1);
  context.pool.ParallelFor(call.x.dim(0), [&](int64_t row, int) {
    float* x = call.x.ptr<float>() + row * call.x.step(0);
    for (int64_t i = 0; i < cols; ++i) x[i] = x[i] + bias[i];
  });
}

void NormHeads(Context& context, const NormHeadsCall& call) {
  CheckNormHeads(call);
  const auto norm = [&](const TensorView& x, const TensorView& weight, int64_t row) {
    float* head = x.ptr<float>() + row * x.step(0);
    for (int64_t i = 0; i < x.dim(1); i += call.head_dim) {
      RmsNorm(context.simd, head + i, weight.ptr<const float>(), call.eps, call.head_dim, head + i, call.table);
    }
  };
  context.pool.ParallelFor(call.q.dim(0), [&](int64_t row, int) {
    norm(call.q, call.q_weight, row);
    norm(call.k, call.k_weight, row);
  });
}

void GeluMul(Context& context, const GeluMulCall& call) {
  CheckGeluMul(call);
  context.pool.ParallelFor(call.x.dim(0), [&](int64_t row, int) {
    float* x = call.x.ptr<float>() + row * call.x.step(0);
    const float* x2 = call.x2.ptr<const float>() + row * call.x2.step(0);
    for (int64_t i = 0; i < call.x.dim(1); ++i) x[i] = GeluTanh(x[i]) * x2[i];
  });
}

void SoftCap(Context& context, const SoftCapCall& call) {
  CheckSoftCap(call);
  context.pool.ParallelFor(call.x.dim(0), [&](int64_t row, int) {
    float* x = call.x.ptr<float>() + row * call.x.step(0);
    for (int64_t i = 0; i < call.x.dim(1); ++i) x[i] = stoch::SoftCap(x[i], call.cap);
  });
}

}  // namespace stoch::cpu
