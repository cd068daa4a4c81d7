// SPDX-License-Identifier: Apache-2.0
// GPUs that share small results in steps: each writes its own results, and reads those of the others once their events
// have passed.
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

// Bytes in device memory that a device has written in a step for the other devices to read.
struct SharedBytes {
  const uint8_t* from = nullptr;
  int64_t at = 0;  // offset in the area that holds them
  int64_t bytes = 0;
};

// Orders the steps of an op on the devices' own streams: between two steps, every device waits for all others. No
// deadlock is possible: a stream waits only for events that were recorded before the wait was issued, and no kernel
// waits for another device.
//
// If the GPUs reach each other's memory, kernels read the results in the memory of the device that wrote them.
// Otherwise every device copies its results to pinned host memory, from which the kernels of the others read.
//
// The host does not wait until an op has ended. It polls for the exchanges of an op when it issues a later one, or in
// Settle. The time limit of an exchange counts from when all devices have come to it.
class QueryExchange {
 public:
  static constexpr int kSteps = 6;
  static constexpr int kExchanges = kSteps - 1;
  static constexpr int kAreas = kQueryAreas;

  // Requires: contexts that outlive the object, on distinct devices. direct: every device reaches every other device's
  // memory.
  QueryExchange(std::vector<DeviceContext*> contexts, bool direct);
  ~QueryExchange();
  QueryExchange(const QueryExchange&) = delete;
  QueryExchange& operator=(const QueryExchange&) = delete;

  // Begins an op. area_bytes: size of the memory (area) in which each device writes its results. Errors: LostHop of an
  // earlier op.
  void Begin(const OpSite& site, int64_t area_bytes, RingProbe* probe);
  // Issues the next step on all devices: run(rank) enqueues the step of one device, which is current, and returns the
  // bytes that it shares with the others.
  // Errors: LostHop if the probe drops a hop.
  void Step(const std::function<SharedBytes(int rank)>& run);
  // Polls for all exchanges of the ops that were issued. Errors: LostHop.
  void Settle();

  // Index of the area in which the devices write their results in this op. Two areas alternate: all reads of an area
  // end before the op after the next begins, which writes it again.
  int area() const { return area_; }
  // Returns where other devices read what `rank` writes to its area of this op. area: the area in the rank's device
  // memory.
  uint8_t* ReadPlace(int rank, uint8_t* area) const;

 private:
  static constexpr int kAhead = 16;  // ops that the host may issue before it has polled for their exchanges
  using Events = std::array<std::array<cudaEvent_t, kSteps>, kAhead>;
  struct Rank {
    DeviceContext* ctx = nullptr;
    Events done = {};  // [op slot][step] the device has finished the step
    Buffer staging;    // pinned copies of both areas; empty if devices read each other's memory
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
  std::deque<Op> issued_;  // ops that were issued and not yet polled for
  OpSite site_;
  int slot_ = 0;
  int step_ = 0;
  int area_ = 0;
  bool is_whole_ = false;  // all steps of the last op were issued, and no hop was lost before it
};

}  // namespace stoch::cuda
