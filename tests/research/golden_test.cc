// SPDX-License-Identifier: Apache-2.0
// Every case recorded for the research suite, on every backend (reference data: shared/goldens).
#include "research/golden/golden.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "kernels/registry.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/shared_folder.h"

namespace stoch {
namespace {

class ResearchGolden : public testing::TestWithParam<test::BackendUnderTest> {};

TEST_P(ResearchGolden, EveryRecordedCase) {
  STOCH_REQUIRE_SHARED();
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const SafetensorsFile file(test::SharedFolder() / "goldens/research_golden.safetensors");
  const auto cases = nlohmann::json::parse(file.metadata().at("cases"));
  ASSERT_GE(cases.size(), 40u);
  std::set<std::string> kinds;
  for (const auto& fields : cases) {
    const std::string kind = fields.at("kind");
    kinds.insert(kind);
    const GoldenResult result = RunResearchGolden(*backend, file, fields);
    EXPECT_TRUE(result.passed) << fields.at("case") << ": " << result.detail;
  }
  EXPECT_GE(kinds.size(), 14u);
}

INSTANTIATE_TEST_SUITE_P(Backends, ResearchGolden, testing::ValuesIn(test::BackendsUnderTest()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace stoch
