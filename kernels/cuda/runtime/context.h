// SPDX-License-Identifier: Apache-2.0
// One GPU as the backend's launchers see it: stream, properties, scratch, tables, error flag.
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

// Every launcher takes a DeviceContext and launches on its stream; the caller (CudaBackend) made its device current.
class DeviceContext {
 public:
  // `sites`: those of the backend's other devices; null: its own.
  // Errors: DeviceError, OutOfMemory.
  explicit DeviceContext(int ordinal, std::shared_ptr<SiteTable> sites = nullptr);
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  const Device device;
  cudaStream_t stream = nullptr;       // every op of the device, in order
  cudaStream_t copy_stream = nullptr;  // uploads that overlap with kernels while loading
  GpuTraits traits;                    // what kernels are chosen by
  int64_t l2_bytes = 0;
  double read_bytes_per_s = 0;  // measured, 0 = not yet

  Workspace workspace;
  TableCache tables;
  OpObserver* observer = nullptr;  // of lengths (Backend::ObserveLengths)

  // Whether ops are being recorded into a graph.
  bool IsRecording() const;

  // The op that calls it cannot be recorded: the host takes part. Its graph (runtime/graph.h) stays eager.
  void RequireEager() { is_eager_ = true; }
  // Whether an op has asked for that since the last call.
  bool TakeEager() { return std::exchange(is_eager_, false); }

  // The reporter to hand to the kernels of an op.
  SiteReporter Reporter(const OpSite& site);
  // Errors: InvalidInput naming the first site that reported since the last call. Waits.
  void CheckFinite();

  const std::shared_ptr<SiteTable>& sites() const { return sites_; }

  // An event of this device for ops that involve two: RecordReady marks the present end of `stream`.
  cudaEvent_t ready() const { return ready_; }
  void RecordReady();

  // Data that the last kernel of an op leaves alone and that is complete before the next kernel on `stream` may begin
  // (launch.h): a kernel of the op right behind may read it, around the L1, before WaitForPrevious.
  void Settle(const void* data) { settled_ = {calls_, data}; }
  bool IsSettled(const void* data) const { return settled_.data == data && settled_.call + 1 == calls_; }
  // Begins a call of the backend, whatever it is. May enqueue a kernel, unless the call polls_shared rows (row_channel.h).
  void CountCall(bool polls_shared = false) {
    ++calls_;
    row_channel_->Begin(polls_shared);
  }

  // For one kernel at a time on `stream`.
  GridBarrier grid_barrier() const { return {static_cast<unsigned*>(barrier_.data())}; }

  // Flags of kernels whose blocks wait for each other, kFlags of them: 0 before and after each. For one kernel at a time on
  // `stream`.
  static constexpr int64_t kFlags = 16384;
  int* flags() const { return static_cast<int*>(flags_.data()); }

  // Words that blocks of such a kernel hand to each other (device/exchange.cuh), kWords of them: 0 before and after each.
  static constexpr int64_t kWords = int64_t{1} << 22;
  uint32_t* words() const { return static_cast<uint32_t*>(words_.data()); }

  // Rows handed from kernel to kernel, and those that devices make together.
  RowChannel& row_channel() { return *row_channel_; }
  SharedSlot shared_slot;
  // Whether kernels post their rows: attention says so in every layer for the ops that follow it.
  bool posts_rows = false;

  cublasHandle_t cublas();  // created at first use, bound to `stream`

 private:
  cublasHandle_t cublas_ = nullptr;
  cudaEvent_t ready_ = nullptr;
  Buffer cublas_workspace_;
  Buffer barrier_;
  Buffer flags_;
  Buffer words_;
  Buffer finite_flag_;  // int32: 0, or the id of the first site that reported
  Buffer finite_seen_;  // pinned, for its copy: one into other memory would be two
  std::shared_ptr<SiteTable> sites_;
  struct Settled {
    int64_t call = -1;
    const void* data = nullptr;
  };
  Settled settled_;
  int64_t calls_ = 0;
  bool is_eager_ = false;
  std::optional<RowChannel> row_channel_;
};

}  // namespace stoch::cuda
