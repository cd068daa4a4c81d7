// SPDX-License-Identifier: Apache-2.0
// The state of one GPU that launchers use: stream, properties, scratch, tables, flags.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "kernels/backend.h"
#include "kernels/cuda/base/grid_barrier.cuh"
#include "kernels/cuda/base/site_reporter.h"
#include "kernels/cuda/handover/row_channel.h"
#include "kernels/cuda/runtime/site_table.h"
#include "kernels/cuda/runtime/workspace.h"
#include "kernels/cuda/sc/format/tables.h"
#include "kernels/plan/gpu_traits.h"

namespace stoch::cuda {

// State of one GPU. Every launcher takes a DeviceContext and launches on its `stream`; the caller (CudaBackend) has
// made the device current.
class DeviceContext {
 public:
  // sites: the table of op numbers that all devices of a backend share; null: creates a new table.
  // Errors: DeviceError, OutOfMemory.
  explicit DeviceContext(int ordinal, std::shared_ptr<SiteTable> sites = nullptr);
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  const Device device;
  cudaStream_t stream = nullptr;       // all ops of the device, in order
  cudaStream_t copy_stream = nullptr;  // uploads during loading, concurrent with kernels on `stream`
  GpuTraits traits;                    // capabilities by which kernels are chosen
  // Size of the L2 in bytes.
  int64_t l2_bytes = 0;
  double read_bytes_per_s = 0;  // measured read bandwidth; 0 = not measured yet

  // Scratch memory for ops.
  Workspace workspace;
  // Count tables of the operators in use, in device memory.
  TableCache tables;
  OpObserver* observer = nullptr;  // is told the stream lengths of rows (Backend::ObserveLengths); null: none

  // Whether `stream` is in capture, so that ops are recorded into a graph instead of executed.
  bool IsRecording() const;

  // Called by an op that cannot be recorded because the host takes part. The graph that the op belongs to
  // (runtime/graph.h) then always runs eagerly.
  void RequireEager() { is_eager_ = true; }
  // Whether an op called RequireEager since the last TakeEager.
  bool TakeEager() { return std::exchange(is_eager_, false); }

  // The reporter that the kernels of the op at `site` take as an argument.
  SiteReporter Reporter(const OpSite& site);
  // Waits for the device. Errors: InvalidInput with the first site that reported a NaN or infinity since the last
  // CheckFinite.
  void CheckFinite();

  const std::shared_ptr<SiteTable>& sites() const { return sites_; }

  // ready() is an event for ops that involve two devices; RecordReady records the event at the current end of `stream`.
  cudaEvent_t ready() const { return ready_; }
  void RecordReady();

  // Early reads across ops. Settle promises that `data` is complete before the next kernel on `stream` may begin
  // (launch.h), and that the last kernel of the current op does not write it. A kernel of the next op may then read
  // `data` before WaitForPrevious, with loads that bypass the L1; IsSettled tells whether that promise was made in the
  // call just before.
  void Settle(const void* data) { settled_ = {calls_, data}; }
  bool IsSettled(const void* data) const { return settled_.data == data && settled_.call + 1 == calls_; }
  // Begins a call of the backend; every op and every other call on the device does this once. May enqueue a kernel that
  // stores a pending shared row to memory, unless polls_shared (RowChannel::Begin).
  void CountCall(bool polls_shared = false) {
    ++calls_;
    row_channel_->Begin(polls_shared);
  }

  // The grid barrier of this device, for one kernel at a time on `stream`.
  GridBarrier grid_barrier() const { return {static_cast<unsigned*>(barrier_.data())}; }

  // [kFlags] ints in device memory for kernels whose blocks wait for each other; one kernel at a time on `stream` uses
  // them. A kernel finds them zero and must leave them zero.
  static constexpr int64_t kFlags = 16384;
  int* flags() const { return static_cast<int*>(flags_.data()); }

  // [kWords] words in device memory through which blocks of one kernel exchange data (device/exchange.cuh); one kernel
  // at a time on `stream` uses them. A kernel finds them zero and must leave them zero.
  static constexpr int64_t kWords = int64_t{1} << 22;
  uint32_t* words() const { return static_cast<uint32_t*>(words_.data()); }

  // Rows that a kernel hands to the next kernel word by word (RowChannel), and the state of rows that several devices
  // compute together (SharedSlot).
  RowChannel& row_channel() { return *row_channel_; }
  SharedSlot shared_slot;
  // Whether kernels post their output rows to `row_channel`. Attention sets this in every layer, for the ops that
  // follow.
  bool posts_rows = false;

  cublasHandle_t cublas();  // the device's cuBLAS handle: created at first use, bound to `stream`

 private:
  cublasHandle_t cublas_ = nullptr;
  cudaEvent_t ready_ = nullptr;
  // Device memory of cublas(), grid_barrier(), flags() and words().
  Buffer cublas_workspace_;
  Buffer barrier_;
  Buffer flags_;
  Buffer words_;
  Buffer finite_flag_;  // int32: site of the first NaN or infinity; 0 = none
  Buffer finite_seen_;  // pinned int for the copy of finite_flag_ (pageable memory would add a staging copy)
  std::shared_ptr<SiteTable> sites_;
  // The latest promise of Settle: the call that made it (a value of calls_), and the data.
  struct Settled {
    int64_t call = -1;
    const void* data = nullptr;
  };
  Settled settled_;
  // Number of backend calls so far.
  int64_t calls_ = 0;
  bool is_eager_ = false;
  std::optional<RowChannel> row_channel_;
};

}  // namespace stoch::cuda
