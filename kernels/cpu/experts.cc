// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/experts.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/call_check.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/softmax.h"
#include "kernels/family_check.h"

namespace stoch::cpu {
namespace {

class CpuExperts final : public ExpertWeights {
 public:
  explicit CpuExperts(std::vector<std::unique_ptr<LinearWeight>> experts) : experts_(std::move(experts)) {}
  Device device() const override { return experts_.front()->device(); }
  int64_t count() const override { return static_cast<int64_t>(experts_.size()); }
  int64_t rows() const override { return experts_.front()->rows(); }
  int64_t cols() const override { return experts_.front()->cols(); }
  int64_t bytes() const override {
    int64_t bytes = 0;
    for (const auto& expert : experts_) bytes += expert->bytes();
    return bytes;
  }
  int64_t stream_bytes() const override { return experts_.front()->stream_bytes(); }
  const LinearWeight& at(int64_t expert) const { return *experts_[static_cast<size_t>(expert)]; }

 private:
  std::vector<std::unique_ptr<LinearWeight>> experts_;
};

// The slots of every expert, ascending.
std::vector<std::vector<int64_t>> SlotsByExpert(const ExpertLinearCall& call, int64_t experts) {
  std::vector<std::vector<int64_t>> slots(static_cast<size_t>(experts));
  const int32_t* chosen = call.chosen.ptr<const int32_t>();
  for (int64_t s = 0; s < call.chosen.numel(); ++s) {
    if (chosen[s] < 0 || chosen[s] >= experts) {
      Reject(call.site, "expert " + std::to_string(chosen[s]) + ", expected below " + std::to_string(experts));
    }
    slots[static_cast<size_t>(chosen[s])].push_back(s);
  }
  return slots;
}

// The top_k largest of p, in order; every one of them becomes negative.
void TakeLargest(float* p, int64_t experts, int64_t top_k, int32_t* chosen, float* weights) {
  for (int64_t rank = 0; rank < top_k; ++rank) {
    int64_t best = 0;
    for (int64_t e = 1; e < experts; ++e) {
      if (p[e] > p[best]) best = e;
    }
    chosen[rank] = static_cast<int32_t>(best);
    weights[rank] = p[best];
    p[best] = -1.0f;
  }
}

}  // namespace

std::unique_ptr<ExpertWeights> MakeExperts(std::vector<std::unique_ptr<LinearWeight>> experts) {
  return std::make_unique<CpuExperts>(std::move(experts));
}

void Route(Context& context, const RouteCall& call) {
  CheckRoute(call);
  if (call.product != nullptr) Linear(context, *call.product);
  const int64_t experts = call.logits.dim(1);
  const int64_t top_k = call.chosen.dim(1);
  context.pool.ParallelFor(call.logits.dim(0), [&](int64_t row, int) {
    const float* logits = call.logits.ptr<const float>() + row * call.logits.step(0);
    std::vector<float> p(logits, logits + experts);
    Softmax(context.simd, p.data(), experts);
    float* weights = call.weights.ptr<float>() + row * top_k;
    TakeLargest(p.data(), experts, top_k, call.chosen.ptr<int32_t>() + row * top_k, weights);
    if (!call.normalize) return;
    float sum = weights[0];
    for (int64_t i = 1; i < top_k; ++i) sum = sum + weights[i];
    for (int64_t i = 0; i < top_k; ++i) weights[i] = weights[i] / sum;
  });
}

void ExpertLinear(Context& context, const ExpertLinearCall& call) {
  CheckExpertLinear(call);
  if (call.chosen.numel() == 0) return;
  const int64_t cols = call.x.dim(1);
  const int64_t per_row = call.x.dim(0) == call.chosen.dim(0) ? call.chosen.dim(1) : 1;  // slots that share a row of x
  std::vector<float> f(static_cast<size_t>(call.x.dim(0) * cols));
  const RowPrologue prologue{call.prologue, call.x, call.x2, call.norm_weight, call.norm_eps, call.table};
  context.pool.ParallelFor(call.x.dim(0),
                           [&](int64_t i, int) { prologue.Apply(context.simd, i, f.data() + i * cols); });

  int64_t widest = 0;
  for (const TensorView& out : call.outs) widest = std::max(widest, out.dim(1));
  const auto slots = SlotsByExpert(call, call.weights.front()->count());
  std::vector<float> x, y;
  std::vector<uint64_t> fault_rows;
  for (size_t e = 0; e < slots.size(); ++e) {
    const auto count = static_cast<int64_t>(slots[e].size());
    if (count == 0) continue;
    x.resize(static_cast<size_t>(count * cols));
    fault_rows.clear();
    for (int64_t i = 0; i < count && !call.fault_rows.empty(); ++i) {
      fault_rows.push_back(call.fault_rows[static_cast<size_t>(slots[e][static_cast<size_t>(i)] / call.chosen.dim(1))]);
    }
    for (int64_t i = 0; i < count; ++i) {
      const float* row = f.data() + slots[e][static_cast<size_t>(i)] / per_row * cols;
      memcpy(x.data() + i * cols, row, static_cast<size_t>(cols) * sizeof(float));
    }
    for (size_t w = 0; w < call.weights.size(); ++w) {
      const LinearWeight& weight = static_cast<const CpuExperts&>(*call.weights[w]).at(static_cast<int64_t>(e));
      const int64_t rows = weight.rows();
      y.resize(static_cast<size_t>(count * widest));
      LinearCall linear;
      linear.site = call.site;
      linear.fault_rows = fault_rows;
      linear.x = MakeView(x.data(), DType::kF32, call.x.device, count, cols);
      linear.weights = {&weight};
      linear.outs = {MakeView(y.data(), DType::kF32, call.x.device, count, rows)};
      Linear(context, linear);
      const TensorView& out = call.outs[w];
      for (int64_t i = 0; i < count; ++i) {
        memcpy(out.ptr<float>() + slots[e][static_cast<size_t>(i)] * out.step(0), y.data() + i * rows,
               static_cast<size_t>(rows) * sizeof(float));
      }
    }
  }
  if (call.combine != nullptr) CombineExperts(context, *call.combine);
}

void CombineExperts(Context& context, const CombineExpertsCall& call) {
  CheckCombineExperts(call);
  const int64_t top_k = call.weights.dim(1);
  context.pool.ParallelFor(call.out.dim(0), [&](int64_t row, int) {
    const float* weights = call.weights.ptr<const float>() + row * top_k;
    const float* x = call.x.ptr<const float>() + row * top_k * call.x.step(0);
    float* out = call.out.ptr<float>() + row * call.out.step(0);
    for (int64_t i = 0; i < call.out.dim(1); ++i) {
      float sum = weights[0] * x[i];
      for (int64_t k = 1; k < top_k; ++k) sum = sum + weights[k] * x[k * call.x.step(0) + i];
      out[i] = out[i] + sum;
    }
  });
}

}  // namespace stoch::cpu
