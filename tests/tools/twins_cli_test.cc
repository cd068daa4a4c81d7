// SPDX-License-Identifier: Apache-2.0
// Options from the environment and from --config, and what is made of the one list of options: the manual page and completions.

#include <cstdlib>

#include "tests/support/temp_dir.h"
#include "tests/tools/cli_support.h"

namespace stoch::test {
namespace {

// A variable of this process, which the program inherits, while the object lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

std::string Text(const std::vector<std::string>& more) {
  const ProcessResult result = RunStoch(WithDemo("generate", more));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

const std::vector<std::string> kPrompt = {"--prompt", "Once upon a time", "--quiet"};

std::vector<std::string> With(std::vector<std::string> more) {
  more.insert(more.begin(), kPrompt.begin(), kPrompt.end());
  return more;
}

TEST(Twins, WhatIsGivenWinsThenTheEnvironmentThenTheFile) {
  const TempDir folder;
  const std::string file = (folder / "stoch.yml").string();
  WriteFile(file, "# of a service\nmax-tokens: 3\ntemperature: 0\n");
  const std::string three = Text(With({"--max-tokens", "3"})), five = Text(With({"--max-tokens", "5"}));
  ASSERT_NE(three, five);
  EXPECT_EQ(Text(With({"--config", file})), three);
  EXPECT_EQ(Text(With({"--config=" + file, "--max-tokens", "5"})), five);
  {
    const Variable tokens("STOCH_MAX_TOKENS", "5");
    EXPECT_EQ(Text(kPrompt), five);
    EXPECT_EQ(Text(With({"--config", file})), five);
    EXPECT_EQ(Text(With({"--config", file, "--max-tokens=3"})), three);
  }
  {
    const Variable named("STOCH_CONFIG", file.c_str());
    const Variable empty("STOCH_MAX_TOKENS", "");  // as compose files set what is not set
    EXPECT_EQ(Text(kPrompt), three);
  }
}

TEST(Twins, FlagsListsAndSettings) {
  const TempDir folder;
  const std::string file = (folder / "stoch.yml").string();
  WriteFile(file,
            "model: " + DemoModel() +
                "\ndevice: cpu\nprompt: Once upon a time\nmax_tokens: 8\nignore-eos: true\nquiet: false\njson: on\n"
                "stop: [girl, boy]\nsc:\n  stoc_len: 64\n  down_proj: {stoc_len: 32, halve: true}\n  preset: halved\n");
  const nlohmann::json of_file = ExpectJson(RunStoch({"generate", "--config", file}));
  const nlohmann::json given =
      ExpectJson(RunStoch({"generate", "--model", DemoModel(), "--device", "cpu", "--prompt", "Once upon a time",
                           "--max-tokens", "8", "--ignore-eos", "--json", "--stop", "girl", "--stop", "boy", "--sc",
                           "preset=halved,stoc_len=64,down_proj.stoc_len=32,down_proj.halve=1"}));
  EXPECT_EQ(of_file["logits_sha256"], given["logits_sha256"]);
  EXPECT_EQ(of_file["text"], given["text"]);
  EXPECT_EQ(of_file["sc"], given["sc"]);
  const Variable flag("STOCH_JSON", "true");
  EXPECT_EQ(ExpectJson(RunStoch(WithDemo("generate", With({"--max-tokens", "2"}))))["ids"].size(), 2u);
}

TEST(Twins, AModelThatIsGivenByPositionIsGiven) {
  const Variable model("STOCH_MODEL", "/nowhere");
  const ProcessResult result =
      RunStoch({"generate", DemoModel(), "--device", "cpu", "--prompt", "Once", "--max-tokens", "1", "--quiet"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  ExpectRefused(RunStoch({"generate", "--device", "cpu", "--prompt", "Once"}), "/nowhere");
}

TEST(Twins, WhatIsGivenKeepsOutWhatItExcludes) {
  const TempDir folder;
  const std::string file = (folder / "stoch.yml").string();
  WriteFile(file, "file: /nowhere\n");
  EXPECT_EQ(Text(With({"--config", file, "--max-tokens", "3"})), Text(With({"--max-tokens", "3"})));
  const Variable prompt("STOCH_PROMPT", "Once");
  ExpectRefused(RunStoch(WithDemo("generate", {"--config", file})), "--prompt excludes --file");
}

TEST(Twins, WhatIsWrongIsNamed) {
  const TempDir folder;
  const std::string file = (folder / "stoch.yml").string();
  const auto refused = [&](const std::string& text, const std::string& part) {
    WriteFile(file, text);
    ExpectRefused(RunStoch(WithDemo("generate", With({"--config", file}))), part);
  };
  refused("max-token: 3\n", "stoch.yml: max-token: stoch generate has no such option");
  refused("config: other.yml\n", "config: stoch generate has no such option");
  refused("max-tokens: 3\nmax_tokens: 4\n", "the option is given twice");
  refused("max-tokens: [3, 4]\n", "max-tokens: the option takes one value");
  refused("max-tokens: {a: 3}\n", "max-tokens: expected a number, a text, true or false");
  refused("ignore-eos: maybe\n", "ignore-eos = maybe: expected true or false");
  refused("max-tokens: many\n",
          "stoch.yml: max-tokens: --max-tokens: expected a whole number in [0 - 1099511627776], got many");
  refused("tokenizer: \"\"\n", "stoch.yml: tokenizer: --tokenizer: expected a value, got an empty one");
  refused("- max-tokens\n", "expected a mapping of options");
  refused("max-tokens: &a 3\n", "stoch.yml");
  ExpectRefused(RunStoch(WithDemo("generate", With({"--config", "/nowhere.yml"}))), "/nowhere.yml");
  ExpectRefused(RunStoch(WithDemo("generate", With({"--config", ""}))), "--config: expected a file");
  const Variable flag("STOCH_IGNORE_EOS", "maybe");
  ExpectRefused(RunStoch(WithDemo("generate", kPrompt)), "STOCH_IGNORE_EOS = maybe: expected true or false");
  const Variable given("STOCH_IGNORE_EOS", "no"), tokens("STOCH_MAX_TOKENS", "many");
  ExpectRefused(RunStoch(WithDemo("generate", kPrompt)),
                "error: STOCH_MAX_TOKENS: --max-tokens: expected a whole number");
}

TEST(Twins, WorkersAndScriptsOfTheShellHaveNone) {
  const Variable shell("STOCH_SHELL", "tcsh");
  EXPECT_EQ(RunStoch({"completion", "bash"}).exit_code, 0);
  EXPECT_EQ(RunStoch({"worker", "--help"}).out.find("--config TEXT"), std::string::npos);
  EXPECT_NE(RunStoch({"serve", "--help"}).out.find("--config TEXT"), std::string::npos);
}

// Next to a service that is called stoch, as that of tools/serve/kubernetes.yml, containers are told its address.
TEST(Twins, LinksOfKubernetesAreNone) {
  const TempDir folder;
  const std::string file = (folder / "stoch.yml").string();
  WriteFile(file, "port: many\n");
  const std::vector<std::string> command = {"serve", "--model", "/nowhere"};
  const Variable link("STOCH_PORT", "tcp://10.0.0.1:8080");
  ExpectRefused(RunStoch(command), "/nowhere");
  const Variable named("STOCH_CONFIG", file.c_str());
  ExpectRefused(RunStoch(command), "stoch.yml: port: --port: expected a whole number in [0 - 65535], got many");
}

TEST(ManPage, HasEveryOptionOfEveryCommand) {
  const ProcessResult page = RunStoch({"help", "man"});
  EXPECT_EQ(page.exit_code, 0);
  for (const char* part :
       {".TH STOCH 1", ".SS stoch serve", "\\-\\-max\\-queue\\fR", "\\fIMODEL\\fR, \\fB\\-\\-model\\fR", "\\fIplan\\fR",
        "\\fB\\-n\\fR, ", "STOCH_MAX_QUEUE", ".SS stoch help"}) {
    EXPECT_NE(page.out.find(part), std::string::npos) << part;
  }
  for (const std::string line : {"\n'", "\n.NF"}) EXPECT_EQ(page.out.find(line), std::string::npos);
}

}  // namespace
}  // namespace stoch::test
