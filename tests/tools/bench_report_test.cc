#include "tools/stoch/bench_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace stoch::cli {
namespace {

BenchResult Decode(std::vector<double> samples_ms) {
  BenchResult result;
  result.test = {.prompt = 0, .depth = 64, .batch = 8};
  result.precision = "sc";
  result.samples_ms = std::move(samples_ms);
  result.tokens = 8;
  result.floor_ms = 1;
  return result;
}

TEST(BenchResult, MedianAndSpread) {
  EXPECT_DOUBLE_EQ(Decode({3, 1, 2}).median_ms(), 2);
  EXPECT_DOUBLE_EQ(Decode({4, 1, 2, 3}).median_ms(), 2.5);
  EXPECT_DOUBLE_EQ(Decode({4, 1, 2, 3}).spread(), 3 / 2.5);
}

TEST(FormatBench, EveryForm) {
  const BenchEnvironment environment{.model = "m",
                                     .device = "cpu:0",
                                     .device_name = "chip",
                                     .commit = "abc",
                                     .read_bytes_per_s = 1e9,
                                     .baseline = "fp32"};
  BenchResult result = Decode({4, 2, 3});
  result.baseline_ratio = 0.5;
  const std::string table = FormatBench(environment, {result}, "md");
  EXPECT_NE(table.find("| decode @64 x8 |        sc |         3 | 66.7 % |     2667 |  0.500 |         33.3 % |"),
            std::string::npos)
      << table;
  EXPECT_EQ(FormatBench(environment, {result}, "csv"),
            "test,precision,median ms,spread,tokens/s,x fp32,share of floor\n"
            "decode @64 x8,sc,3,66.7,2667,0.500,33.3\n");
  const nlohmann::json line = nlohmann::json::parse(FormatBench(environment, {result}, "jsonl"));
  EXPECT_EQ(line["samples_ms"], (std::vector<double>{4, 2, 3}));
  EXPECT_EQ(line["depth"], 64);
  EXPECT_EQ(nlohmann::json::parse(FormatBench(environment, {result}, "json"))["results"][0], line);
}

}  // namespace
}  // namespace stoch::cli
