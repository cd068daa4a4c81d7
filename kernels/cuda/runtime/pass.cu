// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/call_check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/runtime/pass.h"

namespace stoch::cuda {
namespace {

// A sequence's length rounded up to whole key blocks.
int32_t PaddedLength(int32_t length) { return (length + kKeyBlock - 1) / kKeyBlock * kKeyBlock; }

}  // namespace

CudaPass::CudaPass(DeviceContext& ctx, const PassLimits& limits) : ctx_(ctx), limits_(limits) {
  CheckPassLimits(limits);
  const auto rows = static_cast<size_t>(limits.max_rows);
  const auto sequences = static_cast<size_t>(limits.max_sequences);
  size_t end = 0;
  const auto field = [&end](size_t bytes) {
    const size_t offset = end;
    end = AlignField(end + bytes);
    return offset;
  };
  offsets_.sequences = field(sequences * sizeof(PassSequence));
  offsets_.ids = field(rows * sizeof(int32_t));
  offsets_.positions = field(rows * sizeof(int32_t));
  offsets_.row_sequence = field(rows * sizeof(int32_t));
  offsets_.rows = field(rows * sizeof(PassRow));
  offsets_.output_rows = field(rows * sizeof(int32_t));
  offsets_.tiles = field((rows / kQueryTile + sequences + 1) * sizeof(QueryTile));
  offsets_.short_rows = field(rows * sizeof(int32_t));
  // The pages come last, so that an upload may end after the pages of the last sequence.
  offsets_.pages = field(sequences * static_cast<size_t>(limits.max_pages_per_sequence) * sizeof(int32_t));
  offsets_.end = end;

  device_buffer_ = AllocateDevice(ctx.device, end);
  STOCH_CUDA(cudaMemsetAsync(device_buffer_.data(), 0, end, ctx.stream));
  upload_.emplace(ctx, end);
  view_.ids = FieldAt<int32_t>(device_buffer_, offsets_.ids);
  view_.positions = FieldAt<int32_t>(device_buffer_, offsets_.positions);
  view_.row_sequence = FieldAt<int32_t>(device_buffer_, offsets_.row_sequence);
  view_.rows = FieldAt<PassRow>(device_buffer_, offsets_.rows);
  view_.output_rows = FieldAt<int32_t>(device_buffer_, offsets_.output_rows);
  view_.sequences = FieldAt<PassSequence>(device_buffer_, offsets_.sequences);
  view_.tiles = FieldAt<QueryTile>(device_buffer_, offsets_.tiles);
  view_.short_rows = FieldAt<int32_t>(device_buffer_, offsets_.short_rows);
  view_.pages = FieldAt<int32_t>(device_buffer_, offsets_.pages);
  view_.max_pages = static_cast<int32_t>(limits.max_pages_per_sequence);
}

TileBatch& CudaPass::BatchFor(int32_t sequence, int32_t length) {
  if (batches_.empty() || batches_.back().positions + PaddedLength(length) > ctx_.traits.max_packed_positions) {
    TileBatch batch;
    batch.first_sequence = sequence;
    batch.first_tile = static_cast<int32_t>(tiles_.size());
    batches_.push_back(batch);
  }
  TileBatch& batch = batches_.back();
  batch.num_sequences = sequence + 1 - batch.first_sequence;
  batch.max_length = std::max(batch.max_length, length);
  return batch;
}

void CudaPass::KeepLayout(const PassLayout& layout) {
  layout_pages_.clear();
  for (const PassLayout::Sequence& s : layout.sequences) {
    layout_pages_.insert(layout_pages_.end(), s.pages.begin(), s.pages.end());
  }
  layout_.ids.assign(layout.ids.size(), 0);
  layout_.sequences = layout.sequences;
  size_t first = 0;
  for (PassLayout::Sequence& s : layout_.sequences) {
    s.pages = std::span(layout_pages_).subspan(first, s.pages.size());
    first += s.pages.size();
  }
}

void CudaPass::Upload(const PassLayout& layout) {
  CheckPass(layout, limits_);
  static std::atomic<uint64_t> uploads{0};
  upload_number_ = ++uploads;
  const Buffer& host = upload_->Next();

  rows_ = static_cast<int64_t>(layout.ids.size());
  num_output_rows_ = static_cast<int64_t>(layout.output_rows.size());
  num_short_rows_ = 0;
  max_length_ = 0;
  max_short_length_ = 0;
  sequences_.clear();
  tiles_.clear();
  batches_.clear();
  max_page_ = 0;
  std::memcpy(FieldAt<int32_t>(host, offsets_.ids), layout.ids.data(), layout.ids.size() * sizeof(int32_t));
  if (!layout.output_rows.empty()) {
    std::memcpy(FieldAt<int32_t>(host, offsets_.output_rows), layout.output_rows.data(),
                layout.output_rows.size() * sizeof(int32_t));
  }
  int32_t* positions = FieldAt<int32_t>(host, offsets_.positions);
  int32_t* row_sequence = FieldAt<int32_t>(host, offsets_.row_sequence);
  PassRow* row_records = FieldAt<PassRow>(host, offsets_.rows);
  int32_t* short_rows = FieldAt<int32_t>(host, offsets_.short_rows);
  int32_t* pages = FieldAt<int32_t>(host, offsets_.pages);
  for (size_t i = 0; i < layout.sequences.size(); ++i) {
    const PassLayout::Sequence& s = layout.sequences[i];
    const bool is_long = s.num_rows >= kLongSequenceRows;
    TileBatch* const batch = is_long ? &BatchFor(static_cast<int32_t>(i), s.start_position + s.num_rows) : nullptr;
    sequences_.push_back({s.first_row, s.num_rows, s.start_position, s.start_position + s.num_rows,
                          static_cast<int32_t>(s.pages.size()), is_long ? batch->positions : -1, s.number});
    const PassSequence& sequence = sequences_.back();
    if (is_long) batch->positions += PaddedLength(sequence.length);
    max_length_ = std::max(max_length_, sequence.length);
    for (int32_t r = 0; r < s.num_rows; ++r) {
      positions[s.first_row + r] = s.start_position + r;
      row_sequence[s.first_row + r] = static_cast<int32_t>(i);
      row_records[s.first_row + r] = {static_cast<int32_t>(i), s.start_position + r, s.start_position, s.first_row};
      if (!is_long) short_rows[num_short_rows_++] = s.first_row + r;
      if (is_long && r % kQueryTile == 0) {
        tiles_.push_back(
            {static_cast<int32_t>(i), s.first_row + r, std::min(kQueryTile, s.num_rows - r), s.start_position + r});
        ++batch->num_tiles;
      }
    }
    for (const int32_t page : s.pages) max_page_ = std::max(max_page_, page);
    if (!is_long) max_short_length_ = std::max(max_short_length_, sequence.length);
    std::copy(s.pages.begin(), s.pages.end(), pages + i * static_cast<size_t>(limits_.max_pages_per_sequence));
  }
  KeepLayout(layout);
  // Sort the tiles of each batch by context, longest first: short tiles then fill the gaps at the end of a launch.
  for (const TileBatch& batch : batches_) {
    const auto begin = tiles_.begin() + batch.first_tile;
    std::stable_sort(begin, begin + batch.num_tiles, [](const QueryTile& a, const QueryTile& b) {
      return a.start_position + a.num_rows > b.start_position + b.num_rows;
    });
  }
  std::copy(tiles_.begin(), tiles_.end(), FieldAt<QueryTile>(host, offsets_.tiles));
  // Unused entries have num_rows 0, because recorded graphs launch for max_sequences sequences.
  PassSequence* sequences = FieldAt<PassSequence>(host, offsets_.sequences);
  std::fill(std::copy(sequences_.begin(), sequences_.end(), sequences), sequences + limits_.max_sequences,
            PassSequence{});

  const size_t used =
      offsets_.pages + layout.sequences.size() * static_cast<size_t>(limits_.max_pages_per_sequence) * sizeof(int32_t);
  upload_->CopyTo(device_buffer_.data(), used);
}

}  // namespace stoch::cuda
