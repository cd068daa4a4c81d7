// SPDX-License-Identifier: Apache-2.0
#include "kernels/sc/sc_operator.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/math/number_formats.h"
#include "kernels/sc/number_source.h"

namespace stoch {
namespace {

int CountBelow(const std::vector<int>& values, int boundary) {
  return static_cast<int>(std::count_if(values.begin(), values.end(), [boundary](int x) { return x < boundary; }));
}

// One mask of a gate whose side b is a thermometer once its cycles are sorted by value. A level of side a selects a set
// of cycles: the first k (kEnabled) or those in which a's comparator is on (kAnd).
void BuildSorted(ScOperator& op, int mask, const std::vector<int>& boundaries) {
  const int stoc_len = op.config.stoc_len;
  const std::vector<int> values_a = ComparatorValues(op.config, ScSide::kA, mask);
  const std::vector<int> values_b = ComparatorValues(op.config, ScSide::kB, mask);
  std::vector<int> order(static_cast<size_t>(stoc_len));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int i, int j) { return values_b[static_cast<size_t>(i)] < values_b[static_cast<size_t>(j)]; });

  const size_t base = static_cast<size_t>(mask) * static_cast<size_t>(op.levels);
  uint16_t* ranks = op.ranks_b.data() + base;
  for (size_t b = 0; b < boundaries.size(); ++b) ranks[b] = static_cast<uint16_t>(CountBelow(values_b, boundaries[b]));

  std::vector<int16_t> ones_before(static_cast<size_t>(stoc_len) + 1);
  for (size_t a = 0; a < boundaries.size(); ++a) {
    const int enabled = CountBelow(values_a, boundaries[a]);
    uint64_t* stream = op.streams_a.data() + (base + a) * static_cast<size_t>(op.stream_words);
    for (size_t j = 0; j < order.size(); ++j) {
      const int cycle = order[j];
      const bool on =
          op.config.gate == ScGate::kAnd ? values_a[static_cast<size_t>(cycle)] < boundaries[a] : cycle < enabled;
      if (on) stream[j / 64] |= uint64_t{1} << (j % 64);
      ones_before[j + 1] = static_cast<int16_t>(ones_before[j] + (on ? 1 : 0));
    }
    int16_t* row = op.counts.data() + (base + a) * static_cast<size_t>(op.levels);
    for (size_t b = 0; b < boundaries.size(); ++b) row[b] = ones_before[ranks[b]];
  }
}

// One mask of the XNOR gate: the bipolar value of a product is 2 * (cycles in which both agree) - stoc_len.
void BuildXnor(ScOperator& op, int mask, const std::vector<int>& boundaries) {
  const size_t words = static_cast<size_t>(op.stream_words);
  const auto streams = [&](ScSide side) {
    const std::vector<int> values = ComparatorValues(op.config, side, mask);
    std::vector<uint64_t> bits(boundaries.size() * words);
    for (size_t level = 0; level < boundaries.size(); ++level) {
      for (size_t t = 0; t < values.size(); ++t) {
        if (values[t] < boundaries[level]) bits[level * words + t / 64] |= uint64_t{1} << (t % 64);
      }
    }
    return bits;
  };
  const std::vector<uint64_t> a = streams(ScSide::kA);
  const std::vector<uint64_t> b = streams(ScSide::kB);
  int16_t* row = op.counts.data() + static_cast<size_t>(mask) * boundaries.size() * boundaries.size();
  for (size_t i = 0; i < boundaries.size(); ++i) {
    for (size_t j = 0; j < boundaries.size(); ++j) {
      int differ = 0;
      for (size_t w = 0; w < words; ++w) differ += std::popcount(a[i * words + w] ^ b[j * words + w]);
      *row++ = static_cast<int16_t>(op.config.stoc_len - 2 * differ);
    }
  }
}

// The entries in the narrowest type that holds them.
void SetCounts(ScOperator& op, std::vector<int32_t> entries) {
  for (const int32_t entry : entries) op.max_count = std::max(op.max_count, std::abs(entry));
  if (op.max_count <= INT16_MAX) {
    op.counts.assign(entries.begin(), entries.end());
  } else {
    op.wide_counts = std::move(entries);
  }
}

// A product without streams: codes q + Q, one mask, gain 1, `product` of the operands.
template <typename Product>
void BuildOffset(ScOperator& op, int q_max, const Product& product) {
  op.code = ScCode::kOffset;
  op.q_max = q_max;
  op.levels = 2 * q_max + 1;
  std::vector<int32_t> entries;
  for (int a = -q_max; a <= q_max; ++a) {
    for (int b = -q_max; b <= q_max; ++b) entries.push_back(product(a, b));
  }
  SetCounts(op, std::move(entries));
}

void BuildWithoutStreams(ScOperator& op) {
  constexpr float kIntScaleFloor = 1e-8f;
  op.masks = 1;
  op.gain = 1.0f;
  if (op.config.arith == ScArith::kFp8E4m3) {  // no table: codes are numbers of a format
    op.code = ScCode::kOffset;
    op.levels = 0;
    op.q_max = static_cast<int>(kE4m3Max);
    return;
  }
  if (op.config.arith == ScArith::kMxInt8) {
    op.is_int_product = true;
    BuildOffset(op, kMxLevels, [](int a, int b) { return a * b; });
    return;
  }
  if (const int bits = IntBits(op.config.arith); bits > 0) {
    op.scale_floor = kIntScaleFloor;
    op.is_int_product = true;
    BuildOffset(op, (1 << (bits - 1)) - 1, [](int a, int b) { return a * b; });
    return;
  }
  if (op.config.multiplier.get() == nullptr) {
    throw InvalidInput("SC parameter table = " + op.config.table + ": its file was not read");
  }
  const MultiplierTable& table = *op.config.multiplier;
  switch (op.config.table_code) {
    case ScTableCode::kFile:
    case ScTableCode::kSigned:
      if (!table.is_signed) throw InvalidInput("SC parameter table_code = signed: the table is of unsigned operands");
      BuildOffset(op, 127, [&](int a, int b) { return table.at(a, b); });
      break;
    case ScTableCode::kSignMagnitude:
      BuildOffset(op, 127, [&](int a, int b) {
        const int magnitude = table.at(std::abs(a), std::abs(b));
        return (a < 0) != (b < 0) ? -magnitude : magnitude;
      });
      break;
    case ScTableCode::kUnsigned:
      if (table.is_signed) throw InvalidInput("SC parameter table_code = unsigned: the table is of signed operands");
      op.code = ScCode::kAsymmetric;
      op.q_max = 255;
      op.levels = 256;
      SetCounts(op, table.entries);
      break;
  }
  bool exact = op.code == ScCode::kOffset;
  for (int a = -op.q_max; exact && a <= op.q_max; ++a) {
    for (int b = -op.q_max; exact && b <= op.q_max; ++b) exact = op.count(0, a + op.q_max, b + op.q_max) == a * b;
  }
  op.is_int_product = exact;
}

// Whether kernels for streams may look the entries up: byte-sized ones that add nothing for an operand of 0.
bool ActLikeStreams(const CountTable& table) {
  constexpr int kMost = 256;
  for (int mask = 0; mask < table.masks; ++mask) {
    for (int a = 0; a < table.levels; ++a) {
      for (int b = 0; b < table.levels; ++b) {
        const int entry = table.at(mask, a, b);
        if (entry < 0 || entry > kMost || ((a == 0 || b == 0) && entry != 0)) return false;
      }
    }
  }
  return true;
}

// Streams whose bits give the counts of a table, where its counts rise with side b in steps that fit stoc_len cycles: of
// the cycles between two levels of b, as many as any level of a counts more, each level of a is on in the first ones.
void AddStreamsOfCounts(ScOperator& op) {
  constexpr int kMost = 256;
  const int length = op.config.stoc_len;
  if (op.code == ScCode::kOffset || !op.wide_counts.empty() || length > kMost) return;
  const int words = (length + 63) / 64;
  std::vector<uint64_t> streams(static_cast<size_t>(op.masks) * static_cast<size_t>(op.levels * words));
  std::vector<uint16_t> ranks;
  for (int mask = 0; mask < op.masks; ++mask) {
    int rank = 0;
    for (int b = 0; b < op.levels; ++b) {
      ranks.push_back(static_cast<uint16_t>(rank));
      int most = 0;
      for (int a = 0; a < op.levels; ++a) {
        const int rise = b + 1 < op.levels ? op.count(mask, a, b + 1) - op.count(mask, a, b) : 0;
        if (rise < 0 || (b == 0 && op.count(mask, a, 0) != 0) || rank + rise > length) return;
        uint64_t* bits = streams.data() + static_cast<size_t>((mask * op.levels + a) * words);
        for (int i = rank; i < rank + rise; ++i) bits[i / 64] |= uint64_t{1} << (i % 64);
        most = std::max(most, rise);
      }
      rank += most;
    }
  }
  op.has_streams = true;
  op.stream_words = words;
  op.streams_a = std::move(streams);
  op.ranks_b = std::move(ranks);
}

// gate=counts. Magnitudes that do not act like streams become the table of their signed products.
void BuildFromCounts(ScOperator& op) {
  if (op.config.count_table.get() == nullptr) {
    throw InvalidInput("SC parameter counts = " + op.config.counts + ": its file was not read");
  }
  const CountTable& table = *op.config.count_table;
  const int p = op.config.sc_prec;
  const bool unipolar = op.config.mode == ScMode::kUnipolar;
  op.masks = table.masks;
  op.q_max = unipolar ? (1 << p) - 1 : (1 << (p - 1)) - 1;
  op.gain = static_cast<float>(op.q_max * op.q_max) / static_cast<float>(op.config.stoc_len);
  op.levels = table.levels;
  if (unipolar || table.levels == 1 << p) {
    op.code = unipolar ? ScCode::kAsymmetric : ScCode::kOffset;
    SetCounts(op, table.entries);
    return AddStreamsOfCounts(op);
  }
  if (ActLikeStreams(table)) {
    op.code = ScCode::kSignMagnitude;
    SetCounts(op, table.entries);
    return AddStreamsOfCounts(op);
  }
  op.code = ScCode::kOffset;
  op.levels = 1 << p;
  std::vector<int32_t> entries;
  for (int mask = 0; mask < table.masks; ++mask) {
    for (int a = -op.q_max; a <= op.q_max + 1; ++a) {
      for (int b = -op.q_max; b <= op.q_max + 1; ++b) {
        const bool used = a <= op.q_max && b <= op.q_max;
        const int count = used ? table.at(mask, std::abs(a), std::abs(b)) : 0;
        entries.push_back((a < 0) != (b < 0) ? -count : count);
      }
    }
  }
  SetCounts(op, std::move(entries));
}

std::shared_ptr<ScOperator> Build(const ScConfig& config) {
  auto op = std::make_shared<ScOperator>();
  op->config = config;
  if (IntBits(config.arith) > 0 || IsNumberFormat(config.arith) || config.gate == ScGate::kTable) {
    BuildWithoutStreams(*op);
    return op;
  }
  if (config.gate == ScGate::kCounts) {
    BuildFromCounts(*op);
    return op;
  }
  const bool unipolar = config.mode == ScMode::kUnipolar;
  const bool xnor = config.gate == ScGate::kXnor;
  op->code = unipolar ? ScCode::kAsymmetric : (xnor ? ScCode::kOffset : ScCode::kSignMagnitude);
  op->q_max = unipolar ? (1 << config.sc_prec) - 1 : (1 << (config.sc_prec - 1)) - 1;
  op->levels = op->code == ScCode::kSignMagnitude ? 1 << (config.sc_prec - 1) : 1 << config.sc_prec;
  op->masks = DistinctMasks(config);
  op->gain = static_cast<float>(op->q_max * op->q_max) / static_cast<float>(config.stoc_len);
  // Hardware selects one of the inputs in each cycle, so each counts for all.
  if (config.adder == ScAdder::kMux) op->gain = op->gain * static_cast<float>(config.adder_group);
  op->has_streams = !xnor;
  op->stream_words = (config.stoc_len + 63) / 64;
  const size_t rows = static_cast<size_t>(op->masks) * static_cast<size_t>(op->levels);
  op->counts.resize(rows * static_cast<size_t>(op->levels));
  if (op->has_streams) {
    op->streams_a.resize(rows * static_cast<size_t>(op->stream_words));
    op->ranks_b.resize(rows);
  }
  const int steps = op->code == ScCode::kOffset ? 2 * op->q_max : op->q_max;
  const std::vector<int> boundaries = LevelBoundaries(op->levels, steps, config.rng_levels);
  for (int mask = 0; mask < op->masks; ++mask) {
    if (xnor) {
      BuildXnor(*op, mask, boundaries);
    } else {
      BuildSorted(*op, mask, boundaries);
    }
  }
  for (const int16_t count : op->counts) op->max_count = std::max(op->max_count, std::abs(static_cast<int>(count)));
  return op;
}

}  // namespace

ScOperatorPtr MakeScOperator(const ScConfig& config) {
  static std::mutex mutex;
  static std::vector<std::weak_ptr<const ScOperator>> live;
  const ScConfig resolved = Resolve(config);
  const std::lock_guard lock(mutex);
  std::erase_if(live, [](const auto& entry) { return entry.expired(); });
  for (const auto& entry : live) {
    if (ScOperatorPtr op = entry.lock(); op && op->config == resolved) return op;
  }
  ScOperatorPtr op = Build(resolved);
  live.push_back(op);
  return op;
}

}  // namespace stoch
