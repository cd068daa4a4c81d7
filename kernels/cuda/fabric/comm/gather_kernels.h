// SPDX-License-Identifier: Apache-2.0
// Kernels of an exchange between GPUs.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/plan/gather.h"

namespace stoch::cuda {

inline constexpr int kMaxGroup = 16;  // devices of one exchange

// Columns that one device gives: from, or Silu(from) * from2.
struct GatherColumns {
  SiteReporter reporter;
  bool silu_mul = false;
  const float* from = nullptr;
  const float* from2 = nullptr;
  int64_t from_stride = 0;
  int64_t from2_stride = 0;
  int64_t rows = 0;
  int64_t cols = 0;
};

// One device's part of a direct exchange.
struct DirectGather {
  GatherColumns columns;
  int rank = 0;
  int devices = 0;
  bool in_place = false;      // its own columns are where they belong
  float* to[kMaxGroup] = {};  // where its columns begin on each device; null where that receives nothing
  int64_t to_stride[kMaxGroup] = {};
  uint32_t* flags[kMaxGroup] = {};  // of each device: [kMaxGatherBlocks][kMaxGroup]
  uint32_t* arrived = nullptr;      // of this device: [kMaxGatherBlocks]
  int* failed = nullptr;            // mapped host memory
  bool waits = true;                // false: only stores; the host's events order what comes after
};

// Stores this device's columns everywhere and returns (ends) once those of all others have come, or after
// kPeerTimeoutNs without them, which is noted in `failed`.
// Requires: kVectors or kElements, launched once on every device, with the same launch, in the same order relative to other exchanges of the
//           group. An output may be read between two exchanges if the next one does not write it.
void LaunchDirectGather(DeviceContext& ctx, const DirectGather& args, const GatherLaunch& launch);

// One device's part of an exchange of packets. A packet is two numbers, each next to the epoch it belongs to: flag in
// data. A receiver polls the packet itself, so no fence and no signal follow it.
struct PacketGather {
  GatherColumns columns;
  int rank = 0;
  int devices = 0;
  bool in_place = false;  // its own columns are where they belong
  float* to = nullptr;    // the whole of the outputs on this device
  int64_t to_stride = 0;
  int64_t begin[kMaxGroup] = {};   // of each device's columns, and
  int64_t cols[kMaxGroup] = {};    // how many
  uint4* landing[kMaxGroup] = {};  // of each device: [2 turns][devices][kMaxGatherBlocks][kPacketThreads][2]
  uint32_t* arrived = nullptr;     // as above: turns are counted across both kinds
  int* failed = nullptr;
};
inline constexpr size_t kLandingBytesPerDevice = 2 * sizeof(uint4) * 2 * kMaxGatherBlocks * kPacketThreads;

// As LaunchDirectGather with `waits`: ends once the columns of all devices are in `to`.
// Requires: GatherRoute::kPackets, and `to` on every device. Of an exchange's outputs nothing is written from elsewhere:
//           what the previous one wrote may still be read by others.
void LaunchPacketGather(DeviceContext& ctx, const PacketGather& args, int blocks);

// Waits for the columns of a row that others post, and puts them where they belong (SharedRow::settle).
void LaunchSettleRow(const SharedRow& row, cudaStream_t stream);

// Copies the columns that a device gives to `slab` [rows, cols], dense; and from there to rows `to_stride` apart.
void LaunchPackColumns(DeviceContext& ctx, const GatherColumns& columns, float* slab);
void LaunchUnpackColumns(DeviceContext& ctx, const float* slab, int64_t rows, int64_t cols, float* to,
                         int64_t to_stride);

}  // namespace stoch::cuda
