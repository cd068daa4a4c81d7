// SPDX-License-Identifier: Apache-2.0
// Red cases of the rules of plans.cc.
#include <gtest/gtest.h>

#include <string>

#include "tests/policy/rules.h"

namespace stoch::test {
namespace {

size_t Findings(Rule rule, const std::string& path, const std::string& text) { return rule({path, text}).size(); }

TEST(PlansRule, HaveNoFlags) {
  const std::string plan = "struct TilePlan {\n  int rows = 1;  // bool of a comment\n  bool is_wide = false;\n};\n";
  EXPECT_EQ(Findings(CheckPlans, "kernels/plan/attention/tiles.h", plan), 1u);
  EXPECT_EQ(Findings(CheckPlans, "kernels/cuda/attention/tile.h", plan), 0u);
  EXPECT_EQ(Findings(CheckPlans, "kernels/plan/gpu_traits.h", "struct Traits {\n  bool has_wgmma = false;\n};\n"), 0u);
  EXPECT_EQ(Findings(CheckPlans, "kernels/plan/a.h", "struct APlan {\n  bool Takes(int rows) const;\n};\n"), 0u);
}

TEST(ChooserRule, KernelsReadPlans) {
  EXPECT_EQ(Findings(CheckChooser, "kernels/cuda/attention/hopper/wide.cu", "if (ctx.traits.has_wgmma) Run();\n"), 1u);
  EXPECT_EQ(Findings(CheckChooser, "kernels/cuda/attention/hopper/wide.cu", "Run();  // traits.has_wgmma\n"), 0u);
  EXPECT_EQ(Findings(CheckChooser, "kernels/cuda/runtime/gpu_probe.cu", "traits.has_wgmma = true;\n"), 0u);
  EXPECT_EQ(Findings(CheckChooser, "kernels/plan/attention/plan.cc", "if (gpu.traits.has_wgmma) return;\n"), 0u);
}

TEST(RoutesRule, AreTakenAndNameTheirSource) {
  const auto findings = [](const std::string& comment, const std::string& plan) {
    return CheckRoutes({{"kernels/plan/x/route.h", "enum class XRoute : uint8_t {\n  kRows,  // " + comment + "\n};\n"},
                        {"kernels/plan/x/route.cc", "case kRows: return \"rows\";\n"},
                        {"kernels/plan/x/plan.cc", plan}})
        .size();
  };
  EXPECT_EQ(findings("row.cu: one at a time", "plan.route = XRoute::kRows;\n"), 0u);
  EXPECT_EQ(findings("cuBLAS", "plan.route = XRoute::kRows;\n"), 0u);
  EXPECT_EQ(findings("one at a time", "plan.route = XRoute::kRows;\n"), 1u);
  EXPECT_EQ(findings("row.cu: one at a time", "plan.route = XRoute::kRowsAll;\n"), 1u);
}

}  // namespace
}  // namespace stoch::test
