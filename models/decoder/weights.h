// SPDX-License-Identifier: Apache-2.0
// The weights of a decoder on their devices.
#pragma once

#include <array>
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
  // Split by sequence: the devices of every stripe of positions, as many of each, which divide every matrix by rows.
  // Embedding and logits are on the first of the first. 2, 4 or 8 of them, or none.
  std::vector<std::vector<Device>> stripes = {};
  // Where processes divide the model: how many, and the layers of this one. The rank of layer 0 has embedding and head.
  int ranks = 1;
  IndexRange local = {};  // empty: all

  bool is_local(int64_t layer) const { return local.empty() || (layer >= local.begin && layer < local.end); }
  bool has_ends() const { return local.begin == 0; }
};

// Everything on one device.
DecoderPlacement SingleDevice(const DecoderConfig& config, Device device);
// Every matrix divided over `devices`. Requires: distinct devices, at least one.
DecoderPlacement RowSplit(const DecoderConfig& config, std::span<const Device> devices);
// Positions dealt over `stripes` groups of consecutive devices, each of which divides every matrix by rows.
// Requires: stripes is 2, 4 or 8 and divides the number of devices, which are distinct.
DecoderPlacement SequenceSplit(const DecoderConfig& config, std::span<const Device> devices, int stripes);
// What every device holds of a module that is on `device`, one after another; several share it where rows are divided
// or positions dealt.
std::vector<DecoderShard> ShardsOf(const DecoderConfig& config, const DecoderPlacement& placement,
                                   const Device& device);
// The most passes in flight.
inline constexpr int64_t kMaxLanes = 8;
// How many passes a model placed so can work on at once: one on each device where layers are split, taking every rank to
// have as many as this one.
int64_t LanesOf(const DecoderPlacement& placement);

// Several matrices over one input, stacked by rows where their specs allow it: part i is rows
// [offset[i], offset[i + 1]) of the concatenated outputs, whatever the stacking.
struct LinearGroup {
  std::vector<std::unique_ptr<LinearWeight>> weights;
};

// The same of every expert of a layer.
struct ExpertGroup {
  std::vector<std::unique_ptr<ExpertWeights>> weights;
};

// One layer's share of one device. Groups of no rows have no weights; a layer with experts has their groups in
// `experts` and none in `groups`.
struct DecoderLayerShard {
  std::array<Buffer, kNumBlockVectors> vectors;      // by VectorId: F32, empty where the family has none
  std::array<LinearGroup, kNumBlockGroups> groups;   // by BlockGroup: outputs side by side, [out_features, in_features]
  std::array<Buffer, kNumBlockGroups> biases;        // F32, one number for each of those outputs, or empty
  std::array<ExpertGroup, kNumBlockGroups> experts;  // by BlockGroup
  std::unique_ptr<LinearWeight> router;              // exact [num_experts, hidden_size], null in a dense layer
  Buffer qk_smooth;                                  // F32 [kv_heads, head_dim], or empty

  const Buffer& vector(VectorId id) const { return vectors[static_cast<size_t>(id)]; }
  const LinearGroup& group(BlockGroup group) const { return groups[static_cast<size_t>(group)]; }
  const Buffer& bias(BlockGroup group) const { return biases[static_cast<size_t>(group)]; }
  const ExpertGroup& expert_group(BlockGroup group) const { return experts[static_cast<size_t>(group)]; }
};

// A layer, or the part after the last one, on the devices that share it.
struct DecoderLayerWeights {
  std::vector<DecoderLayerShard> shards;
};
struct DecoderHeadShard {
  Buffer final_norm;                      // F32 [hidden_size], divided by logits_scaling
  std::unique_ptr<LinearWeight> lm_head;  // [vocab, hidden_size]; null where that is no row
};

struct DecoderWeights {
  std::unique_ptr<EmbeddingTable> embedding;                     // null without has_ends
  std::vector<std::unique_ptr<EmbeddingTable>> more_embeddings;  // of the second stripe of positions on
  std::vector<DecoderLayerWeights> layers;
  std::vector<DecoderHeadShard> head;
  int64_t bytes = 0;          // device memory of all of it
  int64_t decoder_bytes = 0;  // of the decoder linears, scales included
  int64_t stream_bytes = 0;   // read by one decode step, on all devices together
};

// The tensor that holds the embedding: tied ones are kept under either name, or under both.
std::string EmbeddingTensor(const ModelFiles& files);
// The tensor of the LM head: a tied one is the embedding's.
std::string HeadTensor(const ModelFiles& files);
// Whether a head on the embedding's device and the embedding are one matrix in memory: tied, exact, and not in pieces.
bool SharesHead(const DecoderConfig& config, bool divided, bool is_sc_head);

// Loads every tensor of this rank onto its device in `precision`; sc is read for kSc. A tied LM head is the embedding.
// Layers of other ranks have no shards.
// Errors: InvalidInput naming the tensor: NaN or infinity, or an SC accumulator that could overflow (D * L >= 2^31).
DecoderWeights LoadDecoderWeights(Backend& backend, const ModelFiles& files, Precision precision,
                                  const ScModelConfig& sc, const DecoderPlacement& placement,
                                  const ProgressFn& progress);

}  // namespace stoch
