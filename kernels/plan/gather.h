// SPDX-License-Identifier: Apache-2.0
// The plan of an exchange of columns between GPUs that reach each other's memory (AllGatherCall).
#pragma once

#include <cstdint>

namespace stoch {

enum class GatherRoute : uint8_t {
  kPackets,   // packets of two floats, each next to the epoch of the exchange; a receiver polls the packets themselves
  kVectors,   // stores of four floats; then each block sets a flag
  kElements,  // stores of one float; then each block sets a flag
};

struct GatherShape {
  int64_t rows = 0;
  int64_t widest = 0;  // most columns that a device contributes
  // Whether the columns of each device begin at multiples of 16 bytes and are a multiple of 16 bytes, in every row of
  // every input and output.
  bool has_vectors = false;
  bool all_receive = false;  // every device receives the outputs
  bool is_recorded = false;  // recorded into a graph: devices wait for stored words instead of events
};

struct GatherLaunch {
  GatherRoute route = GatherRoute::kElements;
  int blocks = 1;  // blocks on every device
};

GatherLaunch PlanGather(const GatherShape& shape);

// ---- Sizes of the kernels.
inline constexpr int kMaxGatherBlocks = 64;  // enough stores in flight to fill NVLink
// Threads of a block; few, because an SM polls all packets of its blocks in every epoch.
inline constexpr int kPacketThreads = 128;
// Elements of a block, four floats per thread. With fewer, the additional flags cost more than the additional blocks
// save.
inline constexpr int64_t kGatherBlockElements = 2048;

}  // namespace stoch
