// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/definition.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <unordered_map>

#include "kernels/math/elementary.h"
#include "kernels/math/reduce.h"

namespace stoch::test {
namespace {

// Quantized elements of one operand: level (signed where the code is), scale and zero point of each.
struct Quantized {
  std::vector<int> levels;
  std::vector<float> scales;
  std::vector<float> zeros;
};

// The scale group of element (row, col), as a key.
int64_t ScopeOf(const ScConfig& config, int64_t group, int64_t row, int64_t col) {
  if (config.granularity != ScGranularity::kPerRow) return 0;
  const int64_t chunk = config.chunk_d > 0 ? col / config.chunk_d : 0;
  return row / group * 1'000'000 + chunk;
}

Quantized Quantize(const Matrix& m, const ScOperator& op, int64_t group) {
  struct Scope {
    float largest = 0, low = INFINITY, high = -INFINITY;
  };
  std::unordered_map<int64_t, Scope> scopes;
  for (int64_t row = 0; row < m.rows; ++row) {
    for (int64_t col = 0; col < m.cols; ++col) {
      Scope& scope = scopes[ScopeOf(op.config, group, row, col)];
      scope.largest = std::max(scope.largest, std::fabs(m.at(row, col)));
      scope.low = std::min(scope.low, m.at(row, col));
      scope.high = std::max(scope.high, m.at(row, col));
    }
  }
  Quantized result;
  const size_t size = m.values.size();
  result.levels.resize(size);
  result.scales.resize(size);
  result.zeros.resize(size);
  const float q = static_cast<float>(op.q_max);
  for (size_t i = 0; i < size; ++i) {
    const int64_t at = static_cast<int64_t>(i);
    const Scope& scope = scopes.at(ScopeOf(op.config, group, at / m.cols, at % m.cols));
    const float x = m.values[i];
    if (op.config.mode == ScMode::kUnipolar) {
      const float scale = std::max(scope.high - scope.low, 1e-5f) / q;
      const float zero = std::clamp(std::nearbyintf(-scope.low / scale), 0.0f, q);
      result.scales[i] = scale;
      result.zeros[i] = zero;
      result.levels[i] = static_cast<int>(std::clamp(std::nearbyintf(x / scale + zero), 0.0f, q));
    } else {
      const float scale = std::max(scope.largest, 1e-5f) / q;
      result.scales[i] = scale;
      result.levels[i] = static_cast<int>(std::clamp(std::nearbyintf(x / scale), -q, q));
    }
  }
  return result;
}

int Count(const ScOperator& op, int64_t mask, int a, int b) {
  const int m = static_cast<int>(mask % op.masks);
  switch (op.code) {
    case ScCode::kAsymmetric: return op.count(m, a, b);
    case ScCode::kOffset: return op.count(m, a + op.q_max, b + op.q_max);
    case ScCode::kSignMagnitude: break;
  }
  const int count = op.count(m, std::abs(a), std::abs(b));
  return (a < 0) != (b < 0) ? -count : count;
}

// Rows of integers below 2^bits, and the exponent of the power of two that each was multiplied by: 127 at most.
struct FixedMatrix {
  std::vector<int64_t> values;
  std::vector<int> exponents;
};

FixedMatrix ToFixed(const Matrix& m, int bits) {
  FixedMatrix result;
  for (int64_t row = 0; row < m.rows; ++row) {
    double largest = 0;
    for (int64_t col = 0; col < m.cols; ++col) largest = std::max(largest, std::fabs(double{m.at(row, col)}));
    int e = 0;  // largest < 2^e, the least such
    std::frexp(largest, &e);
    result.exponents.push_back(std::min(bits - e, 127));
    for (int64_t col = 0; col < m.cols; ++col) {
      const double scaled = std::ldexp(double{m.at(row, col)}, result.exponents.back());
      result.values.push_back(static_cast<int64_t>(std::nearbyint(scaled)));
    }
  }
  return result;
}

}  // namespace

Matrix RandomMatrix(uint64_t seed, int64_t rows, int64_t cols) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Matrix m(rows, cols);
  for (int64_t row = 0; row < rows; ++row) {
    const float size = std::exp2f(normal(random));
    for (int64_t col = 0; col < cols; ++col) {
      const uint64_t kind = random() % 40;
      m.at(row, col) = kind == 0 ? 0.0f : normal(random) * (kind == 1 ? 5.0f * size : size);
    }
  }
  return m;
}

Matrix Transposed(const Matrix& m) {
  Matrix result(m.cols, m.rows);
  for (int64_t row = 0; row < m.rows; ++row) {
    for (int64_t col = 0; col < m.cols; ++col) result.at(col, row) = m.at(row, col);
  }
  return result;
}

Matrix DefineScProduct(const Matrix& a, const Matrix& b, const ScOperator& op) {
  const Quantized qa = Quantize(a, op, op.config.group_a);
  const Quantized qb = Quantize(b, op, op.config.group_b);
  const int64_t dims = a.cols;
  const int64_t chunk = op.config.chunk_d > 0 ? std::min(op.config.chunk_d, dims) : dims;
  const float gain = static_cast<float>(op.q_max * op.q_max) / static_cast<float>(op.config.stoc_len);
  Matrix y(a.rows, b.rows);
  for (int64_t n = 0; n < a.rows; ++n) {
    for (int64_t m = 0; m < b.rows; ++m) {
      float sum = 0;
      for (int64_t begin = 0; begin < dims; begin += chunk) {
        const size_t ia = static_cast<size_t>(n * dims + begin);
        const size_t ib = static_cast<size_t>(m * dims + begin);
        int acc = 0, levels_a = 0, levels_b = 0;
        for (int64_t d = 0; d < std::min(chunk, dims - begin); ++d) {
          const size_t offset = static_cast<size_t>(d);
          acc += Count(op, d, qa.levels[ia + offset], qb.levels[ib + offset]);
          levels_a += qa.levels[ia + offset];
          levels_b += qb.levels[ib + offset];
        }
        float value = static_cast<float>(acc) * gain;
        if (op.config.mode == ScMode::kUnipolar) {
          const float za = qa.zeros[ia];
          const float zb = qb.zeros[ib];
          const float first = -zb * static_cast<float>(levels_a) - za * static_cast<float>(levels_b);
          value = value + (first + static_cast<float>(dims) * za * zb);
        }
        sum = sum + value * (qa.scales[ia] * qb.scales[ib]);
      }
      y.at(n, m) = sum;
    }
  }
  return y;
}

Matrix DefineExactProduct(const Matrix& a, const Matrix& b) {
  Matrix y(a.rows, b.rows);
  for (int64_t n = 0; n < a.rows; ++n) {
    for (int64_t m = 0; m < b.rows; ++m) {
      float lanes[kDotLanes] = {};
      for (int64_t d = 0; d < a.cols; ++d) {
        lanes[d % kDotLanes] = std::fmaf(a.at(n, d), b.at(m, d), lanes[d % kDotLanes]);
      }
      for (int s = kDotLanes / 2; s > 0; s /= 2) {
        for (int j = 0; j < s; ++j) lanes[j] = lanes[j] + lanes[j + s];
      }
      y.at(n, m) = lanes[0] + 0.0f;  // never -0
    }
  }
  return y;
}

Matrix DefineFixedProduct(const Matrix& a, const Matrix& b) {
  const FixedMatrix fixed_a = ToFixed(a, 22);
  const FixedMatrix fixed_b = ToFixed(b, 15);
  Matrix y(a.rows, b.rows);
  for (int64_t n = 0; n < a.rows; ++n) {
    for (int64_t m = 0; m < b.rows; ++m) {
      int64_t sum = 0;
      const int64_t* values_a = fixed_a.values.data() + n * a.cols;
      const int64_t* values_b = fixed_b.values.data() + m * a.cols;
      for (int64_t d = 0; d < a.cols; ++d) sum += values_a[d] * values_b[d];
      const int exponent = fixed_a.exponents[static_cast<size_t>(n)] + fixed_b.exponents[static_cast<size_t>(m)];
      y.at(n, m) = static_cast<float>(std::ldexp(static_cast<double>(sum), -exponent));
    }
  }
  return y;
}

void DefineSoftmax(float* scores, int64_t visible, int64_t n) {
  const float max = *std::max_element(scores, scores + visible);
  float lanes[kRowLanes] = {};
  for (int64_t i = 0; i < visible; ++i) {
    scores[i] = Exp(scores[i] - max);
    lanes[i % kRowLanes] = lanes[i % kRowLanes] + scores[i];
  }
  const float sum = FoldLanes<kRowLanes>(lanes);
  for (int64_t i = 0; i < n; ++i) scores[i] = i < visible ? scores[i] / sum : 0.0f;
}

}  // namespace stoch::test
