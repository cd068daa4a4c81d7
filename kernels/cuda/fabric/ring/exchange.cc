// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/fabric/ring/exchange.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/device_guard.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/fabric/comm/peer_access.h"
#include "kernels/cuda/fabric/ring/event_wait.h"
#include "kernels/ring_hop.h"

namespace stoch::cuda {
namespace {

// Shows the probe every KV head of a hop before the hop is sent. Returns false if the probe drops one.
bool MaySend(RingProbe& probe, RingHop hop, int64_t heads) {
  bool all = true;
  for (int64_t i = 0; i < heads; ++i, ++hop.kv_head) all = probe.OnSend(hop) && all;
  return all;
}

template <typename F>
void ForEvents(cudaEvent_t* first, size_t count, const F& f) {
  for (size_t i = 0; i < count; ++i) f(&first[i]);
}

}  // namespace

RingExchange::RingExchange(std::vector<DeviceContext*> contexts, bool direct) {
  ranks_.resize(contexts.size());
  for (size_t i = 0; i < contexts.size(); ++i) {
    Rank& rank = ranks_[i];
    rank.ctx = contexts[i];
    DeviceGuard guard(rank.ctx->device);
    // Other devices wait for these small kernels and copies, so they have priority over the blocks of large grids.
    int least = 0;
    int greatest = 0;
    STOCH_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    STOCH_CUDA(cudaStreamCreateWithPriority(&rank.stream, cudaStreamNonBlocking, greatest));
  }
  try {
    route_ = ChooseHopRoute(AskedHopRoute(), direct);
  } catch (const InvalidInput&) {
    Release();
    throw;
  }
  MakeEvents();
}

void RingExchange::MakeEvents() {
  const auto make = [](cudaEvent_t* event) { STOCH_CUDA(cudaEventCreateWithFlags(event, cudaEventDisableTiming)); };
  const size_t hops = ranks_.size() - 1;
  for (int i = 0; i < ranks(); ++i) {
    Rank& rank = at(i);
    DeviceGuard guard(rank.ctx->device);
    for (cudaEvent_t* event : {&rank.begins, &rank.slab_free, &rank.staged}) make(event);
    ForEvents(rank.window_free, kAhead, make);
    ForEvents(rank.window_full, kAhead, make);
    for (cudaEvent_t* due : rank.due) ForEvents(due, hops, make);
    // A copy to a peer ends on the stream of the sender, a hop through the host on the stream of the receiver.
    DeviceGuard ends(at(route_ == HopRoute::kPeer ? i : next(i)).ctx->device);
    make(&rank.unstaged);
    for (cudaEvent_t* arrived : rank.arrived) ForEvents(arrived, hops, make);
  }
}

RingExchange::~RingExchange() { Release(); }

void RingExchange::Release() {
  // Copies between devices may still be in flight.
  for (Rank& rank : ranks_) {
    try {
      DeviceGuard guard(rank.ctx->device);
      (void)cudaStreamSynchronize(rank.stream);
    } catch (const DeviceError&) {
    }
  }
  for (Rank& rank : ranks_) {
    try {
      DeviceGuard guard(rank.ctx->device);
      const auto end = [](cudaEvent_t* event) { (void)(*event == nullptr ? cudaSuccess : cudaEventDestroy(*event)); };
      for (cudaEvent_t* event : {&rank.begins, &rank.slab_free, &rank.staged, &rank.unstaged}) end(event);
      ForEvents(rank.window_free, kAhead, end);
      ForEvents(rank.window_full, kAhead, end);
      ForEvents(&rank.due[0][0], size_t{kAhead} * kMaxHops, end);
      ForEvents(&rank.arrived[0][0], size_t{kAhead} * kMaxHops, end);
      (void)cudaStreamDestroy(rank.stream);
    } catch (const DeviceError&) {
    }
  }
}

RingHop RingExchange::HopFrom(const RingRounds& rounds, int64_t round, int rank, int hop) {
  RingHop sent = rounds.name(round);
  sent.hop = hop;
  sent.hops = ranks() - 1;
  sent.origin = (rank - hop + 1 + ranks()) % ranks();
  sent.from = at(rank).ctx->device;
  sent.to = at(next(rank)).ctx->device;
  return sent;
}

void RingExchange::Begin() {
  for (Rank& rank : ranks_) {
    DeviceGuard guard(rank.ctx->device);
    STOCH_CUDA(cudaEventRecord(rank.begins, rank.ctx->stream));
    STOCH_CUDA(cudaStreamWaitEvent(rank.stream, rank.begins));
  }
}

void RingExchange::MakeStaging(const RingRounds& rounds) {
  int64_t most = 0;
  for (int64_t round = 0; round < rounds.count; ++round) most = std::max(most, rounds.bytes(round));
  for (int i = 0; i < ranks(); ++i) {
    Rank& rank = at(i);
    if (static_cast<int64_t>(rank.staging.bytes()) >= most) continue;
    DeviceGuard guard(rank.ctx->device);
    STOCH_CUDA(cudaStreamSynchronize(rank.stream));
    STOCH_CUDA(cudaStreamSynchronize(at(next(i)).stream));
    rank.staging = AllocatePinned(static_cast<size_t>(most), rank.ctx->device);
  }
}

void RingExchange::Run(const RingRounds& rounds, const std::vector<std::array<uint8_t*, 2>>& slabs, RingProbe* probe) {
  const int64_t limit_ms = probe == nullptr ? RingProbe::kRingLimitMs : probe->limit_ms();
  if (route_ == HopRoute::kHost) MakeStaging(rounds);
  Begin();
  for (int64_t round = 0; round < rounds.count; ++round) {
    if (round >= kAhead) Poll(rounds, round - kAhead, limit_ms);
    IssueRound(rounds, round, slabs, probe);
    Compute(rounds, round);
  }
  for (int64_t round = std::max<int64_t>(0, rounds.count - kAhead); round < rounds.count; ++round) {
    Poll(rounds, round, limit_ms);
  }
}

void RingExchange::IssueRound(const RingRounds& rounds, int64_t round,
                              const std::vector<std::array<uint8_t*, 2>>& slabs, RingProbe* probe) {
  const int64_t bytes = rounds.bytes(round);
  const auto slab_of = [&](int rank, int hop) {
    return slabs[static_cast<size_t>(rank)][static_cast<size_t>(hop % 2)];
  };
  for (int rank = 0; rank < ranks(); ++rank) {
    DeviceGuard guard(at(rank).ctx->device);
    if (round >= kAhead) STOCH_CUDA(cudaStreamWaitEvent(at(rank).stream, at(rank).window_free[round % kAhead]));
    rounds.pack(rank, round, at(rank).stream, slab_of(rank, 0));
    rounds.unpack(rank, round, rank, at(rank).stream, slab_of(rank, 0));
  }
  for (int hop = 1; hop < ranks(); ++hop) {
    // Three loops over the ranks: an event that a rank waits for was recorded in an earlier loop.
    for (Rank& rank : ranks_) {
      DeviceGuard guard(rank.ctx->device);
      STOCH_CUDA(cudaEventRecord(rank.slab_free, rank.stream));
    }
    for (int rank = 0; rank < ranks(); ++rank) {
      const RingHop sent = HopFrom(rounds, round, rank, hop);
      if (probe != nullptr && !MaySend(*probe, sent, rounds.heads(round))) {
        const int64_t limit_ms = probe->limit_ms();
        for (int64_t known = std::max<int64_t>(0, round - kAhead + 1); known < round; ++known) {
          Poll(rounds, known, limit_ms);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(limit_ms));
        throw MakeLostHop(sent, "did not arrive", limit_ms);
      }
      Send(rank, hop, round, slab_of(rank, hop - 1), slab_of(next(rank), hop), bytes);
    }
    for (int rank = 0; rank < ranks(); ++rank) {
      const int from = before(rank);
      const RingHop taken = HopFrom(rounds, round, from, hop);
      DeviceGuard guard(at(rank).ctx->device);
      STOCH_CUDA(cudaStreamWaitEvent(at(rank).stream, at(from).arrived[round % kAhead][hop - 1]));
      if (probe != nullptr) Show(*probe, taken, rounds.heads(round), rank, slab_of(rank, hop), bytes);
      rounds.unpack(rank, round, taken.origin, at(rank).stream, slab_of(rank, hop));
    }
  }
  for (Rank& rank : ranks_) {
    DeviceGuard guard(rank.ctx->device);
    STOCH_CUDA(cudaEventRecord(rank.window_full[round % kAhead], rank.stream));
  }
}

void RingExchange::Send(int index, int hop, int64_t round, const uint8_t* from, uint8_t* to, int64_t bytes) {
  Rank& rank = at(index);
  Rank& other = at(next(index));
  const auto size = static_cast<size_t>(bytes);
  cudaEvent_t const due = rank.due[round % kAhead][hop - 1];
  cudaEvent_t const arrived = rank.arrived[round % kAhead][hop - 1];
  {
    DeviceGuard guard(rank.ctx->device);
    STOCH_CUDA(cudaStreamWaitEvent(rank.stream, route_ == HopRoute::kPeer ? other.slab_free : rank.unstaged));
    STOCH_CUDA(cudaEventRecord(due, rank.stream));
    if (route_ == HopRoute::kPeer) {
      CopyBetween(to, other.ctx->device, from, rank.ctx->device, size, rank.stream);
      STOCH_CUDA(cudaEventRecord(arrived, rank.stream));
      return;
    }
    STOCH_CUDA(cudaMemcpyAsync(rank.staging.data(), from, size, cudaMemcpyDeviceToHost, rank.stream));
    STOCH_CUDA(cudaEventRecord(rank.staged, rank.stream));
  }
  DeviceGuard guard(other.ctx->device);
  STOCH_CUDA(cudaStreamWaitEvent(other.stream, rank.staged));
  STOCH_CUDA(cudaMemcpyAsync(to, rank.staging.data(), size, cudaMemcpyHostToDevice, other.stream));
  STOCH_CUDA(cudaEventRecord(rank.unstaged, other.stream));
  STOCH_CUDA(cudaEventRecord(arrived, other.stream));
}

void RingExchange::Show(RingProbe& probe, RingHop hop, int64_t heads, int rank, const uint8_t* slab, int64_t bytes) {
  std::vector<uint8_t> host(static_cast<size_t>(bytes));
  STOCH_CUDA(cudaMemcpyAsync(host.data(), slab, host.size(), cudaMemcpyDeviceToHost, at(rank).stream));
  STOCH_CUDA(cudaStreamSynchronize(at(rank).stream));
  const size_t each = host.size() / static_cast<size_t>(heads);
  for (int64_t i = 0; i < heads; ++i, ++hop.kv_head) {
    probe.OnArrive(hop, std::span(host).subspan(static_cast<size_t>(i) * each, each));
  }
}

void RingExchange::Compute(const RingRounds& rounds, int64_t round) {
  for (int rank = 0; rank < ranks(); ++rank) {
    DeviceGuard guard(at(rank).ctx->device);
    STOCH_CUDA(cudaStreamWaitEvent(at(rank).ctx->stream, at(rank).window_full[round % kAhead]));
    rounds.compute(rank, round);
    STOCH_CUDA(cudaEventRecord(at(rank).window_free[round % kAhead], at(rank).ctx->stream));
  }
}

void RingExchange::Poll(const RingRounds& rounds, int64_t round, int64_t limit_ms) {
  for (int hop = 1; hop < ranks(); ++hop) {
    for (int rank = 0; rank < ranks(); ++rank) {
      (void)WaitForEvent(at(rank).due[round % kAhead][hop - 1], -1);
      if (WaitForEvent(at(rank).arrived[round % kAhead][hop - 1], limit_ms)) continue;
      throw MakeLostHop(HopFrom(rounds, round, rank, hop), "did not arrive", limit_ms);
    }
  }
}

}  // namespace stoch::cuda
