// SPDX-License-Identifier: Apache-2.0
// The parameters of one SC matmul, their defaults and the rules between them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/sc/count_table.h"
#include "kernels/sc/multiplier_table.h"

namespace stoch {

enum class ScMode : uint8_t { kBipolar, kUnipolar };
enum class ScGranularity : uint8_t { kPerTensor, kPerRow, kPerHead };
enum class ScScramble : uint8_t { kBitrev, kCounter, kRandom, kOff };
enum class ScSource : uint8_t { kSobol, kLfsr, kVanDerCorput, kRandom, kList };
// kEnabled: side b's stream advances only in cycles that side a enables (the published scheme, the default).
// kAnd:     one AND gate of two free-running streams. kXnor: one XNOR gate of two bipolar-coded streams.
// kTable:   no streams: a multiplier given as a table of its products. kCounts: the counts themselves are given.
enum class ScGate : uint8_t { kEnabled, kAnd, kXnor, kTable, kCounts };
// Arithmetic of an operator: SC, its exact fp32 path, integers of so many bits, or a format of 8 bits a number
// (kernels/math/number_formats.h). Only SC has streams.
enum class ScArith : uint8_t { kSc, kFp, kInt2, kInt3, kInt4, kInt5, kInt6, kInt7, kInt8, kFp8E4m3, kMxInt8 };

// Bits of an integer arithmetic, 0 of the others.
constexpr int IntBits(ScArith arith) {
  if (arith < ScArith::kInt2 || arith > ScArith::kInt8) return 0;
  return static_cast<int>(arith) - static_cast<int>(ScArith::kInt2) + 2;
}
// Whether numbers are in a format of their own, which has neither levels nor hardware of SC.
constexpr bool IsNumberFormat(ScArith arith) { return arith == ScArith::kFp8E4m3 || arith == ScArith::kMxInt8; }
// Where an LFSR stands when a product begins. kProduct: always at its seed. kMask: as many steps further as the index
// of the product's mask (a free-running register seen by successive dimensions), instead of xor scrambling.
enum class ScRestart : uint8_t { kProduct, kMask };

// Which grid a comparator has where rng_levels is not given: the largest for sc_prec and halve, or the largest power of
// two that the stream has cycles for.
enum class ScGrid : uint8_t { kFull, kPow2 };

// How the products of a chunk are summed: by a binary counter of every bit, or gates that merge the bits of adder_group
// dimensions before it (docs/sc_arithmetic.md).
enum class ScAdder : uint8_t { kCounter, kOr, kMux, kApc };

// Gates whose streams a number source makes.
constexpr bool HasSource(ScGate gate) { return gate != ScGate::kTable && gate != ScGate::kCounts; }
// Gates of two streams that run freely: they multiply only streams that are not correlated.
constexpr bool IsFreeRunning(ScGate gate) { return gate == ScGate::kAnd || gate == ScGate::kXnor; }
// The Sobol pair is one sequence twice in its first cycles, which a free-running gate cannot tell from equal streams.
constexpr ScSource DefaultSource(ScGate gate) {
  return IsFreeRunning(gate) ? ScSource::kVanDerCorput : ScSource::kSobol;
}

// A number source: the one that was given, else the gate's default. Equal if the sources are.
class ScSourceChoice {
 public:
  constexpr ScSourceChoice() = default;
  constexpr ScSourceChoice(ScSource given) : source_(given), given_(true) {}  // NOLINT(google-explicit-constructor)
  constexpr operator ScSource() const { return source_; }                     // NOLINT(google-explicit-constructor)
  constexpr bool given() const { return given_; }
  constexpr void Follow(ScGate gate) {
    if (!given_) source_ = DefaultSource(gate);
  }
  friend constexpr bool operator==(const ScSourceChoice& a, const ScSourceChoice& b) { return a.source_ == b.source_; }
  friend constexpr bool operator==(const ScSourceChoice& a, ScSource b) { return a.source_ == b; }

 private:
  ScSource source_ = ScSource::kSobol;
  bool given_ = false;
};

// One configuration of the SC arithmetic (names and defaults: docs/sc_arithmetic.md#1-parameters).
// Units:  stoc_len in cycles, rng_levels in comparator levels; 0 = the default for sc_prec, halve and rng_grid.
struct ScConfig {
  int sc_prec = 8;
  int stoc_len = 0;
  int rng_levels = 0;
  ScGrid rng_grid = ScGrid::kFull;  // kFull once resolved: rng_levels says it then
  bool halve = false;
  ScMode mode = ScMode::kBipolar;
  ScGranularity granularity = ScGranularity::kPerRow;
  int64_t group_a = 1;
  int64_t group_b = 1;
  int64_t chunk_d = 0;
  ScScramble scramble = ScScramble::kBitrev;
  int scramble_masks = 64;
  ScGate gate = ScGate::kEnabled;
  ScSourceChoice source;                  // follows the gate
  uint64_t source_seed = 1;               // LFSR start states, random sources and random scrambling
  std::optional<uint64_t> source_seed_b;  // seed of side b; none: follows source_seed
  ScRestart lfsr_restart = ScRestart::kProduct;
  std::vector<int> lfsr_taps;      // stages that feed back, the highest is sc_prec; none: those of XAPP052
  std::vector<int> lfsr_taps_b;    // none: the reciprocal of lfsr_taps
  std::vector<int> source_list_a;  // kList: at least stoc_len values in 0..2^p-1
  std::vector<int> source_list_b;
  ScArith arith = ScArith::kSc;
  // The accumulator: bits of its register (0: as many as it takes), dimensions after which it is clamped (0: the chunk).
  int acc_bits = 0;
  int acc_group = 0;
  ScAdder adder = ScAdder::kCounter;
  int adder_group = 0;
  // Rates of bits that flip: of every product gate, of stored codes of either side, of the register (or one bit of it).
  double fault_product = 0;
  double fault_weight = 0;
  double fault_activation = 0;
  double fault_acc = 0;
  int fault_acc_bit = -1;
  uint64_t fault_seed = 1;
  std::string table;  // gate=table: its file until that is read, then the first 16 digits of the sha256 of `multiplier`
  ScTableCode table_code = ScTableCode::kFile;
  ScTableOrder table_order = ScTableOrder::kFile;
  MultiplierTablePtr multiplier;
  std::string counts;  // gate=counts: its file until it is read, then 16 digits of the sha256 of `count_table`
  CountTablePtr count_table;

  friend bool operator==(const ScConfig&, const ScConfig&) = default;
};

// Whether a product's faults depend on the row of activations, and not on the weight alone.
constexpr bool DrawsFaultsByRow(const ScConfig& config) {
  return config.fault_product > 0 || config.fault_activation > 0 || config.fault_acc > 0;
}
constexpr bool HasFaults(const ScConfig& config) { return DrawsFaultsByRow(config) || config.fault_weight > 0; }
// Whether an accumulator is the sum of its counts.
constexpr bool HasPlainSums(const ScConfig& config) {
  return config.acc_bits == 0 && config.adder == ScAdder::kCounter && config.fault_product == 0 &&
         config.fault_acc == 0;
}

// The configuration with every 0 replaced by its default, all rules checked.
// Errors: InvalidInput naming parameter, value and what is allowed.
ScConfig Resolve(const ScConfig& config);

// Sets one parameter by its spec name ("stoc_len", "halve", "scramble", ...) from text.
// Errors: InvalidInput for an unknown name (listing the known ones) or a value that does not parse.
void SetScParameter(ScConfig& config, std::string_view name, std::string_view value);

// "stoc_len=128,halve=1,...": the parameters that differ from ScConfig{}, in a fixed order; parses back to the same.
std::string Describe(const ScConfig& config);

}  // namespace stoch
