// SPDX-License-Identifier: Apache-2.0
// The device-side copy of a PassLayout: fixed buffers that every pass reuses, so that recorded graphs stay valid.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/runtime/pinned_upload.h"
#include "kernels/math/host_device.h"
#include "kernels/plan/attention/plan.h"
#include "kernels/stripes.h"

namespace stoch::cuda {

// One sequence of a pass. Positions [0, length) are in the cache once the pass's own rows are appended.
struct PassSequence {
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t start_position = 0;
  int32_t length = 0;  // start_position + num_rows
  int32_t num_pages = 0;
  int32_t packed_begin = -1;  // of a long sequence: where its positions start when those of its batch are laid end to
                              // end, each rounded up to kKeyBlock; -1 for a short one
  uint32_t number = 0;        // PassLayout::Sequence::number
};

// One row of a pass: what a row kernel needs first, in one load.
struct alignas(16) PassRow {
  int32_t sequence = 0;
  int32_t position = 0;        // absolute
  int32_t start_position = 0;  // of its sequence in this pass
  int32_t first_row = 0;       // of its sequence
};

// Up to kQueryTile consecutive rows of one sequence: the unit of the prefill kernels. Where positions are dealt over
// devices (kernels/stripes.h), the rows are those of one stripe.
struct QueryTile {
  int32_t sequence = 0;
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t start_position = 0;         // of first_row: local to the stripe
  int32_t width_shift = kWholeShift;  // the stripe has 1 << width_shift of every kStripePeriod positions,
  int32_t stripe_begin = 0;           // from this one on

  static constexpr int32_t kWholeShift = std::countr_zero(static_cast<uint32_t>(kStripePeriod));
  // The absolute position of row `row` of the tile.
  STOCH_HD int32_t PositionOf(int32_t row) const {
    const int32_t local = start_position + row;
    return (local >> width_shift << kWholeShift) + stripe_begin + (local & ((1 << width_shift) - 1));
  }
  // How far apart rows are that kHalfPeriod rows lie between.
  static constexpr int32_t kHalfPeriod = static_cast<int32_t>(kStripePeriod) / 2;
  STOCH_HD int32_t Apart() const { return kHalfPeriod << (kWholeShift - width_shift); }
  // Positions that the last row sees.
  STOCH_HD int32_t length() const { return PositionOf(num_rows - 1) + 1; }
};

// Long sequences that are packed, and whose tiles run, together: neighbours of the pass, with short ones between them.
struct TileBatch {
  int32_t first_sequence = 0;
  int32_t num_sequences = 0;
  int32_t first_tile = 0;
  int32_t num_tiles = 0;
  int32_t positions = 0;   // of its long sequences, each rounded up to kKeyBlock
  int32_t max_length = 0;  // of them
};

// A pass as kernels see it; all pointers are device memory with room for the limits. Passed by value.
struct PassView {
  const int32_t* ids = nullptr;             // [max_rows]
  const int32_t* positions = nullptr;       // [max_rows] absolute position of each row
  const int32_t* row_sequence = nullptr;    // [max_rows]
  const PassRow* rows = nullptr;            // [max_rows]
  const int32_t* output_rows = nullptr;     // [max_rows]
  const PassSequence* sequences = nullptr;  // [max_sequences], spare ones have no rows
  const QueryTile* tiles = nullptr;         // rows of long sequences: by batch, longest context first
  const int32_t* short_rows = nullptr;      // every other row
  const int32_t* pages = nullptr;           // [max_sequences][max_pages]
  int32_t max_pages = 0;
};

class CudaPass final : public Pass {
 public:
  // Errors: InvalidInput (CheckPassLimits).
  CudaPass(DeviceContext& ctx, const PassLimits& limits);

  Device device() const override { return ctx_.device; }
  const PassLimits& limits() const { return limits_; }
  const PassView& view() const { return view_; }

  // Device views of the layout last uploaded.
  int64_t rows() const { return rows_; }
  int64_t num_output_rows() const { return num_output_rows_; }
  const std::vector<QueryTile>& tiles() const { return tiles_; }
  int64_t num_short_rows() const { return num_short_rows_; }
  int32_t max_length() const { return max_length_; }              // longest sequence
  int32_t max_short_length() const { return max_short_length_; }  // longest sequence with short rows
  const std::vector<TileBatch>& batches() const { return batches_; }
  int32_t max_page() const { return max_page_; }  // largest page number
  const std::vector<PassSequence>& sequences() const { return sequences_; }
  // Another number after every upload to any pass of the process; 0: none yet.
  uint64_t upload() const { return upload_number_; }
  // Sequences, and as many ids as there are rows, which are all 0.
  const PassLayout& layout() const { return layout_; }

  // Errors: InvalidInput (CheckPass). Async: one copy on the context's stream; the host buffer is reused only
  // after its copy ran.
  void Upload(const PassLayout& layout);

 private:
  struct Offsets {  // bytes from the start of the buffer
    size_t sequences = 0, ids = 0, positions = 0, row_sequence = 0, rows = 0, output_rows = 0, tiles = 0,
           short_rows = 0, pages = 0, end = 0;
  };
  // The batch of the next long sequence.
  TileBatch& BatchFor(int32_t sequence, int32_t length);
  void KeepLayout(const PassLayout& layout);

  DeviceContext& ctx_;
  PassLimits limits_;
  Offsets offsets_;
  Buffer device_buffer_;
  std::optional<PinnedUpload> upload_;
  PassView view_;
  uint64_t upload_number_ = 0;
  int64_t rows_ = 0;
  int64_t num_output_rows_ = 0;
  int64_t num_short_rows_ = 0;
  int32_t max_length_ = 0;
  int32_t max_short_length_ = 0;
  int32_t max_page_ = 0;
  std::vector<PassSequence> sequences_;
  PassLayout layout_;
  std::vector<int32_t> layout_pages_;
  std::vector<QueryTile> tiles_;
  std::vector<TileBatch> batches_;
};

}  // namespace stoch::cuda
