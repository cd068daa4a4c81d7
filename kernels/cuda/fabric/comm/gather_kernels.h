// SPDX-License-Identifier: Apache-2.0
// Kernels of an exchange of columns between GPUs, and their arguments.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/plan/gather.h"

namespace stoch::cuda {

inline constexpr int kMaxGroup = 16;  // most devices in one exchange

// The columns that one device contributes to an exchange, [rows, cols]: `from`, or Silu(from) * from2 if silu_mul.
// Strides are in floats.
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

// Arguments of one device (number `rank` of `devices`) in a direct exchange.
struct DirectGather {
  GatherColumns columns;
  int rank = 0;
  int devices = 0;
  bool in_place = false;  // the device's own columns are already in its output
  // [devices] where this device's columns begin in the output on each device; null if a device receives nothing.
  float* to[kMaxGroup] = {};
  int64_t to_stride[kMaxGroup] = {};
  uint32_t* flags[kMaxGroup] = {};  // [devices] each device's Mailbox::flags, [kMaxGatherBlocks][kMaxGroup]
  uint32_t* arrived = nullptr;  // [kMaxGatherBlocks] number of this device's exchanges so far, counted by each block
  int* failed = nullptr;        // in mapped host memory: 0, or 1 + the rank that did not come in time
  bool waits = true;            // false: the kernel only stores, and events order later work
};

// Stores this device's columns into the outputs of all devices. With args.waits, the kernel ends once the columns of
// all other devices have come, or kPeerTimeoutNs later, when it notes the missing device in `failed`.
// Requires: a launch of route kVectors or kElements. All devices launch an exchange with the same `launch`, and the
// exchanges of the group in the same order. An output may be read between two exchanges if the second one does not
// write it.
void LaunchDirectGather(DeviceContext& ctx, const DirectGather& args, const GatherLaunch& launch);

// Arguments of one device (number `rank` of `devices`) in an exchange of packets. A packet is 16 bytes: two numbers,
// each next to the epoch of the exchange. A receiver polls the packet itself, so senders need no fence and no flag.
struct PacketGather {
  GatherColumns columns;
  int rank = 0;
  int devices = 0;
  bool in_place = false;  // the device's own columns are already in `to`
  float* to = nullptr;    // output of this device, with the columns of all devices
  int64_t to_stride = 0;
  int64_t begin[kMaxGroup] = {};  // [devices] first column of each device
  int64_t cols[kMaxGroup] = {};   // [devices] number of columns of each device
  // [devices] where each device receives packets: [epoch % 2][devices][kMaxGatherBlocks][kPacketThreads][2].
  uint4* landing[kMaxGroup] = {};
  uint32_t* arrived = nullptr;  // [kMaxGatherBlocks] number of this device's exchanges so far, with packets or direct
  // In mapped host memory: 0, or 1 + the rank of a device that did not come in time.
  int* failed = nullptr;
};
inline constexpr size_t kLandingBytesPerDevice = 2 * sizeof(uint4) * 2 * kMaxGatherBlocks * kPacketThreads;

// Sends this device's columns to all other devices as packets; the kernel ends once the columns of all devices are in
// `to`.
// Requires: a launch of route GatherRoute::kPackets, and an output on every device. Nothing but this exchange writes
// the output meanwhile; outputs of the previous exchange may still be read by other devices.
void LaunchPacketGather(DeviceContext& ctx, const PacketGather& args, int blocks);

// Launches a kernel that waits for the columns of a row that other devices post, and writes them to row.to
// (SharedRow::settle).
void LaunchSettleRow(const SharedRow& row, cudaStream_t stream);

// LaunchPackColumns copies the columns that a device gives to `slab`, [rows, cols] without gaps. LaunchUnpackColumns
// copies a slab to rows `to_stride` floats apart.
void LaunchPackColumns(DeviceContext& ctx, const GatherColumns& columns, float* slab);
void LaunchUnpackColumns(DeviceContext& ctx, const float* slab, int64_t rows, int64_t cols, float* to,
                         int64_t to_stride);

}  // namespace stoch::cuda
