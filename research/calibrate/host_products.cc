// SPDX-License-Identifier: Apache-2.0
#include "research/calibrate/host_products.h"

namespace stoch {

HostMatrix HostProducts::InStreams(const HostMatrix& x, const WeightSource& w, const ScOperatorPtr& op) {
  if (op == nullptr) {
    return {x.rows, w.rows, std::vector<float>(static_cast<size_t>(x.rows * w.rows), 0.0f)};
  }
  Keep(op);
  return Run(x, w, {Precision::kSc, op});
}

void HostProducts::Keep(const ScOperatorPtr& op) {
  if (kept_.contains(op)) return;
  WeightSource one;
  one.name = "calibration";
  one.rows = one.cols = 1;
  one.constant = 1.0f;
  kept_[op] = backend_.MakeLinear(device_, {&one, 1}, {Precision::kSc, op});
}

HostMatrix HostProducts::Run(const HostMatrix& x, const WeightSource& w, const LinearSpec& spec) {
  const auto weight = backend_.MakeLinear(device_, {&w, 1}, spec);
  Buffer from = backend_.Allocate(device_, x.rows * x.cols * 4);
  Buffer to = backend_.Allocate(device_, x.rows * w.rows * 4);
  LinearCall call;
  call.site = {-1, "calibration"};
  call.x = MakeView(from.data(), DType::kF32, device_, x.rows, x.cols);
  call.weights = {weight.get()};
  call.outs = {MakeView(to.data(), DType::kF32, device_, x.rows, w.rows)};
  backend_.CopyFromHost(call.x, x.values.data());
  backend_.Linear(call);
  HostMatrix y{x.rows, w.rows, std::vector<float>(static_cast<size_t>(x.rows * w.rows))};
  backend_.CopyToHost(y.values.data(), call.outs[0]);
  backend_.CheckFinite(device_);
  return y;
}

}  // namespace stoch
