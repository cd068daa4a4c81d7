// The tree obeys its rules, and every rule can fail.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/policy/rules.h"

namespace stoch::test {
namespace {

// What a rule says of one line in one file.
size_t Findings(Rule rule, const std::string& path, const std::string& text) {
  return rule({path, "// A file.\n" + text + "\n"}).size();
}

TEST(IncludesRule, PointsDown) {
  EXPECT_EQ(Findings(CheckIncludes, "engine/a.cc", "#include \"models/b.h\""), 0u);
  EXPECT_EQ(Findings(CheckIncludes, "models/a.cc", "#include \"kernels/backend.h\""), 0u);
  EXPECT_EQ(Findings(CheckIncludes, "kernels/cpu/a.cc", "#include \"kernels/cpu/b.h\""), 0u);
  EXPECT_EQ(Findings(CheckIncludes, "kernels/registry.cc", "#include \"kernels/cuda/b.h\""), 0u);

  EXPECT_EQ(Findings(CheckIncludes, "models/a.cc", "#include \"engine/b.h\""), 1u);
  EXPECT_EQ(Findings(CheckIncludes, "models/a.cc", "  #  include \"kernels/cpu/b.h\""), 1u);
  EXPECT_EQ(Findings(CheckIncludes, "kernels/backend.h", "#include \"loader/b.h\""), 1u);
  EXPECT_EQ(Findings(CheckIncludes, "kernels/base/a.h", "#include \"kernels/math/b.h\""), 1u);
  EXPECT_EQ(Findings(CheckIncludes, "kernels/cpu/a.cc", "#include \"kernels/cuda/b.h\""), 1u);
  EXPECT_EQ(Findings(CheckIncludes, "kernels/cuda/a.cu", "#include \"kernels/cpu/b.h\""), 1u);
  EXPECT_EQ(Findings(CheckIncludes, "loader/a.cc", "#include \"kernels/registry.h\""), 1u);
  EXPECT_EQ(Findings(CheckIncludes, "tools/stoch/a.cc", "#include \"tests/support/b.h\""), 1u);
  EXPECT_EQ(Findings(CheckIncludes, "engine/a.cc", "#include \"b.h\""), 1u);
  EXPECT_EQ(Findings(CheckIncludes, "util/a.cc", "int x;"), 1u);
}

TEST(CudaHeadersRule, OnlyInTheCudaFolder) {
  EXPECT_EQ(Findings(CheckCudaHeaders, "kernels/cuda/a.cu", "#include <cuda_runtime.h>"), 0u);
  EXPECT_EQ(Findings(CheckCudaHeaders, "bench/kernels/cuda/a.cu", "#include <cuda_runtime.h>"), 0u);
  EXPECT_EQ(Findings(CheckCudaHeaders, "kernels/registry.cc", "#include <cuda_runtime.h>"), 1u);
  EXPECT_EQ(Findings(CheckCudaHeaders, "models/a.cc", "#include <nccl.h>"), 1u);
  EXPECT_EQ(Findings(CheckCudaHeaders, "engine/a.h", "#include \"cublas_v2.h\""), 1u);
}

TEST(BackendNamesRule, BothOnlyInTheRegistry) {
  EXPECT_EQ(Findings(CheckBackendNames, "kernels/registry.cc", "cpu::Open(); cuda::Open();"), 0u);
  EXPECT_EQ(Findings(CheckBackendNames, "kernels/cpu/a.cc", "cpu::Open();  // as cuda::Open"), 0u);
  EXPECT_EQ(Findings(CheckBackendNames, "models/a.cc", "cpu::Open(); cuda::Open();"), 1u);
}

TEST(SetDeviceRule, OnlyInTheGuard) {
  EXPECT_EQ(Findings(CheckSetDevice, "kernels/cuda/device_guard.cc", "cudaSetDevice(1);"), 0u);
  EXPECT_EQ(Findings(CheckSetDevice, "kernels/cuda/a.cu", "cudaSetDevice(1);"), 1u);
  EXPECT_EQ(Findings(CheckSetDevice, "tests/kernels/cuda/a.cu", "  Check(cudaSetDevice(1));"), 1u);
}

TEST(QuietLibrariesRule, NoOutputNoExit) {
  EXPECT_EQ(Findings(CheckQuietLibraries, "engine/a.cc", "// printf(\"x\")\nsnprintf(buffer, 3, \"x\");"), 0u);
  EXPECT_EQ(Findings(CheckQuietLibraries, "tools/stoch/a.cc", "printf(\"x\");"), 0u);
  EXPECT_EQ(Findings(CheckQuietLibraries, "engine/a.cc", "std::printf(\"x\");"), 1u);
  EXPECT_EQ(Findings(CheckQuietLibraries, "kernels/cuda/a.cu", "std::cerr << 1;"), 1u);
  EXPECT_EQ(Findings(CheckQuietLibraries, "loader/a.cc", "  abort();"), 1u);
}

TEST(NoLibmRule, KernelsAndModels) {
  EXPECT_EQ(Findings(CheckNoLibm, "kernels/cpu/a.cc", "Exp(x); std::sqrt(x); std::max(x, y);"), 0u);
  EXPECT_EQ(Findings(CheckNoLibm, "kernels/cuda/attention_half.cu", "exp2f(x);"), 0u);
  EXPECT_EQ(Findings(CheckNoLibm, "kernels/cuda/fp16_vector.cu", "__expf(x);"), 0u);
  EXPECT_EQ(Findings(CheckNoLibm, "kernels/cpu/fp16.cc", "expf(x);"), 1u);
  EXPECT_EQ(Findings(CheckNoLibm, "kernels/cpu/a.cc", "std::exp(x);"), 1u);
  EXPECT_EQ(Findings(CheckNoLibm, "kernels/cuda/a.cu", "__expf(x);"), 1u);
  EXPECT_EQ(Findings(CheckNoLibm, "models/a.cc", "cosf(x);"), 1u);
}

TEST(LengthRule, SixHundredLines) {
  EXPECT_EQ(Findings(CheckLength, "engine/a.cc", std::string(599, '\n')), 1u);
  EXPECT_EQ(Findings(CheckLength, "engine/a.cc", std::string(598, '\n')), 0u);
}

TEST(WordsRule, TheFieldsWords) {
  EXPECT_EQ(Findings(CheckWords, "engine/a.h", "// next to it, besides, in flight; steps_under_way(), underway"), 0u);
  EXPECT_EQ(Findings(CheckWords, "kernels/cpu/a.cc", "// L2 of an SM holds pinned memory"), 0u);
  EXPECT_EQ(Findings(CheckWords, "engine/a.h", "// Beside it."), 1u);
  EXPECT_EQ(Findings(CheckWords, "docs/a.md", "132 multiprocessors, each anew"), 2u);
  EXPECT_EQ(Findings(CheckWords, "engine/a.h", "// a step is under\n// way now\n// and goes on"), 1u);
  EXPECT_EQ(Findings(CheckWords, "engine/a.cc", "reject(\"page-locked memory\");"), 1u);
  EXPECT_EQ(Findings(CheckWords, "README.md", "the second-level cache\n\nthe sums of chunks"), 2u);
}

TEST(CitationsRule, DocumentsLinksAndPathsExist) {
  const std::vector<std::string> paths = {"docs/a.md", "docs/b.md", "kernels/backend.h", "engine/b.cc", "README.md"};
  const auto findings = [&](const std::string& path, const std::string& text) {
    return CheckCitations({{"docs/a.md", "# A b: `c`\n```\n# no heading\n```\n"}, {path, text + "\n"}}, paths).size();
  };
  EXPECT_EQ(findings("engine/b.cc", "// Source: docs/a.md#a-b-c and docs/a.md."), 0u);
  EXPECT_EQ(findings("README.md", "[a](docs/a.md) [b](docs/a.md#a-b-c) [c](https://x.org/docs/c.md) `kernels/`"), 0u);
  EXPECT_EQ(findings("docs/b.md", "# Here\n[a](a.md) [b](../kernels/backend.h) [c](#here) `engine/*.h`"), 0u);

  EXPECT_EQ(findings("engine/b.cc", "// Source: docs/none.md"), 1u);
  EXPECT_EQ(findings("engine/b.cc", "// Source: shared/spec none.md"), 1u);
  EXPECT_EQ(findings("engine/b.cc", "// Source: docs/a.md#no-heading"), 1u);
  EXPECT_EQ(findings("README.md", "[a](docs/none.md)"), 1u);
  EXPECT_EQ(findings("README.md", "[a](docs/a.md#other)"), 1u);
  EXPECT_EQ(findings("docs/a.md", "# Here\n[a](kernels/backend.h)"), 1u);
  EXPECT_EQ(findings("docs/b.md", "see `kernels/gone.h`"), 1u);
}

struct NamedRule {
  const char* name;
  Rule rule;
};

class Tree : public testing::TestWithParam<NamedRule> {
 protected:
  static const std::vector<SourceFile>& Files() {
    static const std::vector<SourceFile> files = ReadTree(STOCH_SOURCE_DIR);
    return files;
  }
};

TEST_P(Tree, ObeysTheRule) {
  // A walk that finds nothing would pass every rule.
  ASSERT_TRUE(std::any_of(Files().begin(), Files().end(), [](const SourceFile& file) {
    return file.path == "kernels/backend.h" && !file.text.empty();
  }));
  for (const SourceFile& file : Files()) {
    for (const std::string& finding : GetParam().rule(file)) ADD_FAILURE() << finding;
  }
}

TEST(WholeTree, CitesOnlyWhatIsThere) {
  const std::vector<std::string> paths = ListTree(STOCH_SOURCE_DIR);
  ASSERT_NE(std::find(paths.begin(), paths.end(), "docs/sc_arithmetic.md"), paths.end());
  for (const std::string& finding : CheckCitations(ReadTree(STOCH_SOURCE_DIR), paths)) ADD_FAILURE() << finding;
}

INSTANTIATE_TEST_SUITE_P(
    Rules, Tree,
    testing::Values(NamedRule{"Includes", CheckIncludes}, NamedRule{"CudaHeaders", CheckCudaHeaders},
                    NamedRule{"BackendNames", CheckBackendNames}, NamedRule{"SetDevice", CheckSetDevice},
                    NamedRule{"QuietLibraries", CheckQuietLibraries}, NamedRule{"NoLibm", CheckNoLibm},
                    NamedRule{"Length", CheckLength}, NamedRule{"Words", CheckWords}),
    [](const auto& rule) { return rule.param.name; });

}  // namespace
}  // namespace stoch::test
