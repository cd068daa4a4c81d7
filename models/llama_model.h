// The Llama forward pass over the ops of a Backend.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
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
struct LlamaWorkspace;

// Weights, KV caches and workspace of one model. Threads: one at a time.
//
// Where a model has several stages, several passes over different sequences may be in flight: each is on another stage,
// so that no device waits for another's. They end in the order they began.
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

  // What:     begins one pass: embedding and decoder layers, and the first logits; keys and values of its tokens go to
  //           the cache pages the layout names. May return before any of it ran.
  // Requires: fewer than options.shape.lanes passes in flight; none of them on a sequence of the layout.
  void Begin(const PassLayout& layout);
  // What:     waits for the pass that began first.
  // Errors:   InvalidInput naming layer and operator where an activation of a pass in flight is NaN or infinite.
  // Requires: a pass is in flight.
  void Finish();
  // What: after an error of Begin or Finish: forgets every pass in flight, once the devices have done with them.
  void Abandon();

  // What:  final norm and LM head of output rows [first, first + count) of the pass finished last.
  // Shape: F32 [count, vocab_size] on the head's device, valid until the next call. Requires: count <= max_logit_rows.
  TensorView Logits(int64_t first, int64_t count);
  // What: the likeliest token of each output row of the pass finished last, where it found them itself, so that nobody
  //       waits for the device a second time: where every sequence had one token and one output. Else empty. Valid
  //       until the next call of Begin or Finish.
  std::span<const int32_t> GreedyIds() const { return greedy_ids_; }

  const LlamaConfig& config() const { return config_; }
  const LlamaWeights& weights() const { return weights_; }
  int64_t kv_cache_bytes() const { return kv_cache_bytes_; }
  int64_t workspace_bytes() const { return workspace_bytes_; }

 private:
  // A pass in flight.
  struct Flight {
    size_t lane = 0;
    std::string key;  // of its graphs, empty where its shape may not come again
    std::vector<MicroBatch> pieces;
    int64_t output_rows = 0;
    int64_t first_logits = 0;  // rows of logits that the pass itself computes
    size_t issued = 0;         // stages

    // Decoding: what usually follows is the likeliest token, and its kernel costs next to nothing.
    bool picks_greedy() const { return !key.empty(); }
  };
  // What the head left of the pass finished last.
  struct Output {
    size_t lane = 0;
    int64_t rows = 0;
    int64_t logits_first = 0;  // which of them the logits buffer holds
    int64_t logits_count = 0;
  };

  void ReserveScratch();
  void MakeStages();
  size_t FreeLane() const;
  void Issue(Flight& flight, size_t end);  // stages up to `end`
  void CheckFinite();

  Backend* backend_;
  LlamaConfig config_;
  Options options_;
  std::string graph_key_;
  CutRules cut_rules_;
  LlamaWeights weights_;
  std::map<Device, std::unique_ptr<LlamaWorkspace>, DeviceOrder> workspaces_;
  std::vector<std::unique_ptr<LlamaStage>> stages_;  // in order; the last one has the head
  int64_t kv_cache_bytes_ = 0;
  int64_t workspace_bytes_ = 0;
  std::deque<Flight> flights_;
  Output output_;
  std::span<const int32_t> greedy_ids_;
};

}  // namespace stoch
