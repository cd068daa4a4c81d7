// SPDX-License-Identifier: Apache-2.0
// A whole model whose positions are dealt over devices: each runs the rows of its positions, and attention joins them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "models/decoder/stage.h"

namespace stoch {

// Every stripe of positions is a DecoderStage of all layers, which has its own rows of a pass. Bits: those of one device.
class StripedStage final : public ModelStage {
 public:
  // `shards`: DealPositions, a workspace for each. Requires: everything given outlives the stage; one lane.
  StripedStage(Backend& backend, const DecoderConfig& config, const DecoderOptions& options,
               const DecoderWeights& weights, std::span<const DecoderShard> shards,
               std::span<DecoderWorkspace* const> workspaces);

  const Role& role() const override { return role_; }
  std::span<const Device> devices() const override { return devices_; }

  void Upload(size_t lane, size_t index, const PassLayout& layout) override;
  void Run(const Piece& piece, const HiddenTap& tap) override;
  void RunHead(size_t lane, int64_t first, int64_t count, int64_t output_rows, bool only_largest) override;

  LogitQueryBuffer& queries(size_t lane) override { return stripes_[0]->queries(lane); }
  void UploadQueries(size_t lane, const LogitQueries& queries) override { stripes_[0]->UploadQueries(lane, queries); }
  void AnswerQueries(size_t lane, int64_t first, int64_t count, const QueryRange& picks,
                     const QueryRange& logprobs) override {
    stripes_[0]->AnswerQueries(lane, first, count, picks, logprobs);
  }

  TensorView Hidden(const Piece& piece) const override;                 // no stage follows
  void Receive(const Piece& piece, const TensorView& hidden) override;  // nor comes before
  TensorView Logits(size_t lane, int64_t count) const override { return stripes_[0]->Logits(lane, count); }

  int64_t kv_cache_bytes() const override;
  int64_t ring_bytes() const;

 private:
  // Where a row of the pass is.
  struct RowPlace {
    size_t stripe = 0;
    int64_t row = 0;
  };
  Piece Own(size_t stripe) const;
  // Whether the last layer computes output rows alone.
  bool EndsWithOutputs(const HiddenTap& tap) const;
  void Attend(int layer);
  // Calls copy(stripe, first row there, first of `places`, count) for rows that lie side by side in both.
  template <typename CopyRows>
  void ForRuns(std::span<const RowPlace> places, const CopyRows& copy) const;
  void CopyHidden(const HiddenTap& tap, int layers);

  Backend& backend_;
  const DecoderConfig& config_;
  std::vector<Device> devices_;
  Role role_;
  size_t sharers_ = 1;                                  // devices of a stripe
  std::vector<std::unique_ptr<DecoderStage>> stripes_;  // [stripe]
  std::vector<Buffer> rings_;                           // [device]: scratch of RingAttention
  std::vector<std::unique_ptr<Pass>> passes_;           // [device]: whole passes
  std::vector<int64_t> rows_;                           // of each stripe, of the pass uploaded last
  std::vector<RowPlace> places_;                        // of every row of that pass
  std::vector<RowPlace> outputs_;                       // of its output rows
  std::vector<RowPlace> selected_;                      // where they are among the output rows of their stripe
  std::vector<int64_t> num_outputs_;                    // of each stripe
  bool has_selected_ = false;                           // the last layer computed these alone
};

}  // namespace stoch
