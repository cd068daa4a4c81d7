// SPDX-License-Identifier: Apache-2.0
// SC products against recorded ones.

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "app/verify/verify.h"
#include "kernels/base/error.h"
#include "kernels/sc/number_source.h"
#include "kernels/sc/sc_config.h"
#include "kernels/sc/sc_operator.h"
#include "loader/bounded_json.h"
#include "loader/checkpoint/safetensors.h"
#include "research/golden/golden.h"
#include "research/golden/golden2.h"

namespace stoch::cli {
namespace {

using FilePtr = std::shared_ptr<const SafetensorsFile>;

// "true" and numbers as SetScParameter wants them.
std::string ValueText(const nlohmann::json& value, const std::string& where) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "1" : "0";
  if (value.is_number_integer()) return value.dump();
  throw InvalidInput(
      fmt::format("{}: expected a string, a whole number or a flag, got {}", where, JsonTypeName(value)));
}

Buffer Upload(Backend& backend, const std::vector<float>& values) {
  Buffer buffer = backend.Allocate(backend.devices()[0], static_cast<int64_t>(values.size() * sizeof(float)));
  backend.CopyFromHost(MakeView(buffer.data(), DType::kF32, buffer.device(), static_cast<int64_t>(values.size())),
                       values.data());
  return buffer;
}

TensorView View(const Buffer& buffer, const std::vector<int64_t>& shape) {
  return shape.size() == 3 ? MakeView(buffer.data(), DType::kF32, buffer.device(), shape[0], shape[1], shape[2])
                           : MakeView(buffer.data(), DType::kF32, buffer.device(), shape[0], shape[1]);
}

// The shapes of one case agree: a [.., n, d], b [.., m, d], y [.., n, m].
void CheckShapes(const std::string& name, const SafetensorsTensor& a, const SafetensorsTensor& b,
                 const SafetensorsTensor& y) {
  const size_t rank = a.shape.size();
  bool good = (rank == 2 || rank == 3) && b.shape.size() == rank && y.shape.size() == rank;
  good = good && a.shape[rank - 1] == b.shape[rank - 1] && y.shape[rank - 2] == a.shape[rank - 2] &&
         y.shape[rank - 1] == b.shape[rank - 2] &&
         (rank == 2 || (a.shape[0] == b.shape[0] && a.shape[0] == y.shape[0]));
  if (!good) {
    throw InvalidInput(fmt::format("case {}: expected a [.., n, d], b [.., m, d] and y [.., n, m], got {}, {} and {}",
                                   name, ShapeText(a.shape), ShapeText(b.shape), ShapeText(y.shape)));
  }
}

CheckResult RunCase(const VerifyContext& context, const FilePtr& file, const std::string& name,
                    const ScConfig& config) {
  const SafetensorsTensor& a = file->Require(name + ".a");
  const SafetensorsTensor& b = file->Require(name + ".b");
  const SafetensorsTensor& y = file->Require(name + ".y");
  CheckShapes(name, a, b, y);
  const std::vector<float> expected = file->CopyF32(y);
  const ScOperatorPtr op = MakeScOperator(config);

  Backend* backend = context.backend.get();
  const Buffer a_buffer = Upload(*backend, file->CopyF32(a));
  const Buffer b_buffer = Upload(*backend, file->CopyF32(b));
  // NaN where nothing is written, so that an op that does nothing cannot pass.
  const Buffer y_buffer =
      Upload(*backend, std::vector<float>(expected.size(), std::numeric_limits<float>::quiet_NaN()));
  std::vector<float> actual(expected.size());
  backend->ScMatmul(View(a_buffer, a.shape), View(b_buffer, b.shape), *op, View(y_buffer, y.shape));
  backend->CopyToHost(actual.data(), View(y_buffer, y.shape));

  float largest = 0;
  float worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::fabs(expected[i]));
    const float error = std::fabs(actual[i] - expected[i]);
    worst = std::isnan(error) ? std::numeric_limits<float>::infinity() : std::max(worst, error);
  }
  const bool passed = worst <= 1e-6F * largest;
  const float relative = largest > 0 ? worst / largest : worst;
  return {passed, fmt::format("worst error {:.2e} of max |y| = {:.4g} over {} outputs, allowed 1e-6 ({})", relative,
                              largest, expected.size(), Describe(op->config))};
}

// sobol.precP.{a,b}: the comparator values of the default pair.
CheckResult RunSource(const FilePtr& file, int precision) {
  size_t compared = 0;
  size_t different = 0;
  for (const char* side : {"a", "b"}) {
    const SafetensorsTensor& tensor = file->Require(fmt::format("sobol.prec{}.{}", precision, side));
    std::vector<int64_t> expected;
    if (tensor.dtype == DType::kF32) {
      for (const float value : file->CopyF32(tensor)) expected.push_back(static_cast<int64_t>(value));
    } else {
      for (const int32_t value : file->CopyI32(tensor)) expected.push_back(value);
    }
    ScConfig config;
    config.sc_prec = precision;
    const std::vector<int> actual =
        SourceValues(Resolve(config), side[0] == 'a' ? ScSide::kA : ScSide::kB, static_cast<int>(expected.size()), 0);
    for (size_t i = 0; i < expected.size(); ++i) {
      ++compared;
      if (i >= actual.size() || actual[i] != expected[i]) ++different;
    }
  }
  return {different == 0 && compared > 0, fmt::format("{} of {} values differ", different, compared)};
}

}  // namespace

std::vector<Check> GoldenChecks(const VerifyContext& context, const std::string& path) {
  const auto file = std::make_shared<const SafetensorsFile>(path);
  const auto cases_text = file->metadata().find("cases");
  if (cases_text == file->metadata().end()) {
    throw InvalidInput(path + ": expected a golden file with the metadata key `cases`, got one without");
  }
  const nlohmann::json cases = ParseBoundedJson(cases_text->second, path + ": cases");
  if (!cases.is_array() || cases.empty()) {
    throw InvalidInput(fmt::format("{}: cases: expected a list of cases, got {}", path, JsonTypeName(cases)));
  }
  std::vector<Check> checks;
  const auto schema = file->metadata().find("schema");
  const bool second = schema != file->metadata().end() && schema->second == "stoch-research2-golden-v1";
  const bool research = second || (schema != file->metadata().end() && schema->second == "stoch-research-golden-v1");
  int64_t not_built = 0;
  for (const nlohmann::json& entry : cases) {
    if (!entry.is_object() || !entry.contains("case") || !entry["case"].is_string()) {
      throw InvalidInput(path + ": cases: expected objects with a string under \"case\"");
    }
    const std::string name = entry["case"].get<std::string>();
    if (research) {
      if (second && !IsResearch2Kind(entry)) {
        ++not_built;
        continue;
      }
      checks.push_back({"golden." + name, "a recorded case of the research suite", [context, file, entry, second] {
                          const GoldenResult result = second ? RunResearch2Golden(*context.backend, *file, entry)
                                                             : RunResearchGolden(*context.backend, *file, entry);
                          return CheckResult{result.passed, result.detail};
                        }});
      continue;
    }
    ScConfig config;
    for (const auto& [key, value] : entry.items()) {
      if (key != "case") SetScParameter(config, key, ValueText(value, path + ": case " + name + ": " + key));
    }
    checks.push_back({"golden." + name, "the recorded output of sc_matmul",
                      [context, file, name, config] { return RunCase(context, file, name, config); }});
  }
  if (not_built > 0) {
    spdlog::warn("{}: {} cases of kinds that this version does not compute are left out", path, not_built);
  }
  for (int precision = 3; precision <= 8; ++precision) {
    if (file->Find(fmt::format("sobol.prec{}.a", precision)) == nullptr) continue;
    checks.push_back({fmt::format("golden.sobol.prec{}", precision), "the recorded number source",
                      [file, precision] { return RunSource(file, precision); }});
  }
  return checks;
}

}  // namespace stoch::cli
