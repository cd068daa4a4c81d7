// SPDX-License-Identifier: Apache-2.0
// Precisions by name.
#include <array>
#include <string>
#include <utility>

#include "engine/engine.h"
#include "kernels/base/error.h"

namespace stoch {
namespace {

constexpr std::array<std::pair<std::string_view, Precision>, 3> kPrecisions = {
    {{"sc", Precision::kSc}, {"fp32", Precision::kFp32}, {"fp16", Precision::kFp16}}};

}  // namespace

std::string_view PrecisionName(Precision precision) {
  for (const auto& [name, entry] : kPrecisions) {
    if (entry == precision) return name;
  }
  return "?";
}

Precision ParsePrecision(std::string_view name) {
  for (const auto& [known, precision] : kPrecisions) {
    if (known == name) return precision;
  }
  throw InvalidInput("precision = '" + std::string(name) + "': allowed is sc, fp32, fp16");
}

}  // namespace stoch
