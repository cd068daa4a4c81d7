// SPDX-License-Identifier: Apache-2.0
#include "engine/research/trace.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"

namespace stoch {
namespace {

double Divide(Int128 a, Int128 b) { return b == 0 ? 0.0 : static_cast<double>(a) / static_cast<double>(b); }

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The chunks of a product over `dims` dimensions.
struct Chunks {
  int64_t dims, size;
  Chunks(int64_t total, int64_t chunk) : dims(total), size(chunk > 0 ? std::min(chunk, total) : total) {}
  int64_t count() const { return CeilDiv(dims, size); }
  int64_t width(int64_t c) const { return std::min(size, dims - c * size); }
};

int LengthAt(const TraceCall& call, int64_t row, int64_t chunk) {
  if (call.lengths.empty()) return call.stoc_len;
  return call.lengths[static_cast<size_t>(row * call.per_row + (call.per_row > 1 ? chunk : 0))];
}

void Check(const TraceCall& call) {
  const bool sized = call.rows >= 0 && call.batch >= 1 && call.d_in >= 1 && call.d_out >= 1 && call.chunk_d >= 0;
  const bool fits = call.lengths.empty() || static_cast<int64_t>(call.lengths.size()) == call.rows * call.per_row;
  const bool chunked = call.per_row == 1 || (!call.causal && call.per_row == Chunks(call.d_in, call.chunk_d).count());
  if (!sized || !fits || !chunked) throw InvalidInput("trace: " + call.op + " has sizes that do not fit each other");
}

// Multiplications of one row of one of the batch.
int64_t RowMacs(const TraceCall& call, int64_t row) {
  return call.causal ? call.head_dim * (call.start + row + 1) : call.d_in * call.d_out;
}

}  // namespace

std::string ToText(Int128 value) {
  if (value == 0) return "0";
  std::string text;
  const bool negative = value < 0;
  for (; value != 0; value /= 10) text += static_cast<char>('0' + std::abs(static_cast<int>(value % 10)));
  if (negative) text += '-';
  std::reverse(text.begin(), text.end());
  return text;
}

ArrayShape ParseArrayShape(const std::string& text) {
  std::vector<int64_t> numbers;
  std::string_view rest = text;
  for (bool more = true; more;) {
    const size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    int64_t value = -1;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    const bool number = error == std::errc() && end == part.data() + part.size();
    numbers.push_back(number ? value : -1);
    more = comma != std::string_view::npos;
    if (more) rest = rest.substr(comma + 1);
  }
  constexpr int64_t kMost = 1 << 20;
  bool good = numbers.size() == 3 || numbers.size() == 4;
  for (size_t i = 0; i < numbers.size(); ++i) good = good && numbers[i] >= (i < 3 ? 1 : 0) && numbers[i] <= kMost;
  if (!good) {
    throw InvalidInput("array = " + text + ": allowed is R,C,K[,FILL], whole numbers, R, C and K in 1..1048576");
  }
  return {numbers[0], numbers[1], numbers[2], numbers.size() == 4 ? numbers[3] : 0};
}

double TraceCounts::mac_average() const { return Divide(mac_cycles, macs + macs_pruned); }
double TraceCounts::row_average() const { return Divide(row_cycles, rows); }

Trace::Trace(std::vector<int64_t> tile_rows, std::optional<ArrayShape> array)
    : tile_rows_(std::move(tile_rows)), array_(array), tile_cycles_(tile_rows_.size(), 0) {
  for (const int64_t rows : tile_rows_) {
    if (rows < 1) throw InvalidInput("tile-rows = " + std::to_string(rows) + ": allowed is 1 or more");
  }
}

void Trace::Add(const TraceCall& call) {
  Check(call);
  const Chunks chunks(call.d_in, call.chunk_d);
  const bool by_chunk = call.per_row > 1;
  // Records of this call by (length, width of its chunks).
  struct Record {
    int64_t rows = 0;
    Int128 macs = 0;
  };
  std::map<std::pair<int, int64_t>, Record> records;
  TraceCounts counts;
  for (int64_t row = 0; row < call.rows; ++row) {
    for (int64_t c = 0; c < (by_chunk ? chunks.count() : 1); ++c) {
      const int length = LengthAt(call, row, c);
      const int64_t width = by_chunk ? chunks.width(c) : call.d_in;
      const Int128 macs = static_cast<Int128>(call.batch) * (by_chunk ? width * call.d_out : RowMacs(call, row));
      (length > 0 ? counts.macs : counts.macs_pruned) += macs;
      counts.mac_cycles += macs * length;
      if (length == 0) continue;
      Record& record = records[{length, width}];
      record.rows += call.batch;
      record.macs += macs;
    }
  }
  for (const auto& [at, record] : records) {
    const auto [length, width] = at;
    const std::string unit = call.unit ? std::to_string(*call.unit) : "";
    // Visible positions vary from call to call, so all of an operator is one group.
    const Key key = call.causal ? Key{call.block, call.op, unit, -length, 0, 0}
                                : Key{call.block, call.op, unit, -length, width, call.d_out};
    TraceGroup& group = groups_[key];
    group.block = call.block;
    group.op = call.op;
    group.unit = call.unit;
    group.stoc_len = length;
    group.dims_vary = call.causal;
    group.d_in = std::max(group.d_in, width);
    group.d_out = std::max(group.d_out, call.d_out);
    ++group.calls;
    group.rows += record.rows;
    group.macs += record.macs;
    group.row_cycles += static_cast<Int128>(record.rows) * length;
    counts.rows += record.rows;
    counts.row_cycles += static_cast<Int128>(record.rows) * length;
  }
  for (TraceCounts* into : {&total_, &by_op_[call.op]}) {
    into->macs += counts.macs;
    into->macs_pruned += counts.macs_pruned;
    into->mac_cycles += counts.mac_cycles;
    into->rows += counts.rows;
    into->row_cycles += counts.row_cycles;
  }
  AddTiles(call);
}

void Trace::AddTiles(const TraceCall& call) {
  const Chunks chunks(call.d_in, call.chunk_d);
  const bool by_chunk = call.per_row > 1;
  const auto longest = [&](int64_t first, int64_t end, int64_t c) {
    int result = 0;
    for (int64_t row = first; row < end; ++row) result = std::max(result, LengthAt(call, row, c));
    return result;
  };
  for (size_t i = 0; i < tile_rows_.size(); ++i) {
    for (int64_t first = 0; first < call.rows; first += tile_rows_[i]) {
      const int64_t end = std::min(first + tile_rows_[i], call.rows);
      if (by_chunk) {
        for (int64_t c = 0; c < chunks.count(); ++c) {
          tile_cycles_[i] += static_cast<Int128>(longest(first, end, c)) * ((end - first) * call.batch) *
                             (chunks.width(c) * call.d_out);
        }
        continue;
      }
      Int128 macs = 0;
      for (int64_t row = first; row < end; ++row) macs += static_cast<Int128>(call.batch) * RowMacs(call, row);
      tile_cycles_[i] += macs * longest(first, end, 0);
    }
  }
  if (!array_) return;
  for (int64_t first = 0; first < call.rows; first += array_->rows) {
    const int64_t end = std::min(first + array_->rows, call.rows);
    // A causal tile spans what its last row sees.
    const int64_t seen = call.start + end;
    const int64_t d_in = call.causal && call.op == "av" ? seen : call.d_in;
    const int64_t d_out = call.causal && call.op == "qk" ? seen : call.d_out;
    const Chunks spans(d_in, call.chunk_d);
    const int64_t column_tiles = CeilDiv(d_out, array_->cols);
    Int128 cycles = array_->fill;
    Int128 bits = 0;
    Int128 bytes = 0;
    for (int64_t c = 0; c < spans.count(); ++c) {
      const int length = longest(first, end, c);
      const int64_t width = spans.width(c);
      const Int128 generators = static_cast<Int128>(width) * ((end - first) * column_tiles + d_out);
      cycles += static_cast<Int128>(CeilDiv(width, array_->depth)) * length;
      bits += generators * length;
      bytes += generators;
    }
    array_counts_.cycles += static_cast<Int128>(call.batch) * column_tiles * cycles;
    array_counts_.sng_bits += static_cast<Int128>(call.batch) * bits;
    array_counts_.sram_read_bytes += static_cast<Int128>(call.batch) * bytes;
  }
  array_counts_.dram_read_bytes += static_cast<Int128>(call.batch) * call.d_in * call.d_out;
}

std::vector<TraceGroup> Trace::Groups() const {
  std::vector<TraceGroup> groups;
  for (const auto& [key, group] : groups_) groups.push_back(group);
  return groups;
}

double Trace::TileAverage(size_t index) const { return Divide(tile_cycles_[index], total_.macs + total_.macs_pruned); }

}  // namespace stoch
