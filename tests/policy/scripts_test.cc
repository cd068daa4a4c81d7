// SPDX-License-Identifier: Apache-2.0
// Scripts that check this tree: they pass, and each fails where something is broken.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

// Exit code and output of a Python script of this tree.
std::pair<int, std::string> RunScript(const std::string& script) {
  FILE* const pipe = popen(("python3 '" STOCH_SOURCE_DIR "'/" + script + " 2>&1").c_str(), "r");
  std::string said;
  std::array<char, 4096> piece;
  while (pipe != nullptr && fgets(piece.data(), piece.size(), pipe) != nullptr) said += piece.data();
  return {pipe == nullptr ? -1 : pclose(pipe), said};
}

void Write(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

TEST(Ceilings, KernelsStayBelowThem) {
  const auto [code, said] = RunScript("tools/count_kernels --check");
  EXPECT_EQ(code, 0) << said;
}

TEST(Ceilings, CanBePassedAndAreLowered) {
  const TempDir dir;
  const std::filesystem::path& root = dir.path();
  const std::string check = "tools/count_kernels --root '" + root.string() + "' ";
  const auto ceilings = [&](int lines, int comments) {
    Write(root / "tests/policy/ceilings.json", "{\"code_lines\": {\"kernels/\": " + std::to_string(lines) +
                                                   ", \"kernels/cuda/\": 0}, \"global_functions\": {\"kernels/\": 1}, "
                                                   "\"vague_comments\": {\"kernels/plan\": " +
                                                   std::to_string(comments) + "}}");
  };
  Write(root / "kernels/plan/a.h",
        "// What it is,\n// Of two lines.\nint x;  // The same.\n\n/* \"There\" */\nint y;  // of x\n"
        "const char* text = \"// What\";\n");
  ceilings(3, 3);
  EXPECT_EQ(RunScript(check + "--check").first, 0);
  ceilings(2, 3);
  EXPECT_NE(RunScript(check + "--check").second.find("kernels/: 3 code lines, the ceiling is 2"), std::string::npos);
  ceilings(3, 2);
  EXPECT_NE(RunScript(check + "--check").second.find("kernels/plan: 3 comments begin with What"), std::string::npos);
  ceilings(9, 9);
  EXPECT_EQ(RunScript(check + "--lower").first, 0);
  Write(root / "kernels/cuda/b.cu", "// There is one.\n");  // of a folder that has no ceiling yet
  const std::string said = RunScript(check + "--check").second;
  EXPECT_NE(said.find("kernels/cuda: 1 comments begin with What"), std::string::npos) << said;
  EXPECT_EQ(said.find("kernels/:"), std::string::npos) << said;
  Write(root / "kernels/plan/a.h", "int x;\nint y;\nint z;\nint w;\n");
  EXPECT_NE(RunScript(check + "--check").second.find("kernels/: 4 code lines, the ceiling is 3"), std::string::npos);
}

TEST(Ceilings, OfKernelsFunctionsAndPlacesThatChoose) {
  const TempDir dir;
  const std::filesystem::path& root = dir.path();
  const auto said = [&](const std::string& text) {
    Write(root / "kernels/cuda/a.cu", text);
    return RunScript("tools/count_kernels --root '" + root.string() + "' --check");
  };
  Write(
      root / "tests/policy/ceilings.json",
      R"({"code_lines": {"kernels/": 200, "kernels/cuda/": 200}, "global_functions": {"kernels/": 1}, "vague_comments": {}})");
  const std::string body(97, '\n');
  EXPECT_EQ(said("__global__ void A() {" + body + "}\nvoid RunsWide() {\n}\n").first, 0);
  EXPECT_NE(said("__global__ void A() {\n\n\n" + body + "}\n").second.find("a.cu:1: A has 101 lines, at most 100"),
            std::string::npos);
  EXPECT_NE(said("bool TakesWide() {\n  return true;\n}\n").second.find("a.cu: TakesWide chooses"), std::string::npos);
  EXPECT_NE(
      said("__global__ void A() {}\n__global__ void B() {}\n").second.find("2 kernels (__global__), the ceiling is 1"),
      std::string::npos);
  Write(root / "kernels/plan/a.cc", "bool TakesWide() {\n  return true;\n}\n");
  EXPECT_EQ(said("int x;\n").first, 0);
}

TEST(Numbers, OfReadmeAndPerformanceAreThoseRecorded) {
  const auto [code, said] = RunScript("bench/quote --check");
  EXPECT_EQ(code, 0) << said;
}

TEST(Numbers, OfAnotherRecordAreNoticedAndWritten) {
  const TempDir dir;
  const std::filesystem::path& root = dir.path();
  for (const char* const part : {"bench/results", "bench/log", "docs/performance.md", "README.md"}) {
    std::filesystem::create_directories((root / part).parent_path());
    std::filesystem::copy(std::filesystem::path(STOCH_SOURCE_DIR) / part, root / part,
                          std::filesystem::copy_options::recursive);
  }
  const std::string options = " --root '" + root.string() + "'";
  ASSERT_EQ(RunScript("bench/quote --check" + options).first, 0);
  // PyTorch is the faster baseline of this prompt, and the record the newest.
  std::ofstream(root / "bench/log/commits.tsv", std::ios::app) << "abcdef0\t9999-01-01\n";
  const auto record = [](const std::string& commit, const std::string& torch_ms) {
    const std::string row = R"({"model": "random:llama-3.1-8b", "device": "cuda:0", "test": "prompt", "prompt": 2048,
      "depth": 0, "batch": 1, "sc": "preset=halved", "precision": )";
    return R"({"commit": ")" + commit + R"(", "results": [)" + row + R"("sc", "median_ms": 360},)" + row +
           R"("fp16", "median_ms": 60},)" + row + R"("torch-fp16", "median_ms": )" + torch_ms + "}]}";
  };
  Write(root / "bench/results/h200/llama-3.1-8b/torch.json", record("abcdef0", "50"));
  // README's record is of another run, next to PyTorch of that run, whatever was recorded since.
  Write(root / "bench/results/h200/readme-8b.json", record("2b4224b3d2cc", "55"));
  EXPECT_NE(RunScript("bench/quote --check" + options).second.find("docs/performance.md and README.md: not what"),
            std::string::npos);
  ASSERT_EQ(RunScript("bench/quote" + options).first, 0);
  EXPECT_EQ(RunScript("bench/quote --check" + options).first, 0);
  const std::string page = ReadFile(root / "docs/performance.md");
  EXPECT_NE(page.find("| prompt of 2048 | 360 ms | 60.0 ms | 50.0 ms | 7.20 | 9999-01-01 | abcdef0 |"),
            std::string::npos)
      << page;
  EXPECT_NE(ReadFile(root / "README.md").find(" | 360 ms | PyTorch 55.0 ms | 6.55 | "), std::string::npos);
}

TEST(Numbers, OfTheTutorialAreThoseOfItsFile) {
  const auto [code, said] = RunScript("docs/plots/numbers check-page");
  EXPECT_EQ(code, 0) << said;
  const TempDir dir;
  std::string text = ReadFile(std::filesystem::path(STOCH_SOURCE_DIR) / "docs/tutorial.md");
  text.replace(text.find("| 64 | 11.51 |"), 14, "| 64 | 11.52 |");
  Write(dir.path() / "page.md", text);
  EXPECT_NE(RunScript("docs/plots/numbers check-page '" + (dir.path() / "page.md").string() + "'").first, 0);
}

}  // namespace
}  // namespace stoch::test
