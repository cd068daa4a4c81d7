// SPDX-License-Identifier: Apache-2.0
// Dilated attention over a cache of codes (docs/sc_arithmetic.md#dilated-attention): the arithmetic of per_token on the
// positions that a row admits, and on no others.
#include <algorithm>
#include <atomic>
#include <vector>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_formats.h"
#include "kernels/cpu/row_quantizer.h"
#include "kernels/cpu/softmax.h"
#include "kernels/dilated.h"
#include "kernels/math/quantize.h"
#include "kernels/math/reduce.h"

namespace stoch::cpu {
namespace {

constexpr int64_t kRowsPerTile = 16;
constexpr int64_t kPiece = kBlockRows;  // admitted positions of one product of p and v

// Gathering the codes of a position costs about as much as this many products of it with a query.
constexpr int64_t kGatherCost = 16;

// Rows of one sequence with heads that admit alike, all in the same segments: their positions are the first ones of
// what the last row admits, but for those before their windows.
struct DilatedTile {
  const PassLayout::Sequence* sequence = nullptr;
  int64_t kv_head = 0;
  std::vector<int64_t> heads;  // numbers of query heads of the call, all of which read kv_head
  int64_t first_row = 0;       // row of the pass
  int64_t num_rows = 0;
  int64_t first_position = 0;  // position of first_row
};

// The heads of each KV head, divided by what they admit.
std::vector<std::vector<int64_t>> HeadsAlike(const AttentionWork& work, int64_t kv_head) {
  std::vector<std::vector<int64_t>> classes;
  for (int64_t head = kv_head * work.group(); head < (kv_head + 1) * work.group(); ++head) {
    const auto alike = std::find_if(classes.begin(), classes.end(), [&](const std::vector<int64_t>& some) {
      return AdmitAlike(work.call.dilated, work.call.first_head + head, work.call.first_head + some[0]);
    });
    if (alike == classes.end()) {
      classes.push_back({head});
    } else {
      alike->push_back(head);
    }
  }
  return classes;
}

std::vector<DilatedTile> CutTiles(const AttentionWork& work) {
  std::vector<DilatedTile> tiles;
  for (int64_t kv_head = 0; kv_head < work.num_kv_heads; ++kv_head) {
    for (const std::vector<int64_t>& heads : HeadsAlike(work, kv_head)) {
      for (const PassLayout::Sequence& sequence : work.sequences) {
        for (int64_t row = 0, count; row < sequence.num_rows; row += count) {
          const int64_t position = sequence.start_position + row;
          count =
              std::min({kRowsPerTile, sequence.num_rows - row, NextSegment(work.call.dilated, position) - position});
          tiles.push_back({&sequence, kv_head, heads, sequence.first_row + row, count, position});
        }
      }
    }
  }
  return tiles;
}

// State of a thread, kept from tile to tile.
struct Scratch {
  ScRows q, p;                            // [lefts]
  std::vector<ScLeft> left;               // [lefts]
  std::vector<float> scores;              // [lefts][admitted]
  std::vector<float> v_scales, weighted;  // [admitted]
  std::vector<int32_t> acc, sums;         // [lefts][channels]
  std::vector<uint8_t> codes;  // gathered: [head_dim][64 positions] of k, [channel blocks][64 positions][64] of v
};

// One tile from queries to outputs. Left row n is row n / heads of the tile with head n % heads.
class DilatedRows {
 public:
  DilatedRows(Context& context, const AttentionWork& work, const DilatedTile& tile, Scratch* scratch)
      : context_(context),
        work_(work),
        tile_(tile),
        s_(*scratch),
        qk_(*work.qk().lookup),
        av_(*work.av().lookup),
        qk_hardware_(work.qk().hardware.get()),
        heads_(static_cast<int64_t>(tile.heads.size())),
        lefts_(tile.num_rows * heads_),
        channels_(work.cache.channel_blocks() * kBlockRows),
        admitted_(Admitted(work.call.dilated, work.call.first_head + tile.heads[0],
                           tile.first_position + tile.num_rows - 1, work.FirstSeen(tile.first_position))) {}

  // False if NaN or infinity was met.
  bool Run() {
    bool finite = true;
    s_.sums.assign(static_cast<size_t>(lefts_ * channels_), 0);
    if (admitted_.size() > 0) {
      QuantizeQueries();
      Score();
      ReadScales();
      s_.p.Resize(av_, OneChunk(admitted_.size()), lefts_, kPiece);
      for (int64_t n = 0; n < lefts_; ++n) finite = Probabilities(n) && finite;
      AddValues();
    }
    for (int64_t n = 0; n < lefts_; ++n) Output(n);
    return finite;
  }

 private:
  // The range of admitted_ that left row n sees.
  struct Range {
    int64_t begin = 0, end = 0;
  };
  Range Seen(int64_t n) const {
    const int64_t position = tile_.first_position + n / heads_;
    return {admitted_.Below(work_.FirstSeen(position)), admitted_.Below(position + 1)};
  }
  int64_t position(int64_t i) const { return admitted_.positions[static_cast<size_t>(i)]; }
  int64_t row(int64_t n) const { return tile_.first_row + n / heads_; }
  uint64_t fault_row(int64_t n) const { return FaultRow(tile_.sequence->number, tile_.first_position + n / heads_); }
  int64_t head(int64_t n) const { return tile_.heads[static_cast<size_t>(n % heads_)]; }
  int64_t slab(int64_t position) const { return work_.slab(*tile_.sequence, position, tile_.kv_head); }

  void QuantizeQueries();
  void Score();
  // Copies columns of a block of keys to columns [to, to + count) of s_.codes.
  void Gather(const uint8_t* codes, const uint8_t* columns, int64_t count, int64_t to);
  // Scores of admitted positions [begin, begin + count), which are `columns` of a block of keys.
  void ScoreBlock(const uint8_t* codes, const float* scales, int64_t begin, int64_t count, const uint8_t* columns);
  void ScoreFormats(const uint8_t* codes, const float* scales, int64_t begin, int64_t count, const uint8_t* columns);
  void ReadScales();
  bool Probabilities(int64_t n);
  void AddValues();
  // The codes of v at [begin, begin + count) as blocks of channels, `stride` apart.
  const uint8_t* Values(int64_t begin, int64_t count, int64_t* stride);
  // Adds p v over [begin, begin + count) of left rows [first, first + rows).
  void AddProducts(int64_t first, int64_t rows, int64_t begin, int64_t count, const uint8_t* codes, int64_t stride);
  void Output(int64_t n) const;

  Context& context_;
  const AttentionWork& work_;
  const DilatedTile& tile_;
  Scratch& s_;
  const ScLookup& qk_;
  const ScLookup& av_;
  const ScHardware* qk_hardware_;  // null: ideal
  int64_t heads_, lefts_, channels_;
  AdmittedPositions admitted_;
};

void DilatedRows::QuantizeQueries() {
  const ScChunks chunks = HeadChunks(*qk_.op, work_.head_dim);
  const RowQuantizer quantize(context_, qk_, chunks);
  s_.q.Resize(qk_, chunks, lefts_, work_.head_dim);
  s_.left.resize(static_cast<size_t>(lefts_));
  for (int64_t n = 0; n < lefts_; ++n) {
    quantize(work_.q(row(n), head(n)), s_.q.row(n));
    if (qk_hardware_ != nullptr && qk_hardware_->a.any()) {
      const ScSite site = work_.QuerySite(kQkOperator, head(n));
      const uint64_t key = FaultKey(qk_hardware_->seed(), FaultKind::kActivation, site, fault_row(n));
      ReadCodes(*qk_.op, qk_hardware_->a, key, {}, 0, s_.q.row(n).codes, work_.head_dim, nullptr);
    }
    s_.q.Derive(qk_, n);
    s_.left[static_cast<size_t>(n)] = s_.q.Left(n, 0);
  }
}

// Keys lie in blocks of 64 positions. A block of which a good part is admitted is multiplied whole; what is admitted of
// sparser ones is gathered into blocks of its own, unless faults are drawn by position or keys have several scales.
void DilatedRows::Score() {
  const bool gathers = !work_.qk().accumulates() && !IsNumberFormat(qk_.op->config.arith);
  const int64_t key_scales = work_.cache.spec().key_scales;
  s_.scores.resize(static_cast<size_t>(lefts_ * admitted_.size()));
  s_.acc.resize(static_cast<size_t>(lefts_ * channels_));
  s_.codes.resize(static_cast<size_t>(std::max(work_.head_dim, channels_) * kBlockRows));
  uint8_t columns[kBlockRows], in_order[kBlockRows];
  for (int j = 0; j < kBlockRows; ++j) in_order[j] = static_cast<uint8_t>(j);
  float scales[kBlockRows];
  int64_t gathered = 0;  // positions in s_.codes
  const auto flush = [&](int64_t end) {
    if (gathered > 0) ScoreBlock(s_.codes.data(), scales, end - gathered, gathered, in_order);
    gathered = 0;
  };
  for (int64_t i = 0, end; i < admitted_.size(); i = end) {
    const int64_t in_page = position(i) % work_.page_tokens / kBlockRows * kBlockRows;
    const int64_t start = position(i) / work_.page_tokens * work_.page_tokens + in_page;
    const int64_t block_end = start + std::min<int64_t>(kBlockRows, work_.page_tokens - in_page);
    end = i;
    while (end < admitted_.size() && position(end) < block_end) {
      columns[end - i] = static_cast<uint8_t>(position(end) - start);
      ++end;
    }
    const uint8_t* codes = work_.cache.k_codes(slab(start)) + in_page * work_.head_dim;
    const float* block_scales = work_.cache.k_scales(slab(start)) + in_page * key_scales;
    if (!gathers || lefts_ * (kBlockRows - (end - i)) <= (end - i) * kGatherCost) {
      flush(i);
      ScoreBlock(codes, block_scales, i, end - i, columns);
      continue;
    }
    for (int64_t from = i, count; from < end; from += count) {
      count = std::min(end - from, kBlockRows - gathered);
      Gather(codes, columns + (from - i), count, gathered);
      for (int64_t j = 0; j < count; ++j) scales[gathered + j] = block_scales[columns[from - i + j]];
      gathered += count;
      if (gathered == kBlockRows) flush(from + count);
    }
  }
  flush(admitted_.size());
}

void DilatedRows::Gather(const uint8_t* codes, const uint8_t* columns, int64_t count, int64_t to) {
  uint8_t* gathered = s_.codes.data() + to;
  for (int64_t d = 0; d < work_.head_dim; ++d, codes += kBlockRows, gathered += kBlockRows) {
    for (int64_t j = 0; j < count; ++j) gathered[j] = codes[columns[j]];
  }
}

void DilatedRows::ScoreBlock(const uint8_t* codes, const float* scales, int64_t begin, int64_t count,
                             const uint8_t* columns) {
  if (IsNumberFormat(qk_.op->config.arith)) return ScoreFormats(codes, scales, begin, count, columns);
  const bool accumulates = work_.qk().accumulates();
  if (!accumulates || qk_hardware_->sums_whole()) {
    SumBlocks(context_.simd, qk_, qk_hardware_, s_.left, 0, work_.head_dim, codes, 0, 1, s_.acc.data());
  }
  for (int64_t n = 0; n < lefts_; ++n) {
    int32_t* acc = s_.acc.data() + n * kBlockRows;
    if (accumulates) {
      const ScSite site = work_.QuerySite(kQkOperator, head(n));
      const ScBlockSums block{qk_hardware_, qk_hardware_->accumulator.KeysOf(site, fault_row(n)),
                              FaultColumn(0, position(begin) - columns[0]), columns[count - 1] + 1};
      AccumulateBlock(context_.simd, qk_, block, s_.left[static_cast<size_t>(n)], work_.head_dim, codes, acc);
    }
    float* scores = s_.scores.data() + n * admitted_.size() + begin;
    const float q_scale = s_.q.scale(n, 0);
    for (int64_t i = 0; i < count; ++i) {
      scores[i] = BipolarProduct(acc[columns[i]], qk_.op->gain, q_scale, scales[columns[i]]) * work_.scale;
    }
  }
}

void DilatedRows::ScoreFormats(const uint8_t* codes, const float* scales, int64_t begin, int64_t count,
                               const uint8_t* columns) {
  const FormatKeys keys{codes, scales, work_.cache.spec().key_scales, columns[count - 1] + 1};
  float y[kBlockRows];
  for (int64_t n = 0; n < lefts_; ++n) {
    MultiplyKeys(context_.simd, qk_, s_.q, n, keys, y);
    float* scores = s_.scores.data() + n * admitted_.size() + begin;
    for (int64_t i = 0; i < count; ++i) scores[i] = y[columns[i]] * work_.scale;
  }
}

void DilatedRows::ReadScales() {
  s_.v_scales.resize(static_cast<size_t>(admitted_.size()));
  s_.weighted.resize(static_cast<size_t>(admitted_.size()));
  for (int64_t i = 0; i < admitted_.size(); ++i) {
    s_.v_scales[static_cast<size_t>(i)] = work_.cache.v_scales(slab(position(i)))[position(i) % work_.page_tokens];
  }
}

bool DilatedRows::Probabilities(int64_t n) {
  const Range seen = Seen(n);
  const ScQuantizer::Row out = s_.p.row(n);
  std::fill(out.codes, out.codes + admitted_.size(), uint8_t{0});
  bool finite = true;
  if (seen.begin < seen.end) {
    float* p = s_.scores.data() + n * admitted_.size();
    work_.CapScores(p + seen.begin, seen.end - seen.begin);
    const float largest = *std::max_element(p + seen.begin, p + seen.end);
    ExpSum(context_.simd, work_.call.exp_table, p + seen.begin, seen.end - seen.begin, largest);
    float lanes[kRowLanes] = {};
    for (int64_t i = seen.begin; i < seen.end; ++i) {
      p[i] = static_cast<float>(admitted_.times[static_cast<size_t>(i)]) * p[i];
      float& lane = lanes[position(i) % kRowLanes];
      lane = lane + p[i];
    }
    const float sum = FoldLanes<kRowLanes>(lanes);
    for (int64_t i = seen.begin; i < seen.end; ++i) {
      s_.weighted[static_cast<size_t>(i)] = (p[i] / sum) * s_.v_scales[static_cast<size_t>(i)];
    }
    const RowQuantizer quantize(context_, av_, OneChunk(seen.end - seen.begin));
    finite = quantize(s_.weighted.data() + seen.begin, {out.codes + seen.begin, out.scales, nullptr, nullptr});
  }
  s_.p.Derive(av_, n, admitted_.positions.data());
  return finite;
}

void DilatedRows::AddValues() {
  for (int64_t begin = 0; begin < admitted_.size(); begin += kPiece) {
    const int64_t count = std::min(kPiece, admitted_.size() - begin);
    int64_t stride = 0;
    const uint8_t* codes = Values(begin, count, &stride);
    // Heads of a tile see the same positions; the first row sees the fewest.
    if (Seen(0).end >= begin + count) {
      AddProducts(0, lefts_, begin, count, codes, stride);
      continue;
    }
    for (int64_t n = 0; n < lefts_; n += heads_) {
      const int64_t dims = std::min(count, Seen(n).end - begin);
      if (dims > 0) AddProducts(n, heads_, begin, dims, codes, stride);
    }
  }
}

const uint8_t* DilatedRows::Values(int64_t begin, int64_t count, int64_t* stride) {
  const auto codes_at = [&](int64_t t) { return work_.cache.v_codes(slab(t)) + t % work_.page_tokens * kBlockRows; };
  const int64_t block_bytes = work_.page_tokens * kBlockRows;
  const int64_t first = position(begin), last = position(begin + count - 1);
  if (last - first == count - 1 && first / work_.page_tokens == last / work_.page_tokens) {
    *stride = block_bytes;
    return codes_at(first);
  }
  *stride = kPiece * kBlockRows;
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t* from = codes_at(position(begin + i));
    for (int64_t block = 0; block < work_.cache.channel_blocks(); ++block) {
      std::copy_n(from + block * block_bytes, kBlockRows, s_.codes.data() + (block * kPiece + i) * kBlockRows);
    }
  }
  return s_.codes.data();
}

void DilatedRows::AddProducts(int64_t first, int64_t rows, int64_t begin, int64_t count, const uint8_t* codes,
                              int64_t stride) {
  for (int64_t n = 0; n < rows; ++n) {
    ScLeft& left = s_.left[static_cast<size_t>(n)];
    left = s_.p.Left(first + n, begin);
    left.positions = admitted_.positions.data() + begin;
  }
  context_.simd.sc_block(av_.table(), s_.left.data(), rows, 0, count, codes, stride, work_.cache.channel_blocks(),
                         s_.acc.data());
  int32_t* sums = s_.sums.data() + first * channels_;
  for (int64_t i = 0; i < rows * channels_; ++i) sums[i] += s_.acc[static_cast<size_t>(i)];
}

void DilatedRows::Output(int64_t n) const {
  float* out = work_.out(row(n), head(n));
  const Range seen = Seen(n);
  const float scale = seen.begin < seen.end ? s_.p.scale(n, 0) : 0.0f;  // nothing to see: every sum is 0
  for (int64_t i = 0; i < work_.head_dim; ++i) {
    out[i] = (static_cast<float>(s_.sums[static_cast<size_t>(n * channels_ + i)]) * av_.op->gain) * scale;
  }
}

}  // namespace

void AttendDilated(Context& context, const AttentionWork& work) {
  const std::vector<DilatedTile> tiles = CutTiles(work);
  std::vector<Scratch> scratches(static_cast<size_t>(context.pool.size()));
  std::atomic<bool> finite{true};
  context.pool.ParallelFor(static_cast<int64_t>(tiles.size()), [&](int64_t i, int thread) {
    const DilatedTile& tile = tiles[static_cast<size_t>(i)];
    if (!DilatedRows(context, work, tile, &scratches[static_cast<size_t>(thread)]).Run()) {
      finite.store(false, std::memory_order_relaxed);
    }
  });
  if (!finite.load()) context.finite.Report(work.cache.device(), work.call.site, "the probabilities");
}

}  // namespace stoch::cpu
