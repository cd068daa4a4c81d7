// SPDX-License-Identifier: Apache-2.0
#include "engine/research/calibrate/host_products.h"

namespace stoch {

HostMatrix HostProducts::Exact(const HostMatrix& x, const HostMatrix& w) {
  WeightSource source;
  source.name = "calibration";
  source.rows = w.rows;
  source.cols = w.cols;
  source.host = w.values.data();
  const auto weight = backend_.MakeLinear(device_, {&source, 1}, {});
  return Run(x, w.rows, [&](const TensorView& vx, const TensorView& vy) {
    LinearCall call;
    call.site = {-1, "calibration"};
    call.x = vx;
    call.weights = {weight.get()};
    call.outs = {vy};
    backend_.Linear(call);
  });
}

HostMatrix HostProducts::AtLength(const HostMatrix& x, const HostMatrix& w, const ScOperatorPtr& op,
                                  const ScExtras& extras, int length) {
  for (const ScOperatorPtr& one : extras.by_length) Keep(one);
  Buffer buffer = backend_.Allocate(device_, w.rows * w.cols * 4);
  const TensorView vw = MakeView(buffer.data(), DType::kF32, device_, w.rows, w.cols);
  backend_.CopyFromHost(vw, w.values.data());
  const std::vector<int> lengths(static_cast<size_t>(x.rows), length);
  return Run(x, w.rows, [&](const TensorView& vx, const TensorView& vy) {
    backend_.ScMixedMatmul(vx, vw, op, extras, lengths, vy);
  });
}

void HostProducts::Keep(const ScOperatorPtr& op) {
  if (op == nullptr || kept_.contains(op)) return;
  WeightSource one;
  one.name = "calibration";
  one.rows = one.cols = 1;
  one.constant = 1.0f;
  kept_[op] = backend_.MakeLinear(device_, {&one, 1}, {Precision::kSc, op});
}

HostMatrix HostProducts::Run(const HostMatrix& x, int64_t out_features,
                             const std::function<void(const TensorView&, const TensorView&)>& body) {
  Buffer from = backend_.Allocate(device_, x.rows * x.cols * 4);
  Buffer to = backend_.Allocate(device_, x.rows * out_features * 4);
  const TensorView vx = MakeView(from.data(), DType::kF32, device_, x.rows, x.cols);
  const TensorView vy = MakeView(to.data(), DType::kF32, device_, x.rows, out_features);
  backend_.CopyFromHost(vx, x.values.data());
  body(vx, vy);
  HostMatrix y{x.rows, out_features, std::vector<float>(static_cast<size_t>(x.rows * out_features))};
  backend_.CopyToHost(y.values.data(), vy);
  backend_.CheckFinite(device_);
  return y;
}

}  // namespace stoch
