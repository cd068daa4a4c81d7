// SPDX-License-Identifier: Apache-2.0
// Names of files and folders that are not UTF-8, in results as JSON, which is: U+FFFD stands for what is not.

#include <filesystem>

#include "tests/support/temp_dir.h"
#include "tests/tools/cli_support.h"

namespace stoch::test {
namespace {

const std::string kName = "m\xff";
const std::string kShown = "m\xef\xbf\xbd";

class Names : public testing::Test {
 protected:
  void SetUp() override {
    model_ = folder_ / kName;
    std::filesystem::create_directory(model_);
    for (const auto& file : std::filesystem::directory_iterator(DemoModel())) {
      std::filesystem::create_symlink(file.path(), std::filesystem::path(model_) / file.path().filename());
    }
    WriteFile(folder_ / "text", BirdsText(20));
  }
  ProcessResult Run(const std::string& command, const std::vector<std::string>& more) const {
    std::vector<std::string> words = {command, "--model", model_, "--device", "cpu", "--threads", "1", "--quiet"};
    words.insert(words.end(), more.begin(), more.end());
    return RunStoch(words);
  }
  std::string File(const std::string& name) const { return folder_ / name; }
  std::vector<std::string> Small(std::vector<std::string> more) const {
    more.insert(more.end(), {"--file", File("text"), "--ctx", "16", "--max-windows", "1"});
    return more;
  }

  TempDir folder_;
  std::string model_;
};

TEST_F(Names, OfModelsAreInEveryResult) {
  EXPECT_EQ(ExpectJson(Run("inspect", {"--json"}))["model"], kShown);
  EXPECT_EQ(ExpectJson(Run("generate", {"--prompt", "Once", "--max-tokens", "1", "--json"}))["model"], kShown);
  EXPECT_EQ(ExpectJson(Run("perplexity", Small({"--json"})))["model"], kShown);
  EXPECT_EQ(ExpectJson(RunStoch({"tokenize", model_, "--prompt", "Once", "--json"}))["ids"].size(), 2u);
  for (const std::vector<std::string>& words : {Small({"profile", "--json"}),
                                                Small({"profile", "--sensitivity", "--json"}),
                                                {"bench", "--json", "-p", "4", "-n", "1", "-r", "1"}}) {
    const ProcessResult result = Run(words[0], {words.begin() + 1, words.end()});
    EXPECT_NE(ExpectJson(result).dump().find(kShown), std::string::npos) << result.out;
  }
}

TEST_F(Names, OfModelsAreInFilesOfParts) {
  ASSERT_EQ(Run("perplexity", Small({"--windows", "0/1", "--nll", File("part")})).exit_code, 0);
  EXPECT_EQ(ExpectJson(RunStoch({"perplexity", "--json", "--merge", File("part")}))["model"], kShown);
}

TEST_F(Names, OfFilesAreInResults) {
  const std::string table = File("y\xff.json");
  const std::vector<std::string> words = {"mp", "--levels", "128,64", "--json", "-o", table};
  EXPECT_EQ(ExpectJson(Run("calibrate", Small(words)))["output"], File("y\xef\xbf\xbd.json"));
  const std::string trace = File("t\xff.jsonl");
  ASSERT_EQ(Run("perplexity", Small({"--trace", trace})).exit_code, 0);
  EXPECT_EQ(ExpectJson(RunStoch({"cost", trace, "--json"}))["trace"], File("t\xef\xbf\xbd.jsonl"));
}

}  // namespace
}  // namespace stoch::test
