// SPDX-License-Identifier: Apache-2.0
// Weights as files and seeds have them, and the numbers that they stand for.
#pragma once

#include <cstring>
#include <vector>

#include "kernels/backend.h"
#include "kernels/math/elementary.h"
#include "kernels/math/half.h"
#include "kernels/math/random.h"
#include "tests/kernels/definition.h"

namespace stoch::test {

// A matrix as a file would hold it, at an odd address.
struct Stored {
  Stored(const Matrix& m, DType dtype) : values(m) {
    const size_t size = DTypeSize(dtype);
    bytes.resize(m.values.size() * size + 1);
    for (size_t i = 0; i < m.values.size(); ++i) {
      char* at = bytes.data() + 1 + i * size;
      const float value = m.values[i];
      if (dtype == DType::kF32) {
        std::memcpy(at, &value, size);
        continue;
      }
      const uint16_t half = dtype == DType::kF16 ? FloatToF16(value) : static_cast<uint16_t>(FloatToBits(value) >> 16);
      std::memcpy(at, &half, size);
      values.values[i] = dtype == DType::kF16 ? F16ToFloat(half) : Bf16ToFloat(half);
    }
    source.name = "stored";
    source.rows = m.rows;
    source.cols = m.cols;
    source.host = bytes.data() + 1;
    source.dtype = dtype;
  }
  Stored(const Stored&) = delete;
  Stored& operator=(const Stored&) = delete;

  WeightSource Rows(int64_t first, int64_t count) const {
    WeightSource part = source;
    part.rows = count;
    part.host = bytes.data() + 1 + static_cast<size_t>(first * source.cols) * DTypeSize(source.dtype);
    return part;
  }

  Matrix values;  // what the bytes stand for
  std::vector<char> bytes;
  WeightSource source;
};

// Numbers that a backend generates.
inline WeightSource RandomSource(uint64_t stream, int64_t rows, int64_t cols) {
  WeightSource source;
  source.name = "random";
  source.rows = rows;
  source.cols = cols;
  source.seed = 9;
  source.stream = stream;
  source.first = 1000;
  source.stddev = 0.02f;
  return source;
}

inline Matrix NumbersOf(const WeightSource& random) {
  Matrix m(random.rows, random.cols);
  for (size_t i = 0; i < m.values.size(); ++i) {
    m.values[i] = RandomWeight(random.seed, random.stream, static_cast<uint64_t>(random.first) + i, random.stddev);
  }
  return m;
}

}  // namespace stoch::test
