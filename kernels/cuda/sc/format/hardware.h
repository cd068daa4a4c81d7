// SPDX-License-Identifier: Apache-2.0
// Hardware that is not ideal in device memory: tables of flips and of adders (kernels/sc/hardware).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/sc/hardware/accumulator.h"
#include "kernels/sc/hardware/words.h"

namespace stoch::cuda {

// The hardware of one product as kernels see it; passed by value.
struct HardwareView {
  bool finishes = false;  // sums meet an adder, flips or a register; else they are exact
  uint64_t seed = 0;
  ScAccumulatorView accumulator;
  ScGateTables gates;                  // steps null: a counter of every bit
  ScWordFaultView activation, weight;  // of codes as they are read
};

// Keeps the memory of a view. Errors: InvalidInput as ScAccumulator; OutOfMemory.
// Async: copies wait, so not while a graph is recorded.
class HardwareTables {
 public:
  // As of ScAccumulator.
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

// Null where codes are read as they are and accumulators are exact sums. Equal operators of a device share one while it
// lives. Threads: safe.
HardwareTablesPtr MakeHardwareTables(const Device& device, const ScOperator& op, int64_t most_dims);

// Where in a model the sums of a product are, and which rows it has.
struct HardwareSite {
  uint64_t number = 0;                   // ScSite::number
  int64_t first_chunk = 0;               // what chunk 0 counts as
  int64_t first_output = 0;              // what output 0 counts as
  const uint64_t* fault_rows = nullptr;  // in device memory; null: row n is first_row + n
  uint64_t first_row = 0;
  int64_t row_slots = 1;  // rows that share an entry of fault_rows

  STOCH_HD uint64_t FaultRowOf(int64_t n) const {
    return fault_rows == nullptr ? first_row + static_cast<uint64_t>(n) : fault_rows[n / row_slots];
  }
};

}  // namespace stoch::cuda
