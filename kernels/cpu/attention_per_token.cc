// SPDX-License-Identifier: Apache-2.0
// Attention with k and v quantized once, when they enter the cache: causal, append-only, chunk-invariant.
#include <algorithm>
#include <atomic>
#include <span>
#include <vector>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_formats.h"
#include "kernels/cpu/row_quantizer.h"
#include "kernels/cpu/softmax.h"
#include "kernels/math/quantize.h"

namespace stoch::cpu {
namespace {

constexpr int64_t kRowsPerTile = 4;

// Positions of a chunk of p v in integers and in E4M3.
constexpr int64_t kIntChunk = 128;

// A tile on its way from queries to outputs. Every query row n = row * group + head of group is a left row, so that all
// of them share what is read of K and V.
struct TileState {
  ScRows q;                   // [rows * group, head_dim]
  ScRows p;                   // [rows * group, window], codes 0 beyond the positions that a row sees
  std::vector<float> scores;  // [rows * group, window]
};

// Temporary buffers of a thread.
struct Scratch {
  struct Run {
    const ScLookup* lookup;
    int64_t begin, end;  // range of `order`
    std::span<const ScLeft> of(const std::vector<ScLeft>& rows) const {
      return {rows.data() + begin, static_cast<size_t>(end - begin)};
    }
  };
  std::vector<int64_t> order;  // left rows by length
  std::vector<Run> runs;
  std::vector<ScLeft> left;     // [rows * group]
  std::vector<int32_t> acc;     // [rows * group][64]
  std::vector<float> weighted;  // [window]: p * scale of v
  std::vector<int32_t> sums;    // [rows * group][channel blocks * 64]
  std::vector<uint8_t> values;  // [positions][64]: codes of v
};

// One mode of one pass; a step runs on any thread, for one tile or a part of it.
class PerToken {
 public:
  PerToken(Context& context, const AttentionWork& work)
      : context_(context),
        work_(work),
        qk_(*work.qk().lookup),
        av_(*work.av().lookup),
        q_slots_(work, work.qk(), "qk"),
        p_slots_(work, work.av(), "av"),
        group_(work.group()),
        qk_hardware_(work.qk().hardware.get()),
        av_hardware_(work.av().hardware.get()),
        int_av_(IntBits(work.av().op().config.arith) > 0),
        format_av_(IsNumberFormat(work.av().op().config.arith)),
        format_qk_(IsNumberFormat(work.qk().op().config.arith)) {}

  // Lengths of all queries.
  void DispatchQueries() { q_slots_.ObserveQueries(); }
  // Lengths of all probabilities, where they depend on each other. Requires: Probabilities of every row.
  void DispatchProbabilities() {
    if (!rows_alone()) p_slots_.Dispatch();
  }
  bool rows_alone() const { return p_slots_.alone(); }
  void Report() const {
    q_slots_.Report(context_);
    p_slots_.Report(context_);
  }
  void QuantizeQueries(const AttentionTile& tile, TileState* state) const;
  // Scores of every query row against positions [begin, end), whole pages but for the window's end.
  void Score(const AttentionTile& tile, int64_t begin, int64_t end, TileState* state, Scratch* s) const;
  // Scores of row n to codes of its probabilities. False if NaN or infinity was met.
  bool Probabilities(const AttentionTile& tile, int64_t n, TileState* state, Scratch* s);
  // Adds sums of p v over positions [begin, end) to sums [rows * group][sums_per_row].
  void AddValues(const AttentionTile& tile, int64_t begin, int64_t end, const TileState& state, Scratch* s,
                 int32_t* sums) const;
  void Output(const AttentionTile& tile, int64_t n, const TileState& state, const int32_t* sums) const;

  int64_t lefts(const AttentionTile& tile) const { return tile.num_rows * group_; }
  int64_t channels() const { return work_.cache.channel_blocks() * kBlockRows; }
  // [chunks of positions][channels]
  int64_t sums_per_row(const AttentionTile& tile) const { return PositionChunks(tile.window()).count * channels(); }

 private:
  // Orders rows [first, first + count) of a tile by their slots; one run where all are alike.
  void Sort(const AttentionSlots& slots, const AttentionTile& tile, int64_t first, int64_t count, Scratch* s) const;
  ScChunks PositionChunks(int64_t positions) const {
    return ChunksOf(positions, int_av_ || format_av_ ? kIntChunk : positions);
  }

  uint64_t FaultRowOf(const AttentionTile& tile, int64_t n) const {
    return FaultRow(tile.sequence->number, Visible(tile, n) - 1);
  }
  // Codes [first, count) of one operand of query row n as they are read.
  void ReadRowCodes(const ScLookup& lookup, const ScHardware* hardware, int op, const AttentionTile& tile, int64_t n,
                    uint8_t* codes, int64_t count, int64_t first = 0) const {
    if (hardware == nullptr || !hardware->a.any()) return;
    const ScSite site = work_.QuerySite(op, Head(tile, n));
    const uint64_t key = FaultKey(hardware->seed(), FaultKind::kActivation, site, FaultRowOf(tile, n));
    ReadCodes(*lookup.op, hardware->a, key, {}, static_cast<uint64_t>(first), codes + first, count - first, nullptr);
  }
  // AddValues by an adder of gates: of the groups that begin in [begin, end).
  void AddGroups(const AttentionTile& tile, int64_t begin, int64_t end, const TileState& state, Scratch* s,
                 int32_t* sums) const;
  // Output from sums that meet flipped bits and registers.
  void OutputFromSums(const AttentionTile& tile, int64_t n, const TileState& state, const int32_t* sums) const;
  // How many dimensions differ in sign, for each channel, of query row n and its positions [begin, end).
  std::vector<int32_t> Negatives(const AttentionTile& tile, int64_t n, const TileState& state, int64_t begin,
                                 int64_t end) const;
  // Output where accumulators are no sums, channel by channel.
  void OutputFromCodes(const AttentionTile& tile, int64_t n, const TileState& state) const;

  int64_t Visible(const AttentionTile& tile, int64_t n) const { return tile.first_position + n / group_ + 1; }
  int64_t Head(const AttentionTile& tile, int64_t n) const { return tile.kv_head * group_ + n % group_; }

  Context& context_;
  const AttentionWork& work_;
  const ScLookup& qk_;
  const ScLookup& av_;
  AttentionSlots q_slots_, p_slots_;
  int64_t group_;
  const ScHardware* qk_hardware_;  // null: ideal
  const ScHardware* av_hardware_;
  bool int_av_;
  bool format_av_, format_qk_;
};

void PerToken::Sort(const AttentionSlots& slots, const AttentionTile& tile, int64_t first, int64_t count,
                    Scratch* s) const {
  s->order.resize(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) s->order[static_cast<size_t>(i)] = first + i;
  s->runs.clear();
  const auto slot = [&](int64_t n) { return slots.slot(tile.first_row + n / group_, Head(tile, n)); };
  const auto lookup = [&](int64_t n) { return slots.lookup(tile.first_row + n / group_, Head(tile, n)); };
  if (slots.mixed()) {
    std::stable_sort(s->order.begin(), s->order.end(), [&](int64_t a, int64_t b) { return slot(a) < slot(b); });
  }
  for (int64_t begin = 0, end; begin < count; begin = end) {
    const int64_t n = s->order[static_cast<size_t>(begin)];
    end = slots.mixed() ? begin + 1 : count;
    while (end < count && slot(s->order[static_cast<size_t>(end)]) == slot(n)) ++end;
    s->runs.push_back({lookup(n), begin, end});
  }
}

void PerToken::QuantizeQueries(const AttentionTile& tile, TileState* state) const {
  const ScChunks chunks = HeadChunks(*qk_.op, work_.head_dim);
  const RowQuantizer quantize(context_, qk_, chunks);
  state->q.Resize(qk_, chunks, lefts(tile), work_.head_dim);
  state->p.Resize(av_, PositionChunks(tile.window()), lefts(tile), work_.page_tokens);
  state->scores.resize(static_cast<size_t>(lefts(tile) * tile.window()));
  for (int64_t n = 0; n < lefts(tile); ++n) {
    quantize(work_.q(tile.first_row + n / group_, Head(tile, n)), state->q.row(n));
    ReadRowCodes(qk_, qk_hardware_, kQkOperator, tile, n, state->q.row(n).codes, work_.head_dim);
    state->q.Derive(qk_, n);
  }
}

void PerToken::Score(const AttentionTile& tile, int64_t begin, int64_t end, TileState* state, Scratch* s) const {
  const int64_t rows = lefts(tile);
  s->left.resize(static_cast<size_t>(rows));
  s->acc.resize(static_cast<size_t>(rows * kBlockRows));
  Sort(q_slots_, tile, 0, rows, s);
  for (int64_t i = 0; i < rows; ++i) {
    s->left[static_cast<size_t>(i)] = state->q.Left(s->order[static_cast<size_t>(i)], 0);
  }
  for (const Scratch::Run& run : s->runs) {
    if (run.lookup == nullptr || !run.lookup->wide_row.empty()) continue;
    for (int64_t i = run.begin; i < run.end; ++i) s->left[static_cast<size_t>(i)].num_wide = 0;
  }
  const int64_t block_bytes = work_.head_dim * kBlockRows;
  const int64_t key_scales = work_.cache.spec().key_scales;
  for (int64_t page = begin; page < end; page += work_.page_tokens) {
    const int64_t slab = work_.slab(*tile.sequence, page, tile.kv_head);
    const int64_t page_end = std::min(page + work_.page_tokens, end);
    for (int64_t t = page; t < page_end; t += kBlockRows) {
      const uint8_t* codes = work_.cache.k_codes(slab) + (t - page) / kBlockRows * block_bytes;
      const float* k_scales = work_.cache.k_scales(slab) + (t - page) * key_scales;
      for (const Scratch::Run& run : s->runs) {
        if (run.lookup == nullptr) {  // length 0
          for (int64_t i = run.begin; i < run.end; ++i) {
            float* scores = state->scores.data() + s->order[static_cast<size_t>(i)] * tile.window() + t;
            std::fill_n(scores, std::min<int64_t>(kBlockRows, page_end - t), 0.0f);
          }
          continue;
        }
        if (format_qk_) {
          const FormatKeys keys{codes, k_scales, key_scales, std::min<int64_t>(kBlockRows, page_end - t)};
          for (int64_t n = 0; n < rows; ++n) {
            float* scores = state->scores.data() + n * tile.window() + t;
            MultiplyKeys(context_.simd, qk_, state->q, n, keys, scores);
            for (int64_t j = 0; j < keys.count; ++j) scores[j] = scores[j] * work_.scale;
          }
          continue;
        }
        const bool accumulates = work_.qk().accumulates();
        if (!accumulates || qk_hardware_->sums_whole()) {
          SumBlocks(context_.simd, *run.lookup, qk_hardware_, run.of(s->left), 0, work_.head_dim, codes, block_bytes, 1,
                    s->acc.data());
        }
        for (int64_t i = run.begin; i < run.end; ++i) {
          const int64_t n = s->order[static_cast<size_t>(i)];
          int32_t* acc = s->acc.data() + (i - run.begin) * kBlockRows;
          if (accumulates) {
            const ScSite site = work_.QuerySite(kQkOperator, Head(tile, n));
            const ScBlockSums block{qk_hardware_, qk_hardware_->accumulator.KeysOf(site, FaultRowOf(tile, n)),
                                    FaultColumn(0, t), std::min<int64_t>(kBlockRows, page_end - t)};
            AccumulateBlock(context_.simd, *run.lookup, block, s->left[static_cast<size_t>(i)], work_.head_dim, codes,
                            acc);
          }
          float* scores = state->scores.data() + n * tile.window() + t;
          const float q_scale = state->q.scale(n, 0);
          for (int64_t j = 0; j < std::min<int64_t>(kBlockRows, page_end - t); ++j) {
            scores[j] = BipolarProduct(acc[j], run.lookup->op->gain, q_scale, k_scales[j * key_scales]) * work_.scale;
          }
        }
      }
    }
  }
}

bool PerToken::Probabilities(const AttentionTile& tile, int64_t n, TileState* state, Scratch* s) {
  const int64_t visible = Visible(tile, n);
  float* p = state->scores.data() + n * tile.window();
  const int64_t first = work_.FirstSeen(visible - 1);
  HideScores(p, first);
  work_.CapScores(p + first, visible - first);
  Softmax(context_.simd, p, visible, work_.call.exp_table);
  p_slots_.Observe(tile.first_row + n / group_, Head(tile, n), p, visible);
  // Pages before the window count nothing, and a ring does not bring them: their scales may be anything.
  const int64_t first_page = work_.FirstSeenPage(visible - 1);
  s->weighted.resize(static_cast<size_t>(visible));
  std::fill_n(s->weighted.begin(), first_page, 0.0f);
  for (int64_t page = first_page; page < visible; page += work_.page_tokens) {
    const float* v_scales = work_.cache.v_scales(work_.slab(*tile.sequence, page, tile.kv_head));
    const int64_t end = std::min(page + work_.page_tokens, visible);
    for (int64_t t = page; t < end; ++t) s->weighted[static_cast<size_t>(t)] = p[t] * v_scales[t - page];
  }
  const ScQuantizer::Row row = state->p.row(n);
  const bool finite = RowQuantizer(context_, av_, PositionChunks(visible))(s->weighted.data(), row);
  ReadRowCodes(av_, av_hardware_, kAvOperator, tile, n, row.codes, visible, first);
  std::fill(row.codes + visible, row.codes + tile.window(), uint8_t{0});
  state->p.Derive(av_, n);
  return finite;
}

void PerToken::AddValues(const AttentionTile& tile, int64_t begin, int64_t end, const TileState& state, Scratch* s,
                         int32_t* sums) const {
  if (work_.av().accumulates() && !av_hardware_->sums_whole()) return;  // OutputFromCodes
  if (format_av_) return;                                               // MultiplyValues
  if (av_hardware_ != nullptr && av_hardware_->accumulator.gate_steps() != nullptr)
    return AddGroups(tile, begin, end, state, s, sums);
  s->left.resize(static_cast<size_t>(group_));
  s->acc.resize(static_cast<size_t>(group_ * kBlockRows));
  for (int64_t page = begin; page < end; page += work_.page_tokens) {
    const uint8_t* codes = work_.cache.v_codes(work_.slab(*tile.sequence, page, tile.kv_head));
    // Heads of a group see the same positions, rows of a tile do not.
    for (int64_t first = 0; first < lefts(tile); first += group_) {
      const int64_t dims = std::min({work_.page_tokens, end - page, Visible(tile, first) - page});
      if (page < work_.FirstSeenPage(Visible(tile, first) - 1)) continue;  // codes 0, as every p there
      if (dims <= 0) continue;
      Sort(p_slots_, tile, first, group_, s);
      const int64_t chunk = int_av_ ? page / kIntChunk : 0;
      for (const Scratch::Run& run : s->runs) {
        if (run.lookup == nullptr) continue;
        for (int64_t i = run.begin; i < run.end; ++i) {
          ScLeft& left = s->left[static_cast<size_t>(i)];
          left = state.p.Left(s->order[static_cast<size_t>(i)], page);
          if (run.lookup->wide_row.empty()) left.num_wide = 0;
        }
        for (int64_t block = 0; block < work_.cache.channel_blocks(); ++block) {
          context_.simd.sc_block(run.lookup->table(), s->left.data() + run.begin, run.end - run.begin, page, dims,
                                 codes + block * work_.page_tokens * kBlockRows, 0, 1, s->acc.data());
          for (int64_t i = run.begin; i < run.end; ++i) {
            const int32_t* acc = s->acc.data() + (i - run.begin) * kBlockRows;
            int32_t* to =
                sums + s->order[static_cast<size_t>(i)] * sums_per_row(tile) + chunk * channels() + block * kBlockRows;
            for (int64_t j = 0; j < kBlockRows; ++j) to[j] += acc[j];
          }
        }
      }
    }
  }
}

void PerToken::AddGroups(const AttentionTile& tile, int64_t begin, int64_t end, const TileState& state, Scratch* s,
                         int32_t* sums) const {
  // Groups begin at multiples of absolute positions, ranges do not: the first has the rest of a group that no row sees.
  const int64_t group = av_hardware_->accumulator.config().adder_group;
  const auto at_group = [group](int64_t position) { return (position + group - 1) / group * group; };
  const int64_t first = begin == work_.FirstSeenPage(tile.first_position) ? begin / group * group : at_group(begin);
  const int64_t dims = std::min(at_group(end), tile.window()) - first;
  if (dims <= 0) return;
  s->left.clear();
  for (int64_t n = 0; n < lefts(tile); ++n) s->left.push_back(state.p.Left(n, first));
  s->acc.resize(s->left.size() * kBlockRows);
  s->values.assign(static_cast<size_t>(dims * kBlockRows), 0);
  for (int64_t block = 0; block < work_.cache.channel_blocks(); ++block) {
    for (int64_t t = std::max(first, begin); t < first + dims; ++t) {
      const uint8_t* page = work_.cache.v_codes(work_.slab(*tile.sequence, t, tile.kv_head));
      const uint8_t* codes = page + (block * work_.page_tokens + t % work_.page_tokens) * kBlockRows;
      std::copy_n(codes, kBlockRows, s->values.data() + (t - first) * kBlockRows);
    }
    SumBlocks(context_.simd, av_, av_hardware_, s->left, first, dims, s->values.data(), 0, 1, s->acc.data());
    for (int64_t n = 0; n < lefts(tile); ++n) {
      int32_t* to = sums + n * sums_per_row(tile) + block * kBlockRows;
      for (int64_t j = 0; j < kBlockRows; ++j) to[j] += s->acc[static_cast<size_t>(n * kBlockRows + j)];
    }
  }
}

std::vector<int32_t> PerToken::Negatives(const AttentionTile& tile, int64_t n, const TileState& state, int64_t begin,
                                         int64_t end) const {
  std::vector<int32_t> negatives(static_cast<size_t>(channels()), 0);
  if (!av_hardware_->accumulator.wants_negatives()) return negatives;
  const ScOperator& op = work_.av().op();
  for (int64_t t = begin, next; t < end; t = next) {
    next = std::min(end, t / work_.page_tokens * work_.page_tokens + work_.page_tokens);
    const uint8_t* page = work_.cache.v_codes(work_.slab(*tile.sequence, t, tile.kv_head));
    for (int64_t block = 0; block < work_.cache.channel_blocks(); ++block) {
      const uint8_t* codes = page + (block * work_.page_tokens + t % work_.page_tokens) * kBlockRows;
      CountNegatives(op, state.p.Left(n, t).codes, next - t, codes, negatives.data() + block * kBlockRows);
    }
  }
  return negatives;
}

void PerToken::OutputFromSums(const AttentionTile& tile, int64_t n, const TileState& state, const int32_t* sums) const {
  float* out = work_.out(tile.first_row + n / group_, Head(tile, n));
  std::fill_n(out, work_.head_dim, 0.0f);
  const ScLookup* lookup = p_slots_.lookup(tile.first_row + n / group_, Head(tile, n));
  if (lookup == nullptr) return;
  const ScOperator& op = *lookup->op;
  const int64_t visible = Visible(tile, n);
  const ScAccumulator& accumulator = av_hardware_->accumulator;
  const ScAccumulator::Row keys = accumulator.KeysOf(work_.QuerySite(kAvOperator, Head(tile, n)), FaultRowOf(tile, n));
  const ScChunks chunks = PositionChunks(visible);
  for (int64_t c = 0; c < chunks.count; ++c) {
    const int64_t begin = std::max(chunks.begin(c), work_.FirstSeen(visible - 1));
    const int64_t end = chunks.begin(c) + chunks.dims(c);
    if (end <= begin) continue;
    const std::vector<int32_t> negatives = Negatives(tile, n, state, begin, end);
    for (int64_t d = 0; d < work_.head_dim; ++d) {
      const int32_t acc = accumulator.Finish(sums[c * channels() + d], negatives[static_cast<size_t>(d)], end - begin,
                                             op.config.stoc_len, keys, FaultColumn(c, d));
      out[d] = out[d] + (static_cast<float>(acc) * op.gain) * state.p.scale(n, c);
    }
  }
}

void PerToken::OutputFromCodes(const AttentionTile& tile, int64_t n, const TileState& state) const {
  float* out = work_.out(tile.first_row + n / group_, Head(tile, n));
  std::fill_n(out, work_.head_dim, 0.0f);
  const ScLookup* lookup = p_slots_.lookup(tile.first_row + n / group_, Head(tile, n));
  if (lookup == nullptr) return;
  const ScOperator& op = *lookup->op;
  const int64_t visible = Visible(tile, n);
  const int64_t first = work_.FirstSeen(visible - 1);
  const ScAccumulator::Row keys =
      av_hardware_->accumulator.KeysOf(work_.QuerySite(kAvOperator, Head(tile, n)), FaultRowOf(tile, n));
  std::vector<int> p(static_cast<size_t>(visible)), v(static_cast<size_t>(visible));
  const uint8_t* codes = state.p.Left(n, 0).codes;
  for (int64_t t = first; t < visible; ++t) p[static_cast<size_t>(t)] = LevelOfCode(op, codes[t]);
  const ScChunks chunks = PositionChunks(visible);
  for (int64_t d = 0; d < work_.head_dim; ++d) {
    for (int64_t t = first; t < visible; ++t) {
      const uint8_t* page = work_.cache.v_codes(work_.slab(*tile.sequence, t, tile.kv_head));
      const int64_t at = (d / kBlockRows * work_.page_tokens + t % work_.page_tokens) * kBlockRows + d % kBlockRows;
      v[static_cast<size_t>(t)] = LevelOfCode(op, page[at]);
    }
    for (int64_t c = 0; c < chunks.count; ++c) {
      const int64_t begin = std::max(chunks.begin(c), first);
      const int64_t dims = chunks.begin(c) + chunks.dims(c) - begin;
      if (dims <= 0) continue;
      const ScLevelRange range{p.data(), v.data(), chunks.begin(c), begin, dims};
      const int32_t acc = AccumulateLevels(op, av_hardware_->accumulator, range, keys, FaultColumn(c, d));
      out[d] = out[d] + (static_cast<float>(acc) * op.gain) * state.p.scale(n, c);
    }
  }
}

void PerToken::Output(const AttentionTile& tile, int64_t n, const TileState& state, const int32_t* sums) const {
  if (format_av_) {
    float* out = work_.out(tile.first_row + n / group_, Head(tile, n));
    return MultiplyValues(work_, tile, state.p, n, Visible(tile, n), out);
  }
  if (work_.av().accumulates()) {
    return av_hardware_->sums_whole() ? OutputFromSums(tile, n, state, sums) : OutputFromCodes(tile, n, state);
  }
  float* out = work_.out(tile.first_row + n / group_, Head(tile, n));
  if (int_av_) {
    const int64_t chunks = PositionChunks(Visible(tile, n)).count;
    for (int64_t i = 0; i < work_.head_dim; ++i) {
      float y = 0.0f;
      for (int64_t c = 0; c < chunks; ++c) {
        y = y + static_cast<float>(sums[c * channels() + i]) * state.p.scale(n, c);
      }
      out[i] = y;
    }
    return;
  }
  const ScLookup* lookup = p_slots_.lookup(tile.first_row + n / group_, Head(tile, n));
  const float gain = lookup == nullptr ? 0.0f : lookup->op->gain;
  for (int64_t i = 0; i < work_.head_dim; ++i) {
    out[i] = (static_cast<float>(sums[i]) * gain) * state.p.scale(n, 0);
  }
}

// A thread does all of a tile.
bool AttendWhole(PerToken& steps, const AttentionWork& work, const AttentionTile& tile, TileState* state, Scratch* s) {
  const int64_t rows = steps.lefts(tile);
  steps.QuantizeQueries(tile, state);
  const int64_t begin = work.FirstSeenPage(tile.first_position);
  steps.Score(tile, begin, tile.window(), state, s);
  bool finite = true;
  for (int64_t n = 0; n < rows; ++n) finite = steps.Probabilities(tile, n, state, s) && finite;
  s->sums.assign(static_cast<size_t>(rows * steps.sums_per_row(tile)), 0);
  steps.AddValues(tile, begin, tile.window(), *state, s, s->sums.data());
  for (int64_t n = 0; n < rows; ++n) steps.Output(tile, n, *state, s->sums.data() + n * steps.sums_per_row(tile));
  return finite;
}

// All threads do each step of all tiles: scores and sums of p v by positions, which are integers or stand alone, so
// that their order shows in no bit; probabilities by query rows.
bool AttendShared(Context& context, PerToken& steps, const AttentionWork& work, const std::vector<AttentionTile>& tiles,
                  std::vector<Scratch>* scratches) {
  std::vector<TileState> states(tiles.size());
  std::vector<AttentionTileRow> rows;
  for (size_t i = 0; i < tiles.size(); ++i) {
    steps.QuantizeQueries(tiles[i], &states[i]);
    for (int64_t n = 0; n < steps.lefts(tiles[i]); ++n) rows.push_back({i, n});
  }
  const std::vector<AttentionRange> ranges = CutPositions(work, tiles, context.pool.size());
  context.pool.ParallelFor(static_cast<int64_t>(ranges.size()), [&](int64_t i, int thread) {
    const AttentionRange& range = ranges[static_cast<size_t>(i)];
    steps.Score(tiles[range.tile], range.begin, range.end, &states[range.tile],
                &(*scratches)[static_cast<size_t>(thread)]);
  });
  std::atomic<bool> finite{true};
  context.pool.ParallelFor(static_cast<int64_t>(rows.size()), [&](int64_t i, int thread) {
    const AttentionTileRow& row = rows[static_cast<size_t>(i)];
    if (!steps.Probabilities(tiles[row.tile], row.n, &states[row.tile], &(*scratches)[static_cast<size_t>(thread)])) {
      finite.store(false, std::memory_order_relaxed);
    }
  });
  steps.DispatchProbabilities();
  std::vector<std::vector<int32_t>> sums(ranges.size());
  context.pool.ParallelFor(static_cast<int64_t>(ranges.size()), [&](int64_t i, int thread) {
    const AttentionRange& range = ranges[static_cast<size_t>(i)];
    const AttentionTile& tile = tiles[range.tile];
    std::vector<int32_t>& to = sums[static_cast<size_t>(i)];
    to.assign(static_cast<size_t>(steps.lefts(tile) * steps.sums_per_row(tile)), 0);
    steps.AddValues(tile, range.begin, range.end, states[range.tile], &(*scratches)[static_cast<size_t>(thread)],
                    to.data());
  });
  for (size_t i = 0, next; i < ranges.size(); i = next) {
    std::vector<int32_t>& total = sums[i];
    const size_t tile = ranges[i].tile;
    for (next = i + 1; next < ranges.size() && ranges[next].tile == tile; ++next) {
      for (size_t j = 0; j < total.size(); ++j) total[j] += sums[next][j];
    }
    for (int64_t n = 0; n < steps.lefts(tiles[tile]); ++n) {
      steps.Output(tiles[tile], n, states[tile], total.data() + n * steps.sums_per_row(tiles[tile]));
    }
  }
  return finite.load();
}

}  // namespace

void AttendPerToken(Context& context, const AttentionWork& work) {
  AttentionTiles tiles = MakeTiles(work, kRowsPerTile, context.pool.size());
  PerToken steps(context, work);
  steps.DispatchQueries();
  if (!steps.rows_alone()) {  // every row's probabilities come before the first length
    tiles.shared.insert(tiles.shared.end(), tiles.whole.begin(), tiles.whole.end());
    tiles.whole.clear();
  }
  std::vector<Scratch> scratches(static_cast<size_t>(context.pool.size()));
  std::atomic<bool> finite{true};
  if (!tiles.shared.empty() && !AttendShared(context, steps, work, tiles.shared, &scratches)) finite.store(false);
  std::vector<TileState> states(static_cast<size_t>(context.pool.size()));
  context.pool.ParallelFor(static_cast<int64_t>(tiles.whole.size()), [&](int64_t i, int thread) {
    const size_t t = static_cast<size_t>(thread);
    if (!AttendWhole(steps, work, tiles.whole[static_cast<size_t>(i)], &states[t], &scratches[t])) {
      finite.store(false, std::memory_order_relaxed);
    }
  });
  steps.Report();
  if (!finite.load()) context.finite.Report(work.cache.device(), work.call.site, "the probabilities");
}

}  // namespace stoch::cpu
