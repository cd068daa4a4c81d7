// SPDX-License-Identifier: Apache-2.0
// Every case recorded from the published simulator, on every backend (reference data: shared/goldens).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/registry.h"
#include "kernels/sc/number_source.h"
#include "loader/checkpoint/safetensors.h"
#include "tests/kernels/device_tensor.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/shared_folder.h"

namespace stoch {
namespace {

constexpr const char* kFile = "goldens/sc_matmul_golden.safetensors";

// The published function's parameter names are ours, but one.
ScConfig ConfigOf(const nlohmann::json& fields) {
  ScConfig config;
  for (const auto& [key, value] : fields.items()) {
    if (key == "case") continue;
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    SetScParameter(config, key == "halve_bipolar_stoc_len" ? "halve" : key, text);
  }
  return config;
}

class ScMatmulGolden : public testing::TestWithParam<test::BackendUnderTest> {};

TEST_P(ScMatmulGolden, EveryRecordedCase) {
  STOCH_REQUIRE_SHARED();
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const SafetensorsFile file(test::SharedFolder() / kFile);
  const auto cases = nlohmann::json::parse(file.metadata().at("cases"));
  ASSERT_GE(cases.size(), 30u);
  for (const auto& fields : cases) {
    const std::string name = fields.at("case");
    SCOPED_TRACE(name);
    const auto load = [&](const char* suffix) {
      const SafetensorsTensor& tensor = file.Require(name + suffix);
      return test::DeviceTensor(*backend, tensor.shape, file.CopyF32(tensor));
    };
    const test::DeviceTensor a = load(".a");
    const test::DeviceTensor b = load(".b");
    const SafetensorsTensor& golden = file.Require(name + ".y");
    const std::vector<float> expected = file.CopyF32(golden);
    const test::DeviceTensor y(*backend, golden.shape, std::vector<float>(expected.size(), -1.0f));
    backend->ScMatmul(a.view(), b.view(), *MakeScOperator(ConfigOf(fields)), y.view());

    const std::vector<float> actual = y.Read();
    float largest = 0;
    float worst = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_TRUE(std::isfinite(actual[i]));
      largest = std::max(largest, std::fabs(expected[i]));
      worst = std::max(worst, std::fabs(actual[i] - expected[i]));
    }
    EXPECT_GT(largest, 0.0f);
    EXPECT_LE(worst, 1e-6f * largest);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ScMatmulGolden, testing::ValuesIn(test::BackendsUnderTest()),
                         testing::PrintToStringParamName());

TEST(SobolGolden, BothSidesOfEveryPrecision) {
  STOCH_REQUIRE_SHARED();
  const SafetensorsFile file(test::SharedFolder() / kFile);
  for (int prec = 3; prec <= 8; ++prec) {
    ScConfig config;
    config.sc_prec = prec;
    for (const auto& [side, suffix] : {std::pair{ScSide::kA, ".a"}, {ScSide::kB, ".b"}}) {
      const std::string name = "sobol.prec" + std::to_string(prec) + suffix;
      const std::vector<int> expected = file.CopyI32(file.Require(name));
      ASSERT_EQ(expected.size(), size_t{1} << prec);
      EXPECT_EQ(SourceValues(Resolve(config), side, 1 << prec, 0), expected) << name;
    }
  }
}

}  // namespace
}  // namespace stoch
