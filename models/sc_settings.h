// SPDX-License-Identifier: Apache-2.0
// What the text of --sc knows besides the parameters of a product (kernels/sc/sc_parameters.h): presets, modes of
// attention, operators. Each list is written once; the parser, error messages, `stoch help sc`, shell completion and
// docs/sc-options.md loop over it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/sc_model_config.h"

namespace stoch {

struct ScPreset {
  std::string_view name;
  ScModelConfig (*make)();
  std::string_view help;
};

struct AttentionEntry {
  std::string_view name;
  AttentionMode mode;
  std::string_view help;
  bool dilated = false;
};

// A list of attention=dilated, as 2048:8192.
struct DilatedEntry {
  std::string_view name;
  std::vector<int64_t> ScDilatedConfig::*list;
  std::string_view help;
};

// A function that a table can stand for.
struct TableEntry {
  std::string_view name;
  NonlinearFunction function;
  ScTable ScTables::*table;
  std::string_view help;
};

struct ScOperatorEntry {
  std::string_view name;
  std::string_view help;
};

// A product of attention that is to be exact on its own: attention is exact as a whole or not at all.
[[noreturn]] void RejectExactProduct(std::string_view op);

std::span<const ScPreset> ScPresets();  // the default first
std::span<const AttentionEntry> AttentionModes();
std::span<const DilatedEntry> DilatedLists();
std::span<const TableEntry> TableFunctions();
std::span<const ScOperatorEntry> ScOperators();  // in the order of ScOperatorId

inline ScOperatorId OperatorAt(int index) { return static_cast<ScOperatorId>(index); }
inline bool IsAttentionProduct(ScOperatorId id) { return id == ScOperatorId::kQk || id == ScOperatorId::kAv; }
// InvalidInput: the setting, what it is, and what is allowed.
[[noreturn]] void Reject(const std::string& name, std::string_view value, const std::string& allowed);
// The text of a list of attention=dilated.
std::string TokenListText(const std::vector<int64_t>& values);

}  // namespace stoch
