// SPDX-License-Identifier: Apache-2.0
// Red cases of the rules of plans.cc.
#include <gtest/gtest.h>

#include <string>

#include "tests/policy/rules.h"

namespace stoch::test {
namespace {

size_t Findings(Rule rule, const std::string& path, const std::string& text) { return rule({path, text}).size(); }

TEST(PlansRule, HaveNoFlags) {
  const auto findings = [](const std::string& path, const std::string& text) {
    return CheckPlans({{path, text}}).size();
  };
  const std::string header = "kernels/plan/a.h";
  const std::string plan = "struct TilePlan {\n  int rows = 1;  // bool of a comment\n  bool is_wide = false;\n};\n";
  EXPECT_EQ(findings(header, plan), 1u);
  EXPECT_EQ(findings("kernels/cuda/attention/tile.h", plan), 0u);
  EXPECT_EQ(findings(header, "struct APlan {\n  bool Takes(int rows) const;\n  bool is_a() const { return x; }\n};\n"),
            0u);
  for (const std::string flag : {"bool a = false, b = true;", "bool a{true};", "std::optional<bool> a;",
                                 "std::array<bool, 2> a = {};", "struct Part {\n    bool a;\n  } part;"}) {
    EXPECT_EQ(findings(header, "struct APlan {\n  " + flag + "\n};\n"), 1u) << flag;
  }
  // By whatever name a function returns it.
  const std::string launch = "struct ALaunch {\n  bool is_wide = false;\n};\n";
  EXPECT_EQ(findings(header, launch), 0u);
  EXPECT_EQ(findings(header, launch + "int Plan(const ALaunch& launch);\n"), 0u);
  for (const std::string function : {"ALaunch PlanA(int rows);", "std::optional<ALaunch> Choose(int rows,",
                                     "const ALaunch& Of();", "std::vector<ALaunch> PlanAll(int rows);"}) {
    EXPECT_EQ(findings(header, launch + function + "\n"), 1u) << function;
  }
  EXPECT_EQ(findings(header, launch + "struct BPlan {\n  int rows;\n  ALaunch launch;\n};\n"), 1u);
  EXPECT_EQ(CheckPlans({{header, launch}, {"kernels/plan/b.h", "ALaunch PlanA(int rows);\n"}}).size(), 1u);
  // Structs that are no choice are listed, for as long as they have flags.
  const std::string made = "ScTraits MakeScTraits(int x);\n";
  EXPECT_EQ(findings(header, "struct ScTraits {\n  bool has_bytes = false;\n};\n" + made), 0u);
  EXPECT_EQ(findings(header, "struct ScTraits {\n  int bytes = 0;\n};\n" + made), 1u);
}

TEST(TemplatesRule, ThreeBooleans) {
  const auto findings = [](const std::string& text) { return Findings(CheckTemplates, "kernels/cuda/a.cu", text); };
  EXPECT_EQ(findings("template <int n, bool a, bool b,\n          bool c = false>\n__global__ void Kernel();\n"), 0u);
  EXPECT_EQ(
      findings("template <bool a, int n, bool b,\n          bool c = false, bool d = true>\n__global__ void K();\n"),
      1u);
  EXPECT_EQ(findings("template <bool a, bool b, typename F = G<bool>, bool c>\nvoid F();\n"), 1u);
  EXPECT_EQ(findings("template <bool a, bool b>\nvoid F(bool c, bool d);\ntemplate <bool c, bool d>\nvoid G();\n"), 0u);
  EXPECT_EQ(findings("// template <bool a, bool b, bool c, bool d>\nvoid F();\n"), 0u);
  EXPECT_EQ(Findings(CheckTemplates, "kernels/cpu/a.h", "template <bool a, bool b, bool c, bool d>\nvoid F();\n"), 0u);
}

TEST(ChooserRule, OnlyThePlanReadsTraits) {
  const auto findings = [](const std::string& path, const std::string& text) {
    return CheckChooser({{"kernels/plan/gpu_traits.h",
                          "struct GpuTraits {\n  int sm_count = 0;  // SMs\n  bool has_clusters = false;  // clusters\n"
                          "  bool has_wgmma = false;\n  int64_t max_shared_bytes = 0;\n};\n"},
                         {path, text}})
        .size();
  };
  const std::string kernel = "kernels/cuda/attention/hopper/wide.cu";
  EXPECT_EQ(findings(kernel, "if (ctx.traits.has_wgmma) Run();\n"), 1u);
  EXPECT_EQ(findings(kernel, "const auto& gpu = ctx.traits;\nif (gpu.has_wgmma) Run();\n"), 1u);
  EXPECT_EQ(
      findings(kernel, "bool Wide(const GpuTraits* gpu) { return gpu->has_clusters && gpu->max_shared_bytes > 9; }\n"),
      2u);
  EXPECT_EQ(findings("engine/a.cc", "if (gpu.has_wgmma) Run();\n"), 1u);
  EXPECT_EQ(findings(kernel, "Run(ctx.traits.sm_count);  // traits.has_wgmma\n"), 0u);
  EXPECT_EQ(findings(kernel, "Variant variant{.has_clusters_ = true};\nvariant.has_wgmma_too = Plan(ctx.traits);\n"),
            0u);
  EXPECT_EQ(findings("kernels/plan/attention/plan.cc", "if (gpu.has_wgmma) return;\n"), 0u);
  EXPECT_EQ(findings("tests/kernels/a_test.cc", "if (gpu.has_wgmma) return;\n"), 0u);
  // An exemption is of one trait.
  EXPECT_EQ(findings("kernels/cuda/runtime/gpu_probe.cu", "traits.has_wgmma = true;\n"), 0u);
  EXPECT_EQ(findings("kernels/cuda/rows.cu", "return ctx.traits.has_clusters ? A : B;\n"), 0u);
  EXPECT_EQ(findings("kernels/cuda/rows.cu", "return ctx.traits.has_wgmma ? A : B;\n"), 1u);
  EXPECT_EQ(findings("kernels/cuda/linear/fixed_tile.cu", "return ctx.traits.has_wgmma ? A : B;\n"), 1u);
  // A header without traits would let everything pass.
  EXPECT_EQ(CheckChooser({{kernel, "if (ctx.traits.has_wgmma) Run();\n"}}).size(), 1u);
}

}  // namespace
}  // namespace stoch::test
