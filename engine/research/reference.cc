// SPDX-License-Identifier: Apache-2.0
#include "engine/research/reference.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "kernels/base/check.h"
#include "kernels/math/quantize.h"

namespace stoch {
namespace {

// One scope: codes as numbers (q, without the offsets of storage), and what brings them back.
struct Scope {
  std::vector<int> q;
  float scale = 0, zero = 0;
  int sum = 0;
};

Scope Quantize(const ScOperator& op, const float* x, int64_t n) {
  Scope scope;
  const auto [low, high] = std::minmax_element(x, x + n);
  if (op.code == ScCode::kAsymmetric) {
    scope.scale = UnipolarScale(*low, *high, op.q_max);
    scope.zero = UnipolarZero(*low, scope.scale, op.q_max);
    for (int64_t i = 0; i < n; ++i) {
      scope.q.push_back(UnipolarCode(x[i], scope.scale, scope.zero, op.q_max));
      scope.sum += scope.q.back();
    }
    return scope;
  }
  scope.scale = BipolarScale(std::max(std::abs(*low), std::abs(*high)), op.q_max, op.scale_floor);
  for (int64_t i = 0; i < n; ++i) scope.q.push_back(BipolarLevel(x[i], scope.scale, op.q_max));
  return scope;
}

// Positions of a chunk of p v.
int64_t PerTokenChunk(const ScConfig& config, int64_t positions) {
  constexpr int64_t kIntChunk = 128;
  return IntBits(config.arith) > 0 ? kIntChunk : positions;
}

// Operators by length; 0 is the configuration's own.
class Operators {
 public:
  explicit Operators(const ScConfig& config) : config_(config) {}
  const ScOperator& At(int length) {
    ScOperatorPtr& op = operators_[length];
    if (op == nullptr) {
      ScConfig one = config_;
      if (length > 0) one.stoc_len = length;
      op = MakeScOperator(one);
    }
    return *op;
  }

 private:
  ScConfig config_;
  std::map<int, ScOperatorPtr> operators_;
};

}  // namespace

HostMatrix SelectChannels(const HostMatrix& x, std::span<const int32_t> channels) {
  HostMatrix result{x.rows, static_cast<int64_t>(channels.size()), {}};
  for (int64_t row = 0; row < x.rows; ++row) {
    for (const int32_t channel : channels) result.values.push_back(x.row(row)[channel]);
  }
  return result;
}

HostMatrix Smoothed(const HostMatrix& x, std::span<const float> smooth, bool is_weight) {
  HostMatrix result = x;
  for (int64_t row = 0; row < x.rows; ++row) {
    for (int64_t d = 0; d < x.cols; ++d) {
      float& value = result.row(row)[d];
      const float s = smooth[static_cast<size_t>(d)];
      value = is_weight ? value * s : value / s;
    }
  }
  return result;
}

ReferenceProduct MultiplyReference(const HostMatrix& a, const HostMatrix& b, const ScConfig& config,
                                   std::span<const int> lengths) {
  Operators operators(config);
  const ScOperator& own = operators.At(0);
  const int64_t size = own.config.chunk_d > 0 ? std::min(own.config.chunk_d, a.cols) : a.cols;
  ReferenceProduct product;
  product.chunks = (a.cols + size - 1) / size;
  product.acc.assign(static_cast<size_t>(a.rows * product.chunks * b.rows), 0);
  product.y = {a.rows, b.rows, std::vector<float>(static_cast<size_t>(a.rows * b.rows), 0.0f)};
  const int64_t per_row = lengths.empty() ? 0 : static_cast<int64_t>(lengths.size()) / a.rows;
  STOCH_CHECK(per_row <= 1 || per_row == product.chunks);
  for (int64_t c = 0; c < product.chunks; ++c) {
    const int64_t begin = c * size;
    const int64_t dims = std::min(size, a.cols - begin);
    std::vector<Scope> right;
    for (int64_t m = 0; m < b.rows; ++m) right.push_back(Quantize(own, b.row(m) + begin, dims));
    for (int64_t n = 0; n < a.rows; ++n) {
      const int length = per_row == 0 ? -1 : lengths[static_cast<size_t>(n * per_row + (per_row > 1 ? c : 0))];
      if (length == 0) continue;
      const ScOperator& op = operators.At(std::max(length, 0));
      const Scope left = Quantize(own, a.row(n) + begin, dims);
      for (int64_t m = 0; m < b.rows; ++m) {
        const Scope& other = right[static_cast<size_t>(m)];
        int32_t acc = 0;
        for (int64_t d = 0; d < dims; ++d) {
          acc += SignedCount(op, d, left.q[static_cast<size_t>(d)], other.q[static_cast<size_t>(d)]);
        }
        product.acc[static_cast<size_t>((n * product.chunks + c) * b.rows + m)] = acc;
        float& y = product.y.row(n)[m];
        if (op.code == ScCode::kAsymmetric) {
          y = UnipolarProduct(acc, op.gain, static_cast<int>(dims), {left.scale, left.zero, left.sum},
                              {other.scale, other.zero, other.sum});
        } else {
          y = y + BipolarProduct(acc, op.gain, left.scale, other.scale);
        }
      }
    }
  }
  return product;
}

HostMatrix MultiplyQuantized(const HostMatrix& a, const HostMatrix& b, const ScConfig& config) {
  const ScOperatorPtr op = MakeScOperator(config);
  const int64_t size = op->config.chunk_d > 0 ? std::min(op->config.chunk_d, a.cols) : a.cols;
  HostMatrix y{a.rows, b.rows, std::vector<float>(static_cast<size_t>(a.rows * b.rows), 0.0f)};
  for (int64_t begin = 0; begin < a.cols; begin += size) {
    const int64_t dims = std::min(size, a.cols - begin);
    std::vector<Scope> right;
    for (int64_t m = 0; m < b.rows; ++m) right.push_back(Quantize(*op, b.row(m) + begin, dims));
    for (int64_t n = 0; n < a.rows; ++n) {
      const Scope left = Quantize(*op, a.row(n) + begin, dims);
      for (int64_t m = 0; m < b.rows; ++m) {
        const Scope& other = right[static_cast<size_t>(m)];
        int32_t acc = 0;
        for (size_t d = 0; d < left.q.size(); ++d) acc += left.q[d] * other.q[d];
        float& out = y.row(n)[m];
        if (op->code == ScCode::kAsymmetric) {
          out = UnipolarProduct(acc, 1.0f, static_cast<int>(dims), {left.scale, left.zero, left.sum},
                                {other.scale, other.zero, other.sum});
        } else {
          out = out + BipolarProduct(acc, 1.0f, left.scale, other.scale);
        }
      }
    }
  }
  return y;
}

HostMatrix PerTokenQuantized(const HostMatrix& p, const HostMatrix& v, const ScConfig& config, int64_t start_position) {
  const ScOperatorPtr op = MakeScOperator(config);
  const int64_t size = PerTokenChunk(config, p.cols);
  HostMatrix y{p.rows, v.cols, std::vector<float>(static_cast<size_t>(p.rows * v.cols), 0.0f)};
  std::vector<Scope> values;
  for (int64_t t = 0; t < v.rows; ++t) values.push_back(Quantize(*op, v.row(t), v.cols));
  for (int64_t n = 0; n < p.rows; ++n) {
    const int64_t visible = std::min(start_position + n + 1, p.cols);
    std::vector<float> weighted;
    for (int64_t t = 0; t < visible; ++t) weighted.push_back(p.row(n)[t] * values[static_cast<size_t>(t)].scale);
    for (int64_t begin = 0; begin < visible; begin += size) {
      const int64_t dims = std::min(size, visible - begin);
      const Scope left = Quantize(*op, weighted.data() + begin, dims);
      std::vector<int32_t> acc(static_cast<size_t>(v.cols), 0);
      for (int64_t t = 0; t < dims; ++t) {
        const int q = left.q[static_cast<size_t>(t)];
        const std::vector<int>& other = values[static_cast<size_t>(begin + t)].q;
        for (size_t d = 0; d < acc.size(); ++d) acc[d] += q * other[d];
      }
      float* out = y.row(n);
      for (size_t d = 0; d < acc.size(); ++d) out[d] = out[d] + static_cast<float>(acc[d]) * left.scale;
    }
  }
  return y;
}

ReferenceProduct PerTokenReference(const HostMatrix& p, const HostMatrix& v, const ScConfig& config,
                                   std::span<const int> lengths, int64_t start_position) {
  Operators operators(config);
  const ScOperator& own = operators.At(0);
  const int64_t size = PerTokenChunk(config, p.cols);
  ReferenceProduct product;
  product.chunks = (p.cols + size - 1) / size;
  product.acc.assign(static_cast<size_t>(p.rows * product.chunks * v.cols), 0);
  product.y = {p.rows, v.cols, std::vector<float>(static_cast<size_t>(p.rows * v.cols), 0.0f)};
  std::vector<Scope> values;
  for (int64_t t = 0; t < v.rows; ++t) values.push_back(Quantize(own, v.row(t), v.cols));
  for (int64_t n = 0; n < p.rows; ++n) {
    const int64_t visible = std::min(start_position + n + 1, p.cols);
    std::vector<float> weighted;
    for (int64_t t = 0; t < visible; ++t) weighted.push_back(p.row(n)[t] * values[static_cast<size_t>(t)].scale);
    const int length = lengths.empty() ? -1 : lengths[static_cast<size_t>(n)];
    if (length == 0) continue;
    const ScOperator& op = operators.At(std::max(length, 0));
    for (int64_t c = 0; c * size < visible; ++c) {
      const int64_t begin = c * size;
      const int64_t dims = std::min(size, visible - begin);
      const Scope left = Quantize(own, weighted.data() + begin, dims);
      for (int64_t d = 0; d < v.cols; ++d) {
        int32_t acc = 0;
        for (int64_t t = 0; t < dims; ++t) {
          acc += SignedCount(op, begin + t, left.q[static_cast<size_t>(t)],
                             values[static_cast<size_t>(begin + t)].q[static_cast<size_t>(d)]);
        }
        product.acc[static_cast<size_t>((n * product.chunks + c) * v.cols + d)] = acc;
        float& y = product.y.row(n)[d];
        y = y + (static_cast<float>(acc) * op.gain) * left.scale;
      }
    }
  }
  return product;
}

}  // namespace stoch
