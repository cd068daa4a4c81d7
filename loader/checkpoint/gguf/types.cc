// SPDX-License-Identifier: Apache-2.0
#include "loader/checkpoint/gguf/types.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace stoch::gguf {
namespace {

constexpr TypeInfo kTypes[] = {
    {Type::kF32, "F32", 1, 4},       {Type::kF16, "F16", 1, 2},         {Type::kBF16, "BF16", 1, 2},
    {Type::kQ8_0, "Q8_0", 32, 34},   {Type::kQ4_0, "Q4_0", 32, 18},     {Type::kQ4_1, "Q4_1", 32, 20},
    {Type::kQ5_0, "Q5_0", 32, 22},   {Type::kQ5_1, "Q5_1", 32, 24},     {Type::kQ4_K, "Q4_K", 256, 144},
    {Type::kQ5_K, "Q5_K", 256, 176}, {Type::kQ6_K, "Q6_K", 256, 210},   {Type::kQ2_K, "Q2_K", 256, 84},
    {Type::kQ3_K, "Q3_K", 256, 110}, {Type::kIQ4_NL, "IQ4_NL", 32, 18}, {Type::kIQ4_XS, "IQ4_XS", 256, 136},
    {Type::kMXFP4, "MXFP4", 32, 17},
};

constexpr std::pair<uint32_t, std::string_view> kOthers[] = {
    {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
    {21, "IQ3_S"}, {22, "IQ2_S"}, {24, "I8"},      {25, "I16"},    {26, "I32"},     {27, "I64"},
    {28, "F64"},   {29, "IQ1_M"}, {34, "TQ1_0"},   {35, "TQ2_0"},  {40, "NVFP4"},
};

}  // namespace

const TypeInfo* FindType(uint32_t number) {
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [&](const TypeInfo& info) { return static_cast<uint32_t>(info.type) == number; });
  return found == std::end(kTypes) ? nullptr : found;
}

const TypeInfo& InfoOf(Type type) { return *FindType(static_cast<uint32_t>(type)); }

std::string TypeName(uint32_t number) {
  if (const TypeInfo* info = FindType(number)) return std::string(info->name);
  for (const auto& [other, name] : kOthers) {
    if (other == number) return std::string(name);
  }
  return "type " + std::to_string(number);
}

std::string ReadTypeNames() {
  std::string names;
  for (const TypeInfo& info : kTypes) names.append(names.empty() ? "" : ", ").append(info.name);
  return names;
}

}  // namespace stoch::gguf
