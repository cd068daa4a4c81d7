// SPDX-License-Identifier: Apache-2.0
// From an SC configuration and its files to what every operator of every layer of one model runs.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "loader/config/decoder_config.h"
#include "models/sc_model_config.h"

namespace stoch {

// An LM head that is not in SC: exact ones multiply as integers where they can (kernels/math/fixed_point.h).
inline LinearSpec ExactHead() { return {Precision::kFp32, nullptr, nullptr, true}; }
inline LinearSpec HeadOf(Precision precision) {
  return precision == Precision::kFp32 ? ExactHead() : LinearSpec{precision, nullptr};
}

// Errors of all members: InvalidInput naming setting or file, key, value and what is allowed.
class ScPlan {
 public:
  // Checks what depends on the model: layers that are there, channels and factors that fit, buckets for every operator.
  // Keeps references.
  ScPlan(const ScModelConfig& sc, const DecoderConfig& config);

  // A linear of a layer; the LM head has layer -1. Of a layer with experts: that of an expert, of the first where none
  // is named. All experts have the lengths of their layer, and up_proj the rule of gate_proj, whose rows it shares.
  LinearSpec Linear(int layer, ScOperatorId id, int64_t expert = -1);
  // The products of attention in a layer. Requires: attention in SC.
  KvCacheSpec::Products Attention(int layer);
  // What rebalances q and k of a layer after RoPE, [kv_heads][head_dim]; empty: nothing, or attention is not in SC.
  std::vector<float> QkSmooth(int layer) const;
  // Those of layers [first, first + count), for a cache of them; none where all layers of the model are alike.
  std::vector<KvCacheSpec::Products> AttentionLayers(int first, int count);
  // The configuration of an operator with its longest stream.
  ScConfig Config(int layer, ScOperatorId id) const;
  // Null: none.
  const std::vector<int32_t>* ProtectedChannels(int layer, std::string_view op, int64_t expert = -1) const;

 private:
  // Whether a layer's attention is not as every other's.
  bool has_attention_layers() const;
  const MpBucket* Bucket(const std::map<std::string, MpBucket>& buckets, int64_t count, int layer, std::string_view op,
                         std::string* key) const;
  std::shared_ptr<const ScLengthRule> Rule(int layer, ScOperatorId id, const ScConfig& op, int64_t channels) const;
  ScExtrasPtr Extras(int layer, ScOperatorId id, const ScConfig& op, int64_t expert);
  // Those of the rule, the same ones for every expert of a layer.
  const std::vector<ScOperatorPtr>& ByLength(int layer, ScOperatorId id, const ScConfig& op, const ScLengthRule& rule);
  bool IsOfExperts(int layer, ScOperatorId id) const;
  int64_t InFeatures(int layer, ScOperatorId id) const;
  // Channels that rows are dispatched by.
  int64_t DispatchChannels(int layer, ScOperatorId id, int64_t expert) const;
  std::vector<float> Smooth(int layer, ScOperatorId id, int64_t expert) const;
  void MergeProtected();
  void CheckOperator(int layer, ScOperatorId id) const;
  void CheckSmooth() const;
  // Grids of the table, if it has any: one for each length. Errors: InvalidInput.
  void CheckGrids(std::span<const int> lengths, const ScConfig& op) const;
  void CheckLengths(const ScLengthRule& rule, const ScConfig& op, const std::string& where) const;

  const ScModelConfig& sc_;
  const DecoderConfig& config_;
  std::map<std::string, std::vector<int32_t>> protected_;  // by "op:bN", of experts by "op:bN:uK" too
  std::map<std::pair<int, ScOperatorId>, std::vector<ScOperatorPtr>> by_length_;
};

}  // namespace stoch
