// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/experts.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "kernels/call_check.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/linear_weight.h"
#include "kernels/cpu/mixed_linear.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/softmax.h"
#include "kernels/expert_site.h"
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

using Lengths = std::span<const int>;

// f(x), and the rows of slots.
class SlotRows {
 public:
  SlotRows(Context& context, const ExpertLinearCall& call)
      : cols_(call.x.dim(1)), per_row_(call.x.dim(0) == call.chosen.dim(0) ? call.chosen.dim(1) : 1) {
    f_.resize(static_cast<size_t>(call.x.dim(0) * cols_));
    const RowPrologue prologue{call.prologue, call.x, call.x2, call.norm_weight, call.norm_eps, call.table};
    context.pool.ParallelFor(call.x.dim(0),
                             [&](int64_t i, int) { prologue.Apply(context.simd, i, f_.data() + i * cols_); });
  }
  int64_t cols() const { return cols_; }
  // [slots.size()][cols]
  void Gather(std::span<const int64_t> slots, std::vector<float>* to) const {
    to->resize(slots.size() * static_cast<size_t>(cols_));
    for (size_t i = 0; i < slots.size(); ++i) {
      std::copy_n(f_.data() + slots[i] / per_row_ * cols_, cols_, to->data() + i * static_cast<size_t>(cols_));
    }
  }

 private:
  int64_t cols_;
  int64_t per_row_;  // slots that share a row of x
  std::vector<float> f_;
};

// Lengths of the rows of every expert, where their rule reads all of them; else none.
std::vector<std::vector<int>> LengthsOfExperts(Context& context, const SlotRows& f,
                                               std::span<const std::vector<int64_t>> slots, const CpuExperts& experts) {
  const ScExtrasPtr& first = experts.at(0).spec().extras;
  if (first == nullptr || first->lengths == nullptr || !ReadsCall(*first->lengths)) return {};
  std::vector<std::vector<float>> rows(slots.size());
  std::vector<MixedPairs> all;
  for (size_t e = 0; e < slots.size(); ++e) {
    const auto& weight = static_cast<const CpuLinear&>(experts.at(static_cast<int64_t>(e)));
    f.Gather(slots[e], &rows[e]);
    const auto count = static_cast<int64_t>(slots[e].size());
    all.push_back({{rows[e].data(), f.cols(), count, f.cols()},
                   weight.spec().sc.get(),
                   weight.spec().extras.get(),
                   &weight.mixed});
  }
  return LengthsOfCall(context, all);
}

// The linears of a call, one expert after the other.
class ExpertPass {
 public:
  ExpertPass(Context& context, const ExpertLinearCall& call, const SlotRows& f)
      : context_(context), call_(call), f_(f) {}

  void Begin(int64_t expert, std::span<const int64_t> slots) {
    expert_ = expert;
    slots_ = slots;
    f_.Gather(slots, &x_);
    tokens_.clear();
    fault_rows_.clear();
    for (const int64_t slot : slots) {
      tokens_.push_back(slot / call_.chosen.dim(1));
      if (!call_.fault_rows.empty()) fault_rows_.push_back(call_.fault_rows[static_cast<size_t>(tokens_.back())]);
    }
    if (context_.observer != nullptr) Show();
  }

  // The expert of weight w.
  void Run(size_t w, Lengths lengths) {
    const auto count = static_cast<int64_t>(slots_.size());
    const LinearWeight& weight = static_cast<const CpuExperts&>(*call_.weights[w]).at(expert_);
    y_.resize(static_cast<size_t>(count * weight.rows()));
    LinearCall linear = Inputs(call_.site);
    linear.weights = {&weight};
    linear.outs = {MakeView(y_.data(), DType::kF32, call_.x.device, count, weight.rows())};
    Linear(context_, linear, {tokens_, lengths});
    const TensorView& out = call_.outs[w];
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(y_.data() + i * weight.rows(), weight.rows(),
                  out.ptr<float>() + slots_[static_cast<size_t>(i)] * out.step(0));
    }
  }

 private:
  LinearCall Inputs(const OpSite& site) const {
    LinearCall linear;
    linear.site = site;
    linear.fault_rows = fault_rows_;
    linear.x = MakeView(const_cast<float*>(x_.data()), DType::kF32, call_.x.device, static_cast<int64_t>(slots_.size()),
                        f_.cols());
    return linear;
  }
  // As a linear of the name "gate_up_proj:u3".
  void Show() {
    const std::string name = ExpertSiteName(call_.site.op, expert_);
    const LinearCall linear = Inputs({call_.site.layer, name});
    context_.observer->OnLinear(linear, x_.data(), linear.x.dim(0), f_.cols(), f_.cols());
  }

  Context& context_;
  const ExpertLinearCall& call_;
  const SlotRows& f_;
  int64_t expert_ = 0;
  std::span<const int64_t> slots_;
  std::vector<int64_t> tokens_;
  std::vector<uint64_t> fault_rows_;
  std::vector<float> x_, y_;
};

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
  const SlotRows f(context, call);
  const auto slots = SlotsByExpert(call, call.weights.front()->count());
  std::vector<std::vector<std::vector<int>>> lengths;  // by weight, by expert
  for (const ExpertWeights* weight : call.weights) {
    const auto& experts = static_cast<const CpuExperts&>(*weight);
    lengths.push_back(LengthsOfExperts(context, f, slots, experts));
    const ScExtrasPtr& extras = experts.at(0).spec().extras;
    const bool has_lengths = extras != nullptr && (extras->lengths != nullptr || extras->protected_op != nullptr);
    if (context.observer != nullptr && has_lengths) ShowExperts(context, call.site, *extras, call.chosen.dim(0));
  }
  ExpertPass pass(context, call, f);
  for (size_t e = 0; e < slots.size(); ++e) {
    if (slots[e].empty()) continue;
    pass.Begin(static_cast<int64_t>(e), slots[e]);
    for (size_t w = 0; w < call.weights.size(); ++w) pass.Run(w, lengths[w].empty() ? Lengths{} : lengths[w][e]);
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
