// SPDX-License-Identifier: Apache-2.0
// The CPU's backend and that of the first GPU, whose bits are compared.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "kernels/registry.h"
#include "tests/kernels/gpu/cuda_or_skip.h"
#include "tests/support/scoped_variables.h"

namespace stoch::test {

// The first GPU's backend as variables for tests limit it (kernels/plan/gpu_traits.h), which are read when it is opened.
inline std::unique_ptr<Backend> OpenLimited(const Variables& limits) {
  const ScopedVariables set(limits);
  return OpenBackend("cuda:0", {}, nullptr);
}

class BothBackends : public testing::Test {
 protected:
  // Of the GPU's backend.
  virtual Variables Limits() const { return {}; }

  void SetUp() override {
    STOCH_CUDA_OR_SKIP();
    cpu_ = OpenBackend("cpu", {}, nullptr);
    cuda_ = OpenLimited(Limits());
  }

  std::unique_ptr<Backend> cpu_;
  std::unique_ptr<Backend> cuda_;
};

}  // namespace stoch::test
