// SPDX-License-Identifier: Apache-2.0
// What SC hardware would have run: products by length and shape, and what follows from them (docs/research.md).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/dilated.h"

namespace stoch {

__extension__ using Int128 = __int128;

// A count of any size in decimal.
std::string ToText(Int128 value);

// One product of one call, or of `calls` equal ones.
struct TraceCall {
  int block = -1;  // layer; -1: none
  std::string op;
  std::optional<int64_t> unit;  // query head, where lengths differ between heads
  int64_t rows = 0;             // of each of `batch` equal products
  int64_t batch = 1;
  int64_t d_in = 0, d_out = 0;
  int64_t chunk_d = 0;       // 0: one chunk
  int stoc_len = 0;          // of all rows, where `lengths` is empty
  std::vector<int> lengths;  // [rows][per_row]; 0 = pruned
  int64_t per_row = 1;       // 1, or the number of chunks
  bool causal = false;       // per_token attention: row r sees start + r + 1 positions, at most `window` if that is set
  int64_t start = 0, head_dim = 0, window = 0;
  std::vector<DilatedPair> dilated = {};  // causal: what a query of `head` admits, of all that it would see
  int64_t head = 0;
  int64_t codes = -1;  // of weights, keys or values that are read; -1: batch * d_in * d_out
  int64_t calls = 1;
};

// Rows of one length and width of a call, as the published traces record them.
struct TraceRecord {
  int stoc_len = 0;
  int64_t d_in = 0;  // of the chunk where chunks have lengths of their own
  int64_t rows = 0;
  Int128 macs = 0;
};
// Longest first, then the narrowest; without pruned rows. Of one of call.calls.
// Errors: InvalidInput for shapes that are none or disagree.
std::vector<TraceRecord> RecordsOf(const TraceCall& call);

struct TraceGroup {
  int block = -1;
  std::string op;
  std::optional<int64_t> unit;
  int stoc_len = 0;
  int64_t d_in = 0, d_out = 0;
  bool dims_vary = false;
  int64_t calls = 0, rows = 0;
  Int128 macs = 0, row_cycles = 0;
};

// Dense products with the macs of a group, all of them and no more. Where rows see less than the largest shape (causal
// attention), each takes the average of the side that varies, rounded down or up.
struct DenseProduct {
  Int128 rows = 0, d_in = 0, d_out = 0;
};
std::vector<DenseProduct> DenseProductsOf(const TraceGroup& group);

// An array of R x C multipliers that take K dimensions at once.
struct ArrayShape {
  int64_t rows = 0, cols = 0, depth = 0, fill = 0;
  friend bool operator==(const ArrayShape&, const ArrayShape&) = default;
};
// "R,C,K" or "R,C,K,FILL". Errors: InvalidInput.
ArrayShape ParseArrayShape(const std::string& text);

struct TraceCounts {
  Int128 macs = 0;         // of lengths above 0
  Int128 macs_pruned = 0;  // of length 0
  Int128 mac_cycles = 0;   // sum of macs * length
  Int128 rows = 0, row_cycles = 0;
  double mac_average() const;  // pruned macs included
  double row_average() const;
  TraceCounts& operator+=(const TraceCounts& other);
};
// a / b in double, 0 where b is 0: the one way in which averages of counts are made.
double RatioOf(Int128 a, Int128 b);

// Sums calls; results do not depend on their order.
class Trace {
 public:
  // What is summed besides groups and counts: the longest length of so many rows, cycles of an array.
  explicit Trace(std::vector<int64_t> tile_rows = {1, 8, 16, 32, 64}, std::optional<ArrayShape> array = {});

  // Errors: InvalidInput for shapes that are none or disagree.
  void Add(const TraceCall& call);

  std::vector<TraceGroup> Groups()
      const;  // sorted by block (null as -1), op, text of unit, length falling, d_in, d_out
  const TraceCounts& total() const { return total_; }
  const std::vector<int64_t>& tile_rows() const { return tile_rows_; }
  double TileAverage(size_t index) const;
  // What it is the average of: macs times the longest length of their tile.
  Int128 tile_cycles(size_t index) const { return tile_cycles_[index]; }
  // Of the array, where there is one.
  struct ArrayCounts {
    Int128 cycles = 0, sng_bits = 0, sram_read_bytes = 0;
    Int128 dram_read_bytes = 0;  // without an array too
    ArrayCounts& operator+=(const ArrayCounts& other);
  };
  ArrayCounts array() const;
  const std::optional<ArrayShape>& array_shape() const { return array_; }

  // One operator of one layer.
  struct Operator {
    TraceCounts counts;
    ArrayCounts array;
    std::map<int, Int128> macs_by_len;  // 0: pruned
  };
  const std::map<std::pair<int, std::string>, Operator>& operators() const { return operators_; }

 private:
  // block, op, text of unit, -length, d_in, d_out
  using Key = std::tuple<int, std::string, std::string, int, int64_t, int64_t>;
  void AddTiles(const TraceCall& call);
  ArrayCounts CountArray(const TraceCall& call) const;

  std::vector<int64_t> tile_rows_;
  std::optional<ArrayShape> array_;
  std::map<Key, TraceGroup> groups_;
  TraceCounts total_;
  std::map<std::pair<int, std::string>, Operator> operators_;
  std::vector<Int128> tile_cycles_;
};

}  // namespace stoch
