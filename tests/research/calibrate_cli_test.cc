// SPDX-License-Identifier: Apache-2.0
// stoch calibrate mp --metric auto and stoch calibrate mask, as a user drives them.

#include <map>
#include <set>
#include <sstream>

#include "tests/support/temp_dir.h"
#include "tests/tools/cli_support.h"

namespace stoch::test {
namespace {

class CalibrateCli : public testing::Test {
 protected:
  void SetUp() override { WriteFile(folder_ / "text", BirdsText(60)); }

  double Ppl(std::vector<std::string> words) const {
    words.insert(words.begin(), {"--json", "--file", folder_ / "text", "--ctx", "16", "--max-windows", "2"});
    return ExpectJson(RunStoch(WithDemo("perplexity", words)))["results"][0]["ppl"].get<double>();
  }

  TempDir folder_;
};

TEST_F(CalibrateCli, AnOperatorsMetricIsTheBestOfSix) {
  const auto table = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {
        "mp",       "--file", folder_ / "text", "--ctx", "24", "--max-windows",   "2",
        "--levels", "64,16",  "--budget",       "0.6",   "-o", folder_ / "table", "--quiet"};
    words.insert(words.end(), more.begin(), more.end());
    const ProcessResult made = RunStoch(WithDemo("calibrate", words));
    EXPECT_EQ(made.exit_code, 0) << made.err;
    return nlohmann::json::parse(ReadFile(folder_ / "table"));
  };
  struct Best {
    double rho = -2;
    std::string metric;
    int sign = 0;
  };
  std::map<std::string, Best> best;
  for (const std::string metric : {"amax", "l2", "crest"}) {
    for (const int sign : {1, -1}) {
      const nlohmann::json one = table({"--metric", metric, "--sign=" + std::to_string(sign)});
      for (const auto& [op, rho] : one["metric_fidelity_rho"].items()) {
        if (rho.get<double>() > best[op].rho) best[op] = {rho.get<double>(), metric, sign};
      }
    }
  }
  const nlohmann::json chosen = table({"--metric", "auto"});
  ASSERT_EQ(best.size(), 9u);
  std::set<std::string> metrics;
  for (const auto& [op, one] : best) {
    EXPECT_EQ(chosen["metric_fidelity_rho"][op].get<double>(), one.rho) << op;
    EXPECT_EQ(chosen["dispatch_metrics"][op]["metric"].get<std::string>(), one.metric) << op;
    EXPECT_EQ(chosen["dispatch_metrics"][op]["sign"].get<int>(), one.sign) << op;
    metrics.insert(one.metric + std::to_string(one.sign));
  }
  EXPECT_GT(metrics.size(), 1u) << "one metric for all: nothing was chosen";
  ExpectRefused(RunStoch(WithDemo("calibrate", {"mp", "--file", folder_ / "text", "--metric", "auto", "--sign=-1", "-o",
                                                folder_ / "none"})),
                "--sign -1: allowed is 1 with --metric auto");
}

TEST_F(CalibrateCli, TablesOfAParetoAreThoseOfTheirBudgets) {
  const auto run = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"mp", "--file",   folder_ / "text", "--ctx", "24",         "--max-windows",
                                      "1",  "--levels", "64,32,16",       "-o",    folder_ / out};
    words.insert(words.end(), more.begin(), more.end());
    return RunStoch(WithDemo("calibrate", words));
  };
  const auto made = ExpectJson(run("all.json", {"--pareto", "24:50:12", "--sc", "sc_prec=8", "--json"}));
  ASSERT_EQ(made["outputs"].size(), 4u);
  EXPECT_EQ(made["outputs"][3].get<std::string>(), folder_ / "all-plan.json");
  for (const auto& [average, budget] : {std::pair("24", "0.375"), std::pair("36", "0.5625"), std::pair("48", "0.75")}) {
    const ProcessResult one = run("one", {"--budget", budget, "--sc", "sc_prec=8", "--quiet"});
    ASSERT_EQ(one.exit_code, 0) << one.err;
    EXPECT_EQ(ReadFile(folder_ / ("all-" + std::string(average) + ".json")), ReadFile(folder_ / "one")) << average;
  }
  // By divergence, two of the lengths are measured at another level than the first.
  const ProcessResult weighed = run("weighed", {"--pareto", "20:60:20", "--weights", "divergence", "--quiet"});
  ASSERT_EQ(weighed.exit_code, 0) << weighed.err;
  ASSERT_EQ(run("one", {"--budget", "0.9375", "--weights", "divergence", "--quiet"}).exit_code, 0);
  EXPECT_EQ(ReadFile(folder_ / "weighed-60.json"), ReadFile(folder_ / "one"));
  const ProcessResult swept =
      RunStoch({"sweep", folder_ / "all-plan.json", "-o", folder_ / "rows", "--quiet", "--device", "cpu"});
  EXPECT_EQ(swept.exit_code, 0) << swept.err;
  std::istringstream rows(ReadFile(folder_ / "rows"));
  std::vector<std::string> configs;
  for (std::string row; std::getline(rows, row);) {
    configs.push_back(nlohmann::json::parse(row)["config"].get<std::string>());
  }
  ASSERT_EQ(configs.size(), 6u);
  EXPECT_NE(configs[0].find("stoc_len=24"), std::string::npos);
  EXPECT_NE(configs[3].find("mp="), std::string::npos);
  ExpectRefused(run("none", {"--pareto", "32:x"}), "--pareto 32:x: allowed is LO:HI:STEP");
  ExpectRefused(run("none", {"--pareto", "8:32:8"}), "the shortest of --levels is 16");
  ExpectRefused(run("none", {"--pareto", "48:72:8"}), "--pareto 48:72:8: the longest of --levels is 64");
  ExpectRefused(run("none", {"--budget", "1.5"}), "budget 1.5: the longest level takes 1");
  ExpectRefused(run("none", {"--budget", "0.6", "--ref", "128"}), "budget 0.6: the longest level takes 0.5");
  ExpectRefused(run("none", {"--pareto", "32:64:8", "--budget", "0.5"}), "--budget: has no meaning with --pareto");
}

TEST_F(CalibrateCli, MasksLeaveToIntegersWhatLosesMost) {
  const auto mask = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> words = {
        "mask",  "--file",     folder_ / "text",
        "--ctx", "16",         "--max-windows",
        "1",     "--sc",       "attention=exact,arith=fp,q_proj.arith=sc,down_proj.arith=sc,stoc_len=8",
        "-o",    folder_ / out};
    words.insert(words.end(), more.begin(), more.end());
    return RunStoch(WithDemo("calibrate", words));
  };
  const ProcessResult made = mask("mask.json", {"--share", "0.1,0.5,1", "--bits", "8"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  std::vector<std::string> first;  // operator and layer, as ranked
  double before = 1e9;
  std::istringstream rows(made.out);
  for (std::string row; std::getline(rows, row);) {
    std::istringstream cells(row);
    std::string bar, op, layer, streams, integers, difference;
    if (!(cells >> bar >> op >> bar >> layer >> bar >> streams >> bar >> integers >> bar >> difference)) continue;
    if (op != "q_proj" && op != "down_proj") continue;
    EXPECT_NEAR(std::stod(difference), std::stod(streams) - std::stod(integers), 2e-3 * std::stod(streams)) << row;
    EXPECT_LE(std::stod(difference), before) << row;
    before = std::stod(difference);
    first.push_back(op + ' ' + layer);
  }
  ASSERT_EQ(first.size(), 10u) << made.out;  // two operators of five layers
  for (const auto& [share, count] : {std::pair("0.1", 1), std::pair("0.5", 5), std::pair("1", 10)}) {
    const auto json = nlohmann::json::parse(ReadFile(folder_ / ("mask-" + std::string(share) + ".json")));
    std::set<std::string> integers;
    for (const auto& [op, entries] : json["schedule"].items()) {
      ASSERT_EQ(entries.size(), 5u);
      for (size_t layer = 0; layer < 5; ++layer) {
        const auto entry = entries[layer].get<std::string>();
        if (entry == "int8") {
          integers.insert(op + ' ' + std::to_string(layer));
        } else {
          EXPECT_EQ(entry, "sc");
        }
      }
    }
    EXPECT_EQ(integers, std::set<std::string>(first.begin(), first.begin() + count)) << share;
  }
  const std::string streams = "attention=exact,arith=fp,q_proj.arith=sc,down_proj.arith=sc,stoc_len=8";
  EXPECT_EQ(Ppl({"--sc", streams, "--mask", folder_ / "mask-1.json"}),
            Ppl({"--sc", "attention=exact,arith=fp,q_proj.arith=int8,down_proj.arith=int8"}));
  ExpectRefused(mask("none", {"--share", "1.5"}), "--share 1.5: allowed are numbers in 0..1");
  ExpectRefused(mask("none", {}), "give --share");
  ExpectRefused(mask("none", {"--share", "0.5", "--bits", "9"}), "--bits 9: allowed is 2..8");
  // profile prints the same numbers, in int7.
  const ProcessResult seven = mask("seven", {"--share", "0"});
  const auto profile = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"--file", folder_ / "text", "--ctx", "16", "--sc", streams, "--sensitivity"};
    words.insert(words.end(), more.begin(), more.end());
    return RunStoch(WithDemo("profile", words));
  };
  const ProcessResult table = profile({});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_EQ(table.out, seven.out);
  const auto json = ExpectJson(profile({"--json"}));
  EXPECT_EQ(json["schema"], "stoch-sensitivity-v1");
  EXPECT_EQ(json["bits"], 7);
  EXPECT_EQ(json["ctx"], 16);
  EXPECT_EQ(json["model_sha256"].get<std::string>().size(), 64u);
  ASSERT_EQ(json["products"].size(), 10u);
  std::istringstream lines(profile({"-o", "jsonl"}).out), cells(profile({"-o", "csv"}).out);
  std::string line;
  ASSERT_TRUE(std::getline(cells, line));
  EXPECT_EQ(line, "schema,model_sha256,text_sha256,config,bits,layer,op,kl_in_streams,kl_in_integers,difference");
  for (const auto& product : json["products"]) {
    EXPECT_EQ(product["difference"].get<double>(),
              product["kl_in_streams"].get<double>() - product["kl_in_integers"].get<double>());
    ASSERT_TRUE(std::getline(lines, line));
    const auto row = nlohmann::json::parse(line);
    for (const auto& [key, value] : product.items()) EXPECT_EQ(row[key], value) << line;
    EXPECT_EQ(row["config"], json["config"]);
    ASSERT_TRUE(std::getline(cells, line));
    EXPECT_NE(line.find(",7," + product["layer"].dump() + ',' + product["op"].get<std::string>() + ','),
              std::string::npos)
        << line;
  }
  EXPECT_FALSE(std::getline(lines, line) || std::getline(cells, line));
  // Options without effect are refused before any work.
  const std::string trace = folder_ / "trace.json";
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{{"--mode", "propagated"},
                                                                                    {"--heads"},
                                                                                    {"--array", "8,8,8"},
                                                                                    {"--tile-rows", "4"},
                                                                                    {"--energy", "none"},
                                                                                    {"--trace", trace},
                                                                                    {"--plot", trace}}) {
    ExpectRefused(profile(more), more[0] + ": has no meaning with --sensitivity");
  }
  ExpectRefused(profile({"--sc", "stoc_len=8"}), "--sensitivity: takes one --sc, got 2");
  EXPECT_FALSE(std::filesystem::exists(trace));
}

}  // namespace
}  // namespace stoch::test
