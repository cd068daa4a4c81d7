// SPDX-License-Identifier: Apache-2.0
// Hops of a ring of GPUs by NCCL, and what becomes of it when one is lost.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/cuda/comm/nccl_library.h"
#include "kernels/cuda/runtime/context.h"

namespace stoch::cuda {

// Communicators of a ring. They are its own, not those of a DeviceGroup of the same devices: to give up a hop is to abort
// them, and gathers go on with theirs. And NCCL puts the operations of one communicator in one order, whatever streams
// they are on, so that a gather on a device's own stream would wait for hops of the next round. Kernels of two
// communicators that run at the same time could each hold SMs that the other waits for; exchange.h says why hops and
// gathers never do.
//
// Not for several threads at once.
class NcclHops {
 public:
  // contexts, streams: of the ring, in its order; both outlive this.
  NcclHops(std::vector<DeviceContext*> contexts, std::vector<cudaStream_t> streams)
      : contexts_(std::move(contexts)), streams_(std::move(streams)) {}
  NcclHops(const NcclHops&) = delete;
  NcclHops& operator=(const NcclHops&) = delete;

  // Why NCCL does not carry hops between these devices, as one clause; empty where it does. Connects them to find out.
  std::string Problem();

  // Makes communicators where there are none, and sends some bytes round the ring. Waits for all that the devices were
  // to do before: nothing else runs on them then. Errors: NcclError, CudaError, OutOfMemory.
  void Connect();

  // from[i] of device i goes to[i + 1] of the next, as in NcclGroup::SendToNext. Requires: Connect.
  // Errors: NcclError, after an Abort.
  void Send(std::span<const uint8_t* const> from, std::span<uint8_t* const> to, size_t bytes);

  // Ends what is on its way and gives up the communicators. Returns what NCCL says went wrong, or nothing.
  std::string Abort();

 private:
  const Device& device(size_t rank) const { return contexts_[rank]->device; }
  std::vector<int> Ordinals() const;
  // Sends from one half of each device's memory to the other of the next.
  void TryOut(const std::vector<Buffer>& memory);

  const std::vector<DeviceContext*> contexts_;
  const std::vector<cudaStream_t> streams_;
  std::unique_ptr<NcclGroup> group_;
};

}  // namespace stoch::cuda
