// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/sc_product.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/cpu/format_product.h"
#include "kernels/cpu/sc_panel.h"
#include "kernels/math/quantize.h"

namespace stoch::cpu {
namespace {

// Rows of a that share one visit of a chunk of b, and how many of them one kernel call takes.
constexpr int64_t kRowPanel = 64;
constexpr int64_t kRowTile = 64;
// Blocks of b that share each table row that is read.
constexpr int64_t kBlockTile = 4;
constexpr int64_t kLineFloats = 16;  // floats in a cache line

struct Scratch {
  alignas(64) int32_t acc[kRowTile * kBlockTile * kBlockRows];
  alignas(64) float y[kRowPanel * kBlockTile * kBlockRows];
};

void AddUnipolar(const ScRows& a, int64_t row, const ScBlocks& b, int64_t block, float gain, const int32_t* acc,
                 float* y) {
  const UnipolarRow left{a.scale(row, 0), a.zero(row), a.sum(row)};
  for (int64_t r = 0; r < kBlockRows; ++r) {
    const int64_t at = block * kBlockRows + r;
    const UnipolarRow right{b.scales.get()[at], b.zeros.get()[at], b.sums.get()[at]};
    y[r] = UnipolarProduct(acc[r], gain, static_cast<int>(b.chunks.cols), left, right);
  }
}

// Rows of an item that run at one slot in one chunk.
struct Run {
  const ScLookup* lookup = nullptr;
  int64_t begin = 0, end = 0;  // range of Order::rows
};
struct Order {
  int64_t rows[kRowPanel];
  Run runs[kRowPanel];
  int64_t num_runs = 0;
};

// The rows of an item by slot, those of one slot in order.
void Sort(const ScStreams& streams, const ScItem& item, int64_t chunk, Order* order) {
  for (int64_t t = 0; t < item.num_rows; ++t) order->rows[t] = t;
  order->num_runs = 0;
  if (streams.slots.empty()) {
    order->runs[order->num_runs++] = {streams.lookups[0].get(), 0, item.num_rows};
    return;
  }
  const auto slot = [&](int64_t t) {
    const int64_t row = item.first_row + t;
    return streams.slots[static_cast<size_t>(row * streams.slots_per_row + (streams.slots_per_row > 1 ? chunk : 0))];
  };
  std::stable_sort(order->rows, order->rows + item.num_rows, [&](int64_t i, int64_t j) { return slot(i) < slot(j); });
  for (int64_t begin = 0, end; begin < item.num_rows; begin = end) {
    end = begin + 1;
    while (end < item.num_rows && slot(order->rows[end]) == slot(order->rows[begin])) ++end;
    order->runs[order->num_runs++] = {streams.lookups[slot(order->rows[begin])].get(), begin, end};
  }
}

// Adds chunk c of left row `row` to y[64]; acc: its sums.
void AddChunk(const Simd& simd, const ScOperator& op, const ScRows& a, int64_t row, const ScBlocks& b, int64_t block,
              int64_t c, const int32_t* acc, float* y) {
  const float* scales = b.block_scales(block, c);
  switch (op.config.arith) {
    case ScArith::kMxInt8: return AddMxBlock(acc, a.scale(row, c), scales, y);
    case ScArith::kFp8E4m3:  // AddE4m3Tile
    case ScArith::kSc:
    case ScArith::kFp:
    case ScArith::kInt2:
    case ScArith::kInt3:
    case ScArith::kInt4:
    case ScArith::kInt5:
    case ScArith::kInt6:
    case ScArith::kInt7:
    case ScArith::kInt8: break;
  }
  if (op.code == ScCode::kAsymmetric) return AddUnipolar(a, row, b, block, op.gain, acc, y);
  simd.sc_dequantize(acc, op.gain, a.scale(row, c), scales, y);
}

// Adds chunk c of some rows of an item to its outputs in E4M3; right numbers are decoded once for all of them.
void AddE4m3Tile(const ScRows& a, const ScItem& item, std::span<const int64_t> rows, int64_t c, const uint8_t* codes,
                 float* y) {
  const ScBlocks& b = *item.target->b;
  const ScChunks& chunks = a.chunks();
  for (int64_t i = 0; i < item.num_blocks; ++i) {
    const double* right = DecodeE4m3(codes + i * b.block_bytes(), chunks.dims(c));
    const float* scales = b.block_scales(item.first_block + i, c);
    for (const int64_t t : rows) {
      const int64_t row = item.first_row + t;
      AddE4m3Block(a.Left(row, chunks.begin(c)).codes, chunks.dims(c), right, a.scale(row, c), scales,
                   y + (t * item.num_blocks + i) * kBlockRows);
    }
  }
}

// Hands the sums of one row to the hardware, block by block.
void AccumulateRow(const Simd& simd, const ScLookup& lookup, const ScItem& item, const ScLeft& left, int64_t row,
                   int64_t chunk, int64_t dims, const uint8_t* codes, int32_t* acc) {
  const ScHardwareUse& use = *item.target->use;
  const ScBlocks& b = *item.target->b;
  ScBlockSums sums{use.hardware, use.hardware->accumulator.KeysOf(use.site, use.FaultRowOf(row)), 0, 0};
  for (int64_t i = 0; i < item.num_blocks; ++i) {
    const int64_t first = (item.first_block + i) * kBlockRows;
    sums.first_column = FaultColumn(use.first_chunk + chunk, use.site.first_output + first);
    sums.outputs = std::min<int64_t>(kBlockRows, b.rows - first);
    AccumulateBlock(simd, lookup, sums, left, dims, codes + i * b.block_bytes(), acc + i * kBlockRows);
  }
}

void RunItem(const Simd& simd, const ScStreams& streams, const ScRows& a, const ScItem& item, Scratch* scratch) {
  const ScBlocks& b = *item.target->b;
  const ScChunks& chunks = a.chunks();
  std::fill(scratch->y, scratch->y + item.num_rows * item.num_blocks * kBlockRows, 0.0f);

  Order order;
  for (int64_t c = 0; c < chunks.count; ++c) {
    // The scales of a chunk are far from those of the last one, and it is over before they have come.
    for (int64_t i = 0; i < item.num_blocks; ++i) {
      const float* scales = b.block_scales(item.first_block + i, c);
      for (int64_t r = 0; r < kBlockRows; r += kLineFloats) __builtin_prefetch(scales + r);
    }
    if (c == 0 || streams.slots_per_row > 1) Sort(streams, item, c, &order);
    const uint8_t* codes = b.block(item.first_block) + chunks.begin(c) * kBlockRows;
    for (const Run& run : std::span(order.runs, static_cast<size_t>(order.num_runs))) {
      if (run.lookup == nullptr) continue;
      const ScOperator& op = *run.lookup->op;
      for (int64_t t0 = run.begin; t0 < run.end; t0 += kRowTile) {
        const int64_t tile = std::min(kRowTile, run.end - t0);
        if (op.config.arith == ScArith::kFp8E4m3) {
          AddE4m3Tile(a, item, {order.rows + t0, static_cast<size_t>(tile)}, c, codes, scratch->y);
          continue;
        }
        ScLeft left[kRowTile];
        for (int64_t t = 0; t < tile; ++t) {
          left[t] = a.Left(item.first_row + order.rows[t0 + t], chunks.begin(c));
          if (run.lookup->wide_row.empty()) left[t].num_wide = 0;
        }
        const ScHardware* hardware = item.target->use == nullptr ? nullptr : item.target->use->hardware;
        if (hardware == nullptr || hardware->sums_whole()) {
          SumBlocks(simd, *run.lookup, hardware, {left, static_cast<size_t>(tile)}, 0, chunks.dims(c), codes,
                    b.block_bytes(), item.num_blocks, scratch->acc);
        }
        for (int64_t t = 0; t < tile; ++t) {
          const int64_t row = item.first_row + order.rows[t0 + t];
          if (item.target->use != nullptr) {
            AccumulateRow(simd, *run.lookup, item, left[t], row, c, chunks.dims(c), codes,
                          scratch->acc + t * item.num_blocks * kBlockRows);
          }
          for (int64_t i = 0; i < item.num_blocks; ++i) {
            const int32_t* acc = scratch->acc + (t * item.num_blocks + i) * kBlockRows;
            float* y = scratch->y + (order.rows[t0 + t] * item.num_blocks + i) * kBlockRows;
            AddChunk(simd, op, a, row, b, item.first_block + i, c, acc, y);
          }
        }
      }
    }
  }

  const int64_t first_col = item.first_block * kBlockRows;
  StoreProduct(scratch->y, item.num_blocks * kBlockRows, *item.target, item.first_row, item.num_rows, first_col,
               std::min(b.rows - first_col, item.num_blocks * kBlockRows));
}

}  // namespace

void StoreProduct(const float* y, int64_t y_step, const ScTarget& target, int64_t first_row, int64_t num_rows,
                  int64_t first_col, int64_t num_cols) {
  for (int64_t t = 0; t < num_rows; ++t, y += y_step) {
    float* out = target.out + (first_row + t) * target.row_step + first_col * target.col_step;
    for (int64_t m = 0; m < num_cols; ++m) {
      float& value = out[m * target.col_step];
      value = target.add ? value + y[m] : y[m];
    }
  }
}

void ScProduct(ThreadPool& pool, const Simd& simd, const ScLookupPtr& lookup, const ScRows& a, int64_t first_row,
               int64_t num_rows, std::span<const ScTarget> targets) {
  ScProduct(pool, simd, ScStreams{{&lookup, 1}}, a, first_row, num_rows, targets);
}

void ScProduct(ThreadPool& pool, const Simd& simd, const ScStreams& streams, const ScRows& a, int64_t first_row,
               int64_t num_rows, std::span<const ScTarget> targets) {
  const bool ideal = std::all_of(targets.begin(), targets.end(), [](const ScTarget& t) { return t.use == nullptr; });
  if (const int64_t rows = ideal ? PanelRows(simd, streams, num_rows) : 0; rows > 0) {
    ScPanelProduct(pool, simd, streams, a, first_row, rows, targets);
    first_row += rows;
    num_rows -= rows;
    if (num_rows == 0) return;
  }
  // Blocks that are visited together share the table rows that are read, which pays even for one row (measured: 22
  // against 18 GB/s on a thread); only where that leaves threads without work are they visited alone.
  int64_t num_blocks = 0;
  for (const ScTarget& target : targets) num_blocks += target.b->num_blocks();
  const int64_t panels = (num_rows + kRowPanel - 1) / kRowPanel;
  const bool enough = num_blocks * panels >= 4 * kBlockTile * pool.size();
  const int64_t block_tile = enough ? kBlockTile : 1;
  std::vector<ScItem> items;
  for (const ScTarget& target : targets) {
    for (int64_t block = 0; block < target.b->num_blocks(); block += block_tile) {
      for (int64_t t = 0; t < num_rows; t += kRowPanel) {
        items.push_back({&target, block, std::min(block_tile, target.b->num_blocks() - block), first_row + t,
                         std::min(kRowPanel, num_rows - t)});
      }
    }
  }
  const auto scratches = std::make_unique_for_overwrite<Scratch[]>(static_cast<size_t>(pool.size()));
  pool.ParallelFor(static_cast<int64_t>(items.size()), [&](int64_t i, int thread) {
    RunItem(simd, streams, a, items[static_cast<size_t>(i)], &scratches[static_cast<size_t>(thread)]);
  });
}

}  // namespace stoch::cpu
