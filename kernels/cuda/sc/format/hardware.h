// SPDX-License-Identifier: Apache-2.0
// Device tables of SC hardware that is not ideal: distributions of bit flips, and adders of gates
// (kernels/sc/hardware).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/sc/hardware/accumulator.h"
#include "kernels/sc/hardware/words.h"

namespace stoch::cuda {

// The hardware model of one product, as kernels see it; passed by value.
struct HardwareView {
  bool finishes = false;  // true: a sum passes an adder of gates, bit flips or a narrow register; false: sums are exact
  uint64_t seed = 0;      // seed of all random flips
  ScAccumulatorView accumulator;
  ScGateTables gates;                  // adder of gates; steps null: none, every bit of a product is counted
  ScWordFaultView activation, weight;  // bit flips of each operand's codes when a product reads them
};

// Owns the device memory of a HardwareView.
// Errors:   InvalidInput where the constructor of ScAccumulator throws it; OutOfMemory.
// Async:    copies to the device are synchronous, so an object must not be made while a graph is recorded.
class HardwareTables {
 public:
  // Tables of `op` for products of at most `most_dims` dimensions (the argument of ScAccumulator).
  HardwareTables(const Device& device, const ScOperator& op, int64_t most_dims);

  const HardwareView& view() const { return view_; }

 private:
  BinomialLineView Keep(const BinomialLine& line);
  void KeepProductFlips(const BinomialTable& table);
  void KeepGates(const ScGateTables& tables);

  Device device_;
  std::vector<Buffer> memory_;
  HardwareView view_;
};
using HardwareTablesPtr = std::shared_ptr<const HardwareTables>;

// The hardware tables of `op` on `device`; null if its hardware is ideal (HasHardware is false). Calls with equal
// device, configuration and most_dims share one object as long as someone holds it. Threads: safe.
HardwareTablesPtr MakeHardwareTables(const Device& device, const ScOperator& op, int64_t most_dims);

// The place of a product in its model, which keys the random draws of its faults: a draw must not depend on how the
// model is cut into calls, shards or tiles.
struct HardwareSite {
  uint64_t number = 0;                   // ScSite::number: layer, operator and unit
  int64_t first_chunk = 0;               // index in the model of chunk 0 of this product
  int64_t first_output = 0;              // index in the model of output 0 of this product
  const uint64_t* fault_rows = nullptr;  // device memory [rows / row_slots] row numbers; null: row n is first_row + n
  uint64_t first_row = 0;                // number of row 0 if fault_rows is null
  int64_t row_slots = 1;                 // consecutive rows that share an entry of fault_rows

  STOCH_HD uint64_t FaultRowOf(int64_t n) const {
    return fault_rows == nullptr ? first_row + static_cast<uint64_t>(n) : fault_rows[n / row_slots];
  }
};

}  // namespace stoch::cuda
