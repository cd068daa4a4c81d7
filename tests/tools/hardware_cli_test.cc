// SPDX-License-Identifier: Apache-2.0
// Faults, registers, adders and factors of qk, and the time, power and area of a trace, as a user meets them.
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

TEST_F(HardwareCli, GenerateTellsTheSlowestKernel) {
  const auto told = [](const std::string& settings, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"--prompt", "Once", "--max-tokens", "1", "--sc", settings};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunStoch(WithDemo("generate", arguments)).err;
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  const std::string gates = "stoc_len=64,2.o_proj.acc_bits=12,2.up_proj.adder=or,2.up_proj.adder_group=4";
  EXPECT_TRUE(has(told(gates, {"--verbose"}), "slowest kernel: up_proj of layers 2: gates, cycle by cycle: adder=or"));
  EXPECT_FALSE(has(told(gates, {}), "slowest kernel"));
  EXPECT_TRUE(has(told("2.o_proj.acc_bits=12", {"--verbose"}),
                  "slowest kernel: o_proj of layers 2: lookup of counts up to 128, then acc_bits=12"));
  EXPECT_TRUE(has(told("stoc_len=64", {"--verbose"}), "slowest kernel: q_proj of layers 0-4: lookup of counts up to"));
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

TEST(CostHardwareCli, HasTimePowerAndAreaOfCitedNumbers) {
  const TempDir folder;
  const std::string trace = folder / "trace.json", hw = folder / "hw.json";
  WriteFile(folder / "energy.json", R"({"schema": "stoch-energy-v1", "unit": "pJ", "process": "a test", "actions": {
      "sc_mac_cycle": {"energy": 2, "source": "invented"}, "int_mac_8": {"energy": 50, "source": "invented"}}})");
  const std::string file = R"({"schema": "stoch-hw-v1", "clock_mhz": 250, "energy": "energy.json", "leakage_mw": 4,
      "source": "invented", "area": {"mac": {"um2": 10, "count": 8192, "source": "invented"}}})";
  WriteFile(hw, file);
  WriteFile(folder / "text", BirdsText(60));
  const auto run =
      ExpectJson(RunStoch(WithDemo("perplexity", {"--file", folder / "text", "--ctx", "16", "--max-windows", "2",
                                                  "--json", "--trace", trace, "--array", "16,16,32"})));
  const auto& cost = run["results"][0]["sc_cost"];
  const auto json = ExpectJson(RunStoch({"cost", trace, "--hw", hw, "--csv", folder / "csv", "--json"}));
  const auto& sc = json["hw"]["columns"][0];
  const auto& int8 = json["hw"]["columns"][1];
  const double cycles = cost["array"]["cycles"].get<double>(), seconds = cycles / 250e6;
  EXPECT_EQ(sc["name"], "sc");
  EXPECT_EQ(sc["seconds"], seconds);
  EXPECT_EQ(sc["utilisation"], cost["mac_cycles"].get<double>() / (cycles * 8192));
  EXPECT_EQ(sc["joules"], cost["mac_cycles"].get<double>() * 2 * 1e-12 + 4 * 1e-3 * seconds);
  EXPECT_EQ(sc["mm2"], 81920 * 1e-6);
  EXPECT_GT(sc["tokens"], 16);
  EXPECT_EQ(sc["tokens_per_s"], sc["tokens"].get<double>() / seconds);
  // 128 cycles a mac, and one.
  EXPECT_EQ(int8["name"], "int8");
  EXPECT_EQ(int8["cycles"].get<int64_t>() * 128, cost["array"]["cycles"].get<int64_t>());
  EXPECT_EQ(int8["joules"], cost["mac_cycles"].get<double>() / 128 * 50 * 1e-12 + 4 * 1e-3 * (cycles / 128 / 250e6));
  const std::string csv = ReadFile(folder / "csv");
  EXPECT_EQ(csv.rfind("layer,op,unit,cycles,seconds,sc_mac_cycle\n0,q_proj,,", 0), 0u) << csv;
  const ProcessResult text = RunStoch({"cost", trace, "--hw", hw});
  EXPECT_NE(text.out.find("not counted: "), std::string::npos) << text.out;

  // Without prices no joule, and a trace of calls has prompt and generated tokens apart.
  WriteFile(hw, R"({"schema": "stoch-hw-v1", "clock_mhz": 250})");
  EXPECT_EQ(RunStoch(WithDemo("generate", {"--prompt", "Once upon a time", "--max-tokens", "3", "--trace", trace,
                                           "--trace-mode", "trace"}))
                .exit_code,
            0);
  const auto calls = ExpectJson(RunStoch({"cost", trace, "--array", "8,8,8", "--hw", hw, "--json"}));
  const auto& columns = calls["hw"]["columns"];
  ASSERT_EQ(columns.size(), 4u) << calls["hw"];
  EXPECT_EQ(columns[2]["name"], "sc, prompt");
  EXPECT_EQ(columns[3]["name"], "sc, generated");
  EXPECT_EQ(columns[2]["cycles"].get<int64_t>() + columns[3]["cycles"].get<int64_t>(),
            columns[0]["cycles"].get<int64_t>());
  EXPECT_EQ(columns[2]["tokens"].get<int64_t>() + columns[3]["tokens"].get<int64_t>(),
            columns[0]["tokens"].get<int64_t>());
  EXPECT_FALSE(columns[0].contains("joules"));

  const auto refused = [&](const std::string& wrong, const std::string& part) {
    WriteFile(hw, wrong);
    ExpectRefused(RunStoch({"cost", trace, "--array", "8,8,8", "--hw", hw}), part);
  };
  refused(R"({"schema": "stoch-hw-v1"})", "clock_mhz");
  refused(R"({"schema": "stoch-hw-v1", "clock_mhz": 0})", "a number above 0");
  refused(R"({"schema": "stoch-hw-v1", "clock_mhz": 1, "leakage_mw": 1})", "leakage_mw has no source");
  refused(R"({"schema": "stoch-hw-v1", "clock_mhz": 1, "area": {"x": {"um2": 1, "count": 1}}})",
          "area.x has no source");
  refused(R"({"schema": "stoch-energy-v1", "clock_mhz": 1})", "stoch-hw-v1");
  WriteFile(hw, R"({"schema": "stoch-hw-v1", "clock_mhz": 1})");
  ExpectRefused(RunStoch({"cost", trace, "--hw", hw}), "give --array");
  ExpectRefused(RunStoch({"cost", trace, "--csv", folder / "csv"}), "--hw");
}

}  // namespace
}  // namespace stoch::test
