// SPDX-License-Identifier: Apache-2.0
// One configuration over many machines: the windows of stoch perplexity, divided and put together.

#include <cstdlib>
#include <filesystem>

#include "tests/support/temp_dir.h"
#include "tests/tools/cli_support.h"

namespace stoch::test {
namespace {

class WindowsCli : public testing::Test {
 protected:
  void SetUp() override {
    const std::string text = BirdsText(60);
    WriteFile(folder_ / "text", text);
  }

  ProcessResult Perplexity(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"--file", folder_ / "text", "--ctx", "16", "--quiet"};
    words.insert(words.end(), more.begin(), more.end());
    return RunStoch(WithDemo("perplexity", words));
  }
  ProcessResult Part(const std::string& windows, const std::string& out, std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--windows", windows, "--nll", folder_ / out});
    return Perplexity(more);
  }
  ProcessResult Merge(const std::vector<std::string>& parts) const {
    std::vector<std::string> words = {"perplexity", "--json", "--merge"};
    for (const std::string& part : parts) words.push_back(folder_ / part);
    return RunStoch(words);
  }
  // The numbers of a run, without its time and what is counted of whole runs alone.
  static std::string Numbers(const ProcessResult& result) {
    nlohmann::json json = ExpectJson(result);
    json["results"][0].erase("elapsed_ms");
    json["results"][0].erase("sc_cost");
    return json.dump();
  }

  TempDir folder_;
};

TEST_F(WindowsCli, ThreeTasksHaveTheNumbersOfOne) {
  const std::string base = folder_ / "base";
  ASSERT_EQ(Perplexity({"--precision", "fp32", "--max-windows", "7", "--kl-base", base}).exit_code, 0);
  for (const std::vector<std::string>& config :
       std::vector<std::vector<std::string>>{{"--precision", "fp32"},
                                             {"--sc", "stoc_len=32"},
                                             {"--sc", "stoc_len=32", "--kl", base},
                                             {"--sc", "stoc_len=32,attention=per_row"}}) {
    std::vector<std::string> words = config;
    words.insert(words.end(), {"--max-windows", "7"});
    std::vector<std::string> whole = words;
    whole.emplace_back("--json");
    const std::string expected = Numbers(Perplexity(whole));
    for (const char* i : {"0", "1", "2"}) {
      const ProcessResult part = Part(std::string(i) + "/3", i, words);
      ASSERT_EQ(part.exit_code, 0) << part.err;
    }
    EXPECT_EQ(Numbers(Merge({"0", "1", "2"})), expected);
    EXPECT_EQ(Numbers(Merge({"2", "0", "1"})), expected);
  }
}

TEST_F(WindowsCli, MoreTasksThanWindows) {
  for (const char* i : {"0", "1", "2"}) ASSERT_EQ(Part(std::string(i) + "/3", i, {"--max-windows", "2"}).exit_code, 0);
  EXPECT_EQ(Numbers(Merge({"0", "1", "2"})), Numbers(Perplexity({"--max-windows", "2", "--json"})));
  EXPECT_EQ(Numbers(Merge({"0", "1"})), Numbers(Merge({"0", "1", "2"}))) << "the third has none";
}

TEST_F(WindowsCli, ATaskWithoutWindowsHasNoNumbers) {
  const nlohmann::json row = ExpectJson(Part("2/3", "2", {"--max-windows", "2", "--json"}))["results"][0];
  EXPECT_EQ(row["windows"], 0);
  for (const char* name : {"ppl", "mean_nll", "ppl_error"}) EXPECT_TRUE(row[name].is_null()) << row;
  const ProcessResult text = Part("2/3", "2", {"--max-windows", "2", "--sc", "stoc_len=32"});
  EXPECT_NE(text.out.find("no windows"), std::string::npos) << text.out;
  EXPECT_EQ(text.out.find("0.0000"), std::string::npos) << text.out;
  EXPECT_EQ(text.out.find("macs"), std::string::npos) << text.out;
}

TEST_F(WindowsCli, MergeRefusesWhatItDoesNotUse) {
  ASSERT_EQ(Part("0/1", "0", {"--max-windows", "1"}).exit_code, 0);
  const auto merge = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"perplexity", "--merge", folder_ / "0"};
    words.insert(words.end(), more.begin(), more.end());
    return RunStoch(words);
  };
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{{"--file", "none"},
                                                                                    {"--kl", "none"},
                                                                                    {"--sc", "stoc_len=32"},
                                                                                    {"--config", "fp32"},
                                                                                    {"--mp", "none"},
                                                                                    {"--model", "none"},
                                                                                    {"--array", "8,8,8"},
                                                                                    {"--trace", folder_ / "trace"},
                                                                                    {"--windows", "0/1"},
                                                                                    {"--device", "cpu"},
                                                                                    {"--verify-transfers"}}) {
    ExpectRefused(merge(more), more[0] + " excludes --merge");
  }
  ExpectRefused(merge({"--kl", "none", "--file", "none", "--ctx", "8"}), "--file excludes --merge");
  EXPECT_EQ(merge({"--json", "--quiet"}).exit_code, 0);
  // Nor does it take them from the environment.
  ASSERT_EQ(setenv("STOCH_MODEL", "/nowhere", 1), 0);
  const ProcessResult with_variable = merge({});
  unsetenv("STOCH_MODEL");
  EXPECT_EQ(with_variable.exit_code, 0) << with_variable.err;
}

TEST_F(WindowsCli, IncompleteSetsAreRefused) {
  const std::vector<std::string> seven = {"--max-windows", "7"};
  for (const char* i : {"0", "1", "2"}) ASSERT_EQ(Part(std::string(i) + "/3", i, seven).exit_code, 0);
  ExpectRefused(Merge({"0", "2"}), "2 of 7 windows are missing: 1, 4");
  ExpectRefused(Merge({"0", "1", "2", "1"}), "1: window 1 is there twice");
  ASSERT_EQ(Part("1/3", "short", {"--max-windows", "6"}).exit_code, 0);
  ExpectRefused(Merge({"0", "short", "2"}), "short: is of another run");
  ASSERT_EQ(Part("1/3", "other", {"--max-windows", "7", "--sc", "stoc_len=64"}).exit_code, 0);
  ExpectRefused(Merge({"0", "other", "2"}), "other: is of another run");
  const std::string whole = ReadFile(folder_ / "1");
  for (const size_t bytes : {size_t{0}, size_t{12}, size_t{40}, whole.size() - 1}) {
    WriteFile(folder_ / "1", whole.substr(0, bytes));
    ExpectRefused(Merge({"0", "1", "2"}), "1: is ");
  }
  WriteFile(folder_ / "1", whole + "x");
  ExpectRefused(Merge({"0", "1", "2"}), "1: is incomplete");
  ExpectRefused(Merge({"text"}), "is no file of perplexity --nll");
  ExpectRefused(Part("3/3", "none"), "--windows 3/3: allowed is i/n");
  ExpectRefused(Perplexity({"--windows", "0/3"}), "give both of them");
  ExpectRefused(Part("0/3", "none", {"--config", "fp32", "--config", "stoc_len=64"}),
                "--windows: divides one configuration");
  ExpectRefused(Part("0/3", "none", {"--kl-base", folder_ / "b"}), "--kl-base has all windows");
  ExpectRefused(Part("0/3", "none", {"--array", "8,8,8"}), "are of whole runs");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "none"));
  ExpectRefused(RunStoch({"perplexity", "--file", folder_ / "text"}), "--model is required");
}

}  // namespace
}  // namespace stoch::test
