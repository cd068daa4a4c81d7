// SPDX-License-Identifier: Apache-2.0
// Values that no option takes: empty ones and words that are no number, of every option of every command; and what an error calls
// the option.

#include <regex>
#include <set>

#include "tests/support/temp_dir.h"
#include "tests/tools/cli_support.h"

namespace stoch::test {
namespace {

struct OptionOfHelp {
  std::string name, type;
};

// Lines of a help as "  -n,--decode INT:INT in [0 - 1048576]  Decode steps": options with a value.
std::vector<OptionOfHelp> OptionsOf(const std::string& command) {
  const std::string help = RunStoch({command, "--help"}).out;
  const std::regex line(R"(\n  (?:-\w,)?(--[a-z0-9-]+)(?:,--[a-z-]+)? (TEXT|INT|UINT|FLOAT)\b)");
  std::vector<OptionOfHelp> options;
  for (std::sregex_iterator at(help.begin(), help.end(), line), end; at != end; ++at) {
    options.push_back({(*at)[1], (*at)[2]});
  }
  return options;
}

std::vector<std::string> CommandsWithOptions() {
  std::vector<std::string> commands;
  for (const std::string& command : EveryCommand()) {
    if (command != "completion" && command != "help" && command != "worker") commands.push_back(command);
  }
  return commands;
}

TEST(Values, AreNotEmptyAndNumbersAreNumbersWhateverTheOption) {
  // Texts, and settings of which there may be none; --config says so where it is a file.
  const std::set<std::string> texts = {"--prompt", "--system", "--sc", "--config"};
  std::set<std::string> seen;
  for (const std::string& command : CommandsWithOptions()) {
    for (const OptionOfHelp& option : OptionsOf(command)) {
      SCOPED_TRACE(command + " " + option.name);
      seen.insert(option.name);
      const bool is_number = option.type != "TEXT";
      if (!is_number && texts.contains(option.name)) continue;
      ExpectRefused(RunStoch({command, option.name, is_number ? "x" : ""}),
                    is_number ? option.name + ": expected a " : option.name + ": expected a value, got an empty one");
    }
  }
  for (const char* name : {"--tokenizer", "--kl-base", "--shard", "--chat-template", "--output", "--model", "--api-key",
                           "--seed", "--temperature", "--port", "--precision"}) {
    EXPECT_TRUE(seen.contains(name)) << name;
  }
}

TEST(Values, ThatAreEmptyAfterAnEqualsSignTakeNoOtherWord) {
  ExpectRefused(RunStoch({"sweep", "plan.json", "--shard=", "-o", "out"}),
                "--shard: expected a value, got an empty one");
  const ProcessResult empty = RunStoch(WithDemo("generate", {"--prompt=", "--max-tokens", "2", "--quiet"}));
  EXPECT_EQ(empty.exit_code, 0) << empty.err;
  EXPECT_EQ(empty.out, RunStoch(WithDemo("generate", {"--prompt", "", "--max-tokens", "2", "--quiet"})).out);
  // A value with the sign, and words that are no option.
  EXPECT_EQ(RunStoch(WithDemo("tokenize", {"--prompt=a="})).out,
            RunStoch(WithDemo("tokenize", {"--prompt", "a="})).out);
}

TEST(Values, AreOfTheOptionAsItWasTyped) {
  ExpectRefused(RunStoch({"bench", "-n", "-1"}), "error: -n: Value -1 not in range");
  ExpectRefused(RunStoch({"bench", "-n-1"}), "error: -n: Value -1 not in range");
  ExpectRefused(RunStoch({"bench", "--decode=-1"}), "error: --decode: Value -1 not in range");
  ExpectRefused(RunStoch({"generate", "demo", "--repeat-penalty", "x"}), "error: --repeat-penalty: expected a number");
  ExpectRefused(RunStoch({"sweep", "plan.json", "-o", ""}), "error: -o: expected a value, got an empty one");
  ExpectRefused(RunStoch({"sweep", "", "-o", "out"}), "error: plan: expected a value, got an empty one");
  ExpectRefused(RunStoch({"tokenize", ""}), "error: MODEL: expected a value, got an empty one");
  ExpectRefused(RunStoch({"tokenize", "--model", ""}), "error: --model: expected a value, got an empty one");
}

TEST(Values, OfNumbersSayWhatIsExpected) {
  ExpectRefused(RunStoch({"serve", "demo", "--port", "99999"}), "--port: Value 99999 not in range 0 to 65535");
  ExpectRefused(RunStoch({"serve", "demo", "--port", "x"}), "--port: expected a whole number in [0 - 65535], got x");
  ExpectRefused(RunStoch({"serve", "demo", "--default-seed", "1.5"}),
                "--default-seed: expected a whole number, got 1.5");
  ExpectRefused(RunStoch({"generate", "demo", "--top-k", "1e3"}), "--top-k: expected a whole number, got 1e3");
  ExpectRefused(RunStoch({"generate", "demo", "--seed", "18446744073709551616"}),
                "--seed: 64 bits do not hold 18446744073709551616");
  ExpectRefused(RunStoch({"generate", "demo", "--top-k", "9223372036854775808"}),
                "--top-k: 64 bits do not hold 9223372036854775808");
  ExpectRefused(RunStoch({"generate", "demo", "--temperature", "inf"}), "--temperature: expected a number, got inf");
  ExpectRefused(RunStoch({"bench", "-p", "8,nine"}), "-p: expected a whole number in [0 - 1048576], got nine");
}

TEST(Models, StandByThemselvesWhereverOneIsTaken) {
  size_t with_model = 0;
  for (const std::string& command : CommandsWithOptions()) {
    const std::string help = RunStoch({command, "--help"}).out;
    if (help.find("--model TEXT") == std::string::npos) continue;
    ++with_model;
    EXPECT_NE(help.find("\n  MODEL TEXT"), std::string::npos) << help.substr(0, 1000);
  }
  EXPECT_GE(with_model, 11u);
  const TempDir folder;
  const std::string text = (folder / "text").string();
  WriteFile(text, BirdsText(40));
  const std::vector<std::string> small = {"--file", text, "--device", "cpu", "--ctx", "32", "--quiet"};
  const auto run = [&](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    const ProcessResult result = RunStoch(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  (void)run({"calibrate", "smoothquant", DemoModel(), "-o", (folder / "scales").string()}, small);
  (void)run({"vectors", DemoModel(), "--op", "0.q_proj", "-o", (folder / "vectors").string()}, small);
  // What takes several values leaves the model to itself.
  (void)run({"calibrate", "mp", "--levels", "128,64", DemoModel(), "-o", (folder / "mp.json").string()}, small);
  (void)run({"perplexity", "--array", "8,8,8", "--tile-rows", "1,8", DemoModel()}, small);
  (void)run({"bench", "--smooth", (folder / "scales").string(), DemoModel(), "-p", "4", "-n", "0", "-r", "1",
             "--precision", "sc", "--device", "cpu"},
            {"--quiet"});
  EXPECT_NE(run({"verify", DemoModel(), "--device", "cpu", "--only", "product.halved"}, {"--quiet"}).find("ok"),
            std::string::npos);
}

// A name that is given twice by mistake, as of a text: a run would end with the text gone.
TEST(Values, AnOutputIsNoFileThatAnotherOptionNames) {
  const TempDir folder;
  const std::string text = (folder / "text").string(), other = (folder / "link").string();
  const std::string content = BirdsText(40);
  WriteFile(text, content);
  std::filesystem::create_symlink("text", other);
  const std::string gone = " would be overwritten, which --";
  const std::vector<std::string> ppl = {"perplexity", DemoModel(), "--file", text, "--ctx", "32", "--device", "cpu"};
  const auto with = [](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return RunStoch(words);
  };
  ExpectRefused(with(ppl, {"--trace", text}), "error: --trace: " + text + gone + "file reads");
  ExpectRefused(with(ppl, {"--precision", "fp32", "--kl-base", other}), "--kl-base: " + other + gone + "file reads");
  ExpectRefused(RunStoch({"calibrate", "smoothquant", DemoModel(), "--file", text, "--ctx", "32", "-o", text}),
                "error: -o: " + text + gone + "file reads");
  ExpectRefused(RunStoch({"cost", text, "--csv", text}), "error: --csv: " + text + " would be overwritten, which ");
  EXPECT_EQ(ReadFile(text), content);
}

}  // namespace
}  // namespace stoch::test
