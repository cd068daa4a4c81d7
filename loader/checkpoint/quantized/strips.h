// SPDX-License-Identifier: Apache-2.0
// Columns of a stored matrix of words, for those who want a weight's row that is a column of the file.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stoch::quantized {

// Words [rows, cols] in a mapped file, row-major, maybe unaligned. A thread copies a strip of neighbouring columns at a
// time, each column's words next to each other, and keeps it until it asks for another: whoever reads columns in order
// reads the file once, in cache lines that are used whole. Threads: safe.
class Strips {
 public:
  Strips(const std::byte* words, int64_t rows, int64_t cols, int64_t width);
  // The words of a column, `rows` of them. Valid until the same thread asks any Strips for a column.
  const uint32_t* Column(int64_t col) const;
  int64_t rows() const { return rows_; }

 private:
  const std::byte* words_;
  int64_t rows_, cols_, width_;
  uint64_t id_;  // of this object, since another one may have its address later
};

}  // namespace stoch::quantized
