// SPDX-License-Identifier: Apache-2.0
// Quantizes the rows of one operand of an SC product, whatever the scope of a scale is.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/base/tensor_view.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/sc/sc_operator.h"

namespace stoch::cpu {

// Which rows of a [batch * batch_rows, cols] operand share a scale: groups of `group` rows, never across batches.
struct ScScopes {
  int64_t batch_rows = 1;
  int64_t group = 1;

  int64_t per_batch() const { return (batch_rows + group - 1) / group; }
  int64_t of(int64_t row) const { return row / batch_rows * per_batch() + row % batch_rows / group; }
};

enum class ScOperand : uint8_t { kA, kB };  // a side of a @ b^T

// The scopes of one side under the operator's granularity.
ScScopes ScopesOf(const ScOperator& op, ScOperand side, int64_t batch, int64_t batch_rows);

// The dimension axis cut in chunks; one chunk where the configuration has none.
struct ScChunks {
  ScChunks() = default;
  ScChunks(const ScOperator& op, int64_t cols);

  int64_t cols = 0;
  int64_t size = 0;
  int64_t count = 0;
  int64_t begin(int64_t chunk) const { return chunk * size; }
  int64_t dims(int64_t chunk) const { return chunk + 1 < count ? size : cols - begin(chunk); }
};

// Gives row `row` as contiguous floats; may use `scratch` [cols] of the calling thread.
using RowReader = std::function<const float*(int64_t row, float* scratch)>;

// Quantizes rows one at a time, after the extremes of shared scopes were collected.
// Source: docs/sc_arithmetic.md#2-quantizers
class ScQuantizer {
 public:
  // Reads every row once if a scope has several rows; `reader` is called from the pool's threads.
  ScQuantizer(ThreadPool& pool, const Simd& simd, const ScOperator& op, const ScChunks& chunks, const ScScopes& scopes,
              int64_t rows, const RowReader& reader);

  const ScChunks& chunks() const { return chunks_; }

  struct Row {
    uint8_t* codes = nullptr;  // [cols]
    float* scales = nullptr;   // [chunks]
    float* zero = nullptr;     // kAsymmetric: zero point and
    int32_t* sum = nullptr;    // the sum of codes
  };
  // Fills `out`; false (codes and scales zero where it is so) if the scope of a chunk holds NaN or infinity.
  bool Quantize(int64_t row, const float* x, const Row& out) const;

 private:
  struct Extremes {
    uint32_t max_abs_bits = 0;
    float min = 0;
    float max = 0;
  };
  Extremes Observe(const float* x, int64_t n) const;
  static void Merge(Extremes& into, const Extremes& other);
  bool QuantizeChunk(const float* x, int64_t n, const Extremes& extremes, const Row& out, int64_t chunk) const;
  float ScaleOf(float max_abs) const;  // not of kAsymmetric
  void MakeCodes(const float* x, int64_t n, float scale, uint8_t* codes) const;

  const Simd& simd_;
  const ScOperator& op_;
  ScChunks chunks_;
  ScScopes scopes_;
  std::vector<Extremes> shared_;  // [scopes][chunks], empty if every row is its own scope
};

}  // namespace stoch::cpu
