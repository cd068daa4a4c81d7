// SPDX-License-Identifier: Apache-2.0
// One SC configuration as a Python object, with its operator once it is used.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/sc/sc_config.h"
#include "kernels/sc/sc_operator.h"

namespace stoch::python {

// Immutable. Threads: safe.
class Config {
 public:
  explicit Config(ScConfig config) : config_(std::move(config)), resolved_(Resolve(config_)) {}

  const ScConfig& config() const { return config_; }
  const ScConfig& resolved() const { return resolved_; }
  // Made at first use.
  const ScOperatorPtr& op() const {
    const std::lock_guard lock(mutex_);
    if (op_ == nullptr) op_ = MakeScOperator(config_);
    return op_;
  }

 private:
  ScConfig config_;
  ScConfig resolved_;
  mutable std::mutex mutex_;
  mutable ScOperatorPtr op_;
};

}  // namespace stoch::python
