// SPDX-License-Identifier: Apache-2.0
#include "research/trace.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"

namespace stoch {
namespace {

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

// The longest length of rows [first, end) in a chunk.
int Longest(const TraceCall& call, int64_t first, int64_t end, int64_t chunk) {
  if (call.lengths.empty()) return call.stoc_len;
  int result = 0;
  for (int64_t row = first; row < end; ++row) result = std::max(result, LengthAt(call, row, chunk));
  return result;
}

void Check(const TraceCall& call) {
  const bool sized = call.rows >= 0 && call.calls >= 0 && call.stoc_len >= 0 && call.batch >= 1 && call.d_in >= 1 &&
                     call.d_out >= 1 && call.chunk_d >= 0;
  const bool fits = call.lengths.empty() || static_cast<int64_t>(call.lengths.size()) == call.rows * call.per_row;
  const bool chunked = call.per_row == 1 || (!call.causal && call.per_row == Chunks(call.d_in, call.chunk_d).count());
  if (!sized || !fits || !chunked) throw InvalidInput("trace: " + call.op + " has sizes that do not fit each other");
}

int64_t Visible(const TraceCall& call, int64_t row) {
  const int64_t before = call.start + row + 1;
  if (!call.dilated.empty()) {
    const int64_t first = call.window > 0 ? std::max<int64_t>(0, before - call.window) : 0;
    return CountAdmitted(call.dilated, call.head, before - 1, before - 1, first);
  }
  return call.window > 0 ? std::min(call.window, before) : before;
}

// Multiplications of one row of one of the batch.
int64_t RowMacs(const TraceCall& call, int64_t row) {
  return call.causal ? call.head_dim * Visible(call, row) : call.d_in * call.d_out;
}

// The positions that rows [first, end) see, all together: what the last one does, and more where a window slides.
int64_t TileSpan(const TraceCall& call, int64_t first, int64_t end) {
  const int64_t seen = call.start + end;
  if (!call.dilated.empty()) {
    const int64_t from = call.window > 0 ? std::max<int64_t>(0, call.start + first + 1 - call.window) : 0;
    return CountAdmitted(call.dilated, call.head, call.start + first, seen - 1, from);
  }
  return call.window > 0 ? std::min(call.window + (end - first) - 1, seen) : seen;
}

// Macs of rows [first, end), all chunks.
Int128 MacsOf(const TraceCall& call, int64_t first, int64_t end) {
  if (!call.causal) return static_cast<Int128>(call.batch) * (end - first) * call.d_in * call.d_out;
  Int128 macs = 0;
  for (int64_t row = first; row < end; ++row) macs += static_cast<Int128>(call.batch) * RowMacs(call, row);
  return macs;
}

// Rows of a call by (length, width of its chunks), with their macs; 0 = pruned.
using Records = std::map<std::pair<int, int64_t>, std::pair<int64_t, Int128>>;

Records CollectRecords(const TraceCall& call) {
  Check(call);
  Records records;
  if (call.rows == 0) return records;
  if (call.lengths.empty()) {
    records[{call.stoc_len, call.d_in}] = {call.rows * call.batch, MacsOf(call, 0, call.rows)};
    return records;
  }
  const Chunks chunks(call.d_in, call.chunk_d);
  const bool by_chunk = call.per_row > 1;
  for (int64_t row = 0; row < call.rows; ++row) {
    for (int64_t c = 0; c < call.per_row; ++c) {
      const int64_t width = by_chunk ? chunks.width(c) : call.d_in;
      auto& [rows, macs] = records[{LengthAt(call, row, c), width}];
      rows += call.batch;
      macs += static_cast<Int128>(call.batch) * (by_chunk ? width * call.d_out : RowMacs(call, row));
    }
  }
  return records;
}

}  // namespace

double RatioOf(Int128 a, Int128 b) { return b == 0 ? 0.0 : static_cast<double>(a) / static_cast<double>(b); }

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

double TraceCounts::mac_average() const { return RatioOf(mac_cycles, macs + macs_pruned); }
double TraceCounts::row_average() const { return RatioOf(row_cycles, rows); }

TraceCounts& TraceCounts::operator+=(const TraceCounts& other) {
  macs += other.macs;
  macs_pruned += other.macs_pruned;
  mac_cycles += other.mac_cycles;
  rows += other.rows;
  row_cycles += other.row_cycles;
  return *this;
}

Trace::ArrayCounts& Trace::ArrayCounts::operator+=(const ArrayCounts& other) {
  cycles += other.cycles;
  sng_bits += other.sng_bits;
  sram_read_bytes += other.sram_read_bytes;
  dram_read_bytes += other.dram_read_bytes;
  return *this;
}

std::vector<TraceRecord> RecordsOf(const TraceCall& call) {
  std::vector<TraceRecord> result;
  for (const auto& [at, sums] : CollectRecords(call)) {
    if (at.first > 0) result.push_back({at.first, at.second, sums.first, sums.second});
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const TraceRecord& a, const TraceRecord& b) { return a.stoc_len > b.stoc_len; });
  return result;
}

Trace::Trace(std::vector<int64_t> tile_rows, std::optional<ArrayShape> array)
    : tile_rows_(std::move(tile_rows)), array_(array), tile_cycles_(tile_rows_.size(), 0) {
  for (const int64_t rows : tile_rows_) {
    if (rows < 1) throw InvalidInput("tile-rows = " + std::to_string(rows) + ": allowed is 1 or more");
  }
}

void Trace::Add(const TraceCall& call) {
  Operator counted;
  for (const auto& [at, sums] : CollectRecords(call)) {
    const auto [length, width] = at;
    const Int128 macs = sums.second * call.calls;
    TraceCounts& counts = counted.counts;
    (length > 0 ? counts.macs : counts.macs_pruned) += macs;
    counts.mac_cycles += macs * length;
    counted.macs_by_len[length] += macs;
    if (length == 0) continue;
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
    group.calls += call.calls;
    const int64_t rows = sums.first * call.calls;
    group.rows += rows;
    group.macs += macs;
    group.row_cycles += static_cast<Int128>(rows) * length;
    counts.rows += rows;
    counts.row_cycles += static_cast<Int128>(rows) * length;
  }
  counted.array = CountArray(call);
  total_ += counted.counts;
  Operator& into = operators_[{call.block, call.op}];
  into.counts += counted.counts;
  into.array += counted.array;
  for (const auto& [length, macs] : counted.macs_by_len) into.macs_by_len[length] += macs;
  AddTiles(call);
}

void Trace::AddTiles(const TraceCall& call) {
  const Chunks chunks(call.d_in, call.chunk_d);
  const bool by_chunk = call.per_row > 1;
  for (size_t i = 0; i < tile_rows_.size(); ++i) {
    if (call.lengths.empty()) {
      tile_cycles_[i] += MacsOf(call, 0, call.rows) * call.stoc_len * call.calls;
      continue;
    }
    for (int64_t first = 0; first < call.rows; first += tile_rows_[i]) {
      const int64_t end = std::min(first + tile_rows_[i], call.rows);
      for (int64_t c = 0; c < call.per_row; ++c) {
        const Int128 macs = by_chunk ? static_cast<Int128>((end - first) * call.batch) * (chunks.width(c) * call.d_out)
                                     : MacsOf(call, first, end);
        tile_cycles_[i] += macs * Longest(call, first, end, c) * call.calls;
      }
    }
  }
}

Trace::ArrayCounts Trace::CountArray(const TraceCall& call) const {
  ArrayCounts counts;
  counts.dram_read_bytes =
      call.codes >= 0 ? static_cast<Int128>(call.codes) : static_cast<Int128>(call.batch) * call.d_in * call.d_out;
  counts.dram_read_bytes *= call.calls;
  if (!array_) return counts;
  for (int64_t first = 0; first < call.rows; first += array_->rows) {
    const int64_t end = std::min(first + array_->rows, call.rows);
    const int64_t d_in = call.causal && call.op == "av" ? TileSpan(call, first, end) : call.d_in;
    const int64_t d_out = call.causal && call.op == "qk" ? TileSpan(call, first, end) : call.d_out;
    const Chunks spans(d_in, call.chunk_d);
    const int64_t column_tiles = CeilDiv(d_out, array_->cols);
    Int128 cycles = array_->fill;
    Int128 bits = 0;
    Int128 bytes = 0;
    for (int64_t c = 0; c < spans.count(); ++c) {
      const int length = Longest(call, first, end, c);
      const int64_t width = spans.width(c);
      const Int128 generators = static_cast<Int128>(width) * ((end - first) * column_tiles + d_out);
      cycles += static_cast<Int128>(CeilDiv(width, array_->depth)) * length;
      bits += generators * length;
      bytes += generators;
    }
    const Int128 times = static_cast<Int128>(call.batch) * call.calls;
    counts.cycles += times * column_tiles * cycles;
    counts.sng_bits += times * bits;
    counts.sram_read_bytes += times * bytes;
  }
  return counts;
}

Trace::ArrayCounts Trace::array() const {
  ArrayCounts sum;
  for (const auto& [at, op] : operators_) sum += op.array;
  return sum;
}

std::vector<TraceGroup> Trace::Groups() const {
  std::vector<TraceGroup> groups;
  for (const auto& [key, group] : groups_) groups.push_back(group);
  return groups;
}

double Trace::TileAverage(size_t index) const { return RatioOf(tile_cycles_[index], total_.macs + total_.macs_pruned); }

std::vector<DenseProduct> DenseProductsOf(const TraceGroup& group) {
  const Int128 rows = group.rows;
  if (group.macs == rows * group.d_in * group.d_out) return {{rows, group.d_in, group.d_out}};
  const bool d_out_varies = group.op == "qk";  // its positions; those of av are summed over
  const Int128 fixed = d_out_varies ? group.d_in : group.d_out;
  const Int128 sum = group.macs / fixed, width = sum / rows, wider = sum % rows;
  std::vector<DenseProduct> gemms;
  const auto add = [&](Int128 count, Int128 varied) {
    if (count == 0 || varied == 0) return;
    gemms.push_back(d_out_varies ? DenseProduct{count, fixed, varied} : DenseProduct{count, varied, fixed});
  };
  add(rows - wider, width);
  add(wider, width + 1);
  const Int128 rest = group.macs % fixed;  // of shapes that both sides of varied
  if (rest > 0) gemms.push_back({1, rest, 1});
  return gemms;
}

}  // namespace stoch
