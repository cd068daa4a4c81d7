// SPDX-License-Identifier: Apache-2.0
// A ring of GPUs that exchange blocks in rounds: a block of each GPU goes around to all others in hops, while the GPUs
// compute with the blocks of the previous round. A rank is a GPU's index in the ring.
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

// The work of all ranks in the rounds of a call. Every function is called with the rank's device current, and only
// enqueues.
struct RingRounds {
  int64_t count = 0;
  // Returns a hop that names the round in errors: its site, sequence and first KV head.
  std::function<RingHop(int64_t round)> name;
  std::function<int64_t(int64_t round)> heads;  // number of KV heads in a block; in the slab one follows the other
  std::function<int64_t(int64_t round)> bytes;  // size of a block
  // Packs the rank's own block into its slab.
  std::function<void(int rank, int64_t round, cudaStream_t stream, uint8_t* slab)> pack;
  // Unpacks the block of rank `origin` from a slab into the rank's window.
  std::function<void(int rank, int64_t round, int origin, cudaStream_t stream, const uint8_t* slab)> unpack;
  // Computes with all blocks of the round, on the device's compute stream.
  std::function<void(int rank, int64_t round)> compute;
};

// Moves the blocks. Hops are copies on streams of their own, and no kernel waits for another device. No deadlock is
// possible: a stream waits only for events that were recorded before the wait was issued. The host issues at most
// kAhead rounds before it polls for their hops, and the time limit of a hop counts from when the hop was due.
//
// If the GPUs reach each other's memory, a hop is one copy; otherwise a hop goes through pinned host memory (HopRoute).
class RingExchange {
 public:
  // Requires: contexts that outlive the object, on distinct devices. direct: every device reaches every other device's
  // memory.
  // Errors: InvalidInput if STOCH_RING_ROUTE asks for a route that these devices do not have.
  RingExchange(std::vector<DeviceContext*> contexts, bool direct);
  ~RingExchange();
  RingExchange(const RingExchange&) = delete;
  RingExchange& operator=(const RingExchange&) = delete;

  // Runs all rounds, after the work that was enqueued before on the devices' streams. slabs[i]: two buffers of rank i,
  // each as large as a block.
  // Errors: LostHop; work that was enqueued before the error still runs.
  void Run(const RingRounds& rounds, const std::vector<std::array<uint8_t*, 2>>& slabs, RingProbe* probe);

 private:
  static constexpr int kAhead = 2;  // rounds that the host may issue before it has polled for their hops
  static constexpr int kMaxHops = 7;
  // Stream, events and memory of one device. A hop "from here" goes from this device to the next; [kAhead] is indexed
  // by round % kAhead, [kMaxHops] by hop - 1.
  struct Rank {
    DeviceContext* ctx = nullptr;
    cudaStream_t stream = nullptr;
    cudaEvent_t begins = nullptr;     // work before the call, which made its inputs, has ended
    cudaEvent_t slab_free = nullptr;  // the slab that the next hop to this device writes is free
    cudaEvent_t staged = nullptr;     // the hop from here has been copied to pinned memory
    cudaEvent_t unstaged = nullptr;   // the hop from here has been copied out of pinned memory
    // window_free: the device has computed with the window. window_full: all blocks of the round are in it.
    cudaEvent_t window_free[kAhead] = {};
    cudaEvent_t window_full[kAhead] = {};
    cudaEvent_t due[kAhead][kMaxHops] = {};      // the hop from here can start: its source and destination are ready
    cudaEvent_t arrived[kAhead][kMaxHops] = {};  // the hop from here has arrived
    Buffer staging;                              // pinned, for a hop from here; empty for HopRoute::kPeer
  };
  int ranks() const { return static_cast<int>(ranks_.size()); }
  Rank& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  int next(int rank) const { return (rank + 1) % ranks(); }
  int before(int rank) const { return (rank + ranks() - 1) % ranks(); }
  RingHop HopFrom(const RingRounds& rounds, int64_t round, int rank, int hop);

  void MakeEvents();
  void Release();  // destroys streams and events
  void MakeStaging(const RingRounds& rounds);
  void Begin();
  void IssueRound(const RingRounds& rounds, int64_t round, const std::vector<std::array<uint8_t*, 2>>& slabs,
                  RingProbe* probe);
  void Send(int rank, int hop, int64_t round, const uint8_t* from, uint8_t* to, int64_t bytes);
  void Show(RingProbe& probe, RingHop hop, int64_t heads, int rank, const uint8_t* slab, int64_t bytes);
  void Compute(const RingRounds& rounds, int64_t round);
  // Waits until all hops of a round have arrived. Errors: LostHop if one takes longer than limit_ms after it was due.
  void Poll(const RingRounds& rounds, int64_t round, int64_t limit_ms);

  std::vector<Rank> ranks_;
  HopRoute route_ = HopRoute::kPeer;
};

}  // namespace stoch::cuda
