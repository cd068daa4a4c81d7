// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sampling/logit_queries.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/logit_query_check.h"
#include "kernels/math/sampling.h"

namespace stoch::cuda {
namespace {

size_t AdjustedBytes(const LogitQueryLimits& limits) {
  return static_cast<size_t>(limits.max_picks) * static_cast<size_t>(limits.vocab_size) * sizeof(float);
}

// MaskBytes: bytes of the token mask of one pick. MasksBytes: bytes of the masks of all picks.
size_t MaskBytes(const LogitQueryLimits& limits) {
  return static_cast<size_t>(TokenMaskWords(limits.vocab_size)) * sizeof(uint32_t);
}
size_t MasksBytes(const LogitQueryLimits& limits) { return static_cast<size_t>(limits.max_picks) * MaskBytes(limits); }

bool HasPenalty(const TokenPick& pick) {
  return pick.repeat_penalty != 1.0f || pick.presence_penalty != 0.0f || pick.frequency_penalty != 0.0f;
}

}  // namespace

CudaLogitQueries::Offsets CudaLogitQueries::OffsetsOf(const LogitQueryLimits& limits) {
  Offsets offsets;
  offsets.logprobs = AlignField(static_cast<size_t>(limits.max_picks) * sizeof(PickRecord));
  offsets.entries = offsets.logprobs + AlignField(static_cast<size_t>(limits.max_logprobs) * sizeof(LogProbQuery));
  offsets.end = offsets.entries + AlignField(static_cast<size_t>(limits.max_entries) * sizeof(PickEntry));
  return offsets;
}

int64_t CudaLogitQueries::Bytes(const LogitQueryLimits& limits) {
  const size_t picked = AlignField(static_cast<size_t>(limits.max_picks) * sizeof(int32_t));
  return static_cast<int64_t>(OffsetsOf(limits).end + picked + MasksBytes(limits) + AdjustedBytes(limits));
}

CudaLogitQueries::CudaLogitQueries(DeviceContext& ctx, const LogitQueryLimits& limits) : ctx_(ctx), limits_(limits) {
  CheckLogitQueryLimits(limits);
  offsets_ = OffsetsOf(limits);
  const size_t picked = AlignField(static_cast<size_t>(limits.max_picks) * sizeof(int32_t));
  device_buffer_ = AllocateDevice(ctx.device, offsets_.end + picked);
  STOCH_CUDA(cudaMemsetAsync(device_buffer_.data(), 0, offsets_.end + picked, ctx.stream));
  masks_ = AllocateDevice(ctx.device, MasksBytes(limits));
  adjusted_ = AllocateDevice(ctx.device, AdjustedBytes(limits));
  answers_ = AllocatePinned(static_cast<size_t>(limits.max_logprobs) * sizeof(LogProbAnswer) + picked);
  std::memset(answers_.data(), 0, answers_.bytes());
  upload_.emplace(ctx, offsets_.end);
  mask_upload_.emplace(ctx, MasksBytes(limits));
  view_.picks = FieldAt<PickRecord>(device_buffer_, offsets_.picks);
  view_.logprobs = FieldAt<LogProbQuery>(device_buffer_, offsets_.logprobs);
  view_.entries = FieldAt<PickEntry>(device_buffer_, offsets_.entries);
  view_.picked = FieldAt<int32_t>(device_buffer_, offsets_.end);
  view_.masks = static_cast<const uint32_t*>(masks_.data());
  view_.adjusted = static_cast<float*>(adjusted_.data());
  view_.answers = FieldAt<LogProbAnswer>(answers_, 0);
  view_.picked_host = FieldAt<int32_t>(answers_, static_cast<size_t>(limits.max_logprobs) * sizeof(LogProbAnswer));
  view_.vocab_size = static_cast<int32_t>(limits.vocab_size);
}

void CudaLogitQueries::Upload(const LogitQueries& queries) {
  (void)CheckLogitQueries(queries, limits_);
  const Buffer& host = upload_->Next();
  auto* picks = FieldAt<PickRecord>(host, offsets_.picks);
  auto* entries = FieldAt<PickEntry>(host, offsets_.entries);
  int32_t next = 0, masks = 0;
  for (size_t i = 0; i < queries.picks.size(); ++i) {
    const TokenPick& pick = queries.picks[i];
    PickRecord& record = picks[i];
    record.row = pick.row;
    record.temperature = pick.temperature;
    record.top_k = pick.top_k;
    record.repeat_penalty = pick.repeat_penalty;
    record.presence_penalty = pick.presence_penalty;
    record.frequency_penalty = pick.frequency_penalty;
    record.top_p = pick.top_p;
    record.min_weight = MinPWeight(pick.min_p);
    record.random = pick.random;
    record.mask = pick.allowed.empty() ? -1 : masks++;
    record.first_bias = next;
    record.num_biases = static_cast<int32_t>(pick.biases.size());
    for (const LogitBias& entry : pick.biases) entries[next++] = {entry.id, FloatToBits(entry.bias)};
    record.first_count = next;
    record.num_counts = 0;
    if (!HasPenalty(pick)) continue;
    record.num_counts = static_cast<int32_t>(pick.counts.size());
    for (const TokenCount& entry : pick.counts) entries[next++] = {entry.id, static_cast<uint32_t>(entry.generated)};
  }
  std::copy(queries.logprobs.begin(), queries.logprobs.end(), FieldAt<LogProbQuery>(host, offsets_.logprobs));
  num_picks_ = queries.picks.size();
  num_logprobs_ = queries.logprobs.size();
  // Only the part in use is copied: up to the last pick, the last log-probability query, or the last entry.
  size_t used = num_picks_ * sizeof(PickRecord);
  if (num_logprobs_ > 0) used = offsets_.logprobs + num_logprobs_ * sizeof(LogProbQuery);
  if (next > 0) used = offsets_.entries + static_cast<size_t>(next) * sizeof(PickEntry);
  if (used > 0) upload_->CopyTo(device_buffer_.data(), used);
  if (masks > 0) UploadMasks(queries);
}

void CudaLogitQueries::UploadMasks(const LogitQueries& queries) {
  const Buffer& host = mask_upload_->Next();
  const size_t bytes = MaskBytes(limits_);
  size_t used = 0;
  for (const TokenPick& pick : queries.picks) {
    if (pick.allowed.empty()) continue;
    std::memcpy(FieldAt<char>(host, used), pick.allowed.data(), bytes);
    used += bytes;
  }
  mask_upload_->CopyTo(masks_.data(), used);
}

}  // namespace stoch::cuda
