// SPDX-License-Identifier: Apache-2.0
// The rules of the tree that a compiler cannot check: who may include whom, and what may not be written where.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace stoch::test {

// One text file of the repository.
struct SourceFile {
  std::string path;  // relative to the root, with '/'
  std::string text;
};

// What a rule finds wrong, each as "path:line: sentence"; empty if nothing.
using Rule = std::vector<std::string> (*)(const SourceFile& file);

// Includes only point down (tools -> engine -> models -> kernels, loader, and within them from folder to folder), are
// written from the root, and nobody includes tests or bench.
std::vector<std::string> CheckIncludes(const SourceFile& file);
// Only kernels/cuda (and cuda folders of tests and bench) includes CUDA, NCCL or cuBLAS headers.
std::vector<std::string> CheckCudaHeaders(const SourceFile& file);
// Only engine/ranks/mpi includes headers of MPI.
std::vector<std::string> CheckMpiHeaders(const SourceFile& file);
// Only kernels/registry.cc names both backends.
std::vector<std::string> CheckBackendNames(const SourceFile& file);
// Only kernels/cuda/base/device_guard sets the current CUDA device.
std::vector<std::string> CheckSetDevice(const SourceFile& file);
// Only kernels/cuda/base/memory.cc copies or sets memory of a GPU by calls that no stream of ours waits for.
std::vector<std::string> CheckBlockingCopies(const SourceFile& file);
// Libraries never print, exit or abort.
std::vector<std::string> CheckQuietLibraries(const SourceFile& file);
// The command line writes through app/output.h and app/host: stdio loses what a non-blocking pipe has no room for.
std::vector<std::string> CheckStandardStreams(const SourceFile& file);
// Bits do not depend on the platform's libm: kernels and models use kernels/math. The fp16 baseline
// (kernels/cuda/*half*, *fp16*), which promises no bits, is exempt.
std::vector<std::string> CheckNoLibm(const SourceFile& file);
// No source file has more than 500 lines, no document of docs/ more than 300.
std::vector<std::string> CheckLength(const SourceFile& file);
// No function, its head included, has more than 150 lines, no function of kernels/ more than 100.
std::vector<std::string> CheckFunctions(const SourceFile& file);
// Every document that a file cites exists: "docs/NAME.md" anywhere (with the heading behind '#', if there is one), the
// targets of links in Markdown, the names of sources in backticks there (outside bench/ all paths of this repository),
// and the sources and, with their folder, documents that comments of C++ and CUDA name. `paths` is what ListTree says.
std::vector<std::string> CheckCitations(const std::vector<SourceFile>& files, const std::vector<std::string>& paths);
// The field's words (docs/glossary.md): L2, pinned, SM, in flight, ..., not private ones for the same things, in text,
// names and paths.
std::vector<std::string> CheckWords(const SourceFile& file);
// Comments of kernels/cuda say after, next to and before, not behind and in front of.
std::vector<std::string> CheckKernelWords(const SourceFile& file);
// The first line of a C++ or CUDA file names its licence as SPDX does; of a script, build file, page, template or linker
// script one of the first two does. Data, documents, generated stubs and empty files need none.
std::vector<std::string> CheckLicence(const SourceFile& file);

// No struct of kernels/plan that is named ...Plan or that a function there returns, nor a struct in it, has a flag: what it
// says is a value of an enum, or the plan is optional. What is returned and is no choice is listed in plans.cc with the reason.
std::vector<std::string> CheckPlans(const std::vector<SourceFile>& files);
// No template of kernels/cuda, and so no kernel, has more than three booleans.
std::vector<std::string> CheckTemplates(const SourceFile& file);

// A function that has a body in a file: where its head begins and how many lines it has.
struct FunctionSize {
  std::string name;
  size_t line = 0;
  size_t lines = 0;
};
// The functions of a C++ or CUDA file, members of classes too, found by counting braces.
std::vector<FunctionSize> FunctionsOf(const SourceFile& file);

// What a rule finds wrong in the tree as a whole.
using TreeRule = std::vector<std::string> (*)(const std::vector<SourceFile>& files);

// The folders of sources include each other without a cycle; the finding is the shortest one, with an include for
// each step. kernels/registry.cc stands apart: the one place that knows both what it opens and who asks.
std::vector<std::string> CheckFolderCycles(const std::vector<SourceFile>& files);
// No folder but kernels/cpu has more than 30 files.
std::vector<std::string> CheckFolderSizes(const std::vector<SourceFile>& files);
// No ten names of a folder begin with the same word: that word is a folder.
std::vector<std::string> CheckPrefixes(const std::vector<SourceFile>& files);
// kernels/wrappers/forwarding_backend.h hands on every virtual function of kernels/backend.h: a default would not be the inner
// backend's answer.
std::vector<std::string> CheckForwarding(const std::vector<SourceFile>& files);
// What a header declares is defined in the top folder of that header: a caller would need the other folder at link time, which
// no include shows. Of tests and bench nothing is asked.
std::vector<std::string> CheckDefinitions(const std::vector<SourceFile>& files);
// Every folder has a README.md, but hidden ones and those below bench/results and tests/fuzz/seeds, whose tables are above
// them. Every Markdown file begins with a heading.
std::vector<std::string> CheckReadmes(const std::vector<SourceFile>& files);
// Only kernels/plan, and tests and benchmarks, read members of GpuTraits (kernels/plan/gpu_traits.h), by whatever name they
// have the traits: what else reads one is listed in plans.cc with the reason.
std::vector<std::string> CheckChooser(const std::vector<SourceFile>& files);
// Every route of kernels/plan/*/route.h names the source that runs it, and some plan takes it.
std::vector<std::string> CheckRoutes(const std::vector<SourceFile>& files);
// kernels.tsv says of every kernel (__global__) of kernels/cuda/{sc,mixed,linear,attention,plain,baseline,families} and
// kernels/cuda/fabric/ring which routes or calls it serves; every route has one, in each file with kernels that its comment names.
std::vector<std::string> CheckKernels(const std::vector<SourceFile>& files);
// Every route has a row in routes.tsv that names a recorded number of it, in docs/performance.md or in bench/log, there not of an
// experiment whose code is not in the tree. Few have none.
std::vector<std::string> CheckRouteNumbers(const std::vector<SourceFile>& files);
// Every step of a workflow in .github runs one script of this repository.
std::vector<std::string> CheckWorkflows(const std::vector<SourceFile>& files);
// Every experiment of bench/log/*.tsv has its eight columns, a day and one of the verdicts that README.md there explains.
std::vector<std::string> CheckLog(const std::vector<SourceFile>& files);
// Every file of bench/results has a row in the README.md there, whose last cell names the commit, and every row its files.
std::vector<std::string> CheckResults(const std::vector<SourceFile>& files);

// Whether it is C++ or CUDA, and the names in its #include "..." lines.
bool IsSource(std::string_view path);
std::vector<std::string> QuotedIncludes(const SourceFile& file);

// Every file below `root` that belongs to the project, relative to it, with '/'.
std::vector<std::string> ListTree(const std::string& root);
// Every text file below `root` that belongs to the project (build output and hidden folders left out).
std::vector<SourceFile> ReadTree(const std::string& root);

}  // namespace stoch::test
