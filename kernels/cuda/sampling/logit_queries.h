// SPDX-License-Identifier: Apache-2.0
// Queries about logits and their answers on a GPU, in fixed buffers that every pass reuses, so that recorded graphs
// stay valid.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/runtime/pinned_upload.h"

namespace stoch::cuda {

// A TokenPick in device memory, as PickTokensKernel reads it.
struct PickRecord {
  // Row of the logits; -1: no pick.
  int32_t row = -1;
  float temperature = 0;
  int32_t top_k = 0;
  float repeat_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  int32_t first_bias = 0;  // index of the first LogitBias in LogitQueryView::entries
  int32_t num_biases = 0;
  int32_t first_count = 0;  // index of the first TokenCount in LogitQueryView::entries
  int32_t num_counts = 0;   // 0 if no penalty is set
  int32_t mask = -1;        // index in LogitQueryView::masks; -1: every token is allowed
  double top_p = 1;
  uint64_t min_weight = 0;
  uint64_t random = 0;
};

// A LogitBias (value: bits of the float bias), or a TokenCount (value: how often the token was generated).
struct PickEntry {
  int32_t id = 0;
  uint32_t value = 0;
};

// Queries as kernels see them, passed by value. Every array has room for the limits (LogitQueryLimits).
struct LogitQueryView {
  const PickRecord* picks = nullptr;       // device, [max_picks]: the picks
  const LogProbQuery* logprobs = nullptr;  // device, [max_logprobs]: queries for log-probabilities
  const PickEntry* entries = nullptr;      // device, [max_entries]: biases and counts of all picks
  const uint32_t* masks = nullptr;   // device, [max_picks][TokenMaskWords(vocab_size)]: allowed tokens, one bit each
  float* adjusted = nullptr;         // device, [max_picks][vocab_size]: logits with biases, penalties and mask
  int32_t* picked = nullptr;         // device, [max_picks]: picked token ids, -1 for logits that are not finite
  int32_t* picked_host = nullptr;    // pinned, [max_picks]: copies of `picked` for the host
  LogProbAnswer* answers = nullptr;  // pinned, [max_logprobs]: answers for the host
  int32_t vocab_size = 0;
};

class CudaLogitQueries final : public LogitQueryBuffer {
 public:
  // Errors: InvalidInput if CheckLogitQueryLimits refuses the limits; OutOfMemory.
  CudaLogitQueries(DeviceContext& ctx, const LogitQueryLimits& limits);

  static int64_t Bytes(const LogitQueryLimits& limits);

  Device device() const override { return ctx_.device; }
  int64_t bytes() const override { return Bytes(limits_); }
  std::span<const int32_t> picked() const override { return {view_.picked_host, num_picks_}; }
  std::span<const LogProbAnswer> logprobs() const override { return {view_.answers, num_logprobs_}; }

  const LogitQueryView& view() const { return view_; }
  const LogitQueryLimits& limits() const { return limits_; }

  // Requires and Errors: as Backend::UploadLogitQueries. Async: one copy on the context's stream, and one of masks if
  // there are any. A host buffer is reused only after its copy has run.
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

// LaunchPickTokens fills `picked`, LaunchLogProbs fills `answers`, both as Backend::PickTokens and Backend::LogProbs
// promise, for the queries of `range`. Queries of rows that `logits` does not have are skipped.
void LaunchPickTokens(DeviceContext& ctx, const LogitRows& logits, const CudaLogitQueries& queries,
                      const QueryRange& range);
void LaunchLogProbs(DeviceContext& ctx, const LogitRows& logits, const CudaLogitQueries& queries,
                    const QueryRange& range);

}  // namespace stoch::cuda
