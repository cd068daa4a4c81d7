// SPDX-License-Identifier: Apache-2.0
// Products of host matrices and weights on a backend.
#pragma once

#include <map>
#include <memory>

#include "kernels/backend.h"
#include "research/reference.h"

namespace stoch {

// Keeps a reference. Errors: InvalidInput where an operand is not finite, or as the backend's ops.
class HostProducts {
 public:
  explicit HostProducts(Backend& backend) : backend_(backend), device_(backend.devices()[0]) {}

  // x @ w^T in kDotLanes order.
  HostMatrix Exact(const HostMatrix& x, const WeightSource& w) { return Run(x, w, {}); }
  // x @ w^T in streams; null: of length 0, a product of +0.
  HostMatrix InStreams(const HostMatrix& x, const WeightSource& w, const ScOperatorPtr& op);

 private:
  HostMatrix Run(const HostMatrix& x, const WeightSource& w, const LinearSpec& spec);
  // A backend's tables of an operator live while somebody uses them, and take longer to make than a small product.
  void Keep(const ScOperatorPtr& op);

  Backend& backend_;
  Device device_;
  std::map<ScOperatorPtr, std::unique_ptr<LinearWeight>> kept_;
};

}  // namespace stoch
