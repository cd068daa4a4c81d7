// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sc/format/tables.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/plan/sc_traits.h"
#include "kernels/plan/scratch_layout.h"
#include "kernels/sc/sc_nested.h"
#include "kernels/sc/sc_residual.h"

namespace stoch::cuda {
namespace {

// Returns the contents of ScTables::quarters, [masks][levels][kCountQuarters]; empty unless CountsAreStaircases.
std::vector<CountQuarter> MakeQuarters(const ScOperator& op) {
  if (!CountsAreStaircases(op)) return {};
  static_assert(kCountQuarters * kQuarterLevels == 128);
  std::vector<CountQuarter> quarters;
  quarters.reserve(static_cast<size_t>(op.masks) * static_cast<size_t>(op.levels) * kCountQuarters);
  for (int mask = 0; mask < op.masks; ++mask) {
    for (int a = 0; a < op.levels; ++a) {
      for (int first = 0; first < kCountQuarters * kQuarterLevels; first += kQuarterLevels) {
        CountQuarter quarter;
        if (first < op.levels) quarter.first = static_cast<uint32_t>(op.count(mask, a, first));
        for (int i = 0; i + 1 < kQuarterLevels && first + i + 1 < op.levels; ++i) {
          const int rise = op.count(mask, a, first + i + 1) - op.count(mask, a, first + i);
          quarter.rises |= static_cast<uint32_t>(rise) << i;
        }
        quarters.push_back(quarter);
      }
    }
  }
  return quarters;
}

bool AreAlike(const NonlinearTable& a, const NonlinearTable& b) {
  return a.cuts == b.cuts && a.values == b.values && a.slopes == b.slopes && a.in_bits == b.in_bits &&
         a.out_bits == b.out_bits;
}

}  // namespace

const ScTables& TableCache::Get(const ScOperator& op) { return Find(op).tables; }

const ScTraits& TableCache::Traits(const ScOperator& op) { return Find(op).traits; }

const int32_t* TableCache::Wide(const ScOperator& op) {
  const auto found =
      std::find_if(wide_.begin(), wide_.end(), [&](const WideEntry& entry) { return entry.config == op.config; });
  if (found != wide_.end()) return static_cast<const int32_t*>(found->memory.data());
  wide_.push_back({op.config, DeviceCopy(device_, op.wide_counts)});
  return static_cast<const int32_t*>(wide_.back().memory.data());
}

const uint32_t* TableCache::Nested(const ScOperator& shorter, const ScOperator& longer) {
  if (shorter.config == longer.config) return Get(longer).streams;
  auto found = std::find_if(nested_.begin(), nested_.end(), [&](const NestedEntry& entry) {
    return entry.shorter == shorter.config && entry.longer == longer.config;
  });
  if (found == nested_.end()) {
    NestedEntry entry{shorter.config, longer.config, {}};
    if (const std::optional<std::vector<uint64_t>> streams = NestStreams(shorter, longer); streams) {
      entry.memory = DeviceCopy(device_, *streams);
    }
    nested_.push_back(std::move(entry));
    found = std::prev(nested_.end());
  }
  return static_cast<const uint32_t*>(found->memory.data());
}

NonlinearView TableCache::Function(const NonlinearTable* table) {
  if (table == nullptr) return {};
  auto found = std::find_if(functions_.begin(), functions_.end(),
                            [&](const FunctionEntry& entry) { return AreAlike(entry.table, *table); });
  if (found == functions_.end()) {
    std::vector<float> pieces = table->cuts;
    pieces.insert(pieces.end(), table->values.begin(), table->values.end());
    pieces.insert(pieces.end(), table->slopes.begin(), table->slopes.end());
    functions_.push_back({*table, DeviceCopy(device_, pieces)});
    found = std::prev(functions_.end());
  }
  NonlinearView view = ViewOf(*table);
  view.cuts = static_cast<const float*>(found->memory.data());
  view.values = view.cuts + view.size;
  view.slopes = view.values + view.size;
  return view;
}

const TableCache::Entry& TableCache::Find(const ScOperator& op) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const std::unique_ptr<Entry>& entry) { return entry->config == op.config; });
  if (found != entries_.end()) return **found;

  const size_t words = (static_cast<size_t>(op.config.stoc_len) + 63) / 64 * 2;
  std::vector<uint8_t> counts8;
  bool top_is_256 = false;
  if (CountsFitBytes(op)) {
    counts8.resize(op.counts.size());
    for (size_t i = 0; i < op.counts.size(); ++i) {
      counts8[i] = static_cast<uint8_t>(op.counts[i] & 0xff);
      top_is_256 = top_is_256 || op.counts[i] == 256;
    }
  }
  const std::vector<CountQuarter> quarters = MakeQuarters(op);
  const std::optional<ScResiduals> residuals = MakeScResiduals(op);
  const std::optional<std::vector<ScTileEntry>> tile_entries = MakeScTileEntries(op);
  const ScTraits traits = MakeScTraits(op);
  STOCH_CHECK(tile_entries.has_value() == traits.has_tile_form);
  const std::optional<std::vector<ScInt8Entry>> int8_entries = MakeScInt8Entries(op);
  STOCH_CHECK(int8_entries.has_value() == traits.has_int8_form);
  const size_t int8_bytes = int8_entries ? int8_entries->size() * sizeof(ScInt8Entry) : 0;
  const size_t tile_bytes = tile_entries ? tile_entries->size() * sizeof(ScTileEntry) : 0;
  ScratchLayout layout;
  const auto add = [&](size_t bytes) { return static_cast<size_t>(layout.AddBytes(static_cast<int64_t>(bytes))); };
  const size_t at16 = add(op.counts.size() * sizeof(int16_t));
  const size_t at8 = add(counts8.size());
  const size_t at_quarters = add(quarters.size() * sizeof(CountQuarter));
  const size_t at_factors = add(residuals ? residuals->factors.size() * sizeof(ResidualFactors) : 0);
  const size_t at_residuals = add(residuals ? residuals->residuals.size() * sizeof(uint32_t) : 0);
  const size_t at_tiles = add(tile_bytes);
  const size_t at_int8 = add(int8_bytes);
  const size_t at_streams = add(op.streams_a.size() * sizeof(uint64_t));
  const size_t at_ranks = add(op.ranks_b.size() * sizeof(uint16_t));

  auto entry = std::make_unique<Entry>();
  entry->config = op.config;
  entry->traits = traits;
  entry->memory = AllocateDevice(device_, static_cast<size_t>(layout.bytes()));
  char* base = static_cast<char*>(entry->memory.data());
  const auto upload = [&](size_t at, const void* from, size_t bytes) { Upload(device_, base + at, from, bytes); };
  upload(at16, op.counts.data(), op.counts.size() * sizeof(int16_t));
  upload(at8, counts8.data(), counts8.size());
  upload(at_quarters, quarters.data(), quarters.size() * sizeof(CountQuarter));
  if (residuals) {
    upload(at_factors, residuals->factors.data(), residuals->factors.size() * sizeof(ResidualFactors));
    upload(at_residuals, residuals->residuals.data(), residuals->residuals.size() * sizeof(uint32_t));
  }
  if (tile_entries) upload(at_tiles, tile_entries->data(), tile_bytes);
  if (int8_entries) upload(at_int8, int8_entries->data(), int8_bytes);
  upload(at_streams, op.streams_a.data(), op.streams_a.size() * sizeof(uint64_t));
  upload(at_ranks, op.ranks_b.data(), op.ranks_b.size() * sizeof(uint16_t));

  ScTables& t = entry->tables;
  t.counts16 = reinterpret_cast<const int16_t*>(base + at16);
  if (!counts8.empty()) t.counts8 = reinterpret_cast<const uint8_t*>(base + at8);
  if (!quarters.empty()) t.quarters = reinterpret_cast<const CountQuarter*>(base + at_quarters);
  if (residuals) {
    t.factors = reinterpret_cast<const uint32_t*>(base + at_factors);
    t.residuals = reinterpret_cast<const uint32_t*>(base + at_residuals);
  }
  if (tile_entries) t.tile_entries = reinterpret_cast<const ScTileEntry*>(base + at_tiles);
  if (int8_entries) t.int8_entries = reinterpret_cast<const ScInt8Entry*>(base + at_int8);
  if (op.has_streams) {
    // On a little-endian host, a 64-bit word is two 32-bit words in the bit order of ScTables::streams.
    t.streams = reinterpret_cast<const uint32_t*>(base + at_streams);
    t.ranks = reinterpret_cast<const uint16_t*>(base + at_ranks);
    t.direct_ranks = entry->traits.direct_ranks;
  }
  t.stream_words = static_cast<int>(words);
  t.masks = op.masks;
  t.levels = op.levels;
  t.q_max = op.q_max;
  t.stoc_len = op.config.stoc_len;
  t.max_count = op.max_count;
  t.top_is_256 = top_is_256;
  t.gain = op.gain;
  t.code = op.code;
  entries_.push_back(std::move(entry));
  return *entries_.back();
}

}  // namespace stoch::cuda
