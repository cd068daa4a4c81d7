// SPDX-License-Identifier: Apache-2.0
// CudaBackend: checks operands, makes their device current and calls the launcher of each op.
//
// Where each launcher is declared. Every launcher takes the DeviceContext first; its contract is in that header.
//   attention/kv_cache.h       CudaKvCache, MakeKvCache, KvCacheBytes
//   runtime/pass.h             CudaPass
//   runtime/ops.h              the ops of calls.h, from LaunchLinear on
//   families/experts.h         CudaExperts, MakeExperts
//   plain/matmul.h             LaunchScMatmul, and LaunchScMixedMatmul in mixed/linear.h
//   prologue/functions.h       LaunchFunction
//   rows.h                     LaunchEmbed, LaunchSelectRows, LaunchArgmax
//   sampling/logit_queries.h   CudaLogitQueries, LaunchPickTokens, LaunchLogProbs
//   weights/weights.h          MakeLinear, MakeLinearRows, MakeVector, MakeEmbedding, Unpack
//   runtime/graph.h            GraphCache
//   fabric/comm/device_group.h DeviceGroup: all-gathers, graphs over several devices
//   fabric/ring/attention.h    RunRingAttention
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/caller_streams.h"
#include "kernels/cuda/fabric/comm/device_group.h"
#include "kernels/cuda/fabric/comm/peer_access.h"
#include "kernels/cuda/fabric/ring/attention.h"
#include "kernels/cuda/runtime/caller_order.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/runtime/graph.h"
#include "kernels/cuda/runtime/test_fault.h"
#include "kernels/cuda/weights/uploader.h"

namespace stoch::cuda {

class CudaBackend final : public Backend, public CallerStreams {
 public:
  explicit CudaBackend(std::span<const int> ordinals);
  ~CudaBackend() override;

  std::string_view name() const override { return "cuda"; }
  std::span<const Device> devices() const override { return devices_; }
  DeviceInfo info(Device device) const override;
  double MeasureBandwidth(Device device) override;

  std::vector<DeviceLink> links() const override { return ReadLinks(devices_); }
  std::string collectives() const override;

  Buffer Allocate(Device device, int64_t bytes) override;
  int64_t AllocatedBytes(int64_t bytes) const override;
  int64_t LinearScratchBytes(const LinearSpec& spec, std::span<const int64_t> out_features, int64_t in_features,
                             int64_t max_tokens) const override;
  int64_t AttentionScratchBytes(const KvCacheSpec& spec, int num_heads, const PassLimits& limits) const override;
  int64_t ExpertScratchBytes(const LinearSpec& spec, int64_t in_features, int64_t max_rows) const override;
  std::string LinearKernel(const LinearSpec& spec, std::span<const int64_t> out_features, int64_t in_features,
                           int64_t tokens) const override;
  std::string ExpertKernel(const LinearSpec& spec, const ExpertShape& shape) const override;
  std::string AttentionKernel(const KvCacheSpec& spec, int num_heads, int64_t tokens, bool is_prompt,
                              std::span<const int64_t> windows) const override;
  void ReserveScratch(Device device, int64_t bytes) override;
  Buffer AllocateShared(Device device, int64_t bytes) override;
  void CopyFromHost(const TensorView& to, const void* from) override;
  void CopyToHost(void* to, const TensorView& from) override;
  void Copy(const TensorView& to, const TensorView& from) override;
  void Synchronize(Device device) override;
  std::optional<OpSite> RunningSite() const override { return per_device_.front()->context.sites()->Running(); }

  std::unique_ptr<LinearWeight> MakeLinear(Device device, std::span<const WeightSource> parts,
                                           const LinearSpec& spec) override;
  std::unique_ptr<LinearWeight> MakeLinearRows(Device device, const WeightSource& source, const LinearSpec& spec,
                                               int64_t first, int64_t count) override;
  Buffer MakeVector(Device device, const WeightSource& source) override;
  bool keeps_embedding_on_host() const override { return true; }
  int64_t ScreenBytes(int64_t rows, int64_t cols, bool is_fixed) const override;
  std::unique_ptr<EmbeddingTable> MakeEmbedding(Device device, const WeightSource& source,
                                                const LinearWeight* tied) override;
  void EndLoading() override;
  PlainLinear Unpack(const LinearWeight& weight) override;

  std::unique_ptr<KvCache> MakeKvCache(Device device, const KvCacheSpec& spec) override;
  int64_t KvCacheBytes(const KvCacheSpec& spec) const override;
  std::unique_ptr<Pass> MakePass(Device device, const PassLimits& limits) override;
  void UploadPass(Pass& pass, const PassLayout& layout) override;

  void Embed(const EmbeddingTable& table, const Pass& pass, const TensorView& out) override;
#define OP(Op) void Op(const Op##Call& call) override;
  STOCH_FOR_EACH_OP(OP)
#undef OP
  std::unique_ptr<ExpertWeights> MakeExperts(std::vector<std::unique_ptr<LinearWeight>> experts) override;
  void SelectRows(const Pass& pass, const TensorView& x, const TensorView& out) override;
  void AllGather(const AllGatherCall& call) override;
  void RingAttention(const RingAttentionCall& call) override;
  int64_t RingScratchBytes(const KvCacheSpec& spec, int num_heads, const PassLimits& limits) const override;
  bool ProbeRing(RingProbe* probe) override {
    ring_probe_ = probe;
    return true;
  }
  void Argmax(const TensorView& logits, const TensorView& ids) override;
  std::unique_ptr<LogitQueryBuffer> MakeLogitQueries(Device device, const LogitQueryLimits& limits) override;
  int64_t LogitQueryBytes(const LogitQueryLimits& limits) const override;
  void UploadLogitQueries(LogitQueryBuffer& buffer, const LogitQueries& queries) override;
  void PickTokens(const LogitRows& logits, LogitQueryBuffer& buffer, const QueryRange& range) override;
  void LogProbs(const LogitRows& logits, LogitQueryBuffer& buffer, const QueryRange& range) override;
  void ScMatmul(const TensorView& a, const TensorView& b, const ScOperator& op, const TensorView& out) override;
  void ScMixedMatmul(const TensorView& a, const TensorView& b, const ScOperatorPtr& op, const ScExtras& extras,
                     std::span<const int> lengths, const TensorView& out) override;
  bool ObserveLengths(OpObserver* observer) override;
  bool is_observed() const override { return per_device_.front()->context.observer != nullptr; }
  void RunGraph(std::span<const Device> devices, std::string_view key, const std::function<void()>& body) override;
  void CheckFinite(Device device) override;

  void RunAfter(Device device, uintptr_t stream) override;
  void RunBefore(Device device, uintptr_t stream) override;
  std::string PollFinite(Device device) override;

 private:
  struct PerDevice {
    PerDevice(int ordinal, std::shared_ptr<SiteTable> sites)
        : context(ordinal, std::move(sites)), graphs({&context}), uploader(context) {}
    DeviceContext context;
    GraphCache graphs;
    Uploader uploader;
    std::unique_ptr<TestFault> test_fault;  // fails the device on purpose; null except in tests
    std::unique_ptr<CallerOrder> caller;    // order with a caller's stream; null until first used
    int64_t runtime_bytes = 0;  // estimate of the most device memory that the process takes besides its buffers
    // The part of runtime_bytes that is allocated already (the CUDA context), in bytes.
    int64_t runtime_taken_bytes = 0;
  };
  // The state of `device`. The first overload begins a backend call on the device (DeviceContext::CountCall);
  // polls_shared is passed on to CountCall. Errors: InvalidInput for a device that this backend was not opened with.
  PerDevice& At(const Device& device, bool polls_shared = false);
  const PerDevice& At(const Device& device) const;
  PerDevice& EntryOf(const Device& device);  // the state of `device`, without beginning a call
  // Sets the runtime bytes of `entry` (DeviceInfo). before: bytes of the GPU that all processes used just before this
  // process made its CUDA context there; nullopt if NVML could not tell.
  static void MeasureRuntime(PerDevice* entry, std::optional<int64_t> before);
  static CallerOrder& CallerOf(PerDevice* entry);
  DeviceGroup& GroupOf(std::span<const Device> devices);  // the group of these devices; made at first use
  // Tells the group of `call` that the next op issued on `device` writes that device's input to the all-gather `call`.
  void Announce(const Device& device, const AllGatherCall& call);

  std::vector<Device> devices_;
  std::vector<std::unique_ptr<PerDevice>> per_device_;
  // All-gathers and graphs over several devices, by their device numbers.
  std::map<std::vector<int>, std::unique_ptr<DeviceGroup>> groups_;
  // Ring attention over several devices, by their device numbers.
  std::map<std::vector<int>, std::unique_ptr<RingGroup>> rings_;
  RingProbe* ring_probe_ = nullptr;
};

}  // namespace stoch::cuda
