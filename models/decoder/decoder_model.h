// SPDX-License-Identifier: Apache-2.0
// The forward pass of a decoder over the ops of a Backend.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "loader/checkpoint/weight_store.h"
#include "models/decoder/decoder_options.h"
#include "models/decoder/micro_batch.h"
#include "models/decoder/weights.h"

namespace stoch {

// Before anything is planned or loaded.
// Errors: InvalidInput where the model has not the function that a table is for, or a table was not read.
void CheckSupported(const ModelFiles& files, Precision precision, const ScModelConfig& sc);
// Errors: InvalidInput where positions cannot be dealt over devices: a setting that makes a row depend on others or
// draws faults of stored keys and values, which is named.
void CheckDealt(Precision precision, const ScModelConfig& sc);

class ModelStage;
struct DecoderWorkspace;

// Weights, KV caches and workspace of one model. Threads: one at a time.
//
// Where a model has several stages, several passes over different sequences may be in flight: each is on another stage,
// so that no device waits for another's. They end in the order they began.
class DecoderModel {
 public:
  // Requires: backend outlives the model. Errors: InvalidInput, DeviceError.
  DecoderModel(Backend& backend, const ModelFiles& files, const DecoderOptions& options);
  ~DecoderModel();

  // Begins one pass: embedding and decoder layers, the first logits and whatever else `queries` ask for; keys and
  // values of its tokens go to the cache pages the layout names. May return before any of it ran. What the queries
  // refer to is copied.
  // fill_masks: if not empty, called once before this returns, while the devices run the layers. Masks that `queries`
  //           refer to are read only after that call. Must not throw.
  // Requires: fewer than options.shape.lanes passes in flight; none of them on a sequence of the layout; rows of the
  //           queries are output rows, ascending.
  void Begin(const PassLayout& layout, const LogitQueries& queries, const std::function<void()>& fill_masks = {});
  // The next pass also copies its residual stream, once `layers` decoder layers ran (0: the embeddings), to the host:
  // F32 [rows of the pass, hidden_size]. It runs without graphs, and `rows` is written until it is finished.
  // Errors:   InvalidInput for layers of another rank. Requires: 0 <= layers <= num_hidden_layers.
  void CopyHidden(int layers, float* rows);
  // Waits for the pass that began first.
  // Errors:   InvalidInput naming layer and operator where an activation of a pass in flight is NaN or infinite.
  // Requires: a pass is in flight.
  void Finish();
  // After an error of Begin or Finish: forgets every pass in flight, once the devices have done with them.
  void Abandon();

  // The body of a rank other than 0: runs the pieces that rank 0 sends, until it closes the model (remote_stage.h).
  // Errors: LostRank, DeviceError.
  void Follow();

  // Final norm and LM head of output rows [first, first + count) of the pass finished last.
  // Shape: F32 [count, vocab_size] on the head's device, valid until the next call. Requires: count <= max_logit_rows.
  TensorView Logits(int64_t first, int64_t count);
  // Answers to the queries of the pass finished last, in their order. Valid until the next call of Begin or Finish.
  std::span<const int32_t> picked() const { return picked_; }
  std::span<const LogProbAnswer> logprobs() const { return logprobs_; }

  const DecoderConfig& config() const { return config_; }
  const DecoderWeights& weights() const { return weights_; }
  int64_t kv_cache_bytes() const { return kv_cache_bytes_; }
  int64_t workspace_bytes() const { return workspace_bytes_; }

 private:
  // A pass in flight.
  struct Flight {
    size_t lane = 0;
    std::string key;  // of its graphs, empty where its shape may not come again
    std::vector<MicroBatch> pieces;
    int64_t output_rows = 0;
    int64_t logits_end = 0;  // rows of logits that the pass itself computes
    size_t issued = 0;       // stages
    size_t picks = 0;
    size_t logprobs = 0;
    bool only_largest = false;                     // of the one row of logits: its pick is the first of the ranking
    bool head_apart = false;                       // the head is issued after fill_masks, not with the last layer
    bool has_queries = false;                      // head_apart: the queries are uploaded
    std::vector<int32_t> pick_rows, logprob_rows;  // where there may be several blocks of logits
    HiddenTap tap;
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
  void MakeStripedStage();
  void AddRemoteStage();
  DecoderWorkspace* WorkspaceOn(const DecoderShard& shard, bool divided, bool is_first, bool layers, bool head);
  size_t FreeLane() const;
  void Issue(Flight& flight, size_t end);  // stages up to `end`
  void IssueHead(const Flight& flight);    // head_apart: after the last layer and the queries
  void RunHead(const Flight& flight, ModelStage& stage) const;
  void ForgetOutput();
  void CheckFinite();

  Backend* backend_;
  DecoderConfig config_;
  DecoderOptions options_;
  std::string graph_key_;
  CutRules cut_rules_;
  DecoderWeights weights_;
  std::map<Device, std::unique_ptr<DecoderWorkspace>, DeviceOrder> workspaces_;
  std::vector<std::unique_ptr<ModelStage>> stages_;  // in order; the last one has the head, if this rank has it
  size_t waiting_stage_ = SIZE_MAX;                  // the one that waits for rows of other ranks, if there are any
  int64_t kv_cache_bytes_ = 0;
  int64_t workspace_bytes_ = 0;
  std::deque<Flight> flights_;
  HiddenTap next_tap_;
  Output output_;
  std::span<const int32_t> picked_;
  std::span<const LogProbAnswer> logprobs_;
};

}  // namespace stoch
