// Logits are the same bits on every backend, with any number of threads, however the prompt is cut, in any company.

#include <gtest/gtest.h>

#include "tests/engine/backends_under_test.h"
#include "tests/engine/logits_cases.h"
#include "tests/support/shared_folder.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

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
    if (engine->chunk_invariant()) {
      EXPECT_EQ(HashRun(*engine, model.prompt, {Cut::kChunks}), expected) << "in chunks";
      EXPECT_EQ(HashRun(*engine, model.prompt, {Cut::kTokens}), expected) << "token by token";
      EXPECT_EQ(HashRun(*engine, model.prompt, {Cut::kChunks, true}), expected) << "in chunks, beside others";
    }
    if (engine->batch_invariant()) {
      EXPECT_EQ(HashRun(*engine, model.prompt, {Cut::kWhole, true}), expected) << "beside others";
    }
  }
}

TEST_P(LogitsBits, TrainedModelsMeetTheConstants) {
  STOCH_REQUIRE_SHARED();
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const std::string& name : SharedLogitsModels()) {
    const LogitsModel model = SharedLogitsModel(name);
    for (const LogitsConfig& config : LogitsConfigs()) {
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
