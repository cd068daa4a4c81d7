// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/fabric/comm/device_group.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "kernels/call_check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/device_guard.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/fabric/comm/gather_kernels.h"
#include "kernels/cuda/fabric/comm/peer_access.h"
#include "kernels/cuda/fabric/comm/shared_rows.h"

namespace stoch::cuda {
namespace {

std::vector<Device> DevicesOf(const std::vector<DeviceContext*>& contexts) {
  std::vector<Device> devices;
  for (const DeviceContext* ctx : contexts) devices.push_back(ctx->device);
  return devices;
}

Buffer ZeroedDevice(DeviceContext& ctx, size_t bytes) {
  DeviceGuard guard(ctx.device);
  Buffer buffer = AllocateDevice(ctx.device, bytes);
  STOCH_CUDA(cudaMemsetAsync(buffer.data(), 0, bytes, ctx.stream));
  // Other devices may write here as soon as they have the address.
  STOCH_CUDA(cudaStreamSynchronize(ctx.stream));
  return buffer;
}

// Returns the kernel arguments for the columns that device i contributes to an exchange.
GatherColumns ColumnsOf(const SiteReporter& reporter, const AllGatherCall& call, const GatherPlan& plan, size_t i) {
  GatherColumns columns;
  columns.reporter = reporter;
  columns.silu_mul = HasSecondOperand(call);
  columns.from = call.from[i].ptr<const float>();
  columns.from_stride = call.from[i].step(0);
  if (columns.silu_mul) {
    columns.from2 = call.from2[i].ptr<const float>();
    columns.from2_stride = call.from2[i].step(0);
  }
  columns.rows = plan.rows;
  columns.cols = plan.cols_of(i);
  return columns;
}

bool IsAligned(const TensorView& rows) {
  return reinterpret_cast<uintptr_t>(rows.data) % sizeof(float4) == 0 && (rows.dim(0) <= 1 || rows.step(0) % 4 == 0);
}

GatherShape ShapeOf(const AllGatherCall& call, const GatherPlan& plan, size_t devices, bool is_recorded) {
  bool vectors = std::all_of(call.to.begin(), call.to.end(), IsAligned);
  for (size_t i = 0; i < devices; ++i) {
    vectors = vectors && plan.begin[i] % 4 == 0 && plan.cols_of(i) % 4 == 0 && IsAligned(call.from[i]) &&
              (!HasSecondOperand(call) || IsAligned(call.from2[i]));
  }
  return {plan.rows, plan.widest(), vectors, call.to.size() == devices, is_recorded};
}

// Whether the environment has CUDA_LAUNCH_BLOCKING=1, CUDA's switch for debuggers and for tools that run one kernel at
// a time. The host then waits for each kernel, so a kernel that waits for a kernel launched later never ends.
bool LaunchesBlock() {
  const char* value = std::getenv("CUDA_LAUNCH_BLOCKING");
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace

DeviceGroup::DeviceGroup(std::vector<DeviceContext*> contexts) : contexts_(std::move(contexts)), graphs_(contexts_) {
  if (contexts_.size() > kMaxGroup) {
    throw InvalidInput("a model is divided over " + std::to_string(contexts_.size()) + " GPUs by rows; allowed are " +
                       std::to_string(kMaxGroup));
  }
  direct_ = AreDirect(DevicesOf(contexts_));
  failed_ = AllocatePinned(sizeof(int));
  std::memset(failed_.data(), 0, sizeof(int));
  if (!direct_) return;
  MakeMailboxes();
  shared_ = SharedRows::Make(contexts_, static_cast<int*>(failed_.data()));
}

DeviceGroup::~DeviceGroup() {
  // Other devices may still write to the memory that is freed next.
  for (DeviceContext* ctx : contexts_) {
    try {
      DeviceGuard guard(ctx->device);
      (void)cudaStreamSynchronize(ctx->stream);
    } catch (const DeviceError&) {
    }
  }
}

void DeviceGroup::MakeMailboxes() {
  for (DeviceContext* ctx : contexts_) {
    mailboxes_.push_back({ZeroedDevice(*ctx, sizeof(uint32_t) * kMaxGatherBlocks * kMaxGroup),
                          ZeroedDevice(*ctx, sizeof(uint32_t) * kMaxGatherBlocks),
                          ZeroedDevice(*ctx, kLandingBytesPerDevice * contexts_.size())});
  }
}

NcclGroup& DeviceGroup::nccl() {
  if (nccl_ == nullptr) {
    std::vector<int> ordinals;
    for (const DeviceContext* ctx : contexts_) ordinals.push_back(ctx->device.index);
    nccl_ = std::make_unique<NcclGroup>(ordinals);
  }
  return *nccl_;
}

void DeviceGroup::Announce(const DeviceContext& ctx, const AllGatherCall& call) {
  if (shared_ == nullptr || call.route == AllGatherRoute::kNccl || call.table != nullptr || !IsRecording()) return;
  const GatherPlan plan = CheckAllGather(call);
  if (!shared_->Takes(call, plan)) return;
  if (!shared_->HasBegun()) {
    shared_->Begin();
    // No device posts before the rows of all devices are zero.
    for (size_t i = 0; i < contexts_.size(); ++i) {
      DeviceGuard guard(contexts_[i]->device);
      LaunchDirectGather(*contexts_[i], Mail(i, call.site), {});
    }
  }
  for (size_t i = 0; i < contexts_.size(); ++i) {
    if (contexts_[i] == &ctx) shared_->Announce(i, call, plan);
  }
}

void DeviceGroup::AllGather(const AllGatherCall& call, const GatherPlan& plan) {
  if (shared_ != nullptr && shared_->Offer(call, plan)) {
    last_outputs_.reset();
    return;
  }
  if (call.route == AllGatherRoute::kDirect && !direct_) {
    Reject(call.site, "a direct gather needs GPUs that reach each other's memory, and NCCL_P2P_DISABLE unset");
  }
  if (call.route == AllGatherRoute::kNccl || !direct_) {
    GatherThroughNccl(call, plan);
  } else {
    GatherDirect(call, plan);
  }
}

void DeviceGroup::RunGraph(std::string_view key, const std::function<void()>& body) {
  // Without direct access, exchanges go through NCCL. With NCCL 2.28, graphs (one per device) that contained exchanges
  // through host memory never ended, so nothing is recorded then.
  if (!direct_ || LaunchesBlock()) return body();
  last_outputs_.reset();  // other exchanges may run between the recording and a replay
  graphs_.Run(key, body);
}

void DeviceGroup::KeepUnreadOutputs(const AllGatherCall& call) {
  bool safe = last_outputs_.has_value();
  for (const TensorView& to : call.to) {
    if (!safe) break;
    for (const TensorView& last : *last_outputs_) safe = safe && (to.device != last.device || !MayOverlap(to, last));
  }
  last_outputs_ = call.to;
  if (safe) return;
  for (size_t i = 0; i < contexts_.size(); ++i) {
    DeviceGuard guard(contexts_[i]->device);
    LaunchDirectGather(*contexts_[i], Mail(i, call.site), {});
  }
}

DirectGather DeviceGroup::Mail(size_t rank, const OpSite& site) const {
  DirectGather part;
  part.rank = static_cast<int>(rank);
  part.devices = static_cast<int>(contexts_.size());
  for (size_t d = 0; d < contexts_.size(); ++d) part.flags[d] = static_cast<uint32_t*>(mailboxes_[d].flags.data());
  part.arrived = static_cast<uint32_t*>(mailboxes_[rank].arrived.data());
  part.failed = static_cast<int*>(failed_.data());
  part.columns.reporter = contexts_[rank]->Reporter(site);
  return part;
}

bool DeviceGroup::IsRecording() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  STOCH_CUDA(cudaStreamIsCapturing(contexts_[0]->stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

void DeviceGroup::JoinStreams() {
  for (DeviceContext* ctx : contexts_) ctx->RecordReady();
  for (const DeviceContext* waiting : contexts_) {
    DeviceGuard guard(waiting->device);
    for (const DeviceContext* other : contexts_) {
      if (other != waiting) STOCH_CUDA(cudaStreamWaitEvent(waiting->stream, other->ready()));
    }
  }
}

void DeviceGroup::GatherDirect(const AllGatherCall& call, const GatherPlan& plan) {
  const bool recording = IsRecording();
  const GatherLaunch launch = PlanGather(ShapeOf(call, plan, contexts_.size(), recording));
  if (launch.route == GatherRoute::kPackets) {
    GatherPackets(call, plan, launch.blocks);
    last_outputs_ = call.to;
    return;
  }
  if (recording) {
    KeepUnreadOutputs(call);
  } else {
    JoinStreams();
  }
  for (size_t i = 0; i < contexts_.size(); ++i) {
    DirectGather part = Mail(i, call.site);
    part.waits = recording;
    part.columns = ColumnsOf(contexts_[i]->Reporter(call.site), call, plan, i);
    for (const TensorView& to : call.to) {
      for (size_t d = 0; d < contexts_.size(); ++d) {
        if (contexts_[d]->device != to.device) continue;
        part.to[d] = to.ptr<float>() + plan.begin[i];
        part.to_stride[d] = to.step(0);
        if (d == i) part.in_place = IsInPlace(call, plan, i, to);
      }
    }
    DeviceGuard guard(contexts_[i]->device);
    LaunchDirectGather(*contexts_[i], part, launch);
  }
  if (!recording) JoinStreams();
}

void DeviceGroup::GatherPackets(const AllGatherCall& call, const GatherPlan& plan, int blocks) {
  for (size_t i = 0; i < contexts_.size(); ++i) {
    PacketGather part;
    part.columns = ColumnsOf(contexts_[i]->Reporter(call.site), call, plan, i);
    part.rank = static_cast<int>(i);
    part.devices = static_cast<int>(contexts_.size());
    part.arrived = static_cast<uint32_t*>(mailboxes_[i].arrived.data());
    part.failed = static_cast<int*>(failed_.data());
    for (size_t d = 0; d < contexts_.size(); ++d) {
      part.begin[d] = plan.begin[d];
      part.cols[d] = plan.cols_of(d);
      part.landing[d] = static_cast<uint4*>(mailboxes_[d].landing.data());
    }
    for (const TensorView& to : call.to) {
      if (to.device != contexts_[i]->device) continue;
      part.to = to.ptr<float>();
      part.to_stride = to.step(0);
      part.in_place = IsInPlace(call, plan, i, to);
    }
    DeviceGuard guard(contexts_[i]->device);
    LaunchPacketGather(*contexts_[i], part, blocks);
  }
}

void DeviceGroup::GatherThroughNccl(const AllGatherCall& call, const GatherPlan& plan) {
  NcclGroup& group = nccl();
  const size_t count = contexts_.size();
  const int64_t widest = plan.widest();
  const int64_t part_size = plan.rows * widest;
  std::vector<std::unique_ptr<Scratch>> scratches;
  std::vector<const float*> send;
  std::vector<float*> receive;
  std::vector<cudaStream_t> streams;
  for (size_t i = 0; i < count; ++i) {
    DeviceContext& ctx = *contexts_[i];
    DeviceGuard guard(ctx.device);
    Scratch& scratch = *scratches.emplace_back(std::make_unique<Scratch>(ctx.workspace));
    float* packed = scratch.Take<float>(part_size);
    LaunchPackColumns(ctx, ColumnsOf(ctx.Reporter(call.site), call, plan, i), packed);
    send.push_back(packed);
    receive.push_back(scratch.Take<float>(part_size * static_cast<int64_t>(count)));
    streams.push_back(ctx.stream);
  }
  group.AllGather(send, receive, static_cast<size_t>(part_size), streams);
  for (const TensorView& to : call.to) {
    for (size_t d = 0; d < count; ++d) {
      if (contexts_[d]->device != to.device) continue;
      DeviceGuard guard(to.device);
      for (size_t i = 0; i < count; ++i) {
        if (d == i && IsInPlace(call, plan, i, to)) continue;
        LaunchUnpackColumns(*contexts_[d], receive[d] + static_cast<int64_t>(i) * part_size, plan.rows, plan.cols_of(i),
                            to.ptr<float>() + plan.begin[i], to.step(0));
      }
    }
  }
}

void DeviceGroup::Check() {
  int* failed = static_cast<int*>(failed_.data());
  if (*failed != 0) {
    const auto rank = static_cast<size_t>(*failed - 1);
    throw DeviceError("a gather waited in vain for " +
                      (rank < contexts_.size() ? DeviceName(contexts_[rank]->device) : "one of the GPUs") +
                      ": that GPU stopped, or its links did; NCCL_P2P_DISABLE=1 does without direct links");
  }
  if (nccl_ != nullptr) nccl_->Check();
}

}  // namespace stoch::cuda
