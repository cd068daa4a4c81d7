// SPDX-License-Identifier: Apache-2.0
// Logits are the same bits on every backend, with any number of threads, however the prompt is cut, in any company.

#include <gtest/gtest.h>

#include <string_view>

#include "tests/engine/logits_cases.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/shared_folder.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

// The scalar reference is slow and the constants came from it; a second thread changes no loop over configurations.
// Both run a cross-section, so that the whole program stays quick.
bool IsThorough(const BackendUnderTest& spec) {
  return std::string_view(spec.cpu_variant) != "scalar" && spec.threads != 2;
}

bool IsInCrossSection(const LogitsConfig& config) {
  for (const std::string_view name : {"fp32", "halved", "halved_l64", "halved_mixed", "published", "unipolar_l96"}) {
    if (name == config.name) return true;
  }
  return false;
}

class LogitsBits : public testing::TestWithParam<BackendUnderTest> {
 protected:
  static std::string Recorded(const LogitsModel& model, const LogitsConfig& config) {
    static const std::map<std::string, std::string> hashes = ReadRecordedHashes();
    const auto found = hashes.find(model.name + ' ' + config.name);
    return found == hashes.end() ? "not recorded" : found->second;
  }
};

TEST_P(LogitsBits, TinyModelMeetsTheConstantsInEveryCutAndCompany) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const TempDir scratch;
  const LogitsModel model = TinyLogitsModel(scratch.path());
  for (const LogitsConfig& config : LogitsConfigs()) {
    SCOPED_TRACE(config.name);
    const auto engine = OpenCase(backend, model.folder, config);
    const std::string expected = Recorded(model, config);
    EXPECT_EQ(HashRun(*engine, model.prompt, {}), expected);
    if (engine->chunk_invariant() && (IsThorough(GetParam()) || IsInCrossSection(config))) {
      EXPECT_EQ(HashRun(*engine, model.prompt, {Cut::kChunks}), expected) << "in chunks";
      EXPECT_EQ(HashRun(*engine, model.prompt, {Cut::kTokens}), expected) << "token by token";
      EXPECT_EQ(HashRun(*engine, model.prompt, {Cut::kChunks, true}), expected) << "in chunks, next to others";
    }
    if (engine->batch_invariant() && IsThorough(GetParam())) {
      EXPECT_EQ(HashRun(*engine, model.prompt, {Cut::kWhole, true}), expected) << "next to others";
    }
  }
}

TEST_P(LogitsBits, TrainedModelsMeetTheConstants) {
  STOCH_REQUIRE_SHARED();
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const std::string& name : SharedLogitsModels()) {
    const LogitsModel model = SharedLogitsModel(name);
    for (const LogitsConfig& config : LogitsConfigs()) {
      if (!IsThorough(GetParam()) && !IsInCrossSection(config)) continue;
      SCOPED_TRACE(name + ' ' + config.name);
      const auto engine = OpenCase(backend, model.folder, config);
      EXPECT_EQ(HashRun(*engine, model.prompt, {}), Recorded(model, config));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, LogitsBits, testing::ValuesIn(BackendsUnderTest()),
                         [](const auto& param) { return param.param.Name(); });

}  // namespace
}  // namespace stoch::test
