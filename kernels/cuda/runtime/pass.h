// SPDX-License-Identifier: Apache-2.0
// The copy of a PassLayout in device memory. Every upload reuses the same buffers, so pointers in recorded graphs stay
// valid.
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

// One sequence of a pass. The cache holds its positions [0, length) once the rows of this pass are appended.
struct PassSequence {
  // First of this sequence's rows in the pass.
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t start_position = 0;
  int32_t length = 0;  // positions in the cache after this pass: start_position + num_rows
  int32_t num_pages = 0;
  // First packed position of a long sequence (kLongSequenceRows rows or more), -1 for a short one. Packing lays the
  // positions of the long sequences of a batch end to end, each sequence rounded up to kKeyBlock.
  int32_t packed_begin = -1;
  uint32_t number = 0;  // as PassLayout::Sequence::number; random faults are drawn by it
};

// One row of a pass, with all that a kernel needs to begin with a row, in a single 16-byte load.
struct alignas(16) PassRow {
  // Index in PassView::sequences.
  int32_t sequence = 0;
  int32_t position = 0;        // absolute position
  int32_t start_position = 0;  // absolute position of the first row of this row's sequence
  int32_t first_row = 0;       // first row of this row's sequence in the pass
};

// Up to kQueryTile consecutive rows of one sequence, the tile of prefill attention. If the positions of sequences are
// dealt over several devices in stripes (kernels/stripes.h), the rows are those of this device's stripe.
struct QueryTile {
  // Index in PassView::sequences.
  int32_t sequence = 0;
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t start_position = 0;         // position of first_row: local to the stripe (absolute if there is one stripe)
  int32_t width_shift = kWholeShift;  // the stripe has 1 << width_shift positions of every period of kStripePeriod
  int32_t stripe_begin = 0;           // offset of the stripe's first position within a period

  static constexpr int32_t kWholeShift = std::countr_zero(static_cast<uint32_t>(kStripePeriod));
  // The absolute position of row number `row` of the tile.
  STOCH_HD int32_t PositionOf(int32_t row) const {
    const int32_t local = start_position + row;
    return (local >> width_shift << kWholeShift) + stripe_begin + (local & ((1 << width_shift) - 1));
  }
  // kHalfPeriod is half of kStripePeriod. Apart() is the difference of absolute positions between rows i and
  // i + kHalfPeriod of the tile.
  static constexpr int32_t kHalfPeriod = static_cast<int32_t>(kStripePeriod) / 2;
  STOCH_HD int32_t Apart() const { return kHalfPeriod << (kWholeShift - width_shift); }
  // Number of positions that the tile's last row attends to.
  STOCH_HD int32_t length() const { return PositionOf(num_rows - 1) + 1; }
};

// Long sequences whose keys are packed, and whose tiles run, in one launch. The sequences are consecutive in the pass,
// with short ones possibly in between.
struct TileBatch {
  // Range of the batch in CudaPass::sequences(), short ones included.
  int32_t first_sequence = 0;
  int32_t num_sequences = 0;
  // Range of the batch in CudaPass::tiles().
  int32_t first_tile = 0;
  int32_t num_tiles = 0;
  int32_t positions = 0;   // packed positions: lengths of the long sequences, each rounded up to kKeyBlock
  int32_t max_length = 0;  // longest of the long sequences
};

// A pass as kernels see it; passed by value. All pointers are device memory, sized by the PassLimits.
struct PassView {
  const int32_t* ids = nullptr;             // [max_rows]: token id of each row
  const int32_t* positions = nullptr;       // [max_rows]: absolute position of each row
  const int32_t* row_sequence = nullptr;    // [max_rows]: index in `sequences` of each row
  const PassRow* rows = nullptr;            // [max_rows]: sequence and positions of each row, in one 16-byte record
  const int32_t* output_rows = nullptr;     // [max_rows]: rows whose logits are wanted, ascending
  const PassSequence* sequences = nullptr;  // [max_sequences]; unused entries have num_rows 0
  const QueryTile* tiles = nullptr;         // tiles of the long sequences' rows: by batch, longest context first
  const int32_t* short_rows = nullptr;      // [max_rows]: rows of short sequences (fewer than kLongSequenceRows rows)
  const int32_t* pages = nullptr;           // [max_sequences][max_pages]: pages of each sequence in the cache
  int32_t max_pages = 0;
};

class CudaPass final : public Pass {
 public:
  // Allocates all buffers for passes within `limits`. Errors: InvalidInput (CheckPassLimits), OutOfMemory.
  CudaPass(DeviceContext& ctx, const PassLimits& limits);

  Device device() const override { return ctx_.device; }
  const PassLimits& limits() const { return limits_; }
  const PassView& view() const { return view_; }

  // Sizes and tiles of the layout uploaded last; num_short_rows counts rows of sequences below kLongSequenceRows rows.
  int64_t rows() const { return rows_; }
  int64_t num_output_rows() const { return num_output_rows_; }
  const std::vector<QueryTile>& tiles() const { return tiles_; }
  int64_t num_short_rows() const { return num_short_rows_; }
  int32_t max_length() const { return max_length_; }              // length of the longest sequence
  int32_t max_short_length() const { return max_short_length_; }  // length of the longest short sequence
  const std::vector<TileBatch>& batches() const { return batches_; }
  int32_t max_page() const { return max_page_; }  // largest page number in use
  const std::vector<PassSequence>& sequences() const { return sequences_; }
  // Number of the last upload to this pass, counted over all passes of the process, so no two uploads have the same; 0
  // before the first upload.
  uint64_t upload() const { return upload_number_; }
  // The layout uploaded last, except that its ids are all 0 (only their number is kept) and its output_rows are empty.
  const PassLayout& layout() const { return layout_; }

  // Replaces the pass. Errors: InvalidInput (CheckPass). Async: one copy on the context's stream. The pinned memory of
  // a copy is reused only after that copy has run.
  void Upload(const PassLayout& layout);

 private:
  struct Offsets {  // bytes from the start of device_buffer_
    size_t sequences = 0, ids = 0, positions = 0, row_sequence = 0, rows = 0, output_rows = 0, tiles = 0,
           short_rows = 0, pages = 0, end = 0;
  };
  // The batch that takes a long sequence of `length` positions, index `sequence` in the pass: the last batch, or a new
  // one if the packed positions would exceed max_packed_positions.
  TileBatch& BatchFor(int32_t sequence, int32_t length);
  // Copies the layout without its ids and output_rows to layout_.
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
  // Page numbers to which the sequences of layout_ point.
  std::vector<int32_t> layout_pages_;
  std::vector<QueryTile> tiles_;
  std::vector<TileBatch> batches_;
};

}  // namespace stoch::cuda
