// SPDX-License-Identifier: Apache-2.0
#include "research/vectors/stream_vectors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/math/quantize.h"
#include "kernels/sc/number_source.h"
#include "kernels/sc/sc_parameters.h"
#include "loader/json_text.h"
#include "research/products/operator_digest.h"

namespace stoch {
namespace {

// One number a line.
std::string Line(uint64_t value, int bits) { return fmt::format("{:0{}x}\n", value, (bits + 3) / 4); }
std::string Line(int32_t value) { return Line(static_cast<uint32_t>(value), 32); }
std::string Line(float value) { return Line(std::bit_cast<uint32_t>(value), 32); }

// Cycle 0 is bit 0, the last digit's lowest.
std::string Line(const std::vector<bool>& word) {
  std::string digits;
  for (size_t low = (word.size() + 3) / 4 * 4; low > 0; low -= 4) {
    int digit = 0;
    for (size_t i = 4; i > 0; --i) {
      const size_t at = low - 4 + i - 1;
      digit = 2 * digit + (at < word.size() && word[at] ? 1 : 0);
    }
    digits += "0123456789abcdef"[digit];
  }
  return digits + '\n';
}

std::vector<int> Boundaries(const ScOperator& op) {
  return LevelBoundaries(op.levels, op.code == ScCode::kOffset ? 2 * op.q_max : op.q_max, op.config.rng_levels);
}

// Index of a level in the boundaries.
int IndexOf(const ScOperator& op, int level) {
  switch (op.code) {
    case ScCode::kSignMagnitude: return std::abs(level);
    case ScCode::kOffset: return level + op.q_max;
    case ScCode::kAsymmetric: break;
  }
  return level;
}

// A code as a register of sc_prec bits has it.
uint64_t WordOf(const ScOperator& op, int level) {
  const int sign = 1 << (op.config.sc_prec - 1);
  return static_cast<uint64_t>(IndexOf(op, level) | (op.code == ScCode::kSignMagnitude && level < 0 ? sign : 0));
}

const char* GateName(ScGate gate) {
  switch (gate) {
    case ScGate::kEnabled: return "enabled";
    case ScGate::kAnd: return "and";
    case ScGate::kXnor: return "xnor";
    case ScGate::kTable: return "table";
    case ScGate::kCounts: return "counts";
  }
  return "";
}

void Check(const VectorOperands& operands) {
  const ScConfig& config = operands.op->config;
  if (config.arith != ScArith::kSc || !HasSource(config.gate)) {
    throw InvalidInput("vectors: " + operands.name +
                       " multiplies no streams: allowed is arith = sc and a gate of streams");
  }
  if (config.adder != ScAdder::kCounter) {
    throw InvalidInput("vectors: " + operands.name + " has an adder of gates: allowed is adder = counter");
  }
  CheckVectorProducts(static_cast<int64_t>(operands.rows.size()), static_cast<int64_t>(operands.outputs.size()),
                      operands.dims);
}

std::string Meta(const VectorOperands& operands, const std::string& version) {
  const ScOperator& op = *operands.op;
  const bool has_signs = op.code == ScCode::kSignMagnitude;
  const int gate = op.config.gate == ScGate::kEnabled ? 0 : op.config.gate == ScGate::kAnd ? 1 : 2;
  const nlohmann::ordered_json meta = {{"schema", "stoch-vectors-v1"},
                                       {"version", version},
                                       {"config", operands.config},
                                       {"operator", operands.name},
                                       {"operator_config", Describe(op.config)},
                                       {"operator_sha256", OperatorSha256(op)},
                                       {"p", op.config.sc_prec},
                                       {"L", op.config.stoc_len},
                                       {"M", op.masks},
                                       {"D", operands.dims},
                                       {"chunk_d", operands.chunk_d},
                                       {"gate", GateName(op.config.gate)},
                                       {"signs", has_signs},
                                       {"gain", op.gain},
                                       {"rows", operands.rows},
                                       {"outputs", operands.outputs},
                                       {"bench",  // parameters of examples/rtl/sc_mac_tb.sv
                                        {{"GATE", gate},
                                         {"BITS", op.config.sc_prec},
                                         {"CODE_BITS", op.config.sc_prec},
                                         {"SIGNS", has_signs ? 1 : 0},
                                         {"L", op.config.stoc_len},
                                         {"M", op.masks},
                                         {"LEVELS", op.levels},
                                         {"D", operands.dims},
                                         {"CHUNK", operands.chunk_d},
                                         {"CHUNKS", operands.chunks()},
                                         {"ROWS", operands.rows.size()},
                                         {"OUTPUTS", operands.outputs.size()}}}};
  return JsonText(meta, 1) + '\n';
}

// bit, count, acc and y.
void AddProducts(const VectorOperands& operands, std::map<std::string, std::string>* files) {
  const ScOperator& op = *operands.op;
  const GateStreams streams(op);
  const bool is_xnor = op.config.gate == ScGate::kXnor;
  const auto rows = static_cast<int64_t>(operands.rows.size()), outputs = static_cast<int64_t>(operands.outputs.size());
  for (int64_t n = 0; n < rows; ++n) {
    for (int64_t m = 0; m < outputs; ++m) {
      float y = 0.0f;
      for (int64_t c = 0; c < operands.chunks(); ++c) {
        int32_t acc = 0;
        for (int64_t d = c * operands.chunk_d; d < std::min(operands.dims, (c + 1) * operands.chunk_d); ++d) {
          const int a = operands.codes_a[static_cast<size_t>(n * operands.dims + d)];
          const int b = operands.codes_b[static_cast<size_t>(m * operands.dims + d)];
          const std::vector<bool> bits = streams.Gate(d - c * operands.chunk_d, a, b);
          const auto ones = static_cast<int32_t>(std::count(bits.begin(), bits.end(), true));
          int32_t count = is_xnor ? 2 * ones - op.config.stoc_len : ones;
          if (op.code == ScCode::kSignMagnitude && (a < 0) != (b < 0)) count = -count;
          (*files)["bit.hex"] += Line(bits);
          (*files)["count.hex"] += Line(count);
          acc += count;
        }
        (*files)["acc.hex"] += Line(acc);
        const float scale_a = operands.scale_a[static_cast<size_t>(n * operands.chunks() + c)];
        const float scale_b = operands.scale_b[static_cast<size_t>(m * operands.chunks() + c)];
        y = y + BipolarProduct(acc, op.gain, scale_a, scale_b);
      }
      if (op.code != ScCode::kAsymmetric) (*files)["y.hex"] += Line(y);
    }
  }
}

}  // namespace

GateStreams::GateStreams(const ScOperator& op) : op_(op), boundaries_(Boundaries(op)) {
  for (int mask = 0; mask < op.masks; ++mask) {
    numbers_[0].push_back(ComparatorValues(op.config, ScSide::kA, mask));
    numbers_[1].push_back(ComparatorValues(op.config, ScSide::kB, mask));
  }
}

int GateStreams::BoundOf(int level) const { return boundaries_[static_cast<size_t>(IndexOf(op_, level))]; }

std::vector<bool> GateStreams::Side(ScSide side, int64_t d, int level) const {
  std::vector<bool> bits;
  const auto mask = static_cast<size_t>(d % op_.masks);
  for (const int number : numbers_[side == ScSide::kA ? 0 : 1][mask]) bits.push_back(number < BoundOf(level));
  return bits;
}

std::vector<bool> GateStreams::Gate(int64_t d, int a, int b) const {
  const std::vector<bool> on_a = Side(ScSide::kA, d, a), on_b = Side(ScSide::kB, d, b);
  std::vector<bool> bits;
  size_t next = 0;  // of side b, which the enabled gate advances while side a is on
  for (size_t t = 0; t < on_a.size(); ++t) {
    const bool other = on_b[op_.config.gate == ScGate::kEnabled ? next : t];
    bits.push_back(op_.config.gate == ScGate::kXnor ? on_a[t] == other : on_a[t] && other);
    next += on_a[t] ? 1 : 0;
  }
  return bits;
}

void CheckVectorProducts(int64_t rows, int64_t outputs, int64_t dims) {
  const int64_t products = rows * outputs * dims;
  if (products <= kMostVectorProducts) return;
  throw InvalidInput(fmt::format("vectors: {} rows, {} outputs and {} dimensions are {} products: allowed are {}", rows,
                                 outputs, dims, products, kMostVectorProducts));
}

std::map<std::string, std::string> VectorFiles(const VectorOperands& operands, const std::string& version) {
  Check(operands);
  const ScOperator& op = *operands.op;
  const int p = op.config.sc_prec;
  std::map<std::string, std::string> files;
  files["meta.json"] = Meta(operands, version);
  for (int mask = 0; mask < op.masks; ++mask) {
    for (const int number : ComparatorValues(op.config, ScSide::kA, mask)) {
      files["rng_a.hex"] += Line(static_cast<uint64_t>(number), p);
    }
    for (const int number : ComparatorValues(op.config, ScSide::kB, mask)) {
      files["rng_b.hex"] += Line(static_cast<uint64_t>(number), p);
    }
  }
  for (const int bound : Boundaries(op)) files["bound.hex"] += Line(static_cast<uint64_t>(bound), p + 1);
  for (const int32_t level : operands.codes_a) files["a.hex"] += Line(WordOf(op, level), p);
  for (const int32_t level : operands.codes_b) files["b.hex"] += Line(WordOf(op, level), p);
  for (const float scale : operands.scale_a) files["scale_a.hex"] += Line(scale);
  for (const float scale : operands.scale_b) files["scale_b.hex"] += Line(scale);
  AddProducts(operands, &files);
  return files;
}

}  // namespace stoch
