// SPDX-License-Identifier: Apache-2.0
// Words of a command line that are no option, no command or no setting: what is said first, and what may have been meant.

#include "tests/support/temp_dir.h"
#include "tests/tools/cli_support.h"

namespace stoch::test {
namespace {

TEST(Usage, UnknownOptionsAreNamedWithTheNearest) {
  ExpectRefused(RunStoch({"generate", "--max-tokns", "3"}),
                "error: --max-tokns: stoch generate has no such option; did you mean --max-tokens? (stoch --help");
  // Its value is taken for MODEL, which is given: the option is what is wrong.
  ExpectRefused(RunStoch({"generate", "--max-tokns", "3", "--model", "demo"}),
                "error: --max-tokns: stoch generate has");
  ExpectRefused(RunStoch({"perplexity", "demo", "--fiel=x"}),
                "error: --fiel: stoch perplexity has no such option; did");
  ExpectRefused(RunStoch({"serve", "-model", "demo"}), "-model: stoch serve has no such option; did you mean --model?");
  ExpectRefused(RunStoch({"bench", "--flavour"}), "--flavour: stoch bench has no such option (stoch --help");
  ExpectRefused(RunStoch({"--versoin"}), "error: --versoin: stoch has no such option; did you mean --version?");
}

TEST(Usage, CommandsAreNamedWithTheNearestAndComeFirst) {
  ExpectRefused(RunStoch({"genrate", "--model", "demo"}),
                "error: genrate: stoch has no such command; did you mean generate? (stoch --help");
  ExpectRefused(RunStoch({"run"}), "error: run: stoch has no such command (stoch --help");
  ExpectRefused(RunStoch({"--model", "demo", "generate"}),
                "error: --model: the command comes first, as in stoch generate --model");
}

TEST(Usage, WordsThatNothingTakesAreQuoted) {
  ExpectRefused(RunStoch({"generate", "demo", "Once", "upon"}), "error: 'Once': stoch generate takes no such word (a");
  ExpectRefused(RunStoch({"generate", "--model", "demo", "--prompt", "Once", "upon"}),
                "error: 'upon': stoch generate takes no such word");
  ExpectRefused(RunStoch({"generate", "Once", "--model", "other"}),
                "error: --model: expected one value, got 'Once' and 'other' (stoch --help");
  ExpectRefused(RunStoch({"generate", "demo", "--seed", "1", "--seed", "2"}),
                "error: --seed: expected one value, got '1' and '2'");
}

TEST(Usage, FlagsTakeNoValueOrTrueOrFalse) {
  for (const std::vector<std::string>& model :
       std::vector<std::vector<std::string>>{{}, {"demo"}, {"--model", "demo"}}) {
    std::vector<std::string> words = {"generate", "--quiet="};
    words.insert(words.end(), model.begin(), model.end());
    ExpectRefused(RunStoch(words), "error: --quiet: expected no value, got an empty one");
  }
  ExpectRefused(RunStoch({"inspect", "--product="}), "error: --product: expected no value, got an empty one");
  ExpectRefused(RunStoch({"generate", "demo", "--quiet=x"}),
                "error: --quiet: expected no value, or true or false, got x");
  const std::vector<std::string> small = {"--prompt", "Once", "--max-tokens", "1"};
  const auto err = [&](const std::string& flag) {
    std::vector<std::string> words = small;
    words.push_back(flag);
    return RunStoch(WithDemo("generate", words)).err;
  };
  EXPECT_EQ(err("--quiet=yes"), "");
  EXPECT_NE(err("--quiet=false"), "");
}

TEST(Usage, SettingsAndKeysOfFilesAreNamedWithTheNearest) {
  ExpectRefused(RunStoch(WithDemo("generate", {"--sc", "stoc_lenn=64"})), "; did you mean stoc_len?\n");
  const TempDir folder;
  WriteFile(folder / "stoch.yml", "max_tokns: 3\n");
  ExpectRefused(RunStoch({"generate", "--config", folder / "stoch.yml"}), "; did you mean max-tokens?\n");
}

}  // namespace
}  // namespace stoch::test
