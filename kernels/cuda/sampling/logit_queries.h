// SPDX-License-Identifier: Apache-2.0
// Queries about logits and their answers on a GPU: fixed buffers that every pass reuses, so that recorded graphs stay
// valid.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/runtime/pinned_upload.h"

namespace stoch::cuda {

// A TokenPick as its kernel reads it.
struct PickRecord {
  int32_t row = -1;
  float temperature = 0;
  int32_t top_k = 0;
  float repeat_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  int32_t first_bias = 0;  // in entries
  int32_t num_biases = 0;
  int32_t first_count = 0;  // in entries
  int32_t num_counts = 0;   // 0 where no penalty is set
  int32_t mask = -1;        // in masks; -1: every token is allowed
  double top_p = 1;
  uint64_t min_weight = 0;
  uint64_t random = 0;
};

// A LogitBias (value: bits of the bias) or a TokenCount (value: how often generated).
struct PickEntry {
  int32_t id = 0;
  uint32_t value = 0;
};

// Queries as kernels see them; all pointers have room for the limits. Passed by value.
struct LogitQueryView {
  const PickRecord* picks = nullptr;       // device, [max_picks]
  const LogProbQuery* logprobs = nullptr;  // device, [max_logprobs]
  const PickEntry* entries = nullptr;      // device, [max_entries]
  const uint32_t* masks = nullptr;         // device, [max_picks][TokenMaskWords(vocab_size)]
  float* adjusted = nullptr;               // device, [max_picks][vocab_size]
  int32_t* picked = nullptr;               // device, [max_picks]
  int32_t* picked_host = nullptr;          // pinned, [max_picks]: the same, for the host
  LogProbAnswer* answers = nullptr;        // pinned, [max_logprobs]
  int32_t vocab_size = 0;
};

class CudaLogitQueries final : public LogitQueryBuffer {
 public:
  // Errors: InvalidInput (CheckLogitQueryLimits, or no memory).
  CudaLogitQueries(DeviceContext& ctx, const LogitQueryLimits& limits);

  static int64_t Bytes(const LogitQueryLimits& limits);

  Device device() const override { return ctx_.device; }
  int64_t bytes() const override { return Bytes(limits_); }
  std::span<const int32_t> picked() const override { return {view_.picked_host, num_picks_}; }
  std::span<const LogProbAnswer> logprobs() const override { return {view_.answers, num_logprobs_}; }

  const LogitQueryView& view() const { return view_; }
  const LogitQueryLimits& limits() const { return limits_; }

  // Requires and Errors: Backend::UploadLogitQueries. Async: one copy on the context's stream, and one of masks where there
  // are any; a host buffer is reused only after its copy ran.
  void Upload(const LogitQueries& queries);

 private:
  struct Offsets {  // bytes from the start of the buffer that is copied
    size_t picks = 0, logprobs = 0, entries = 0, end = 0;
  };
  static Offsets OffsetsOf(const LogitQueryLimits& limits);
  void UploadMasks(const LogitQueries& queries);

  DeviceContext& ctx_;
  LogitQueryLimits limits_;
  Offsets offsets_;
  Buffer device_buffer_;
  Buffer masks_;
  Buffer adjusted_;
  Buffer answers_;
  std::optional<PinnedUpload> upload_;
  std::optional<PinnedUpload> mask_upload_;
  LogitQueryView view_;
  size_t num_picks_ = 0;
  size_t num_logprobs_ = 0;
};

// The contracts of these are Backend's. Rows outside of the logits are skipped.
void LaunchPickTokens(DeviceContext& ctx, const LogitRows& logits, const CudaLogitQueries& queries,
                      const QueryRange& range);
void LaunchLogProbs(DeviceContext& ctx, const LogitRows& logits, const CudaLogitQueries& queries,
                    const QueryRange& range);

}  // namespace stoch::cuda
