// SPDX-License-Identifier: Apache-2.0
// stoch sweep with seeds and a reference: summaries, differences by window, and the same bytes however rows came about.

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "tests/support/shared_folder.h"
#include "tests/support/temp_dir.h"
#include "tests/tools/cli_support.h"

namespace stoch::test {
namespace {

class SweepSeedsCli : public testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "Once upon a time, a little dog saw " + std::to_string(i) + " birds. ";
    WriteFile(folder_ / "text", text);
  }
  void Plan(const std::string& rest) {
    WriteFile(folder_ / "plan.json", R"({"model": ")" + DemoModel() + R"(", "text": ")" +
                                         std::string(folder_ / "text") +
                                         R"(", "ctx": 16, "max_windows": 3, "metrics": ["ppl"], )" + rest + "}");
  }
  ProcessResult Sweep(const std::string& out, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"sweep", folder_ / "plan.json", "-o", folder_ / out, "--device",
                                          "cpu",   "--threads",           "1",  "--quiet"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunStoch(arguments);
  }
  std::string Text(const std::string& out) const { return ReadFile(folder_ / out); }
  std::vector<nlohmann::json> Lines(const std::string& out) const {
    std::vector<nlohmann::json> lines;
    std::istringstream text(Text(out));
    for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  TempDir folder_;
};

constexpr const char* kTwoOfThree =
    R"("runs": ["fp32", "source=lfsr,stoc_len=32", "source=random,stoc_len=32"], "seeds": [1, 5, 9], "reference": 1)";

TEST_F(SweepSeedsCli, RowsHaveSeedsAndSummariesFollow) {
  Plan(kTwoOfThree);
  const ProcessResult result = Sweep("whole");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<nlohmann::json> lines = Lines("whole");
  ASSERT_EQ(lines.size(), 7u + 3u);
  EXPECT_EQ(lines[0]["config"], "fp32");
  EXPECT_FALSE(lines[0].contains("seed"));
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(lines[1 + i]["seed"], (std::vector<int>{1, 5, 9})[i % 3]) << i;
  EXPECT_EQ(lines[2]["config"], "preset=halved,stoc_len=32,source=lfsr,source_seed=5");
  const nlohmann::json& summary = lines[8];
  EXPECT_EQ(summary["schema"], "stoch-sweep-summary-v1");
  EXPECT_EQ(summary["config"], "preset=halved,stoc_len=32,source=lfsr");
  EXPECT_EQ(summary["n"], 3);
  EXPECT_EQ(summary["failed"], 0);
  EXPECT_EQ(summary["seeds"], nlohmann::json::parse("[1, 5, 9]"));
  double sum = 0, squares = 0;
  for (size_t i = 1; i <= 3; ++i) sum += lines[i]["metrics"]["ppl"].get<double>();
  const double mean = sum / 3;
  for (size_t i = 1; i <= 3; ++i) squares += std::pow(lines[i]["metrics"]["ppl"].get<double>() - mean, 2);
  const nlohmann::json& ppl = summary["metrics"]["ppl"];
  EXPECT_NEAR(ppl["mean"].get<double>(), mean, 1e-12 * mean);
  EXPECT_NEAR(ppl["sd"].get<double>(), std::sqrt(squares / 2), 1e-9 * mean);
  EXPECT_NEAR(ppl["ci95_high"].get<double>(), mean + 4.302653 * std::sqrt(squares / 2 / 3), 1e-9 * mean);
  EXPECT_GT(ppl["sd"].get<double>(), 0) << "seeds reach no operator";
  EXPECT_EQ(lines[7]["n"], 1);
  EXPECT_TRUE(lines[7]["metrics"]["ppl"]["sd"].is_null());
}

TEST_F(SweepSeedsCli, FaultsAreDrawnBySeedsUnlessASettingNamesOne) {
  Plan(
      R"("runs": ["stoc_len=32,fault_weight=0.02", "stoc_len=32,source=lfsr,fault_weight=0.02,fault_seed=7"], "repeat": 2)");
  ASSERT_EQ(Sweep("faults", {"--plot", "x=fault_weight,y=ppl,error=sd,file=" + std::string(folder_ / "faults.svg")})
                .exit_code,
            0);
  const std::vector<nlohmann::json> lines = Lines("faults");
  ASSERT_EQ(lines.size(), 4u + 2u);
  EXPECT_EQ(lines[1]["config"], "preset=halved,stoc_len=32,source_seed=2,fault_weight=0.02,fault_seed=2");
  EXPECT_NE(lines[0]["metrics"]["ppl"], lines[1]["metrics"]["ppl"]);
  EXPECT_EQ(lines[3]["config"], "preset=halved,stoc_len=32,source=lfsr,source_seed=2,fault_weight=0.02,fault_seed=7");
  EXPECT_EQ(lines[4]["config"], "preset=halved,stoc_len=32,fault_weight=0.02");
  EXPECT_GT(lines[4]["metrics"]["ppl"]["sd"].get<double>(), 0);
  EXPECT_NE(Text("faults.svg").find("</svg>"), std::string::npos);
}

TEST_F(SweepSeedsCli, FiguresHaveMeansWithBarsOrEveryRun) {
  Plan(R"("grid": {"source": ["lfsr"], "stoc_len": [32, 64]}, "repeat": 3)");
  const auto figure = [&](const std::string& more) {
    const ProcessResult result = Sweep(
        "figures", {"--resume", "--plot", "x=stoc_len,y=ppl" + more + ",file=" + (folder_ / "figure.svg").string()});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return ReadFile(folder_ / "figure.svg");
  };
  const auto count = [](const std::string& text, const std::string& part) {
    int found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  };
  const std::string runs = figure("");
  EXPECT_EQ(count(runs, "<circle"), 6);
  EXPECT_EQ(count(runs, "Pareto front"), 0);
  for (const char* kind : {",error=ci", ",error=sd", ",error=minmax"}) {
    const std::string means = figure(kind);
    EXPECT_EQ(count(means, "<circle"), 2) << kind;
    EXPECT_EQ(count(means, "Pareto front"), 1) << kind;
  }
  EXPECT_NE(figure(",error=ci"), figure(",error=sd"));
  EXPECT_EQ(count(figure(",kind=box"), "<circle"), 0);
  ExpectRefused(Sweep("none", {"--plot", "x=stoc_len,y=ppl,baseline=fp32"}), "baseline=fp32: allowed is a number");
  Plan(R"("grid": {"stoc_len": [32]}, "runs": ["fp32"])");
  std::filesystem::remove(folder_ / "figures");
  EXPECT_EQ(count(figure(",baseline=fp32,front=0,size=300x200"), ">fp32<"), 1);
  EXPECT_EQ(count(figure(",baseline=2.5,front=0"), ">2.5<"), 1);
  EXPECT_EQ(count(figure(",front=0"), "Pareto"), 0);
  const std::string sized = figure(",font=20,baseline=fp32,baseline=9.5");
  EXPECT_EQ(count(sized, ">stream length (cycles)<") + count(sized, ">perplexity<"), 2);
  EXPECT_EQ(count(sized, ">32<"), 1) << "a tick at the only value";
  EXPECT_GT(count(sized, "font-size=\"20.00\""), 3);
  EXPECT_EQ(count(sized, ">9.5<"), 1);
  ExpectRefused(Sweep("none", {"--plot", "x=stoc_len,y=ppl,font=3"}), "font=3: allowed is 6 to 36");
  ExpectRefused(Sweep("none", {"--plot", "x=layer,y=ppl"}), "x=layer goes with y=stoc_len and the metric trace");
  ExpectRefused(Sweep("none", {"--plot", "x=stoc_len,y=ppl,size=10x10"}), "size=10x10: allowed is 240x180");
  ExpectRefused(Sweep("none", {"--plot", "x=stoc_len,y=ppl,error=ci"}), "the plan has no seeds");
  ExpectRefused(Sweep("none", {"--plot", "x=stoc_len,y=ppl,error=range"}), "error=ci|sd|minmax");
}

TEST_F(SweepSeedsCli, LengthsByLayerAreInTheOrderOfOperators) {
  WriteFile(folder_ / "plan.json",
            R"({"model": ")" + DemoModel() + R"(", "text": ")" + std::string(folder_ / "text") +
                R"(", "ctx": 16, "max_windows": 1, "metrics": ["trace"], "runs": ["stoc_len=32"]})");
  const ProcessResult result =
      Sweep("trace", {"--plot", "x=layer,y=stoc_len,file=" + (folder_ / "figure.svg").string()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string svg = ReadFile(folder_ / "figure.svg");
  size_t last = 0;
  for (const char* op : {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qk", "av"}) {
    const size_t at = svg.find(">" + std::string(op) + "<");
    ASSERT_NE(at, std::string::npos) << op;
    EXPECT_GT(at, last) << op;
    last = at;
  }
}

TEST_F(SweepSeedsCli, ADifferenceIsOfTheSameWindowsAndSeed) {
  Plan(kTwoOfThree);
  ASSERT_EQ(Sweep("whole").exit_code, 0);
  const std::vector<nlohmann::json> lines = Lines("whole");
  EXPECT_FALSE(lines[2].contains("paired"));  // the reference itself
  const auto& own = lines[5]["metrics"]["nll_by_window"];
  const auto& other = lines[2]["metrics"]["nll_by_window"];
  ASSERT_EQ(own.size(), 3u);
  double mean = 0, total = 0;
  for (size_t w = 0; w < 3; ++w) {
    EXPECT_EQ(own[w]["tokens"], 15);
    mean += (own[w]["nll"].get<double>() - other[w]["nll"].get<double>()) / 15 / 3;
    total += own[w]["nll"].get<double>();
  }
  EXPECT_NEAR(total / 45, lines[5]["metrics"]["mean_nll"].get<double>(), 1e-12);
  EXPECT_NEAR(lines[5]["paired"]["mean"].get<double>(), mean, 1e-12);
  EXPECT_NEAR(lines[5]["paired"]["ratio"].get<double>(), std::exp(mean), 1e-12);
  EXPECT_EQ(lines[9]["reference"]["config"], "preset=halved,stoc_len=32,source=lfsr");
  const double means = (lines[4]["paired"]["mean"].get<double>() + lines[5]["paired"]["mean"].get<double>() +
                        lines[6]["paired"]["mean"].get<double>()) /
                       3;
  EXPECT_NEAR(lines[9]["reference"]["mean"]["mean"].get<double>(), means, 1e-12);
  // An exact reference has one run, which every seed is compared with.
  Plan(R"("runs": ["fp32", "source=lfsr,stoc_len=32"], "repeat": 2, "reference": "fp32")");
  ASSERT_EQ(Sweep("exact").exit_code, 0);
  const std::vector<nlohmann::json> exact = Lines("exact");
  ASSERT_EQ(exact.size(), 3u + 2u);
  EXPECT_NE(exact[1]["paired"]["mean"], exact[2]["paired"]["mean"]);
}

TEST_F(SweepSeedsCli, ShardsAndResumptionsGiveTheSameBytes) {
  Plan(kTwoOfThree);
  ASSERT_EQ(Sweep("whole").exit_code, 0);
  const std::string whole = Text("whole");
  std::vector<std::string> merge = {"sweep", folder_ / "plan.json", "--merge"};
  for (const std::string shard : {"0", "1"}) {
    ASSERT_EQ(Sweep(shard, {"--shard", shard + "/2"}).exit_code, 0);
    EXPECT_EQ(Text(shard).find("summary"), std::string::npos);
    merge.push_back(folder_ / shard);
  }
  merge.insert(merge.end(), {"-o", folder_ / "merged"});
  ASSERT_EQ(RunStoch(merge).exit_code, 0);
  EXPECT_EQ(Text("merged"), whole);
  EXPECT_EQ(Sweep("whole", {"--resume"}).exit_code, 0);
  EXPECT_EQ(Text("whole"), whole);
  // Rows that are missing are run, and the lines after them made again.
  const size_t second = whole.find('\n', whole.find('\n') + 1) + 1;
  WriteFile(folder_ / "part", whole.substr(0, second) + whole.substr(whole.rfind("{\"schema\":\"stoch-sweep-summary")));
  EXPECT_EQ(Sweep("part", {"--resume"}).exit_code, 0);
  EXPECT_EQ(Text("part"), whole);
  merge.erase(merge.begin() + 1);
  merge.back() = folder_ / "blind";
  ExpectRefused(RunStoch(merge), "the rows have seeds: give the plan");
}

TEST_F(SweepSeedsCli, RateZeroAndIntegersRunOnceNextToRowsWithSeeds) {
  Plan(R"("grid": {"fault_weight": [0, 0.02]}, "runs": ["arith=int8", "arith=int8,fault_weight=0.02"], "repeat": 2)");
  const ProcessResult result = Sweep("rates");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<nlohmann::json> lines = Lines("rates");
  ASSERT_EQ(lines.size(), 1u + 2 + 1 + 2 + 4);
  for (const size_t i : {0, 3}) EXPECT_FALSE(lines[i].contains("seed")) << lines[i];
  for (const size_t i : {1, 2, 4, 5}) EXPECT_TRUE(lines[i].contains("seed")) << lines[i];
  EXPECT_EQ(lines[6]["n"], 1);
  EXPECT_EQ(lines[7]["n"], 2);
  EXPECT_EQ(lines[8]["config"], lines[3]["config"]);
  // Rate 0 is today's bits.
  Plan(R"("runs": ["stoc_len=128"])");
  ASSERT_EQ(Sweep("plain").exit_code, 0);
  EXPECT_EQ(Lines("plain")[0]["metrics"], lines[0]["metrics"]);
}

// Ten seeds of LFSRs are ten models: one of them loses little, another one most.
TEST_F(SweepSeedsCli, SeedsOfATrainedModelDiffer) {
  STOCH_REQUIRE_SHARED();
  WriteFile(folder_ / "text", ReadFile(SharedFolder() / "text/tinystories_val.txt").substr(0, 20000));
  WriteFile(folder_ / "plan.json", R"({"model": ")" + (SharedFolder() / "models/stories260K").string() +
                                       R"(", "text": ")" + std::string(folder_ / "text") +
                                       R"(", "ctx": 256, "max_windows": 4, "metrics": ["ppl"],)" +
                                       R"( "runs": ["source=lfsr"], "repeat": 10})");
  const ProcessResult result = Sweep("ten");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<nlohmann::json> lines = Lines("ten");
  ASSERT_EQ(lines.size(), 11u);
  const nlohmann::json& ppl = lines[10]["metrics"]["ppl"];
  EXPECT_NEAR(ppl["min"].get<double>(), 5.6, 0.1);
  EXPECT_NEAR(ppl["max"].get<double>(), 26.2, 0.1);
}

TEST_F(SweepSeedsCli, PlansWithoutRandomNumbersAreRefused) {
  const auto refused = [&](const std::string& rest, const std::string& why) {
    Plan(rest);
    ExpectRefused(Sweep("none"), why);
  };
  refused(R"("runs": ["source=lfsr", "stoc_len=32"], "repeat": 3)", "seeds: nothing in run 1 depends on a seed");
  refused(R"("runs": ["fault_weight=0.1,fault_seed=4"], "repeat": 2)", "seeds: nothing in run 0 depends on a seed");
  refused(R"("runs": ["fp32", "arith=int8", "fault_weight=0"], "repeat": 2)", "nothing in the plan depends on a seed");
  refused(R"("runs": ["source=lfsr,source_seed_b=4,scramble=off", "source=list"], "repeat": 2)", "source_list_a");
  refused(R"("runs": ["source=lfsr"], "repeat": 2, "seeds": [1])", "repeat");
  refused(R"("runs": ["source=lfsr"], "seeds": [])", "seeds");
  refused(R"("runs": ["source=lfsr"], "seeds": [3, 3])", "every seed once");
  refused(R"("runs": ["source=lfsr"], "seeds": [-1])", "seeds");
  refused(R"("runs": ["source=lfsr"], "repeat": 2, "reference": 1)", "reference");
  refused(R"("runs": ["source=lfsr"], "repeat": 2, "reference": "stoc_len=32")", "is no configuration of the plan");
}

}  // namespace
}  // namespace stoch::test
