// SPDX-License-Identifier: Apache-2.0
// Who runs linears of several stream lengths, on GPUs that need not be there.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/cuda/mixed/linear.h"
#include "kernels/cuda/weights/mixed.h"
#include "tests/kernels/gpu/mixed_cases.h"
#include "tests/kernels/plan/gpu_models.h"

namespace stoch::test {
namespace {

TEST(MixedKernels, FollowFromWhatAGpuHas) {
  const std::vector<LinearCase> cases = LinearCases();
  for (const GpuModel& gpu : GpuModels()) {
    for (const LinearCase& c : cases) {
      for (const int64_t rows : {1, 2, 4, 5, 16, 17, 32, 33, 40, 128, 129, 200}) {
        if (!cuda::NeedsMixed(c.spec)) continue;
        const std::string kernel = cuda::MixedKernel(gpu.traits, c.spec, kMixedCols, rows, "uniform");
        EXPECT_EQ(kernel.starts_with("mixed ") ? kernel : "", ExpectedKernel(gpu.traits, c, rows))
            << gpu.name << ", " << c.name << ", rows " << rows;
      }
    }
  }
}

}  // namespace
}  // namespace stoch::test
