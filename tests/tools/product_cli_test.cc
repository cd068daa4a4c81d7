// SPDX-License-Identifier: Apache-2.0
// stoch inspect --product, counts of one's own, and notices about gates, as a user meets them.

#include <algorithm>

#include "tests/support/temp_dir.h"
#include "tests/tools/cli_support.h"

namespace stoch::test {
namespace {

class ProductCli : public testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 30; ++i) text += "Once upon a time, a little dog saw " + std::to_string(i) + " birds. ";
    WriteFile(folder_ / "text", text);
  }
  ProcessResult Perplexity(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"--file", folder_ / "text", "--ctx", "16", "--max-windows", "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunStoch(WithDemo("perplexity", arguments));
  }
  double Ppl(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = more;
    arguments.emplace_back("--json");
    return ExpectJson(Perplexity(arguments))["results"][0]["ppl"].get<double>();
  }

  TempDir folder_;
};

TEST_F(ProductCli, InspectSaysWhichOperatorsAreOne) {
  const auto sha = [&](const std::string& settings) {
    const auto json = ExpectJson(RunStoch(WithDemo("inspect", {"--sc", settings, "--json", "--quiet"})));
    return json["operators"][0]["operator_sha256"].get<std::string>();
  };
  const std::string first = sha("stoc_len=64");
  EXPECT_EQ(first.size(), 64u);
  EXPECT_EQ(sha("stoc_len=64,source_seed=9"), first);
  EXPECT_NE(sha("stoc_len=64,source=lfsr"), sha("stoc_len=64,source=lfsr,source_seed=9"));
  const ProcessResult text = RunStoch(WithDemo("inspect", {"--sc", "stoc_len=64"}));
  EXPECT_NE(text.out.find(first.substr(0, 16) + " |"), std::string::npos) << text.out;
}

TEST_F(ProductCli, InspectReportsProducts) {
  const auto inspect = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"inspect", "--product"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunStoch(arguments);
  };
  const ProcessResult text = inspect({"--sc", "gate=and,source=sobol"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(text.out.find("| mean abs e"), std::string::npos) << text.out;
  EXPECT_NE(text.err.find("gate computes nearly min(a, b), not a product: source=vdc has 0.04"), std::string::npos);
  const auto json = ExpectJson(inspect({"--sc", "down_proj.stoc_len=64", "--json"}));
  ASSERT_EQ(json["products"].size(), 2u);
  EXPECT_EQ(json["products"][0]["operators"].size(), 8u);
  EXPECT_EQ(json["products"][1]["operators"], nlohmann::json::parse(R"(["down_proj"])"));
  EXPECT_EQ(json["products"][1]["mae_of_cycles"].size(), 64u);
  EXPECT_NEAR(json["products"][0]["mae"].get<double>(), 0.48, 0.005);
  // Written and read back: the same logits.
  const std::string counts = folder_ / "counts.npy";
  ASSERT_EQ(inspect({"--sc", "stoc_len=48", "--counts", counts}).exit_code, 0);
  EXPECT_EQ(Ppl({"--sc", "stoc_len=48,gate=counts,counts=" + counts}), Ppl({"--sc", "stoc_len=48"}));
  ASSERT_EQ(inspect({"--sc", "sc_prec=3,halve=0,stoc_len=5", "--csv", folder_ / "pairs.csv"}).exit_code, 0);
  const std::string pairs = ReadFile(folder_ / "pairs.csv");
  EXPECT_EQ(pairs.rfind("mask,a,b,count,ideal\n0,0,0,0,0\n", 0), 0u) << pairs.substr(0, 80);
  EXPECT_EQ(std::count(pairs.begin(), pairs.end(), '\n'), 1 + 8 * 4 * 4);
  ExpectRefused(inspect({"--sc", "down_proj.stoc_len=64", "--counts", counts}), "2 products differ");
  EXPECT_EQ(inspect({"--sc", "down_proj.stoc_len=64", "--op", "down_proj", "--counts", counts}).exit_code, 0);
  ExpectRefused(inspect({"--op", "mlp"}), "--op mlp: allowed is an operator");
  ExpectRefused(inspect({"--sc", "arith=int8"}), "no operator that runs multiplies streams or counts");
  ExpectRefused(RunStoch({"inspect", "--counts", counts}), "have no meaning without --product");
  ExpectRefused(Perplexity({"--sc", "gate=counts,counts=" + counts}), "stoc_len = none: allowed is 1..32767");
  ExpectRefused(Perplexity({"--sc", "stoc_len=9,gate=counts,counts=" + std::string(folder_ / "text")}),
                "no .npy header");
}

TEST_F(ProductCli, CorrelatedGatesAreToldOnce) {
  const std::string settings = "gate=and,source=sobol";
  const ProcessResult result = Perplexity({"--quiet", "--config", settings, "--config", settings + ",chunk_d=64"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_NE(result.err.find("streams are correlated (SCC 0.84)"), std::string::npos) << result.err;
  const ProcessResult follows = Perplexity({"--quiet", "--sc", "gate=and"});
  EXPECT_EQ(follows.err, "warning: gate=and without source: vdc (before version 0.2.0: sobol)\n");
}

}  // namespace
}  // namespace stoch::test
