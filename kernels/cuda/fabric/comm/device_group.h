// SPDX-License-Identifier: Apache-2.0
// GPUs of one process that work on one pass together, and how they exchange the columns that each of them computed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/all_gather_check.h"
#include "kernels/backend.h"
#include "kernels/cuda/fabric/comm/gather_kernels.h"
#include "kernels/cuda/fabric/comm/nccl_library.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/runtime/graph.h"

namespace stoch::cuda {

class SharedRows;

// The GPUs of one model whose matrices are divided by rows (tensor parallel). AllGather takes one of these routes:
//
// No kernel: kernels that compute one row of a recorded step post it to all GPUs, and the kernels that read the row
// poll it there (shared_rows.h).
//
// Direct: every GPU stores its columns into the memory of all others, in one small kernel per device. In a graph, this
// kernel also waits until the columns of the others have come, which takes a few microseconds; few columns, as in
// decode, travel as packets that carry their own epoch (PacketGather). Outside a graph, streams wait for events, and no
// kernel depends on a kernel that runs at the same time.
//
// NCCL: columns are packed, all-gathered and unpacked, for GPUs that do not reach each other's memory.
//
// Errors: NcclError, CudaError; DeviceError from Check if a device waited for another one until the time limit.
class DeviceGroup {
 public:
  // Requires: at least two contexts of one backend, which outlive the group; peer access is enabled wherever it is
  // possible.
  explicit DeviceGroup(std::vector<DeviceContext*> contexts);
  ~DeviceGroup();
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;

  // Runs an exchange. Requires: the call was checked; call.from are in the order of the group's contexts.
  // Async: enqueued on every device before the function returns, so no device waits for work that has not been issued.
  void AllGather(const AllGatherCall& call, const GatherPlan& plan);
  // Announces that the next op on `ctx` computes the columns that this device contributes to the exchange `call`, so
  // that the op may post them itself.
  void Announce(const DeviceContext& ctx, const AllGatherCall& call);
  // Throws DeviceError if an exchange failed since the last check. Requires: all devices of the group have finished.
  void Check();

  // Runs `body`, which enqueues ops on the devices of the group: eagerly at the first call of `key`, recorded as CUDA
  // graphs at the second, replayed from then on (GraphCache; contract: Backend::RunGraph). `body` runs without a graph
  // every time if the devices have no direct access to one another, or if the environment has CUDA_LAUNCH_BLOCKING=1:
  // the host then waits for each kernel, and a kernel that waits for another device would wait for a kernel that is
  // never launched. Set that variable to run under compute-sanitizer, which is not detected.
  void RunGraph(std::string_view key, const std::function<void()>& body);

 private:
  // Memory of one device for the direct route, in which other devices write.
  struct Mailbox {
    // uint32 [block][device], [kMaxGatherBlocks][kMaxGroup]: number of the last exchange that each other device has
    // reached
    Buffer flags;
    Buffer arrived;  // uint32 [kMaxGatherBlocks]: number of exchanges so far, counted by each block of this device
    Buffer landing;  // packets from other devices (PacketGather::landing)
  };
  void MakeMailboxes();
  // Returns the arguments of an exchange without columns for device `rank`: a barrier of all devices.
  DirectGather Mail(size_t rank, const OpSite& site) const;
  void GatherDirect(const AllGatherCall& call, const GatherPlan& plan);
  // Enqueues the exchange of packets on every device. Requires: PlanGather chose GatherRoute::kPackets for the call.
  void GatherPackets(const AllGatherCall& call, const GatherPlan& plan, int blocks);
  // Enqueues a barrier of all devices unless the outputs of `call` surely lie apart from those of the previous
  // exchange. When a device leaves an exchange, it knows that the others have reached it too, but not that they have
  // read the columns it sent. So two consecutive exchanges that write the same memory need a barrier in between.
  void KeepUnreadOutputs(const AllGatherCall& call);
  bool IsRecording() const;
  // Makes later work on every device's stream wait for all earlier work on the streams of all devices.
  void JoinStreams();
  void GatherThroughNccl(const AllGatherCall& call, const GatherPlan& plan);
  NcclGroup& nccl();

  std::vector<DeviceContext*> contexts_;
  GraphCache graphs_;
  bool direct_ = false;
  std::vector<Mailbox> mailboxes_;
  std::optional<std::vector<TensorView>> last_outputs_;  // outputs of the last direct exchange; empty: unknown
  // Pinned int: 0, or 1 + the rank that did not come in time; 1 + the number of GPUs: one of several ranks.
  Buffer failed_;
  std::unique_ptr<SharedRows> shared_;  // null if the devices do not support shared rows
  std::unique_ptr<NcclGroup> nccl_;
};

}  // namespace stoch::cuda
