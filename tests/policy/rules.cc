#include "tests/policy/rules.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <sstream>

namespace stoch::test {
namespace {

constexpr size_t kMaxLines = 600;

struct Line {
  size_t number;
  std::string text;
};

std::vector<Line> Lines(const SourceFile& file) {
  std::vector<Line> lines;
  std::istringstream stream(file.text);
  for (std::string text; std::getline(stream, text);) lines.push_back({lines.size() + 1, text});
  return lines;
}

bool StartsWith(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }
bool EndsWith(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

bool IsCode(std::string_view path) {
  constexpr std::array kSuffixes = {".h", ".cc", ".cu", ".cuh"};
  return std::any_of(kSuffixes.begin(), kSuffixes.end(), [&](const char* suffix) { return EndsWith(path, suffix); });
}
bool IsLibrary(std::string_view path) {
  return StartsWith(path, "kernels/") || StartsWith(path, "loader/") || StartsWith(path, "models/") ||
         StartsWith(path, "engine/");
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

std::string At(const SourceFile& file, const Line& line, const std::string& sentence) {
  return file.path + ":" + std::to_string(line.number) + ": " + sentence;
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

// A folder of the layout and the prefixes of what its files may include besides their own folder. The first match
// counts. "kernels/" followed by a file name alone means the contract headers.
struct Layer {
  std::string_view folder;
  std::vector<std::string_view> may_include;
};

constexpr std::string_view kContracts = "kernels/*.h";

const std::vector<Layer>& Layers() {
  static const std::vector<Layer> layers = {
      {"kernels/base/", {}},
      {"kernels/math/", {"kernels/base/"}},
      {"kernels/sc/", {"kernels/base/", "kernels/math/"}},
      {"kernels/plan/", {kContracts, "kernels/base/", "kernels/math/", "kernels/sc/"}},
      {"kernels/cpu/", {kContracts, "kernels/base/", "kernels/math/", "kernels/sc/"}},
      {"kernels/cuda/", {kContracts, "kernels/base/", "kernels/math/", "kernels/plan/", "kernels/sc/"}},
      {"kernels/registry.cc", {kContracts, "kernels/"}},
      {"kernels/", {kContracts, "kernels/base/", "kernels/sc/"}},
      {"loader/", {"kernels/backend.h", "kernels/base/", "kernels/math/"}},
      {"models/", {kContracts, "kernels/base/", "kernels/math/", "kernels/sc/", "loader/"}},
      {"engine/", {kContracts, "kernels/base/", "kernels/math/", "kernels/sc/", "loader/", "models/"}},
      {"tools/", {kContracts, "kernels/base/", "kernels/math/", "kernels/sc/", "loader/", "models/", "engine/"}},
  };
  return layers;
}

bool Matches(std::string_view name, std::string_view pattern) {
  if (pattern == kContracts) {
    return StartsWith(name, "kernels/") &&
           name.find('/', std::string_view("kernels/").size()) == std::string_view::npos;
  }
  return StartsWith(name, pattern);
}

bool IsCudaHeader(std::string_view name) {
  constexpr std::array kPrefixes = {"cuda", "cublas",     "nccl",   "cub/",  "thrust/",       "cooperative_groups",
                                    "nvml", "nvToolsExt", "curand", "mma.h", "device_launch_"};
  return std::any_of(kPrefixes.begin(), kPrefixes.end(), [&](const char* prefix) { return StartsWith(name, prefix); });
}

}  // namespace

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
    bool allowed = Matches(name, layer->folder);
    for (std::string_view pattern : layer->may_include) allowed = allowed || Matches(name, pattern);
    if (!allowed) found.push_back(At(file, line, "may not include \"" + name + "\""));
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
      found.push_back(At(file, line, "only kernels/cuda includes CUDA headers, found <" + name + ">"));
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
      found.push_back(At(file, line, "only kernels/registry.cc names both backends"));
    }
  }
  return found;
}

std::vector<std::string> CheckSetDevice(const SourceFile& file) {
  std::vector<std::string> found;
  if (!IsCode(file.path) || StartsWith(file.path, "kernels/cuda/device_guard.")) return found;
  if (StartsWith(file.path, "tests/policy/")) return found;
  for (const Line& line : Code(file)) {
    if (HasWord(line.text, "cudaSetDevice") || HasWord(line.text, "cuCtxSetCurrent")) {
      found.push_back(At(file, line, "only kernels/cuda/device_guard sets the current device"));
    }
  }
  return found;
}

std::vector<std::string> CheckQuietLibraries(const SourceFile& file) {
  std::vector<std::string> found;
  if (!IsCode(file.path) || !IsLibrary(file.path)) return found;
  constexpr std::array kCalls = {"printf(", "fprintf(", "puts(",     "fputs(",    "exit(",     "_exit(",
                                 "abort(",  "assert(",  "std::cout", "std::cerr", "std::clog", "spdlog"};
  for (const Line& line : Code(file)) {
    for (const char* call : kCalls) {
      if (HasWord(line.text, call)) {
        found.push_back(At(file, line, std::string("libraries never print, exit or abort, found ") + call));
      }
    }
  }
  return found;
}

std::vector<std::string> CheckNoLibm(const SourceFile& file) {
  std::vector<std::string> found;
  if (!IsCode(file.path) || !(StartsWith(file.path, "kernels/") || StartsWith(file.path, "models/"))) return found;
  const bool baseline = file.path.find("half") != std::string::npos || file.path.find("fp16") != std::string::npos;
  if (StartsWith(file.path, "kernels/cuda/") && baseline) return found;
  constexpr std::array kFunctions = {"exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tanh", "pow"};
  for (const Line& line : Code(file)) {
    for (const std::string function : kFunctions) {
      if (HasWord(line.text, "std::" + function + "(") || HasWord(line.text, function + "f(") ||
          HasWord(line.text, "__" + function + "f(")) {
        found.push_back(At(file, line, "uses the platform's " + function + "; kernels/math has the portable one"));
      }
    }
  }
  return found;
}

std::vector<std::string> CheckLength(const SourceFile& file) {
  const size_t lines = Lines(file).size();
  if (!IsCode(file.path) || lines <= kMaxLines) return {};
  return {file.path + ":" + std::to_string(lines) + ": has more than " + std::to_string(kMaxLines) + " lines"};
}

std::vector<std::string> CheckWords(const SourceFile& file) {
  // Spelt in two parts, so that this file does not break its own rule.
  static const std::vector<std::string> words = {
      std::string("/wo") + "rk/",       std::string("/ho") + "me/",     std::string("/ro") + "ot/",
      std::string("pypi") + ".org",     std::string("debian") + ".org", std::string("pythonhosted") + ".org",
      std::string("ubuntu") + ".com",   std::string("npmjs") + ".org",  std::string("crates") + ".io",
      std::string("anaconda") + ".org",
  };
  std::vector<std::string> found;
  for (const Line& line : Lines(file)) {
    for (const std::string& word : words) {
      if (line.text.find(word) != std::string::npos) found.push_back(At(file, line, "names " + word));
    }
  }
  return found;
}

}  // namespace stoch::test
