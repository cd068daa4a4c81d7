// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/sc_hardware.h"

#include <algorithm>
#include <vector>

namespace stoch::cpu {
namespace {

// Dimensions [begin, end) of a left row as a row of their own.
ScLeft SliceOf(const ScLeft& left, int64_t begin, int64_t end, std::vector<uint32_t>* wide) {
  ScLeft part = left;
  part.codes += begin;
  if (left.offsets != nullptr) part.offsets += begin;
  if (left.flips != nullptr) part.flips += begin;
  wide->clear();
  for (uint32_t i = 0; i < left.num_wide; ++i) {
    if (left.wide[i] >= begin && left.wide[i] < end) wide->push_back(left.wide[i] - static_cast<uint32_t>(begin));
  }
  part.num_wide = static_cast<uint32_t>(wide->size());
  part.wide = wide->data();
  return part;
}

// The register clamps after each group.
void SumGroups(const Simd& simd, const ScLookup& lookup, const ScAccumulator& accumulator, const ScLeft& left,
               int64_t dims, const uint8_t* block, int32_t* acc) {
  const int64_t group = accumulator.config().acc_group;
  std::vector<uint32_t> wide;
  alignas(64) int32_t part[kBlockRows];
  std::fill_n(acc, kBlockRows, 0);
  for (int64_t begin = 0; begin < dims; begin += group) {
    const int64_t end = std::min(begin + group, dims);
    const ScLeft slice = SliceOf(left, begin, end, &wide);
    simd.sc_block(lookup.table(), &slice, 1, begin, end - begin, block + begin * kBlockRows, 0, 1, part);
    for (int64_t r = 0; r < kBlockRows; ++r) {
      acc[r] = static_cast<int32_t>(accumulator.Clamp(int64_t{acc[r]} + part[r]));
    }
  }
}

void SumByGates(const ScOperator& op, const ScAdderStreams& adder, const ScLeft& left, int64_t dims,
                const uint8_t* block, int64_t outputs, int32_t* acc) {
  std::vector<int> a(static_cast<size_t>(dims)), b(static_cast<size_t>(dims));
  for (int64_t d = 0; d < dims; ++d) a[static_cast<size_t>(d)] = LevelOfCode(op, left.codes[d]);
  for (int64_t r = 0; r < outputs; ++r) {
    for (int64_t d = 0; d < dims; ++d) b[static_cast<size_t>(d)] = LevelOfCode(op, block[d * kBlockRows + r]);
    acc[r] = static_cast<int32_t>(adder.Sum(a.data(), b.data(), 1, 0, dims));
  }
}

// Dimensions whose signs differ.
void CountNegatives(const ScOperator& op, const ScLeft& left, int64_t dims, const uint8_t* block, int32_t* negatives) {
  std::fill_n(negatives, kBlockRows, 0);
  const bool is_offset = op.code == ScCode::kOffset;
  for (int64_t d = 0; d < dims; ++d) {
    const uint8_t* codes = block + d * kBlockRows;
    if (is_offset) {
      const bool minus = left.codes[d] < op.q_max;
      for (int64_t r = 0; r < kBlockRows; ++r) negatives[r] += (codes[r] < op.q_max) != minus ? 1 : 0;
    } else {
      for (int64_t r = 0; r < kBlockRows; ++r) negatives[r] += (codes[r] ^ left.codes[d]) >> 7;
    }
  }
}

}  // namespace

ScHardware::ScHardware(const ScOperator& op, int64_t most_dims)
    : accumulator(op, most_dims), a(op, op.config.fault_activation), b(op, op.config.fault_weight) {}

ScHardwarePtr MakeScHardware(const ScOperator& op, int64_t most_dims) {
  if (!HasFaults(op.config) && HasPlainSums(op.config)) return nullptr;
  return std::make_shared<const ScHardware>(op, most_dims);
}

void ReadCodes(const ScOperator& op, const ScWordFaults& faults, uint64_t key, std::span<const int32_t> columns,
               uint64_t first_column, uint8_t* codes, int64_t n, int32_t* sum) {
  int32_t total = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t column = columns.empty() ? first_column + static_cast<uint64_t>(i)
                                            : static_cast<uint64_t>(columns[static_cast<size_t>(i)]);
    const int level = faults.Read(LevelOfCode(op, codes[i]), key, column);
    codes[i] = CodeOfLevel(op, level);
    total += level;
  }
  if (sum != nullptr) *sum = total;
}

void AccumulateBlock(const Simd& simd, const ScLookup& lookup, const ScBlockSums& sums, const ScLeft& left,
                     int64_t dims, const uint8_t* block, int32_t* acc) {
  const ScOperator& op = *lookup.op;
  const ScAccumulator& accumulator = sums.hardware->accumulator;
  if (accumulator.adder() != nullptr) {
    SumByGates(op, *accumulator.adder(), left, dims, block, sums.outputs, acc);
  } else if (accumulator.config().acc_group > 0) {
    SumGroups(simd, lookup, accumulator, left, dims, block, acc);
  }
  int32_t negatives[kBlockRows] = {};
  if (accumulator.wants_negatives()) CountNegatives(op, left, dims, block, negatives);
  for (int64_t r = 0; r < sums.outputs; ++r) {
    acc[r] = accumulator.Finish(acc[r], negatives[r], dims, op.config.stoc_len, sums.row,
                                sums.first_column + static_cast<uint64_t>(r));
  }
}

}  // namespace stoch::cpu
