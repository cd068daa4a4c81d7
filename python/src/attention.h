// SPDX-License-Identifier: Apache-2.0
// Causal attention of whole prompts of another framework's model, on the engine's kernels.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/backend.h"
#include "python/src/base/devices.h"

namespace stoch::python {

// Room for prompts of one kind of attention: a KV cache of one layer that every call fills again. Layers may share it.
class PromptAttention {
 public:
  // `mode` and `products` of a layer; up to `sequences` prompts of up to `positions` tokens in a call.
  // Errors: InvalidInput for what the device has no kernel for.
  PromptAttention(OpenDevice& open, AttentionMode mode, const KvCacheSpec::Products& products, int kv_heads,
                  int head_dim, int64_t sequences, int64_t positions);
  ~PromptAttention();
  PromptAttention(const PromptAttention&) = delete;
  PromptAttention& operator=(const PromptAttention&) = delete;

  // AttentionCall of calls.h without RoPE: `sequences` prompts of as many rows each, one after the other.
  // Shapes:   q, out F32 [rows, heads * head_dim]; k, v F32 [rows, kv_heads * head_dim]; unit F32 [positions of a
  //           prompt or more, head_dim]: 1 in the first half of a row, 0 in the second. q and k are overwritten.
  // Requires: the GIL is held.
  // Errors:   InvalidInput for shapes and devices; NotFinite as sc_matmul.
  // Async:    on CUDA as sc_matmul: after and before what `stream` holds; the host does not wait.
  void Run(nanobind::handle q, nanobind::handle k, nanobind::handle v, nanobind::handle unit, nanobind::handle out,
           int64_t sequences, uintptr_t stream);

 private:
  void Upload(int64_t sequences, int64_t positions);

  OpenDevice& open_;
  KvCacheSpec spec_;
  PassLimits limits_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Pass> pass_;
  int64_t sequences_ = 0, positions_ = 0;  // of the layout in pass_
};

}  // namespace stoch::python
