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
#include "kernels/cuda/ring/window.h"

namespace stoch::cuda {
namespace {

// What a device has of a call.
struct Part {
  DeviceContext* ctx = nullptr;
  const AttentionCall* call = nullptr;
  const CudaKvCache* cache = nullptr;
  const CudaPass* pass = nullptr;
  uint8_t* scratch = nullptr;
  std::vector<DealtRows> dealt = {};  // by sequence
  DealtPass rows = {};
  AttentionShape shape = {};          // of a window
  AttentionArgs args = {};            // of all rows and heads, over the striped cache
  std::vector<QueryTile> tiles = {};  // of the sequence at hand, as the device has them
};

// A call on its way.
class RingPass {
 public:
  RingPass(const std::vector<DeviceContext*>& contexts, const RingAttentionCall& call)
      : call_(call),
        layout_(static_cast<const CudaPass&>(*call.parts.front().pass).layout()),
        spec_(call.parts.front().cache->spec()),
        group_(call.parts.front().num_heads / spec_.num_kv_heads) {
    for (size_t i = 0; i < contexts.size(); ++i) {
      const AttentionCall& own = call.parts[i];
      const auto& pass = static_cast<const CudaPass&>(*own.pass);
      const RingPlaces places(spec_, pass.limits());
      const TensorView& memory = call.scratch[i];
      if (memory.bytes() < places.total() || !memory.is_dense()) {
        Reject(call.site, "scratch of " + std::to_string(memory.bytes()) + " bytes on " + DeviceName(memory.device) +
                              ", expected " + std::to_string(places.total()));
      }
      Part part{contexts[i], &own, static_cast<const CudaKvCache*>(own.cache), &pass, memory.ptr<uint8_t>()};
      part.dealt = DealPass(layout_, {static_cast<int>(i), static_cast<int>(contexts.size())});
      part.rows = places.dealt(part.scratch);
      part.shape = ShapeOf(*part.ctx, *part.cache, own.cache_layer, group_, 1);
      part.shape.alone = false;  // logical devices of one GPU
      part.args = DealtArgs(part);
      parts_.push_back(std::move(part));
    }
  }

  // Deals the rows and takes their keys and values into the caches.
  void Begin();
  RingRounds Rounds();
  std::vector<std::array<uint8_t*, 2>> Slabs() const;

 private:
  Stripe StripeOf(int rank) const { return {rank, static_cast<int>(parts_.size())}; }
  Part& at(int rank) { return parts_[static_cast<size_t>(rank)]; }
  RingPlaces PlacesOf(const Part& part) const { return {spec_, part.pass->limits()}; }
  size_t SequenceOf(int64_t round) const { return static_cast<size_t>(round / spec_.num_kv_heads); }
  int32_t HeadOf(int64_t round) const { return static_cast<int32_t>(round % spec_.num_kv_heads); }
  const PassLayout::Sequence& sequence(int64_t round) const { return layout_.sequences[SequenceOf(round)]; }
  int64_t PagesOf(int64_t round) const {
    const int64_t length = int64_t{sequence(round).start_position} + sequence(round).num_rows;
    return (length + spec_.page_tokens - 1) / spec_.page_tokens;
  }
  RingBlock BlockOf(const Part& part, int64_t round, int origin) const;
  static AttentionArgs DealtArgs(const Part& part);
  // The rows of a round's sequence, and its query heads, over the round's window.
  AttentionArgs WindowArgs(const Part& part, int64_t round) const;
  AttendedRows WindowRows(Part& part, int64_t round) const;
  void Compute(int rank, int64_t round);

  const RingAttentionCall& call_;
  const PassLayout& layout_;
  const KvCacheSpec& spec_;
  int group_;
  std::vector<Part> parts_;
};

AttentionArgs RingPass::DealtArgs(const Part& part) {
  PassView pass = part.pass->view();
  pass.positions = part.rows.positions;
  pass.row_sequence = part.rows.row_sequence;
  pass.rows = part.rows.rows;
  pass.pages = part.rows.pages;
  return ArgsOf(*part.ctx, *part.call, *part.cache, pass);
}

void RingPass::Begin() {
  for (size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    if (part.args.rows == 0) continue;
    DeviceGuard guard(part.ctx->device);
    int64_t most = 0;
    for (const DealtRows& rows : part.dealt) most = std::max<int64_t>(most, rows.num_rows);
    LaunchDeal(*part.ctx, part.pass->view(), static_cast<int64_t>(layout_.sequences.size()), most,
               part.pass->limits().max_pages_per_sequence, spec_.page_tokens, StripeOf(static_cast<int>(i)), part.rows);
    AttentionArgs keys = part.args;
    if (spec_.mode == AttentionMode::kExact) {
      LaunchAppendValues(*part.ctx, keys, false, part.rows.slots);  // and rotates the queries
      continue;
    }
    keys.num_heads = 0;
    const ScTables& qk = part.ctx->tables.Get(part.cache->qk(part.call->cache_layer));
    const ScTables& av = part.ctx->tables.Get(part.cache->av(part.call->cache_layer));
    LaunchAppendCodes(*part.ctx, keys, qk.q_max, av.q_max, {}, part.rows.slots);
  }
}

RingBlock RingPass::BlockOf(const Part& part, int64_t round, int origin) const {
  const PassView& pass = part.pass->view();
  RingBlock block;
  block.stripe = StripeOf(origin);
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
    const Part& part = at(rank);
    LaunchPackBlock(stream, part.args.kv, BlockOf(part, round, rank), slab);
  };
  rounds.unpack = [this](int rank, int64_t round, int origin, cudaStream_t stream, const uint8_t* slab) {
    const Part& part = at(rank);
    const KvView window = PlacesOf(part).window(part.scratch, static_cast<int>(round % kRingWindows), part.args.kv);
    LaunchUnpackBlock(stream, slab, BlockOf(part, round, origin), window);
  };
  rounds.compute = [this](int rank, int64_t round) { Compute(rank, round); };
  return rounds;
}

std::vector<std::array<uint8_t*, 2>> RingPass::Slabs() const {
  std::vector<std::array<uint8_t*, 2>> slabs;
  for (const Part& part : parts_) {
    const RingPlaces places = PlacesOf(part);
    slabs.push_back({places.slab(part.scratch, 0), places.slab(part.scratch, 1)});
  }
  return slabs;
}

AttentionArgs RingPass::WindowArgs(const Part& part, int64_t round) const {
  const DealtRows& rows = part.dealt[SequenceOf(round)];
  const int64_t column = int64_t{HeadOf(round)} * group_ * spec_.head_dim;
  AttentionArgs args = part.args;
  args.pass.positions += rows.first_row;
  args.pass.row_sequence += rows.first_row;
  args.pass.rows += rows.first_row;
  args.pass.sequences = part.rows.sequences + SequenceOf(round);
  args.kv = PlacesOf(part).window(part.scratch, static_cast<int>(round % kRingWindows), part.args.kv);
  args.q += rows.first_row * args.q_stride + column;
  args.out += rows.first_row * args.out_stride + column;
  args.rows = rows.num_rows;
  args.num_heads = group_;
  return args;
}

// Rows of a sequence with enough of them go through tiles, the others by themselves.
AttendedRows RingPass::WindowRows(Part& part, int64_t round) const {
  const DealtRows& rows = part.dealt[SequenceOf(round)];
  const auto length = sequence(round).start_position + sequence(round).num_rows;
  AttendedRows attended;
  attended.all = {nullptr, rows.num_rows, length};
  part.tiles.clear();
  if (rows.num_rows < kLongSequenceRows) {
    attended.short_rows = attended.all;
    return attended;
  }
  attended.short_rows = {nullptr, 0, 0};
  const Stripe stripe = StripeOf(static_cast<int>(&part - parts_.data()));
  const auto width_shift = static_cast<int32_t>(std::countr_zero(static_cast<uint64_t>(stripe.width())));
  for (int32_t end = rows.num_rows; end > 0;) {
    const int32_t first = (end - 1) / kQueryTile * kQueryTile;
    part.tiles.push_back({0, first, end - first, rows.first_local + first, width_shift,
                          static_cast<int32_t>(stripe.index * stripe.width())});
    end = first;
  }
  attended.tiles.device = part.rows.tiles + FirstDealtTile(static_cast<int64_t>(SequenceOf(round)), rows.first_row);
  attended.tiles.host = part.tiles;
  return attended;
}

void RingPass::Compute(int rank, int64_t round) {
  Part& part = at(rank);
  if (part.dealt[SequenceOf(round)].num_rows == 0) return;
  DeviceContext& ctx = *part.ctx;
  const AttentionArgs args = WindowArgs(part, round);
  AttendedRows rows = WindowRows(part, round);
  const PassLimits& pass = part.pass->limits();
  const AttentionLimits limits{MaxDealtRows(pass.max_rows, pass.max_sequences, spec_.stripes), pass.max_sequences,
                               pass.max_pages_per_sequence * spec_.page_tokens};
  AttentionPlan plan = PlanAttention(ctx.traits, part.shape, args.rows, rows.all.max_length, false);
  if (args.window > 0 && args.window < rows.all.max_length) plan.long_rows = plan.short_rows;
  if (spec_.mode == AttentionMode::kExact) return AttendValues(ctx, args, part.shape, plan, rows.all, limits);
  TileBatch batch;
  batch.num_sequences = 1;
  batch.num_tiles = static_cast<int32_t>(part.tiles.size());
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
  AttendCodes(ctx, args, part.shape, plan, qk, av, q, {}, rows, limits);
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

int64_t RingPlaceBytes(const KvCacheSpec& spec, const PassLimits& limits) { return RingPlaces(spec, limits).total(); }

int64_t RingWorkspaceBytes(const GpuTraits& gpu, const KvCacheSpec& spec, int num_heads, const PassLimits& limits) {
  KvCacheSpec window = spec;  // of one KV head, with the query heads that read it
  window.num_kv_heads = 1;
  const AttentionShape shape = MakeAttentionShape(window, num_heads / std::max(1, spec.num_kv_heads));
  return stoch::AttentionScratchBytes(
      gpu, shape, {limits.max_rows, limits.max_sequences, limits.max_pages_per_sequence * spec.page_tokens});
}

void RunRingAttention(const std::vector<DeviceContext*>& contexts, RingExchange& exchange,
                      const RingAttentionCall& call, RingProbe* probe) {
  CheckRingHandles(call);
  CheckPasses(call);
  if (call.route == RingRoute::kQuery) Reject(call.site, "queries do not go to the keys of GPUs: keys go the ring");
  if (contexts.front()->IsRecording()) Reject(call.site, "a ring is not recorded into a graph");
  RingPass pass(contexts, call);
  pass.Begin();
  exchange.Run(pass.Rounds(), pass.Slabs(), probe);
}

}  // namespace stoch::cuda
