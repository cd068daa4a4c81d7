// SPDX-License-Identifier: Apache-2.0
// GPUs that share small results with each other: each writes its own, and reads the others' after their events.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/cuda/fabric/ring/places.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/ring.h"

namespace stoch::cuda {

// Bytes that a device has written in a step for the others to read; on the device.
struct SharedBytes {
  const uint8_t* from = nullptr;
  int64_t at = 0;  // of the area that it is in
  int64_t bytes = 0;
};

// An op of several steps on the devices' own streams. Between two steps every device waits for all others. No deadlock
// by construction: a stream waits only for events that were recorded before the wait was issued, and no kernel waits.
//
// Two routes. Where GPUs reach each other's memory, kernels read what others wrote where it is; elsewhere every device
// copies it to pinned memory of the host, which they read.
//
// The host does not wait for an op to end. It polls for the exchanges of an op when it issues a later one, or in
// Settle; the limit of an exchange counts from when all devices had come to it.
class QueryExchange {
 public:
  static constexpr int kSteps = 6;
  static constexpr int kExchanges = kSteps - 1;
  static constexpr int kAreas = kQueryAreas;

  // Requires: contexts that outlive this, on distinct devices; `direct`: all reach each other.
  QueryExchange(std::vector<DeviceContext*> contexts, bool direct);
  ~QueryExchange();
  QueryExchange(const QueryExchange&) = delete;
  QueryExchange& operator=(const QueryExchange&) = delete;

  // Begins an op. area_bytes: of an area. Errors: LostHop of an earlier one.
  void Begin(const OpSite& site, int64_t area_bytes, RingProbe* probe);
  // The next step of all devices: `run` enqueues that of one, with the device current, and says what it shares.
  // Errors: LostHop where the probe says so.
  void Step(const std::function<SharedBytes(int rank)>& run);
  // Polls for all exchanges of ops that were issued. Errors: LostHop.
  void Settle();

  // The area, two in turn, that a device writes its share to: whoever read an area has done so before the op after
  // the next begins.
  int area() const { return area_; }
  // Where others read what `rank` writes to its area of this op.
  uint8_t* ReadPlace(int rank, uint8_t* area) const;

 private:
  static constexpr int kAhead = 16;  // ops that the host may have issued before it has seen their exchanges
  using Events = std::array<std::array<cudaEvent_t, kSteps>, kAhead>;
  struct Rank {
    DeviceContext* ctx = nullptr;
    Events done = {};  // the device has done a step of an op
    Buffer staging;    // pinned, a copy of each area; empty where devices read each other's memory
  };
  struct Op {
    OpSite site;
    int slot = 0;
    int64_t limit_ms = 0;
  };
  RingHop HopOf(const OpSite& site, int exchange, size_t from, size_t to) const;
  static uint8_t* StagingOf(const Rank& rank, int area);
  void WaitForOthers(size_t rank, int step);
  void Join();
  void Poll(const Op& op);

  std::vector<Rank> ranks_;
  const bool direct_;
  RingProbe* probe_ = nullptr;
  std::deque<Op> issued_;  // and not polled for
  OpSite site_;
  int slot_ = 0;
  int step_ = 0;
  int area_ = 0;
  bool is_whole_ = false;  // the last op was issued to its end, and nothing before it was lost
};

}  // namespace stoch::cuda
