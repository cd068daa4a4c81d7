// SPDX-License-Identifier: Apache-2.0
// A part of a decoder's forward pass: consecutive layers where they are, with everything they need there.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "models/decoder/decoder_options.h"
#include "models/decoder/memory_plan.h"
#include "models/decoder/model_stage.h"
#include "models/decoder/shard.h"
#include "models/decoder/weights.h"
#include "models/decoder/workspace.h"

namespace stoch {

// One stage runs on one device, or on several that divide every matrix by rows. Then each holds the whole residual
// stream; it computes its own columns of every result and gathers the others'.
class DecoderStage final : public ModelStage {
 public:
  // `shards`: those of its devices. Weights of a layer are those from index `first_shard` on.
  // Requires: everything given outlives the stage; a workspace for every device, in their order. Errors: InvalidInput,
  // DeviceError.
  DecoderStage(Backend& backend, const DecoderConfig& config, const DecoderOptions& options,
               const DecoderWeights& weights, std::span<const DecoderShard> shards, size_t first_shard,
               std::span<DecoderWorkspace* const> workspaces, const Role& role);

  const Role& role() const override { return role_; }
  std::span<const Device> devices() const override { return devices_; }

  void Upload(size_t lane, size_t index, const PassLayout& layout) override;
  void Run(const Piece& piece, const HiddenTap& tap) override;
  void RunHead(size_t lane, int64_t first, int64_t count, int64_t output_rows, bool only_largest) override;

  LogitQueryBuffer& queries(size_t lane) override { return *parts_[0].workspace->queries[lane]; }
  void UploadQueries(size_t lane, const LogitQueries& queries) override {
    backend_.UploadLogitQueries(this->queries(lane), queries);
  }
  void AnswerQueries(size_t lane, int64_t first, int64_t count, const QueryRange& picks,
                     const QueryRange& logprobs) override;

  TensorView Hidden(const Piece& piece) const override { return Hidden(parts_[0], piece); }
  std::optional<TensorView> Outputs(const Piece& piece) const override;
  void Receive(const Piece& piece, const TensorView& hidden) override;
  TensorView Logits(size_t lane, int64_t count) const override;

  int64_t kv_cache_bytes() const override { return kv_cache_bytes_; }

  // Run in its parts, for who runs several stages side by side (striped_stage.h). `layer` counts from first_layer.
  void Embed(const Piece& piece);
  // Projections of a layer, and the attention that comes next, of every device: whose k and q are not rotated. A pass
  // without rows has the cache alone; a device without heads no cache.
  std::vector<AttentionCall> BeginLayer(int layer, const Piece& piece);
  // What comes after attention. is_followed: nobody but BeginLayer of the next layer, or what it is a part of, reads the
  // result.
  void EndLayer(int layer, const Piece& piece, bool is_followed = false);
  // The same of the output rows alone, whose residual stream goes to `hidden`, of every device. Their outputs of attention
  // are put in the place of qkv. Requires: HasRoomForOutputs; attention has read qkv.
  void EndOutputs(int layer, const Piece& piece, const std::vector<TensorView>& hidden);
  // A place for that residual stream, behind those outputs: of a stage without the head's input. Requires:
  // HasRoomForOutputs with_hidden.
  std::vector<TensorView> OutputRows(const Piece& piece) const;
  bool HasRoomForOutputs(const Piece& piece, bool with_hidden = false) const;
  // Whether the rest of the layer that Run issues last is for others than output rows: a tap, an observer, or operators
  // whose scopes span rows want every row.
  bool WantsAllRows(const HiddenTap& tap) const;
  // FaultRow of the output rows of a lane's pass, in order; empty if the model draws no faults by row.
  std::vector<uint64_t> OutputFaultRows(size_t lane) const;
  // RunHead of rows that are output rows of other stages too, with the FaultRow of each; none: draws no faults by row.
  void RunHead(size_t lane, int64_t first, int64_t count, int64_t output_rows, bool only_largest,
               std::span<const uint64_t> fault_rows);
  // Rows of the head's input, on every device of the head.
  std::vector<TensorView> HeadInput(size_t lane, int64_t first, int64_t count) const;

 private:
  // What one device has.
  struct Part {
    DecoderShard shard;
    DecoderWorkspace* workspace = nullptr;
    std::unique_ptr<KvCache> cache;  // of its KV heads; null where it has none, or the stage no layers
    std::vector<std::vector<std::unique_ptr<Pass>>> passes;  // [lane][piece]; made when there are as many

    Pass& pass(const Piece& piece) const { return *passes[piece.lane][piece.index]; }
  };

  void KeepFaultRows(size_t lane, size_t index, const PassLayout& layout);
  bool divided() const { return parts_.size() > 1; }
  TensorView Hidden(const Part& part, const Piece& piece) const;
  void CopyHidden(const HiddenTap& tap, int layers, const Piece& piece);
  void Attend(int cache_layer, const Piece& piece, bool only_outputs);
  // What EndLayer works on, of each device.
  struct LayerRows {
    std::vector<TensorView> hidden;    // [rows, hidden_size]
    std::vector<TensorView> attended;  // [rows, num_attention_heads * head_dim], a device's own heads
    std::span<const uint64_t> fault_rows;
    std::vector<TensorView> branches = {};  // BranchesOf(hidden)
  };
  void EndLayer(int cache_layer, const LayerRows& rows, bool is_followed);
  std::span<const DecoderLayerShard> ShardsOfLayer(int cache_layer) const;
  // Issues the projections.
  AttentionCall Project(Part& part, const DecoderLayerShard& weights, int cache_layer, const Piece& piece);
  // The projections of every device, and the norms of q and k of all heads. A device without heads has an empty call.
  std::vector<AttentionCall> ProjectAll(int cache_layer, const Piece& piece);
  void NormAllHeads(int cache_layer, const Piece& piece, std::span<AttentionCall> calls);
  // out = out + factor * x of every row, which is a mixture of one expert.
  void AddScaled(const OpSite& site, const TensorView& x, const TensorView& factors, const TensorView& out);
  TensorView FactorsOf(const Part& part, int64_t rows, bool of_embedding) const;
  // Where a half of a block leaves what it adds: in the residual stream, or to be added by AddBranches once all is there.
  std::vector<TensorView> BranchesOf(const std::vector<TensorView>& hidden) const;
  void AddBranches(const OpSite& site, VectorId norm, int cache_layer, const std::vector<TensorView>& branches,
                   const std::vector<TensorView>& hidden);
  void NormRows(const OpSite& site, const TensorView& x, const Buffer& weight);  // RMSNorm of whole rows, in place
  void AddBias(const OpSite& site, const TensorView& x, const Buffer& bias);     // nothing where there is none
  // Of the heads that `attention` reads; head_dim 0: they have no norm.
  NormHeadsCall NormOf(int cache_layer, const DecoderLayerShard& weights, const AttentionCall& attention) const;
  void ProjectGateUp(Part& part, const DecoderLayerShard& weights, int layer, const LayerRows& rows, size_t device,
                     const AllGatherCall* gather);
  void ProjectDown(Part& part, const DecoderLayerShard& weights, int layer, const LayerRows& rows, size_t device,
                   const AllGatherCall* gather);
  // Exchanges of a divided stage; otherwise empty. Of columns that every device has of a matrix: `whole[i]` on device i,
  // whose own range times `scale` is there.
  AllGatherCall GatherOfColumns(const OpSite& site, std::vector<TensorView> whole, IndexRange DecoderShard::*range,
                                int64_t scale) const;
  AllGatherCall GatherOfActivation(int layer, int64_t rows) const;
  AllGatherCall GatherOfHeads(int cache_layer, const std::vector<TensorView>& attended) const;
  std::vector<TensorView> Attended(const Piece& piece) const;
  void Gather(const AllGatherCall& call);  // nothing where the stage is not divided

  // What a layer with experts does instead of ProjectGateUp and ProjectDown.
  struct Routing {
    TensorView chosen;   // I32 [rows, num_experts_per_tok]
    TensorView weights;  // F32 of the same shape
  };
  Routing RoutingOf(const Part& part, int64_t rows) const;
  void ChooseExperts(Part& part, const DecoderLayerShard& weights, int layer, const LayerRows& rows, size_t device);
  void CombineExperts(Part& part, const DecoderLayerShard& weights, int layer, const LayerRows& rows, size_t device);

  Backend& backend_;
  const DecoderConfig& config_;
  const DecoderOptions& options_;
  std::vector<DilatedPair> dilated_;  // empty: attention is not
  ScTables tables_;                   // of functions; none where the precision has no SC
  const DecoderWeights& weights_;
  std::vector<Device> devices_;
  size_t first_shard_;
  Role role_;
  bool has_outputs_ = false;  // the last Run left output rows alone
  // FaultRow of the rows and of the output rows of every piece of a lane's pass, where the model draws faults by row.
  struct FaultRows {
    std::vector<uint64_t> all, outputs;
  };
  const FaultRows& FaultRowsOf(const Piece& piece) const {
    return draws_faults_ ? fault_rows_[piece.lane][piece.index] : no_faults_;
  }
  const FaultRows no_faults_ = {};
  std::vector<std::vector<FaultRows>> fault_rows_;  // [lane][piece]
  bool draws_faults_;
  bool rows_alone_;  // a row's result depends on that row, and on earlier ones of its sequence, alone
  std::vector<Part> parts_;
  int64_t kv_cache_bytes_ = 0;
};

}  // namespace stoch
