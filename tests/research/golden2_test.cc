// SPDX-License-Identifier: Apache-2.0
// Every case recorded for the second part of the research suite that this version computes, on every backend (reference
// data: shared/goldens).
#include "research/golden/golden2.h"

#include <gtest/gtest.h>

#include <algorithm>
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
  std::map<std::string, int> here;
  for (const auto& fields : cases) {
    if (!IsResearch2Kind(fields)) continue;
    const std::string kind = fields.at("kind");
    ++here[kind];
    const GoldenResult result = RunResearch2Golden(*backend, file, fields);
    EXPECT_TRUE(result.passed) << fields.at("case") << ": " << result.detail;
  }
  const std::map<std::string, int> expected = {{"adder", 10},     {"attention", 5},      {"binomial_table", 7},
                                               {"counts", 4},     {"fault", 40},         {"fp8", 1},
                                               {"hw", 1},         {"lengths", 1},        {"mx", 1},
                                               {"paired", 1},     {"product_report", 8}, {"random_bits", 1},
                                               {"register", 7},   {"rms_norm_table", 1}, {"row_key", 1},
                                               {"silu_table", 1}, {"smoothquant_qk", 4}, {"softmax_table", 2},
                                               {"source", 4},     {"statistics", 1},     {"usystolic", 2}};
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
    } else if (kind == "fault" || kind == "attention") {
      double rate = 0;
      for (const char* name : {"fault_product", "fault_weight", "fault_activation", "fault_acc"}) {
        rate = std::max(rate, fields["sc"].value(name, 0.0));
      }
      if (rate < 0.01 || rate == 1.0) continue;  // faults that are rare, or certain
      fields["sc"]["fault_seed"] = 999;
    } else if (kind == "hw") {
      fields["input"]["cycles"] = fields["input"]["cycles"].get<int64_t>() + 1;
    } else if (kind == "fp8") {
      fields["chunk"] = 64;
    } else if (kind == "mx") {
      fields["tensors"]["exponent_a"] = fields["tensors"]["exponent_b"];
    } else if (kind == "silu_table") {
      fields["in_bits"] = 3;
    } else if (kind == "softmax_table") {
      fields["visible"][2] = 300;  // in place of 1: the largest score is another
    } else if (kind == "rms_norm_table") {
      fields["out_bits"] = 11;
    } else if (kind == "row_key") {
      fields["rows"][0]["layer"] = 1;
    } else if (kind == "binomial_table") {
      fields["rate"] = fields["rate"].get<double>() * 1.0000001;
    } else if (kind == "lengths") {
      fields["sc"].erase("rng_grid");
    } else if (kind == "register") {
      fields["sc"]["acc_bits"] = fields["sc"]["acc_bits"].get<int>() - 1;
    } else if (kind == "adder") {
      fields["sc"]["adder_group"] = fields["sc"]["adder_group"].get<int>() + 2;
    } else if (kind == "smoothquant_qk") {
      fields["alpha"] = fields["alpha"].get<double>() * 0.9 + 0.01;
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
