// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cpu_backend.h"

#include <cstring>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "kernels/base/usable_threads.h"
#include "kernels/call_check.h"
#include "kernels/cpu/all_gather.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/embedding.h"
#include "kernels/cpu/experts.h"
#include "kernels/cpu/kv_cache.h"
#include "kernels/cpu/linear_weight.h"
#include "kernels/cpu/logit_queries.h"
#include "kernels/cpu/machine.h"
#include "kernels/cpu/mixed_linear.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/pass.h"
#include "kernels/cpu/ring_attention.h"
#include "kernels/cpu/sc_matmul.h"
#include "kernels/cpu/scores.h"
#include "kernels/cpu/weight_reader.h"
#include "kernels/family_check.h"
#include "kernels/spec_check.h"

namespace stoch::cpu {
namespace {

class CpuBackend final : public Backend {
 public:
  // `threads` 0: those the machine gives, even where that is fewer than it has cores.
  CpuBackend(int devices, int threads, std::string_view variant)
      : context_(threads > 0 ? threads : UsableThreads(), SelectSimd(variant)) {
    if (threads > 0 && context_.pool.size() < threads) {
      throw InvalidInput("threads = " + std::to_string(threads) + ": the system started no more than " +
                         std::to_string(context_.pool.size()) + " (its limit of processes or of memory)");
    }
    for (int i = 0; i < devices; ++i) devices_.push_back({DeviceKind::kCpu, i});
  }

  std::string_view name() const override { return "cpu"; }
  std::span<const Device> devices() const override { return devices_; }

  DeviceInfo info(Device device) const override {
    CheckDevice(device);
    const MachineInfo machine = ReadMachineInfo();
    const int threads = context_.pool.size();
    DeviceInfo info;
    info.name = machine.cpu + ", " + std::to_string(threads) + (threads == 1 ? " thread, " : " threads, ") +
                std::string(context_.simd.name);
    info.total_bytes = machine.total_bytes;
    info.free_bytes = machine.free_bytes;
    info.detail = "variant " + std::string(context_.simd.name);
    info.read_bytes_per_s = read_bytes_per_s_;
    return info;
  }

  double MeasureBandwidth(Device device) override {
    CheckDevice(device);
    read_bytes_per_s_ = MeasureReadBandwidth(context_.pool);
    return read_bytes_per_s_;
  }

  std::vector<DeviceLink> links() const override {
    std::vector<DeviceLink> links;
    for (const Device& from : devices_) {
      for (const Device& to : devices_) {
        if (from != to) links.push_back({from, to, true, "one memory"});
      }
    }
    return links;
  }
  std::string collectives() const override { return "copies in memory"; }

  Buffer Allocate(Device device, int64_t bytes) override {
    CheckDevice(device);
    if (bytes < 0) Reject({-1, "allocate"}, std::to_string(bytes) + " bytes");
    void* memory = AllocateMemory(static_cast<size_t>(bytes));
    return {memory, static_cast<size_t>(bytes), device, [](void* data, size_t size) { FreeMemory{size}(data); }};
  }
  Buffer AllocateShared(Device device, int64_t bytes) override { return Allocate(device, bytes); }
  void CopyFromHost(const TensorView& to, const void* from) override {
    CheckDevice(to.device);
    RequireDense({-1, "copy"}, to);
    memcpy(to.data, from, static_cast<size_t>(to.bytes()));
  }
  void CopyToHost(void* to, const TensorView& from) override {
    CheckDevice(from.device);
    RequireDense({-1, "copy"}, from);
    memcpy(to, from.data, static_cast<size_t>(from.bytes()));
  }
  void Copy(const TensorView& to, const TensorView& from) override {
    CheckDevice(to.device);
    CheckDevice(from.device);
    CheckCopy(to, from);
    memmove(to.data, from.data, static_cast<size_t>(to.bytes()));
  }
  void Synchronize(Device device) override { CheckDevice(device); }

  std::unique_ptr<LinearWeight> MakeLinear(Device device, std::span<const WeightSource> parts,
                                           const LinearSpec& spec) override {
    CheckDevice(device);
    return MakeCpuLinear(context_, device, parts, spec);
  }
  std::unique_ptr<LinearWeight> MakeLinearRows(Device device, const WeightSource& source, const LinearSpec& spec,
                                               int64_t first, int64_t count) override {
    CheckDevice(device);
    return MakeCpuLinearRows(context_, device, source, spec, first, count);
  }
  int64_t ExactBytes(const WeightSource& source) const override {
    return source.decoder != nullptr ? source.decoder->StoredBytes(source.rows * source.cols)
                                     : Backend::ExactBytes(source);
  }
  Buffer MakeVector(Device device, const WeightSource& source) override {
    CheckStack({&source, 1});
    if (source.rows != 1) throw InvalidInput("tensor " + source.name + ": is not a vector");
    CheckFiniteWeights(context_, {&source, 1});
    Buffer buffer = Allocate(device, source.cols * static_cast<int64_t>(sizeof(float)));
    float* out = static_cast<float*>(buffer.data());
    const float* values = ReadRow(context_.simd, source, 0, out);
    if (values != out) memcpy(out, values, buffer.bytes());
    return buffer;
  }
  int64_t LinearScratchBytes(const LinearSpec& spec, std::span<const int64_t> /*out_features*/, int64_t /*in_features*/,
                             int64_t /*max_tokens*/) const override {
    return spec.sc == nullptr ? 0 : AdderScratchBytes(*spec.sc);
  }
  int64_t ExpertScratchBytes(const LinearSpec& spec, int64_t /*in_features*/, int64_t /*max_rows*/) const override {
    return spec.sc == nullptr ? 0 : AdderScratchBytes(*spec.sc);
  }
  int64_t AttentionScratchBytes(const KvCacheSpec& spec, int /*num_heads*/,
                                const PassLimits& /*limits*/) const override {
    return spec.qk == nullptr ? 0 : std::max(AdderScratchBytes(*spec.qk), AdderScratchBytes(*spec.av));
  }
  int64_t ScreenBytes(int64_t rows, int64_t cols, bool is_fixed) const override {
    if (is_fixed) return FixedScreen::ScreenBytes(rows, cols);
    return cols <= kMaxFixedColumns ? FloatScreen::ScreenBytes(rows, cols) : 0;
  }
  std::unique_ptr<EmbeddingTable> MakeEmbedding(Device device, const WeightSource& source,
                                                const LinearWeight* tied) override {
    CheckDevice(device);
    CheckStack({&source, 1});
    if (tied == nullptr) CheckFiniteWeights(context_, {&source, 1});  // a tied head's numbers were checked
    return std::make_unique<CpuEmbedding>(device, source);
  }
  PlainLinear Unpack(const LinearWeight& weight) override {
    CheckDevice(weight.device());
    return UnpackCpuLinear(context_, static_cast<const CpuLinear&>(weight));
  }

  std::unique_ptr<KvCache> MakeKvCache(Device device, const KvCacheSpec& spec) override {
    CheckDevice(device);
    CpuKvCache::Check(spec);
    const bool sc = spec.mode != AttentionMode::kExact;
    return std::make_unique<CpuKvCache>(device, spec, sc ? &context_.lookups : nullptr);
  }
  int64_t KvCacheBytes(const KvCacheSpec& spec) const override {
    CpuKvCache::Check(spec);
    return CpuKvCache::Bytes(spec);
  }
  std::unique_ptr<Pass> MakePass(Device device, const PassLimits& limits) override {
    CheckDevice(device);
    return std::make_unique<CpuPass>(device, limits);
  }
  void UploadPass(Pass& pass, const PassLayout& layout) override {
    CheckDevice(pass.device());
    static_cast<CpuPass&>(pass).Upload(layout);
  }

  void Embed(const EmbeddingTable& table, const Pass& pass, const TensorView& out) override {
    CheckDevice(table.device());
    cpu::Embed(context_, table, pass, out);
  }
#define OP(Op)                             \
  void Op(const Op##Call& call) override { \
    CheckDevice(call.device());            \
    cpu::Op(context_, call);               \
  }
  STOCH_FOR_EACH_OP(OP)
#undef OP
  std::unique_ptr<ExpertWeights> MakeExperts(std::vector<std::unique_ptr<LinearWeight>> experts) override {
    CheckExperts(experts);
    CheckDevice(experts.front()->device());
    return cpu::MakeExperts(std::move(experts));
  }
  void SelectRows(const Pass& pass, const TensorView& x, const TensorView& out) override {
    CheckDevice(pass.device());
    cpu::SelectRows(pass, x, out);
  }
  void AllGather(const AllGatherCall& call) override {
    for (const TensorView& from : call.from) CheckDevice(from.device);
    cpu::AllGather(context_, call);
  }
  void RingAttention(const RingAttentionCall& call) override {
    for (const AttentionCall& part : call.parts) CheckDevice(part.device());
    cpu::RingAttention(context_, call);
  }
  int64_t RingScratchBytes(const KvCacheSpec& spec, int /*num_heads*/, const PassLimits& limits) const override {
    CpuKvCache::Check(spec);
    return cpu::RingScratchBytes(spec, limits);
  }
  bool ProbeRing(RingProbe* probe) override {
    context_.ring_probe = probe;
    return true;
  }
  void Argmax(const TensorView& logits, const TensorView& ids) override {
    CheckDevice(logits.device);
    cpu::Argmax(context_, logits, ids);
  }
  std::unique_ptr<LogitQueryBuffer> MakeLogitQueries(Device device, const LogitQueryLimits& limits) override {
    CheckDevice(device);
    return cpu::MakeLogitQueries(device, limits);
  }
  int64_t LogitQueryBytes(const LogitQueryLimits&) const override { return 0; }
  void UploadLogitQueries(LogitQueryBuffer& buffer, const LogitQueries& queries) override {
    CheckDevice(buffer.device());
    cpu::UploadLogitQueries(buffer, queries);
  }
  void PickTokens(const LogitRows& logits, LogitQueryBuffer& buffer, const QueryRange& range) override {
    CheckDevice(buffer.device());
    cpu::PickTokens(context_, logits, buffer, range);
  }
  void LogProbs(const LogitRows& logits, LogitQueryBuffer& buffer, const QueryRange& range) override {
    CheckDevice(buffer.device());
    cpu::LogProbs(context_, logits, buffer, range);
  }
  void ScMatmul(const TensorView& a, const TensorView& b, const ScOperator& op, const TensorView& out) override {
    CheckDevice(a.device);
    cpu::ScMatmul(context_, a, b, op, out);
  }

  void ScMixedMatmul(const TensorView& a, const TensorView& b, const ScOperatorPtr& op, const ScExtras& extras,
                     std::span<const int> lengths, const TensorView& out) override {
    CheckDevice(a.device);
    cpu::ScMixedMatmul(context_, a, b, op, extras, lengths, out);
  }
  bool Observe(OpObserver* observer) override {
    context_.observer = observer;
    return true;
  }
  bool is_observed() const override { return context_.observer != nullptr; }

  void RunGraph(std::span<const Device> devices, std::string_view, const std::function<void()>& body) override {
    for (const Device& device : devices) CheckDevice(device);
    body();
  }
  void CheckFinite(Device device) override {
    CheckDevice(device);
    context_.finite.Check(device);
  }

 private:
  // Scratch of sums by gates, on every thread.
  int64_t AdderScratchBytes(const ScOperator& op) const {
    if (op.config.adder == ScAdder::kCounter) return 0;
    return context_.pool.size() * GateCall::ScratchBytes(op.levels, op.config.adder_group);
  }
  void CheckDevice(Device device) const {
    if (device.kind == DeviceKind::kCpu && device.index >= 0 && device.index < static_cast<int>(devices_.size()))
      return;
    throw InvalidInput("device " + DeviceName(device) + " is not one of this backend, which has cpu:0.." +
                       std::to_string(devices_.size() - 1));
  }

  std::vector<Device> devices_;
  Context context_;
  double read_bytes_per_s_ = 0;
};

}  // namespace

std::unique_ptr<Backend> OpenBackend(int devices, int threads, std::string_view variant) {
  if (devices < 1) throw InvalidInput("cpu:" + std::to_string(devices) + ": at least one logical device is needed");
  if (threads < 0) throw InvalidInput("threads = " + std::to_string(threads) + ": allowed is 0 (all) or more");
  return std::make_unique<CpuBackend>(devices, threads, variant);
}

std::vector<std::string_view> SupportedVariants() { return SupportedSimd(); }

}  // namespace stoch::cpu
