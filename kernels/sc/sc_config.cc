#include "kernels/sc/sc_config.h"

#include <array>
#include <bit>
#include <charconv>
#include <span>
#include <utility>

#include "kernels/base/error.h"

namespace stoch {
namespace {

template <typename E>
using EnumName = std::pair<std::string_view, E>;

constexpr std::array kModes = {EnumName<ScMode>{"bipolar", ScMode::kBipolar},
                               EnumName<ScMode>{"unipolar", ScMode::kUnipolar}};
constexpr std::array kGranularities = {EnumName<ScGranularity>{"per_tensor", ScGranularity::kPerTensor},
                                       EnumName<ScGranularity>{"per_row", ScGranularity::kPerRow},
                                       EnumName<ScGranularity>{"per_head", ScGranularity::kPerHead}};
constexpr std::array kScrambles = {
    EnumName<ScScramble>{"bitrev", ScScramble::kBitrev}, EnumName<ScScramble>{"counter", ScScramble::kCounter},
    EnumName<ScScramble>{"random", ScScramble::kRandom}, EnumName<ScScramble>{"off", ScScramble::kOff}};
constexpr std::array kGates = {EnumName<ScGate>{"enabled", ScGate::kEnabled}, EnumName<ScGate>{"and", ScGate::kAnd},
                               EnumName<ScGate>{"xnor", ScGate::kXnor}};
constexpr std::array kSources = {
    EnumName<ScSource>{"sobol", ScSource::kSobol}, EnumName<ScSource>{"lfsr", ScSource::kLfsr},
    EnumName<ScSource>{"vdc", ScSource::kVanDerCorput}, EnumName<ScSource>{"random", ScSource::kRandom},
    EnumName<ScSource>{"list", ScSource::kList}};
constexpr std::array kRestarts = {EnumName<ScRestart>{"product", ScRestart::kProduct},
                                  EnumName<ScRestart>{"mask", ScRestart::kMask}};

constexpr std::string_view kParameters =
    "sc_prec, stoc_len, rng_levels, halve, mode, granularity, group_a, group_b, chunk_d, scramble, scramble_masks, "
    "gate, "
    "source, source_seed, lfsr_restart, source_list_a, source_list_b";

[[noreturn]] void Reject(std::string_view name, const std::string& value, const std::string& allowed) {
  throw InvalidInput("SC parameter " + std::string(name) + " = " + value + ": allowed is " + allowed);
}

std::string Range(int64_t low, int64_t high) { return std::to_string(low) + ".." + std::to_string(high); }

void CheckRange(std::string_view name, int64_t value, int64_t low, int64_t high, const std::string& why = "") {
  if (value < low || value > high) Reject(name, std::to_string(value), Range(low, high) + why);
}

template <typename E, size_t N>
std::string_view NameOf(const std::array<EnumName<E>, N>& names, E value) {
  for (const auto& [name, entry] : names) {
    if (entry == value) return name;
  }
  return "?";
}

template <typename E, size_t N>
E ParseName(std::string_view parameter, std::string_view text, const std::array<EnumName<E>, N>& names) {
  std::string allowed;
  for (const auto& [name, entry] : names) {
    if (name == text) return entry;
    if (!allowed.empty()) allowed += ", ";
    allowed += name;
  }
  Reject(parameter, '\'' + std::string(text) + '\'', allowed);
}

template <typename T>
T ParseNumber(std::string_view parameter, std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    Reject(parameter, '\'' + std::string(text) + '\'', "a whole number");
  }
  return value;
}

bool ParseFlag(std::string_view parameter, std::string_view text) {
  if (text == "1" || text == "true" || text == "on") return true;
  if (text == "0" || text == "false" || text == "off") return false;
  Reject(parameter, '\'' + std::string(text) + '\'', "0 or 1");
}

// Commas separate parameters on the command line, so a list is written 0:5:3.
std::vector<int> ParseList(std::string_view parameter, std::string_view text) {
  std::vector<int> values;
  while (!text.empty()) {
    const size_t colon = text.find(':');
    values.push_back(ParseNumber<int>(parameter, text.substr(0, colon)));
    text = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  }
  return values;
}

void CheckList(std::string_view name, std::span<const int> list, const ScConfig& config) {
  if (list.size() < static_cast<size_t>(config.stoc_len)) {
    Reject(name, "a list of " + std::to_string(list.size()) + " values",
           "at least stoc_len = " + std::to_string(config.stoc_len) + " values");
  }
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i] < 0 || list[i] >= 1 << config.sc_prec) {
      Reject(std::string(name) + '[' + std::to_string(i) + ']', std::to_string(list[i]),
             Range(0, (1 << config.sc_prec) - 1));
    }
  }
}

void CheckSource(const ScConfig& config) {
  if (config.source == ScSource::kList) {
    CheckList("source_list_a", config.source_list_a, config);
    CheckList("source_list_b", config.source_list_b, config);
  } else if (!config.source_list_a.empty() || !config.source_list_b.empty()) {
    Reject("source", std::string(NameOf(kSources, config.source)),
           "list, when source_list_a or source_list_b is given");
  }
  if (config.lfsr_restart == ScRestart::kMask) {
    if (config.source != ScSource::kLfsr) Reject("lfsr_restart", "mask", "product, unless source = lfsr");
    if (config.scramble != ScScramble::kOff) {
      Reject("scramble", std::string(NameOf(kScrambles, config.scramble)), "off, with lfsr_restart = mask");
    }
  }
}

void CheckScopes(const ScConfig& config) {
  CheckRange("group_a", config.group_a, 1, INT32_MAX);
  CheckRange("group_b", config.group_b, 1, INT32_MAX);
  CheckRange("chunk_d", config.chunk_d, 0, INT32_MAX);
  const bool per_row = config.granularity == ScGranularity::kPerRow;
  const std::string granularity(NameOf(kGranularities, config.granularity));
  if (!per_row && config.group_a != 1)
    Reject("group_a", std::to_string(config.group_a), "1 with granularity = " + granularity);
  if (!per_row && config.group_b != 1)
    Reject("group_b", std::to_string(config.group_b), "1 with granularity = " + granularity);
  if (!per_row && config.chunk_d != 0)
    Reject("chunk_d", std::to_string(config.chunk_d), "0 with granularity = " + granularity);
  if (config.mode == ScMode::kUnipolar) {
    if (config.halve) Reject("halve", "1", "0 with mode = unipolar (halving needs signs)");
    if (config.chunk_d != 0) Reject("chunk_d", std::to_string(config.chunk_d), "0 with mode = unipolar");
    if (config.granularity == ScGranularity::kPerHead)
      Reject("granularity", "per_head", "per_tensor, per_row with mode = unipolar");
    if (config.gate == ScGate::kXnor) Reject("gate", "xnor", "enabled, and with mode = unipolar");
  }
  if (config.gate == ScGate::kXnor && config.halve)
    Reject("halve", "1", "0 with gate = xnor (its streams carry the sign)");
}

}  // namespace

ScConfig Resolve(const ScConfig& config) {
  ScConfig result = config;
  CheckRange("sc_prec", config.sc_prec, 3, 8);
  CheckScopes(config);
  const int limit = 1 << (config.halve ? config.sc_prec - 1 : config.sc_prec);
  const std::string why = config.halve ? " with halve = 1" : "";
  if (result.stoc_len == 0) result.stoc_len = limit;
  if (result.rng_levels == 0) result.rng_levels = limit;
  CheckRange("stoc_len", result.stoc_len, 1, limit, why);
  CheckRange("rng_levels", result.rng_levels, 1, limit, why);
  const int full = 1 << config.sc_prec;
  if (config.scramble_masks < 1 || config.scramble_masks > 256 ||
      !std::has_single_bit(static_cast<unsigned>(config.scramble_masks))) {
    Reject("scramble_masks", std::to_string(config.scramble_masks), "a power of two in " + Range(1, 256));
  }
  // Masks repeat with period 2^p; a shorter precision takes the default of 8 bits down with it.
  if (config.scramble_masks > full) result.scramble_masks = full;
  CheckSource(result);
  return result;
}

void SetScParameter(ScConfig& config, std::string_view name, std::string_view value) {
  if (name == "sc_prec") {
    config.sc_prec = ParseNumber<int>(name, value);
  } else if (name == "stoc_len") {
    config.stoc_len = ParseNumber<int>(name, value);
    CheckRange(name, config.stoc_len, 1, 256);
  } else if (name == "rng_levels") {
    config.rng_levels = ParseNumber<int>(name, value);
    CheckRange(name, config.rng_levels, 1, 256);
  } else if (name == "halve" || name == "halve_bipolar_stoc_len") {
    config.halve = ParseFlag(name, value);
  } else if (name == "mode") {
    config.mode = ParseName(name, value, kModes);
  } else if (name == "granularity") {
    config.granularity = ParseName(name, value, kGranularities);
  } else if (name == "group_a") {
    config.group_a = ParseNumber<int64_t>(name, value);
  } else if (name == "group_b") {
    config.group_b = ParseNumber<int64_t>(name, value);
  } else if (name == "chunk_d") {
    config.chunk_d = ParseNumber<int64_t>(name, value);
  } else if (name == "scramble") {
    config.scramble = ParseName(name, value, kScrambles);
  } else if (name == "scramble_masks") {
    config.scramble_masks = ParseNumber<int>(name, value);
  } else if (name == "gate") {
    config.gate = ParseName(name, value, kGates);
  } else if (name == "source") {
    config.source = ParseName(name, value, kSources);
  } else if (name == "source_seed") {
    config.source_seed = ParseNumber<uint64_t>(name, value);
  } else if (name == "lfsr_restart") {
    config.lfsr_restart = ParseName(name, value, kRestarts);
  } else if (name == "source_list_a") {
    config.source_list_a = ParseList(name, value);
  } else if (name == "source_list_b") {
    config.source_list_b = ParseList(name, value);
  } else {
    throw InvalidInput("unknown SC parameter '" + std::string(name) + "': known are " + std::string(kParameters));
  }
}

std::string Describe(const ScConfig& config) {
  const ScConfig defaults;
  std::string text;
  const auto add = [&text](bool differs, std::string_view name, const std::string& value) {
    if (!differs) return;
    if (!text.empty()) text += ',';
    text += std::string(name) + '=' + value;
  };
  const auto list = [](const std::vector<int>& values) {
    std::string joined;
    for (const int value : values) joined += (joined.empty() ? "" : ":") + std::to_string(value);
    return joined;
  };
  add(config.sc_prec != defaults.sc_prec, "sc_prec", std::to_string(config.sc_prec));
  add(config.halve, "halve", "1");
  add(config.stoc_len != 0, "stoc_len", std::to_string(config.stoc_len));
  add(config.rng_levels != 0, "rng_levels", std::to_string(config.rng_levels));
  add(config.mode != defaults.mode, "mode", std::string(NameOf(kModes, config.mode)));
  add(config.granularity != defaults.granularity, "granularity",
      std::string(NameOf(kGranularities, config.granularity)));
  add(config.group_a != 1, "group_a", std::to_string(config.group_a));
  add(config.group_b != 1, "group_b", std::to_string(config.group_b));
  add(config.chunk_d != 0, "chunk_d", std::to_string(config.chunk_d));
  add(config.scramble != defaults.scramble, "scramble", std::string(NameOf(kScrambles, config.scramble)));
  add(config.scramble_masks != defaults.scramble_masks, "scramble_masks", std::to_string(config.scramble_masks));
  add(config.gate != defaults.gate, "gate", std::string(NameOf(kGates, config.gate)));
  add(config.source != defaults.source, "source", std::string(NameOf(kSources, config.source)));
  add(config.source_seed != defaults.source_seed, "source_seed", std::to_string(config.source_seed));
  add(config.lfsr_restart != defaults.lfsr_restart, "lfsr_restart",
      std::string(NameOf(kRestarts, config.lfsr_restart)));
  add(!config.source_list_a.empty(), "source_list_a", list(config.source_list_a));
  add(!config.source_list_b.empty(), "source_list_b", list(config.source_list_b));
  return text;
}

}  // namespace stoch
