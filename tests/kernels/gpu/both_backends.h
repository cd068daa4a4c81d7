// SPDX-License-Identifier: Apache-2.0
// The CPU's backend and that of the first GPU, whose bits are compared.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "kernels/registry.h"
#include "tests/kernels/gpu/cuda_or_skip.h"

namespace stoch::test {

class BothBackends : public testing::Test {
 protected:
  void SetUp() override {
    STOCH_CUDA_OR_SKIP();
    cpu_ = OpenBackend("cpu", {}, nullptr);
    cuda_ = OpenBackend("cuda:0", {}, nullptr);
  }

  std::unique_ptr<Backend> cpu_;
  std::unique_ptr<Backend> cuda_;
};

}  // namespace stoch::test
