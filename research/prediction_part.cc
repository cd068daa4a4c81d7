// SPDX-License-Identifier: Apache-2.0
#include "research/prediction_part.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "loader/file.h"
#include "loader/json_text.h"

namespace stoch {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<char, 8> kMagic = {'S', 'T', 'O', 'C', 'H', 'N', 'L', '1'};
constexpr const char* kSchema = "stoch-nll-v1";
constexpr int64_t kMaxHeaderBytes = int64_t{64} << 20;
constexpr int64_t kMostTokens = int64_t{1} << 40, kMostWindows = int64_t{1} << 26;

static_assert(sizeof(LogitComparison) == 32, "as it is in files");

template <typename T>
void Write(std::ostream& file, const std::vector<T>& values) {
  file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(T)));
}
template <typename T>
void ReadInto(std::istream& file, T* data, size_t count) {
  file.read(reinterpret_cast<char*>(data), static_cast<std::streamsize>(count * sizeof(T)));
}

Json HeaderOf(const PredictionPart& part) {
  return {{"schema", kSchema},
          {"key", part.key},
          {"model", part.model},
          {"config", part.config},
          {"precision", part.precision},
          {"ctx", part.ctx},
          {"total_windows", part.total_windows},
          {"tokens", part.tokens},
          {"kl", part.has_kl},
          {"elapsed_ms", part.elapsed_ms},
          {"windows", part.windows}};
}

PredictionPart PartOf(const std::string& text, const std::string& name) {
  const nlohmann::json header = ParseBoundedJson(text, name);
  PredictionPart part;
  try {
    if (header.at("schema") != kSchema) throw InvalidInput(name + ": has another schema");
    part.key = header.at("key").get<std::string>();
    part.model = header.at("model").get<std::string>();
    part.config = header.at("config").get<std::string>();
    part.precision = header.at("precision").get<std::string>();
    part.ctx = header.at("ctx").get<int64_t>();
    part.total_windows = header.at("total_windows").get<int64_t>();
    part.tokens = header.at("tokens").get<int64_t>();
    part.has_kl = header.at("kl").get<bool>();
    part.elapsed_ms = header.at("elapsed_ms").get<double>();
    part.windows = header.at("windows").get<std::vector<int64_t>>();
  } catch (const nlohmann::json::exception&) {
    throw InvalidInput(name + ": what it has is not said as it is in such files");
  }
  const bool good = part.ctx >= 2 && part.ctx <= kMostTokens && part.total_windows >= 1 &&
                    part.total_windows <= kMostWindows &&
                    static_cast<int64_t>(part.windows.size()) <= part.total_windows;
  if (!good) throw InvalidInput(name + ": windows and their length are out of range");
  for (const int64_t window : part.windows) {
    if (window >= 0 && window < part.total_windows) continue;
    throw InvalidInput(name + ": window " + std::to_string(window) + ": allowed is 0.." +
                       std::to_string(part.total_windows - 1));
  }
  return part;
}

// "3, 7, 11 and 5 more".
std::string ListOf(const std::vector<int64_t>& windows) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(windows.size(), kShown); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(windows[i]);
  return windows.size() <= kShown ? text : text + " and " + std::to_string(windows.size() - kShown) + " more";
}

}  // namespace

void WritePredictionPart(const std::filesystem::path& path, const PredictionPart& part) {
  const size_t predictions = part.windows.size() * static_cast<size_t>(part.ctx - 1);
  STOCH_CHECK(part.nll.size() == predictions && part.comparisons.size() == (part.has_kl ? predictions : 0));
  const std::string header = JsonText(HeaderOf(part));
  const auto bytes = static_cast<int64_t>(header.size());
  const bool written = ReplaceFile(path, [&](std::ostream& file) {
    file.write(kMagic.data(), kMagic.size());
    file.write(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
    file << header;
    Write(file, part.nll);
    Write(file, part.comparisons);
  });
  if (!written) throw InvalidInput(path.string() + ": cannot be written");
}

PredictionPart ReadPredictionPart(const std::filesystem::path& path) {
  const std::string name = path.string();
  std::ifstream file(path, std::ios::binary);
  if (!file) throw InvalidInput(name + ": cannot be read");
  std::array<char, 8> magic = {};
  int64_t bytes = 0;
  ReadInto(file, magic.data(), magic.size());
  ReadInto(file, &bytes, 1);
  if (!file || magic != kMagic) throw InvalidInput(name + ": is no file of perplexity --nll");
  std::error_code error;
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path, error));
  const int64_t before = static_cast<int64_t>(magic.size() + sizeof(bytes));
  if (error || bytes < 0 || bytes > std::min(size - before, kMaxHeaderBytes))
    throw InvalidInput(name + ": is incomplete");
  std::string header(static_cast<size_t>(bytes), '\0');
  ReadInto(file, header.data(), header.size());
  PredictionPart part = PartOf(header, name);
  // Bounded by the file, so that a header cannot ask for memory.
  const int64_t row = part.has_kl ? int64_t{sizeof(double) + sizeof(LogitComparison)} : int64_t{sizeof(double)};
  const int64_t content = size - before - bytes;
  const auto windows = static_cast<int64_t>(part.windows.size());
  const bool fits =
      windows == 0 ? content == 0 : content % (windows * row) == 0 && content / (windows * row) == part.ctx - 1;
  if (!fits) throw InvalidInput(name + ": is incomplete: it has " + std::to_string(content) + " bytes of predictions");
  const auto predictions = static_cast<size_t>(content / row);
  part.nll.resize(predictions);
  ReadInto(file, part.nll.data(), predictions);
  if (part.has_kl) {
    part.comparisons.resize(predictions);
    ReadInto(file, part.comparisons.data(), predictions);
  }
  if (!file) throw InvalidInput(name + ": cannot be read");
  return part;
}

PredictionPart MergePredictionParts(std::span<const PredictionPart> parts, std::span<const std::string> names) {
  STOCH_CHECK(!parts.empty() && parts.size() == names.size());
  PredictionPart merged = parts[0];
  merged.windows.clear();
  merged.nll.clear();
  merged.comparisons.clear();
  merged.elapsed_ms = 0;
  std::map<int64_t, std::pair<size_t, size_t>> places;  // window -> part, place in it
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].key != merged.key || parts[i].total_windows != merged.total_windows || parts[i].ctx != merged.ctx ||
        parts[i].has_kl != merged.has_kl) {
      throw InvalidInput(names[i] + ": is of another run than " + names[0] +
                         " (model, text, configuration, windows or version)");
    }
    merged.elapsed_ms += parts[i].elapsed_ms;
    for (size_t at = 0; at < parts[i].windows.size(); ++at) {
      if (places.emplace(parts[i].windows[at], std::pair(i, at)).second) continue;
      throw InvalidInput(names[i] + ": window " + std::to_string(parts[i].windows[at]) + " is there twice");
    }
  }
  std::vector<int64_t> missing;
  const auto each = static_cast<size_t>(merged.ctx - 1);
  for (int64_t window = 0; window < merged.total_windows; ++window) {
    const auto found = places.find(window);
    if (found == places.end()) {
      missing.push_back(window);
      continue;
    }
    const auto [part, at] = found->second;
    const auto first = static_cast<ptrdiff_t>(at * each), end = static_cast<ptrdiff_t>((at + 1) * each);
    merged.windows.push_back(window);
    merged.nll.insert(merged.nll.end(), parts[part].nll.begin() + first, parts[part].nll.begin() + end);
    if (!merged.has_kl) continue;
    merged.comparisons.insert(merged.comparisons.end(), parts[part].comparisons.begin() + first,
                              parts[part].comparisons.begin() + end);
  }
  if (!missing.empty()) {
    throw InvalidInput(std::to_string(missing.size()) + " of " + std::to_string(merged.total_windows) +
                       " windows are missing: " + ListOf(missing) +
                       ": perplexity --windows i/n has those that are i mod n");
  }
  return merged;
}

}  // namespace stoch
