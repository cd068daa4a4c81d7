// SPDX-License-Identifier: Apache-2.0
// An exchange of columns between GPUs that reach each other's memory (AllGatherCall).
#pragma once

#include <cstdint>

namespace stoch {

enum class GatherRoute : uint8_t {
  kPackets,   // pairs of floats, each next to the epoch that it belongs to: a receiver polls the data itself
  kVectors,   // stores of four floats, then a flag a block
  kElements,  // stores of one float, then a flag a block
};

struct GatherShape {
  int64_t rows = 0;
  int64_t widest = 0;  // columns of the device that gives most
  bool has_vectors =
      false;  // columns of each device are whole 16 bytes at addresses of 16 bytes, everywhere and in every row
  bool all_receive = false;  // every device has the outputs
  bool is_recorded = false;  // in a graph, where devices wait for each other by what is stored and not by events
};

struct GatherLaunch {
  GatherRoute route = GatherRoute::kElements;
  int blocks = 1;  // on every device
};

GatherLaunch PlanGather(const GatherShape& shape);

// ---- Sizes of the kernels.
inline constexpr int kMaxGatherBlocks = 64;  // enough stores in flight to fill NVLink
inline constexpr int kPacketThreads = 128;   // few a block: an SM polls all its packets in every epoch
inline constexpr int64_t kGatherBlockElements =
    2048;  // four floats a thread: more blocks cost more flags than they save

}  // namespace stoch
