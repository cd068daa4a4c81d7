#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/base/error.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/runtime/pass.h"

namespace stoch::cuda {
namespace {

constexpr size_t kFieldAlignment = 256;

size_t AlignUp(size_t bytes) { return (bytes + kFieldAlignment - 1) / kFieldAlignment * kFieldAlignment; }

template <typename T>
T* At(const Buffer& buffer, size_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(buffer.data()) + offset);
}

int32_t PaddedLength(int32_t length) { return (length + kKeyBlock - 1) / kKeyBlock * kKeyBlock; }

std::string Number(int64_t value) { return std::to_string(value); }

}  // namespace

CudaPass::CudaPass(DeviceContext& ctx, const PassLimits& limits) : ctx_(ctx), limits_(limits) {
  const auto rows = static_cast<size_t>(limits.max_rows);
  const auto sequences = static_cast<size_t>(limits.max_sequences);
  size_t end = 0;
  const auto field = [&end](size_t bytes) {
    const size_t offset = end;
    end = AlignUp(end + bytes);
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
  // Last, so that a copy ends with the last sequence in use.
  offsets_.pages = field(sequences * static_cast<size_t>(limits.max_pages_per_sequence) * sizeof(int32_t));
  offsets_.end = end;

  device_buffer_ = AllocateDevice(ctx.device, end);
  STOCH_CUDA(cudaMemsetAsync(device_buffer_.data(), 0, end, ctx.stream));
  for (size_t i = 0; i < kSlots; ++i) {
    host_buffers_[i] = AllocatePinned(end);
    std::memset(host_buffers_[i].data(), 0, end);
    STOCH_CUDA(cudaEventCreateWithFlags(&copied_[i], cudaEventDisableTiming));
  }
  view_.ids = At<int32_t>(device_buffer_, offsets_.ids);
  view_.positions = At<int32_t>(device_buffer_, offsets_.positions);
  view_.row_sequence = At<int32_t>(device_buffer_, offsets_.row_sequence);
  view_.rows = At<PassRow>(device_buffer_, offsets_.rows);
  view_.output_rows = At<int32_t>(device_buffer_, offsets_.output_rows);
  view_.sequences = At<PassSequence>(device_buffer_, offsets_.sequences);
  view_.tiles = At<QueryTile>(device_buffer_, offsets_.tiles);
  view_.short_rows = At<int32_t>(device_buffer_, offsets_.short_rows);
  view_.pages = At<int32_t>(device_buffer_, offsets_.pages);
  view_.max_pages = static_cast<int32_t>(limits.max_pages_per_sequence);
}

CudaPass::~CudaPass() {
  for (cudaEvent_t event : copied_) {
    if (event != nullptr) (void)cudaEventDestroy(event);
  }
}

void CudaPass::Validate(const PassLayout& layout) const {
  const auto rows = static_cast<int64_t>(layout.ids.size());
  if (rows < 1 || rows > limits_.max_rows) {
    throw InvalidInput("pass: " + Number(rows) + " rows, allowed are 1 to " + Number(limits_.max_rows));
  }
  if (static_cast<int64_t>(layout.sequences.size()) > limits_.max_sequences) {
    throw InvalidInput("pass: " + Number(static_cast<int64_t>(layout.sequences.size())) + " sequences, at most " +
                       Number(limits_.max_sequences) + " are allowed");
  }
  if (static_cast<int64_t>(layout.output_rows.size()) > rows) {
    throw InvalidInput("pass: more output rows than rows");
  }
  for (const int32_t row : layout.output_rows) {
    if (row < 0 || row >= rows) throw InvalidInput("pass: output row " + Number(row) + " of " + Number(rows) + " rows");
  }
  int64_t next_row = 0;
  for (const PassLayout::Sequence& s : layout.sequences) {
    if (s.first_row != next_row || s.num_rows < 1 || s.start_position < 0) {
      throw InvalidInput("pass: sequences must cover every row once, in order");
    }
    next_row += s.num_rows;
    if (static_cast<int64_t>(s.pages.size()) > limits_.max_pages_per_sequence) {
      throw InvalidInput("pass: a sequence has " + Number(static_cast<int64_t>(s.pages.size())) + " pages, at most " +
                         Number(limits_.max_pages_per_sequence) + " are allowed");
    }
    for (const int32_t page : s.pages) {
      if (page < 0) throw InvalidInput("pass: page " + Number(page) + ", expected 0 or more");
    }
  }
  if (next_row != rows) throw InvalidInput("pass: sequences must cover every row once, in order");
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

void CudaPass::Upload(const PassLayout& layout) {
  Validate(layout);
  slot_ = (slot_ + 1) % kSlots;
  STOCH_CUDA(cudaEventSynchronize(copied_[slot_]));  // success at once where the slot was never used
  const Buffer& host = host_buffers_[slot_];

  rows_ = static_cast<int64_t>(layout.ids.size());
  num_output_rows_ = static_cast<int64_t>(layout.output_rows.size());
  num_short_rows_ = 0;
  max_length_ = 0;
  max_short_length_ = 0;
  sequences_.clear();
  tiles_.clear();
  batches_.clear();
  max_page_ = 0;
  std::memcpy(At<int32_t>(host, offsets_.ids), layout.ids.data(), layout.ids.size() * sizeof(int32_t));
  if (!layout.output_rows.empty()) {
    std::memcpy(At<int32_t>(host, offsets_.output_rows), layout.output_rows.data(),
                layout.output_rows.size() * sizeof(int32_t));
  }
  int32_t* positions = At<int32_t>(host, offsets_.positions);
  int32_t* row_sequence = At<int32_t>(host, offsets_.row_sequence);
  PassRow* row_records = At<PassRow>(host, offsets_.rows);
  int32_t* short_rows = At<int32_t>(host, offsets_.short_rows);
  int32_t* pages = At<int32_t>(host, offsets_.pages);
  for (size_t i = 0; i < layout.sequences.size(); ++i) {
    const PassLayout::Sequence& s = layout.sequences[i];
    const bool is_long = s.num_rows >= kLongSequenceRows;
    TileBatch* const batch = is_long ? &BatchFor(static_cast<int32_t>(i), s.start_position + s.num_rows) : nullptr;
    sequences_.push_back({s.first_row, s.num_rows, s.start_position, s.start_position + s.num_rows,
                          static_cast<int32_t>(s.pages.size()), is_long ? batch->positions : -1});
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
  // Of each batch longest context first: the short tiles fill the gaps at the end of a launch.
  for (const TileBatch& batch : batches_) {
    const auto begin = tiles_.begin() + batch.first_tile;
    std::stable_sort(begin, begin + batch.num_tiles, [](const QueryTile& a, const QueryTile& b) {
      return a.start_position + a.num_rows > b.start_position + b.num_rows;
    });
  }
  std::copy(tiles_.begin(), tiles_.end(), At<QueryTile>(host, offsets_.tiles));
  // Entries past the last sequence read as having no rows: recorded graphs launch for the limit.
  PassSequence* sequences = At<PassSequence>(host, offsets_.sequences);
  std::fill(std::copy(sequences_.begin(), sequences_.end(), sequences), sequences + limits_.max_sequences,
            PassSequence{});

  const size_t used =
      offsets_.pages + layout.sequences.size() * static_cast<size_t>(limits_.max_pages_per_sequence) * sizeof(int32_t);
  STOCH_CUDA(cudaMemcpyAsync(device_buffer_.data(), host.data(), used, cudaMemcpyHostToDevice, ctx_.stream));
  STOCH_CUDA(cudaEventRecord(copied_[slot_], ctx_.stream));
}

std::unique_ptr<CudaPass> MakePass(DeviceContext& ctx, const PassLimits& limits) {
  if (limits.max_rows < 1 || limits.max_sequences < 1 || limits.max_pages_per_sequence < 1) {
    throw InvalidInput("pass limits: rows, sequences and pages must be at least 1, got " + Number(limits.max_rows) +
                       ", " + Number(limits.max_sequences) + ", " + Number(limits.max_pages_per_sequence));
  }
  return std::make_unique<CudaPass>(ctx, limits);
}

}  // namespace stoch::cuda
