// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/sc_hardware.h"

#include <algorithm>
#include <mutex>
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

// Scratch of a thread, kept between ops.
uint64_t* GateScratch(int64_t bytes) {
  thread_local Array<uint8_t> memory;
  thread_local int64_t size = 0;
  if (size < bytes) {
    memory = MakeArray<uint8_t>(bytes);
    size = bytes;
  }
  return reinterpret_cast<uint64_t*>(memory.get());
}

void SumByGates(const Simd& simd, const ScGateSteps& steps, std::span<const ScLeft> left, int64_t first_dim,
                int64_t dims, const uint8_t* blocks, int64_t block_stride, int64_t num_blocks, int32_t* acc) {
  const ScGateTables tables = steps.tables();
  uint64_t* scratch = GateScratch(GateCall::ScratchBytes(tables.levels, tables.group));
  for (size_t first = 0; first < left.size(); first += GateCall::kMostLeft) {
    const uint8_t* rows[GateCall::kMostLeft];
    const size_t count = std::min<size_t>(GateCall::kMostLeft, left.size() - first);
    for (size_t i = 0; i < count; ++i) rows[i] = left[first + i].codes;
    simd.gate_sums({&tables, rows, static_cast<int64_t>(count), first_dim, dims, blocks, block_stride, num_blocks,
                    acc + static_cast<int64_t>(first) * num_blocks * kBlockRows, scratch});
  }
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

}  // namespace

ScHardware::ScHardware(const ScOperator& op, int64_t dims)
    : most_dims(dims), accumulator(op, dims), a(op, op.config.fault_activation), b(op, op.config.fault_weight) {}

ScHardwarePtr MakeScHardware(const ScOperator& op, int64_t most_dims) {
  if (!HasHardware(op.config)) return nullptr;
  static std::mutex mutex;
  static std::vector<std::weak_ptr<const ScHardware>> live;
  const std::lock_guard lock(mutex);
  std::erase_if(live, [](const auto& entry) { return entry.expired(); });
  for (const auto& entry : live) {
    ScHardwarePtr hardware = entry.lock();
    if (hardware != nullptr && hardware->most_dims == most_dims && hardware->accumulator.config() == op.config) {
      return hardware;
    }
  }
  auto hardware = std::make_shared<const ScHardware>(op, most_dims);
  live.push_back(hardware);
  return hardware;
}

void SumBlocks(const Simd& simd, const ScLookup& lookup, const ScHardware* hardware, std::span<const ScLeft> left,
               int64_t first_dim, int64_t dims, const uint8_t* blocks, int64_t block_stride, int64_t num_blocks,
               int32_t* acc) {
  const ScGateSteps* steps = hardware == nullptr ? nullptr : hardware->accumulator.gate_steps();
  if (steps != nullptr) return SumByGates(simd, *steps, left, first_dim, dims, blocks, block_stride, num_blocks, acc);
  simd.sc_block(lookup.table(), left.data(), static_cast<int64_t>(left.size()), first_dim, dims, blocks, block_stride,
                num_blocks, acc);
}

void CountNegatives(const ScOperator& op, const uint8_t* left, int64_t dims, const uint8_t* block, int32_t* negatives) {
  const bool is_offset = op.code == ScCode::kOffset;
  for (int64_t d = 0; d < dims; ++d) {
    const uint8_t* codes = block + d * kBlockRows;
    if (is_offset) {
      const bool minus = left[d] < op.q_max;
      for (int64_t r = 0; r < kBlockRows; ++r) negatives[r] += (codes[r] < op.q_max) != minus ? 1 : 0;
    } else {
      for (int64_t r = 0; r < kBlockRows; ++r) negatives[r] += (codes[r] ^ left[d]) >> 7;
    }
  }
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
  if (!sums.hardware->sums_whole()) SumGroups(simd, lookup, accumulator, left, dims, block, acc);
  int32_t negatives[kBlockRows] = {};
  if (accumulator.wants_negatives()) CountNegatives(op, left.codes, dims, block, negatives);
  for (int64_t r = 0; r < sums.outputs; ++r) {
    acc[r] = accumulator.Finish(acc[r], negatives[r], dims, op.config.stoc_len, sums.row,
                                sums.first_column + static_cast<uint64_t>(r));
  }
}

}  // namespace stoch::cpu
