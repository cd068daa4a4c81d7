// SPDX-License-Identifier: Apache-2.0
// A part of a decoder's forward pass: consecutive layers where they are, with everything they need there.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "models/decoder/decoder_options.h"
#include "models/decoder/memory_plan.h"
#include "models/decoder/shard.h"
#include "models/decoder/weights.h"
#include "models/decoder/workspace.h"

namespace stoch {

// One stage runs on one device, or on several that divide every matrix by rows. Then each holds the whole residual
// stream; it computes its own columns of every result and gathers the others'.
class DecoderStage {
 public:
  struct Role {
    bool embeds = false;  // starts from token ids, else from another stage's hidden states
    bool has_head = false;
    int first_layer = 0;
    int num_layers = 0;
  };

  // Requires: everything given outlives the stage; a workspace for every device, in their order. Errors: InvalidInput,
  // DeviceError.
  DecoderStage(Backend& backend, const DecoderConfig& config, const DecoderOptions& options,
               const DecoderWeights& weights, std::span<const Device> devices,
               std::span<DecoderWorkspace* const> workspaces, const Role& role);

  const Role& role() const { return role_; }
  std::span<const Device> devices() const { return devices_; }

  // Piece number `index` of the next pass in a lane, whole passes being piece 0.
  void Upload(size_t lane, size_t index, const PassLayout& layout);
  // From token ids, or from Hidden where another stage put it, to Hidden of the same rows; and the output rows for
  // RunHead where the stage has the head. Rows and outputs are those of the piece within the pass.
  struct Piece {
    size_t lane = 0;
    size_t index = 0;
    int64_t first_row = 0;
    int64_t rows = 0;
    int64_t first_output = 0;
    int64_t outputs = 0;
  };
  // A tap waits for the device, so it is not for graphs.
  void Run(const Piece& piece, const HiddenTap& tap);
  // Logits of output rows [first, first + count). Requires: has_head, and Run before it.
  void RunHead(size_t lane, int64_t first, int64_t count, int64_t output_rows);

  // Queries about the output rows of a lane's next pass. Requires: has_head.
  LogitQueryBuffer& queries(size_t lane) { return *parts_[0].workspace->queries[lane]; }
  void UploadQueries(size_t lane, const LogitQueries& queries) {
    backend_.UploadLogitQueries(this->queries(lane), queries);
  }
  // Answers picks and log-probabilities of the rows [first, first + count) that RunHead just made logits of.
  void AnswerQueries(size_t lane, int64_t first, int64_t count, const QueryRange& picks, const QueryRange& logprobs);

  // The residual stream of a piece on the first device, [rows, hidden_size].
  TensorView Hidden(const Piece& piece) const { return Hidden(parts_[0], piece); }
  // Puts the residual stream of another stage on every device of this one.
  void Receive(const Piece& piece, const TensorView& hidden);
  // Of the last RunHead of the lane, on the first device, [count, vocab_size].
  TensorView Logits(size_t lane, int64_t count) const;

  int64_t kv_cache_bytes() const { return kv_cache_bytes_; }

 private:
  // What one device has.
  struct Part {
    DecoderShard shard;
    DecoderWorkspace* workspace = nullptr;
    std::unique_ptr<KvCache> cache;  // of its KV heads; null where it has none, or the stage no layers
    std::vector<std::vector<std::unique_ptr<Pass>>> passes;  // [lane][piece]; made when there are as many

    Pass& pass(const Piece& piece) const { return *passes[piece.lane][piece.index]; }
  };

  bool divided() const { return parts_.size() > 1; }
  TensorView Hidden(const Part& part, const Piece& piece) const;
  void CopyHidden(const HiddenTap& tap, int layers, const Piece& piece);
  void Embed(const Piece& piece);
  void RunLayer(int cache_layer, const Piece& piece);
  void Attend(Part& part, const DecoderLayerShard& weights, int cache_layer, const Piece& piece);
  void AddBias(const OpSite& site, const TensorView& x, const Buffer& bias);  // nothing where there is none
  void NormHeads(const OpSite& site, const DecoderLayerShard& weights, const AttentionCall& attention);
  void ProjectGateUp(Part& part, const DecoderLayerShard& weights, int layer, const Piece& piece);
  void ProjectDown(Part& part, const DecoderLayerShard& weights, int layer, const Piece& piece);
  // Exchanges columns that every device has of a matrix on each; `whole[i]` on device i, whose own range times `scale`
  // is there.
  void GatherColumns(const OpSite& site, std::vector<TensorView> whole, IndexRange DecoderShard::*range, int64_t scale);
  void GatherHidden(const OpSite& site, const Piece& piece);
  void GatherActivation(int layer, int64_t rows);
  // A LinearCall or an ExpertLinearCall.
  template <typename Call>
  void AddNorm(Call& call, const Buffer& weight) const;

  // What a layer with experts does instead of ProjectGateUp and ProjectDown.
  struct Routing {
    TensorView chosen;   // I32 [rows, num_experts_per_tok]
    TensorView weights;  // F32 of the same shape
  };
  Routing RoutingOf(const Part& part, int64_t rows) const;
  void ChooseExperts(Part& part, const DecoderLayerShard& weights, int layer, const Piece& piece);
  void CombineExperts(Part& part, const DecoderLayerShard& weights, int layer, const Piece& piece);

  Backend& backend_;
  const DecoderConfig& config_;
  const DecoderOptions& options_;
  std::vector<DilatedPair> dilated_;  // empty: attention is not
  const DecoderWeights& weights_;
  std::vector<Device> devices_;
  Role role_;
  std::vector<Part> parts_;
  int64_t kv_cache_bytes_ = 0;
};

}  // namespace stoch
