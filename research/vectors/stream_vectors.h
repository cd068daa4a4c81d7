// SPDX-License-Identifier: Apache-2.0
// Test vectors of products in streams: numbers, bounds, codes, every bit, counts and sums, as text files that a Verilog
// bench reads (docs/hardware.md#vectors-for-rtl).
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kernels/sc/number_source.h"
#include "kernels/sc/sc_operator.h"

namespace stoch {

// Operands of `rows` x `outputs` dot products of D dimensions, as codes.
struct VectorOperands {
  ScOperatorPtr op;
  std::string name;                       // "0.q_proj", "1.av.h2"
  std::string config;                     // of the model
  std::vector<int64_t> rows, outputs;     // where they are in the operator
  int64_t dims = 0;                       // D
  int64_t chunk_d = 0;                    // dimensions of a chunk: D where there is one
  std::vector<int32_t> codes_a, codes_b;  // levels, [rows][D] and [outputs][D], with faults of codes
  std::vector<float> scale_a, scale_b;    // [rows][chunks], [outputs][chunks]

  int64_t chunks() const { return (dims + chunk_d - 1) / chunk_d; }
};

// The streams of an operator, cycle by cycle. Requires: a gate of streams.
class GateStreams {
 public:
  explicit GateStreams(const ScOperator& op);

  // Bits of one side where it runs freely, of a level in dimension d of a chunk.
  std::vector<bool> Side(ScSide side, int64_t d, int level) const;
  // Bits of the gate, of levels a and b.
  std::vector<bool> Gate(int64_t d, int a, int b) const;

 private:
  int BoundOf(int level) const;

  const ScOperator& op_;
  std::vector<int> boundaries_;
  std::vector<std::vector<int>> numbers_[2];  // of a side, by mask
};

inline constexpr int64_t kMostVectorProducts = int64_t{1} << 22;
// Errors: InvalidInput for more products than that.
void CheckVectorProducts(int64_t rows, int64_t outputs, int64_t dims);

// The files by name, meta.json among them; each line a number in hexadecimal digits.
// Errors: InvalidInput without streams, with an adder of gates, or for more products than kMostVectorProducts.
std::map<std::string, std::string> VectorFiles(const VectorOperands& operands, const std::string& version);

}  // namespace stoch
