// SPDX-License-Identifier: Apache-2.0
// Faults, registers, adders and factors of qk, as a user meets them.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/shared_folder.h"
#include "tests/support/temp_dir.h"
#include "tests/tools/cli_support.h"

namespace stoch::test {
namespace {

class HardwareCli : public testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 30; ++i) text += "Once upon a time, a little dog saw " + std::to_string(i) + " birds. ";
    WriteFile(folder_ / "text", text);
  }
  ProcessResult Perplexity(const std::string& settings) const {
    return RunStoch(WithDemo(
        "perplexity", {"--file", folder_ / "text", "--ctx", "16", "--max-windows", "2", "--sc", settings, "--json"}));
  }
  nlohmann::json Windows(const std::string& settings) const {
    return ExpectJson(Perplexity(settings))["results"][0]["nll_by_window"];
  }

  TempDir folder_;
};

TEST_F(HardwareCli, FaultsFollowTheirSeed) {
  EXPECT_EQ(Windows("fault_product=0.01"), Windows("fault_product=0.01"));
  EXPECT_NE(Windows("fault_product=0.01"), Windows("fault_product=0.01,fault_seed=2"));
  EXPECT_NE(Windows("fault_product=0.01"), Windows("stoc_len=128"));
  EXPECT_EQ(Windows("fault_product=0"), Windows("stoc_len=128"));
  const auto row = ExpectJson(Perplexity("acc_bits=16,fault_acc=0.001:3"))["results"][0];
  EXPECT_EQ(row["sc"], "preset=halved,acc_bits=16,fault_acc=0.001:3");
}

TEST_F(HardwareCli, ATextMeetsTheFaultsOfItsNumber) {
  const auto logits = [&](const std::string& number) {
    return ExpectJson(RunStoch(WithDemo("generate", {"--prompt", "Once", "--max-tokens", "4", "--sc",
                                                     "fault_product=0.01", "--sequence", number, "--json"})))
        .at("logits_sha256")
        .get<std::string>();
  };
  EXPECT_EQ(logits("3"), logits("3"));
  EXPECT_NE(logits("3"), logits("0"));
  ExpectRefused(RunStoch(WithDemo("generate", {"--prompt", "Once", "--sequence", "-1"})), "--sequence");
}

TEST_F(HardwareCli, OperatorsOfOtherHardwareAreOthers) {
  const auto sha = [&](const std::string& settings) {
    const auto json = ExpectJson(RunStoch(WithDemo("inspect", {"--sc", settings, "--json", "--quiet"})));
    return json["operators"][0]["operator_sha256"].get<std::string>();
  };
  const std::string ideal = sha("stoc_len=64");
  EXPECT_EQ(sha("stoc_len=64,fault_seed=7"), ideal);
  EXPECT_NE(sha("stoc_len=64,acc_bits=12"), ideal);
  EXPECT_NE(sha("stoc_len=64,fault_weight=0.1"), sha("stoc_len=64,fault_weight=0.1,fault_seed=7"));
}

// Short streams of a trained model gain what factors of q and k are for, on a text that they were not made from.
TEST_F(HardwareCli, RebalancedQueriesAndKeysNeedShorterStreams) {
  STOCH_REQUIRE_SHARED();
  const std::string model = SharedFolder() / "models/stories260K";
  const auto part = [&](const char* file, const char* name, size_t size) {
    WriteFile(folder_ / name, ReadFile(SharedFolder() / "text" / file).substr(0, size));
    return std::string(folder_ / name);
  };
  const std::string train = part("tinystories_train_sample_2MiB.txt", "train", 40000);
  const std::string valid = part("tinystories_val.txt", "valid", 20000);
  const std::string factors = folder_ / "qk.safetensors";
  const ProcessResult calibrated =
      RunStoch({"calibrate", "smoothquant", "--model", model, "--device", "cpu", "--file", train, "--ctx", "256",
                "--max-windows", "8", "--qk", "0.5", "--only", "qk", "-o", factors});
  ASSERT_EQ(calibrated.exit_code, 0) << calibrated.err;
  const auto ppl = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"perplexity", "--model", model,         "--device", "cpu",
                                      "--file",     valid,     "--ctx",       "256",      "--max-windows",
                                      "12",         "--sc",    "stoc_len=32", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return ExpectJson(RunStoch(words))["results"][0]["ppl"].get<double>();
  };
  EXPECT_GT(ppl({}), 7.5);
  EXPECT_LT(ppl({"--smooth", factors}), 6.5);
}

}  // namespace
}  // namespace stoch::test
