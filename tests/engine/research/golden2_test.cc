// SPDX-License-Identifier: Apache-2.0
// Every case recorded for the second part of the research suite that this version computes, on every backend (reference
// data: shared/goldens).
#include "engine/research/golden/golden2.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/registry.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/shared_folder.h"

namespace stoch {
namespace {

class Research2Golden : public testing::TestWithParam<test::BackendUnderTest> {};

TEST_P(Research2Golden, EveryCaseOfAKindThatIsHere) {
  STOCH_REQUIRE_SHARED();
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const SafetensorsFile file(test::SharedFolder() / "goldens/research2_golden.safetensors");
  const auto cases = nlohmann::json::parse(file.metadata().at("cases"));
  ScConfig own_counts;
  own_counts.gate = ScGate::kCounts;
  std::map<std::string, int> here;
  for (const auto& fields : cases) {
    if (!IsResearch2Kind(fields)) continue;
    const std::string kind = fields.at("kind");
    ++here[kind];
    if (kind == "counts" && !backend->WhyNoKernel(own_counts).empty()) continue;
    const GoldenResult result = RunResearch2Golden(*backend, file, fields);
    EXPECT_TRUE(result.passed) << fields.at("case") << ": " << result.detail;
  }
  const std::map<std::string, int> expected = {{"counts", 4},      {"paired", 1}, {"product_report", 8},
                                               {"random_bits", 1}, {"source", 4}, {"statistics", 1},
                                               {"usystolic", 2}};
  EXPECT_EQ(here, expected);
}

// A case with one number changed fails: the comparison compares.
TEST_P(Research2Golden, AnotherNumberFails) {
  STOCH_REQUIRE_SHARED();
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const SafetensorsFile file(test::SharedFolder() / "goldens/research2_golden.safetensors");
  for (auto fields : nlohmann::json::parse(file.metadata().at("cases"))) {
    const std::string kind = fields.at("kind");
    if (kind == "product_report") {
      fields["report"]["mae_of_cycles"][3] = fields["report"]["mae_of_cycles"][3].get<double>() * 1.001;
    } else if (kind == "statistics") {
      fields["result"]["ci95_low"] = 4.46;
    } else if (kind == "source") {
      fields["sc"]["source_seed_b"] = 78;
    } else if (kind == "usystolic") {
      fields["lines"][0][0] = 1025;
    } else {
      continue;
    }
    EXPECT_FALSE(RunResearch2Golden(*backend, file, fields).passed) << fields.at("case");
  }
  test::ExpectInvalid([&] { RunResearch2Golden(*backend, file, {{"case", "x"}, {"kind", "oracle"}}); }, {"oracle"});
}

INSTANTIATE_TEST_SUITE_P(Backends, Research2Golden, testing::ValuesIn(test::BackendsUnderTest()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace stoch
