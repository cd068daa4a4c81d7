// SPDX-License-Identifier: Apache-2.0
// Products whose hardware is not ideal: codes with flipped bits, and accumulators that do more than add counts.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/cpu/sc_lookup.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/sc/hardware/accumulator.h"
#include "kernels/sc/hardware/words.h"

namespace stoch::cpu {

// The hardware of one product; immutable.
struct ScHardware {
  // As of ScAccumulator.
  ScHardware(const ScOperator& op, int64_t dims);

  int64_t most_dims;
  ScAccumulator accumulator;
  ScWordFaults a, b;

  uint64_t seed() const { return accumulator.config().fault_seed; }
  // Whether an accumulator is one sum, which SumBlocks makes, before faults and the register.
  bool sums_whole() const { return accumulator.config().acc_group == 0; }
};
using ScHardwarePtr = std::shared_ptr<const ScHardware>;

// Null where codes are read as they are and accumulators are sums of counts. Equal operators share one while it lives.
// Threads: safe.
ScHardwarePtr MakeScHardware(const ScOperator& op, int64_t most_dims);

// Codes [n] of one row as they are read: code i by the draws of column columns[i], or first_column + i.
// sum: null, or where the sum of the codes goes.
void ReadCodes(const ScOperator& op, const ScWordFaults& faults, uint64_t key, std::span<const int32_t> columns,
               uint64_t first_column, uint8_t* codes, int64_t n, int32_t* sum);

// The hardware that sums of a row and 64 outputs meet.
struct ScBlockSums {
  const ScHardware* hardware = nullptr;
  ScAccumulator::Row row;
  uint64_t first_column = 0;  // FaultColumn of the first output
  int64_t outputs = 0;        // that are there, up to 64
};

// acc[(t * num_blocks + b) * 64 + r] as of Simd::sc_block, by the adder of `hardware`; null: ideal.
// Requires: hardware sums_whole(); an adder's groups begin at first_dim.
void SumBlocks(const Simd& simd, const ScLookup& lookup, const ScHardware* hardware, std::span<const ScLeft> left,
               int64_t first_dim, int64_t dims, const uint8_t* blocks, int64_t block_stride, int64_t num_blocks,
               int32_t* acc);

// Adds to negatives[64] how many dimensions of a left row and a block of right codes [dims][64] differ in sign.
void CountNegatives(const ScOperator& op, const uint8_t* left, int64_t dims, const uint8_t* block, int32_t* negatives);

// acc[64] of one left row and a block of right codes [dims][64]; acc holds the row's SumBlocks where hardware
// sums_whole(). Masks count from 0.
void AccumulateBlock(const Simd& simd, const ScLookup& lookup, const ScBlockSums& sums, const ScLeft& left,
                     int64_t dims, const uint8_t* block, int32_t* acc);

}  // namespace stoch::cpu
