// SPDX-License-Identifier: Apache-2.0
// The buffers one device of a model works in.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "loader/config/decoder_config.h"
#include "models/decoder/memory_plan.h"
#include "models/decoder/shard.h"

namespace stoch {

// All stages of a device share them, as its ops run in order. What outlives a stage there - the residual stream, what
// the head reads and writes - is there once for every pass in flight, its lane.
struct DecoderWorkspace {
  struct Uses {
    bool layers = false;
    bool head = false;
  };
  // Errors: DeviceError.
  DecoderWorkspace(Backend& backend, const DecoderConfig& config, const PassShape& shape, const DecoderShard& shard,
                   bool divided, bool is_first, const Uses& uses);

  // F32 [max_rows, ...] except where noted.
  std::vector<Buffer> hidden;      // of each lane: [hidden_size]
  std::vector<Buffer> head_input;  // of each lane: [hidden_size], of dealt positions [max_logit_rows, hidden_size]
  std::vector<Buffer> logits;  // of each lane: [max_logit_rows, vocab_size], or [.., vocab] on others than the first
  std::vector<std::unique_ptr<LogitQueryBuffer>> queries;  // of each lane, on the first device with the head
  Buffer qkv;                                              // [(heads + 2 * kv_heads) * head_dim]
  Buffer attention;                                        // [num_heads * head_dim], gathered
  Buffer gate_up;                                          // [2 * intermediate]
  Buffer activation;  // [intermediate_size], Silu(gate) * up gathered; empty on a device alone
  Buffer branch;      // what a half of a block adds, or q and k of all heads; empty where neither is
  Buffer factors;     // [2, max_rows]: residual_multiplier and embedding_multiplier - 1 of every row
  // Of experts: logits, which ones a row takes, with which weights, and their outputs, as WorkspaceSizes says.
  Buffer router, chosen, expert_weights, expert_out;
  Buffer rope;        // [NumRopeTables, RopeRows, head_dim]
  int64_t bytes = 0;  // of all of it
};

}  // namespace stoch
