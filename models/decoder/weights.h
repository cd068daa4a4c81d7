// The weights of a decoder on their devices.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "loader/checkpoint/weight_store.h"
#include "models/decoder/shard.h"
#include "models/sc_model_config.h"

namespace stoch {

// How far loading is; bytes of source tensors.
struct LoadProgress {
  int64_t done_bytes = 0;
  int64_t total_bytes = 0;
  std::string_view tensor;  // just finished
};
using ProgressFn = std::function<void(const LoadProgress&)>;

// Which device holds what. The LM head lives with the final norm.
// Split by layers: a decoder layer is whole, on the device named for it. Split by rows: `rows` names two or more
// devices that share every matrix (shard.h); the embedding and the logits are then on the first of them.
struct DecoderPlacement {
  Device embedding;
  std::vector<Device> layers;  // [num_hidden_layers]
  Device head;
  std::vector<Device> rows = {};
};

// What: everything on one device.
DecoderPlacement SingleDevice(const LlamaConfig& config, Device device);
// What: every matrix divided over `devices`. Requires: distinct devices, at least one.
DecoderPlacement RowSplit(const LlamaConfig& config, std::span<const Device> devices);
// What: how many passes a model placed so can work on at once: one on each device where layers are split.
int64_t LanesOf(const DecoderPlacement& placement);

// Several matrices over one input, stacked by rows where their specs allow it: part i is rows
// [offset[i], offset[i + 1]) of the concatenated outputs, whatever the stacking.
struct LinearGroup {
  std::vector<std::unique_ptr<LinearWeight>> weights;
};

// One layer's share of one device. Groups of no rows have no weights.
struct DecoderLayerShard {
  Buffer input_norm;           // F32 [hidden_size]
  LinearGroup qkv;             // q|k|v: [(heads + 2 * kv_heads) * head_dim, hidden_size]
  LinearGroup o;               // [hidden, num_heads * head_dim]
  Buffer post_attention_norm;  // F32 [hidden_size]
  LinearGroup gate_up;         // gate|up: [2 * intermediate, hidden_size]
  LinearGroup down;            // [hidden, intermediate_size]
};

// A layer, or the part behind the last one, on the devices that share it.
struct DecoderLayerWeights {
  std::vector<DecoderLayerShard> shards;
};
struct DecoderHeadShard {
  Buffer final_norm;                      // F32 [hidden_size]
  std::unique_ptr<LinearWeight> lm_head;  // [vocab, hidden_size]; null where that is no row
};

struct DecoderWeights {
  std::unique_ptr<EmbeddingTable> embedding;
  std::vector<DecoderLayerWeights> layers;
  std::vector<DecoderHeadShard> head;
  int64_t bytes = 0;          // device memory of all of it
  int64_t decoder_bytes = 0;  // of the decoder linears, scales included
  int64_t stream_bytes = 0;   // read by one decode step, on all devices together
};

// The tensor that holds the embedding: tied ones are kept under either name, or under both.
std::string EmbeddingTensor(const ModelFiles& files);

// What:   loads every tensor onto its device in `precision`; sc is read for kSc. A tied LM head is the embedding.
// Errors: InvalidInput naming the tensor: NaN or infinity, or an SC accumulator that could overflow (D * L >= 2^31).
DecoderWeights LoadDecoderWeights(Backend& backend, const ModelFiles& files, Precision precision,
                                  const ScModelConfig& sc, const DecoderPlacement& placement,
                                  const ProgressFn& progress);

}  // namespace stoch
