// SPDX-License-Identifier: Apache-2.0
// Random checkpoints of every family in many settings against transformers (make_family_models.py), and GGUF files of
// every type against the gguf package (make_gguf_models.py), in the folder named by STOCH_FAMILY_MODELS.

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/engine/families/family_golden.h"
#include "tests/engine/logits_cases.h"
#include "tests/support/backends_under_test.h"

namespace stoch::test {
namespace {

class FamilyOracle : public testing::TestWithParam<BackendUnderTest> {};

TEST_P(FamilyOracle, ExactLogitsAndGreedyTextAreThoseOfTransformers) {
  const char* models = std::getenv("STOCH_FAMILY_MODELS");
  if (models == nullptr) GTEST_SKIP() << "no models of make_family_models.py (STOCH_FAMILY_MODELS)";
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  constexpr std::string_view kGolden = "_golden.safetensors";
  int compared = 0;
  for (const auto& entry : std::filesystem::directory_iterator(models)) {
    const std::string file = entry.path().filename().string();
    if (!file.ends_with(kGolden)) continue;
    ExpectFamilyGolden(backend, entry.path().parent_path() / file.substr(0, file.size() - kGolden.size()),
                       entry.path());
    ++compared;
  }
  if (compared == 0) GTEST_SKIP() << "no goldens in " << models;
  RecordProperty("models", compared);
}

// NAME.gguf, or its first part, and NAME.twin.
TEST_P(FamilyOracle, GgufFilesHaveTheBitsOfTheirTwins) {
  const char* models = std::getenv("STOCH_FAMILY_MODELS");
  if (models == nullptr) GTEST_SKIP() << "no models of make_gguf_models.py (STOCH_FAMILY_MODELS)";
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const std::vector<int32_t> prompt = {1, 4, 5, 6, 7, 3, 0, 2, 4, 250, 300, 17, 9, 9, 41};
  int compared = 0;
  for (const auto& entry : std::filesystem::directory_iterator(models)) {
    if (entry.path().extension() != ".twin") continue;
    SCOPED_TRACE(entry.path().stem().string());
    std::filesystem::path file = std::filesystem::path(entry.path()).replace_extension(".gguf");
    for (int parts = 2; !std::filesystem::exists(file) && parts < 10; ++parts) {
      const std::string suffix = "-00001-of-0000" + std::to_string(parts) + ".gguf";
      file = entry.path().parent_path() / (entry.path().stem().string() + suffix);
    }
    for (const LogitsConfig& config : {LogitsConfig{"default", Precision::kSc, ""}, {"fp32", Precision::kFp32, ""}}) {
      const std::string expected = HashRun(*OpenCase(backend, entry.path(), config), prompt, {});
      EXPECT_EQ(HashRun(*OpenCase(backend, file, config), prompt, {}), expected) << config.name;
    }
    ++compared;
  }
  if (compared == 0) GTEST_SKIP() << "no twins in " << models;
  RecordProperty("files", compared);
}

INSTANTIATE_TEST_SUITE_P(Backends, FamilyOracle, testing::ValuesIn(OneOfEachBackend()),
                         [](const auto& param) { return param.param.Name(); });

}  // namespace
}  // namespace stoch::test
