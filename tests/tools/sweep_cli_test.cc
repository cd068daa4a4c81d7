// SPDX-License-Identifier: Apache-2.0
// stoch sweep as a user drives it: kills, shards, figures, and plans that are wrong.

#include <sys/stat.h>

#include <algorithm>

#include "tests/support/temp_dir.h"
#include "tests/tools/cli_support.h"

namespace stoch::test {
namespace {

class SweepCli : public testing::Test {
 protected:
  void SetUp() override {
    const std::string text = BirdsText(60);
    WriteFile(folder_ / "text", text);
    Plan(R"("grid": {"halve": [1, 0], "stoc_len": [16, 32, 64, 128]}, "runs": ["fp32"])");
  }
  void Plan(const std::string& rest, const std::string& metrics = R"(["ppl", "kl", "cycles"])") {
    WriteFile(folder_ / "plan.json",
              R"({"model": ")" + DemoModel() + R"(", "text": ")" + std::string(folder_ / "text") +
                  R"(", "ctx": 16, "max_windows": 2, "array": "8,8,16", "metrics": )" + metrics + ", " + rest + "}");
  }
  std::vector<std::string> Arguments(const std::string& out, const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"sweep", folder_ / "plan.json", "-o", folder_ / out, "--device",
                                          "cpu",   "--threads",           "1",  "--quiet"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  ProcessResult Sweep(const std::string& out, const std::vector<std::string>& more = {}) const {
    return RunStoch(Arguments(out, more));
  }
  std::string Text(const std::string& out) const { return ReadFile(folder_ / out); }

  TempDir folder_;
};

TEST_F(SweepCli, KilledTwiceAndResumedItHasTheSameBytes) {
  ASSERT_EQ(Sweep("whole").exit_code, 0);
  const std::string whole = Text("whole");
  ASSERT_EQ(std::count(whole.begin(), whole.end(), '\n'), 9);
  const auto killed_after = [&](int rows, const std::vector<std::string>& more) {
    ProcessOptions options;
    options.kill_when = [&, rows] {
      struct stat status = {};
      const std::string path = folder_ / "killed";
      if (stat(path.c_str(), &status) != 0) return false;
      const std::string text = ReadFile(path);
      return std::count(text.begin(), text.end(), '\n') >= rows;
    };
    return RunStoch(Arguments("killed", more), options).exit_code;
  };
  EXPECT_EQ(killed_after(2, {}), 128 + 9);
  EXPECT_LT(Text("killed").size(), whole.size());
  WriteFile(folder_ / "killed", Text("killed") + R"({"schema":"stoch-sw)");  // as a kill within a write leaves it
  EXPECT_EQ(killed_after(5, {"--resume"}), 128 + 9);
  const std::string second = Text("killed");
  EXPECT_LT(second.size(), whole.size());
  ExpectRefused(Sweep("killed"), "exists: --resume continues it");
  EXPECT_EQ(Text("killed"), second);
  EXPECT_EQ(Sweep("killed", {"--resume"}).exit_code, 0);
  EXPECT_EQ(Text("killed"), whole);
  EXPECT_EQ(Sweep("killed", {"--resume"}).exit_code, 0);
  EXPECT_EQ(Text("killed"), whole);
  EXPECT_NE(ReadFile(folder_ / "plan.json"), "");
  struct stat status = {};
  EXPECT_NE(stat(std::string(folder_ / "killed.base").c_str(), &status), 0) << "exact logits are left";
}

TEST_F(SweepCli, ShardsMergeToTheBytesOfOneRun) {
  ASSERT_EQ(Sweep("whole", {"--tsv"}).exit_code, 0);
  std::vector<std::string> merge = {"sweep", "--merge"};
  for (const std::string shard : {"0", "1", "2"}) {
    ASSERT_EQ(Sweep(shard, {"--shard", shard + "/3"}).exit_code, 0);
    EXPECT_NE(Text(shard), Text("whole"));
    merge.push_back(folder_ / shard);
  }
  merge.insert(merge.end(), {"-o", folder_ / "merged"});
  EXPECT_EQ(RunStoch(merge).exit_code, 0);
  EXPECT_EQ(Text("merged"), Text("whole"));
  std::swap(merge[2], merge[3]);
  ExpectRefused(RunStoch(merge), "exists");
  // What a merge does not use.
  const std::vector<std::vector<std::string>> unused = {
      {"--shard", "0/2"}, {"--resume"}, {"--tsv"}, {"--json"}, {"--timing"}, {"--device", "cpu"}, {"--ranks", "mpi"}};
  for (const std::vector<std::string>& more : unused) {
    std::vector<std::string> words = merge;
    words.back() = folder_ / "other";
    words.insert(words.end(), more.begin(), more.end());
    ExpectRefused(RunStoch(words), more[0] + " excludes --merge");
  }
  ExpectRefused(Sweep("x", {"--shard", "3/3"}), "--shard 3/3");
  ExpectRefused(Sweep("x", {"--shard", "1"}), "--shard 1");
  ExpectRefused(Sweep("0", {"--resume", "--shard", "1/3"}), "another sweep, version or shard");
}

TEST_F(SweepCli, RowsSayWhatPerplexitySays) {
  const ProcessResult result = Sweep("rows", {"--tsv", "--plot", "x=mac_avg_stoc_len,y=ppl,by=halve,log=x"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::vector<nlohmann::json> rows;
  std::istringstream lines(Text("rows"));
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(rows.size(), 9u);
  const auto direct =
      ExpectJson(RunStoch(WithDemo("perplexity", {"--file", folder_ / "text", "--ctx", "16", "--max-windows", "2",
                                                  "--sc", "stoc_len=32", "--json", "--array", "8,8,16"})));
  EXPECT_EQ(rows[1]["config"], "preset=halved,stoc_len=32");
  EXPECT_EQ(rows[1]["metrics"]["ppl"], direct["results"][0]["ppl"]);
  EXPECT_EQ(rows[1]["sc_cost"], direct["results"][0]["sc_cost"]);
  EXPECT_EQ(rows[1]["metrics"]["cycles"], direct["results"][0]["sc_cost"]["array"]["cycles"]);
  EXPECT_EQ(rows[8]["config"], "fp32");
  EXPECT_EQ(rows[8]["metrics"]["kl"]["kld"]["mean"], 0.0);
  EXPECT_GT(rows[0]["metrics"]["kl"]["kld"]["mean"], rows[3]["metrics"]["kl"]["kld"]["mean"]);
  EXPECT_TRUE(rows[8]["sc_cost"].is_null());
  EXPECT_EQ(result.out.rfind("model\tconfig\tmetric\tvalue\n", 0), 0u);
  EXPECT_NE(result.out.find("demo\tpreset=halved,stoc_len=32\tppl\t" + rows[1]["metrics"]["ppl"].dump() + "\n"),
            std::string::npos);
  const std::string svg = Text("rows.svg");
  for (const char* part :
       {"<svg ", ">halve = 1<", ">halve = 0<", ">Pareto front<", ">average stream length (cycles)<"}) {
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  }
}

TEST_F(SweepCli, RunsOfEqualOperatorsAreRunOnce) {
  Plan(R"("runs": ["stoc_len=16", "stoc_len=16,source_seed=7", "stoc_len=24", "stoc_len=16,source=lfsr",
        "stoc_len=16,source=lfsr,source_seed=7"])",
       R"(["ppl"])");
  const ProcessResult result = Sweep("whole");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("which are not run but copied: 1 (as 0)\n"), std::string::npos) << result.err;
  std::vector<std::string> loud = Arguments("loud", {});
  std::erase(loud, "--quiet");
  const std::string told = RunStoch(loud).err;  // the same numbers as in the warning
  EXPECT_NE(told.find("counted from 0"), std::string::npos) << told;
  EXPECT_NE(told.find("run 1 (2 of 5): preset=halved,stoc_len=16,source_seed=7\n"), std::string::npos) << told;
  std::vector<nlohmann::json> rows;
  std::istringstream lines(Text("whole"));
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_EQ(rows[1]["same_as"], rows[0]["key"]);
  EXPECT_EQ(rows[1]["metrics"], rows[0]["metrics"]);
  EXPECT_EQ(rows[1]["sc_cost"], rows[0]["sc_cost"]);
  EXPECT_NE(rows[1]["config"], rows[0]["config"]);
  for (const size_t i : {0u, 2u, 3u, 4u}) EXPECT_FALSE(rows[i].contains("same_as")) << i;
  EXPECT_NE(rows[4]["metrics"]["ppl"], rows[3]["metrics"]["ppl"]);  // these seeds reach the operators
  // Where the first is in another shard, the row is run and has the same bytes.
  std::vector<std::string> merge = {"sweep", "--merge"};
  for (const std::string shard : {"0", "1"}) {
    ASSERT_EQ(Sweep(shard, {"--shard", shard + "/2"}).exit_code, 0);
    merge.push_back(folder_ / shard);
  }
  merge.insert(merge.end(), {"-o", folder_ / "merged"});
  ASSERT_EQ(RunStoch(merge).exit_code, 0);
  EXPECT_EQ(Text("merged"), Text("whole"));
}

TEST_F(SweepCli, JsonSaysWhatWasWritten) {
  Plan(R"("runs": ["fp32", "stoc_len=16"])", R"(["ppl"])");
  const auto json = ExpectJson(Sweep("rows", {"--json"}));
  EXPECT_EQ(json["output"], (folder_ / "rows").string());
  EXPECT_EQ(json["rows"], 2);
  EXPECT_EQ(json["failed"], 0);
}

TEST_F(SweepCli, ProfilesAndEnergyAreMetrics) {
  WriteFile(folder_ / "energy.json", R"({"schema": "stoch-energy-v1", "unit": "pJ", "process": "test",
    "actions": {"sc_mac_cycle": {"energy": 2, "source": "made up for a test"}}})");
  Plan(R"("energy": ")" + std::string(folder_ / "energy.json") + R"(", "runs": ["stoc_len=32", "fp32"])",
       R"(["energy", "profile", "trace"])");
  const ProcessResult result = Sweep("rows");
  ASSERT_EQ(result.exit_code, 0) << result.err << Text("rows");
  std::istringstream lines(Text("rows"));
  std::string line;
  std::getline(lines, line);
  const nlohmann::json row = nlohmann::json::parse(line);
  const nlohmann::json& metrics = row["metrics"];
  EXPECT_EQ(metrics["energy"]["total"].get<double>(), 2 * row["sc_cost"]["mac_cycles"].get<double>());
  EXPECT_EQ(metrics["trace"]["schema"], "scmp-trace-summary-v1");
  ASSERT_EQ(metrics["trace"]["groups"].size(), 45u);
  EXPECT_EQ(metrics["trace"]["groups"][0]["calls"], 2);
  ASSERT_GE(metrics["profile"].size(), 45u);  // five layers of nine operators
  EXPECT_EQ(metrics["profile"][0]["op"], "q_proj");
  EXPECT_GT(metrics["profile"][0]["mse"], 0.0);
  std::getline(lines, line);
  EXPECT_TRUE(nlohmann::json::parse(line)["metrics"]["profile"].is_null());
  EXPECT_TRUE(nlohmann::json::parse(line)["metrics"]["trace"].is_null());
}

TEST_F(SweepCli, AModelWithoutATokenizerTakesOneOfAFolder) {
  Plan(R"("runs": ["stoc_len=32"])", R"(["ppl"])");
  ASSERT_EQ(Sweep("own").exit_code, 0);
  Plan(R"("tokenizer": ")" + DemoModel() + R"(", "runs": ["stoc_len=32"])", R"(["ppl"])");
  ASSERT_EQ(Sweep("given").exit_code, 0);
  const auto row = [&](const char* out) { return nlohmann::json::parse(Text(out)); };
  EXPECT_EQ(row("own")["metrics"], row("given")["metrics"]);
  EXPECT_NE(row("own")["key"], row("given")["key"]);
  std::string plan = ReadFile(folder_ / "plan.json");
  const auto replace = [&](const std::string& from, const std::string& to) {
    plan.replace(plan.find(from), from.size(), to);
    WriteFile(folder_ / "plan.json", plan);
  };
  replace(R"("tokenizer": ")" + DemoModel(), R"("tokenizer": ")" + std::string(folder_ / "nowhere"));
  ExpectRefused(Sweep("none"), "nowhere");
  replace(R"("model": ")" + DemoModel(), R"("model": "random:tinyllama-1.1b)");
  replace(R"("tokenizer": ")" + std::string(folder_ / "nowhere") + R"(", )", "");
  ExpectRefused(Sweep("none"), "has no tokenizer: give tokenizer = ");
}

TEST_F(SweepCli, FailedRunsAreRowsAndAreRedone) {
  Plan(R"("runs": ["fp32", "stoc_len=32"])", R"(["ppl"])");
  const std::vector<std::string> without_room = {"--max-memory", "0=24MiB"};  // for exact weights
  const auto sweep = [&](const std::string& out, std::vector<std::string> more) {
    more.insert(more.end(), without_room.begin(), without_room.end());
    return Sweep(out, more);
  };
  EXPECT_EQ(sweep("rows", {}).exit_code, 1);
  const std::string first = Text("rows");
  EXPECT_NE(first.find("\"error\":"), std::string::npos);
  EXPECT_EQ(std::count(first.begin(), first.end(), '\n'), 2);
  EXPECT_EQ(sweep("rows", {"--resume"}).exit_code, 1);
  EXPECT_EQ(Text("rows"), first);
  EXPECT_EQ(sweep("timed", {"--timing"}).exit_code, 1);
  EXPECT_NE(Text("timed").find("\"elapsed_ms\":"), std::string::npos);
}

TEST_F(SweepCli, WrongPlansAreRefusedBeforeAnyWork) {
  const auto refused = [&](const std::string& rest, const std::string& part,
                           const std::string& metrics = R"(["ppl"])") {
    Plan(rest, metrics);
    ExpectRefused(Sweep("none"), part);
    struct stat status = {};
    EXPECT_NE(stat(std::string(folder_ / "none").c_str(), &status), 0) << part;
  };
  refused(R"("grid": {"stoc_len": [64, 129]})", "run 1 (stoc_len=129)");
  refused(R"("runs": ["99.q_proj.stoc_len=32"])", "layers 0..4");
  refused(R"("runs": ["mp=nowhere.json"])", "nowhere.json");
  refused(R"("runs": ["stoc_len=64", "stoc_len=64"])", "same configuration as run 0");
  refused(R"("runs": ["stoc_len=64"])", "magic is none", R"(["ppl", "magic"])");
  refused(R"("runs": ["stoc_len=64"], "energy": "e.json")", "goes together with the metric energy");
  refused(R"("runs": ["stoc_len=64"])", R"(energy takes a table of prices: "energy": "FILE" in the plan)",
          R"(["energy"])");
  refused(R"("grid": {"stoc_len": 64})", R"(grid."stoc_len" = 64: allowed is a list of values, like [64, 128])");
  refused(R"("grid": {})", R"(grid = {}: allowed is an object of lists)");
  refused(R"("runs": ["stoc_len=64"])", R"(metrics = "ppl": allowed is)", R"("ppl")");
  refused(R"("runs": ["stoc_len=64"], "array": "8")", "array");
  refused("\"runs\": []", "at least one run");
  refused(R"("runs": ["stoc_len=64", "fp32,stoc_len=64"])",
          "run 1 (fp32,stoc_len=64): stoc_len=64: has no meaning with fp32");
  refused(R"("runs": [["fp32", "series=a", "mp=t.json"]])",
          "run 0 (fp32,series=a,mp=t.json): mp=t.json: has no meaning");
  refused(R"("base": "fp32", "runs": ["stoc_len=64"])", "stoc_len=64: has no meaning with fp32");
  refused(R"("base": "fp32,halve=0", "runs": ["series=a"])", "halve=0: has no meaning with fp32");
  refused(R"("runs": ["fp32"], "reference": "fp32,halve=0")", "reference (fp32,halve=0): halve=0: has no meaning");
  for (const std::string name : {"mp", "smooth", "mask"}) {
    refused("\"runs\": [\"stoc_len=64\", \"" + name + "=\"]",
            "run 1 (" + name + "=): " + name + "=: expected a value, got nothing");
    refused(R"("runs": ["stoc_len=64"], "files": {")" + name + "\": \"\"}",
            "files." + name + " = \"\": allowed is the name of a file");
  }
  refused(R"("runs": ["stoc_len=64", "fp16"])", "run 1 (fp16): precision fp16 needs a GPU, and --device cpu is a CPU");
  Plan(R"("runs": ["stoc_len=64"])");
  ExpectRefused(Sweep("none", {"--plot", "x=ppl"}), "x=NAME and y=NAME");
  // Before any run: the rows are not begun.
  const std::string plot = "x=mac_avg_stoc_len,y=ppl,file=";
  ExpectRefused(Sweep("none", {"--plot", plot + "/nowhere/plot.svg"}), "/nowhere/plot.svg: cannot be created");
  ExpectRefused(Sweep("none", {"--plot", plot + "plot.png"}), "file: expected NAME.svg");
  ExpectRefused(Sweep("none", {"--plot", ""}), "--plot: expected a value");
  ExpectRefused(RunStoch({"sweep", "-o", folder_ / "none"}), "give a plan");
}

TEST_F(SweepCli, TheBaseIsOfRunsInStreams) {
  Plan(R"("base": "halve=0,stoc_len=32", "runs": ["series=exact,fp32", "scramble=off"])", R"(["ppl"])");
  const ProcessResult result = Sweep("rows");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(Text("rows").find(R"("config":"fp32")"), std::string::npos) << Text("rows");
}

TEST_F(SweepCli, WrongFiguresAreRefusedBeforeAnyWork) {
  Plan(R"("grid": {"stoc_len": [64], "scramble": ["off"]}, "runs": ["fp32"])", R"(["ppl", "kl"])");
  const auto refused = [&](const std::string& plot, const std::string& part) {
    ExpectRefused(Sweep("none", {"--plot", plot}), part);
    struct stat status = {};
    EXPECT_NE(stat(std::string(folder_ / "none").c_str(), &status), 0) << plot;
  };
  refused("x=foo,y=ppl", "x=foo: no row will have it: allowed are numbers of the plan's metrics (kl, ppl)");
  refused("x=stoc_len,y=cycles", "y=cycles: no row will have it");
  refused("x=stoc_len,y=kl.kld.medium", "y=kl.kld.medium: no row will have it");
  refused("x=scramble,y=ppl", "and settings with numbers (stoc_len)");
  refused("x=stoc_len,y=ppl,by=scrambl",
          "by=scrambl: no run has this setting: allowed are those of grid and runs "
          "(scramble, stoc_len)");
  for (const std::string number : {"nan", "inf", "-inf"}) {
    refused("x=stoc_len,y=ppl,baseline=" + number, "baseline=" + number + ": allowed is a number");
  }
  refused("x=stoc_len,y=mac_avg_stoc_len,baseline=fp32", "baseline=fp32: its row will have no mac_avg_stoc_len");
  refused("x=stoc_len,y=ppl,size=nanx300", "size=nanx300: allowed is 240x180");
  // What is within sc_cost is of the model.
  const ProcessResult drawn =
      Sweep("rows", {"--plot", "x=mac_avg_stoc_len_by_op.qk,y=kl.kld.mean,by=scramble,baseline=fp32"});
  EXPECT_EQ(drawn.exit_code, 0) << drawn.err;
}

}  // namespace
}  // namespace stoch::test
