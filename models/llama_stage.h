// A part of a Llama's forward pass: consecutive layers where they are, with everything they need there.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "models/llama_model.h"
#include "models/llama_weights.h"
#include "models/memory_plan.h"
#include "models/shard.h"

namespace stoch {

// One stage runs on one device, or on several that divide every matrix by rows. Then each holds the whole residual
// stream; it computes its own columns of every result and gathers the others'.
class LlamaStage {
 public:
  struct Role {
    bool embeds = false;  // starts from token ids, else from another stage's hidden states
    bool has_head = false;
    int first_layer = 0;
    int num_layers = 0;
  };

  // Requires: everything given outlives the stage. Errors: InvalidInput, DeviceError.
  LlamaStage(Backend& backend, const LlamaConfig& config, const LlamaModel::Options& options,
             const LlamaWeights& weights, std::span<const Device> devices, const Role& role);

  const Role& role() const { return role_; }
  std::span<const Device> devices() const { return devices_; }

  // What: the next pass. Run and RunHead are ops on it.
  void Upload(const PassLayout& layout);
  // What: from token ids, or from Hidden where another stage put it, to Hidden of the same rows; and the output rows
  //       for RunHead where the stage has the head.
  void Run(int64_t rows, int64_t output_rows);
  // What: logits of output rows [first, first + count). Requires: has_head, and Run before it.
  void RunHead(int64_t first, int64_t count, int64_t output_rows);

  // The residual stream on the first device, [rows, hidden_size].
  TensorView Hidden(int64_t rows) const;
  // What: puts the residual stream of another stage on every device of this one.
  void Receive(const TensorView& hidden);
  // Of the last RunHead, on the first device, [count, vocab_size].
  TensorView Logits(int64_t count) const;

  int64_t kv_cache_bytes() const { return kv_cache_bytes_; }
  int64_t workspace_bytes() const { return workspace_bytes_; }

 private:
  // What one device has. Buffers hold max_rows rows.
  struct Part {
    LlamaShard shard;
    std::unique_ptr<KvCache> cache;  // of its KV heads; null where it has none, or the stage no layers
    std::unique_ptr<Pass> pass;
    Buffer hidden;      // [hidden_size]
    Buffer head_input;  // [hidden_size]
    Buffer qkv;         // [(heads + 2 * kv_heads) * head_dim]
    Buffer attention;   // [num_heads * head_dim], gathered
    Buffer gate_up;     // [2 * intermediate]
    Buffer activation;  // [intermediate_size], Silu(gate) * up gathered; empty on a device alone
    Buffer logits;      // [vocab_size] on the first device, [vocab] on others
    Buffer rope;        // [context, head_dim]
  };

  void Allocate(Part& part, bool is_first);
  bool divided() const { return parts_.size() > 1; }
  void RunLayer(int cache_layer, int64_t rows);
  void Attend(Part& part, const LlamaLayerShard& weights, int cache_layer, int64_t rows);
  void ProjectGateUp(Part& part, const LlamaLayerShard& weights, int layer, int64_t rows);
  void ProjectDown(Part& part, const LlamaLayerShard& weights, int layer, int64_t rows);
  // Exchanges columns of a buffer that every device has: each gives those of its range, times `scale`.
  void GatherColumns(const OpSite& site, Buffer Part::*buffer, IndexRange LlamaShard::*range, int64_t scale,
                     int64_t rows, int64_t cols);
  void GatherActivation(int layer, int64_t rows);
  void AddNorm(LinearCall& call, const Buffer& weight) const;

  Backend& backend_;
  const LlamaConfig& config_;
  const LlamaModel::Options& options_;
  const LlamaWeights& weights_;
  std::vector<Device> devices_;
  Role role_;
  std::vector<Part> parts_;
  int64_t kv_cache_bytes_ = 0;
  int64_t workspace_bytes_ = 0;
};

}  // namespace stoch
