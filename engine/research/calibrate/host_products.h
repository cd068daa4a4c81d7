// SPDX-License-Identifier: Apache-2.0
// Products of host matrices on a backend.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "engine/research/reference.h"
#include "kernels/backend.h"
#include "kernels/sc/sc_lengths.h"

namespace stoch {

// Keeps a reference. Errors: InvalidInput where an operand is not finite, or as the backend's ops.
class HostProducts {
 public:
  explicit HostProducts(Backend& backend) : backend_(backend), device_(backend.devices()[0]) {}

  // x @ w^T in kDotLanes order.
  HostMatrix Exact(const HostMatrix& x, const HostMatrix& w);
  // In streams, every row at `length`; `extras` has its operator.
  HostMatrix AtLength(const HostMatrix& x, const HostMatrix& w, const ScOperatorPtr& op, const ScExtras& extras,
                      int length);

 private:
  HostMatrix Run(const HostMatrix& x, int64_t out_features,
                 const std::function<void(const TensorView&, const TensorView&)>& body);

  // A backend's tables of an operator live while somebody uses them, and take longer to make than a small product.
  void Keep(const ScOperatorPtr& op);

  Backend& backend_;
  Device device_;
  std::map<ScOperatorPtr, std::unique_ptr<LinearWeight>> kept_;
};

}  // namespace stoch
