// SPDX-License-Identifier: Apache-2.0
// GPUs that work on one pass together, and how they exchange what each computed.
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

// Three routes. None: kernels that make one row of a recorded step post it to all GPUs, and those that read it poll it
// there (shared_rows.h). Direct: every GPU stores its columns into all others' memory, in one small kernel a device. In a graph
// that kernel also waits until theirs have come, which takes few microseconds; few numbers, as decoding has them,
// travel as packets that announce themselves. Outside of a graph events wait, and no kernel depends on another that
// runs at the same time. NCCL: columns are packed, all-gathered and unpacked; for GPUs that do not reach each other's
// memory.
//
// Errors: NcclError, CudaError; DeviceError from Check where a device waited in vain.
class DeviceGroup {
 public:
  // Requires: at least two contexts of one backend, which outlive the group; peer access is enabled where it can be.
  explicit DeviceGroup(std::vector<DeviceContext*> contexts);
  ~DeviceGroup();
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;

  // An exchange whose call was checked; call.from are in the order of the group.
  // Async:  enqueued on every device before it returns, so no device waits for work that is yet to be issued.
  void AllGather(const AllGatherCall& call, const GatherPlan& plan);
  // Announces that the op that `ctx` runs next makes the columns which that device gives to the exchange.
  void Announce(const DeviceContext& ctx, const AllGatherCall& call);
  // Throws DeviceError where the group failed since. Requires: its devices have finished.
  void Check();

  // Backend::RunGraph over the group's devices. Eager under CUDA_LAUNCH_BLOCKING=1, where what waits for another device
  // would never see it start (compute-sanitizer needs that switch too), and without direct access.
  void RunGraph(std::string_view key, const std::function<void()>& body);

 private:
  // Memory of one device for the direct route.
  struct Mailbox {
    Buffer flags;    // uint32 [blocks][devices]: how often each other device's block has arrived
    Buffer arrived;  // uint32 [blocks]: how often this device's block has
    Buffer landing;  // of packets
  };
  void MakeMailboxes();
  DirectGather Mail(size_t rank, const OpSite& site) const;  // an exchange of no columns: all wait for all
  void GatherDirect(const AllGatherCall& call, const GatherPlan& plan);
  // Requires: GatherRoute::kPackets of these columns.
  void GatherPackets(const AllGatherCall& call, const GatherPlan& plan, int blocks);
  // A device that has left an exchange knows that the others came to it, not that they have read what it brought. So
  // two exchanges in a row that write one place need another in between.
  void KeepUnreadOutputs(const AllGatherCall& call);
  bool IsRecording() const;
  // Later work of every device waits for all earlier work of all of them.
  void JoinStreams();
  void GatherThroughNccl(const AllGatherCall& call, const GatherPlan& plan);
  NcclGroup& nccl();

  std::vector<DeviceContext*> contexts_;
  GraphCache graphs_;
  bool direct_ = false;
  std::vector<Mailbox> mailboxes_;
  std::optional<std::vector<TensorView>> last_outputs_;  // of the last direct exchange; empty: not known
  Buffer failed_;                       // pinned int: 0, or one more than the rank that did not come in time
  std::unique_ptr<SharedRows> shared_;  // null: not for these devices
  std::unique_ptr<NcclGroup> nccl_;
};

}  // namespace stoch::cuda
