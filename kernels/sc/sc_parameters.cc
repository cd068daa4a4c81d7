// SPDX-License-Identifier: Apache-2.0
#include "kernels/sc/sc_parameters.h"

#include <array>
#include <charconv>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/sc/parameter_rows.h"

namespace stoch {
namespace {

using enum ScParameterUse;

template <typename E>
constexpr ScChoice Choice(std::string_view name, E value, std::string_view help) {
  return {name, static_cast<int>(value), help};
}

constexpr std::array kModes = {
    Choice("bipolar", ScMode::kBipolar, "symmetric: a sign and a magnitude"),
    Choice("unipolar", ScMode::kUnipolar, "asymmetric: levels above a zero point"),
};
constexpr std::array kGranularities = {
    Choice("per_tensor", ScGranularity::kPerTensor, "one scale for the whole operand"),
    Choice("per_row", ScGranularity::kPerRow, "one for each row, or group of rows"),
    Choice("per_head", ScGranularity::kPerHead, "one for each slice of a 3-D operand; bipolar, no linear of a model"),
};
constexpr std::array kScrambles = {
    Choice("bitrev", ScScramble::kBitrev, "dimension d is xored with the reversed bits of d mod scramble_masks"),
    Choice("counter", ScScramble::kCounter, "with d mod scramble_masks"),
    Choice("random", ScScramble::kRandom, "with random bits of (source_seed, d mod scramble_masks)"),
    Choice("off", ScScramble::kOff, "every dimension sees the same values"),
};
constexpr std::array kGates = {
    Choice("enabled", ScGate::kEnabled, "side b's stream advances only in cycles that side a enables (uSystolic)"),
    Choice("and", ScGate::kAnd, "one AND gate of two free-running streams"),
    Choice("xnor", ScGate::kXnor, "one XNOR gate of two bipolar-coded streams; linears only, without halve"),
    Choice("table", ScGate::kTable, "no streams: a multiplier given by `table`; sc_prec=8"),
    Choice("counts", ScGate::kCounts, "your own counts for each mask and pair of levels, given by `counts`"),
};
constexpr std::array kAriths = {
    Choice("sc", ScArith::kSc, "stochastic computing"),
    Choice("fp", ScArith::kFp, "the exact fp32 path"),
    Choice("int2", ScArith::kInt2, "integers of 2 bits, a scale for each row and chunk of 128"),
    Choice("int3", ScArith::kInt3, "of 3 bits"),
    Choice("int4", ScArith::kInt4, "of 4 bits"),
    Choice("int5", ScArith::kInt5, "of 5 bits"),
    Choice("int6", ScArith::kInt6, "of 6 bits"),
    Choice("int7", ScArith::kInt7, "of 7 bits"),
    Choice("int8", ScArith::kInt8, "of 8 bits"),
    Choice("fp8_e4m3", ScArith::kFp8E4m3, "OCP E4M3, a scale for each row and chunk, exact sums"),
    Choice("mxint8", ScArith::kMxInt8, "OCP MXINT8: 8 bits and a power of two for each block of 32 dimensions; not av"),
};
constexpr std::array kTableCodes = {
    Choice("file", ScTableCode::kFile, "as the file's form says"),
    Choice("signed", ScTableCode::kSigned, "the products of signed operands -127..127"),
    Choice("sign_magnitude", ScTableCode::kSignMagnitude, "of magnitudes 0..127; the signs are applied outside"),
    Choice("unsigned", ScTableCode::kUnsigned,
           "of unsigned operands 0..255 with a zero point; linears and LM head only"),
};
constexpr std::array kTableOrders = {
    Choice("file", ScTableOrder::kFile, "as the file's form says"),
    Choice("byte", ScTableOrder::kByte, "0..127, then -128..-1"),
    Choice("numeric", ScTableOrder::kNumeric, "-128..127"),
};
constexpr std::array kSources = {
    Choice("sobol", ScSource::kSobol, "two dimensions of a Sobol sequence, the pair of the published simulator"),
    Choice("lfsr", ScSource::kLfsr, "maximal linear feedback shift registers with reciprocal polynomials"),
    Choice("vdc", ScSource::kVanDerCorput, "van der Corput sequences of bases 2 and 3 (the 2-D Halton pair)"),
    Choice("random", ScSource::kRandom, "pseudo-random numbers of source_seed"),
    Choice("list", ScSource::kList, "your own: source_list_a and source_list_b"),
};
constexpr std::array kAdders = {
    Choice("counter", ScAdder::kCounter, "every bit of every product is counted"),
    Choice("or", ScAdder::kOr, "one OR gate for the bits of adder_group dimensions, one more for negative products"),
    Choice("mux", ScAdder::kMux, "in each cycle the bit of one of adder_group dimensions, counted adder_group times"),
    Choice("apc", ScAdder::kApc, "an approximate parallel counter: pairs meet in AND and OR gates in turn, worth 2"),
};
constexpr std::array kGrids = {
    Choice("full", ScGrid::kFull, "as many levels as sc_prec and halve allow"),
    Choice("pow2", ScGrid::kPow2, "the largest power of two up to stoc_len, or up to each length of mixed ones"),
};
constexpr std::array kRestarts = {
    Choice("product", ScRestart::kProduct, "at its start state in every product"),
    Choice("mask", ScRestart::kMask, "as many steps further as d mod scramble_masks; needs scramble=off"),
};

using namespace parameters;  // NOLINT(google-build-using-namespace)

void SetGate(ScConfig& config, const ScParameter& parameter, std::string_view text) {
  SetChoice<&ScConfig::gate>(config, parameter, text);
  config.source.Follow(config.gate);
}

constexpr ScParameter Gate(ScParameter parameter) {
  parameter = OneOf<&ScConfig::gate>(kGates, parameter);
  parameter.set = SetGate;
  return parameter;
}
constexpr std::string_view kFullLength = "2^sc_prec, or 2^(sc_prec-1) with halve";
constexpr std::string_view kRates = "0 or 1e-12..1";
constexpr std::string_view kFullRange = "1..2^sc_prec, or 1..2^(sc_prec-1) with halve";

constexpr std::array kParameters = {
    Integer<&ScConfig::sc_prec>({.name = "sc_prec", .low = 3, .high = 8, .help = "Bits p of the quantizer."}),
    Flag<&ScConfig::halve>({.name = "halve",
                            .alias = "halve_bipolar_stoc_len",
                            .help = "Sign-magnitude cycle halving (uSystolic, HPCA 2022): a bipolar magnitude has "
                                    "p - 1 bits, so half of the cycles show every level. Bipolar only."}),
    Integer<&ScConfig::stoc_len>({.name = "stoc_len",
                                  .low = 1,
                                  .high = 32767,
                                  .range = "1..2^sc_prec, or 1..2^(sc_prec-1) with halve, or 1..32767 with gate=counts",
                                  .default_follows = true,
                                  .default_text = kFullLength,
                                  .help = "Stream length L in cycles. Time and hardware cost are proportional to it; "
                                          "the error of a count shrinks with it."}),
    Integer<&ScConfig::rng_levels>({.name = "rng_levels",
                                    .low = 1,
                                    .high = 256,
                                    .range = kFullRange,
                                    .default_follows = true,
                                    .default_text = kFullLength,
                                    .help = "Comparator grid R: how many different values a source shows. A short "
                                            "stream may gain from a short grid: stoc_len=32,rng_levels=32, or "
                                            "rng_grid=pow2."}),
    OneOf<&ScConfig::rng_grid>(kGrids,
                               {.name = "rng_grid", .help = "The grid of a stream where rng_levels is not given."}),
    OneOf<&ScConfig::mode>(kModes, {.name = "mode", .use = kLinears, .help = "The quantizer."}),
    OneOf<&ScConfig::granularity>(
        kGranularities, {.name = "granularity", .use = kDecoderLinears, .help = "Which numbers share a scale."}),
    Integer<&ScConfig::group_a>({.name = "group_a",
                                 .use = kDecoderLinears,
                                 .low = 1,
                                 .high = INT32_MAX,
                                 .help = "Consecutive rows of activations (tokens) that share a scale; per_row only. "
                                         "Above 1 a token's result depends on what else is in the pass."}),
    Integer<&ScConfig::group_b>({.name = "group_b",
                                 .use = kLinears,
                                 .low = 1,
                                 .high = INT32_MAX,
                                 .help = "Consecutive rows of the weight (output features) that share a scale; per_row "
                                         "only."}),
    Integer<&ScConfig::chunk_d>({.name = "chunk_d",
                                 .use = kLinears,
                                 .low = 0,
                                 .high = INT32_MAX,
                                 .help =
                                     "Input features a chunk: each chunk has row scales of its own. 0 is one chunk. "
                                     "Bipolar per_row only."}),
    OneOf<&ScConfig::scramble>(
        kScrambles, {.name = "scramble", .help = "The mask that makes dimensions see different values of one source."}),
    Integer<&ScConfig::scramble_masks>(
        {.name = "scramble_masks",
         .low = 1,
         .high = 256,
         .range = "a power of two in 1..256",
         .help = "Number of different masks; more than 2^sc_prec are the same as that."}),
    Gate({.name = "gate", .help = "What multiplies two streams."}),
    OneOf<&ScConfig::source>(
        kSources,
        {.name = "source",
         .default_follows = true,
         .default_text = "sobol with gate=enabled, vdc with gate=and and gate=xnor",
         .help = "Where the comparators' numbers come from. A gate of free-running streams multiplies only streams "
                 "that are not correlated: sobol goes with gate=enabled (the mean correlation of its pair, SCC, is "
                 "0.83 at 128 cycles), vdc with gate=and and gate=xnor (0.02). An error of gate=xnor near 0 is one of "
                 "the full range, so models fail with it at any source that was tried.",
         .always_named = [](const ScConfig& config) { return IsFreeRunning(config.gate); }}),
    Integer<&ScConfig::source_seed>({.name = "source_seed",
                                     .low = 0,
                                     .high = -1,
                                     .range = "0..2^64-1",
                                     .help = "Seed of source=lfsr, source=random and scramble=random."}),
    Optional<&ScConfig::source_seed_b>(
        {.name = "source_seed_b",
         .low = 0,
         .high = -1,
         .range = "0..2^64-1",
         .default_follows = true,
         .default_text = "follows source_seed",
         .help = "Seed of side b (weights) of source=lfsr and source=random, where it does not follow from "
                 "source_seed."}),
    OneOf<&ScConfig::lfsr_restart>(
        kRestarts,
        {.name = "lfsr_restart", .help = "Where a register stands when a product begins; source=lfsr only."}),
    List<&ScConfig::lfsr_taps>(
        {.name = "lfsr_taps",
         .range = "stages of a register of period 2^sc_prec-1, the highest is sc_prec, as 8:6:5:4",
         .default_text = "3:2, 4:3, 5:3, 6:5, 7:6, 8:6:5:4 for sc_prec = 3..8",
         .help = "Stages that feed back, of side a; source=lfsr only."}),
    List<&ScConfig::lfsr_taps_b>({.name = "lfsr_taps_b",
                                  .range = "as lfsr_taps",
                                  .default_text = "the reciprocal of lfsr_taps",
                                  .help = "The same of side b; source=lfsr only."}),
    List<&ScConfig::source_list_a>({.name = "source_list_a",
                                    .range = "at least stoc_len values in 0..2^sc_prec-1, as 0:5:3",
                                    .help = "Values of side a (activations) for source=list, cycle by cycle."}),
    List<&ScConfig::source_list_b>({.name = "source_list_b",
                                    .range = "at least stoc_len values in 0..2^sc_prec-1, as 0:5:3",
                                    .help = "Values of side b (weights) for source=list, cycle by cycle."}),
    OneOf<&ScConfig::arith>(
        kAriths, {.name = "arith", .help = "What the operator computes in. Integers use no stream parameter."}),
    Text<&ScConfig::table>({.name = "table",
                            .range = "a file, with gate=table",
                            .help = "The 65536 products of your own 8-bit multiplier: .h, .bin, .txt or .npy."}),
    Integer<&ScConfig::acc_bits>(
        {.name = "acc_bits",
         .low = 0,
         .high = 32,
         .range = "0 or 2..32",
         .help =
             "Bits of the accumulator's register, two's complement: a sum beyond it stays at its end. 0: as many as "
             "the sum takes."}),
    Integer<&ScConfig::acc_group>({.name = "acc_group",
                                   .low = 0,
                                   .high = 1 << 20,
                                   .help = "Dimensions after which the register is clamped, counted in each chunk; 0: "
                                           "once, at the end of the chunk. Needs acc_bits."}),
    OneOf<&ScConfig::adder>(kAdders, {.name = "adder", .help = "What sums the bits of a chunk before a counter."}),
    Integer<&ScConfig::adder_group>({.name = "adder_group",
                                     .low = 0,
                                     .high = 256,
                                     .range = "1..256 with adder=or and adder=mux, even 2..256 with adder=apc",
                                     .help = "Consecutive dimensions of a chunk that share a gate of the adder."}),
    Rate<&ScConfig::fault_product>({.name = "fault_product",
                                    .range = kRates,
                                    .help = "The rate at which output bits of product gates flip. Streams only."}),
    Rate<&ScConfig::fault_weight>(
        {.name = "fault_weight",
         .range = kRates,
         .help = "The rate at which bits of stored codes of side b flip: weights, and the cached k and v of qk and "
                 "av. Scales are kept."}),
    Rate<&ScConfig::fault_activation>(
        {.name = "fault_activation",
         .range = kRates,
         .help = "The rate at which bits of codes of side a flip, for each token. Operators with a common input read "
                 "the same buffer."}),
    RegisterRate(
        {.name = "fault_acc",
         .range = "RATE or RATE:BIT: 0 or 1e-12..1, and a bit below acc_bits",
         .help = "The rate at which bits of the accumulator's register flip, or that one bit. Needs acc_bits."}),
    Integer<&ScConfig::fault_seed>({.name = "fault_seed",
                                    .low = 0,
                                    .high = -1,
                                    .range = "0..2^64-1",
                                    .help = "Seed of all faults. They depend on the seed, layer, operator, token and "
                                            "output, so they are the same on every device and in every batch."}),
    Text<&ScConfig::counts>(
        {.name = "counts",
         .range = "a file, with gate=counts",
         .help = "Counts of your own product, [masks, a, b] or [a, b], as .npy of int8, int16 or int32: 2^(sc_prec-1) "
                 "magnitudes a side, or 2^sc_prec codes q + Q (levels with mode=unipolar). stoc_len is to be given."}),
    OneOf<&ScConfig::table_code>(kTableCodes, {.name = "table_code", .help = "How operands index the table."}),
    OneOf<&ScConfig::table_order>(kTableOrders, {.name = "table_order", .help = "Operand order of a signed table."}),
};

}  // namespace

void RejectScParameter(std::string_view name, const std::string& value, const std::string& allowed) {
  throw InvalidInput("SC parameter " + std::string(name) + " = " + value + ": allowed is " + allowed);
}

std::span<const ScParameter> ScParameters() { return kParameters; }

const ScParameter& FindScParameter(std::string_view name) {
  std::string known;
  for (const ScParameter& parameter : kParameters) {
    if (name == parameter.name || (!parameter.alias.empty() && name == parameter.alias)) return parameter;
    known += (known.empty() ? "" : ", ") + std::string(parameter.name);
  }
  throw InvalidInput("unknown SC parameter '" + std::string(name) + "': known are " + known);
}

ScConfig WithIdealHardware(ScConfig config) {
  const ScConfig defaults;
  for (const ScParameter& parameter : kParameters) {
    if (IsHardware(parameter)) parameter.set(config, parameter, parameter.get(defaults, parameter));
  }
  return config;
}

void SetScParameter(ScConfig& config, std::string_view name, std::string_view value) {
  const ScParameter& parameter = FindScParameter(name);
  parameter.set(config, parameter, value);
}

std::string Describe(const ScConfig& config) {
  const ScConfig defaults;
  std::string text;
  for (const ScParameter& parameter : kParameters) {
    const std::string value = parameter.get(config, parameter);
    const bool named = parameter.always_named != nullptr && parameter.always_named(config);
    if (value == parameter.get(defaults, parameter) && !named) continue;
    if (!text.empty()) text += ',';
    text += std::string(parameter.name) + '=' + value;
  }
  return text;
}

}  // namespace stoch
