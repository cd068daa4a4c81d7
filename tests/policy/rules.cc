// SPDX-License-Identifier: Apache-2.0
#include "tests/policy/rules.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <sstream>
#include <utility>

#include "tests/policy/text.h"

namespace stoch::test {
namespace {

constexpr size_t kMaxLines = 500;
constexpr size_t kMaxDocumentLines = 300;

struct Line {
  size_t number;
  std::string text;
};

std::vector<Line> Lines(const SourceFile& file) {
  std::vector<Line> lines;
  ForLines(file, [&](size_t number, const std::string& text) { lines.push_back({number, text}); });
  return lines;
}

bool EndsWith(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

bool IsCode(std::string_view path) {
  constexpr std::array kSuffixes = {".h", ".cc", ".cu", ".cuh"};
  return std::any_of(kSuffixes.begin(), kSuffixes.end(), [&](const char* suffix) { return EndsWith(path, suffix); });
}
bool IsLibrary(std::string_view path) {
  return StartsWith(path, "kernels/") || StartsWith(path, "loader/") || StartsWith(path, "models/") ||
         StartsWith(path, "engine/") || StartsWith(path, "research/");
}
bool IsTestOrBench(std::string_view path) { return StartsWith(path, "tests/") || StartsWith(path, "bench/"); }

// The lines of a C++ file without their // comments.
std::vector<Line> Code(const SourceFile& file) {
  std::vector<Line> lines = Lines(file);
  for (Line& line : lines) line.text = line.text.substr(0, line.text.find("//"));
  return lines;
}

bool IsWordCharacter(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// True if `word` stands in `text` with no identifier character before it.
bool HasWord(std::string_view text, std::string_view word) {
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    if (at == 0 || !IsWordCharacter(text[at - 1])) return true;
  }
  return false;
}

// Whether a file that is no C++ has a place for its licence: scripts, build files, pages and what becomes one of these
// when it is configured. Not data, whose formats have no comments; not documents, which LICENSE covers; not the stub
// that nanobind writes; not files without a line, such as py.typed, which has none by its definition (PEP 561).
bool TakesLicence(const SourceFile& file) {
  constexpr std::array kSuffixes = {".py",  ".sh",   ".cmake", "CMakeLists.txt", ".in", ".html",
                                    ".map", ".toml", ".yml",   ".proto",         ".js", ".css"};
  if (file.text.empty()) return false;
  return StartsWith(file.text, "#!") || std::any_of(kSuffixes.begin(), kSuffixes.end(),
                                                    [&](const char* suffix) { return EndsWith(file.path, suffix); });
}

std::vector<std::string> FindWords(const SourceFile& file, const std::string& message,
                                   std::initializer_list<const char*> words) {
  std::vector<std::string> found;
  for (const Line& line : Code(file)) {
    for (const char* word : words) {
      if (HasWord(line.text, word)) found.push_back(At(file, line.number, message + word));
    }
  }
  return found;
}

// The name in an #include line, "" if it is none. quoted: "..." instead of <...>.
std::string IncludedName(const std::string& line, bool* quoted) {
  std::istringstream stream(line);
  std::string directive;
  stream >> std::ws;
  if (stream.get() != '#' || !(stream >> directive) || !StartsWith(directive, "include")) return "";
  const size_t open = line.find_first_of("\"<");
  if (open == std::string::npos) return "";
  const size_t close = line.find_first_of("\">", open + 1);
  *quoted = line[open] == '"';
  return line.substr(open + 1, close - open - 1);
}

// A folder of the layout, or one file of it, and what its files may include besides those next to them: a prefix, or
// all headers that lie directly in a folder ("kernels/*.h", the contracts). The first match counts.
struct Layer {
  std::string_view folder;
  std::vector<std::string_view> may_include;
};

using Patterns = std::vector<std::string_view>;

Patterns operator+(Patterns a, const Patterns& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::vector<Layer> MakeLayers() {
  const Patterns numbers = {"kernels/base/", "kernels/math/", "kernels/sc/"};
  const Patterns kernels = Patterns{"kernels/*.h"} + numbers;
  const Patterns planned = kernels + Patterns{"kernels/plan/"};
  const Patterns cuda = planned + Patterns{"kernels/cuda/base/", "kernels/cuda/sc/format/"};
  const Patterns handover = cuda + Patterns{"kernels/cuda/handover/"};
  const Patterns launch = handover + Patterns{"kernels/cuda/runtime/", "kernels/cuda/device/"};
  const Patterns linear = launch + Patterns{"kernels/cuda/prologue/"};
  const Patterns checkpoint = {"loader/*.h", "kernels/backend.h", "kernels/base/", "kernels/math/"};
  const Patterns models = kernels + Patterns{"loader/", "models/"};
  // Who speaks to clients knows no kernel, no weights and no engine.
  const Patterns gateway = {"kernels/base/", "loader/*.h", "loader/tokenizer/", "engine/request/"};
  return {
      {"kernels/base/", {}},
      {"kernels/math/", {"kernels/base/"}},
      {"kernels/sc/closed_form/", {"kernels/base/", "kernels/math/", "kernels/sc/"}},
      {"kernels/sc/hardware/", {"kernels/base/", "kernels/math/", "kernels/sc/"}},
      {"kernels/sc/", {"kernels/base/", "kernels/math/"}},
      {"kernels/plan/attention/", planned},
      {"kernels/plan/linear/", planned},
      {"kernels/plan/", kernels},
      {"kernels/wrappers/", kernels},
      {"kernels/cpu/simd/fixed/", numbers + Patterns{"kernels/cpu/simd/*.h"}},
      {"kernels/cpu/simd/", numbers},
      {"kernels/cpu/", kernels + Patterns{"kernels/cpu/simd/"}},
      {"kernels/cuda/base/", planned},
      {"kernels/cuda/sc/format/", cuda},
      {"kernels/cuda/handover/", cuda},
      {"kernels/cuda/runtime/", handover},
      {"kernels/cuda/device/", handover},
      {"kernels/cuda/prologue/", launch},
      {"kernels/cuda/sc/batch/", linear},
      {"kernels/cuda/sc/decode/", linear},
      {"kernels/cuda/sc/table/", linear + Patterns{"kernels/cuda/sc/batch/"}},
      {"kernels/cuda/sc/tensor_core/", linear},
      {"kernels/cuda/sc/hopper/",
       linear + Patterns{"kernels/cuda/sc/batch/", "kernels/cuda/sc/experts/*.h", "kernels/cuda/sc/tensor_core/"}},
      {"kernels/cuda/sc/experts/", linear + Patterns{"kernels/cuda/sc/decode/"}},
      {"kernels/cuda/sc/", linear + Patterns{"kernels/cuda/sc/", "kernels/cuda/plain/product.h"}},
      {"kernels/cuda/attention/split/", launch + Patterns{"kernels/cuda/attention/*.h"}},
      {"kernels/cuda/attention/hopper/",
       launch + Patterns{"kernels/cuda/attention/*.h", "kernels/cuda/sc/tensor_core/operand.cuh"}},
      {"kernels/cuda/attention/", launch + Patterns{"kernels/cuda/sc/tiles/int8_operands.cuh"}},
      {"kernels/cuda/baseline/", linear + Patterns{"kernels/cuda/weights/", "kernels/cuda/attention/*.h"}},
      {"kernels/cuda/plain/", launch + Patterns{"kernels/cuda/attention/"}},
      {"kernels/cuda/fabric/comm/", launch},
      {"kernels/cuda/fabric/ring/", launch + Patterns{"kernels/cuda/attention/*.h", "kernels/cuda/fabric/comm/*.h"}},
      {"kernels/cuda/families/",
       linear + Patterns{"kernels/cuda/weights/", "kernels/cuda/baseline/*.h", "kernels/cuda/sc/experts/*.h",
                         "kernels/cuda/sc/hopper/grouped.h", "kernels/cuda/plain/product.h",
                         "kernels/cuda/mixed/experts.h", "kernels/cuda/mixed/linear.h"}},
      {"kernels/cuda/sampling/", launch},
      {"kernels/cuda/weights/", launch + Patterns{"kernels/cuda/plain/product.h"}},
      {"kernels/cuda/mixed/",
       linear + Patterns{"kernels/cuda/weights/", "kernels/cuda/plain/product.h", "kernels/cuda/sc/*.h",
                         "kernels/cuda/sc/decode/decode.h", "kernels/cuda/sc/table/table.h",
                         "kernels/cuda/sc/hopper/batch_wgmma.h", "kernels/cuda/sc/hopper/row_groups.h"}},
      {"kernels/cuda/linear/hopper/", linear + Patterns{"kernels/cuda/weights/", "kernels/cuda/linear/"}},
      {"kernels/cuda/linear/",
       linear + Patterns{"kernels/cuda/baseline/linear.h", "kernels/cuda/mixed/*.h", "kernels/cuda/weights/",
                         "kernels/cuda/plain/product.h", "kernels/cuda/sc/*.h"}},
      {"kernels/cuda/", planned + Patterns{"kernels/cuda/"}},
      {"kernels/registry.cc", {"kernels/"}},
      {"kernels/", numbers},
      {"loader/config/", {"loader/*.h", "kernels/base/", "kernels/math/"}},
      {"loader/checkpoint/gguf/", checkpoint},
      {"loader/checkpoint/quantized/", checkpoint},
      {"loader/checkpoint/",
       checkpoint + Patterns{"loader/config/", "loader/checkpoint/gguf/", "loader/checkpoint/quantized/"}},
      {"loader/research/",
       {"loader/*.h", "loader/checkpoint/", "kernels/base/", "kernels/sc/", "kernels/math/nonlinear_table.h"}},
      {"loader/tokenizer/unicode/", {"loader/*.h", "kernels/base/"}},
      {"loader/tokenizer/",
       {"loader/*.h", "loader/tokenizer/unicode/", "loader/checkpoint/gguf/", "kernels/base/", "kernels/math/"}},
      {"loader/", {"kernels/base/"}},
      {"models/decoder/", models},
      {"models/", kernels + Patterns{"loader/"}},
      {"engine/request/", {"kernels/base/", "kernels/logit_queries.h", "loader/tokenizer/"}},
      {"engine/serve/http/", {"kernels/base/"}},
      {"engine/chat/", {"loader/*.h", "loader/tokenizer/*.h", "loader/tokenizer/unicode/", "kernels/base/"}},
      {"engine/serve/format/", gateway + Patterns{"engine/chat/*.h", "engine/serve/http/"}},
      {"engine/serve/", gateway + Patterns{"engine/chat/*.h", "engine/serve/http/", "engine/serve/format/"}},
      {"engine/grammar/",
       {"loader/*.h", "loader/tokenizer/*.h", "kernels/base/", "kernels/logit_queries.h", "engine/request/"}},
      {"engine/ipc/", {"kernels/base/", "engine/request/"}},
      {"engine/gateway/", gateway + Patterns{"engine/ipc/", "engine/serve/*.h"}},
      {"engine/speculation/", {}},
      {"engine/draft_model/", models + Patterns{"engine/*.h", "engine/request/", "engine/speculation/"}},
      {"engine/worker/",
       models + Patterns{"kernels/wrappers/", "engine/*.h", "engine/request/", "engine/ipc/", "engine/speculation/"}},
      {"engine/ranks/mpi/", models},
      {"engine/ranks/", models + Patterns{"engine/*.h"}},
      {"engine/", models + Patterns{"engine/request/", "engine/speculation/"}},
      {"examples/", models + Patterns{"engine/"}},
      {"research/energy/", models + Patterns{"research/*.h"}},
      {"research/calibrate/", models + Patterns{"kernels/wrappers/", "engine/*.h", "research/*.h"}},
      {"research/golden/", models + Patterns{"research/*.h", "research/calibrate/", "research/products/",
                                             "research/energy/hardware_report.h"}},
      {"research/products/", models},
      {"research/vectors/", models + Patterns{"engine/*.h", "research/*.h", "research/calibrate/exact_windows.h",
                                              "research/products/operator_digest.h"}},
      {"research/", models + Patterns{"engine/*.h", "engine/request/", "research/products/"}},
      {"app/host/", {}},
      {"app/report/", models + Patterns{"engine/", "research/", "app/host/"}},
      {"app/options/", models + Patterns{"engine/", "research/"}},
      {"app/verify/", models + Patterns{"engine/", "research/", "app/*.h", "app/report/"}},
      {"app/", models + Patterns{"kernels/wrappers/", "engine/", "research/", "app/host/", "app/options/",
                                 "app/report/ranks.h"}},
      {"tools/stoch/plot/", {"kernels/base/"}},
      {"tools/stoch/research/", models + Patterns{"engine/", "research/", "app/*.h", "app/host/", "app/options/",
                                                  "app/report/", "tools/stoch/commands.h", "tools/stoch/plot/"}},
      {"tools/stoch/serve/", models + Patterns{"engine/", "app/*.h", "app/options/", "tools/stoch/commands.h"}},
      {"tools/", models + Patterns{"kernels/wrappers/", "engine/", "research/", "app/"}},
      {"python/src/", models + Patterns{"engine/", "research/", "app/", "python/src/", "tools/stoch/commands.h"}},
  };
}

const std::vector<Layer>& Layers() {
  static const std::vector<Layer> layers = MakeLayers();
  return layers;
}

std::string_view FolderOf(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : path.substr(0, slash + 1);
}

bool Matches(std::string_view name, std::string_view pattern) {
  constexpr std::string_view kHeaders = "*.h";
  if (!EndsWith(pattern, kHeaders)) return StartsWith(name, pattern);
  return FolderOf(name) == pattern.substr(0, pattern.size() - kHeaders.size());
}

bool IsCudaHeader(std::string_view name) {
  constexpr std::array kPrefixes = {"cuda", "cublas",     "nccl",   "cub/",  "thrust/",       "cooperative_groups",
                                    "nvml", "nvToolsExt", "curand", "mma.h", "device_launch_"};
  return std::any_of(kPrefixes.begin(), kPrefixes.end(), [&](const char* prefix) { return StartsWith(name, prefix); });
}

}  // namespace

bool IsSource(std::string_view path) { return IsCode(path); }

std::vector<std::string> QuotedIncludes(const SourceFile& file) {
  std::vector<std::string> names;
  for (const Line& line : Lines(file)) {
    bool quoted = false;
    std::string name = IncludedName(line.text, &quoted);
    if (quoted && !name.empty()) names.push_back(std::move(name));
  }
  return names;
}

std::vector<std::string> CheckIncludes(const SourceFile& file) {
  std::vector<std::string> found;
  if (!IsCode(file.path) || IsTestOrBench(file.path)) return found;
  const auto layer = std::find_if(Layers().begin(), Layers().end(),
                                  [&](const Layer& candidate) { return StartsWith(file.path, candidate.folder); });
  if (layer == Layers().end()) return {file.path + ":1: lies in no folder of the layout (tests/policy/rules.cc)"};
  for (const Line& line : Lines(file)) {
    bool quoted = false;
    const std::string name = IncludedName(line.text, &quoted);
    if (name.empty() || !quoted) continue;
    bool allowed = FolderOf(name) == FolderOf(file.path);
    for (std::string_view pattern : layer->may_include) allowed = allowed || Matches(name, pattern);
    if (!allowed) found.push_back(At(file, line.number, "may not include \"" + name + "\""));
  }
  return found;
}

std::vector<std::string> CheckCudaHeaders(const SourceFile& file) {
  std::vector<std::string> found;
  if (!IsCode(file.path) || StartsWith(file.path, "kernels/cuda/")) return found;
  if (IsTestOrBench(file.path) && file.path.find("/cuda/") != std::string::npos) return found;
  for (const Line& line : Lines(file)) {
    bool quoted = false;
    const std::string name = IncludedName(line.text, &quoted);
    if (!name.empty() && IsCudaHeader(name)) {
      found.push_back(At(file, line.number, "only kernels/cuda includes CUDA headers, found <" + name + ">"));
    }
  }
  return found;
}

std::vector<std::string> CheckMpiHeaders(const SourceFile& file) {
  std::vector<std::string> found;
  if (!IsCode(file.path) || StartsWith(file.path, "engine/ranks/mpi/")) return found;
  for (const Line& line : Lines(file)) {
    bool quoted = false;
    const std::string name = IncludedName(line.text, &quoted);
    if (name == "mpi.h" || StartsWith(name, "mpi-ext") || StartsWith(name, "mpicxx")) {
      found.push_back(At(file, line.number, "only engine/ranks/mpi includes headers of MPI, found <" + name + ">"));
    }
  }
  return found;
}

std::vector<std::string> CheckBackendNames(const SourceFile& file) {
  if (!IsCode(file.path) || IsTestOrBench(file.path) || file.path == "kernels/registry.cc") return {};
  bool cpu = false;
  for (const Line& line : Code(file)) cpu = cpu || HasWord(line.text, "cpu::") || HasWord(line.text, "kernels/cpu/");
  std::vector<std::string> found;
  if (!cpu) return found;
  for (const Line& line : Code(file)) {
    if (HasWord(line.text, "cuda::") || HasWord(line.text, "kernels/cuda/")) {
      found.push_back(At(file, line.number, "only kernels/registry.cc names both backends"));
    }
  }
  return found;
}

std::vector<std::string> CheckSetDevice(const SourceFile& file) {
  std::vector<std::string> found;
  if (!IsCode(file.path) || StartsWith(file.path, "kernels/cuda/base/device_guard.")) return found;
  if (StartsWith(file.path, "tests/policy/")) return found;
  for (const Line& line : Code(file)) {
    if (HasWord(line.text, "cudaSetDevice") || HasWord(line.text, "cuCtxSetCurrent")) {
      found.push_back(At(file, line.number, "only kernels/cuda/base/device_guard sets the current device"));
    }
  }
  return found;
}

std::vector<std::string> CheckBlockingCopies(const SourceFile& file) {
  std::vector<std::string> found;
  if (!IsCode(file.path) || file.path == "kernels/cuda/base/memory.cc") return found;
  if (StartsWith(file.path, "tests/policy/")) return found;
  for (const Line& line : Code(file)) {
    for (const char* call : {"cudaMemcpy(", "cudaMemcpy2D(", "cudaMemset("}) {
      if (HasWord(line.text, call)) {
        found.push_back(At(file, line.number,
                           std::string("no stream of ours waits for ") + call +
                               "): Upload of kernels/cuda/base/memory.h, or a copy on the stream"));
      }
    }
  }
  return found;
}

std::vector<std::string> CheckQuietLibraries(const SourceFile& file) {
  if (!IsCode(file.path) || !IsLibrary(file.path)) return {};
  return FindWords(file, "libraries never print, exit or abort, found ",
                   {"printf(", "fprintf(", "puts(", "fputs(", "exit(", "_exit(", "abort(", "assert(", "std::cout",
                    "std::cerr", "std::clog", "spdlog"});
}

std::vector<std::string> CheckStandardStreams(const SourceFile& file) {
  if (!IsCode(file.path) || !(StartsWith(file.path, "tools/stoch/") || StartsWith(file.path, "app/"))) return {};
  return FindWords(
      file, "stdio loses bytes of non-blocking pipes, found ",
      {"printf(", "puts(", "std::cin", "std::cout", "std::cerr", "std::clog", "stdout", "stderr", "fmt::print("});
}

std::vector<std::string> CheckNoLibm(const SourceFile& file) {
  std::vector<std::string> found;
  if (!IsCode(file.path) || !(StartsWith(file.path, "kernels/") || StartsWith(file.path, "models/"))) return found;
  if (StartsWith(file.path, "kernels/cuda/baseline/")) return found;
  constexpr std::array kFunctions = {"exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tanh", "pow"};
  for (const Line& line : Code(file)) {
    for (const std::string function : kFunctions) {
      if (HasWord(line.text, "std::" + function + "(") || HasWord(line.text, function + "f(") ||
          HasWord(line.text, "__" + function + "f(")) {
        found.push_back(
            At(file, line.number, "uses the platform's " + function + "; kernels/math has the portable one"));
      }
    }
  }
  return found;
}

std::vector<std::string> CheckLength(const SourceFile& file) {
  const size_t lines = Lines(file).size();
  const bool document = StartsWith(file.path, "docs/") && EndsWith(file.path, ".md");
  const size_t most = document ? kMaxDocumentLines : kMaxLines;
  if (!(IsCode(file.path) || document) || lines <= most) return {};
  return {file.path + ":" + std::to_string(lines) + ": has more than " + std::to_string(most) + " lines"};
}

std::vector<std::string> CheckKernelWords(const SourceFile& file) {
  static const std::vector<std::pair<std::string, std::string>> words = {{"behind", "after\" or \"next to"},
                                                                         {"in front of", "before"},
                                                                         {"on their way", "in flight"},
                                                                         {"on its way", "in flight"}};
  std::vector<std::string> found;
  if (!StartsWith(file.path, "kernels/cuda/") || !IsCode(file.path)) return found;
  for (const Line& line : Lines(file)) {
    std::string comment = line.text.substr(std::min(line.text.find("//"), line.text.size()));
    std::transform(comment.begin(), comment.end(), comment.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    for (const auto& [word, better] : words) {
      if (!HasWord(comment, word)) continue;
      found.push_back(At(file, line.number, "a comment says \"" + word + "\", the field says \"" + better + "\""));
    }
  }
  return found;
}

std::vector<std::string> CheckWords(const SourceFile& file) {
  // Private words, and the field's. This file names them, so it is left out.
  static const std::vector<std::pair<std::string, std::string>> words = {
      {"second-level cache", "L2"},       {"page-locked", "pinned"}, {"multiprocessor", "SM"},
      {"multiprocessors", "SMs"},         {"beside", "next to"},     {"anew", "again"},
      {"under way", "in flight"},         {"underway", "in flight"}, {"sums of chunks", "split-K partials"},
      {"owners and helpers", "stream-K"},
  };
  if (StartsWith(file.path, "tests/policy/") || StartsWith(file.path, "bench/results/")) return {};
  std::vector<std::string> found;
  std::vector<Line> lines = Lines(file);
  lines.insert(lines.begin(), {1, file.path});
  std::string before;  // the end of the line before, for words that a line break parts
  for (const Line& line : lines) {
    std::string text = before + line.text.substr(std::min(line.text.find_first_not_of(" /#*|>"), line.text.size()));
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return c == '_' ? ' ' : static_cast<char>(std::tolower(c)); });
    for (const auto& [word, better] : words) {
      for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
        const size_t end = at + word.size();
        if (end <= before.size()) continue;  // said of the line before
        const bool starts = at == 0 || !IsWordCharacter(text[at - 1]);
        if (starts && (end >= text.size() || !IsWordCharacter(text[end]))) {
          found.push_back(At(file, line.number, "says \"" + word + "\", the field says \"" + better + "\""));
        }
      }
    }
    const std::string own = text.substr(before.size());
    before = own.substr(own.size() - std::min<size_t>(own.size(), 24)) + " ";
  }
  return found;
}

std::vector<std::string> CheckLicence(const SourceFile& file) {
  constexpr std::string_view kLicence = "SPDX-License-Identifier: Apache-2.0\n";
  if (IsCode(file.path)) {
    if (StartsWith(file.text, "// " + std::string(kLicence))) return {};
    return {file.path + ":1: does not begin with \"// SPDX-License-Identifier: Apache-2.0\""};
  }
  if (!TakesLicence(file)) return {};
  std::string_view head = file.text;
  for (int line = 0; line < 2; ++line) {
    const std::string_view text = head.substr(0, head.find('\n'));
    if (text.find(kLicence.substr(0, kLicence.size() - 1)) != std::string_view::npos) return {};
    head.remove_prefix(std::min(head.size(), text.size() + 1));
  }
  return {file.path + ":1: names no licence in its first two lines: SPDX-License-Identifier: Apache-2.0"};
}

}  // namespace stoch::test
