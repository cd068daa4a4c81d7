// SPDX-License-Identifier: Apache-2.0
// Commands over the ranks of mpirun on one host: the output of one process, byte for byte, and every way in which a job ends
// with one sentence. Skipped without mpirun; STOCH_REQUIRE_MPI=1 makes that a failure.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/temp_dir.h"
#include "tests/tools/cli_support.h"

namespace stoch::test {
namespace {

namespace fs = std::filesystem;

std::string Quoted(const std::string& word) {
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

class RanksCli : public testing::Test {
 protected:
  void SetUp() override {
    const bool is_built = fs::exists(fs::path(StochBinary()).parent_path() / "libstoch_mpi.so");
    if (is_built && std::system("command -v mpirun >/dev/null 2>&1") == 0) return;
    const char* required = std::getenv("STOCH_REQUIRE_MPI");
    if (required != nullptr && std::string(required) == "1") {
      FAIL() << "STOCH_REQUIRE_MPI=1, but mpirun or libstoch_mpi.so is not there (tools/install)";
    }
    GTEST_SKIP() << "mpirun or libstoch_mpi.so is not there (libopenmpi-dev and openmpi-bin, then configure again)";
  }

  // mpirun -n RANKS of the binary under test, by way of a script; as root too, and on fewer cores than ranks.
  static ProcessResult RunRanks(int ranks, const std::vector<std::string>& words, const std::string& through = "") {
    const TempDir folder;
    std::string command =
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
        "timeout -k 5 120 mpirun -n " +
        std::to_string(ranks) + (through.empty() ? " " : " " + Quoted(through) + " ") + Quoted(StochBinary());
    for (const std::string& word : words) command += " " + Quoted(word);
    command += " >" + Quoted(folder / "out") + " 2>" + Quoted(folder / "err") + " </dev/null";
    const int status = std::system(command.c_str());
    ProcessResult result;
    result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    result.out = ReadFile(folder / "out");
    result.err = ReadFile(folder / "err");
    return result;
  }
  static std::vector<std::string> OnRanks(std::vector<std::string> words, const std::vector<std::string>& more = {}) {
    words.insert(words.end(), {"--ranks", "mpi"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // The ranks' output is that of one process.
  static void ExpectSame(int ranks, const std::vector<std::string>& words, const std::vector<std::string>& more = {}) {
    const ProcessResult alone = RunStoch(words);
    ASSERT_EQ(alone.exit_code, 0) << alone.err;
    ASSERT_NE(alone.out, "");
    const ProcessResult divided = RunRanks(ranks, OnRanks(words, more));
    EXPECT_EQ(divided.exit_code, 0) << divided.err;
    EXPECT_EQ(divided.out, alone.out);
  }
};

TEST_F(RanksCli, GenerateHasTheTextOfOneProcess) {
  const auto words = WithDemo("generate", {"--prompt", "Once upon a time", "--max-tokens", "16", "--quiet"});
  ExpectSame(2, words);
  ExpectSame(3, words, {"--rank-layers", "1,2,2"});
  // Passes of more rows than those of prompts.
  ExpectSame(2, WithDemo("generate", {"--prompt", "The dog ran to the tree. The dog ran to the tree. The dog ran",
                                      "--max-tokens", "40", "--quiet", "--speculate", "ngram", "--pass-rows", "1"}));
  auto exact = words;
  exact.insert(exact.end(), {"--precision", "fp32", "--device", "cpu:2"});
  exact.erase(exact.begin() + 3, exact.begin() + 5);  // the other --device
  ExpectSame(2, exact);
}

TEST_F(RanksCli, PerplexityHasTheNumbersOfOneProcess) {
  const TempDir folder;
  WriteFile(folder / "text", BirdsText(60));
  const auto words = WithDemo("perplexity", {"--file", folder / "text", "--ctx", "64", "--max-windows", "4", "--config",
                                             "fp32", "--config", "stoc_len=32", "--quiet", "--json"});
  const auto numbers = [](const ProcessResult& result) {
    nlohmann::json json = ExpectJson(result);
    for (auto& row : json["results"]) row.erase("elapsed_ms");
    return json.dump(1);
  };
  const std::string expected = numbers(RunStoch(words));
  EXPECT_EQ(numbers(RunRanks(2, OnRanks(words))), expected);
}

TEST_F(RanksCli, BadInputIsOneSentenceOfRankZero) {
  const auto words = WithDemo("generate", {"--prompt", "Once", "--max-tokens", "2", "--quiet"});
  const auto refused = [&](int ranks, const std::vector<std::string>& more, const std::string& part) {
    const ProcessResult result = RunRanks(ranks, OnRanks(words, more));
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err.find("error: "), std::string::npos) << result.err;
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  };
  refused(2, {"--rank-layers", "2,2"}, "--rank-layers 2,2: expected 2 numbers");
  refused(2, {"--rank-layers", "1,2,2"}, "--rank-layers 1,2,2: expected 2 numbers");
  refused(6, {}, "6 ranks: allowed is 2..5");
  refused(1, {}, "--ranks mpi: one rank: start it with mpirun or srun");
  ExpectRefused(RunStoch(OnRanks(words)), "--ranks mpi: one rank: start it with mpirun or srun");
}

// A script that runs its arguments, on rank 1 as `other` says.
void WriteScript(const fs::path& path, const std::string& other) {
  WriteFile(path,
            "#!/bin/sh\nif [ \"$OMPI_COMM_WORLD_RANK$PMI_RANK\" = 1 ]; then\n" + other + "\nelse exec \"$@\"; fi\n");
  fs::permissions(path, fs::perms::owner_all);
}

TEST_F(RanksCli, RanksAgreeOnTheModelAndMayDifferInTheirKernels) {
  const TempDir folder;
  const auto words = WithDemo("generate", {"--prompt", "Once upon a time", "--max-tokens", "8", "--quiet"});
  WriteScript(folder / "rank", "exec \"$@\" --cpu-variant scalar");
  const ProcessResult scalar = RunRanks(2, OnRanks(words), folder / "rank");
  EXPECT_EQ(scalar.exit_code, 0) << scalar.err;
  EXPECT_EQ(scalar.out, RunStoch(words).out);

  // Another fine-tune of the same shape: one bit at the beginning of the last tensor, a norm.
  fs::create_directory(folder / "model");
  for (const auto& file : fs::directory_iterator(DemoModel())) {
    fs::copy(file, folder / "model" / file.path().filename());
  }
  const fs::path weights = folder / "model" / "model.safetensors";
  std::string bytes = ReadFile(weights);
  bytes[bytes.size() - 64] = static_cast<char>(bytes[bytes.size() - 64] ^ 1);
  WriteFile(weights, bytes);
  WriteScript(folder / "rank", "exec " + Quoted(StochBinary()) + " generate --model " + Quoted(folder / "model") +
                                   " --device cpu --threads 1 --prompt x --quiet --ranks mpi");
  const ProcessResult other = RunRanks(2, OnRanks(words), folder / "rank");
  EXPECT_EQ(other.exit_code, 2) << other.err;
  EXPECT_EQ(other.out, "");
  EXPECT_NE(other.err.find("rank 1: model (its config and the beginning of every tensor): "), std::string::npos)
      << other.err;
}

TEST_F(RanksCli, ALostRankEndsTheJob) {
  const TempDir folder;
  WriteFile(folder / "text", BirdsText(4000));
  const auto words = WithDemo("perplexity", {"--file", folder / "text", "--ctx", "128", "--quiet"});
  for (const auto& [signal, part] : {std::pair("STOP", "rank 1: sent nothing for 2000 ms"), std::pair("KILL", "")}) {
    // The other rank runs for a while, then stops for ever, or is gone.
    WriteScript(folder / "rank", std::string("\"$@\" &\nsleep 2\nkill -") + signal + " $!\nwait $!");
    const ProcessResult result = RunRanks(2, OnRanks(words, {"--rank-limit", "2"}), folder / "rank");
    EXPECT_NE(result.exit_code, 0) << signal;
    EXPECT_NE(result.exit_code, 124) << signal << ": nobody noticed";
    EXPECT_EQ(result.out, "") << signal;
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  }
}

}  // namespace
}  // namespace stoch::test
