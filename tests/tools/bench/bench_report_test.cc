// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "app/report/bench.h"
#include "app/report/speculation.h"

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
                                     .device = "cpu:0,cpu:1",
                                     .split = "row",
                                     .device_name = "chip",
                                     .device_detail = "variant x",
                                     .commit = "abc",
                                     .read_bytes_per_s = 1e9,
                                     .baseline = "fp32",
                                     .loads = {{.precision = "sc",
                                                .load_ms = 1500,
                                                .decoder_bytes = 2060,
                                                .bytes_per_parameter = 1.03,
                                                .kv_bytes = 64,
                                                .devices = {{.name = "cuda:1", .used_bytes = 77}}}}};
  BenchResult result = Decode({4, 2, 3});
  result.baseline_ratio = 0.5;
  result.fill_ms = 21;
  const std::string table = FormatBench(environment, {result}, "md");
  EXPECT_NE(table.find("| decode @64 x8 |        sc |         3 | 66.7 % |     2667 |  0.500 |         33.3 % |"),
            std::string::npos)
      << table;
  EXPECT_NE(table.find("sc: loaded in 1.5 s, decoder linears 2.06 kB (1.03 bytes per parameter), KV cache 64 B"),
            std::string::npos)
      << table;
  EXPECT_EQ(FormatBench(environment, {result}, "csv"),
            "test,precision,median ms,spread,tokens/s,x fp32,share of floor\n"
            "decode @64 x8,sc,3,66.7,2667,0.500,33.3\n");
  EXPECT_NE(table.find("m on cpu:0,cpu:1 by rows (chip)"), std::string::npos) << table;
  const nlohmann::json line = nlohmann::json::parse(FormatBench(environment, {result}, "jsonl"));
  EXPECT_EQ(line["samples_ms"], (std::vector<double>{4, 2, 3}));
  EXPECT_EQ(line["depth"], 64);
  EXPECT_EQ(line["split"], "row");
  EXPECT_EQ(line["fill_ms"], 21);
  EXPECT_EQ(line["device_detail"], "variant x");
  const nlohmann::json whole = nlohmann::json::parse(FormatBench(environment, {result}, "json"));
  EXPECT_EQ(whole["results"][0], line);
  EXPECT_EQ(whole["loads"][0]["bytes_per_parameter"], 1.03);
  EXPECT_EQ(whole["loads"][0]["devices"][0]["device"], "cuda:1");
  EXPECT_EQ(whole["loads"][0]["devices"][0]["used_bytes"], 77);
}

// Ratios are of runs next to each other: a machine that is slower for a while slows both.
TEST(FormatSpeculation, EveryForm) {
  SpeculationResult result;
  result.prompt = "edits";
  result.sequences = 4;
  result.tokens = 300;
  result.samples_ms = {100, 400, 200};
  result.with_samples_ms = {50, 100, 100};
  result.passes = 75;
  result.with_passes = 40;
  result.drafts = {.passes = 30, .drafted = 90, .accepted = 35};
  EXPECT_DOUBLE_EQ(result.tokens_per_s(), 1500);
  EXPECT_DOUBLE_EQ(result.with_tokens_per_s(), 3000);
  EXPECT_DOUBLE_EQ(result.gain(), 2);
  SpeculationEnvironment environment;
  environment.model = "m";
  environment.device = "cpu";
  environment.speculate = "ngram";
  environment.draft_tokens = 7;
  const std::string table = FormatSpeculation(environment, {result}, "md");
  EXPECT_NE(
      table.find("| edits  |         4 |             1500 | 3000 | 2.000 |             75 |   40 |           30 |"),
      std::string::npos)
      << table;
  EXPECT_EQ(table.find("GUESSES CHANGED IDS"), std::string::npos);
  const nlohmann::json line = nlohmann::json::parse(FormatSpeculation(environment, {result}, "jsonl"));
  EXPECT_EQ(line["gain"], 2);
  EXPECT_EQ(line["samples_ms_with"], (std::vector<double>{50, 100, 100}));
  EXPECT_EQ(line["drafts"], (nlohmann::json{{"passes", 30}, {"drafted", 90}, {"accepted", 35}}));
  EXPECT_EQ(nlohmann::json::parse(FormatSpeculation(environment, {result}, "json"))["results"][0], line);
  EXPECT_EQ(line["told"], false);
  EXPECT_EQ(table.find("the answers are told"), std::string::npos);
  environment.told = true;
  EXPECT_NE(FormatSpeculation(environment, {result}, "md").find("the answers are told"), std::string::npos);
  result.same_ids = false;
  EXPECT_NE(FormatSpeculation(environment, {result}, "md").find("GUESSES CHANGED IDS"), std::string::npos);
}

}  // namespace
}  // namespace stoch::cli
