// SPDX-License-Identifier: Apache-2.0
// Rows of the list of SC parameters by what they are in ScConfig: how text sets them and what text they give.
#pragma once

#include <charconv>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/sc/sc_parameters.h"

namespace stoch::parameters {

using enum ScParameterKind;

inline std::string Quoted(std::string_view text) { return '\'' + std::string(text) + '\''; }

inline std::string RangeOf(const ScParameter& parameter) {
  if (!parameter.range.empty()) return std::string(parameter.range);
  return std::to_string(parameter.low) + ".." + std::to_string(parameter.high);
}

template <typename T>
T ParseNumber(const ScParameter& parameter, std::string_view text) {
  T value{};
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  const bool too_large = error == std::errc::result_out_of_range && end == last;
  if (too_large) RejectScParameter(parameter.name, std::string(text), RangeOf(parameter));
  if (error != std::errc() || end != last) RejectScParameter(parameter.name, Quoted(text), "a whole number");
  return value;
}

template <auto kMember>
void SetInteger(ScConfig& config, const ScParameter& parameter, std::string_view text) {
  using T = std::remove_reference_t<decltype(config.*kMember)>;
  const T value = ParseNumber<T>(parameter, text);
  const auto number = static_cast<int64_t>(value);
  // 0 means "follows from the others" in ScConfig, which text says by leaving the parameter out.
  if (parameter.default_follows && (number < parameter.low || number > parameter.high)) {
    RejectScParameter(parameter.name, std::to_string(value), RangeOf(parameter));
  }
  config.*kMember = value;
}
template <auto kMember>
std::string GetInteger(const ScConfig& config, const ScParameter&) {
  return std::to_string(config.*kMember);
}

template <auto kMember>
void SetFlag(ScConfig& config, const ScParameter& parameter, std::string_view text) {
  const bool on = text == "1" || text == "true" || text == "on";
  if (!on && text != "0" && text != "false" && text != "off") RejectScParameter(parameter.name, Quoted(text), "0 or 1");
  config.*kMember = on;
}
template <auto kMember>
std::string GetFlag(const ScConfig& config, const ScParameter&) {
  return config.*kMember ? "1" : "0";
}

// The enum behind a member of ScConfig.
template <typename T>
struct EnumOf {
  using Type = T;
};
template <>
struct EnumOf<ScSourceChoice> {
  using Type = ScSource;
};
template <auto kMember>
using EnumOfMember = typename EnumOf<std::remove_reference_t<decltype(std::declval<ScConfig&>().*kMember)>>::Type;

template <auto kMember>
void SetChoice(ScConfig& config, const ScParameter& parameter, std::string_view text) {
  std::string allowed;
  for (const ScChoice& choice : parameter.choices) {
    if (choice.name == text) {
      config.*kMember = static_cast<EnumOfMember<kMember>>(choice.value);
      return;
    }
    allowed += (allowed.empty() ? "" : ", ") + std::string(choice.name);
  }
  RejectScParameter(parameter.name, Quoted(text), allowed);
}
template <auto kMember>
std::string GetChoice(const ScConfig& config, const ScParameter& parameter) {
  for (const ScChoice& choice : parameter.choices) {
    if (choice.value == static_cast<int>(static_cast<EnumOfMember<kMember>>(config.*kMember)))
      return std::string(choice.name);
  }
  return "?";
}

// Commas separate parameters on the command line, so a list is written 0:5:3.
template <auto kMember>
void SetList(ScConfig& config, const ScParameter& parameter, std::string_view text) {
  std::vector<int> values;
  while (!text.empty()) {
    const size_t colon = text.find(':');
    values.push_back(ParseNumber<int>(parameter, text.substr(0, colon)));
    text = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  }
  config.*kMember = std::move(values);
}
template <auto kMember>
std::string GetList(const ScConfig& config, const ScParameter&) {
  std::string joined;
  for (const int value : config.*kMember) joined += (joined.empty() ? "" : ":") + std::to_string(value);
  return joined;
}

// Nothing: the parameter follows from others.
template <auto kMember>
void SetOptional(ScConfig& config, const ScParameter& parameter, std::string_view text) {
  using T = typename std::remove_reference_t<decltype(config.*kMember)>::value_type;
  (config.*kMember).reset();
  if (!text.empty()) config.*kMember = ParseNumber<T>(parameter, text);
}
template <auto kMember>
std::string GetOptional(const ScConfig& config, const ScParameter&) {
  return config.*kMember ? std::to_string(*(config.*kMember)) : "";
}

template <auto kMember>
void SetText(ScConfig& config, const ScParameter&, std::string_view text) {
  config.*kMember = std::string(text);
}
template <auto kMember>
std::string GetText(const ScConfig& config, const ScParameter&) {
  return config.*kMember;
}

// A rate of faults: 0, or what is worth a draw.
inline double ParseRate(const ScParameter& parameter, std::string_view text) {
  constexpr double kLeast = 1e-12;
  double rate = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rate);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || !(rate == 0 || (rate >= kLeast && rate <= 1))) {
    RejectScParameter(parameter.name, Quoted(text), std::string(parameter.range));
  }
  return rate;
}
inline std::string RateText(double rate) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), rate).ptr};
}
template <auto kMember>
void SetRate(ScConfig& config, const ScParameter& parameter, std::string_view text) {
  config.*kMember = ParseRate(parameter, text);
}
template <auto kMember>
std::string GetRate(const ScConfig& config, const ScParameter&) {
  return RateText(config.*kMember);
}

// RATE, of all bits of a register, or RATE:BIT.
inline void SetRegisterRate(ScConfig& config, const ScParameter& parameter, std::string_view text) {
  const size_t colon = text.find(':');
  config.fault_acc = ParseRate(parameter, text.substr(0, colon));
  config.fault_acc_bit = -1;
  if (colon == std::string_view::npos) return;
  config.fault_acc_bit = ParseNumber<int>(parameter, text.substr(colon + 1));
  if (config.fault_acc_bit < 0 || config.fault_acc_bit > 31) {
    RejectScParameter(parameter.name, Quoted(text), std::string(parameter.range));
  }
}
inline std::string GetRegisterRate(const ScConfig& config, const ScParameter&) {
  const std::string rate = RateText(config.fault_acc);
  return config.fault_acc_bit < 0 ? rate : rate + ':' + std::to_string(config.fault_acc_bit);
}

template <auto kMember>
constexpr ScParameter Text(ScParameter parameter) {
  parameter.kind = kText;
  parameter.set = SetText<kMember>;
  parameter.get = GetText<kMember>;
  return parameter;
}
template <auto kMember>
constexpr ScParameter Integer(ScParameter parameter) {
  parameter.kind = kInteger;
  parameter.set = SetInteger<kMember>;
  parameter.get = GetInteger<kMember>;
  return parameter;
}
template <auto kMember>
constexpr ScParameter Flag(ScParameter parameter) {
  parameter.kind = kFlag;
  parameter.set = SetFlag<kMember>;
  parameter.get = GetFlag<kMember>;
  return parameter;
}
template <auto kMember>
constexpr ScParameter OneOf(std::span<const ScChoice> choices, ScParameter parameter) {
  parameter.kind = kChoice;
  parameter.choices = choices;
  parameter.set = SetChoice<kMember>;
  parameter.get = GetChoice<kMember>;
  return parameter;
}
template <auto kMember>
constexpr ScParameter Optional(ScParameter parameter) {
  parameter.kind = kInteger;
  parameter.set = SetOptional<kMember>;
  parameter.get = GetOptional<kMember>;
  return parameter;
}
template <auto kMember>
constexpr ScParameter Rate(ScParameter parameter) {
  parameter.kind = kText;
  parameter.set = SetRate<kMember>;
  parameter.get = GetRate<kMember>;
  return parameter;
}
constexpr ScParameter RegisterRate(ScParameter parameter) {
  parameter = Rate<&ScConfig::fault_acc>(parameter);
  parameter.set = SetRegisterRate;
  parameter.get = GetRegisterRate;
  return parameter;
}
template <auto kMember>
constexpr ScParameter List(ScParameter parameter) {
  parameter.kind = kList;
  parameter.set = SetList<kMember>;
  parameter.get = GetList<kMember>;
  return parameter;
}

}  // namespace stoch::parameters
