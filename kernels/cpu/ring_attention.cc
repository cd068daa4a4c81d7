// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/ring_attention.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/call_check.h"
#include "kernels/cpu/pass.h"
#include "kernels/cpu/ring_exchange.h"
#include "kernels/cpu/ring_window.h"
#include "kernels/ring_reach.h"

namespace stoch::cpu {
namespace {

constexpr int kWindows = 2;  // one is filled while the other is computed with
constexpr int kSlabs = 2;

int64_t Aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Where a rank's scratch has what, for sequences of up to `pages` pages.
struct RingScratch {
  RingScratch(const KvCacheSpec& spec, int64_t pages) {
    KvCacheSpec window = spec;
    window.num_layers = window.num_kv_heads = window.stripes = 1;
    window.num_pages = pages;
    window_bytes = Aligned(CpuKvCache::Bytes(window));
    slab_bytes = Aligned(RingPageBytes(spec) * pages);
  }
  int64_t total() const { return kWindows * window_bytes + kSlabs * slab_bytes; }
  int64_t window_bytes = 0;
  int64_t slab_bytes = 0;
};

int64_t PagesOf(const KvCacheSpec& spec, const PassLayout::Sequence& sequence) {
  return (int64_t{sequence.start_position} + sequence.num_rows + spec.page_tokens - 1) / spec.page_tokens;
}

// Pages of the longest sequence that goes by the ring.
int64_t MostPages(const RingState& state) {
  int64_t most = 1;
  for (const size_t s : state.by_ring) {
    most = std::max(most, PagesOf(state.cache(0).spec(), state.pass.sequences[s]));
  }
  return most;
}

void CheckScratch(const RingState& state) {
  const RingScratch needed(state.cache(0).spec(), MostPages(state));
  for (const TensorView& memory : state.call.scratch) {
    if (state.by_ring.empty() || (memory.bytes() >= needed.total() && memory.is_dense())) continue;
    Reject(state.call.site, "scratch of " + std::to_string(memory.bytes()) + " bytes on " + DeviceName(memory.device) +
                                ", expected " + std::to_string(needed.total()));
  }
}

AttentionWork WorkOf(const AttentionCall& call, const CpuKvCache& cache, std::vector<PassLayout::Sequence> sequences) {
  const KvCacheSpec& spec = cache.spec();
  return {call,
          cache,
          std::move(sequences),
          call.num_heads,
          spec.num_kv_heads,
          spec.head_dim,
          spec.page_tokens,
          ScoreScale(spec)};
}

// Rotates by absolute position, then fills the cache by local position.
void TakeKeys(Context& context, const RingState& state, int rank) {
  const AttentionCall& part = state.part(rank);
  const CpuKvCache& cache = state.cache(rank);
  const Stripe stripe = state.stripe(rank);
  const int64_t per_page = cache.spec().page_tokens / stripe.count;
  std::vector<PassLayout::Sequence> runs;
  std::vector<PassLayout::Sequence> slots;  // rows in a row within the slabs of a page
  std::vector<int32_t> slab_pages;
  slab_pages.reserve(static_cast<size_t>(part.q.dim(0)));
  for (size_t s = 0; s < state.pass.sequences.size(); ++s) {
    const DealtRows& rows = state.rows(rank, s);
    const std::vector<PassLayout::Sequence> own = state.Runs(rank, s, rows.first_row);
    runs.insert(runs.end(), own.begin(), own.end());
    for (int32_t done = 0; done < rows.num_rows;) {
      const int64_t local = rows.first_local + done;
      const int64_t page = state.pass.sequences[s].pages[static_cast<size_t>(local / per_page)];
      const auto count = static_cast<int32_t>(std::min<int64_t>(rows.num_rows - done, per_page - local % per_page));
      slab_pages.push_back(static_cast<int32_t>(page / stripe.count));
      slots.push_back({rows.first_row + done,
                       count,
                       static_cast<int32_t>(page % stripe.count * per_page + local % per_page),
                       {&slab_pages.back(), 1}});
      done += count;
    }
  }
  if (runs.empty()) return;
  RotateAll(context, WorkOf(part, cache, std::move(runs)), stripe);
  Append(context, WorkOf(part, cache, std::move(slots)));
}

}  // namespace

std::vector<PassLayout::Sequence> RingState::Runs(int rank, size_t sequence, int32_t first_row) const {
  const Stripe own = stripe(rank);
  const DealtRows& rows = this->rows(rank, sequence);
  std::vector<PassLayout::Sequence> runs;
  for (int32_t done = 0; done < rows.num_rows;) {
    const int64_t local = rows.first_local + done;
    const auto count = static_cast<int32_t>(std::min<int64_t>(rows.num_rows - done, own.width() - local % own.width()));
    runs.push_back({first_row + done, count, static_cast<int32_t>(own.Absolute(local)), {}});
    done += count;
  }
  return runs;
}

int64_t RingScratchBytes(const KvCacheSpec& spec, const PassLimits& limits) {
  return RingScratch(spec, limits.max_pages_per_sequence).total();
}

void AttendByRing(Context& context, const RingState& state) {
  const RingAttentionCall& call = state.call;
  const int ranks = state.ranks();
  const KvCacheSpec& spec = state.cache(0).spec();
  const int64_t group = call.parts.front().num_heads / spec.num_kv_heads;

  struct Round {
    size_t sequence;
    RingSource source;
  };
  std::vector<Round> rounds;
  const int64_t most_pages = MostPages(state);
  for (const size_t s : state.by_ring) {
    const PassLayout::Sequence& sequence = state.pass.sequences[s];
    const int64_t first = FirstSeen(call.parts.front(), sequence.start_position);
    const int64_t pages = PagesOf(spec, sequence);
    for (int64_t h = 0; h < spec.num_kv_heads; ++h) {
      rounds.push_back({s, {&sequence, call.parts.front().cache_layer, h, first / spec.page_tokens, pages}});
    }
  }
  const RingScratch scratch(spec, most_pages);
  std::vector<Device> devices;
  std::vector<std::array<uint8_t*, kSlabs>> slabs;
  std::vector<std::vector<CpuKvCache>> windows(static_cast<size_t>(ranks));  // [rank][parity]
  for (int rank = 0; rank < ranks; ++rank) {
    const TensorView& memory = call.scratch[static_cast<size_t>(rank)];
    devices.push_back(state.cache(rank).device());
    uint8_t* at = memory.ptr<uint8_t>();
    for (int i = 0; i < kWindows; ++i, at += scratch.window_bytes) {
      windows[static_cast<size_t>(rank)].emplace_back(state.cache(rank), call.parts.front().cache_layer, most_pages,
                                                      at);
    }
    slabs.push_back({at, at + scratch.slab_bytes});
  }
  const auto window_of = [&](int rank, int64_t round) -> const CpuKvCache& {
    return windows[static_cast<size_t>(rank)][static_cast<size_t>(round % kWindows)];
  };

  RingRounds work;
  work.count = static_cast<int64_t>(rounds.size());
  work.name = [&](int64_t round) {
    const Round& at = rounds[static_cast<size_t>(round)];
    RingHop hop;
    hop.site = call.site;
    hop.sequence = static_cast<int64_t>(at.sequence);
    hop.kv_head = at.source.kv_head;
    return hop;
  };
  work.pack = [&](int rank, int64_t round, uint8_t* slab) {
    return PackStripe(state.cache(rank), rounds[static_cast<size_t>(round)].source, slab);
  };
  work.unpack = [&](int rank, int64_t round, int origin, const uint8_t* slab) {
    UnpackStripe(slab, rounds[static_cast<size_t>(round)].source, state.stripe(origin), window_of(rank, round));
  };
  std::vector<int32_t> pages(static_cast<size_t>(most_pages));  // pages 0, 1, ..., shared by all windows
  std::iota(pages.begin(), pages.end(), 0);

  RingExchange exchange(context.ranks, work, std::move(devices), std::move(slabs), context.ring_probe);
  for (int i = 0; i < kWindows; ++i) exchange.Release();
  for (int64_t round = 0; round < work.count; ++round) {
    exchange.Wait(round);
    const Round& at = rounds[static_cast<size_t>(round)];
    for (int rank = 0; rank < ranks; ++rank) {
      const DealtRows& rows = state.rows(rank, at.sequence);
      if (rows.num_rows == 0) continue;
      std::vector<PassLayout::Sequence> runs = state.Runs(rank, at.sequence, 0);
      for (PassLayout::Sequence& run : runs) run.pages = pages;
      AttentionCall own = state.part(rank);
      const int64_t first = at.source.kv_head * group * spec.head_dim;
      const auto heads = [&](const TensorView& all) {
        return Slice(Slice(all, 0, rows.first_row, rows.num_rows), 1, first, group * spec.head_dim);
      };
      own.q = heads(own.q);
      own.out = heads(own.out);
      own.num_heads = static_cast<int>(group);
      own.first_head += at.source.kv_head * group;
      own.cache_layer = 0;
      AttentionWork part = WorkOf(own, window_of(rank, round), std::move(runs));
      if (const std::vector<float>& raw = state.raw_q[static_cast<size_t>(rank)]; !raw.empty()) {
        part.raw_q_step = state.part(rank).q.dim(1);
        part.raw_q = raw.data() + rows.first_row * part.raw_q_step + first;
      }
      if (spec.mode == AttentionMode::kExact) {
        AttendExact(context, part);
      } else if (own.dilated.empty()) {
        AttendPerToken(context, part);
      } else {
        AttendDilated(context, part);
      }
    }
    exchange.Release();
  }
}

void RingAttention(Context& context, const RingAttentionCall& call) {
  CheckRingHandles(call);
  const PassLayout& pass = LayoutOf(*call.parts.front().pass);
  for (const AttentionCall& part : call.parts) {
    const PassLayout& other = LayoutOf(*part.pass);
    if (other.ids.size() != pass.ids.size() || other.sequences.size() != pass.sequences.size()) {
      Reject(call.site, "the passes of a ring are not the same");
    }
  }
  CheckRingAttention(call, pass);
  if (context.observer != nullptr) Reject(call.site, "operands of dealt positions cannot be observed");
  const AttentionCall& first = call.parts.front();
  const bool has_query =
      first.dilated.empty() && HasQueryRoute(static_cast<const CpuKvCache&>(*first.cache), first.cache_layer);
  if (call.route == RingRoute::kQuery && !has_query) {
    Reject(
        call.site,
        "queries cannot go to the keys: dilated attention, stream lengths of rows, or integers by chunks of positions");
  }
  RingState state{call, pass};
  for (size_t s = 0; s < pass.sequences.size(); ++s) {
    const bool few = has_query && (call.route == RingRoute::kQuery ||
                                   (call.route == RingRoute::kAuto && pass.sequences[s].num_rows <= kQueryRows));
    (few ? state.by_query : state.by_ring).push_back(s);
  }
  for (int rank = 0; rank < state.ranks(); ++rank) state.dealt.push_back(DealPass(pass, state.stripe(rank)));
  CheckScratch(state);
  for (int rank = 0; rank < state.ranks(); ++rank) {
    context.raw_q.clear();
    TakeKeys(context, state, rank);
    state.raw_q.push_back(std::exchange(context.raw_q, {}));
  }
  if (!state.by_query.empty()) AttendByQuery(context, state);
  if (!state.by_ring.empty()) AttendByRing(context, state);
}

}  // namespace stoch::cpu
