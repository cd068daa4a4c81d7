// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/fabric/ring/attention.h"

#include <algorithm>
#include <array>
#include <string>

#include "kernels/call_check.h"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/mixed.h"
#include "kernels/cuda/attention/shape.h"
#include "kernels/cuda/base/device_guard.h"
#include "kernels/cuda/fabric/ring/places.h"
#include "kernels/cuda/fabric/ring/query.h"
#include "kernels/cuda/fabric/ring/window.h"
#include "kernels/plan/attention/ring.h"
#include "kernels/ring_reach.h"

namespace stoch::cuda {
namespace {

// One round of the ring: the keys and values of KV heads [first_head, first_head + heads) of a sequence.
struct Round {
  size_t sequence = 0;
  int64_t first_page = 0;  // first page of the sequence that is sent (FirstPage)
  int first_head = 0;
  int heads = 1;
};

// One call whose keys and values go around the ring.
class RingPass {
 public:
  RingPass(const RingAttentionCall& call, const std::vector<RingPart>& parts)
      : call_(call),
        parts_(parts),
        layout_(parts.front().pass->layout()),
        spec_(parts.front().cache->spec()),
        group_(call.parts.front().num_heads / spec_.num_kv_heads),
        limits_(parts.front().pass->limits()),
        tiles_(parts.size()) {
    for (size_t s = 0; s < layout_.sequences.size(); ++s) {
      const int heads = RingHeads(spec_, limits_, PagesOf(s));
      const int64_t page = FirstPage(s);
      for (int first = 0; first < spec_.num_kv_heads; first += heads) rounds_.push_back({s, page, first, heads});
    }
  }

  RingRounds Rounds();
  std::vector<std::array<uint8_t*, 2>> Slabs() const;

 private:
  const RingPart& PartOf(int rank) const { return parts_[static_cast<size_t>(rank)]; }
  const Round& at(int64_t round) const { return rounds_[static_cast<size_t>(round)]; }
  int64_t LengthOf(size_t sequence) const {
    return int64_t{layout_.sequences[sequence].start_position} + layout_.sequences[sequence].num_rows;
  }
  int64_t PagesOf(size_t sequence) const { return (LengthOf(sequence) + spec_.page_tokens - 1) / spec_.page_tokens; }
  // First page that is sent. The kernel of dilated attention multiplies only admitted positions, so pages before the
  // first of them are not needed. Other kernels also read positions before a sliding window, so they need all pages.
  int64_t FirstPage(size_t sequence) const {
    const AttentionCall& call = call_.parts.front();
    if (call.dilated.empty()) return 0;
    return FirstSeen(call, layout_.sequences[sequence].start_position) / spec_.page_tokens;
  }
  KvView WindowOf(const RingPart& part, int64_t round) const {
    return part.places().window(part.scratch, static_cast<int>(round % kRingWindows), part.args.kv, at(round).heads);
  }
  RingBlock BlockOf(const RingPart& part, int64_t round, int origin) const;
  // Arguments for attention over the round's window, for the rows of its sequence and the query heads that share its KV
  // heads.
  AttentionArgs WindowArgs(const RingPart& part, int64_t round) const;
  AttendedRows WindowRows(int rank, int64_t round);
  void Compute(int rank, int64_t round);

  const RingAttentionCall& call_;
  const std::vector<RingPart>& parts_;
  const PassLayout& layout_;
  const KvCacheSpec& spec_;
  int group_;
  const PassLimits limits_;
  std::vector<Round> rounds_;
  std::vector<std::vector<QueryTile>> tiles_;  // [rank] tiles of the current round's sequence, the host's copy
};

RingBlock RingPass::BlockOf(const RingPart& part, int64_t round, int origin) const {
  const PassView& pass = part.pass->view();
  RingBlock block;
  block.stripe = PartOf(origin).stripe;
  block.first_page = at(round).first_page;
  block.pages = PagesOf(at(round).sequence) - block.first_page;
  block.page_list = pass.pages + static_cast<int64_t>(at(round).sequence) * pass.max_pages;
  block.first_head = at(round).first_head;
  block.heads = at(round).heads;
  return block;
}

RingRounds RingPass::Rounds() {
  RingRounds rounds;
  rounds.count = static_cast<int64_t>(rounds_.size());
  rounds.name = [this](int64_t round) {
    RingHop hop;
    hop.site = call_.site;
    hop.sequence = static_cast<int64_t>(at(round).sequence);
    hop.kv_head = at(round).first_head;
    return hop;
  };
  rounds.heads = [this](int64_t round) { return at(round).heads; };
  rounds.bytes = [this](int64_t round) {
    return at(round).heads * (PagesOf(at(round).sequence) - at(round).first_page) * RingPageWords(spec_) *
           static_cast<int64_t>(sizeof(uint32_t));
  };
  rounds.pack = [this](int rank, int64_t round, cudaStream_t stream, uint8_t* slab) {
    const RingPart& part = PartOf(rank);
    LaunchPackBlock(stream, part.args.kv, BlockOf(part, round, rank), slab);
  };
  rounds.unpack = [this](int rank, int64_t round, int origin, cudaStream_t stream, const uint8_t* slab) {
    LaunchUnpackBlock(stream, slab, BlockOf(PartOf(rank), round, origin), WindowOf(PartOf(rank), round));
  };
  rounds.compute = [this](int rank, int64_t round) { Compute(rank, round); };
  return rounds;
}

std::vector<std::array<uint8_t*, 2>> RingPass::Slabs() const {
  std::vector<std::array<uint8_t*, 2>> slabs;
  for (const RingPart& part : parts_) {
    const RingPlaces places = part.places();
    slabs.push_back({places.slab(part.scratch, 0), places.slab(part.scratch, 1)});
  }
  return slabs;
}

AttentionArgs RingPass::WindowArgs(const RingPart& part, int64_t round) const {
  const DealtRows& rows = part.dealt[at(round).sequence];
  const int64_t column = int64_t{at(round).first_head} * group_ * spec_.head_dim;
  AttentionArgs args = part.args;
  args.pass.positions += rows.first_row;
  args.pass.row_sequence += rows.first_row;
  args.pass.rows += rows.first_row;
  args.pass.sequences = part.rows.sequences + at(round).sequence;
  args.kv = WindowOf(part, round);
  args.q += rows.first_row * args.q_stride + column;
  args.out += rows.first_row * args.out_stride + column;
  args.rows = rows.num_rows;
  args.num_heads = at(round).heads * group_;
  args.k = args.v = nullptr;
  return args;
}

// Rows of a sequence go through tiles if there are at least kLongSequenceRows, otherwise each row by itself.
AttendedRows RingPass::WindowRows(int rank, int64_t round) {
  const RingPart& part = PartOf(rank);
  std::vector<QueryTile>& tiles = tiles_[static_cast<size_t>(rank)];
  const size_t sequence = at(round).sequence;
  const DealtRows& rows = part.dealt[sequence];
  const auto length = static_cast<int32_t>(LengthOf(sequence));
  AttendedRows attended;
  attended.all = {nullptr, rows.num_rows, length};
  tiles.clear();
  if (rows.num_rows < kLongSequenceRows) {
    attended.short_rows = attended.all;
    return attended;
  }
  attended.short_rows = {nullptr, 0, 0};
  const Stripe& stripe = part.stripe;
  const auto width_shift = static_cast<int32_t>(std::countr_zero(static_cast<uint64_t>(stripe.width())));
  for (int32_t end = rows.num_rows; end > 0;) {
    const int32_t first = (end - 1) / kQueryTile * kQueryTile;
    tiles.push_back({0, first, end - first, rows.first_local + first, width_shift,
                     static_cast<int32_t>(stripe.index * stripe.width())});
    end = first;
  }
  attended.tiles.device = part.rows.tiles + FirstDealtTile(static_cast<int64_t>(sequence), rows.first_row);
  attended.tiles.host = tiles;
  return attended;
}

// Describes a round to the planner: all rows are of one sequence, whose keys and values are in the window.
AttentionPass PassOf(const AttentionArgs& args, const AttendedRows& rows, bool dilated) {
  AttentionPass pass = AttentionPass::Rows(args.rows, rows.all.max_length, AttentionUse::kRing);
  pass.short_rows = rows.short_rows.count;
  pass.max_short_length = rows.short_rows.max_length;
  pass.batch_sequences = rows.tiles.host.empty() ? 0 : 1;
  pass.window = args.window;
  pass.dilated = dilated;
  return pass;
}

void RingPass::Compute(int rank, int64_t round) {
  const RingPart& part = PartOf(rank);
  if (part.dealt[at(round).sequence].num_rows == 0) return;
  DeviceContext& ctx = *part.ctx;
  const AttentionArgs args = WindowArgs(part, round);
  AttendedRows rows = WindowRows(rank, round);
  const AttentionLimits limits = RingAttentionLimits(spec_, limits_, at(round).heads);
  AttentionShape shape = ShapeOf(*part.cache, part.call->cache_layer, args.num_heads, at(round).heads);
  shape.longest = limits.max_context;
  const bool dilated = !part.call->dilated.empty();
  const AttentionPlan plan = PlanAttention(ctx.traits, shape, limits, PassOf(args, rows, dilated));
  if (spec_.mode == AttentionMode::kExact) {
    return AttendValues(ctx, args, shape, plan, rows.all, ctx.tables.Function(part.call->exp_table));
  }
  if (plan.short_rows == AttentionRoute::kPlainRows) {
    AttentionCall call = *part.call;
    call.first_head += int64_t{at(round).first_head} * group_;
    TensorView& smooth = call.qk_smooth;
    if (smooth.data != nullptr) smooth = Slice(smooth, 0, at(round).first_head, at(round).heads);
    return LaunchPlainAttention(ctx, args, call, *part.cache->mixed(call.cache_layer),
                                MakeDilatedPairs(call.dilated, call.first_head), *part.pass);
  }
  TileBatch batch;
  batch.num_sequences = 1;
  batch.num_tiles = static_cast<int32_t>(rows.tiles.host.size());
  batch.positions = (rows.all.max_length + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
  batch.max_length = rows.all.max_length;
  rows.tiles.batches = {&batch, 1};
  ScOperands operands;
  operands.qk = ctx.tables.Get(part.cache->qk(part.call->cache_layer));
  operands.av = ctx.tables.Get(part.cache->av(part.call->cache_layer));
  Scratch scratch(ctx.workspace);
  operands.q.words = scratch.Take<uint32_t>(int64_t{args.rows} * args.num_heads * spec_.head_dim / 4);
  operands.q.scales = scratch.Take<float>(int64_t{args.rows} * args.num_heads);
  AttentionArgs queries = args;
  queries.kv.num_kv_heads = 0;
  LaunchAppendCodes(ctx, queries, operands.qk.q_max, operands.av.q_max, operands.q);
  AttendCodes(ctx, args, shape, plan, operands, rows);
}

void CheckPasses(const RingAttentionCall& call) {
  const PassLayout& pass = static_cast<const CudaPass&>(*call.parts.front().pass).layout();
  for (const AttentionCall& part : call.parts) {
    const PassLayout& other = static_cast<const CudaPass&>(*part.pass).layout();
    if (other.ids.size() != pass.ids.size() || other.sequences.size() != pass.sequences.size()) {
      Reject(call.site, "the passes of a ring are not the same");
    }
  }
  CheckRingAttention(call, pass);
}

}  // namespace

void RunRingAttention(const std::vector<DeviceContext*>& contexts, RingGroup& group, const RingAttentionCall& call,
                      RingProbe* probe) {
  CheckRingHandles(call);
  CheckPasses(call);
  if (contexts.front()->IsRecording()) Reject(call.site, "a ring is not recorded into a graph");
  if (contexts.front()->observer != nullptr) Reject(call.site, "operands of dealt positions cannot be observed");
  const AttentionCall& first = call.parts.front();
  const AttentionShape& shape = static_cast<const CudaKvCache&>(*first.cache).shape(first.cache_layer);
  if (call.route == RingRoute::kQuery && !HasQueryRoute(shape)) {
    Reject(call.site, "exact queries and those of research settings do not go to the keys of GPUs: keys go the ring");
  }
  const std::vector<RingPart> parts = MakeRingParts(contexts, call);
  DealRows(parts, group.dealt);
  int64_t most_rows = 0;
  for (const PassLayout::Sequence& sequence : parts.front().pass->layout().sequences) {
    most_rows = std::max<int64_t>(most_rows, sequence.num_rows);
  }
  if (PlanRingRoute(shape, call.route, most_rows) == RingRoute::kQuery) {
    return AttendByQuery(parts, group.query, probe);
  }
  for (const RingPart& part : parts) AppendKeys(part);
  RingPass pass(call, parts);
  group.ring.Run(pass.Rounds(), pass.Slabs(), probe);
}

}  // namespace stoch::cuda
