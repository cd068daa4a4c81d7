// The Llama forward pass over the ops of a Backend.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "loader/weight_store.h"
#include "models/llama_weights.h"
#include "models/memory_plan.h"
#include "models/micro_batch.h"
#include "models/sc_model_config.h"

namespace stoch {

class LlamaStage;

// Weights, KV caches and workspace of one model. Threads: one at a time.
class LlamaModel {
 public:
  struct Options {
    Precision precision = Precision::kSc;
    ScModelConfig sc;  // read for kSc only
    PassShape shape;
    int64_t max_sequences = 1;
    int64_t min_piece_rows = 128;  // micro_batch.h
    LlamaPlacement placement;
    ProgressFn progress;
  };

  // Requires: backend outlives the model. Errors: InvalidInput, DeviceError.
  LlamaModel(Backend& backend, const ModelFiles& files, const Options& options);
  ~LlamaModel();

  // What:   embedding and decoder layers of one pass, and the first logits; keys and values of its tokens go to the
  //         cache pages the layout names. Waits for the device.
  // Errors: InvalidInput naming layer and operator where an activation is NaN or infinite.
  void Forward(const PassLayout& layout);

  // What:  final norm and LM head of output rows [first, first + count) of the last Forward.
  // Shape: F32 [count, vocab_size] on the head's device, valid until the next call. Requires: count <= max_logit_rows.
  TensorView Logits(int64_t first, int64_t count);

  const LlamaConfig& config() const { return config_; }
  const LlamaWeights& weights() const { return weights_; }
  int64_t kv_cache_bytes() const { return kv_cache_bytes_; }
  int64_t workspace_bytes() const { return workspace_bytes_; }

 private:
  void MakeStages();
  void CheckFinite();

  Backend* backend_;
  LlamaConfig config_;
  Options options_;
  std::string graph_key_;
  CutRules cut_rules_;
  LlamaWeights weights_;
  std::vector<std::unique_ptr<LlamaStage>> stages_;  // in order; the last one has the head
  int64_t kv_cache_bytes_ = 0;
  int64_t workspace_bytes_ = 0;
  int64_t output_rows_ = 0;   // of the last Forward
  int64_t logits_first_ = 0;  // which of them the logits buffer holds
  int64_t logits_count_ = 0;
};

}  // namespace stoch
