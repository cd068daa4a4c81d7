// SPDX-License-Identifier: Apache-2.0
#include "loader/checkpoint/quantized/strips.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "kernels/base/check.h"

namespace stoch::quantized {
namespace {

struct Strip {
  uint64_t owner = 0;
  int64_t first = -1;
  std::vector<uint32_t> words;
};

uint64_t NextId() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

// Words [rows, kWidth] of a matrix of `stride` words a row, as [kWidth, rows].
template <int64_t kWidth>
void Transpose(const std::byte* from, int64_t rows, int64_t stride, uint32_t* to) {
  constexpr int64_t kTile = 16;
  uint32_t tile[kTile][kWidth];
  for (int64_t row = 0; row < rows; row += kTile) {
    const int64_t count = std::min(kTile, rows - row);
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(tile[i], from + (row + i) * stride * static_cast<int64_t>(sizeof(uint32_t)), sizeof(tile[i]));
    }
    for (int64_t col = 0; col < kWidth; ++col) {
      for (int64_t i = 0; i < count; ++i) to[col * rows + row + i] = tile[i][col];
    }
  }
}

// Transpose for any width: pieces of 16, of 8 and of 1 column.
void TransposeAny(const std::byte* from, int64_t rows, int64_t width, int64_t stride, uint32_t* to) {
  int64_t done = 0;
  const auto source = [&] { return from + done * static_cast<int64_t>(sizeof(uint32_t)); };
  for (; width - done >= 16; done += 16) Transpose<16>(source(), rows, stride, to + done * rows);
  for (; width - done >= 8; done += 8) Transpose<8>(source(), rows, stride, to + done * rows);
  for (; done < width; ++done) Transpose<1>(source(), rows, stride, to + done * rows);
}

}  // namespace

Strips::Strips(const std::byte* words, int64_t rows, int64_t cols, int64_t width)
    : words_(words), rows_(rows), cols_(cols), width_(width), id_(NextId()) {
  STOCH_CHECK(width >= 1);
}

const uint32_t* Strips::Column(int64_t col) const {
  static thread_local Strip strip;
  const int64_t first = col - col % width_;
  if (strip.owner != id_ || strip.first != first) {
    strip.owner = 0;  // until it holds what it says
    strip.words.resize(static_cast<size_t>(rows_ * width_));
    TransposeAny(words_ + first * static_cast<int64_t>(sizeof(uint32_t)), rows_, std::min(width_, cols_ - first), cols_,
                 strip.words.data());
    strip.owner = id_;
    strip.first = first;
  }
  return strip.words.data() + (col - first) * rows_;
}

}  // namespace stoch::quantized
