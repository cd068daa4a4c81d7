// SPDX-License-Identifier: Apache-2.0
#include "kernels/sc/sc_config.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <span>

#include "kernels/base/error.h"
#include "kernels/math/number_formats.h"
#include "kernels/sc/lfsr.h"
#include "kernels/sc/sc_parameters.h"

namespace stoch {
namespace {

std::string TextOf(const ScConfig& config, std::string_view name) {
  const ScParameter& parameter = FindScParameter(name);
  return parameter.get(config, parameter);
}

// The value that is not allowed, as text.
[[noreturn]] void Reject(const ScConfig& config, std::string_view name, const std::string& allowed) {
  const std::string value = TextOf(config, name);
  RejectScParameter(name, value.empty() ? "''" : value, allowed);
}

std::string Range(int64_t low, int64_t high) { return std::to_string(low) + ".." + std::to_string(high); }

void CheckRange(std::string_view name, int64_t value, int64_t low, int64_t high, const std::string& why = "") {
  if (value < low || value > high) RejectScParameter(name, std::to_string(value), Range(low, high) + why);
}
void CheckRange(std::string_view name, int64_t value) {
  const ScParameter& parameter = FindScParameter(name);
  CheckRange(name, value, parameter.low, parameter.high);
}

void CheckList(std::string_view name, std::span<const int> list, const ScConfig& config) {
  if (list.size() < static_cast<size_t>(config.stoc_len)) {
    RejectScParameter(name, "a list of " + std::to_string(list.size()) + " values",
                      "at least stoc_len = " + std::to_string(config.stoc_len) + " values");
  }
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i] < 0 || list[i] >= 1 << config.sc_prec) {
      RejectScParameter(std::string(name) + '[' + std::to_string(i) + ']', std::to_string(list[i]),
                        Range(0, (1 << config.sc_prec) - 1));
    }
  }
}

// Steps until a register of these stages is where it began.
int PeriodOf(const std::vector<int>& taps, int sc_prec) {
  const unsigned mask = LfsrMask(taps);
  unsigned state = 1;
  int period = 0;
  do {
    state = LfsrStep(state, mask, sc_prec);
    ++period;
  } while (state != 1 && period < 1 << sc_prec);
  return period;
}

void CheckTaps(const ScConfig& config, std::string_view name, const std::vector<int>& taps) {
  if (taps.empty()) return;
  if (config.source != ScSource::kLfsr) Reject(config, name, "nothing, unless source = lfsr");
  const int p = config.sc_prec;
  for (size_t i = 0; i < taps.size(); ++i) {
    if (taps[i] < 1 || taps[i] > p) Reject(config, name, "stages in 1.." + std::to_string(p));
    if (std::find(taps.begin(), taps.begin() + static_cast<std::ptrdiff_t>(i), taps[i]) !=
        taps.begin() + static_cast<std::ptrdiff_t>(i)) {
      Reject(config, name, "every stage once");
    }
  }
  if (*std::max_element(taps.begin(), taps.end()) != p) {
    Reject(config, name, "stages of which the highest is sc_prec = " + std::to_string(p));
  }
  const int period = PeriodOf(taps, p);
  const int longest = (1 << p) - 1;
  if (period == longest) return;
  throw InvalidInput("SC parameter " + std::string(name) + " = " + TextOf(config, name) + ": period " +
                     std::to_string(period) + ", allowed is " + std::to_string(longest));
}

void CheckSource(const ScConfig& config) {
  CheckTaps(config, "lfsr_taps", config.lfsr_taps);
  CheckTaps(config, "lfsr_taps_b", config.lfsr_taps_b);
  if (config.source == ScSource::kList) {
    CheckList("source_list_a", config.source_list_a, config);
    CheckList("source_list_b", config.source_list_b, config);
  } else if (!config.source_list_a.empty() || !config.source_list_b.empty()) {
    Reject(config, "source", "list, when source_list_a or source_list_b is given");
  }
  if (config.lfsr_restart == ScRestart::kMask) {
    if (config.source != ScSource::kLfsr) Reject(config, "lfsr_restart", "product, unless source = lfsr");
    if (config.scramble != ScScramble::kOff) Reject(config, "scramble", "off, with lfsr_restart = mask");
  }
}

void CheckScopes(const ScConfig& config) {
  CheckRange("group_a", config.group_a);
  CheckRange("group_b", config.group_b);
  CheckRange("chunk_d", config.chunk_d);
  if (config.granularity != ScGranularity::kPerRow) {
    const std::string with = " with granularity = " + TextOf(config, "granularity");
    if (config.group_a != 1) Reject(config, "group_a", "1" + with);
    if (config.group_b != 1) Reject(config, "group_b", "1" + with);
    if (config.chunk_d != 0) Reject(config, "chunk_d", "0" + with);
  }
  if (config.mode == ScMode::kUnipolar) {
    if (config.halve) Reject(config, "halve", "0 with mode = unipolar (halving needs signs)");
    if (config.chunk_d != 0) Reject(config, "chunk_d", "0 with mode = unipolar");
    if (config.granularity == ScGranularity::kPerHead) {
      Reject(config, "granularity", "per_tensor, per_row with mode = unipolar");
    }
    if (config.gate == ScGate::kXnor) Reject(config, "gate", "enabled, and with mode = unipolar");
  }
  if (config.gate == ScGate::kXnor && config.halve) {
    Reject(config, "halve", "0 with gate = xnor (its streams carry the sign)");
  }
}

void CheckAdder(const ScConfig& config) {
  if (config.adder == ScAdder::kCounter) {
    if (config.adder_group != 0) Reject(config, "adder_group", "0 with adder = counter");
    return;
  }
  const std::string adder = "adder = " + TextOf(config, "adder");
  if (config.arith != ScArith::kSc || !HasSource(config.gate))
    Reject(config, "adder", "counter, unless streams multiply");
  if (config.acc_group != 0) Reject(config, "acc_group", "0 with " + adder);
  const bool is_or = config.adder == ScAdder::kOr;
  if (is_or && config.gate == ScGate::kXnor) Reject(config, "adder", "counter, mux, apc with gate = xnor");
  if (!is_or && config.mode == ScMode::kUnipolar) Reject(config, "adder", "counter, or with mode = unipolar");
  const bool is_apc = config.adder == ScAdder::kApc;
  const bool fits = config.adder_group >= (is_apc ? 2 : 1) && config.adder_group <= 256;
  if (!fits || (is_apc && config.adder_group % 2 != 0)) {
    Reject(config, "adder_group", (is_apc ? "an even number in 2..256 with " : "1..256 with ") + adder);
  }
}

void CheckRegister(const ScConfig& config) {
  if (config.acc_bits == 1) Reject(config, "acc_bits", "0 or 2..32");
  CheckRange("acc_bits", config.acc_bits);
  CheckRange("acc_group", config.acc_group);
  if (config.acc_group > 0 && config.acc_bits == 0) Reject(config, "acc_group", "0 without acc_bits");
  if ((config.arith == ScArith::kFp || IsNumberFormat(config.arith)) && config.acc_bits > 0) {
    Reject(config, "acc_bits", "0 with arith = " + TextOf(config, "arith"));
  }
  if (config.fault_acc > 0 && config.acc_bits == 0) {
    Reject(config, "fault_acc", "0 without acc_bits: the width of the register is a choice of the hardware");
  }
  if (config.fault_acc > 0 && config.fault_acc_bit >= config.acc_bits) {
    Reject(config, "fault_acc", "a bit below acc_bits = " + std::to_string(config.acc_bits));
  }
}

// Whether the bits of a product are known from its counts.
bool CountsBits(const ScConfig& config) {
  const CountTable* table = config.count_table.get();
  if (table == nullptr) return true;
  if (config.mode != ScMode::kUnipolar && table->levels == 1 << config.sc_prec) return false;
  return std::all_of(table->entries.begin(), table->entries.end(),
                     [&](int32_t entry) { return entry >= 0 && entry <= config.stoc_len; });
}

void CheckFaults(const ScConfig& config) {
  if ((config.arith == ScArith::kFp || IsNumberFormat(config.arith)) && HasFaults(config)) {
    for (const std::string_view name : {"fault_product", "fault_weight", "fault_activation", "fault_acc"}) {
      if (TextOf(config, name) != "0") Reject(config, name, "0 with arith = " + TextOf(config, "arith"));
    }
  }
  if (config.fault_product == 0) return;
  if (config.arith != ScArith::kSc) Reject(config, "fault_product", "0 with arith = " + TextOf(config, "arith"));
  if (config.gate == ScGate::kTable)
    Reject(config, "fault_product", "0 with gate = table, whose products have no bits");
  if (config.adder != ScAdder::kCounter) {
    Reject(config, "fault_product", "0 with adder = " + TextOf(config, "adder"));
  }
  if (config.acc_group > 0) Reject(config, "fault_product", "0 with acc_group = " + TextOf(config, "acc_group"));
  if (!CountsBits(config)) {
    Reject(config, "fault_product",
           "0 with gate = counts, unless its levels are magnitudes or unipolar and all counts "
           "are in 0..stoc_len");
  }
}

void CheckHardware(const ScConfig& config) {
  CheckAdder(config);
  CheckRegister(config);
  CheckFaults(config);
}

void CopyHardware(const ScConfig& from, ScConfig* to) {
  to->acc_bits = from.acc_bits;
  to->acc_group = from.acc_group;
  to->adder = from.adder;
  to->adder_group = from.adder_group;
  to->fault_product = from.fault_product;
  to->fault_weight = from.fault_weight;
  to->fault_activation = from.fault_activation;
  to->fault_acc = from.fault_acc;
  to->fault_acc_bit = from.fault_acc_bit;
  to->fault_seed = from.fault_seed;
}

// The parameters of a configuration that an arithmetic without streams keeps: quantizer, scopes and the accumulator.
ScConfig WithoutStreams(const ScConfig& config) {
  ScConfig result;
  CopyHardware(config, &result);
  result.stoc_len = 1;
  result.rng_levels = 1;
  result.scramble = ScScramble::kOff;
  result.scramble_masks = 1;
  result.source = ScSource::kSobol;
  result.granularity = config.granularity;
  result.group_a = config.group_a;
  result.group_b = config.group_b;
  result.chunk_d = config.chunk_d;
  result.arith = config.arith;
  return result;
}

// Rows and chunks are scopes of integers and of formats of numbers.
ScConfig ResolveNumbers(const ScConfig& config) {
  ScConfig result = WithoutStreams(config);
  result.granularity = ScGranularity::kPerRow;
  result.group_a = 1;
  result.group_b = 1;
  if (config.arith == ScArith::kMxInt8) result.chunk_d = kMxBlock;
  CheckScopes(result);
  return result;
}

ScConfig ResolveTable(const ScConfig& config) {
  if (config.sc_prec != 8) Reject(config, "sc_prec", "8 with gate = table");
  if (config.table.empty()) Reject(config, "table", "a file, with gate = table");
  ScConfig result = WithoutStreams(config);
  result.gate = ScGate::kTable;
  result.table = config.table;
  result.table_code = config.table_code;
  result.multiplier = config.multiplier;
  if (result.multiplier.get() != nullptr && result.table_code == ScTableCode::kFile) {
    result.table_code = result.multiplier->is_signed ? ScTableCode::kSigned : ScTableCode::kUnsigned;
  }
  if (result.table_code == ScTableCode::kUnsigned) {
    result.mode = ScMode::kUnipolar;
    result.chunk_d = 0;
  }
  CheckScopes(result);
  return result;
}

ScConfig ResolveCounts(const ScConfig& config) {
  constexpr int kLongest = 32767;
  CheckRange("sc_prec", config.sc_prec);
  if (config.counts.empty()) Reject(config, "counts", "a file, with gate = counts");
  if (config.stoc_len == 0) {
    RejectScParameter("stoc_len", "none", Range(1, kLongest) + " with gate = counts, to be given (its cycles)");
  }
  CheckRange("stoc_len", config.stoc_len, 1, kLongest, " with gate = counts");
  ScConfig result = WithoutStreams(config);
  result.gate = ScGate::kCounts;
  result.sc_prec = config.sc_prec;
  result.stoc_len = config.stoc_len;
  result.mode = config.mode;
  result.counts = config.counts;
  result.count_table = config.count_table;
  if (result.count_table.get() != nullptr) {
    CheckCountTable(*result.count_table, config.sc_prec, config.mode == ScMode::kUnipolar, config.counts);
  }
  CheckScopes(result);
  return result;
}

// Requires: stoc_len is resolved.
void ResolveGrid(ScConfig* config, int limit) {
  switch (config->rng_grid) {
    case ScGrid::kFull:
      if (config->rng_levels == 0) config->rng_levels = limit;
      return;
    case ScGrid::kPow2:
      if (config->rng_levels != 0) Reject(*config, "rng_levels", "nothing with rng_grid = pow2");
      config->rng_levels = static_cast<int>(std::bit_floor(static_cast<unsigned>(config->stoc_len)));
      config->rng_grid = ScGrid::kFull;
      return;
  }
}

}  // namespace

ScConfig Resolve(const ScConfig& config) {
  CheckHardware(config);
  if (IntBits(config.arith) > 0 || IsNumberFormat(config.arith)) return ResolveNumbers(config);
  if (config.gate == ScGate::kTable) return ResolveTable(config);
  if (config.gate == ScGate::kCounts) return ResolveCounts(config);
  if (!config.table.empty()) Reject(config, "table", "nothing, unless gate = table");
  if (!config.counts.empty()) Reject(config, "counts", "nothing, unless gate = counts");
  ScConfig result = config;
  result.source.Follow(config.gate);
  CheckRange("sc_prec", config.sc_prec);
  CheckScopes(config);
  const int limit = 1 << (config.halve ? config.sc_prec - 1 : config.sc_prec);
  const std::string why = config.halve ? " with halve = 1" : "";
  if (result.stoc_len == 0) result.stoc_len = limit;
  CheckRange("stoc_len", result.stoc_len, 1, limit, why);
  ResolveGrid(&result, limit);
  CheckRange("rng_levels", result.rng_levels, 1, limit, why);
  const int full = 1 << config.sc_prec;
  const ScParameter& masks = FindScParameter("scramble_masks");
  if (config.scramble_masks < masks.low || config.scramble_masks > masks.high ||
      !std::has_single_bit(static_cast<unsigned>(config.scramble_masks))) {
    Reject(config, "scramble_masks", std::string(masks.range));
  }
  // Masks repeat with period 2^p; a shorter precision takes the default of 8 bits down with it.
  if (config.scramble_masks > full) result.scramble_masks = full;
  CheckSource(result);
  return result;
}

}  // namespace stoch
