// SPDX-License-Identifier: Apache-2.0
// Red cases of the rules of routes.cc.
#include <gtest/gtest.h>

#include <string>

#include "tests/policy/rules.h"

namespace stoch::test {
namespace {

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

TEST(KernelsRule, BelongToARoute) {
  const SourceFile route = {"kernels/plan/attention/route.h",
                            "enum class ARoute : uint8_t {\n  kRows,  // row.cu with a table\n"
                            "  kSplit,  // split/scores.cu, values.cu: cut\n  kTiles,  // tile*.cu\n};\n"};
  const auto findings = [&](const std::string& path, const std::string& text, const std::string& helpers) {
    return CheckKernels({route, {"tests/policy/helper_kernels.tsv", "file\troutes\n" + helpers}, {path, text}}).size();
  };
  const std::string kernel = "__global__ void Kernel() {}\n";
  for (const std::string name : {"row.cu", "split/scores.cu", "split/values.cu", "tile_mma.cu"}) {
    EXPECT_EQ(findings("kernels/cuda/attention/" + name, kernel, ""), 0u) << name;
  }
  for (const std::string name : {"attention/new.cu", "attention/split/row.cu", "attention/values.cu", "linear/new.cuh",
                                 "sc/tiles/new.cu", "attention/tile/mma.cu"}) {
    EXPECT_EQ(findings("kernels/cuda/" + name, kernel, ""), 1u) << name;
  }
  EXPECT_EQ(findings("kernels/cuda/sampling/pick.cu", kernel, ""), 0u);
  EXPECT_EQ(findings("kernels/cuda/attention/new.cu", "int x;  // __global__\n", ""), 0u);
  // Helpers say whom they serve.
  const std::string prepare = "kernels/cuda/attention/prepare.cu";
  EXPECT_EQ(findings(prepare, kernel, prepare + "\tkRows kGone\n"), 0u);
  EXPECT_EQ(findings(prepare, kernel, prepare + "\tkGone\n"), 1u);
  EXPECT_EQ(findings(prepare, kernel, prepare + "\n"), 2u);
  EXPECT_EQ(findings(prepare, "int x;\n", prepare + "\tkRows\n"), 1u);
  EXPECT_EQ(findings("kernels/cuda/attention/row.cu", kernel, "kernels/cuda/attention/row.cu\tkRows\n"), 1u);
  EXPECT_EQ(CheckKernels({route}).size(), 1u);
}

TEST(RouteNumbersRule, EveryRouteHasOne) {
  const auto findings = [](const std::string& routes, const std::string& table) {
    return CheckRouteNumbers({{"kernels/plan/x/route.h", "enum class XRoute : uint8_t {\n" + routes + "};\n"},
                              {"tests/policy/routes.tsv", "routes\trecord\trow\n" + table},
                              {"bench/log/x.tsv", "one\tRows, cut\t9 ms\t8 ms\nTiles of 64\t\t\tkept\n"}})
        .size();
  };
  const std::string rows = "  kRows,  // row.cu\n  kSplit,  // split.cu\n";
  EXPECT_EQ(findings(rows, "kRows kSplit\tbench/log/x.tsv\tRows, cut\n"), 0u);
  EXPECT_EQ(findings(rows, "kRows\tbench/log/x.tsv\tRows, cut\n"), 1u);
  EXPECT_EQ(findings(rows, "kRows\tbench/log/x.tsv\tRows, cut\nkSplit\t-\tnobody has timed it\n"), 0u);
  EXPECT_EQ(findings(rows, "kRows kSplit\tbench/log/x.tsv\tRows, sorted\n"), 1u);
  EXPECT_EQ(findings(rows, "kRows kSplit\tbench/log/x.tsv\tTiles of 64\n"), 1u);  // a row without a number
  EXPECT_EQ(findings(rows, "kRows kSplit\tbench/log/y.tsv\tRows, cut\n"), 1u);
  EXPECT_EQ(findings(rows, "kRows kSplit\tREADME.md\tRows, cut\n"), 2u);
  EXPECT_EQ(findings(rows, "kRows kSplit\tbench/log/x.tsv\tRows, cut\nkSplit\t-\tnone\n"), 1u);
  // At most so many have none.
  std::string many, names;
  for (int i = 0; i < 20; ++i) {
    many += "  kRows" + std::to_string(i) + ",  // row.cu\n";
    names += (i == 0 ? "kRows" : " kRows") + std::to_string(i);
  }
  EXPECT_EQ(findings(many, names + "\t-\tnobody has timed them\n"), 1u);
  EXPECT_EQ(CheckRouteNumbers({}).size(), 1u);
}

}  // namespace
}  // namespace stoch::test
