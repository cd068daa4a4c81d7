// SPDX-License-Identifier: Apache-2.0
// docs/sc-options.md is what the parser's lists say, and the lists say all that the parser takes.
#include "app/options/sc_reference.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "kernels/sc/sc_parameters.h"
#include "models/sc_settings.h"

namespace stoch::cli {
namespace {

TEST(ScReference, IsTheCommittedDocument) {
  const std::filesystem::path path = std::filesystem::path(STOCH_SOURCE_DIR) / "docs" / "sc-options.md";
  std::ifstream stream(path, std::ios::binary);
  const std::string committed((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  EXPECT_EQ(ScReference(), committed) << "regenerate it: stoch help sc > docs/sc-options.md";
}

TEST(ScReference, EveryParameterAndValueParsesAndIsNamed) {
  const std::string text = ScReference();
  for (const ScParameter& parameter : ScParameters()) {
    EXPECT_NE(text.find("\n### " + std::string(parameter.name) + "\n"), std::string::npos) << parameter.name;
    EXPECT_FALSE(parameter.help.empty()) << parameter.name;
    for (const ScChoice& choice : parameter.choices) {
      ScConfig config;
      parameter.set(config, parameter, choice.name);
      EXPECT_EQ(parameter.get(config, parameter), choice.name) << parameter.name;
      EXPECT_NE(text.find("- `" + std::string(choice.name) + "`: "), std::string::npos) << choice.name;
    }
  }
  for (const ScPreset& preset : ScPresets()) {
    EXPECT_EQ(ParseScModelConfig(std::vector<std::string>{"preset=" + std::string(preset.name)}), preset.make());
  }
  ASSERT_EQ(ScOperators().size(), static_cast<size_t>(kNumScOperators));
  for (const AttentionEntry& entry : AttentionModes()) {
    std::string setting = "attention=" + std::string(entry.name);
    for (const DilatedEntry& list : DilatedLists()) {
      if (entry.dilated) setting += ',' + std::string(list.name) + "=8:16";
    }
    const ScModelConfig config = ParseScModelConfig(std::vector<std::string>{setting});
    EXPECT_EQ(config.attention, entry.mode);
    EXPECT_EQ(config.dilated.enabled, entry.dilated);
    EXPECT_EQ(AttentionName(config), entry.name);
  }
}

TEST(ScReference, NamesEveryTableOfAFunction) {
  for (const TableEntry& entry : TableFunctions()) {
    const std::string setting = std::string(entry.name) + "=file";
    const ScModelConfig config = ParseScModelConfig(std::vector<std::string>{setting});
    EXPECT_EQ((config.tables.*entry.table).name, "file");
    EXPECT_EQ(Describe(config), "preset=halved," + setting);
    EXPECT_NE((' ' + ScCompletionWords()).find(' ' + std::string(entry.name) + '='), std::string::npos) << entry.name;
  }
}

// A choice that is missing in a list would have no text.
TEST(ScParameters, DescribeEveryValueOfTheirEnums) {
  ScConfig config;
  config.mode = ScMode::kUnipolar;
  config.granularity = ScGranularity::kPerHead;
  config.scramble = ScScramble::kOff;
  config.source = ScSource::kList;
  config.gate = ScGate::kXnor;
  config.lfsr_restart = ScRestart::kMask;
  config.adder = ScAdder::kApc;
  config.rng_grid = ScGrid::kPow2;
  for (const ScParameter& parameter : ScParameters()) EXPECT_NE(parameter.get(config, parameter), "?");
}

TEST(ScCompletion, OffersWhatThePresetsAndParametersAreCalled) {
  const std::string words = ' ' + ScCompletionWords() + ' ';
  for (const char* word : {" preset=halved ", " attention=exact ", " stoc_len= ", " source_list_b= "}) {
    EXPECT_NE(words.find(word), std::string::npos) << word;
  }
}

}  // namespace
}  // namespace stoch::cli
