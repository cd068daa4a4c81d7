// SPDX-License-Identifier: Apache-2.0
#include "kernels/family_check.h"

#include <string>

#include "kernels/call_check.h"

namespace stoch {
namespace {

void RequireDenseRows(const OpSite& site, const char* name, const TensorView& view) {
  if (view.dim(0) > 1 && view.step(0) != view.dim(1)) Reject(site, std::string(name) + " must be dense");
}

bool IsSame(const TensorView& a, const TensorView& b) {
  return a.data == b.data && a.device == b.device && a.rank == b.rank && a.dim(0) == b.dim(0) && a.dim(1) == b.dim(1) &&
         a.step(0) == b.step(0);
}

}  // namespace

void CheckAddBias(const AddBiasCall& call) {
  RequireView(call.site, "x", call.x, call.x.device, DType::kF32, {kAnySize, kAnySize});
  RequireView(call.site, "bias", call.bias, call.x.device, DType::kF32, {call.x.dim(1)});
  RequireDisjoint(call.site, call.x, call.bias);
}

void CheckNormHeads(const NormHeadsCall& call) {
  const Device device = call.q.device;
  if (call.head_dim < 1) Reject(call.site, "head_dim is " + std::to_string(call.head_dim) + ", expected 1 or more");
  RequireView(call.site, "q", call.q, device, DType::kF32, {kAnySize, kAnySize});
  RequireView(call.site, "k", call.k, device, DType::kF32, {call.q.dim(0), kAnySize});
  for (const TensorView* x : {&call.q, &call.k}) {
    if (x->dim(1) % call.head_dim == 0) continue;
    Reject(call.site, Describe(*x) + " is no whole number of heads of " + std::to_string(call.head_dim));
  }
  RequireView(call.site, "q_weight", call.q_weight, device, DType::kF32, {call.head_dim});
  RequireView(call.site, "k_weight", call.k_weight, device, DType::kF32, {call.head_dim});
  RequireDisjoint(call.site, call.q, call.k);
}

void CheckGeluMul(const GeluMulCall& call) {
  RequireView(call.site, "x", call.x, call.x.device, DType::kF32, {kAnySize, kAnySize});
  RequireView(call.site, "x2", call.x2, call.x.device, DType::kF32, {call.x.dim(0), call.x.dim(1)});
  RequireDisjoint(call.site, call.x, call.x2);
}

void CheckSoftCap(const SoftCapCall& call) {
  RequireView(call.site, "x", call.x, call.x.device, DType::kF32, {kAnySize, kAnySize});
  if (!(call.cap > 0)) Reject(call.site, "a cap of " + std::to_string(call.cap) + ", expected more than 0");
}

void CheckRoute(const RouteCall& call) {
  const Device device = call.logits.device;
  RequireView(call.site, "logits", call.logits, device, DType::kF32, {kAnySize, kAnySize});
  RequireDenseRows(call.site, "logits", call.logits);
  const int64_t rows = call.logits.dim(0);
  RequireView(call.site, "chosen", call.chosen, device, DType::kI32, {rows, kAnySize});
  RequireDenseRows(call.site, "chosen", call.chosen);
  const int64_t top_k = call.chosen.dim(1);
  if (top_k < 1 || top_k > call.logits.dim(1)) {
    Reject(call.site, std::to_string(top_k) + " experts of a row, expected 1 to " + std::to_string(call.logits.dim(1)));
  }
  RequireView(call.site, "weights", call.weights, device, DType::kF32, {rows, top_k});
  RequireDenseRows(call.site, "weights", call.weights);
  if (call.product == nullptr) return;
  CheckLinear(*call.product);
  if (call.product->outs.size() != 1 || !IsSame(call.product->outs.front(), call.logits)) {
    Reject(call.site, "the product's output is not the logits");
  }
}

void CheckExpertLinear(const ExpertLinearCall& call) {
  if (call.weights.empty() || call.weights.size() != call.outs.size()) {
    Reject(call.site, "got " + std::to_string(call.weights.size()) + " weights and " +
                          std::to_string(call.outs.size()) + " outputs, expected as many and at least one");
  }
  const Device device = call.weights.front()->device();
  const int64_t cols = call.weights.front()->cols();
  RequireView(call.site, "chosen", call.chosen, device, DType::kI32, {kAnySize, kAnySize});
  RequireDenseRows(call.site, "chosen", call.chosen);
  const int64_t rows = call.chosen.dim(0);
  const int64_t slots = rows * call.chosen.dim(1);
  const int64_t x_rows = call.x.dim(0) == rows ? rows : slots;
  RequireView(call.site, "x", call.x, device, DType::kF32, {x_rows, cols});
  switch (call.prologue) {
    case Prologue::kNone: break;
    case Prologue::kRmsNorm:
      RequireView(call.site, "norm_weight", call.norm_weight, device, DType::kF32, {cols});
      break;
    case Prologue::kSiluMul: RequireView(call.site, "x2", call.x2, device, DType::kF32, {x_rows, cols}); break;
  }
  for (size_t i = 0; i < call.weights.size(); ++i) {
    const ExpertWeights& weight = *call.weights[i];
    if (weight.device() != device || weight.cols() != cols || weight.count() != call.weights.front()->count()) {
      Reject(call.site, "weight " + std::to_string(i) + " does not fit the first one");
    }
    RequireView(call.site, "out", call.outs[i], device, DType::kF32, {slots, weight.rows()});
    RequireDisjoint(call.site, call.outs[i], call.x);
    if (call.prologue == Prologue::kSiluMul) RequireDisjoint(call.site, call.outs[i], call.x2);
    for (size_t j = 0; j < i; ++j) RequireDisjoint(call.site, call.outs[i], call.outs[j]);
  }
  if (call.combine == nullptr) return;
  CheckCombineExperts(*call.combine);
  if (call.outs.size() != 1 || !IsSame(call.combine->x, call.outs.front())) {
    Reject(call.site, "what is combined is not the one output");
  }
  if (call.combine->out.dim(0) != rows) {
    Reject(call.site,
           "combined to " + std::to_string(call.combine->out.dim(0)) + " rows, expected " + std::to_string(rows));
  }
  RequireDisjoint(call.site, call.combine->out, call.x);
  if (call.prologue == Prologue::kSiluMul) RequireDisjoint(call.site, call.combine->out, call.x2);
}

void CheckCombineExperts(const CombineExpertsCall& call) {
  const Device device = call.out.device;
  RequireView(call.site, "out", call.out, device, DType::kF32, {kAnySize, kAnySize});
  RequireView(call.site, "weights", call.weights, device, DType::kF32, {call.out.dim(0), kAnySize});
  RequireDenseRows(call.site, "weights", call.weights);
  RequireView(call.site, "x", call.x, device, DType::kF32,
              {call.weights.dim(0) * call.weights.dim(1), call.out.dim(1)});
  RequireDisjoint(call.site, call.out, call.x);
}

void CheckExperts(std::span<const std::unique_ptr<LinearWeight>> experts) {
  const OpSite site{-1, "experts"};
  if (experts.empty()) Reject(site, "got no weights, expected at least one");
  const LinearWeight& first = *experts.front();
  for (const auto& expert : experts) {
    const bool same = expert->device() == first.device() && expert->rows() == first.rows() &&
                      expert->cols() == first.cols() && expert->spec().precision == first.spec().precision &&
                      expert->spec().sc == first.spec().sc;
    if (!same) Reject(site, "got weights that differ in device, shape or specification");
  }
}

}  // namespace stoch
