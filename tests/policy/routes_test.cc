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

TEST(KernelsRule, ServeARouteOrACall) {
  const SourceFile route = {"kernels/plan/attention/route.h",
                            "enum class ARoute : uint8_t {\n  kRows,  // row.cu with a table\n"
                            "  kSplit,  // split/scores.cu, values.cu: cut\n  kTiles,  // tile*.cu\n};\n"};
  const SourceFile calls = {"kernels/calls.h", "struct NormCall;\nstruct NormCall {\n  int x;\n};\n"};
  const std::string bounds = "template <int n>\n__global__ void __launch_bounds__(F(n), 1)\n    ";
  const std::vector<SourceFile> sources = {
      {"kernels/cuda/attention/row.cu", "__global__ void Row(int x) {}\n"},
      {"kernels/cuda/attention/split/scores.cu", bounds + "Scores(const __grid_constant__ Args a) {\n  F(a);\n}\n"},
      {"kernels/cuda/attention/split/values.cu", "static __global__ void Values() {}\n"},
      {"kernels/cuda/attention/tile_mma.cu", "// __global__ void None()\n__global__ void Tile() {}\n"},
      {"kernels/cuda/attention/tile.cu", "Launch(&Tile);\n"}};
  const std::string dir = "kernels/cuda/attention/";
  const std::string row = dir + "row.cu\tRow\tkRows\n";
  const std::string split = dir + "split/scores.cu\tScores\tkSplit\n" + dir + "split/values.cu\tValues\tkSplit\n";
  const std::string tile = dir + "tile_mma.cu\tTile\tkTiles\n";
  const auto findings = [&](const std::string& rows, const SourceFile& more) {
    std::vector<SourceFile> files = sources;
    files.insert(files.end(), {route, calls, more, {"tests/policy/kernels.tsv", "file\tkernel\tserves\n" + rows}});
    return CheckKernels(files).size();
  };
  const std::string all = row + split + tile;
  const SourceFile none = {"README.md", ""};
  EXPECT_EQ(findings(all, none), 0u);
  // A kernel without a row: alone, or next to one in a file that a route names.
  const std::string kernel = "__global__ void Kernel() {}\n";
  for (const std::string path :
       {"attention/new.cu", "linear/new.cuh", "sc/tiles/new.cu", "families/new.cu", "fabric/ring/new.cu"}) {
    EXPECT_EQ(findings(all, {"kernels/cuda/" + path, kernel}), 1u) << path;
  }
  EXPECT_EQ(findings(all, {dir + "row.cu", kernel}), 1u);
  EXPECT_EQ(findings(all, {"kernels/cuda/sampling/pick.cu", kernel}), 0u);
  EXPECT_EQ(findings(all, {dir + "new.cu", "int x;  // __global__ void Kernel()\n"}), 0u);
  // Rows of what is not there, or that say nothing.
  const SourceFile extra = {dir + "new.cu", kernel};
  EXPECT_EQ(findings(all + dir + "new.cu\tKernel\tkRows kTiles NormCall\n", extra), 0u);
  EXPECT_EQ(findings(all + dir + "new.cu\tKernel\tkRows kGone\n", extra), 1u);
  EXPECT_EQ(findings(all + dir + "new.cu\tKernel\n", extra), 2u);
  EXPECT_EQ(findings(all + dir + "new.cu\tOther\tkRows\n", extra), 2u);
  EXPECT_EQ(findings(all + row, none), 1u);
  // A route that nobody serves, and one whose comment names a file that does not serve it.
  EXPECT_EQ(findings(row + split + dir + "tile_mma.cu\tTile\tkRows\n", none), 2u);
  EXPECT_EQ(
      findings(row + tile + dir + "split/scores.cu\tScores\tkSplit\n" + dir + "split/values.cu\tValues\tkRows\n", none),
      1u);
  EXPECT_EQ(CheckKernels({route}).size(), 1u);
}

TEST(RouteNumbersRule, EveryRouteHasOne) {
  const auto findings = [](const std::string& routes, const std::string& table) {
    return CheckRouteNumbers({{"kernels/plan/x/route.h", "enum class XRoute : uint8_t {\n" + routes + "};\n"},
                              {"tests/policy/routes.tsv", "routes\trecord\trow\n" + table},
                              {"docs/performance.md", "| rows | 7 ms |\n"},
                              {"bench/log/x.tsv",
                               "d\tc\tg\tRows, cut\t9 ms\t8 ms\tkept\tkept\nd\tc\tg\tTiles of 64\t\t\tkept\t\n"
                               "d\tc\tg\tRows of 8\t9 ms\t9.5 ms\tlost\tlost\n"
                               "d\tc\tg\tRows of 4\t9 ms\t\tleft out\t\n"}})
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
  // The row of an experiment that lost stands for no route.
  EXPECT_EQ(findings(rows, "kRows kSplit\tbench/log/x.tsv\tRows of 8\n"), 1u);
  EXPECT_EQ(findings(rows, "kRows kSplit\tbench/log/x.tsv\tRows of 4\n"), 1u);
  EXPECT_EQ(findings(rows, "kRows kSplit\tdocs/performance.md\t| rows |\n"), 0u);
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
