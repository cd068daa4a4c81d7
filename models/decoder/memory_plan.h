// SPDX-License-Identifier: Apache-2.0
// What loading a model would take, computed from its shape: nothing is read or allocated.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "loader/checkpoint/weight_store.h"
#include "loader/config/decoder_config.h"
#include "models/decoder/pass_shape.h"
#include "models/decoder/shard.h"
#include "models/sc_model_config.h"

namespace stoch {

// Bytes of one part of a plan, with what the pages of a device add to weights. An SC parameter takes one byte, an exact
// one as many as in its file (random ones are fp16), two in fp16; norms are F32. What a CPU backend leaves in the
// mapped file counts too.
struct MemoryBytes {
  int64_t weights = 0;  // codes of SC matrices, values of exact ones
  int64_t scales = 0;   // row scales of SC matrices
  int64_t embedding = 0;
  int64_t kv_cache = 0;
  int64_t workspace = 0;  // activations, logits, RoPE table, scratch of ops
  int64_t runtime = 0;    // DeviceInfo::runtime_bytes of every device in use
  int64_t host = 0;       // an embedding in pinned memory of the host: of no device, and not in the total
  int64_t total() const { return weights + scales + embedding + kv_cache + workspace + runtime; }
  MemoryBytes& operator+=(const MemoryBytes& part) {
    weights += part.weights;
    scales += part.scales;
    embedding += part.embedding;
    kv_cache += part.kv_cache;
    workspace += part.workspace;
    runtime += part.runtime;
    host += part.host;
    return *this;
  }
};

struct MemoryPlan {
  std::vector<MemoryBytes> layers;  // [num_hidden_layers]: weights, scales, kv_cache of each
  MemoryBytes rest;                 // embedding, final norm, LM head, workspace, runtime
  int64_t head_workspace = 0;       // of rest.workspace, what only the device of the LM head has
  MemoryBytes total;
  int64_t decode_stream_bytes = 0;  // weight bytes one token reads: decoder linears with scales, and the LM head
};

// The cache of `num_layers` consecutive layers. sc is read for kSc only.
KvCacheSpec MakeKvCacheSpec(const DecoderConfig& config, Precision precision, const ScModelConfig& sc, int num_layers,
                            int64_t num_pages);

// Most biases of one request (SamplingOptions).
inline constexpr int64_t kMaxLogitBiases = 1024;

// What one pass may ask of its logits: a token per sequence, a log-probability per row.
LogitQueryLimits LogitQueryLimitsOf(const DecoderConfig& config, const PassShape& shape);

// Rows of one device's RoPE table: the positions of a context that it owns, at least one.
inline int64_t RopeRows(const PassShape& shape, const DecoderShard& shard) {
  return std::max<int64_t>(1, shard.stripe.Below(shape.context));
}

// Bytes of every buffer of one device's workspace (workspace.h); of a device alone, or of one that shares rows
// with others. max_rows is ShapeOn's.
struct WorkspaceSizes {
  int64_t hidden = 0;          // F32 [max_rows, hidden_size]
  int64_t qkv = 0;             // F32 [max_rows, q | k | v], of its heads
  int64_t attention = 0;       // F32 [max_rows, num_heads * head_dim]
  int64_t gate_up = 0;         // F32 [max_rows, 2 * intermediate], of its rows; or of the experts that a row takes
  int64_t activation = 0;      // F32 [max_rows, intermediate_size] where rows are shared; or of those experts
  int64_t branch = 0;          // F32 [max_rows, hidden_size], or q and k of all heads; 0 where no such step is
  int64_t factors = 0;         // F32 [2, max_rows] next to it
  int64_t router = 0;          // F32 [max_rows, num_experts], where there are experts, as the next three
  int64_t chosen = 0;          // I32 [max_rows, num_experts_per_tok]
  int64_t expert_weights = 0;  // F32 of the same shape
  int64_t expert_out = 0;      // F32 [max_rows * num_experts_per_tok, hidden_size], of its rows
  int64_t rope = 0;            // F32 [NumRopeTables, RopeRows, head_dim]
  int64_t head_input = 0;  // F32 [max_rows, hidden_size]; of dealt positions [max_logit_rows, ..] on the first alone
  int64_t logits = 0;      // F32 [max_logit_rows, vocab_size], on other devices than the first only those of its rows
  int64_t lanes = 1;       // how often hidden, head_input and logits are there
  int64_t head() const { return lanes * (head_input + logits); }
  int64_t experts() const { return router + chosen + expert_weights + expert_out; }
  int64_t branches() const { return branch + factors; }
  int64_t total() const {
    return lanes * hidden + qkv + attention + gate_up + activation + branches() + experts() + rope + head();
  }
};
WorkspaceSizes MakeWorkspaceSizes(const DecoderConfig& config, const PassShape& shape, const DecoderShard& shard,
                                  bool divided, bool is_first);

// Memory that the ops of one device take while they run, besides that workspace, in passes within the shape. One piece
// that all of them share: linears, attention, and where has_head the LM head. ReserveScratch takes it.
int64_t ScratchBytes(const DecoderConfig& config, Precision precision, const ScModelConfig& sc, const PassShape& shape,
                     const Backend& backend, const DecoderShard& shard, bool has_head);

// What a RingAttention works in on one device; 0 where positions are not dealt.
int64_t RingBytes(const DecoderConfig& config, Precision precision, const ScModelConfig& sc, const PassShape& shape,
                  const Backend& backend, const DecoderShard& shard);

// Which kernels one operator runs for some numbers of tokens; "" where the backend has no choice.
struct OperatorKernels {
  std::string op;                    // "qkv_proj", "attention"
  std::vector<std::string> kernels;  // of each number of tokens
};
// Of every operator of a decoder layer and the LM head. More than kStepTokens tokens are one prompt, fewer are a step
// of as many sequences.
inline constexpr int64_t kStepTokens = 64;
std::vector<OperatorKernels> KernelsOf(const DecoderConfig& config, Precision precision, const ScModelConfig& sc,
                                       const Backend& backend, const DecoderShard& shard,
                                       std::span<const int64_t> tokens);

// The plan of the model in `precision` (sc is read for kSc only). KV bytes are what the backend says.
// Errors: InvalidInput for an SC configuration that breaks its rules.
MemoryPlan PlanMemory(const ModelFiles& files, Precision precision, const ScModelConfig& sc, const PassShape& shape,
                      const Backend& backend);

// The plan of what shards[index] holds where the model is divided by rows, or its positions are dealt; the first one of
// every stripe has the embedding.
MemoryPlan PlanShard(const ModelFiles& files, Precision precision, const ScModelConfig& sc, const PassShape& shape,
                     const Backend& backend, std::span<const DecoderShard> shards, size_t index);

}  // namespace stoch
