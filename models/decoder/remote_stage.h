// SPDX-License-Identifier: Apache-2.0
// Layers that are on other ranks, as a stage of rank 0; and how those ranks run them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "loader/config/decoder_config.h"
#include "models/decoder/model_stage.h"
#include "models/decoder/pass_shape.h"
#include "models/decoder/rank_link.h"

namespace stoch {

// Rows of the residual stream between a device and a message.
class HostRows {
 public:
  HostRows(Backend& backend, Device device, const PassShape& shape, int64_t hidden_size);

  // The first `rows` rows on the host, [rows, hidden_size].
  std::span<float> host(int64_t rows) { return std::span(host_).first(static_cast<size_t>(rows * hidden_size_)); }
  int64_t cols() const { return hidden_size_; }
  // Copies rows of a device to the host, and waits.
  std::span<const float> Fetch(const TensorView& hidden);
  // Copies host(rows) to the device. Valid until the next call.
  TensorView Put(int64_t rows);
  int64_t bytes() const { return static_cast<int64_t>(staged_.bytes()); }  // of the device

 private:
  Backend& backend_;
  int64_t hidden_size_;
  std::vector<float> host_;
  Buffer staged_;
};

// Receive gives the rows to rank 1 and returns; Hidden waits for them to come back from the last rank. Has no head.
//
// Errors: Hidden throws the InvalidInput of a rank whose operator met NaN or infinity, in the words of one process, and
// LostRank.
class RemoteStage final : public ModelStage {
 public:
  // `before`: devices of the layers before it; `head`: the device whose stage comes next.
  // Requires: everything given outlives the stage; link.rank() is 0.
  RemoteStage(Backend& backend, const DecoderConfig& config, const PassShape& shape, std::vector<Device> before,
              Device head, RankLink& link, const Role& role);
  ~RemoteStage() override;

  const Role& role() const override { return role_; }
  std::span<const Device> devices() const override { return {}; }

  void Upload(size_t lane, size_t index, const PassLayout& layout) override;
  void Run(const Piece& /*piece*/, const HiddenTap& /*tap*/) override {}
  // The rows of the pieces that are on their way come, and are dropped; nothing after a LostRank.
  void Abandon() override;

  TensorView Hidden(const Piece& piece) const override;
  void Receive(const Piece& piece, const TensorView& hidden) override;

  // Never called: a remote stage has no head.
  void RunHead(size_t lane, int64_t first, int64_t count, int64_t output_rows, bool only_largest) override;
  LogitQueryBuffer& queries(size_t lane) override;
  void UploadQueries(size_t lane, const LogitQueries& queries) override;
  void AnswerQueries(size_t lane, int64_t first, int64_t count, const QueryRange& picks,
                     const QueryRange& logprobs) override;
  TensorView Logits(size_t lane, int64_t count) const override;

  int64_t kv_cache_bytes() const override { return 0; }
  int64_t staging_bytes() const;

 private:
  struct Link;  // what Hidden changes, though the rows are those of its piece
  Backend& backend_;
  std::vector<Device> before_;
  Role role_;
  std::vector<std::vector<PassLayout>> layouts_;  // [lane][piece]
  std::unique_ptr<Link> link_;
};

// Runs the pieces that rank 0 sends with the stages of this rank, until it closes the model. What an operator refuses
// travels on in place of the rows.
// Requires: link.rank() > 0; stages without embedding and head. Errors: LostRank, DeviceError.
void FollowRanks(RankLink& link, Backend& backend, const DecoderConfig& config, const PassShape& shape,
                 std::span<const std::unique_ptr<ModelStage>> stages);

}  // namespace stoch
