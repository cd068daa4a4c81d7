// SPDX-License-Identifier: Apache-2.0
// The parameters of an SC product as text: the one list that the parser, Describe, error messages, `stoch help sc`,
// shell completion and docs/sc-options.md read. A new parameter or value is a row here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kernels/sc/sc_config.h"

namespace stoch {

enum class ScParameterKind : uint8_t { kInteger, kFlag, kChoice, kList, kText };

// Which operators of a model take a parameter.
enum class ScParameterUse : uint8_t {
  kEveryProduct,    // linears, LM head, qk and av
  kLinears,         // not the products of attention, whose scopes follow from its mode
  kDecoderLinears,  // nor the LM head
};

// One value of a kChoice parameter; value is that of the enum.
struct ScChoice {
  std::string_view name{};
  int value = 0;
  std::string_view help{};
};

struct ScParameter {
  std::string_view name{};
  std::string_view alias{};  // accepted too, never printed; "" = none
  ScParameterKind kind = ScParameterKind::kInteger;
  ScParameterUse use = ScParameterUse::kEveryProduct;
  int64_t low = 0, high = 0;     // kInteger: what is allowed whatever the others are; high < low = any
  std::string_view range{};      // for people, where low..high or the choices do not say it
  bool default_follows = false;  // the default (0 in ScConfig) follows from other parameters, as default_text says
  std::string_view default_text{};
  std::span<const ScChoice> choices{};
  std::string_view help{};
  // Whether text names the parameter even where it has its default; nullptr: never.
  bool (*always_named)(const ScConfig& config) = nullptr;

  // Sets the parameter from text. Errors: InvalidInput naming parameter, value and what is allowed.
  void (*set)(ScConfig& config, const ScParameter& parameter, std::string_view text) = nullptr;
  // The parameter's value as text that `set` takes back.
  std::string (*get)(const ScConfig& config, const ScParameter& parameter) = nullptr;
};

// Every parameter, in the order in which Describe writes them.
std::span<const ScParameter> ScParameters();

// The parameter of that name or alias. Errors: InvalidInput listing the known names.
const ScParameter& FindScParameter(std::string_view name);

// Whether it makes hardware differ from the ideal: of the accumulator, its adder, or faults.
constexpr bool IsHardware(const ScParameter& parameter) {
  return parameter.name.starts_with("fault_") || parameter.name.starts_with("acc_") ||
         parameter.name.starts_with("adder");
}
// The configuration with ideal hardware.
ScConfig WithIdealHardware(ScConfig config);

// Errors: InvalidInput "SC parameter NAME = VALUE: allowed is ALLOWED", always.
[[noreturn]] void RejectScParameter(std::string_view name, const std::string& value, const std::string& allowed);

}  // namespace stoch
