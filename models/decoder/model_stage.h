// SPDX-License-Identifier: Apache-2.0
// What a DecoderModel runs a pass with: one part of its layers after another.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kernels/backend.h"
#include "models/decoder/decoder_options.h"

namespace stoch {

class ModelStage {
 public:
  struct Role {
    bool embeds = false;  // starts from token ids, else from another stage's hidden states
    bool has_head = false;
    int first_layer = 0;
    int num_layers = 0;
    bool leaves_outputs = false;  // it ends the layers, and who has the head wants output rows alone
  };
  // Rows and outputs of a piece within its pass.
  struct Piece {
    size_t lane = 0;
    size_t index = 0;
    int64_t first_row = 0;
    int64_t rows = 0;
    int64_t first_output = 0;
    int64_t outputs = 0;
  };

  virtual ~ModelStage() = default;
  virtual const Role& role() const = 0;
  virtual std::span<const Device> devices() const = 0;

  // Piece number `index` of the next pass in a lane, whole passes being piece 0.
  virtual void Upload(size_t lane, size_t index, const PassLayout& layout) = 0;
  // From token ids, or from Hidden where another stage put it, to Hidden of the same rows; and the output rows for
  // RunHead where the stage has the head. A tap waits for the device, so it is not for graphs.
  virtual void Run(const Piece& piece, const HiddenTap& tap) = 0;
  // Logits of output rows [first, first + count); only_largest: as of a LinearCall. Requires: has_head, and Run before it.
  virtual void RunHead(size_t lane, int64_t first, int64_t count, int64_t output_rows, bool only_largest) = 0;

  // Queries about the output rows of a lane's next pass. Requires: has_head.
  virtual LogitQueryBuffer& queries(size_t lane) = 0;
  virtual void UploadQueries(size_t lane, const LogitQueries& queries) = 0;
  // Answers picks and log-probabilities of the rows [first, first + count) that RunHead just made logits of.
  virtual void AnswerQueries(size_t lane, int64_t first, int64_t count, const QueryRange& picks,
                             const QueryRange& logprobs) = 0;

  // The residual stream of a piece on the first device, [rows, hidden_size].
  virtual TensorView Hidden(const Piece& piece) const = 0;
  // Instead of Hidden, where the last Run was of this piece, with leaves_outputs, and computed the output rows alone: those,
  // [outputs, hidden_size], on the first device.
  virtual std::optional<TensorView> Outputs(const Piece& /*piece*/) const { return std::nullopt; }
  // Puts the residual stream of another stage on every device of this one.
  virtual void Receive(const Piece& piece, const TensorView& hidden) = 0;
  // Of the last RunHead of the lane, on the first device, [count, vocab_size].
  virtual TensorView Logits(size_t lane, int64_t count) const = 0;

  // After an error: forgets what is on its way, so that the next piece is not taken for it.
  virtual void Abandon() {}

  virtual int64_t kv_cache_bytes() const = 0;
};

}  // namespace stoch
