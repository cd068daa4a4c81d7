// SPDX-License-Identifier: Apache-2.0
#include "loader/research/nonlinear_file.h"

#include <charconv>
#include <cmath>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "loader/checkpoint/safetensors.h"
#include "loader/checkpoint/safetensors_writer.h"
#include "loader/quote.h"

namespace stoch {
namespace {

constexpr std::string_view kSchema = "stoch-nonlinear-v1";
constexpr int64_t kMostPieces = 4096;
constexpr int kLeastBits = -8, kMostBits = 20;
constexpr const char* kParts[] = {"cuts", "values", "slopes"};

[[noreturn]] void Reject(const std::string& where, const std::string& got, const std::string& allowed) {
  throw InvalidInput(where + " = " + got + ": allowed is " + allowed);
}

std::string Metadata(const SafetensorsFile& file, std::string_view key) {
  const auto found = file.metadata().find(key);
  return found == file.metadata().end() ? "" : found->second;
}

std::optional<int> Bits(const SafetensorsFile& file, const char* key) {
  const std::string text = Metadata(file, key);
  if (text.empty() || text == "none") return std::nullopt;
  int bits = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bits);
  if (error != std::errc() || end != text.data() + text.size() || bits < kLeastBits || bits > kMostBits) {
    Reject(file.path().string() + ": " + key, Quoted(text),
           "none or " + std::to_string(kLeastBits) + ".." + std::to_string(kMostBits));
  }
  return bits;
}

std::vector<float> Part(const SafetensorsFile& file, const char* name) {
  const SafetensorsTensor& tensor = file.Require(name);
  const std::string where = file.path().string() + ": " + name;
  if (tensor.dtype != DType::kF32 || !tensor.other_dtype.empty() || tensor.shape.size() != 1 || tensor.shape[0] < 1 ||
      tensor.shape[0] > kMostPieces) {
    Reject(where, std::string(tensor.dtype_name()) + " " + ShapeText(tensor.shape), "F32 [n], n in 1..4096");
  }
  std::vector<float> values = file.CopyF32(tensor);
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      Reject(where + "[" + std::to_string(i) + "]", std::to_string(values[i]), "a finite number");
    }
  }
  return values;
}

}  // namespace

std::string_view NonlinearFunctionName(NonlinearFunction function) {
  switch (function) {
    case NonlinearFunction::kSilu: return "silu";
    case NonlinearFunction::kExp: return "exp";
    case NonlinearFunction::kRsqrt: return "rsqrt";
  }
  return "?";
}

NonlinearTable ReadNonlinearFile(const std::filesystem::path& path, NonlinearFunction function) {
  const SafetensorsFile file(path);
  const std::string name = path.string();
  if (const std::string schema = Metadata(file, "schema"); schema != kSchema) {
    Reject(name + ": schema", Quoted(schema), std::string(kSchema));
  }
  if (const std::string given = Metadata(file, "function"); given != NonlinearFunctionName(function)) {
    Reject(name + ": function", Quoted(given), std::string(NonlinearFunctionName(function)));
  }
  NonlinearTable table{function,
                       Part(file, "cuts"),
                       Part(file, "values"),
                       Part(file, "slopes"),
                       Bits(file, "in_bits"),
                       Bits(file, "out_bits")};
  if (table.values.size() != table.cuts.size() || table.slopes.size() != table.cuts.size()) {
    Reject(name + ": values, slopes", std::to_string(table.values.size()) + ", " + std::to_string(table.slopes.size()),
           "as many as cuts, " + std::to_string(table.cuts.size()));
  }
  for (size_t i = 1; i < table.cuts.size(); ++i) {
    if (table.cuts[i] > table.cuts[i - 1]) continue;
    Reject(name + ": cuts[" + std::to_string(i) + "]", std::to_string(table.cuts[i]), "more than the one before");
  }
  if (function == NonlinearFunction::kExp && !(table.At(0.0f) > 0)) {
    Reject(name + ": exp at 0", std::to_string(table.At(0.0f)), "a number above 0");
  }
  return table;
}

void WriteNonlinearFile(const std::filesystem::path& path, const NonlinearTable& table,
                        std::map<std::string, std::string> metadata) {
  const auto bits = [](const std::optional<int>& given) { return given ? std::to_string(*given) : "none"; };
  metadata["schema"] = kSchema;
  metadata["function"] = NonlinearFunctionName(table.function);
  metadata["in_bits"] = bits(table.in_bits);
  metadata["out_bits"] = bits(table.out_bits);
  const std::vector<float>* const parts[] = {&table.cuts, &table.values, &table.slopes};
  std::vector<SafetensorsSpec> specs;
  for (const char* name : kParts) specs.push_back({name, DType::kF32, {static_cast<int64_t>(table.cuts.size())}});
  SafetensorsWriter writer(path, specs, metadata);
  for (const std::vector<float>* part : parts) writer.Append(std::as_bytes(std::span(*part)));
  writer.Finish();
}

}  // namespace stoch
