// SPDX-License-Identifier: Apache-2.0
// stoch vectors: what it writes agrees with itself without a simulator, and with Verilog under one.
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"
#include "tests/tools/cli_support.h"

namespace stoch::test {
namespace {

using Json = nlohmann::json;

std::vector<std::string> Lines(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

int32_t Signed(const std::string& hex) { return static_cast<int32_t>(std::stoul(hex, nullptr, 16)); }

class Vectors : public testing::Test {
 protected:
  // Vectors of the demo model's settings, and their meta.json.
  Json Make(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"vectors",   "--model", DemoModel(),       "--device", "cpu",
                                          "--threads", "1",       "--file",          Text(),     "--ctx",
                                          "24",        "-o",      Folder().string(), "--quiet"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProcessResult run = RunStoch(arguments);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    std::ifstream meta(Folder() / "meta.json");
    return Json::parse(meta);
  }
  std::string Text() {
    const auto path = dir_.path() / "text";
    std::ofstream(path) << "Once upon a time there was a little girl who loved to play in the garden with her dog. One "
                           "day she found a red ball under the old tree and took it home to show her mother.";
    return path.string();
  }
  std::filesystem::path Folder() const { return dir_.path() / "vectors"; }

  // count.hex and acc.hex from bit.hex.
  void ExpectSums(const Json& meta) {
    const auto bits = Lines(Folder() / "bit.hex"), counts = Lines(Folder() / "count.hex"),
               sums = Lines(Folder() / "acc.hex");
    const auto a = Lines(Folder() / "a.hex"), b = Lines(Folder() / "b.hex");
    const auto rows = meta["rows"].size(), outputs = meta["outputs"].size();
    const auto dims = meta["D"].get<size_t>(), chunk = meta["chunk_d"].get<size_t>();
    const int length = meta["L"], p = meta["p"];
    ASSERT_EQ(bits.size(), rows * outputs * dims);
    ASSERT_EQ(counts.size(), bits.size());
    size_t at_sum = 0, nonzero = 0;
    int32_t sum = 0;
    for (size_t i = 0; i < bits.size(); ++i) {
      int ones = 0;
      for (const char digit : bits[i]) {
        ones += std::popcount(static_cast<unsigned>(std::stoul(std::string(1, digit), nullptr, 16)));
      }
      const size_t d = i % dims, row = i / dims / outputs, output = i / dims % outputs;
      const auto sign = [&](const std::string& code) { return std::stoul(code, nullptr, 16) >> (p - 1) & 1; };
      int32_t count = meta["gate"] == "xnor" ? 2 * ones - length : ones;
      if (meta["signs"] && sign(a[row * dims + d]) != sign(b[output * dims + d])) count = -count;
      ASSERT_EQ(Signed(counts[i]), count) << i;
      nonzero += count != 0 ? 1 : 0;
      sum += count;
      if ((d + 1) % chunk != 0 && d + 1 != dims) continue;
      ASSERT_EQ(Signed(sums[at_sum++]), sum) << i;
      sum = 0;
    }
    EXPECT_EQ(at_sum, sums.size());
    EXPECT_GT(nonzero, bits.size() / 8);
  }

  // The bench's exit code.
  int Simulate() {
    const std::string command = std::string(STOCH_SOURCE_DIR) + "/examples/rtl/run '" + Folder().string() + "' > '" +
                                (dir_.path() / "log").string() + "' 2>&1";
    return std::system(command.c_str());
  }
  std::string Log() {
    std::ifstream file(dir_.path() / "log");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  TempDir dir_;
};

struct VectorCase {
  const char* sc;
  const char* op;
  const char* rows;
  const char* outputs;
};
constexpr VectorCase kCases[] = {
    {"preset=halved", "0.q_proj", "0-1", "0-2"},
    {"halve=0,stoc_len=256,chunk_d=64,fault_weight=0.01", "0.down_proj", "3", "5-6"},
    {"q_proj.gate=and,stoc_len=96", "1.q_proj", "2", "0-1"},
    {"q_proj.gate=xnor,q_proj.halve=0,q_proj.stoc_len=17", "0.q_proj", "4", "0-1"},
    {"preset=halved", "0.qk", "9-10", "0-3"},
    {"halve=1,stoc_len=64", "1.av", "20", "0-3"},
};

TEST_F(Vectors, SumsAreThoseOfTheirBits) {
  for (const VectorCase& one : kCases) {
    SCOPED_TRACE(one.sc);
    ExpectSums(Make({"--sc", one.sc, "--op", one.op, "--rows", one.rows, "--outputs", one.outputs}));
  }
}

bool IsThere(const std::string& program) {
  return std::system(("command -v " + program + " >/dev/null 2>&1").c_str()) == 0;
}
// Whether a machine without the simulator, or the linter, is an error.
bool IsRequired() {
  const char* required = std::getenv("STOCH_REQUIRE_RTL");
  return required != nullptr && std::string(required) == "1";
}

TEST_F(Vectors, TheBenchAgreesBitForBit) {
  if (!IsThere("iverilog")) {
    if (IsRequired()) FAIL() << "STOCH_REQUIRE_RTL=1, but iverilog is not there";
    GTEST_SKIP() << "iverilog is not installed";
  }
  for (const VectorCase& one : kCases) {
    SCOPED_TRACE(one.sc);
    Make({"--sc", one.sc, "--op", one.op, "--rows", one.rows, "--outputs", one.outputs});
    EXPECT_EQ(Simulate(), 0) << Log();
    EXPECT_NE(Log().find("PASS"), std::string::npos) << Log();
  }
  // One bit of one number spoiled.
  std::vector<std::string> sums = Lines(Folder() / "acc.hex");
  sums.back().back() = sums.back().back() == '0' ? '1' : '0';
  std::ofstream file(Folder() / "acc.hex");
  for (const std::string& line : sums) file << line << '\n';
  file.close();
  EXPECT_NE(Simulate(), 0);
  EXPECT_NE(Log().find("acc of row"), std::string::npos) << Log();
}

TEST_F(Vectors, TheMultiplierIsCleanForALinter) {
  if (!IsThere("verilator")) {
    if (IsRequired()) FAIL() << "STOCH_REQUIRE_RTL=1, but verilator is not there";
    GTEST_SKIP() << "verilator is not installed";
  }
  const std::string command = std::string("verilator --lint-only -Wall '") + STOCH_SOURCE_DIR +
                              "/examples/rtl/sc_mac.sv' > '" + (dir_.path() / "log").string() + "' 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0) << Log();
}

TEST_F(Vectors, WhatCannotBeIsRefused) {
  const auto refused = [&](const std::vector<std::string>& more, const std::string& part) {
    std::vector<std::string> arguments = {"vectors", "--model", DemoModel(), "--device", "cpu", "--threads",      "1",
                                          "--file",  Text(),    "--ctx",     "24",       "-o",  Folder().string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    ExpectRefused(RunStoch(arguments), part);
  };
  refused({"--op", "q_proj"}, "LAYER.OPERATOR");
  refused({"--op", "99.q_proj"}, "layer 99");
  refused({"--op", "0.q_proj", "--rows", "30"}, "--rows 30: allowed is 0..23");
  refused({"--op", "0.q_proj", "--rows", "20-30"}, "--rows 20-30: allowed is 0..23");
  refused({"--op", "0.q_proj", "--rows", "-1"}, "--rows -1: allowed is 0..23");
  refused({"--op", "0.q_proj", "--rows", "3-0"}, "--rows 3-0: the first is after the last");
  refused({"--op", "0.q_proj", "--rows", "x"}, "--rows 'x'");
  refused({"--op", "0.qk", "--rows", "3", "--outputs", "0-7"}, "--outputs 0-7: allowed is 0..3");
  refused({"--op", "0.av", "--rows", "3-4"}, "one row");
  refused({"--op", "0.q_proj", "--sc", "q_proj.arith=int8"}, "multiplies no streams");
  refused({"--op", "0.q_proj", "--sc", "q_proj.adder=or,q_proj.adder_group=2"}, "adder = counter");
  refused({"--op", "0.q_proj", "--sequence", "99"}, "--sequence 99");
  refused({"--op", "0.q_proj", "--head", "0"}, "--head: has no meaning with --op 0.q_proj");
  refused({"--op", "0.qk", "--sc", "attention=exact"}, "attention = per_token");
  refused({"--op", "0.qk", "--sc", "qk.arith=int8"}, "0.qk multiplies no streams");
  EXPECT_FALSE(std::filesystem::exists(Folder()));
}

// An error that options and config.json show comes before a model is loaded, and so before its device is opened.
TEST_F(Vectors, WhatTheConfigTellsComesBeforeLoading) {
  const auto refused = [&](const std::string& folder, const std::vector<std::string>& more, const std::string& part) {
    std::vector<std::string> arguments = {"vectors", "--model", DemoModel(), "--device", "cuda:99", "--file",
                                          Text(),    "--ctx",   "24",        "-o",       folder};
    arguments.insert(arguments.end(), more.begin(), more.end());
    ExpectRefused(RunStoch(arguments), part);
  };
  const std::string folder = Folder().string();
  refused(folder, {"--op", "0.q_proj"}, "cuda");
  refused(folder, {"--op", "99.q_proj"}, "layer 99");
  refused(folder, {"--op", "0.q_proj", "--rows", "30"}, "--rows 30: allowed");
  refused(folder, {"--op", "0.q_proj", "--outputs", "99999"}, "--outputs 99999: allowed");
  refused(folder, {"--op", "0.qk", "--head", "99"}, "--head 99: allowed");
  refused(folder, {"--op", "0.q_proj", "--sequence", "99"}, "--sequence 99");
  refused(folder, {"--op", "0.q_proj", "--sc", "arith=int8"}, "0.q_proj multiplies no streams");
  refused(folder, {"--op", "0.q_proj", "--sc", "q_proj.adder=or,q_proj.adder_group=2"}, "adder = counter");
  refused(Text(), {"--op", "0.q_proj"}, "-o " + Text() + ": allowed is a folder");
  refused(Text() + "/new/folder", {"--op", "0.q_proj"}, ": allowed is a folder, and " + Text() + " is none");
  EXPECT_FALSE(std::filesystem::exists(Folder()));
}

}  // namespace
}  // namespace stoch::test
