// SPDX-License-Identifier: Apache-2.0
// Commands over the ranks of mpirun on one host: the output of one process, byte for byte, and every way in which a job ends
// with one sentence. Skipped without mpirun; STOCH_REQUIRE_MPI=1 makes that a failure.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/mpi.h"
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

bool IsOpenMpi() { return std::system("mpirun --version 2>/dev/null | grep -q 'Open MPI'") == 0; }

// One line of the error output is an error of stoch, and has `part`; launchers have words of their own.
void ExpectOneError(const ProcessResult& result, const std::string& part) {
  std::string errors;
  std::istringstream lines(result.err);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("error: ")) errors += line + "\n";
  }
  EXPECT_EQ(std::count(errors.begin(), errors.end(), '\n'), 1) << result.err;
  EXPECT_NE(errors.find(part), std::string::npos) << result.err;
}

class RanksCli : public testing::Test {
 protected:
  void SetUp() override { STOCH_NEEDS_MPI(StochBinary()); }

  // mpirun -n RANKS of the binary under test, by way of a script; as root too, and on fewer cores than ranks.
  static ProcessResult RunRanks(int ranks, const std::vector<std::string>& words, const std::string& through = "") {
    std::vector<std::string> all = {StochBinary()};
    if (!through.empty()) all.insert(all.begin(), through);
    all.insert(all.end(), words.begin(), words.end());
    return Launch(ranks, all);
  }
  static ProcessResult Launch(int ranks, const std::vector<std::string>& words) {
    const TempDir folder;
    std::string command = "timeout -k 5 120 mpirun -n " + std::to_string(ranks);
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

TEST_F(RanksCli, ASweepHasTheRowsOfOneProcess) {
  const TempDir folder;
  WriteFile(folder / "text", BirdsText(40));
  WriteFile(folder / "plan.json",
            R"({"model": ")" + DemoModel() + R"(", "text": ")" + std::string(folder / "text") +
                R"(", "ctx": 16, "max_windows": 2, "array": "8,8,16", "metrics": ["ppl", "kl", "cycles"],
                    "grid": {"stoc_len": [32, 64]}, "runs": ["fp32"]})");
  const auto words = [&](const std::string& out) {
    return std::vector<std::string>{"sweep", folder / "plan.json", "-o", folder / out, "--device", "cpu", "--quiet"};
  };
  ASSERT_EQ(RunStoch(words("alone")).exit_code, 0);
  const ProcessResult divided = RunRanks(2, OnRanks(words("divided")));
  EXPECT_EQ(divided.exit_code, 0) << divided.err;
  const std::string rows = ReadFile(folder / "alone");
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 3);
  EXPECT_EQ(ReadFile(folder / "divided"), rows);
}

TEST_F(RanksCli, VerifyComparesTheRanksWithOneProcess) {
  const auto words = WithDemo("verify", {"--only", "ranks.logits.fp32", "--only", "ranks.logits.published"});
  const ProcessResult result = RunRanks(3, OnRanks(words));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("on one process, 3 ranks, 3 ranks, pieces of 7\n"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("on one process, 3 ranks\n"), std::string::npos) << result.out;  // that may not be cut
  EXPECT_NE(result.out.find("2 of 2 checks passed"), std::string::npos) << result.out;
}

TEST_F(RanksCli, BenchHoldsAStepAgainstTheBytesOfAllRanks) {
  const auto words = WithDemo("bench", {"--precision", "sc", "-p", "0", "-n", "4", "-r", "1", "--quiet", "-o", "json"});
  const auto bytes = [](const ProcessResult& result) {
    const nlohmann::json json = ExpectJson(result);
    return json["results"][0]["floor_ms"].get<double>() * json["read_bytes_per_s"].get<double>() / 1000;
  };
  const double alone = bytes(RunStoch(words));
  EXPECT_GT(alone, 100'000);
  EXPECT_NEAR(bytes(RunRanks(2, OnRanks(words))), alone, 1);
}

TEST_F(RanksCli, InspectSaysWhatEachRankWouldHold) {
  const auto words = WithDemo("inspect", {"--context", "256", "--quiet"});
  auto as_json = words;
  as_json.emplace_back("--json");
  const nlohmann::json alone = ExpectJson(RunStoch(as_json));
  const nlohmann::json divided = ExpectJson(RunRanks(3, OnRanks(as_json, {"--rank-layers", "1,3,1"})));
  ASSERT_EQ(divided["ranks"].size(), 3u);
  for (const char* part : {"weights", "scales", "kv_cache", "embedding"}) {
    int64_t sum = 0;
    for (const auto& rank : divided["ranks"]) sum += rank["memory"][part].get<int64_t>();
    EXPECT_EQ(sum, alone["memory"][part].get<int64_t>()) << part;
  }
  EXPECT_EQ(divided["ranks"][1]["layers"], nlohmann::json({1, 4}));
  EXPECT_EQ(divided["ranks"][1]["memory"]["embedding"], 0);
  for (const auto& rank : divided["ranks"]) EXPECT_GT(rank["hop_us"].get<double>(), 0);
  const ProcessResult text = RunRanks(2, OnRanks(words));
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(text.out.find("agree: commit"), std::string::npos) << text.out;
  ExpectRefused(RunStoch(OnRanks(words)), "--ranks mpi: one rank: start it with mpirun or srun");
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
  refused(2, {"--speculate", "demo"}, "--ranks mpi: has no draft model");
  refused(1, {}, "--ranks mpi: one rank: start it with mpirun or srun");
  ExpectRefused(RunStoch(OnRanks(words)), "--ranks mpi: one rank: start it with mpirun or srun");
}

// A script that runs its arguments, on one rank as `other` says.
void WriteScript(const fs::path& path, const std::string& other, const char* rank = "1") {
  WriteFile(path, std::string("#!/bin/sh\nif [ \"$OMPI_COMM_WORLD_RANK$PMI_RANK\" = ") + rank + " ]; then\n" + other +
                      "\nelse exec \"$@\"; fi\n");
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
  ExpectOneError(other, "): weights (the beginning of every tensor): ");
  EXPECT_EQ(other.err.rfind("error: rank 1 (", 0), 0u) << other.err;

  // A sweep says so before it writes a row.
  WriteFile(folder / "text", BirdsText(20));
  WriteFile(folder / "plan.json", R"({"model": ")" + DemoModel() + R"(", "text": ")" + std::string(folder / "text") +
                                      R"(", "ctx": 16, "max_windows": 1, "metrics": ["ppl"], "runs": ["fp32"]})");
  const std::vector<std::string> sweep = {"sweep",  folder / "plan.json", "-o", folder / "out", "--device", "cpu",
                                          "--quiet"};
  ExpectOneError(RunRanks(2, OnRanks(sweep), folder / "rank"), "): weights (the beginning of every tensor): ");
  EXPECT_FALSE(fs::exists(folder / "out"));
}

// A copy of the program in a folder of its own, with what it looks for next to itself.
fs::path CopyProgram(const fs::path& folder) {
  fs::create_directory(folder);
  fs::copy_file(StochBinary(), folder / "stoch");
  fs::copy_file(fs::path(StochBinary()).parent_path() / "libstoch_mpi.so", folder / "libstoch_mpi.so");
  return folder / "stoch";
}

TEST_F(RanksCli, WhatChangesOnItsWayIsRefusedByName) {
  const TempDir folder;
  const fs::path program = CopyProgram(folder / "faulty");
  fs::copy_file(STOCH_FAULTY_MPI, program.parent_path() / "libstoch_mpi.so", fs::copy_options::overwrite_existing);
  const auto words = WithDemo("generate", {"--prompt", "Once upon a time", "--max-tokens", "16", "--quiet"});
  // As the model is opened: round trips with the rank before and with the next one, one more than are measured.
  constexpr int kHopMessages = 2 * 21;
  const auto run = [&](const std::string& rank, const std::string& fault, const std::string& limit = "2") {
    WriteFile(
        folder / "rank",
        "#!/bin/sh\nshift\nexport STOCH_TEST_MPI=" + Quoted(fs::path(StochBinary()).parent_path() / "libstoch_mpi.so") +
            " STOCH_TEST_MPI_RANK=" + rank + " STOCH_TEST_MPI_FAULT=" + fault +
            " STOCH_TEST_MPI_FIRST=" + std::to_string(kHopMessages + 7) + "\nexec " + Quoted(program) + " \"$@\"\n");
    fs::permissions(folder / "rank", fs::perms::owner_all);
    return RunRanks(3, OnRanks(words, {"--rank-limit", limit}), folder / "rank");
  };
  const std::string whole = RunStoch(words).out;
  EXPECT_EQ(run("1", "none").out, whole);
  const auto expect_lost = [&](const std::string& rank, const std::string& fault, const std::string& part,
                               const std::string& limit = "2") {
    SCOPED_TRACE("rank " + rank + " " + fault);
    const ProcessResult result = run(rank, fault, limit);
    EXPECT_EQ(result.exit_code, 3) << result.err;
    EXPECT_TRUE(whole.starts_with(result.out)) << result.out;  // as far as it came
    EXPECT_NE(result.out, whole);
    ExpectOneError(result, part);
    EXPECT_NE(result.err.find("error: rank " + rank), std::string::npos) << result.err;
  };
  // Whoever notices: rank 2 what rank 1 sent, rank 0 what rank 2 sent.
  expect_lost("1", "flip", "bytes were changed on their way");
  expect_lost("2", "flip", "bytes were changed on their way");
  expect_lost("1", "repeat", " was to come");
  expect_lost("1", "silent", "sent nothing for 2000 ms");
  expect_lost("2", "silent", "sent nothing for 2000 ms");
  // Sooner than anybody takes it for lost.
  expect_lost("0", "stuck", "MPI does not return from a call within 5 s", "60");
  expect_lost("1", "stuck", "MPI does not return from a call within 5 s", "60");
  // It begins to arrive at rank 2, and that is all.
  const ProcessResult half = run("2", "half");
  EXPECT_EQ(half.exit_code, 3) << half.err;
  ExpectOneError(half, "): sent nothing for 2000 ms");
  EXPECT_EQ(half.err.rfind("error: rank 1 (", 0), 0u) << half.err;
}

// The next rank works on a piece of a prompt while this one computes that after it. Parts of a message that shared memory takes
// as copies, and those of TCP, leave only while MPI is called.
TEST_F(RanksCli, RowsArriveWhileTheirSenderComputes) {
  const auto arrives = [](const std::vector<std::string>& options) {
    std::vector<std::string> words = options;
    words.insert(words.end(), {STOCH_BUSY_SENDER, fs::path(StochBinary()).parent_path()});
    const ProcessResult result = Launch(2, words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::istringstream lines(result.out);
    std::map<std::string, int64_t> when;
    for (std::string who, ms; lines >> who >> ms;) when[who] = std::stoll(ms);
    EXPECT_EQ(when.size(), 2u) << result.out;
    EXPECT_LT(when["taker"], when["sender"]);
  };
  arrives({});
  if (!IsOpenMpi()) return;
  arrives({"--mca", "pml", "ob1", "--mca", "btl", "tcp,self"});
  arrives({"--mca", "pml", "ob1", "--mca", "btl", "vader,self", "--mca", "btl_vader_single_copy_mechanism", "none"});
}

TEST_F(RanksCli, ALostRankEndsTheJob) {
  const TempDir folder;
  WriteFile(folder / "text", BirdsText(4000));
  const auto words = WithDemo("perplexity", {"--file", folder / "text", "--ctx", "128", "--quiet"});
  constexpr struct {
    const char* rank;
    const char* signal;
    const char* part;
  } kLosses[] = {{"1", "STOP", ": sent nothing for "},
                 {"1", "KILL", ""},
                 {"0", "STOP", ": sent nothing for "}};  // a piece for 5 s, or the rows of one for 2
  for (const auto& [rank, signal, part] : kLosses) {
    SCOPED_TRACE(std::string(rank) + " " + signal);
    // That rank has its model, and runs for a while; then it stops for ever, or is gone.
    WriteScript(
        folder / "rank",
        std::string("\"$@\" &\nfor i in $(seq 300); do grep -q safetensors /proc/$!/maps && break; sleep 0.1; done\n"
                    "sleep 1.5\nkill -") +
            signal + " $!\nwait $!",
        rank);
    const ProcessResult result = RunRanks(2, OnRanks(words, {"--rank-limit", "2"}), folder / "rank");
    EXPECT_NE(result.exit_code, 0);
    EXPECT_NE(result.exit_code, 124) << "nobody noticed";
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
    EXPECT_EQ(result.err.find(": sent nothing for 10000 ms"), std::string::npos) << result.err;
  }
}

// No message tells of it: ranks of one host send through shared memory, and the launcher that would end them is stopped.
TEST_F(RanksCli, AMiddleRankThatAStoppedLauncherLosesEndsTheJob) {
  const TempDir folder;
  WriteFile(folder / "text", BirdsText(4000));
  const auto words = WithDemo("perplexity", {"--file", folder / "text", "--ctx", "128", "--quiet"});
  const std::string pid = Quoted(folder / "pid.");
  WriteFile(folder / "rank",
            "#!/bin/sh\nrank=$OMPI_COMM_WORLD_RANK$PMI_RANK\n"
            "if [ $rank != 1 ]; then echo $$ >" +
                pid +
                "$rank; exec \"$@\"; fi\n"
                "there() { for i in 0 2; do readlink /proc/$(cat " +
                pid +
                "$i)/exe >/dev/null && return; done; false; }\n"
                "\"$@\" &\n"
                "for i in $(seq 300); do grep -q safetensors /proc/$!/maps && break; sleep 0.1; done\n"
                "sleep 1.5\nkill -STOP $PPID\nkill -KILL $!\nbegin=$(date +%s)\n"
                "for i in $(seq 300); do there || break; sleep 0.1; done\n"
                "echo $(($(date +%s) - begin)) >" +
                Quoted(folder / "seconds") + "\nkill -KILL $PPID\n");
  fs::permissions(folder / "rank", fs::perms::owner_all);
  const ProcessResult result = RunRanks(3, OnRanks(words), folder / "rank");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.exit_code, 124);
  const std::string seconds = ReadFile(folder / "seconds");
  ASSERT_NE(seconds, "");
  EXPECT_LT(std::stoi(seconds), 10);
}

}  // namespace
}  // namespace stoch::test
