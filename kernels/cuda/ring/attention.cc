// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/ring/attention.h"

#include <algorithm>
#include <array>
#include <string>

#include "kernels/call_check.h"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/shape.h"
#include "kernels/cuda/base/device_guard.h"
#include "kernels/cuda/ring/places.h"
#include "kernels/cuda/ring/query.h"
#include "kernels/cuda/ring/window.h"

namespace stoch::cuda {
namespace {

// Up to so many rows of a sequence take less to send, and their results, than its keys and values.
constexpr int32_t kQueryRows = 8;

// A call on its way.
class RingPass {
 public:
  RingPass(const RingAttentionCall& call, const std::vector<RingPart>& parts)
      : call_(call),
        parts_(parts),
        layout_(parts.front().pass->layout()),
        spec_(parts.front().cache->spec()),
        group_(call.parts.front().num_heads / spec_.num_kv_heads),
        tiles_(parts.size()) {
    for (const RingPart& part : parts) {
      shapes_.push_back(ShapeOf(*part.ctx, *part.cache, part.call->cache_layer, group_, 1));
      shapes_.back().alone = false;  // logical devices of one GPU
    }
  }

  RingRounds Rounds();
  std::vector<std::array<uint8_t*, 2>> Slabs() const;

 private:
  const RingPart& at(int rank) const { return parts_[static_cast<size_t>(rank)]; }
  size_t SequenceOf(int64_t round) const { return static_cast<size_t>(round / spec_.num_kv_heads); }
  int32_t HeadOf(int64_t round) const { return static_cast<int32_t>(round % spec_.num_kv_heads); }
  const PassLayout::Sequence& sequence(int64_t round) const { return layout_.sequences[SequenceOf(round)]; }
  int64_t PagesOf(int64_t round) const {
    const int64_t length = int64_t{sequence(round).start_position} + sequence(round).num_rows;
    return (length + spec_.page_tokens - 1) / spec_.page_tokens;
  }
  RingBlock BlockOf(const RingPart& part, int64_t round, int origin) const;
  // The rows of a round's sequence, and its query heads, over the round's window.
  AttentionArgs WindowArgs(const RingPart& part, int64_t round) const;
  AttendedRows WindowRows(int rank, int64_t round);
  void Compute(int rank, int64_t round);

  const RingAttentionCall& call_;
  const std::vector<RingPart>& parts_;
  const PassLayout& layout_;
  const KvCacheSpec& spec_;
  int group_;
  std::vector<AttentionShape> shapes_;         // [rank], of a window
  std::vector<std::vector<QueryTile>> tiles_;  // [rank]: of the sequence at hand, as the device has them
};

RingBlock RingPass::BlockOf(const RingPart& part, int64_t round, int origin) const {
  const PassView& pass = part.pass->view();
  RingBlock block;
  block.stripe = at(origin).stripe;
  block.pages = PagesOf(round);
  block.page_list = pass.pages + static_cast<int64_t>(SequenceOf(round)) * pass.max_pages;
  block.kv_head = HeadOf(round);
  return block;
}

RingRounds RingPass::Rounds() {
  RingRounds rounds;
  rounds.count = static_cast<int64_t>(layout_.sequences.size()) * spec_.num_kv_heads;
  rounds.name = [this](int64_t round) {
    RingHop hop;
    hop.site = call_.site;
    hop.sequence = static_cast<int64_t>(SequenceOf(round));
    hop.kv_head = HeadOf(round);
    return hop;
  };
  rounds.bytes = [this](int64_t round) {
    return PagesOf(round) * RingPageWords(spec_) * static_cast<int64_t>(sizeof(uint32_t));
  };
  rounds.pack = [this](int rank, int64_t round, cudaStream_t stream, uint8_t* slab) {
    const RingPart& part = at(rank);
    LaunchPackBlock(stream, part.args.kv, BlockOf(part, round, rank), slab);
  };
  rounds.unpack = [this](int rank, int64_t round, int origin, cudaStream_t stream, const uint8_t* slab) {
    const RingPart& part = at(rank);
    const KvView window = part.places().window(part.scratch, static_cast<int>(round % kRingWindows), part.args.kv);
    LaunchUnpackBlock(stream, slab, BlockOf(part, round, origin), window);
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
  const DealtRows& rows = part.dealt[SequenceOf(round)];
  const int64_t column = int64_t{HeadOf(round)} * group_ * spec_.head_dim;
  AttentionArgs args = part.args;
  args.pass.positions += rows.first_row;
  args.pass.row_sequence += rows.first_row;
  args.pass.rows += rows.first_row;
  args.pass.sequences = part.rows.sequences + SequenceOf(round);
  args.kv = part.places().window(part.scratch, static_cast<int>(round % kRingWindows), part.args.kv);
  args.q += rows.first_row * args.q_stride + column;
  args.out += rows.first_row * args.out_stride + column;
  args.rows = rows.num_rows;
  args.num_heads = group_;
  return args;
}

// Rows of a sequence with enough of them go through tiles, the others by themselves.
AttendedRows RingPass::WindowRows(int rank, int64_t round) {
  const RingPart& part = at(rank);
  std::vector<QueryTile>& tiles = tiles_[static_cast<size_t>(rank)];
  const DealtRows& rows = part.dealt[SequenceOf(round)];
  const auto length = sequence(round).start_position + sequence(round).num_rows;
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
  attended.tiles.device = part.rows.tiles + FirstDealtTile(static_cast<int64_t>(SequenceOf(round)), rows.first_row);
  attended.tiles.host = tiles;
  return attended;
}

void RingPass::Compute(int rank, int64_t round) {
  const RingPart& part = at(rank);
  const AttentionShape& shape = shapes_[static_cast<size_t>(rank)];
  if (part.dealt[SequenceOf(round)].num_rows == 0) return;
  DeviceContext& ctx = *part.ctx;
  const AttentionArgs args = WindowArgs(part, round);
  AttendedRows rows = WindowRows(rank, round);
  const PassLimits& pass = part.pass->limits();
  const AttentionLimits limits{MaxDealtRows(pass.max_rows, pass.max_sequences, spec_.stripes), pass.max_sequences,
                               pass.max_pages_per_sequence * spec_.page_tokens};
  AttentionPlan plan = PlanAttention(ctx.traits, shape, args.rows, rows.all.max_length, false);
  if (args.window > 0 && args.window < rows.all.max_length) plan.long_rows = plan.short_rows;
  if (spec_.mode == AttentionMode::kExact) return AttendValues(ctx, args, shape, plan, rows.all, limits);
  TileBatch batch;
  batch.num_sequences = 1;
  batch.num_tiles = static_cast<int32_t>(rows.tiles.host.size());
  batch.positions = (rows.all.max_length + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
  batch.max_length = rows.all.max_length;
  rows.tiles.batches = {&batch, 1};
  const ScTables& qk = ctx.tables.Get(part.cache->qk(part.call->cache_layer));
  const ScTables& av = ctx.tables.Get(part.cache->av(part.call->cache_layer));
  Scratch scratch(ctx.workspace);
  QueryCodes q;
  q.words = scratch.Take<uint32_t>(int64_t{args.rows} * group_ * spec_.head_dim / 4);
  q.scales = scratch.Take<float>(int64_t{args.rows} * group_);
  AttentionArgs queries = args;
  queries.kv.num_kv_heads = 0;
  LaunchAppendCodes(ctx, queries, qk.q_max, av.q_max, q);
  AttendCodes(ctx, args, shape, plan, qk, av, q, {}, rows, limits);
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

int64_t RingPlaceBytes(const KvCacheSpec& spec, int num_heads, const PassLimits& limits) {
  return RingPlaces(spec, num_heads, limits).total();
}

int64_t RingWorkspaceBytes(const GpuTraits& gpu, const KvCacheSpec& spec, int num_heads, const PassLimits& limits) {
  KvCacheSpec window = spec;  // of one KV head, with the query heads that read it
  window.num_kv_heads = 1;
  const AttentionShape shape = MakeAttentionShape(window, num_heads / std::max(1, spec.num_kv_heads));
  return stoch::AttentionScratchBytes(
      gpu, shape, {limits.max_rows, limits.max_sequences, limits.max_pages_per_sequence * spec.page_tokens});
}

void RunRingAttention(const std::vector<DeviceContext*>& contexts, RingGroup& group, const RingAttentionCall& call,
                      RingProbe* probe) {
  CheckRingHandles(call);
  CheckPasses(call);
  if (contexts.front()->IsRecording()) Reject(call.site, "a ring is not recorded into a graph");
  const bool has_query = HasQueryRoute(call.parts.front().cache->spec());
  if (call.route == RingRoute::kQuery && !has_query) {
    Reject(call.site, "exact queries do not go to the keys of GPUs: keys go the ring");
  }
  const std::vector<RingPart> parts = MakeRingParts(contexts, call);
  DealRows(parts, group.dealt);
  const std::vector<PassLayout::Sequence>& sequences = parts.front().pass->layout().sequences;
  const bool few = std::all_of(sequences.begin(), sequences.end(),
                               [](const PassLayout::Sequence& sequence) { return sequence.num_rows <= kQueryRows; });
  if (has_query && (call.route == RingRoute::kQuery || (call.route == RingRoute::kAuto && few))) {
    return AttendByQuery(parts, group.query, probe);
  }
  for (const RingPart& part : parts) AppendKeys(part);
  RingPass pass(call, parts);
  group.ring.Run(pass.Rounds(), pass.Slabs(), probe);
}

}  // namespace stoch::cuda
