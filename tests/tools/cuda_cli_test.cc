// SPDX-License-Identifier: Apache-2.0
// The command line on a GPU: the CPU's bits, and really the GPU. Skipped without one; STOCH_REQUIRE_CUDA=1 fails.

#include <cstdlib>
#include <string_view>

#include "tests/tools/cli_support.h"

namespace stoch::test {
namespace {

std::vector<std::string> OnGpu(const std::string& command, std::vector<std::string> more) {
  const std::vector<std::string> first = {command, "--model", DemoModel(), "--device", "cuda:0"};
  more.insert(more.begin(), first.begin(), first.end());
  return more;
}

class CudaCli : public testing::Test {
 protected:
  void SetUp() override {
    const ProcessResult result = RunStoch(OnGpu("inspect", {"--json"}));
    if (result.exit_code == 0) return;
    const char* required = std::getenv("STOCH_REQUIRE_CUDA");
    if (required != nullptr && std::string(required) == "1") FAIL() << "no usable GPU: " << result.err;
    GTEST_SKIP() << "no usable GPU: " << result.err;
  }
};

TEST_F(CudaCli, GenerateHasTheBitsOfTheCpu) {
  const std::vector<std::string> prompt = {"--prompt", "Once upon a time", "--max-tokens", "8", "--json"};
  const nlohmann::json gpu = ExpectJson(RunStoch(OnGpu("generate", prompt)));
  const nlohmann::json cpu = ExpectJson(RunStoch(WithDemo("generate", prompt)));
  EXPECT_EQ(gpu["device"], "cuda:0");
  EXPECT_EQ(gpu["ids"], cpu["ids"]);
  EXPECT_EQ(gpu["logits_sha256"], cpu["logits_sha256"]);
}

TEST_F(CudaCli, RecordedHashesAreMet) {
  const ProcessResult result =
      RunStoch(OnGpu("verify", {"--hashes", STOCH_SOURCE_DIR "/tests/golden/demo_logits.json"}));
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_NE(result.out.find("on cuda:0"), std::string::npos) << result.out;
}

// What no head shares is the host's to keep.
TEST_F(CudaCli, InspectCountsTheEmbeddingAsTheHosts) {
  const nlohmann::json json =
      ExpectJson(RunStoch({"inspect", "--model", "random:llama-3.1-8b", "--device", "cuda:0", "--json"}));
  EXPECT_EQ(json["memory"]["embedding"], 0);
  EXPECT_EQ(json["memory"]["host"], int64_t{128256} * 4096 * 2);
}

TEST_F(CudaCli, BenchComparesWithFp16) {
  const char* ptx = std::getenv("CUDA_FORCE_PTX_JIT");
  if (ptx != nullptr && std::string_view(ptx) == "1") GTEST_SKIP() << "cuBLAS has no PTX for CUDA_FORCE_PTX_JIT=1";
  const nlohmann::json json = ExpectJson(RunStoch(OnGpu("bench", {"-p", "16", "-n", "4", "-r", "2", "-o", "json"})));
  ASSERT_EQ(json["results"].size(), 4u);
  for (const nlohmann::json& result : json["results"]) EXPECT_GT(result["ratio_to_fp16"].get<double>(), 0);
}

}  // namespace
}  // namespace stoch::test
