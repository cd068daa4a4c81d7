// SPDX-License-Identifier: Apache-2.0
// A ring of logical devices: every round, what each has goes round to all others in hops, with a time limit.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <vector>

#include "kernels/cpu/rank_threads.h"
#include "kernels/ring.h"

namespace stoch::cpu {

// The work of every rank in a round. Called from the rank's thread.
struct RingRounds {
  int64_t count = 0;
  // Names the round: site, sequence, KV head.
  std::function<RingHop(int64_t round)> name;
  // Writes the rank's own block to its slab; returns its bytes.
  std::function<int64_t(int rank, int64_t round, uint8_t* slab)> pack;
  // Takes the block of `origin` from a slab.
  std::function<void(int rank, int64_t round, int origin, const uint8_t* slab)> unpack;
};

// No deadlock by construction: a rank says that its receive slab of a hop is free before it waits for anything, and the
// slab it sends from is another one. Every wait for another rank has a time limit, after which all ranks leave.
//
// Round r begins on all ranks at once, when Release was called r + 1 times; no limit counts before that.
class RingExchange {
 public:
  // slabs[i]: two of rank i, as large as a block. Starts the ranks. Requires: everything given outlives this.
  RingExchange(RankThreads& threads, const RingRounds& rounds, std::vector<Device> devices,
               std::vector<std::array<uint8_t*, 2>> slabs, RingProbe* probe);
  // Ends the ranks, wherever they are.
  ~RingExchange();
  RingExchange(const RingExchange&) = delete;
  RingExchange& operator=(const RingExchange&) = delete;

  void Release();
  // Waits until every rank has every block of the round. Errors: LostHop, and what a callback threw.
  void Wait(int64_t round);

 private:
  using Lock = std::unique_lock<std::mutex>;
  // Waits for `done`. False once the ring has failed; fails it where the limit passes first.
  template <typename Done>
  bool WaitFor(Lock& lock, const RingHop& hop, const char* what, const Done& done);
  void Fail(std::exception_ptr error);
  void Main(int rank);
  bool RunRound(int rank, int64_t round);

  RankThreads& threads_;
  const RingRounds& rounds_;
  const std::vector<Device> devices_;
  const std::vector<std::array<uint8_t*, 2>> slabs_;
  RingProbe* const probe_;
  const std::chrono::milliseconds limit_;

  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t released_ = 0;
  std::exception_ptr error_;
  bool failed_ = false;
  struct Mailbox {
    int64_t free = 0;     // hops whose receive slab is free, counted over all rounds
    int64_t arrived = 0;  // hops that arrived
    RingHop hop;          // the tag of the last one
    int64_t round = 0;
    int64_t bytes = 0;
    int64_t done = 0;  // rounds
  };
  std::vector<Mailbox> mailboxes_;
};

}  // namespace stoch::cpu
