// SPDX-License-Identifier: Apache-2.0
// The tree obeys its rules, and every rule can fail.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

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

TEST(IncludesRule, PointsDownWithinALayer) {
  EXPECT_EQ(Findings(CheckIncludes, "kernels/cuda/a.cc", "#include \"kernels/cuda/sc/b.h\""), 0u);
  EXPECT_EQ(Findings(CheckIncludes, "kernels/cuda/linear/a.cc", "#include \"kernels/cuda/sc/b.h\""), 0u);
  EXPECT_EQ(Findings(CheckIncludes, "kernels/cpu/a.cc", "#include \"kernels/cpu/simd/b.h\""), 0u);
  EXPECT_EQ(Findings(CheckIncludes, "loader/tokenizer/a.cc", "#include \"loader/b.h\""), 0u);
  EXPECT_EQ(Findings(CheckIncludes, "engine/worker/a.cc", "#include \"engine/b.h\""), 0u);
  EXPECT_EQ(Findings(CheckIncludes, "engine/gateway/a.cc", "#include \"engine/request/b.h\""), 0u);

  EXPECT_EQ(Findings(CheckIncludes, "kernels/cuda/sc/a.cc", "#include \"kernels/cuda/b.h\""), 1u);
  EXPECT_EQ(Findings(CheckIncludes, "kernels/cuda/linear/a.cc", "#include \"kernels/cuda/sc/decode/b.h\""), 1u);
  EXPECT_EQ(Findings(CheckIncludes, "kernels/cuda/runtime/a.cc", "#include \"kernels/cuda/device/b.cuh\""), 1u);
  EXPECT_EQ(Findings(CheckIncludes, "kernels/cuda/sc/format/a.cc", "#include \"kernels/cuda/sc/b.h\""), 1u);
  EXPECT_EQ(Findings(CheckIncludes, "kernels/cuda/attention/a.cu", "#include \"kernels/cuda/sc/b.h\""), 1u);
  EXPECT_EQ(Findings(CheckIncludes, "kernels/cpu/simd/a.cc", "#include \"kernels/cpu/b.h\""), 1u);
  EXPECT_EQ(Findings(CheckIncludes, "loader/a.cc", "#include \"loader/tokenizer/b.h\""), 1u);
  EXPECT_EQ(Findings(CheckIncludes, "loader/config/a.cc", "#include \"loader/checkpoint/b.h\""), 1u);
  EXPECT_EQ(Findings(CheckIncludes, "models/a.cc", "#include \"models/decoder/b.h\""), 1u);
  EXPECT_EQ(Findings(CheckIncludes, "engine/a.cc", "#include \"engine/serve/b.h\""), 1u);
  for (const std::string folder : {"engine/request/", "engine/ipc/", "engine/serve/", "engine/gateway/"}) {
    for (const std::string header : {"engine/b.h", "engine/worker/b.h", "models/b.h", "kernels/backend.h",
                                     "kernels/registry.h", "loader/checkpoint/b.h"}) {
      EXPECT_EQ(Findings(CheckIncludes, folder + "a.cc", "#include \"" + header + "\""), 1u) << folder << header;
    }
  }
  EXPECT_EQ(Findings(CheckIncludes, "tools/stoch/a.cc", "#include \"python/src/b.h\""), 1u);
}

TEST(CudaHeadersRule, OnlyInTheCudaFolder) {
  EXPECT_EQ(Findings(CheckCudaHeaders, "kernels/cuda/a.cu", "#include <cuda_runtime.h>"), 0u);
  EXPECT_EQ(Findings(CheckCudaHeaders, "bench/kernels/cuda/a.cu", "#include <cuda_runtime.h>"), 0u);
  EXPECT_EQ(Findings(CheckCudaHeaders, "kernels/registry.cc", "#include <cuda_runtime.h>"), 1u);
  EXPECT_EQ(Findings(CheckCudaHeaders, "models/a.cc", "#include <nccl.h>"), 1u);
  EXPECT_EQ(Findings(CheckCudaHeaders, "engine/a.h", "#include \"cublas_v2.h\""), 1u);
}

TEST(MpiHeadersRule, OnlyInTheModule) {
  EXPECT_EQ(Findings(CheckMpiHeaders, "engine/ranks/mpi/module.cc", "#include <mpi.h>"), 0u);
  EXPECT_EQ(Findings(CheckMpiHeaders, "engine/ranks/job.cc", "#include <mpi.h>"), 1u);
  EXPECT_EQ(Findings(CheckMpiHeaders, "tests/engine/a.cc", "#include \"mpi.h\""), 1u);
  EXPECT_EQ(Findings(CheckMpiHeaders, "models/a.cc", "#include <mpi-ext.h>"), 1u);
}

TEST(BackendNamesRule, BothOnlyInTheRegistry) {
  EXPECT_EQ(Findings(CheckBackendNames, "kernels/registry.cc", "cpu::Open(); cuda::Open();"), 0u);
  EXPECT_EQ(Findings(CheckBackendNames, "kernels/cpu/a.cc", "cpu::Open();  // as cuda::Open"), 0u);
  EXPECT_EQ(Findings(CheckBackendNames, "models/a.cc", "cpu::Open(); cuda::Open();"), 1u);
}

TEST(SetDeviceRule, OnlyInTheGuard) {
  EXPECT_EQ(Findings(CheckSetDevice, "kernels/cuda/base/device_guard.cc", "cudaSetDevice(1);"), 0u);
  EXPECT_EQ(Findings(CheckSetDevice, "kernels/cuda/a.cu", "cudaSetDevice(1);"), 1u);
  EXPECT_EQ(Findings(CheckSetDevice, "tests/kernels/cuda/a.cu", "  Check(cudaSetDevice(1));"), 1u);
}

TEST(BlockingCopiesRule, OnlyInUpload) {
  EXPECT_EQ(Findings(CheckBlockingCopies, "kernels/cuda/base/memory.cc", "cudaMemcpy(to, from, 1, kind);"), 0u);
  EXPECT_EQ(Findings(CheckBlockingCopies, "kernels/cuda/a.cu", "cudaMemcpyAsync(to, from, 1, kind, stream);"), 0u);
  EXPECT_EQ(Findings(CheckBlockingCopies, "kernels/cuda/a.cu", "Check(cudaMemcpy(to, from, 1, kind));"), 1u);
  EXPECT_EQ(Findings(CheckBlockingCopies, "tests/kernels/gpu/a.cc", "cudaMemset(to, 0, 1);"), 1u);
}

TEST(QuietLibrariesRule, NoOutputNoExit) {
  EXPECT_EQ(Findings(CheckQuietLibraries, "engine/a.cc", "// printf(\"x\")\nsnprintf(buffer, 3, \"x\");"), 0u);
  EXPECT_EQ(Findings(CheckQuietLibraries, "tools/stoch/a.cc", "printf(\"x\");"), 0u);
  EXPECT_EQ(Findings(CheckQuietLibraries, "engine/a.cc", "std::printf(\"x\");"), 1u);
  EXPECT_EQ(Findings(CheckQuietLibraries, "kernels/cuda/a.cu", "std::cerr << 1;"), 1u);
  EXPECT_EQ(Findings(CheckQuietLibraries, "loader/a.cc", "  abort();"), 1u);
}

TEST(StandardStreamsRule, NoStdioOnTheCommandLine) {
  EXPECT_EQ(Findings(CheckStandardStreams, "tools/stoch/a.cc", "// stderr\nPrintError(x); fmt::format(y);"), 0u);
  EXPECT_EQ(Findings(CheckStandardStreams, "engine/a.cc", "stderr"), 0u);
  EXPECT_EQ(Findings(CheckStandardStreams, "tools/stoch/a.cc", "std::fflush(stderr);"), 1u);
  EXPECT_EQ(Findings(CheckStandardStreams, "tools/stoch/a.cc", "std::cin >> x;"), 1u);
  EXPECT_EQ(Findings(CheckStandardStreams, "app/report/a.cc", "fmt::print(text);"), 1u);
}

TEST(NoLibmRule, KernelsAndModels) {
  EXPECT_EQ(Findings(CheckNoLibm, "kernels/cpu/a.cc", "Exp(x); std::sqrt(x); std::max(x, y);"), 0u);
  EXPECT_EQ(Findings(CheckNoLibm, "kernels/cuda/baseline/attention.cu", "exp2f(x);"), 0u);
  EXPECT_EQ(Findings(CheckNoLibm, "kernels/cuda/baseline/experts.cu", "__expf(x);"), 0u);
  EXPECT_EQ(Findings(CheckNoLibm, "kernels/cpu/fp16.cc", "expf(x);"), 1u);
  EXPECT_EQ(Findings(CheckNoLibm, "kernels/cpu/a.cc", "std::exp(x);"), 1u);
  EXPECT_EQ(Findings(CheckNoLibm, "kernels/cuda/a.cu", "__expf(x);"), 1u);
  EXPECT_EQ(Findings(CheckNoLibm, "models/a.cc", "cosf(x);"), 1u);
}

TEST(LengthRule, ThreeHundredLinesOfADocument) {
  EXPECT_EQ(Findings(CheckLength, "docs/tuning/a.md", std::string(299, '\n')), 1u);
  EXPECT_EQ(Findings(CheckLength, "docs/tuning/a.md", std::string(298, '\n')), 0u);
  EXPECT_EQ(Findings(CheckLength, "docs/sc-options.md", std::string(299, '\n')), 1u);
  EXPECT_EQ(Findings(CheckLength, "CHANGELOG.md", std::string(299, '\n')), 0u);
}

TEST(LengthRule, FiveHundredLines) {
  EXPECT_EQ(Findings(CheckLength, "engine/a.cc", std::string(499, '\n')), 1u);
  EXPECT_EQ(Findings(CheckLength, "engine/a.cc", std::string(498, '\n')), 0u);
}

TEST(FunctionsRule, ABodyOfTheHouse) {
  const auto body = [](int lines) { return " {\n" + std::string(static_cast<size_t>(lines - 2), '\n') + "}"; };
  EXPECT_EQ(Findings(CheckFunctions, "engine/a.cc", "void F()" + body(150)), 0u);
  EXPECT_EQ(Findings(CheckFunctions, "engine/a.cc", "void F()" + body(151)), 1u);
  EXPECT_EQ(Findings(CheckFunctions, "kernels/cuda/a.cu", "template <int N>\n__global__ void F()" + body(99)), 0u);
  EXPECT_EQ(Findings(CheckFunctions, "kernels/cuda/a.cu", "template <int N>\n__global__ void F()" + body(100)), 1u);
  EXPECT_EQ(Findings(CheckFunctions, "kernels/cpu/a.cc", "void F()" + body(101)), 1u);
  EXPECT_EQ(Findings(CheckFunctions, "engine/a.cc", "namespace stoch {\nstruct A {\n  int f()" + body(151) + "};}"),
            1u);
  EXPECT_EQ(Findings(CheckFunctions, "docs/a.md", "void F()" + body(151)), 0u);
  // Neither a table, nor what holds functions, nor braces in literals and comments.
  EXPECT_EQ(Findings(CheckFunctions, "engine/a.cc", "const int kTable[] =" + body(200)), 0u);
  EXPECT_EQ(Findings(CheckFunctions, "engine/a.cc", "namespace stoch" + body(200)), 0u);
  EXPECT_EQ(Findings(CheckFunctions, "engine/a.cc", "template <class T>\nclass A : public B<T>" + body(200)), 0u);
  EXPECT_EQ(Findings(CheckFunctions, "engine/a.cc",
                     "char F() { return '{'; }  // {\nconst char* g = \"{\";\n/* { */" + std::string(200, '\n')),
            0u);
  EXPECT_EQ(Findings(CheckFunctions, "engine/a.cc", "#define F() {\nauto g = R\"x({\")x\";" + std::string(200, '\n')),
            0u);
}

TEST(FunctionsRule, FindsNamesAndLines) {
  const std::vector<FunctionSize> functions =
      FunctionsOf({"a.cu",
                   "// A file.\nnamespace a {\n__global__ void __launch_bounds__(kThreads)\n    Kernel(int n) {\n  if "
                   "(n) {\n  }\n}\n"
                   "B::B(int x) : x_(x) {}\nstruct C {\n  int x() const { return 1; }\n};\n}\n"});
  ASSERT_EQ(functions.size(), 3u);
  EXPECT_EQ(functions[0].name, "Kernel");
  EXPECT_EQ(functions[0].line, 3u);
  EXPECT_EQ(functions[0].lines, 5u);
  EXPECT_EQ(functions[1].name, "B::B");
  EXPECT_EQ(functions[2].name, "x");
}

TEST(FolderCyclesRule, NamesTheCycle) {
  const SourceFile a = {"engine/a.cc", "#include \"engine/serve/b.h\"\n"};
  const SourceFile b = {"engine/serve/b.h", "#include \"loader/c.h\"\n"};
  EXPECT_TRUE(CheckFolderCycles({a, b, {"loader/c.h", "#include <vector>\n"}}).empty());
  const std::vector<std::string> found = CheckFolderCycles({a, b, {"loader/c.h", "#include \"engine/d.h\"\n"}});
  ASSERT_EQ(found.size(), 1u);
  for (const char* part : {"engine -> engine/serve (engine/a.cc includes engine/serve/b.h)",
                           "engine/serve -> loader (engine/serve/b.h includes loader/c.h)",
                           "loader -> engine (loader/c.h includes engine/d.h)"}) {
    EXPECT_NE(found[0].find(part), std::string::npos) << part << " in " << found[0];
  }
  // The registry includes the backends, whose contracts lie next to it; nobody else there may.
  const SourceFile backend = {"kernels/cpu/a.cc", "#include \"kernels/backend.h\"\n"};
  EXPECT_TRUE(CheckFolderCycles({backend, {"kernels/registry.cc", "#include \"kernels/cpu/a.h\"\n"}}).empty());
  EXPECT_EQ(CheckFolderCycles({backend, {"kernels/other.cc", "#include \"kernels/cpu/a.h\"\n"}}).size(), 1u);
}

// `count` empty sources, named by their number after `prefix`.
std::vector<SourceFile> Sources(const std::string& prefix, int count) {
  std::vector<SourceFile> files;
  for (int i = 0; i < count; ++i) files.push_back({prefix + std::to_string(i) + ".cc", ""});
  return files;
}

TEST(FolderSizesRule, ThirtyFiles) {
  EXPECT_TRUE(CheckFolderSizes(Sources("engine/a", 30)).empty());
  EXPECT_EQ(CheckFolderSizes(Sources("engine/a", 31)).size(), 1u);
  EXPECT_EQ(CheckFolderSizes(Sources("kernels/cuda/a", 31)).size(), 1u);
  EXPECT_TRUE(CheckFolderSizes(Sources("kernels/cpu/a", 31)).empty());
  std::vector<SourceFile> files = Sources("engine/a", 30);
  files.push_back({"engine/README.md", ""});
  EXPECT_EQ(CheckFolderSizes(files).size(), 1u);
  EXPECT_TRUE(CheckFolderSizes({files.begin() + 1, files.end()}).empty());
  files.assign(31, {"bench/results/a.json", ""});
  EXPECT_EQ(CheckFolderSizes(files).size(), 1u);
}

TEST(PrefixesRule, TenNamesAreAFolder) {
  std::vector<SourceFile> files = Sources("engine/page_", 9);
  files.push_back({"engine/page_0.h", ""});  // of a name that is there
  EXPECT_TRUE(CheckPrefixes(files).empty());
  files.push_back({"engine/page.h", ""});
  EXPECT_EQ(CheckPrefixes(files).size(), 1u);
  EXPECT_TRUE(CheckPrefixes(Sources("engine/page", 20)).empty());
}

TEST(ReadmesRule, EveryFolder) {
  const SourceFile readme = {"engine/README.md", "# engine\n"};
  EXPECT_TRUE(CheckReadmes({{"engine/a.cc", ""}, readme, {"LICENSE", ""}, {".ci/run", ""}}).empty());
  EXPECT_TRUE(CheckReadmes({{"bench/results/h200/a.json", ""}, {"tests/fuzz/seeds/request/a", ""}}).empty());
  EXPECT_EQ(CheckReadmes({{"engine/serve/a.cc", ""}, readme}).size(), 1u);
  EXPECT_EQ(CheckReadmes({{"python/stoch/_scmp/scmp_kernels/mp/config.py", ""}}).size(), 1u);
  EXPECT_EQ(CheckReadmes({{"demo/config.json", ""}}).size(), 1u);
  EXPECT_EQ(CheckReadmes({{"engine/README.md", "#engine\n"}}).size(), 1u);
}

TEST(ResultsRule, ARowForEveryFile) {
  const std::vector<SourceFile> files = {{"bench/results/h200/a.json", "{}"}, {"bench/results/b.json", "{}"}};
  const auto findings = [&](const std::string& rows) {
    std::vector<SourceFile> all = files;
    all.push_back({"bench/results/README.md", "# Results\n\n| file | commit |\n|---|---|\n" + rows});
    return CheckResults(all).size();
  };
  EXPECT_EQ(findings("| `h200/a.json`, `b.json` | both, `x.json` | 0123abc |\n"), 0u);
  EXPECT_EQ(findings("| `h200/a.json` | one | 0123abc, 4567def |\n| `b.json` | two | in the file |\n"), 0u);
  EXPECT_EQ(findings("| `h200/a.json` | one | 0123abc |\n"), 1u);
  EXPECT_EQ(findings("| `h200/a.json`, `b.json`, `c.json` | three | 0123abc |\n"), 1u);
  EXPECT_EQ(findings("| `h200/a.json`, `b.json` | both | an edited tree |\n"), 1u);
}

TEST(WorkflowsRule, EveryStepIsAScript) {
  const auto findings = [](const std::string& step) {
    return CheckWorkflows({{"tools/test", ""}, {".github/workflows/ci.yml", "    steps:\n      - " + step + "\n"}})
        .size();
  };
  EXPECT_EQ(findings("uses: actions/checkout@v4"), 0u);
  EXPECT_EQ(findings("run: tools/test --preset ci"), 0u);
  EXPECT_EQ(findings("run: tools/none"), 1u);
  EXPECT_EQ(findings("run: tools/test && rm -rf build"), 1u);
  EXPECT_EQ(findings("run: |"), 1u);
}

TEST(ForwardingRule, EveryVirtualFunction) {
  const SourceFile backend = {"kernels/backend.h",
                              "class Backend {\n  virtual ~Backend() = default;\n  virtual int A() const = 0;\n"
                              "  virtual std::span<const Device>\n      B(int x) {}\n};\n"};
  EXPECT_EQ(CheckForwarding({backend, {"kernels/wrappers/forwarding_backend.h", "inner_->A(); inner_->B(x);"}}).size(),
            0u);
  EXPECT_EQ(CheckForwarding({backend, {"kernels/wrappers/forwarding_backend.h", "inner_->A(); B(x);"}}).size(), 1u);
  EXPECT_EQ(CheckForwarding({backend, {"kernels/wrappers/forwarding_backend.h", ""}}).size(), 2u);
}

TEST(WordsRule, TheFieldsWords) {
  EXPECT_EQ(Findings(CheckWords, "engine/a.h", "// next to it, besides, steps_in_flight(), underways"), 0u);
  EXPECT_EQ(Findings(CheckWords, "kernels/cpu/a.cc", "// L2 of an SM holds pinned memory"), 0u);
  EXPECT_EQ(Findings(CheckWords, "engine/a.h", "// Beside it."), 1u);
  EXPECT_EQ(Findings(CheckWords, "engine/a.h", "int64_t steps_under_way() const;"), 1u);
  EXPECT_EQ(Findings(CheckWords, "engine/a.h", "struct UnderWay {};"), 1u);
  EXPECT_EQ(Findings(CheckWords, "tests/engine/steps_under_way_test.cc", ""), 1u);
  EXPECT_EQ(Findings(CheckWords, "docs/a.md", "132 multiprocessors, each anew"), 2u);
  EXPECT_EQ(Findings(CheckWords, "engine/a.h", "// a step is under\n// way now\n// and goes on"), 1u);
  EXPECT_EQ(Findings(CheckWords, "engine/a.cc", "reject(\"page-locked memory\");"), 1u);
  EXPECT_EQ(Findings(CheckWords, "README.md", "the second-level cache\n\nthe sums of chunks"), 2u);
}

TEST(KernelWordsRule, PlacesOfComments) {
  EXPECT_EQ(Findings(CheckKernelWords, "kernels/cuda/a.cuh", "int* behind;  // after the counts"), 0u);
  EXPECT_EQ(Findings(CheckKernelWords, "kernels/cuda/a.cuh", "int x;  // Behind the counts, in front of the sums"), 2u);
  EXPECT_EQ(Findings(CheckKernelWords, "kernels/cuda/a.cuh", "// loads on their way"), 1u);
  EXPECT_EQ(Findings(CheckKernelWords, "engine/a.h", "// behind"), 0u);
}

TEST(LicenceRule, WantsItInTheFirstLine) {
  const std::string licence = "// SPDX-License-Identifier: Apache-2.0\n";
  const auto findings = [](const char* path, const std::string& text) { return CheckLicence({path, text}).size(); };
  EXPECT_EQ(findings("engine/a.h", licence + "// A header.\n"), 0u);
  EXPECT_EQ(findings("engine/a.h", "// A header.\n" + licence), 1u);
  EXPECT_EQ(findings("kernels/cuda/a.cu", "\n"), 1u);
  EXPECT_EQ(findings("docs/a.md", "# A page\n"), 0u);

  const std::string words = "SPDX-License-Identifier: Apache-2.0";
  EXPECT_EQ(findings("tools/a.py", "#!/usr/bin/env python3\n# " + words + "\n"), 0u);
  EXPECT_EQ(findings("engine/serve/a.html", "<!doctype html>\n<!-- " + words + " -->\n"), 0u);
  EXPECT_EQ(findings("engine/serve/a.h.in", "// " + words), 0u);
  EXPECT_EQ(findings("python/src/exports.map", "/* " + words + " */\n"), 0u);
  EXPECT_EQ(findings("tools/run", "#!/bin/sh\n"), 1u);
  for (const char* path :
       {"tools/a.py", "engine/serve/a.html", "engine/serve/a.js", "engine/serve/a.css", "engine/serve/a.h.in",
        "python/src/exports.map", "engine/CMakeLists.txt", ".github/workflows/a.yml"}) {
    EXPECT_EQ(findings(path, "one\ntwo\n" + words + "\n"), 1u) << path;
  }
  EXPECT_EQ(findings("python/stoch/py.typed", ""), 0u);
  EXPECT_EQ(findings("tests/golden/a.json", "{}"), 0u);
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
  EXPECT_EQ(findings("engine/b.cc", "// a.md#a-b-c and a section 5; section 5 of none"), 2u);
  EXPECT_EQ(findings("engine/b.cc", "// Source: shared/spec none.md"), 1u);
  EXPECT_EQ(findings("engine/b.cc", "// Source: docs/a.md#no-heading"), 1u);
  EXPECT_EQ(findings("README.md", "[a](docs/none.md)"), 1u);
  EXPECT_EQ(findings("README.md", "[a](docs/a.md#other)"), 1u);
  EXPECT_EQ(findings("docs/a.md", "# Here\n[a](kernels/backend.h)"), 1u);
  EXPECT_EQ(findings("docs/b.md", "see `kernels/gone.h`"), 1u);
  EXPECT_EQ(findings("docs/b.md", "`backend.h`, `b.*`, `NAME.cc`"), 0u);
  EXPECT_EQ(findings("docs/b.md", "`gone.h`, `gone.*`"), 2u);

  EXPECT_EQ(findings("engine/b.h", "// As b.cc, engine/b*.cc, kernels/backend.h and src/other.h say."), 0u);
  EXPECT_EQ(findings("engine/b.h", "int a;  // c.cc says why"), 1u);
  EXPECT_EQ(findings("engine/b.h", "// kernels/gone.h, kernels/b.cc and c*.cu"), 3u);
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

struct NamedTreeRule {
  const char* name;
  TreeRule rule;
};

class Folders : public testing::TestWithParam<NamedTreeRule> {};

TEST_P(Folders, ObeyTheRule) {
  const std::vector<SourceFile> files = ReadTree(STOCH_SOURCE_DIR);
  ASSERT_TRUE(std::any_of(files.begin(), files.end(), [](const SourceFile& file) {
    return file.path == "kernels/cuda/sc/format/tables.h" && !file.text.empty();
  }));
  for (const std::string& finding : GetParam().rule(files)) ADD_FAILURE() << finding;
}

INSTANTIATE_TEST_SUITE_P(
    Rules, Folders,
    testing::Values(NamedTreeRule{"Cycles", CheckFolderCycles}, NamedTreeRule{"Sizes", CheckFolderSizes},
                    NamedTreeRule{"Prefixes", CheckPrefixes}, NamedTreeRule{"Definitions", CheckDefinitions},
                    NamedTreeRule{"Forwarding", CheckForwarding}, NamedTreeRule{"Readmes", CheckReadmes},
                    NamedTreeRule{"Results", CheckResults}, NamedTreeRule{"Log", CheckLog},
                    NamedTreeRule{"Chooser", CheckChooser}, NamedTreeRule{"Routes", CheckRoutes},
                    NamedTreeRule{"Kernels", CheckKernels}, NamedTreeRule{"RouteNumbers", CheckRouteNumbers},
                    NamedTreeRule{"Plans", CheckPlans}, NamedTreeRule{"Workflows", CheckWorkflows}),
    [](const auto& rule) { return rule.param.name; });

TEST(WholeTree, CitesOnlyWhatIsThere) {
  const std::vector<std::string> paths = ListTree(STOCH_SOURCE_DIR);
  ASSERT_NE(std::find(paths.begin(), paths.end(), "docs/sc_arithmetic.md"), paths.end());
  for (const std::string& finding : CheckCitations(ReadTree(STOCH_SOURCE_DIR), paths)) ADD_FAILURE() << finding;
}

INSTANTIATE_TEST_SUITE_P(
    Rules, Tree,
    testing::Values(NamedRule{"Includes", CheckIncludes}, NamedRule{"CudaHeaders", CheckCudaHeaders},
                    NamedRule{"MpiHeaders", CheckMpiHeaders}, NamedRule{"BackendNames", CheckBackendNames},
                    NamedRule{"SetDevice", CheckSetDevice}, NamedRule{"BlockingCopies", CheckBlockingCopies},
                    NamedRule{"QuietLibraries", CheckQuietLibraries},
                    NamedRule{"StandardStreams", CheckStandardStreams}, NamedRule{"NoLibm", CheckNoLibm},
                    NamedRule{"Length", CheckLength}, NamedRule{"Functions", CheckFunctions},
                    NamedRule{"Words", CheckWords}, NamedRule{"KernelWords", CheckKernelWords},
                    NamedRule{"Templates", CheckTemplates}, NamedRule{"Licence", CheckLicence}),
    [](const auto& rule) { return rule.param.name; });

}  // namespace
}  // namespace stoch::test
