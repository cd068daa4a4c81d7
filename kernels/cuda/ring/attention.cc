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
  AttentionArgs args = {};            // of all rows and heads, over the striped cache
  std::vector<QueryTile> tiles = {};  // of the sequence at hand, as the device has them
};

// Some KV heads of a sequence.
struct Round {
  size_t sequence = 0;
  int first_head = 0;
  int heads = 1;
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
      part.args = DealtArgs(part);
      parts_.push_back(std::move(part));
    }
    limits_ = parts_.front().pass->limits();
    for (size_t s = 0; s < layout_.sequences.size(); ++s) {
      const int heads = RingHeads(spec_, limits_, PagesOf(s));
      for (int first = 0; first < spec_.num_kv_heads; first += heads) rounds_.push_back({s, first, heads});
    }
  }

  // Deals the rows and takes their keys and values into the caches.
  void Begin();
  RingRounds Rounds();
  std::vector<std::array<uint8_t*, 2>> Slabs() const;

 private:
  Stripe StripeOf(int rank) const { return {rank, static_cast<int>(parts_.size())}; }
  Part& PartOf(int rank) { return parts_[static_cast<size_t>(rank)]; }
  RingPlaces PlacesOf(const Part& part) const { return {spec_, part.pass->limits()}; }
  const Round& at(int64_t round) const { return rounds_[static_cast<size_t>(round)]; }
  int64_t LengthOf(size_t sequence) const {
    return int64_t{layout_.sequences[sequence].start_position} + layout_.sequences[sequence].num_rows;
  }
  int64_t PagesOf(size_t sequence) const { return (LengthOf(sequence) + spec_.page_tokens - 1) / spec_.page_tokens; }
  RingBlock BlockOf(const Part& part, int64_t round, int origin) const;
  static AttentionArgs DealtArgs(const Part& part);
  KvView WindowOf(const Part& part, int64_t round) const {
    return PlacesOf(part).window(part.scratch, static_cast<int>(round % kRingWindows), part.args.kv, at(round).heads);
  }
  // The rows of a round's sequence, and its query heads, over the round's window.
  AttentionArgs WindowArgs(const Part& part, int64_t round) const;
  AttendedRows WindowRows(Part& part, int64_t round) const;
  void Compute(int rank, int64_t round);

  const RingAttentionCall& call_;
  const PassLayout& layout_;
  const KvCacheSpec& spec_;
  int group_;
  PassLimits limits_;
  std::vector<Part> parts_;
  std::vector<Round> rounds_;
};

// Of what a device works on at a time, where it has so many KV heads of a sequence.
AttentionLimits LimitsOf(const KvCacheSpec& spec, const PassLimits& limits, int heads) {
  const int64_t pages = std::min(limits.max_pages_per_sequence, RingPages(spec, limits) / heads);
  return {MaxDealtRows(limits.max_rows, limits.max_sequences, spec.stripes), limits.max_sequences,
          pages * spec.page_tokens};
}

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
  block.pages = PagesOf(at(round).sequence);
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
    return at(round).heads * PagesOf(at(round).sequence) * RingPageWords(spec_) *
           static_cast<int64_t>(sizeof(uint32_t));
  };
  rounds.pack = [this](int rank, int64_t round, cudaStream_t stream, uint8_t* slab) {
    const Part& own = PartOf(rank);
    LaunchPackBlock(stream, own.args.kv, BlockOf(own, round, rank), slab);
  };
  rounds.unpack = [this](int rank, int64_t round, int origin, cudaStream_t stream, const uint8_t* slab) {
    LaunchUnpackBlock(stream, slab, BlockOf(PartOf(rank), round, origin), WindowOf(PartOf(rank), round));
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
  return args;
}

// Rows of a sequence with enough of them go through tiles, the others by themselves.
AttendedRows RingPass::WindowRows(Part& part, int64_t round) const {
  const size_t sequence = at(round).sequence;
  const DealtRows& rows = part.dealt[sequence];
  const auto length = static_cast<int32_t>(LengthOf(sequence));
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
  attended.tiles.device = part.rows.tiles + FirstDealtTile(static_cast<int64_t>(sequence), rows.first_row);
  attended.tiles.host = part.tiles;
  return attended;
}

void RingPass::Compute(int rank, int64_t round) {
  Part& part = PartOf(rank);
  if (part.dealt[at(round).sequence].num_rows == 0) return;
  DeviceContext& ctx = *part.ctx;
  const AttentionArgs args = WindowArgs(part, round);
  AttendedRows rows = WindowRows(part, round);
  const AttentionLimits limits = LimitsOf(spec_, limits_, at(round).heads);
  AttentionShape shape = ShapeOf(ctx, *part.cache, part.call->cache_layer, args.num_heads, at(round).heads);
  shape.alone = false;  // logical devices of one GPU
  AttentionPlan plan = PlanAttention(ctx.traits, shape, args.rows, rows.all.max_length, false);
  if (args.window > 0 && args.window < rows.all.max_length) plan.long_rows = plan.short_rows;
  if (spec_.mode == AttentionMode::kExact) return AttendValues(ctx, args, shape, plan, rows.all, limits);
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
  q.words = scratch.Take<uint32_t>(int64_t{args.rows} * args.num_heads * spec_.head_dim / 4);
  q.scales = scratch.Take<float>(int64_t{args.rows} * args.num_heads);
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

int64_t RingPlaceBytes(const KvCacheSpec& spec, const PassLimits& limits) { return RingPlaces(spec, limits).total(); }

int64_t RingWorkspaceBytes(const GpuTraits& gpu, const KvCacheSpec& spec, int num_heads, const PassLimits& limits) {
  int64_t most = 0;
  for (int heads = 1; heads <= std::max(1, spec.num_kv_heads); ++heads) {
    if (heads > 1 && spec.num_kv_heads % heads != 0) continue;
    KvCacheSpec window = spec;  // of so many KV heads, with the query heads that read them
    window.num_kv_heads = heads;
    const AttentionShape shape = MakeAttentionShape(window, num_heads / std::max(1, spec.num_kv_heads) * heads);
    AttentionLimits attention = LimitsOf(spec, limits, heads);
    attention.max_rows = limits.max_rows;  // dealt already
    most = std::max(most, stoch::AttentionScratchBytes(gpu, shape, attention));
  }
  return most;
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
