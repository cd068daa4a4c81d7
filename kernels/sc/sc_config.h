// The parameters of one SC matmul, their defaults and the rules between them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stoch {

enum class ScMode : uint8_t { kBipolar, kUnipolar };
enum class ScGranularity : uint8_t { kPerTensor, kPerRow, kPerHead };
enum class ScScramble : uint8_t { kBitrev, kCounter, kRandom, kOff };
enum class ScSource : uint8_t { kSobol, kLfsr, kVanDerCorput, kRandom, kList };
// kEnabled: side b's stream advances only in cycles that side a enables (the published scheme, the default).
// kAnd:     one AND gate of two free-running streams. kXnor: one XNOR gate of two bipolar-coded streams.
enum class ScGate : uint8_t { kEnabled, kAnd, kXnor };
// Where an LFSR stands when a product begins. kProduct: always at its seed. kMask: as many steps further as the index
// of the product's mask (a free-running register seen by successive dimensions), instead of xor scrambling.
enum class ScRestart : uint8_t { kProduct, kMask };

// What:   one configuration of the SC arithmetic (names and defaults: docs/sc_arithmetic.md#1-parameters).
// Units:  stoc_len in cycles, rng_levels in comparator levels; 0 = the default for sc_prec and halve.
struct ScConfig {
  int sc_prec = 8;
  int stoc_len = 0;
  int rng_levels = 0;
  bool halve = false;
  ScMode mode = ScMode::kBipolar;
  ScGranularity granularity = ScGranularity::kPerRow;
  int64_t group_a = 1;
  int64_t group_b = 1;
  int64_t chunk_d = 0;
  ScScramble scramble = ScScramble::kBitrev;
  int scramble_masks = 64;
  ScGate gate = ScGate::kEnabled;
  ScSource source = ScSource::kSobol;
  uint64_t source_seed = 1;  // LFSR start states, random sources and random scrambling
  ScRestart lfsr_restart = ScRestart::kProduct;
  std::vector<int> source_list_a;  // kList: at least stoc_len values in 0..2^p-1
  std::vector<int> source_list_b;

  friend bool operator==(const ScConfig&, const ScConfig&) = default;
};

// What:   the configuration with every 0 replaced by its default, all rules checked.
// Errors: InvalidInput naming parameter, value and what is allowed.
ScConfig Resolve(const ScConfig& config);

// What:   sets one parameter by its spec name ("stoc_len", "halve", "scramble", ...) from text.
// Errors: InvalidInput for an unknown name (listing the known ones) or a value that does not parse.
void SetScParameter(ScConfig& config, std::string_view name, std::string_view value);

// "stoc_len=128,halve=1,...": the parameters that differ from ScConfig{}, in a fixed order; parses back to the same.
std::string Describe(const ScConfig& config);

}  // namespace stoch
