// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/sc_panel.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/memory.h"

namespace stoch::cpu {
namespace {

// Blocks of b that share a panel's count vectors: making those takes as long as some 400 rows of b.
constexpr int64_t kMostBlocks = 64;
constexpr int64_t kLeastBlocks = 16;
// Items a thread should have, so that none waits long for the last.
constexpr int64_t kItemsPerThread = 3;

// Buffers of a thread; kept from call to call.
struct Scratch {
  Array<uint8_t> table = MakeArray<uint8_t>(PanelLoops::kTableBytes);
  Array<uint16_t> sums = MakeArray<uint16_t>(kMostBlocks * kBlockRows * PanelLoops::kRows);
  Array<float> y = MakeArray<float>(PanelLoops::kRows * kMostBlocks * kBlockRows);
  // [blocks][rows of the panel][64], one block where a chunk takes one pass.
  Array<int32_t> acc = MakeArray<int32_t>(PanelLoops::kRows * kBlockRows);
  int64_t acc_blocks = 1;

  int32_t* Accumulators(int64_t blocks) {
    if (blocks > acc_blocks) {
      acc = MakeArray<int32_t>(kMostBlocks * PanelLoops::kRows * kBlockRows);
      acc_blocks = kMostBlocks;
    }
    return acc.get();
  }
};

// Factor of a row of a panel in one chunk; null where nothing is added.
using Lookups = const ScLookup * [PanelLoops::kRows];

void FindLookups(const ScStreams& streams, const ScItem& item, int64_t chunk, Lookups* lookups) {
  for (int64_t t = 0; t < item.num_rows; ++t) {
    const int64_t first_slot = (item.first_row + t) * streams.slots_per_row;
    const size_t at = static_cast<size_t>(first_slot + (streams.slots_per_row > 1 ? chunk : 0));
    (*lookups)[t] = streams.lookups[streams.slots.empty() ? 0 : streams.slots[at]].get();
  }
}

void Dequantize(const Simd& simd, const Lookups& lookups, const ScRows& a, const ScItem& item, int64_t chunk,
                int64_t block, const int32_t* acc, float* y) {
  const ScBlocks& b = *item.target->b;
  const float* scales = b.block_scales(item.first_block + block, chunk);
  for (int64_t t = 0; t < item.num_rows; ++t) {
    if (lookups[t] == nullptr) continue;
    simd.sc_dequantize(acc + t * kBlockRows, lookups[t]->op->gain, a.scale(item.first_row + t, chunk), scales,
                       y + (t * item.num_blocks + block) * kBlockRows);
  }
}

void RunItem(const Simd& simd, const ScStreams& streams, const ScRows& a, const ScItem& item, int levels,
             Scratch* scratch) {
  const ScBlocks& b = *item.target->b;
  const ScChunks& chunks = a.chunks();
  int parts = 1;
  for (const ScLookupPtr& lookup : streams.lookups) {
    if (lookup != nullptr) parts = std::max(parts, lookup->panel_parts);
  }
  float* y = scratch->y.get();
  std::fill(y, y + item.num_rows * item.num_blocks * kBlockRows, 0.0f);

  Lookups lookups;
  for (int64_t c = 0; c < chunks.count; ++c) {
    FindLookups(streams, item, c, &lookups);
    const int64_t dims = chunks.dims(c);
    const int64_t segments = (dims + PanelLoops::kDims - 1) / PanelLoops::kDims;
    const int64_t passes = segments * parts;
    int32_t* acc = scratch->Accumulators(passes == 1 ? 1 : item.num_blocks);
    for (int64_t pass = 0; pass < passes; ++pass) {
      const int part = static_cast<int>(pass % parts);
      const int64_t begin = pass / parts * PanelLoops::kDims;
      const int64_t segment = std::min(PanelLoops::kDims, dims - begin);
      ScPanelLeft left[PanelLoops::kRows];
      for (int64_t t = 0; t < item.num_rows; ++t) {
        if (lookups[t] == nullptr || part >= lookups[t]->panel_parts) continue;
        const ScLeft row = a.Left(item.first_row + t, chunks.begin(c) + begin);
        left[t] = {lookups[t]->panel_part(part), row.offsets, row.flips};
      }
      simd.panel->add(left, item.num_rows, segment, levels,
                      b.block(item.first_block) + (chunks.begin(c) + begin) * kBlockRows, b.block_bytes(),
                      item.num_blocks, scratch->table.get(), scratch->sums.get());
      for (int64_t i = 0; i < item.num_blocks; ++i) {
        int32_t* at = passes == 1 ? acc : acc + i * PanelLoops::kRows * kBlockRows;
        simd.panel->sums(scratch->sums.get(), i, item.num_rows, segment, pass > 0, at);
        if (pass == passes - 1) Dequantize(simd, lookups, a, item, c, i, at, y);
      }
    }
  }

  const ScTarget& target = *item.target;
  const int64_t first_col = item.first_block * kBlockRows;
  StoreProduct(y, item.num_blocks * kBlockRows, target, item.first_row, item.num_rows, first_col,
               std::min(b.rows - first_col, item.num_blocks * kBlockRows));
}

}  // namespace

int64_t PanelRows(const Simd& simd, const ScStreams& streams, int64_t num_rows) {
  if (simd.panel == nullptr || !std::all_of(streams.lookups.begin(), streams.lookups.end(), [&](const auto& lookup) {
        return lookup == nullptr || (lookup->panel_parts > 0 && lookup->panel_parts <= simd.panel->max_parts);
      })) {
    return 0;
  }
  const int64_t rest = num_rows % PanelLoops::kRows;
  return rest < simd.panel->min_rows ? num_rows - rest : num_rows;
}

void ScPanelProduct(ThreadPool& pool, const Simd& simd, const ScStreams& streams, const ScRows& a, int64_t first_row,
                    int64_t num_rows, std::span<const ScTarget> targets) {
  int levels = 0;
  for (const ScLookupPtr& lookup : streams.lookups) levels = lookup == nullptr ? levels : lookup->op->levels;
  int64_t num_blocks = 0;
  for (const ScTarget& target : targets) num_blocks += target.b->num_blocks();
  const int64_t panels = (num_rows + PanelLoops::kRows - 1) / PanelLoops::kRows;
  const int64_t wanted = (kItemsPerThread * pool.size() + panels - 1) / panels;
  const int64_t block_tile = std::clamp((num_blocks + wanted - 1) / wanted, kLeastBlocks, kMostBlocks);
  std::vector<ScItem> items;
  for (const ScTarget& target : targets) {
    for (int64_t t = 0; t < num_rows; t += PanelLoops::kRows) {
      for (int64_t block = 0; block < target.b->num_blocks(); block += block_tile) {
        items.push_back({&target, block, std::min(block_tile, target.b->num_blocks() - block), first_row + t,
                         std::min(PanelLoops::kRows, num_rows - t)});
      }
    }
  }
  pool.ParallelFor(static_cast<int64_t>(items.size()), [&](int64_t i, int) {
    static thread_local Scratch scratch;
    RunItem(simd, streams, a, items[static_cast<size_t>(i)], levels, &scratch);
  });
}

}  // namespace stoch::cpu
