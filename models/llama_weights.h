// The weights of a Llama model on their devices.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "loader/weight_store.h"
#include "models/sc_model_config.h"

namespace stoch {

// How far loading is; bytes of source tensors.
struct LoadProgress {
  int64_t done_bytes = 0;
  int64_t total_bytes = 0;
  std::string_view tensor;  // just finished
};
using ProgressFn = std::function<void(const LoadProgress&)>;

// Which device holds what. A decoder layer is never split. The LM head lives with the final norm.
struct LlamaPlacement {
  Device embedding;
  std::vector<Device> layers;  // [num_hidden_layers]
  Device head;
};

// What: everything on one device.
LlamaPlacement SingleDevice(const LlamaConfig& config, Device device);

// Several matrices over one input, stacked by rows where their specs allow it: part i is rows
// [offset[i], offset[i + 1]) of the concatenated outputs, whatever the stacking.
struct LinearGroup {
  std::vector<std::unique_ptr<LinearWeight>> weights;
};

struct LlamaLayerWeights {
  Device device;
  Buffer input_norm;           // F32 [hidden_size]
  LinearGroup qkv;             // q|k|v: [(num_heads + 2 * num_kv_heads) * head_dim, hidden_size]
  LinearGroup o;               // [hidden_size, num_heads * head_dim]
  Buffer post_attention_norm;  // F32 [hidden_size]
  LinearGroup gate_up;         // gate|up: [2 * intermediate_size, hidden_size]
  LinearGroup down;            // [hidden_size, intermediate_size]
};

struct LlamaWeights {
  std::unique_ptr<EmbeddingTable> embedding;
  std::vector<LlamaLayerWeights> layers;
  Buffer final_norm;                      // F32 [hidden_size]
  std::unique_ptr<LinearWeight> lm_head;  // [vocab_size, hidden_size]
  int64_t bytes = 0;                      // device memory of all of it
  int64_t decoder_bytes = 0;              // of the decoder linears, scales included
  int64_t stream_bytes = 0;               // read by one decode step
};

// The tensor that holds the embedding: tied ones are kept under either name, or under both.
std::string EmbeddingTensor(const ModelFiles& files);

// What:   loads every tensor onto its device in `precision`; sc is read for kSc. A tied LM head is the embedding.
// Errors: InvalidInput naming the tensor: NaN or infinity, or an SC accumulator that could overflow (D * L >= 2^31).
LlamaWeights LoadLlamaWeights(Backend& backend, const ModelFiles& files, Precision precision, const ScModelConfig& sc,
                              const LlamaPlacement& placement, const ProgressFn& progress);

}  // namespace stoch
