// SPDX-License-Identifier: Apache-2.0
// A ring of GPUs: every round, what each has goes round to all others in hops, while they compute with the last round's.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/plan/hop_route.h"
#include "kernels/ring.h"

namespace stoch::cuda {

// Steps of every rank in a round. Called with the rank's device current; each only enqueues.
struct RingRounds {
  int64_t count = 0;
  // Names the round: site, sequence, first KV head.
  std::function<RingHop(int64_t round)> name;
  std::function<int64_t(int64_t round)> heads;  // KV heads, which a block has one after another
  std::function<int64_t(int64_t round)> bytes;  // of a block
  // Writes the rank's own block to its slab.
  std::function<void(int rank, int64_t round, cudaStream_t stream, uint8_t* slab)> pack;
  // Takes the block of `origin` from a slab.
  std::function<void(int rank, int64_t round, int origin, cudaStream_t stream, const uint8_t* slab)> unpack;
  // Works with all blocks of the round, on the device's own stream.
  std::function<void(int rank, int64_t round)> compute;
};

// Blocks travel on streams of their own, by copies and no kernel that waits. No deadlock by construction: a stream waits only
// for events that were recorded before the wait was issued. The host is at most two rounds ahead of the hops; it polls for
// each of them, and its limit counts from when the hop was due.
//
// Two routes. Where GPUs reach each other's memory a hop is one copy; elsewhere it goes through pinned memory of the host.
class RingExchange {
 public:
  // Requires: contexts that outlive this, on distinct devices; `direct`: all reach each other.
  // Errors: InvalidInput where STOCH_RING_ROUTE asks for what these devices do not have.
  RingExchange(std::vector<DeviceContext*> contexts, bool direct);
  ~RingExchange();
  RingExchange(const RingExchange&) = delete;
  RingExchange& operator=(const RingExchange&) = delete;

  // slabs[i]: two of rank i, as large as a block. What was enqueued before on the devices' streams comes first.
  // Errors: LostHop, and what was enqueued by then still runs.
  void Run(const RingRounds& rounds, const std::vector<std::array<uint8_t*, 2>>& slabs, RingProbe* probe);

 private:
  static constexpr int kAhead = 2;  // rounds that the host may have issued before it has seen their hops
  static constexpr int kMaxHops = 7;
  // Streams and events of one device.
  struct Rank {
    DeviceContext* ctx = nullptr;
    cudaStream_t stream = nullptr;
    cudaEvent_t begins = nullptr;     // what the call reads is there
    cudaEvent_t slab_free = nullptr;  // what the next hop writes to
    cudaEvent_t staged = nullptr;     // the hop from here is in pinned memory
    cudaEvent_t unstaged = nullptr;   // and was taken from there
    cudaEvent_t window_free[kAhead] = {};
    cudaEvent_t window_full[kAhead] = {};
    cudaEvent_t due[kAhead][kMaxHops] = {};      // the hop from here: may be copied
    cudaEvent_t arrived[kAhead][kMaxHops] = {};  // is there
    Buffer staging;                              // pinned; only where hops go through it
  };
  int ranks() const { return static_cast<int>(ranks_.size()); }
  Rank& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  int next(int rank) const { return (rank + 1) % ranks(); }
  int before(int rank) const { return (rank + ranks() - 1) % ranks(); }
  RingHop HopFrom(const RingRounds& rounds, int64_t round, int rank, int hop);

  void MakeEvents();
  void Release();  // streams, events
  void MakeStaging(const RingRounds& rounds);
  void Begin();
  void IssueRound(const RingRounds& rounds, int64_t round, const std::vector<std::array<uint8_t*, 2>>& slabs,
                  RingProbe* probe);
  void Send(int rank, int hop, int64_t round, const uint8_t* from, uint8_t* to, int64_t bytes);
  void Show(RingProbe& probe, RingHop hop, int64_t heads, int rank, const uint8_t* slab, int64_t bytes);
  void Compute(const RingRounds& rounds, int64_t round);
  // Waits until all hops of a round have arrived.
  void Poll(const RingRounds& rounds, int64_t round, int64_t limit_ms);

  std::vector<Rank> ranks_;
  HopRoute route_ = HopRoute::kPeer;
};

}  // namespace stoch::cuda
