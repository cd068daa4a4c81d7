// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/sc_panel.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cpu/memory.h"

namespace stoch::cpu {
namespace {

// Blocks that share a panel's count vectors, at most.
constexpr int64_t kMostBlocks = 64;
// Making the count vectors of a panel takes as long as adding them for so many blocks of b.
constexpr int64_t kVectorsInBlocks = 8;

// A block of one of the targets.
struct Block {
  const ScTarget* target = nullptr;
  int64_t index = 0;  // in target->b
};

// The work of one thread at a time: a panel of rows of a with blocks of any targets.
struct PanelItem {
  int64_t first_row = 0;
  int64_t num_rows = 0;
  std::span<const Block> blocks;
};

// Buffers of a thread; kept from call to call.
struct Scratch {
  Array<uint8_t> table = MakeArray<uint8_t>(PanelLoops::kTableBytes);
  Array<uint16_t> sums = MakeArray<uint16_t>(kMostBlocks * kBlockRows * PanelLoops::kRows);
  Array<float> y = MakeArray<float>(PanelLoops::kRows * kMostBlocks * kBlockRows);  // [blocks][rows of the panel][64]
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

void FindLookups(const ScStreams& streams, const PanelItem& item, int64_t chunk, Lookups* lookups) {
  for (int64_t t = 0; t < item.num_rows; ++t) {
    const int64_t first_slot = (item.first_row + t) * streams.slots_per_row;
    const size_t at = static_cast<size_t>(first_slot + (streams.slots_per_row > 1 ? chunk : 0));
    (*lookups)[t] = streams.lookups[streams.slots.empty() ? 0 : streams.slots[at]].get();
  }
}

void Dequantize(const Simd& simd, const Lookups& lookups, const ScRows& a, const PanelItem& item, int64_t chunk,
                const Block& block, const int32_t* acc, float* y) {
  const float* scales = block.target->b->block_scales(block.index, chunk);
  for (int64_t t = 0; t < item.num_rows; ++t) {
    if (lookups[t] == nullptr) continue;
    simd.sc_dequantize(acc + t * kBlockRows, lookups[t]->op->gain, a.scale(item.first_row + t, chunk), scales,
                       y + t * kBlockRows);
  }
}

void RunItem(const Simd& simd, const ScStreams& streams, const ScRows& a, const PanelItem& item, Scratch* scratch) {
  const ScChunks& chunks = a.chunks();
  int parts = 1, levels = 0;
  for (const ScLookupPtr& lookup : streams.lookups) {
    if (lookup == nullptr) continue;
    parts = std::max(parts, lookup->panel_parts);
    levels = lookup->op->levels;
  }
  const int64_t num_blocks = std::ssize(item.blocks);
  const int64_t y_of_block = item.num_rows * kBlockRows;
  float* y = scratch->y.get();
  std::fill(y, y + num_blocks * y_of_block, 0.0f);

  Lookups lookups;
  const uint8_t* codes[kMostBlocks];
  for (int64_t c = 0; c < chunks.count; ++c) {
    FindLookups(streams, item, c, &lookups);
    const int64_t dims = chunks.dims(c);
    const int64_t segments = (dims + PanelLoops::kDims - 1) / PanelLoops::kDims;
    const int64_t passes = segments * parts;
    int32_t* acc = scratch->Accumulators(passes == 1 ? 1 : num_blocks);
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
      std::transform(item.blocks.begin(), item.blocks.end(), codes, [&](const Block& block) {
        return block.target->b->block(block.index) + (chunks.begin(c) + begin) * kBlockRows;
      });
      simd.panel->add(left, item.num_rows, segment, levels, codes, num_blocks, scratch->table.get(),
                      scratch->sums.get());
      for (int64_t i = 0; i < num_blocks; ++i) {
        int32_t* at = passes == 1 ? acc : acc + i * PanelLoops::kRows * kBlockRows;
        simd.panel->sums(scratch->sums.get(), i, item.num_rows, segment, pass > 0, at);
        if (pass == passes - 1)
          Dequantize(simd, lookups, a, item, c, item.blocks[static_cast<size_t>(i)], at, y + i * y_of_block);
      }
    }
  }

  for (const Block& block : item.blocks) {
    const int64_t first_col = block.index * kBlockRows;
    StoreProduct(y, kBlockRows, *block.target, item.first_row, item.num_rows, first_col,
                 std::min<int64_t>(block.target->b->rows - first_col, kBlockRows));
    y += y_of_block;
  }
}

// Into how many items the blocks of each panel are cut: as few as let every thread be done early.
int64_t ItemsOfPanel(int64_t num_blocks, int64_t panels, int threads) {
  std::pair<int64_t, int64_t> best{INT64_MAX, 0};  // time, items
  for (int64_t items = std::max<int64_t>(1, (num_blocks + kMostBlocks - 1) / kMostBlocks); items <= num_blocks;
       ++items) {
    const int64_t turns = (panels * items + threads - 1) / threads;
    best = std::min(best, std::pair(turns * (kVectorsInBlocks + (num_blocks + items - 1) / items), items));
  }
  return best.second;
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
  std::vector<Block> blocks;
  for (const ScTarget& target : targets) {
    for (int64_t i = 0; i < target.b->num_blocks(); ++i) blocks.push_back({&target, i});
  }
  const int64_t num_blocks = std::ssize(blocks);
  const int64_t panels = (num_rows + PanelLoops::kRows - 1) / PanelLoops::kRows;
  const int64_t per_panel = ItemsOfPanel(num_blocks, panels, pool.size());
  std::vector<PanelItem> items;
  for (int64_t t = 0; t < num_rows; t += PanelLoops::kRows) {
    for (int64_t i = 0; i < per_panel; ++i) {
      const Block* all = blocks.data();
      items.push_back({first_row + t, std::min(PanelLoops::kRows, num_rows - t),
                       std::span(all + i * num_blocks / per_panel, all + (i + 1) * num_blocks / per_panel)});
    }
  }
  pool.ParallelFor(static_cast<int64_t>(items.size()), [&](int64_t i, int) {
    static thread_local Scratch scratch;
    RunItem(simd, streams, a, items[static_cast<size_t>(i)], &scratch);
  });
}

}  // namespace stoch::cpu
