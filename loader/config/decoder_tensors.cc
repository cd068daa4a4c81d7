// SPDX-License-Identifier: Apache-2.0
#include "loader/config/decoder_tensors.h"

#include <utility>

namespace stoch {
namespace {

// The tensors of one layer, in order of use.
class LayerTensors {
 public:
  LayerTensors(const DecoderConfig& config, int64_t layer, std::vector<DecoderTensor>* to)
      : config_(config), layer_(layer), to_(*to) {}

  void AddAll() {
    const Architecture& row = *config_.architecture;
    for (const BlockGroup group : kBlockGroups) {
      for (const BlockVector& vector : row.vectors) {
        if (vector.before != group) continue;
        Add(LayerTensorName(layer_, vector.tensor), {SizeOf(config_, vector.length)});
        to_.back().adds_one = row.adds_one_to_norms;
      }
      const auto linears = LinearsOf(row, group);
      if (config_.HasExperts(layer_) && !linears.empty() && !linears.front().expert.empty()) {
        if (group == BlockGroup::kGateUp) AddExperts();
        continue;
      }
      int64_t first = 0;
      for (const BlockLinear& linear : linears) {
        Add(LayerTensorName(layer_, linear.tensor), {SizeOf(config_, linear.out), SizeOf(config_, linear.in)});
        AddStorage(linear, &first);
        if (config_.HasBias(group)) {
          Add(LayerTensorName(layer_, linear.tensor, "bias"), {SizeOf(config_, linear.out)});
        }
      }
    }
  }

 private:
  void AddExperts() {
    const Architecture& row = *config_.architecture;
    Add(LayerTensorName(layer_, row.router), {config_.num_experts, config_.hidden_size});
    for (int64_t expert = 0; expert < config_.num_experts; ++expert) {
      for (const BlockLinear& linear : row.linears) {
        if (linear.expert.empty()) continue;
        Add(ExpertTensorName(config_, layer_, expert, linear),
            {SizeOf(config_, ExpertAxis(linear.out)), SizeOf(config_, ExpertAxis(linear.in))});
      }
    }
  }
  // Says where a checkpoint has the matrix that was added last.
  void AddStorage(const BlockLinear& linear, int64_t* first) {
    DecoderTensor& tensor = to_.back();
    const bool is_rotated = linear.id == LinearId::kQProj || linear.id == LinearId::kKProj;
    tensor.is_rotated_part = is_rotated && config_.RotaryDim() < config_.head_dim;
    const std::string_view fused = FusedTensor(*config_.architecture, linear.group);
    if (fused.empty()) return;
    tensor.fused = LayerTensorName(layer_, fused);
    tensor.fused_first = *first;
    *first += tensor.shape.front();
    for (const BlockLinear& part : LinearsOf(*config_.architecture, linear.group)) {
      tensor.fused_rows += SizeOf(config_, part.out);
    }
  }
  void Add(std::string name, std::vector<int64_t> shape) { to_.push_back({std::move(name), std::move(shape), layer_}); }

  const DecoderConfig& config_;
  int64_t layer_;
  std::vector<DecoderTensor>& to_;
};

}  // namespace

std::string LayerTensorName(int64_t layer, std::string_view part, std::string_view kind) {
  return "model.layers." + std::to_string(layer) + "." + std::string(part) + "." + std::string(kind);
}

std::string ExpertTensorName(const DecoderConfig& config, int64_t layer, int64_t expert, const BlockLinear& linear) {
  const std::string part =
      std::string(config.architecture->experts) + "." + std::to_string(expert) + "." + std::string(linear.expert);
  return LayerTensorName(layer, part);
}

std::string LinearTensorName(const DecoderConfig& config, int64_t layer, int64_t expert, const BlockLinear& linear) {
  return expert < 0 ? LayerTensorName(layer, linear.tensor) : ExpertTensorName(config, layer, expert, linear);
}

std::vector<DecoderTensor> DecoderTensors(const DecoderConfig& config) {
  const int64_t hidden = config.hidden_size;
  std::vector<DecoderTensor> tensors;
  tensors.push_back({std::string(kEmbeddingName), {config.vocab_size, hidden}});
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) LayerTensors(config, layer, &tensors).AddAll();
  tensors.push_back({std::string(kFinalNormName), {hidden}});
  tensors.back().adds_one = config.architecture->adds_one_to_norms;
  if (!config.tie_word_embeddings) tensors.push_back({std::string(kLmHeadName), {config.vocab_size, hidden}});
  return tensors;
}

}  // namespace stoch
