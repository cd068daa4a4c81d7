// SPDX-License-Identifier: Apache-2.0
// Help, version, completion, and wrong usage.

#include "tests/support/temp_dir.h"
#include "tests/tools/cli_support.h"

namespace stoch::test {
namespace {

constexpr const char* kCommands[] = {"generate", "bench",     "perplexity", "verify",     "inspect", "tokenize",
                                     "serve",    "calibrate", "sweep",      "completion", "help"};

TEST(Usage, HelpNamesEveryCommandAndGivesExamples) {
  const ProcessResult root = RunStoch({"--help"});
  EXPECT_EQ(root.exit_code, 0);
  for (const std::string command : kCommands) {
    EXPECT_NE(root.out.find(command), std::string::npos) << command;
    const ProcessResult help = RunStoch({command, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_NE(help.out.find("Examples:"), std::string::npos) << command;
    EXPECT_EQ(help.err, "");
  }
}

// Where it runs and how much it says is asked in the same way everywhere.
TEST(Usage, EverySubcommandTakesTheCommonOptions) {
  const std::vector<std::string> names = EveryCommand();
  EXPECT_GE(names.size(), 14u);
  for (const std::string& name : names) {
    if (name == "completion" || name == "help") continue;  // they describe the command line, and run nothing
    const std::string help = RunStoch({name, "--help"}).out;
    std::vector<std::string> options = {"--quiet", "--device",    "--device-map", "--max-memory",
                                        "--split", "--pass-rows", "--threads",    "--cpu-variant"};
    if (name != "serve" && name != "worker" && name != "chat") options.emplace_back("--json");  // they print no result
    for (const std::string& option : options) {
      EXPECT_NE(help.find("  " + option + " "), std::string::npos) << name << " " << option;
    }
  }
}

TEST(Usage, CommonOptionsOfCommandsThatUseNoDevice) {
  const std::vector<std::string> words = {"tokenize",  "--model", DemoModel(), "--prompt", "Once upon a time",
                                          "--threads", "1",       "--device",  "cpu",      "--quiet"};
  const ProcessResult result = RunStoch(words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, RunStoch({"tokenize", "--model", DemoModel(), "--prompt", "Once upon a time"}).out);
  EXPECT_EQ(result.err, "");
}

TEST(Usage, HelpPrintsScSettingsAndSubcommands) {
  EXPECT_NE(RunStoch({"help", "sc"}).out.find("\n### stoc_len\n"), std::string::npos);
  EXPECT_EQ(RunStoch({"help", "generate"}).out, RunStoch({"generate", "--help"}).out);
  EXPECT_EQ(RunStoch({"help"}).out, RunStoch({"--help"}).out);
  ExpectRefused(RunStoch({"help", "nothing"}), "sc, man, generate");
}

TEST(Usage, VersionHasBuildFacts) {
  const ProcessResult result = RunStoch({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  for (const char* fact : {"stoch 0.", "commit: ", "compiler: ", "CUDA: ", "backends: cpu", "scalar"}) {
    EXPECT_NE(result.out.find(fact), std::string::npos) << fact << " in " << result.out;
  }
}

TEST(Usage, CompletionIsAValidScript) {
  const TempDir folder;
  for (const std::string shell : {"bash", "zsh"}) {
    const ProcessResult result = RunStoch({"completion", shell});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_NE(result.out.find("--max-tokens"), std::string::npos);
  }
  WriteFile(folder / "script",
            RunStoch({"completion", "bash"}).out +
                "COMP_WORDS=(stoch gen); COMP_CWORD=1; _stoch; [ \"$COMPREPLY\" = generate ] || exit 1\n"
                "COMP_WORDS=(stoch bench --prec); COMP_CWORD=2; _stoch; "
                "[ \"$COMPREPLY\" = --precision ] || exit 2\n");
  EXPECT_EQ(std::system(("bash " + (folder / "script").string()).c_str()), 0);
}

TEST(Usage, WrongUsageIsOneSentence) {
  ExpectRefused(RunStoch({}), "generate, chat, bench");
  ExpectRefused(RunStoch({"sing"}), "sing");
  ExpectRefused(RunStoch({"generate"}), "--model");
  ExpectRefused(RunStoch(WithDemo("generate", {"--modle", "x"})), "--modle");
  ExpectRefused(RunStoch(WithDemo("generate", {"--max-tokens", "many"})), "--max-tokens");
  ExpectRefused(RunStoch(WithDemo("generate", {"--max-tokens", "-3"})), "--max-tokens");
  ExpectRefused(RunStoch(WithDemo("bench", {"-o", "xml"})), "xml");
  ExpectRefused(RunStoch(WithDemo("bench", {"-b", "0"})), "error: -b: Value 0 not in range");
  ExpectRefused(RunStoch({"chat", "--system"}), "error: --system: expected a value, got none");
  ExpectRefused(RunStoch({"bench", "-p"}), "error: -p: expected a value, got none");
  ExpectRefused(RunStoch({"completion", "tcsh"}), "tcsh");
}

TEST(Usage, ALauncherThatIsNotThereIsRefusedBeforeAnyWork) {
  for (const char* launch : {"no-such-launcher -n 2", "/nowhere/mpirun -n 2", "sh;no-such-launcher"}) {
    ExpectRefused(RunStoch({"serve", DemoModel(), "--port", "0", "--launch", launch}), "there is no program ");
  }
}

TEST(Usage, NumbersThatNothingHoldsAreRefusedInAShortSentence) {
  constexpr size_t kShort = 200;
  const std::string many_digits = "99999999999999999999999";
  for (const auto& [words, part] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{{{"--max-tokens", many_digits}, many_digits},
                                                                     {{"--max-tokens", "-3"}, "-3"},
                                                                     {{"--context", many_digits}, many_digits},
                                                                     {{"--seed", many_digits}, "--seed"},
                                                                     {{"--seed", "-" + many_digits}, "--seed"},
                                                                     {{"--top-p", "nan"}, "--top-p"},
                                                                     {{"--temperature", "inf"}, "--temperature"},
                                                                     {{"--temperature", "1e300"}, "1e+300"}}) {
    std::vector<std::string> all = {"--prompt", "a"};
    all.insert(all.end(), words.begin(), words.end());
    const ProcessResult result = RunStoch(WithDemo("generate", all));
    ExpectRefused(result, part);
    EXPECT_LT(result.err.size(), kShort) << result.err;
  }
}

TEST(Usage, WhatIsFarTooLongIsNotSaidAgain) {
  constexpr size_t kBytes = 100'000, kShort = 1000;
  const ProcessResult result = RunStoch(WithDemo("generate", {"--prompt", "a", "--sc", std::string(kBytes, 'x')}));
  ExpectRefused(result, "xxx");
  EXPECT_LT(result.err.size(), kShort);
  std::string letters;
  for (size_t i = 0; i < kBytes / 2; ++i) letters += "\u00e9";
  const ProcessResult cut = RunStoch(WithDemo("generate", {"--prompt", "a", "--sc", letters}));
  ExpectRefused(cut, "\u00e9 ... \u00e9");
}

TEST(Usage, ATextThatNeverEndsIsRefused) {
  ExpectRefused(RunStoch({"tokenize", "--model", DemoModel(), "--file", "/dev/zero"}), "/dev/zero: has more than");
}

TEST(Usage, ContradictionsAreNamed) {
  ExpectRefused(RunStoch(WithDemo("generate", {"--prompt", "a", "--file", "b"})), "--file");
  ExpectRefused(RunStoch(WithDemo("generate", {"--chat", "--prompt", "b"})), "--prompt");
  ExpectRefused(RunStoch(WithDemo("generate", {"--chat", "--json"})), "--json");
  ExpectRefused(RunStoch(WithDemo("generate", {"--prompt", "a", "--precision", "fp32", "--sc", "halve=1"})), "--sc");
  ExpectRefused(RunStoch(WithDemo("generate", {"--prompt", "a", "--system", "b"})), "--chat");
  ExpectRefused(RunStoch(WithDemo("perplexity", {"--file", "x", "--kl", "a", "--kl-base", "b"})), "--kl");
  ExpectRefused(RunStoch(WithDemo("perplexity", {"--file", "x", "--config", "fp32", "--sc", "halve=1"})), "--config");
  ExpectRefused(RunStoch(WithDemo("bench", {"--precision", "fp32", "--sc", "halve=1"})), "--sc");
  ExpectRefused(RunStoch(WithDemo("bench", {"--json", "-o", "csv"})), "--output");
  ExpectRefused(RunStoch(WithDemo("bench", {"-p", "0", "-n", "0"})), "nothing to measure");
  ExpectRefused(RunStoch({"tokenize", "--model", DemoModel(), "--decode", "--no-bos"}), "--no-bos");
  ExpectRefused(RunStoch(WithDemo("verify", {"--list", "--only", "x"})), "--only");
}

TEST(Usage, DevicesAndPrecisionsThatAreNotThere) {
  const std::vector<std::string> demo = {"generate", "--model", DemoModel(), "--prompt", "a"};
  const auto with = [&demo](std::vector<std::string> more) {
    more.insert(more.begin(), demo.begin(), demo.end());
    return RunStoch(more);
  };
  ExpectRefused(with({"--device", "tpu"}), "tpu");
  ExpectRefused(with({"--device", "cuda:99"}), "cuda");
  ExpectRefused(with({"--device", "cpu", "--cpu-variant", "sse9"}), "sse9");
  ExpectRefused(with({"--device", "cpu", "--precision", "fp16"}), "fp16");
  ExpectRefused(with({"--device", "cpu", "--precision", "int4"}), "int4");
}

// Every command says why, before it plans or loads.
TEST(Usage, WhatCannotBeDealtOverDevicesIsRefusedAlike) {
  const std::vector<std::string> model = {
      "--model", "random:gemma-2-2b,layers=2", "--tokenizer", DemoModel(), "--device", "cpu:2", "--split", "sequence",
      "--sc",    "attention=per_row"};
  const auto with = [&model](std::vector<std::string> words) {
    words.insert(words.end(), model.begin(), model.end());
    return RunStoch(words);
  };
  const std::string why = "error: --split sequence needs rows that depend on themselves alone: attention=per_row\n";
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"inspect"}, {"generate", "--prompt", "a"}, {"perplexity", "--file", STOCH_SOURCE_DIR "/README.md"}}) {
    SCOPED_TRACE(words.front());
    ExpectRefused(with(words), why);
  }
  const ProcessResult served = with({"serve"});  // its worker's end is logged first
  EXPECT_EQ(served.exit_code, 2);
  EXPECT_TRUE(served.err.ends_with(why)) << served.err;
}

}  // namespace
}  // namespace stoch::test
