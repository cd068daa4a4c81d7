// SPDX-License-Identifier: Apache-2.0
#include "kernels/all_gather_check.h"

#include <algorithm>
#include <string>

#include "kernels/call_check.h"

namespace stoch {
namespace {

void RequireMatrix(const OpSite& site, const std::string& name, const TensorView& view, int64_t rows, int64_t cols) {
  const bool fits = view.dtype == DType::kF32 && view.rank == 2 && view.dim(0) == rows &&
                    (cols < 0 || view.dim(1) == cols) && (view.data != nullptr || view.numel() == 0) &&
                    view.rows_dense() && (rows <= 1 || view.numel() == 0 || view.step(0) >= view.dim(1));
  if (fits) return;
  Reject(site, name + " is " + Describe(view) + ", expected F32[" + std::to_string(rows) + ", " +
                   (cols < 0 ? "any" : std::to_string(cols)) + "] with dense rows");
}

void CheckDevices(const AllGatherCall& call) {
  const auto on = [](const Device& device) { return [&device](const TensorView& v) { return v.device == device; }; };
  for (size_t i = 0; i < call.from.size(); ++i) {
    const Device device = call.from[i].device;
    if (std::count_if(call.from.begin(), call.from.end(), on(device)) > 1) {
      Reject(call.site, DeviceName(device) + " gives twice to one gather");
    }
    if (HasSecondOperand(call) && call.from2[i].device != device) {
      Reject(call.site, "from2 is on " + DeviceName(call.from2[i].device) + ", from on " + DeviceName(device));
    }
  }
  for (const TensorView& to : call.to) {
    if (std::count_if(call.to.begin(), call.to.end(), on(to.device)) > 1) {
      Reject(call.site, DeviceName(to.device) + " receives twice from one gather");
    }
    if (std::none_of(call.from.begin(), call.from.end(), on(to.device))) {
      Reject(call.site, "to is on " + DeviceName(to.device) + ", which takes no part in the gather");
    }
  }
}

}  // namespace

bool HasSecondOperand(const AllGatherCall& call) {
  switch (call.prologue) {
    case Prologue::kNone: return false;
    case Prologue::kSiluMul: return true;
    case Prologue::kRmsNorm: break;
  }
  Reject(call.site, "a gather has no RMSNorm: it sees parts of rows");
}

int64_t GatherPlan::widest() const {
  int64_t most = 0;
  for (size_t i = 0; i + 1 < begin.size(); ++i) most = std::max(most, cols_of(i));
  return most;
}

bool IsInPlace(const AllGatherCall& call, const GatherPlan& plan, size_t i, const TensorView& to) {
  const TensorView& from = call.from[i];
  return call.prologue == Prologue::kNone && from.device == to.device && from.data == to.ptr<float>() + plan.begin[i] &&
         (plan.rows <= 1 || from.step(0) == to.step(0));
}

GatherPlan CheckAllGather(const AllGatherCall& call) {
  if (call.from.empty()) Reject(call.site, "a gather needs at least one device");
  const bool two = HasSecondOperand(call);
  if (two && call.from2.size() != call.from.size()) {
    Reject(call.site,
           "got " + std::to_string(call.from2.size()) + " from2, expected " + std::to_string(call.from.size()));
  }
  GatherPlan plan;
  plan.rows = call.from.front().dim(0);
  plan.begin.push_back(0);
  for (size_t i = 0; i < call.from.size(); ++i) {
    RequireMatrix(call.site, "from", call.from[i], plan.rows, -1);
    if (two) RequireMatrix(call.site, "from2", call.from2[i], plan.rows, call.from[i].dim(1));
    plan.begin.push_back(plan.begin.back() + call.from[i].dim(1));
  }
  CheckDevices(call);
  for (const TensorView& to : call.to) {
    RequireMatrix(call.site, "to", to, plan.rows, plan.cols());
    for (size_t i = 0; i < call.from.size(); ++i) {
      if (plan.cols_of(i) == 0 || plan.rows == 0) continue;
      const bool overlaps = !IsInPlace(call, plan, i, to) && MayOverlap(to, call.from[i]);
      if (overlaps || (two && MayOverlap(to, call.from2[i]))) {
        Reject(call.site, "the output " + Describe(to) + " overlaps " + Describe(call.from[i]));
      }
    }
  }
  return plan;
}

}  // namespace stoch
