// SPDX-License-Identifier: Apache-2.0
// A sweep over many machines: tasks that are killed, one file of exact logits, one digest, and a merge that knows the plan.

#include <algorithm>
#include <filesystem>
#include <map>

#include "tests/support/scoped_variables.h"
#include "tests/support/temp_dir.h"
#include "tests/tools/cli_support.h"

namespace stoch::test {
namespace {

namespace fs = std::filesystem;

class SweepArrayCli : public testing::Test {
 protected:
  void SetUp() override {
    const std::string text = BirdsText(60);
    WriteFile(folder_ / "text", text);
    WriteFile(folder_ / "other-text", "One day, " + text);
    fs::create_directory(folder_ / "model");
    for (const auto& file : fs::directory_iterator(DemoModel()))
      fs::copy(file, folder_ / "model" / file.path().filename());
  }

  void Plan(const std::string& runs, const std::string& metrics = R"(["ppl"])", const std::string& more = "") const {
    WriteFile(plan_, R"({"model": ")" + model_ + R"(", "text": ")" + std::string(folder_ / "text") +
                         R"(", "ctx": 16, "max_windows": 2, "metrics": )" + metrics + ", " + runs + more + "}");
  }
  // With max_windows among `rest`.
  void WindowsPlan(const std::string& rest, const std::string& metrics = R"(["ppl"])") const {
    WriteFile(plan_, R"({"model": ")" + model_ + R"(", "text": ")" + std::string(folder_ / "text") +
                         R"(", "ctx": 16, "metrics": )" + metrics + ", " + rest + "}");
  }
  // Of a table of lengths: rows of every operator run at 64 or at 16.
  static std::string Defaults() {
    std::string defaults;
    for (const char* op : {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qk", "av"}) {
      defaults += (defaults.empty() ? "\"" : ", \"") + std::string(op) +
                  R"(": {"thresholds": [0.5], "metric_lo": 0, "metric_hi": 2})";
    }
    return defaults;
  }
  // Nine runs.
  void NineRuns() const { Plan(R"("grid": {"halve": [1, 0], "stoc_len": [16, 32, 64, 128]}, "runs": ["fp32"])"); }

  ProcessResult Sweep(const std::string& out, const std::vector<std::string>& more = {},
                      const ProcessOptions& options = {}) const {
    std::vector<std::string> words = {"sweep", plan_,       "-o", folder_ / out, "--device",
                                      "cpu",   "--threads", "1",  "--quiet"};
    words.insert(words.end(), more.begin(), more.end());
    return RunStoch(words, options);
  }
  ProcessResult Merge(const std::vector<std::string>& parts, bool with_plan = true) const {
    fs::remove(folder_ / "merged");
    std::vector<std::string> words = {"sweep"};
    if (with_plan) words.push_back(plan_);
    words.emplace_back("--merge");
    for (const std::string& part : parts) words.push_back(folder_ / part);
    words.insert(words.end(), {"-o", folder_ / "merged"});
    return RunStoch(words);
  }
  ProcessResult Base(const std::string& out, const std::vector<std::string>& more = {}) const {
    std::map<std::string, std::string> options = {
        {"--file", folder_ / "text"}, {"--ctx", "16"}, {"--max-windows", "2"}, {"--precision", "fp32"}};
    for (size_t i = 0; i + 1 < more.size(); i += 2) options[more[i]] = more[i + 1];
    std::vector<std::string> words = {"perplexity", "--model", model_,      "--kl-base", folder_ / out,
                                      "--device",   "cpu",     "--threads", "1",         "--quiet"};
    for (const auto& [name, value] : options) words.insert(words.end(), {name, value});
    return RunStoch(words);
  }
  std::string Text(const std::string& out) const { return ReadFile(folder_ / out); }
  int Lines(const std::string& out) const {
    const std::string text = Text(out);
    return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  }
  // `text` without its last line.
  static std::string Shortened(const std::string& text) {
    return text.substr(0, text.rfind('\n', text.size() - 2) + 1);
  }

  TempDir folder_;
  std::string plan_ = folder_ / "plan.json";
  std::string model_ = folder_ / "model";
};

TEST_F(SweepArrayCli, MergeRefusesEachKindOfIncompleteSet) {
  NineRuns();
  ASSERT_EQ(Sweep("whole").exit_code, 0);
  for (const std::string i : {"0", "1", "2"}) ASSERT_EQ(Sweep(i, {"--shard", i + "/3"}).exit_code, 0);
  EXPECT_EQ(Merge({"0", "1", "2"}).exit_code, 0);
  EXPECT_EQ(Text("merged"), Text("whole"));
  EXPECT_EQ(Merge({"2", "0", "1"}).exit_code, 0) << "the plan says the order";
  EXPECT_EQ(Text("merged"), Text("whole"));

  const std::map<std::string, std::string> all = {{"0", Text("0")}, {"1", Text("1")}, {"2", Text("2")}};
  const auto refused = [&](const ProcessResult& result, const std::string& words, int missing) {
    EXPECT_EQ(result.exit_code, 2) << words;
    EXPECT_NE(result.err.find(words), std::string::npos) << words << " in " << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), missing + 1) << result.err;
    EXPECT_FALSE(fs::exists(folder_ / "merged")) << words;
  };
  for (const auto& [name, text] : all) WriteFile(folder_ / name, Shortened(text));
  const ProcessResult shortened = Merge({"0", "1", "2"});
  refused(shortened, "3 of the 9 runs", 3);
  EXPECT_NE(shortened.err.find("run 7 of 9 is missing: preset=halved,halve=0: stoch sweep " + plan_ +
                               " --shard 1/3 --resume -o " + (folder_ / "1").string()),
            std::string::npos)
      << shortened.err;
  const ProcessResult unknown = Merge({"0", "1", "2"}, false);
  EXPECT_EQ(unknown.exit_code, 0) << "without a plan nobody knows";
  EXPECT_NE(unknown.err.find("not compared with a plan"), std::string::npos);
  for (const std::string i : {"0", "1", "2"}) {  // the commands that it named
    ASSERT_EQ(Sweep(i, {"--shard", i + "/3", "--resume"}).exit_code, 0);
    EXPECT_EQ(Text(i), all.at(i));
  }
  refused(Merge({"0", "2"}), "stoch sweep " + plan_ + " --shard 4/9 -o run-4.jsonl", 3);
  refused(Merge({"0", "1", "2", "1"}), "run 1 of the plan is there twice", 0);
  WriteFile(folder_ / "2", all.at("2") + "{\"sch");
  refused(Merge({"0", "1", "2"}), "torn line", 0);
  WriteFile(folder_ / "2", all.at("2").substr(0, all.at("2").size() - 1));
  refused(Merge({"0", "1", "2"}), "torn line", 0);
  WriteFile(folder_ / "2", "");
  refused(Merge({"0", "1", "2"}), "3 of the 9 runs", 3);
  WriteFile(folder_ / "2", all.at("2"));
  Plan(R"("grid": {"halve": [1, 0], "stoc_len": [16, 32, 64]}, "runs": ["fp32"])");
  refused(Merge({"0", "1", "2"}), "is of another plan or version", 0);
}

// One configuration is more than a machine does in time: rows of shards are of some of its windows.
TEST_F(SweepArrayCli, WindowsOfRunsMergeToTheBytesOfOneRun) {
  WriteFile(folder_ / "mp.json", R"({"stoc_len_levels": [64, 16], "operator_defaults": {)" + Defaults() + "}}");
  WriteFile(folder_ / "energy.json", R"({"schema": "stoch-energy-v1", "unit": "pJ", "process": "test",
    "actions": {"sc_mac_cycle": {"energy": 2, "source": "made up for a test"}}})");
  // Two seeds, equal operators, exact ones, lengths of rows, integers, and attention over whole windows.
  const std::string runs =
      R"("runs": ["stoc_len=32,source=lfsr", "fp32", "stoc_len=16,source=lfsr,mp=)" + std::string(folder_ / "mp.json") +
      R"(", "attention=per_row,stoc_len=32,source=lfsr,q_proj.arith=int4"], "seeds": [3, 4], "reference": 1,
        "array": "8,8,16", "energy": ")" +
      std::string(folder_ / "energy.json") + R"(", "max_windows": 7, "windows_per_row": 3)";
  const std::string metrics = R"(["ppl", "kl", "cycles", "energy"])";
  WindowsPlan(runs, metrics);
  ASSERT_EQ(Sweep("whole").exit_code, 0) << "without --shard a row is a run";
  EXPECT_EQ(Lines("whole"), 7 + 4);
  std::vector<std::string> parts;
  int rows = 0;
  for (const std::string i : {"0", "1", "2", "3", "4"}) {
    const ProcessResult part = Sweep(i, {"--shard", i + "/5"});
    ASSERT_EQ(part.exit_code, 0) << part.err;
    rows += Lines(i);
    parts.push_back(i);
  }
  EXPECT_EQ(rows, 7 * 3);
  EXPECT_EQ(nlohmann::json::parse(Text("1").substr(0, Text("1").find('\n')))["metrics"]["windows"],
            nlohmann::json::parse("[3, 3]"));
  const ProcessResult merged = Merge(parts);
  ASSERT_EQ(merged.exit_code, 0) << merged.err;
  EXPECT_EQ(Text("merged"), Text("whole"));
  EXPECT_EQ(Sweep("merged", {"--resume", "--tsv"}).exit_code, 0) << "nothing is left to do";
  EXPECT_EQ(Text("merged"), Text("whole"));

  ExpectRefused(Merge(parts, false), "rows are of windows of runs: give the plan");
  ExpectRefused(Sweep("none", {"--shard", "0/5", "--tsv"}), "merge them first");
  WriteFile(folder_ / "3", Shortened(Text("3")));
  const ProcessResult missing = Merge(parts);
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_NE(missing.err.find("part 18 of 21 is missing: "), std::string::npos) << missing.err;
  EXPECT_NE(missing.err.find(", windows 0..2: stoch sweep " + plan_ + " --shard 3/5 --resume -o "), std::string::npos)
      << missing.err;
  EXPECT_NE(missing.err.find("1 of the 21 parts"), std::string::npos) << missing.err;
  ASSERT_EQ(Sweep("3", {"--shard", "3/5", "--resume"}).exit_code, 0);
  ASSERT_EQ(Merge(parts).exit_code, 0);
  EXPECT_EQ(Text("merged"), Text("whole"));
}

TEST_F(SweepArrayCli, PartsOfRunsThatFailOrAreChanged) {
  const std::string two = R"(, "max_windows": 4, "windows_per_row": 3)";
  // The second is run in another shard than the first.
  WindowsPlan(R"("runs": ["stoc_len=16", "stoc_len=16,source_seed=7", "fp32"])" + two);
  const std::string room = "0=24MiB";  // none for exact weights
  EXPECT_EQ(Sweep("whole", {"--max-memory", room}).exit_code, 1);
  for (const std::string i : {"0", "1", "2", "3"}) {
    EXPECT_LE(Sweep(i, {"--shard", i + "/4", "--max-memory", room}).exit_code, 1);
  }
  const ProcessResult failed = Merge({"0", "1", "2", "3"});
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_NE(failed.err.find("part 4 failed: fp32, windows 0..2\n"), std::string::npos) << failed.err;
  EXPECT_EQ(Text("merged"), Text("whole"));
  EXPECT_NE(Text("merged").find("\"same_as\""), std::string::npos);

  const std::string part = Text("0");
  const auto changed = [&](const std::string& from, const std::string& to, const std::string& words) {
    std::string text = part;
    ASSERT_NE(text.find(from), std::string::npos) << from;
    WriteFile(folder_ / "0", text.replace(text.find(from), from.size(), to));
    const ProcessResult result = Merge({"0", "1", "2", "3"});
    EXPECT_EQ(result.exit_code, 2) << from;
    EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
    EXPECT_FALSE(fs::exists(folder_ / "merged")) << from;
  };
  changed("\"windows\":[0,3]", "\"windows\":[0,2]", "windows 0..2: has other windows");
  changed("\"nll\":[", "\"nll\":[1,", "windows 0..2: has other windows");
  changed("\"nll\":[", "\"nll\":[[],", "windows 0..2: has other windows");
  changed("\"nll\":", "\"mll\":", "windows 0..2: is not as sweeps write it");
  changed("\"op\":\"k_proj\"", "\"op\":\"v_proj\"", "windows 3..3: counts other operators than the parts before it");
  changed("\"calls\":3", "\"calls\":-3", "calls = \"-3\": allowed is a count");
  changed("stoch-sweep-part-v1", "stoch-sweep-part-v9", "windows 0..2: has other windows");

  WindowsPlan(R"("runs": ["stoc_len=16"], "windows_per_row": 0)");
  ExpectRefused(Sweep("none"), "windows_per_row = 0: allowed is a whole number above 0");
  WindowsPlan(R"("runs": ["stoc_len=16"], "windows_per_row": 69906)");
  ExpectRefused(Sweep("none"), "windows_per_row = 69906: allowed is 1..69905 with windows of 16 tokens");
  for (const std::string metric : {"trace", "profile"}) {
    WindowsPlan(R"("runs": ["stoc_len=16"])" + two, "[\"" + metric + "\"]");
    ExpectRefused(Sweep("none"), "windows_per_row: the metric " + metric + " is of whole runs");
  }
}

TEST_F(SweepArrayCli, MergedRowsThatSayAnErrorAreAFailedCheck) {
  Plan(R"("runs": ["fp32", "stoc_len=32", "stoc_len=64"])", R"(["ppl"])");
  EXPECT_EQ(Sweep("0", {"--shard", "0/2", "--max-memory", "0=24MiB"}).exit_code, 1);  // no room for exact weights
  EXPECT_EQ(Sweep("1", {"--shard", "1/2"}).exit_code, 0);
  const ProcessResult compared = Merge({"0", "1"});
  EXPECT_EQ(compared.exit_code, 1);
  EXPECT_EQ(compared.err, "error: run 0 failed: fp32\n");
  EXPECT_EQ(Lines("merged"), 3);
  EXPECT_EQ(Merge({"0", "1"}, false).exit_code, 1);
}

// A scheduler kills tasks of an array at any moment and starts them again.
TEST_F(SweepArrayCli, FortyEightRunsOverSixteenTasksWithTenKills) {
  Plan(
      R"("grid": {"halve": [1, 0], "scramble": ["bitrev", "off"], "stoc_len": [16, 24, 32, 40, 48, 56, 64, 80, 96, 104, 112, 120]})",
      R"(["ppl", "kl"])");
  ASSERT_EQ(Sweep("whole").exit_code, 0);
  ASSERT_EQ(Lines("whole"), 48);
  ASSERT_EQ(Base("base").exit_code, 0);
  const fs::file_time_type made = fs::last_write_time(folder_ / "base");

  std::vector<std::string> parts;
  int kills = 0;
  for (int task = 0; task < 16; ++task) {
    const std::string out = "part" + std::to_string(task);
    const std::vector<std::string> more = {"--shard", std::to_string(task) + "/16", "--resume", "--kl-base",
                                           folder_ / "base"};
    const int rows_before_kill = task % 3;  // of three
    if (kills < 10) {
      ProcessOptions options;
      options.kill_when = [&] {
        EXPECT_FALSE(fs::exists((folder_ / out).string() + ".base")) << "the base is made once";
        if (!fs::exists(folder_ / out)) return false;
        return Lines(out) >= rows_before_kill;
      };
      kills += Sweep(out, more, options).exit_code == 128 + 9 ? 1 : 0;
    }
    ASSERT_EQ(Sweep(out, more).exit_code, 0);
    parts.push_back(out);
  }
  EXPECT_EQ(kills, 10);
  EXPECT_EQ(fs::last_write_time(folder_ / "base"), made);
  const ProcessResult merged = Merge(parts);
  ASSERT_EQ(merged.exit_code, 0) << merged.err;
  EXPECT_EQ(Text("merged"), Text("whole"));
  WriteFile(folder_ / "part7", Shortened(Text("part7")));
  const ProcessResult missing = Merge(parts);
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_NE(missing.err.find("run 39 of 48 is missing"), std::string::npos) << missing.err;
}

TEST_F(SweepArrayCli, ABaseOfAnythingElseIsRefused) {
  Plan(R"("runs": ["stoc_len=32"])", R"(["ppl", "kl"])");
  const auto sweep = [&](const std::string& base) { return Sweep("rows", {"--kl-base", folder_ / base}); };
  const auto refused = [&](const std::string& base, const std::string& words) {
    ExpectRefused(sweep(base), words);
    EXPECT_FALSE(fs::exists(folder_ / "rows")) << words;
  };
  ASSERT_EQ(Base("text-base", {"--file", folder_ / "other-text"}).exit_code, 0);
  refused("text-base", "another text or tokenizer");
  ASSERT_EQ(Base("ctx-base", {"--ctx", "20"}).exit_code, 0);
  refused("ctx-base", "another window: 20, the plan has 16");
  ASSERT_EQ(Base("short-base", {"--max-windows", "1"}).exit_code, 0);
  refused("short-base", "another number of predictions: 15, the plan has 30");
  fs::copy_file(folder_ / "text", folder_ / "no-base");
  refused("no-base", "is no file of base logits");
  refused("nowhere", "nowhere");
  ASSERT_EQ(RunStoch({"perplexity", "--model", model_, "--file", folder_ / "text", "--ctx", "16", "--max-windows", "2",
                      "--sc", "stoc_len=64", "--kl-base", folder_ / "sc-base", "--device", "cpu", "--quiet"})
                .exit_code,
            0);
  refused("sc-base", "another configuration: preset=halved,stoc_len=64, the plan has fp32");

  ASSERT_EQ(Base("base").exit_code, 0);
  std::string weights = ReadFile(folder_ / "model" / "model.safetensors");
  weights[weights.size() - 2] = static_cast<char>(weights[weights.size() - 2] ^ 1);
  WriteFile(folder_ / "model" / "model.safetensors", weights);
  refused("base", "another model");
  Plan(R"("runs": ["stoc_len=32"])");
  ExpectRefused(sweep("base"), "has no metric kl");
}

TEST_F(SweepArrayCli, TheDigestOfWeightsIsMadeOnce) {
  Plan(R"("runs": ["fp32"])");
  const auto key = [&](const std::vector<std::string>& more = {}) {
    fs::remove(folder_ / "rows");
    const ProcessResult result = Sweep("rows", more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.exit_code == 0 ? nlohmann::json::parse(Text("rows"))["key"].get<std::string>() : "";
  };
  const auto inspect = [&] { return ExpectJson(RunStoch({"inspect", "--model", model_, "--digest", "--json"})); };
  const std::string kept = model_ + ".sha256";
  const std::string true_key = key();
  EXPECT_FALSE(fs::exists(kept)) << "nobody asked for it";
  const auto made = inspect();
  EXPECT_EQ(made["kept_in"], kept);
  EXPECT_EQ(key(), true_key);

  // A wrong digest shows that it is taken.
  const std::string digest = made["sha256"];
  std::string file = ReadFile(kept);
  const std::string right = file;
  file.replace(file.find(digest), digest.size(), std::string(digest.size(), 'a'));
  WriteFile(kept, file);
  EXPECT_NE(key(), true_key);
  ExpectRefused(Sweep("refused", {"--verify-digest"}), kept + ": says aaaa");
  // A damaged file, or one of weights that were changed since, is not taken.
  WriteFile(kept, file.substr(0, file.size() / 2));
  EXPECT_EQ(key(), true_key);
  WriteFile(kept, file);
  fs::last_write_time(folder_ / "model" / "model.safetensors", fs::file_time_type::clock::now());
  EXPECT_EQ(key(), true_key);
  EXPECT_EQ(inspect()["sha256"], digest);
  EXPECT_EQ(key({"--verify-digest"}), true_key);

  fs::remove(kept);
  fs::create_directory(folder_ / "cache");
  const ScopedVariable cache("STOCH_CACHE", (folder_ / "cache").c_str());
  const std::string elsewhere = inspect()["kept_in"];
  EXPECT_EQ(elsewhere.rfind((folder_ / "cache").string(), 0), 0u) << elsewhere;
  EXPECT_TRUE(fs::exists(elsewhere));
  EXPECT_FALSE(fs::exists(kept));
}

}  // namespace
}  // namespace stoch::test
