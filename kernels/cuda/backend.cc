// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <string>
#include <type_traits>
#include <utility>

#include "kernels/call_check.h"
#include "kernels/cuda/attention/kv_cache.h"
#include "kernels/cuda/attention/mixed.h"
#include "kernels/cuda/backend_impl.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/device_guard.h"
#include "kernels/cuda/base/ordinal.h"
#include "kernels/cuda/fabric/ring/attention.h"
#include "kernels/cuda/families/experts.h"
#include "kernels/cuda/mixed/linear.h"
#include "kernels/cuda/plain/matmul.h"
#include "kernels/cuda/prologue/functions.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/runtime/nvml_memory.h"
#include "kernels/cuda/runtime/ops.h"
#include "kernels/cuda/runtime/pass.h"
#include "kernels/cuda/sampling/logit_queries.h"
#include "kernels/cuda/sc/linear.h"
#include "kernels/cuda/weights/weights.h"
#include "kernels/family_check.h"
#include "kernels/plan/attention/plan.h"
#include "kernels/plan/attention/ring.h"
#include "kernels/plan/hop_route.h"
#include "kernels/plan/linear/experts.h"
#include "kernels/plan/linear/plan.h"
#include "kernels/plan/plain_reason.h"

namespace stoch::cuda {
namespace {

// The all-gather that the op of `call` produces input for (its `gather` field); null if there is none or the op type
// has no such field.
template <typename Call>
const AllGatherCall* GatherOf(const Call& call) {
  if constexpr (requires { call.gather; }) return call.gather;
  return nullptr;
}

std::vector<Device> GiversOf(const AllGatherCall& call) {
  std::vector<Device> devices;
  for (const TensorView& from : call.from) devices.push_back(from.device);
  return devices;
}

}  // namespace

CudaBackend::CudaBackend(std::span<const int> ordinals) {
  // Throws InvalidInput on an unknown route name before any device is set up.
  if (ordinals.size() > 1) (void)AskedHopRoute();
  for (const int ordinal : ordinals) {
    const std::optional<int64_t> before = UsedDeviceBytes(OrdinalOf(ordinal));
    const auto sites = per_device_.empty() ? nullptr : per_device_.front()->context.sites();
    per_device_.push_back(std::make_unique<PerDevice>(ordinal, sites));
    MeasureRuntime(per_device_.back().get(), before);
    devices_.push_back(per_device_.back()->context.device);
    per_device_.back()->test_fault = TestFault::FromEnvironment(devices_.back(), per_device_.back()->context.sites());
  }
  for (const auto& entry : per_device_) {
    entry->context.traits.is_shared = std::any_of(devices_.begin(), devices_.end(), [&](const Device& other) {
      return ShareGpu(entry->context.device.index, other.index);
    });
  }
  EnablePeerAccess(devices_);
}

CudaBackend::~CudaBackend() = default;

const CudaBackend::PerDevice& CudaBackend::At(const Device& device) const {
  for (const auto& entry : per_device_) {
    if (entry->context.device == device) return *entry;
  }
  throw InvalidInput("an operand is on " + DeviceName(device) + ", which this backend was not opened with");
}

CudaBackend::PerDevice& CudaBackend::EntryOf(const Device& device) {
  return const_cast<PerDevice&>(std::as_const(*this).At(device));
}

CudaBackend::PerDevice& CudaBackend::At(const Device& device, bool polls_shared) {
  PerDevice& entry = EntryOf(device);
  entry.context.CountCall(polls_shared);
  return entry;
}

int64_t CudaBackend::LinearScratchBytes(const LinearSpec& spec, std::span<const int64_t> out_features,
                                        int64_t in_features, int64_t max_tokens) const {
  int64_t most = 0;
  for (const auto& entry : per_device_) {
    most =
        std::max(most, stoch::LinearScratchBytes(entry->context.traits, spec, {max_tokens, in_features, out_features}));
  }
  // ReserveScratch allocates a block, which has at least 32 MiB (Workspace::BlockBytes), so this estimate has too.
  return static_cast<int64_t>(Workspace::BlockBytes(static_cast<size_t>(most)));
}

int64_t CudaBackend::AttentionScratchBytes(const KvCacheSpec& spec, int num_heads, const PassLimits& limits) const {
  const AttentionLayers layers = MakeAttentionLayers(spec, num_heads);
  int64_t most = 0;
  for (const auto& entry : per_device_) {
    const GpuTraits& gpu = entry->context.traits;
    most =
        std::max(most, spec.stripes > 1 ? RingWorkspaceBytes(gpu, spec, num_heads, limits)
                                        : stoch::AttentionScratchBytes(gpu, layers, MakeAttentionLimits(spec, limits)));
  }
  return static_cast<int64_t>(Workspace::BlockBytes(static_cast<size_t>(most)));
}

int64_t CudaBackend::ExpertScratchBytes(const LinearSpec& spec, int64_t in_features, int64_t max_rows) const {
  int64_t most = 0;
  for (const auto& entry : per_device_) {
    most = std::max(most, stoch::ExpertScratchBytes(entry->context.traits, spec, in_features, max_rows));
  }
  return static_cast<int64_t>(Workspace::BlockBytes(static_cast<size_t>(most)));
}

std::string CudaBackend::LinearKernel(const LinearSpec& spec, std::span<const int64_t> out_features,
                                      int64_t in_features, int64_t tokens) const {
  return LinearRouteText(per_device_.front()->context.traits, spec, {tokens, in_features, out_features});
}

std::string CudaBackend::ExpertKernel(const LinearSpec& spec, const ExpertShape& shape) const {
  return ExpertRouteText(per_device_.front()->context.traits, spec, shape);
}

std::string CudaBackend::AttentionKernel(const KvCacheSpec& spec, int num_heads, int64_t tokens, bool is_prompt,
                                         std::span<const int64_t> windows) const {
  const std::string routes = AttentionRoutes(per_device_.front()->context.traits, MakeAttentionLayers(spec, num_heads),
                                             tokens, is_prompt, windows);
  return routes.find("plain") == std::string::npos ? routes : routes + BecauseOf(PlainReason(spec));
}

std::unique_ptr<LinearWeight> CudaBackend::MakeLinear(Device device, std::span<const WeightSource> parts,
                                                      const LinearSpec& spec) {
  PerDevice& entry = At(device);
  DeviceGuard guard(device);
  return cuda::MakeLinear(entry.context, entry.uploader, parts, spec);
}

std::unique_ptr<LinearWeight> CudaBackend::MakeLinearRows(Device device, const WeightSource& source,
                                                          const LinearSpec& spec, int64_t first, int64_t count) {
  PerDevice& entry = At(device);
  DeviceGuard guard(device);
  return cuda::MakeLinearRows(entry.context, entry.uploader, source, spec, first, count);
}

Buffer CudaBackend::MakeVector(Device device, const WeightSource& source) {
  PerDevice& entry = At(device);
  DeviceGuard guard(device);
  return cuda::MakeVector(entry.context, entry.uploader, source);
}

std::unique_ptr<EmbeddingTable> CudaBackend::MakeEmbedding(Device device, const WeightSource& source,
                                                           const LinearWeight* tied) {
  PerDevice& entry = At(device);
  DeviceGuard guard(device);
  return cuda::MakeEmbedding(entry.context, entry.uploader, source, tied);
}

int64_t CudaBackend::ScreenBytes(int64_t rows, int64_t cols, bool is_fixed) const {
  return is_fixed ? cuda::ScreenBytes(rows, cols) : 0;
}

void CudaBackend::EndLoading() {
  for (const Device& device : devices()) {
    DeviceGuard guard(device);
    At(device).uploader.Release();
  }
}

Backend::PlainLinear CudaBackend::Unpack(const LinearWeight& weight) {
  DeviceContext& ctx = At(weight.device()).context;
  DeviceGuard guard(weight.device());
  return cuda::Unpack(ctx, static_cast<const CudaLinear&>(weight));
}

std::unique_ptr<KvCache> CudaBackend::MakeKvCache(Device device, const KvCacheSpec& spec) {
  DeviceContext& ctx = At(device).context;
  DeviceGuard guard(device);
  return cuda::MakeKvCache(ctx, spec);
}

int64_t CudaBackend::KvCacheBytes(const KvCacheSpec& spec) const { return cuda::KvCacheBytes(spec); }

std::unique_ptr<Pass> CudaBackend::MakePass(Device device, const PassLimits& limits) {
  DeviceContext& ctx = At(device).context;
  DeviceGuard guard(device);
  return std::make_unique<CudaPass>(ctx, limits);
}

void CudaBackend::UploadPass(Pass& pass, const PassLayout& layout) {
  At(pass.device());
  DeviceGuard guard(pass.device());
  static_cast<CudaPass&>(pass).Upload(layout);
}

void CudaBackend::Embed(const EmbeddingTable& table, const Pass& pass, const TensorView& out) {
  DeviceContext& ctx = At(out.device).context;
  const auto& device_pass = static_cast<const CudaPass&>(pass);
  const auto& device_table = static_cast<const CudaEmbedding&>(table);
  CheckEmbed(table, pass, device_pass.rows(), out);
  DeviceGuard guard(out.device);
  LaunchEmbed(ctx, device_table.view(), device_pass.view().ids, device_pass.rows(), out.ptr<float>(), out.step(0));
}

#define OP(Op)                                                                                  \
  void CudaBackend::Op(const Op##Call& call) {                                                  \
    PerDevice& entry = At(call.device(), std::is_same_v<Op##Call, LinearCall>);                 \
    if (const AllGatherCall* gather = GatherOf(call)) Announce(call.device(), *gather);         \
    DeviceGuard guard(call.device());                                                           \
    Launch##Op(entry.context, call);                                                            \
    if (entry.test_fault != nullptr) entry.test_fault->Launch(entry.context.stream, call.site); \
  }
STOCH_FOR_EACH_OP(OP)
#undef OP

std::unique_ptr<ExpertWeights> CudaBackend::MakeExperts(std::vector<std::unique_ptr<LinearWeight>> experts) {
  CheckExperts(experts);
  const Device device = experts.front()->device();
  DeviceContext& ctx = At(device).context;
  DeviceGuard guard(device);
  return std::make_unique<CudaExperts>(ctx, std::move(experts));
}

void CudaBackend::SelectRows(const Pass& pass, const TensorView& x, const TensorView& out) {
  DeviceContext& ctx = At(pass.device()).context;
  const auto& device_pass = static_cast<const CudaPass&>(pass);
  CheckSelectRows(pass, device_pass.rows(), device_pass.num_output_rows(), x, out);
  DeviceGuard guard(pass.device());
  LaunchSelectRows(ctx, x.ptr<const float>(), x.step(0), device_pass.view().output_rows, device_pass.num_output_rows(),
                   x.dim(1), out.ptr<float>(), out.step(0));
}

void CudaBackend::Argmax(const TensorView& logits, const TensorView& ids) {
  DeviceContext& ctx = At(logits.device).context;
  CheckArgmax(logits, ids);
  DeviceGuard guard(logits.device);
  LaunchArgmax(ctx, logits.ptr<const float>(), logits.step(0), logits.dim(0), logits.dim(1), ids.ptr<int32_t>());
}

std::unique_ptr<LogitQueryBuffer> CudaBackend::MakeLogitQueries(Device device, const LogitQueryLimits& limits) {
  DeviceContext& ctx = At(device).context;
  DeviceGuard guard(device);
  return std::make_unique<CudaLogitQueries>(ctx, limits);
}

int64_t CudaBackend::LogitQueryBytes(const LogitQueryLimits& limits) const { return CudaLogitQueries::Bytes(limits); }

void CudaBackend::UploadLogitQueries(LogitQueryBuffer& buffer, const LogitQueries& queries) {
  (void)At(buffer.device());
  DeviceGuard guard(buffer.device());
  static_cast<CudaLogitQueries&>(buffer).Upload(queries);
}

void CudaBackend::PickTokens(const LogitRows& logits, LogitQueryBuffer& buffer, const QueryRange& range) {
  DeviceContext& ctx = At(buffer.device()).context;
  const auto& queries = static_cast<const CudaLogitQueries&>(buffer);
  CheckLogitRows({-1, "pick"}, logits, queries, queries.limits().vocab_size, range, queries.limits().max_picks);
  DeviceGuard guard(buffer.device());
  LaunchPickTokens(ctx, logits, queries, range);
}

void CudaBackend::LogProbs(const LogitRows& logits, LogitQueryBuffer& buffer, const QueryRange& range) {
  DeviceContext& ctx = At(buffer.device()).context;
  const auto& queries = static_cast<const CudaLogitQueries&>(buffer);
  CheckLogitRows({-1, "logprobs"}, logits, queries, queries.limits().vocab_size, range, queries.limits().max_logprobs);
  DeviceGuard guard(buffer.device());
  LaunchLogProbs(ctx, logits, queries, range);
}

void CudaBackend::ScMatmul(const TensorView& a, const TensorView& b, const ScOperator& op, const TensorView& out) {
  DeviceContext& ctx = At(out.device).context;
  DeviceGuard guard(out.device);
  LaunchScMatmul(ctx, a, b, op, out);
}

void CudaBackend::ScMixedMatmul(const TensorView& a, const TensorView& b, const ScOperatorPtr& op,
                                const ScExtras& extras, std::span<const int> lengths, const TensorView& out) {
  DeviceContext& ctx = At(out.device).context;
  DeviceGuard guard(out.device);
  LaunchScMixedMatmul(ctx, a, b, op, extras, lengths, out);
}

bool CudaBackend::ObserveLengths(OpObserver* observer) {
  // Unsupported on several devices: each would number the heads and weight rows of its shard from 0.
  if (per_device_.size() > 1) return observer == nullptr;
  per_device_.front()->context.observer = observer;
  return true;
}

void CudaBackend::AllGather(const AllGatherCall& call) {
  const GatherPlan plan = CheckAllGather(call);
  const std::vector<Device> devices = GiversOf(call);
  for (const Device& device : devices) At(device);
  DeviceGroup& group = GroupOf(devices);
  if (call.table == nullptr) return group.AllGather(call, plan);
  AllGatherCall rest = call;  // gathers f(x), which each device computes below, instead of x
  rest.prologue = Prologue::kNone;
  rest.table = nullptr;
  rest.from2.clear();
  std::vector<std::unique_ptr<Scratch>> scratches;
  for (size_t i = 0; i < devices.size(); ++i) {
    DeviceGuard guard(devices[i]);
    DeviceContext& ctx = EntryOf(devices[i]).context;
    LinearCall rows;
    rows.site = call.site;
    rows.prologue = call.prologue;
    rows.x = call.from[i];
    rows.x2 = call.from2[i];
    rows.table = call.table;
    Scratch& scratch = *scratches.emplace_back(std::make_unique<Scratch>(ctx.workspace));
    rest.from[i] = LaunchFunction(ctx, scratch, rows);
  }
  group.AllGather(rest, plan);
}

void CudaBackend::Announce(const Device& device, const AllGatherCall& call) {
  GroupOf(GiversOf(call)).Announce(EntryOf(device).context, call);
}

void CudaBackend::RingAttention(const RingAttentionCall& call) {
  CheckRingHandles(call);
  std::vector<int> numbers;
  std::vector<DeviceContext*> contexts;
  std::vector<Device> devices;
  for (const AttentionCall& part : call.parts) {
    devices.push_back(part.cache->device());
    numbers.push_back(devices.back().index);
    contexts.push_back(&At(devices.back()).context);
  }
  std::unique_ptr<RingGroup>& ring = rings_[numbers];
  if (ring == nullptr) ring = std::make_unique<RingGroup>(contexts, AreDirect(devices));
  RunRingAttention(contexts, *ring, call, ring_probe_);
}

int64_t CudaBackend::RingScratchBytes(const KvCacheSpec& spec, int num_heads, const PassLimits& limits) const {
  return RingLayout(spec, num_heads, limits).end;
}

DeviceGroup& CudaBackend::GroupOf(std::span<const Device> devices) {
  std::vector<int> ordinals;
  std::vector<DeviceContext*> contexts;
  for (const Device& device : devices) {
    ordinals.push_back(device.index);
    contexts.push_back(&EntryOf(device).context);
  }
  std::unique_ptr<DeviceGroup>& group = groups_[ordinals];
  if (group == nullptr) group = std::make_unique<DeviceGroup>(std::move(contexts));
  return *group;
}

std::string CudaBackend::collectives() const {
  const NcclProbe& nccl = ProbeNccl();
  return nccl.version > 0 ? "NCCL " + NcclVersionText(nccl.version) : "no NCCL: " + nccl.problem;
}

void CudaBackend::RunGraph(std::span<const Device> devices, std::string_view key, const std::function<void()>& body) {
  if (devices.size() > 1) {
    for (const Device& device : devices) At(device);
    GroupOf(devices).RunGraph(key, body);
    return;
  }
  PerDevice& entry = At(devices.front());
  DeviceGuard guard(devices.front());
  if (entry.context.observer != nullptr) return body();  // a replayed graph does not call the observer
  entry.graphs.Run(key, body);
}

void CudaBackend::CheckFinite(Device device) {
  DeviceContext& ctx = At(device).context;
  DeviceGuard guard(device);
  // First poll the exchanges of rings: they have a time limit, unlike the wait for the device below.
  for (auto& [ordinals, ring] : rings_) ring->query.Settle();
  ctx.CheckFinite();
  for (auto& [ordinals, group] : groups_) group->Check();
}

CallerOrder& CudaBackend::CallerOf(PerDevice* entry) {
  if (entry->caller == nullptr) entry->caller = std::make_unique<CallerOrder>(entry->context);
  return *entry->caller;
}

void CudaBackend::RunAfter(Device device, uintptr_t stream) {
  PerDevice& entry = At(device);
  DeviceGuard guard(device);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the interface has no type of CUDA
  CallerOf(&entry).RunAfter(reinterpret_cast<cudaStream_t>(stream));
}

void CudaBackend::RunBefore(Device device, uintptr_t stream) {
  PerDevice& entry = At(device);
  DeviceGuard guard(device);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the interface has no type of CUDA
  CallerOf(&entry).RunBefore(reinterpret_cast<cudaStream_t>(stream));
}

std::string CudaBackend::PollFinite(Device device) {
  PerDevice& entry = At(device);
  DeviceGuard guard(device);
  return CallerOf(&entry).PollFinite();
}

}  // namespace stoch::cuda
