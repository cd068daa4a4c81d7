// SPDX-License-Identifier: Apache-2.0
#include "research/reference.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>

#include "kernels/base/check.h"
#include "kernels/math/elementary.h"
#include "kernels/math/number_formats.h"
#include "kernels/math/quantize.h"
#include "kernels/math/reduce.h"
#include "kernels/sc/hardware/words.h"

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
  const float max_abs = std::max(std::abs(*low), std::abs(*high));
  if (op.config.arith == ScArith::kFp8E4m3) {
    scope.scale = E4m3Scale(max_abs);
    for (int64_t i = 0; i < n; ++i) scope.q.push_back(E4m3Level(E4m3Code(x[i] / scope.scale)));
    return scope;
  }
  scope.scale =
      op.config.arith == ScArith::kMxInt8 ? MxScale(max_abs) : BipolarScale(max_abs, op.q_max, op.scale_floor);
  for (int64_t i = 0; i < n; ++i) scope.q.push_back(BipolarLevel(x[i], scope.scale, op.q_max));
  return scope;
}

// Rows of codes with the faults of one side; row i is drawn as row first + i.
class CodeFaults {
 public:
  CodeFaults(const ScOperator& op, double rate, FaultKind kind, const ScSite& site, uint64_t first)
      : faults_(op, rate), seed_(op.config.fault_seed), kind_(kind), site_(site), first_(first) {}
  // Columns of the scope count from first_column.
  void Apply(int64_t row, int64_t first_column, Scope* scope) const {
    if (!faults_.any()) return;
    const uint64_t key = FaultKey(seed_, kind_, site_, first_ + static_cast<uint64_t>(row));
    scope->sum = 0;
    for (size_t i = 0; i < scope->q.size(); ++i) {
      scope->q[i] = faults_.Read(scope->q[i], key, static_cast<uint64_t>(first_column) + i);
      scope->sum += scope->q[i];
    }
  }

 private:
  ScWordFaults faults_;
  uint64_t seed_;
  FaultKind kind_;
  ScSite site_;
  uint64_t first_;
};

// Operators that read one input share its faults: those of q_proj, and of gate_proj.
ScSite ActivationSite(ScSite site) {
  if (site.op <= 2) site.op = 0;
  if (site.op == 5) site.op = 4;
  if (site.op == 0 || site.op == 4) site.unit = 0;
  return site;
}

void KeepCodes(const Scope& scope, int64_t row, int64_t cols, int64_t begin, std::vector<int32_t>* codes) {
  std::copy(scope.q.begin(), scope.q.end(), codes->begin() + row * cols + begin);
}

// Positions of a chunk of p v.
int64_t PerTokenChunk(const ScConfig& config, int64_t positions) {
  constexpr int64_t kIntChunk = 128;
  return config.arith != ScArith::kSc ? kIntChunk : positions;
}

// One sum of levels of numbers in E4M3.
int64_t SumOfLevels(const int* a, const int* b, int64_t dims) {
  int64_t sum = 0;
  for (int64_t d = 0; d < dims; ++d) sum += int64_t{a[d]} * b[d];
  return sum;
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

  // Of sums of up to most_dims dimensions, the same at every call.
  const ScAccumulator& Accumulator(int length, int64_t most_dims) {
    std::unique_ptr<ScAccumulator>& accumulator = accumulators_[length];
    if (accumulator == nullptr) accumulator = std::make_unique<ScAccumulator>(At(length), most_dims);
    return *accumulator;
  }

 private:
  ScConfig config_;
  std::map<int, ScOperatorPtr> operators_;
  std::map<int, std::unique_ptr<ScAccumulator>> accumulators_;
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
                                   std::span<const int> lengths, const ScSite& site, const ScSite* cached) {
  Operators operators(config);
  const ScOperator& own = operators.At(0);
  const CodeFaults activations(own, own.config.fault_activation, FaultKind::kActivation, ActivationSite(site),
                               site.first_row);
  const CodeFaults weights(own, own.config.fault_weight, FaultKind::kWeight, cached == nullptr ? site : *cached,
                           cached == nullptr ? static_cast<uint64_t>(site.first_output) : cached->first_row);
  const int64_t size = own.config.chunk_d > 0 ? std::min(own.config.chunk_d, a.cols) : a.cols;
  ReferenceProduct product;
  product.chunks = (a.cols + size - 1) / size;
  const bool is_e4m3 = own.config.arith == ScArith::kFp8E4m3;
  product.acc.assign(static_cast<size_t>(a.rows * product.chunks * b.rows), 0);
  if (is_e4m3) product.wide_acc.assign(product.acc.size(), 0);
  product.y = {a.rows, b.rows, std::vector<float>(static_cast<size_t>(a.rows * b.rows), 0.0f)};
  product.codes_a.resize(static_cast<size_t>(a.rows * a.cols));
  product.codes_b.resize(static_cast<size_t>(b.rows * b.cols));
  product.scale_a.resize(static_cast<size_t>(a.rows * product.chunks));
  product.scale_b.resize(static_cast<size_t>(b.rows * product.chunks));
  const int64_t per_row = lengths.empty() ? 0 : static_cast<int64_t>(lengths.size()) / a.rows;
  STOCH_CHECK(per_row <= 1 || per_row == product.chunks);
  for (int64_t c = 0; c < product.chunks; ++c) {
    const int64_t begin = c * size;
    const int64_t dims = std::min(size, a.cols - begin);
    std::vector<Scope> right;
    for (int64_t m = 0; m < b.rows; ++m) {
      right.push_back(Quantize(own, b.row(m) + begin, dims));
      weights.Apply(m, begin, &right.back());
      KeepCodes(right.back(), m, b.cols, begin, &product.codes_b);
      product.scale_b[static_cast<size_t>(m * product.chunks + c)] = right.back().scale;
    }
    for (int64_t n = 0; n < a.rows; ++n) {
      Scope left = Quantize(own, a.row(n) + begin, dims);
      activations.Apply(n, begin, &left);
      KeepCodes(left, n, a.cols, begin, &product.codes_a);
      product.scale_a[static_cast<size_t>(n * product.chunks + c)] = left.scale;
      const int length = per_row == 0 ? -1 : lengths[static_cast<size_t>(n * per_row + (per_row > 1 ? c : 0))];
      if (length == 0) continue;
      const ScOperator& op = operators.At(std::max(length, 0));
      const ScAccumulator& accumulator = operators.Accumulator(std::max(length, 0), size);
      const ScAccumulator::Row keys = accumulator.KeysOf(site, site.first_row + static_cast<uint64_t>(n));
      for (int64_t m = 0; m < b.rows; ++m) {
        const Scope& other = right[static_cast<size_t>(m)];
        const auto at = static_cast<size_t>((n * product.chunks + c) * b.rows + m);
        float& y = product.y.row(n)[m];
        if (is_e4m3) {
          product.wide_acc[at] = SumOfLevels(left.q.data(), other.q.data(), dims);
          y = y + E4m3Product(product.wide_acc[at], left.scale, other.scale);
          continue;
        }
        const ScLevelRange range{left.q.data(), other.q.data(), 0, 0, dims};
        const int32_t acc = AccumulateLevels(op, accumulator, range, keys, FaultColumn(c, site.first_output + m));
        product.acc[at] = acc;
        if (op.code == ScCode::kAsymmetric) {
          y = UnipolarProduct(acc, op.gain, static_cast<int>(dims), {left.scale, left.zero, left.sum},
                              {other.scale, other.zero, other.sum});
        } else {
          y = y + (op.config.arith == ScArith::kMxInt8 ? MxProduct(acc, left.scale, other.scale)
                                                       : BipolarProduct(acc, op.gain, left.scale, other.scale));
        }
      }
    }
  }
  return product;
}

void SoftmaxReference(float* s, int64_t n, const NonlinearTable* table) {
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t t = 0; t < n; ++t) largest = std::max(largest, s[t]);
  float lanes[kRowLanes] = {};
  for (int64_t t = 0; t < n; ++t) {
    s[t] = table == nullptr ? Exp(s[t] - largest) : table->ExpAt(s[t] - largest);
    lanes[t % kRowLanes] = lanes[t % kRowLanes] + s[t];
  }
  const float sum = FoldLanes<kRowLanes>(lanes);
  for (int64_t t = 0; t < n; ++t) s[t] = s[t] / sum;
}

HostMatrix MultiplyQuantized(const HostMatrix& a, const HostMatrix& b, const ScConfig& config) {
  if (IsNumberFormat(config.arith)) return MultiplyReference(a, b, config, {}).y;
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
  if (IsNumberFormat(config.arith)) return PerTokenReference(p, v, config, {}, start_position).y;
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
                                   std::span<const int> lengths, int64_t start_position, const ScSite& site,
                                   const ScSite& cached) {
  Operators operators(config);
  const ScOperator& own = operators.At(0);
  const CodeFaults activations(own, own.config.fault_activation, FaultKind::kActivation, site, site.first_row);
  const CodeFaults weights(own, own.config.fault_weight, FaultKind::kWeight, cached, cached.first_row);
  const int64_t size = PerTokenChunk(config, p.cols);
  ReferenceProduct product;
  product.chunks = (p.cols + size - 1) / size;
  product.acc.assign(static_cast<size_t>(p.rows * product.chunks * v.cols), 0);
  product.codes_a.resize(static_cast<size_t>(p.rows * p.cols));
  product.codes_b.resize(static_cast<size_t>(v.rows * v.cols));
  product.scale_a.resize(static_cast<size_t>(p.rows * product.chunks));
  product.y = {p.rows, v.cols, std::vector<float>(static_cast<size_t>(p.rows * v.cols), 0.0f)};
  std::vector<Scope> values;
  for (int64_t t = 0; t < v.rows; ++t) {
    values.push_back(Quantize(own, v.row(t), v.cols));
    weights.Apply(t, 0, &values.back());
    KeepCodes(values.back(), t, v.cols, 0, &product.codes_b);
  }
  for (int64_t n = 0; n < p.rows; ++n) {
    const int64_t visible = std::min(start_position + n + 1, p.cols);
    std::vector<float> weighted;
    for (int64_t t = 0; t < visible; ++t) weighted.push_back(p.row(n)[t] * values[static_cast<size_t>(t)].scale);
    const int length = lengths.empty() ? -1 : lengths[static_cast<size_t>(n)];
    if (length == 0) continue;
    const ScOperator& op = operators.At(std::max(length, 0));
    const ScAccumulator& accumulator = operators.Accumulator(std::max(length, 0), p.cols);
    const ScAccumulator::Row keys = accumulator.KeysOf(site, site.first_row + static_cast<uint64_t>(visible - 1));
    std::vector<int> left_levels(static_cast<size_t>(visible)), right_levels(static_cast<size_t>(visible));
    for (int64_t c = 0; c * size < visible; ++c) {
      const int64_t begin = c * size;
      const int64_t dims = std::min(size, visible - begin);
      Scope left = Quantize(own, weighted.data() + begin, dims);
      activations.Apply(visible - 1, begin, &left);
      std::copy(left.q.begin(), left.q.end(), left_levels.begin() + begin);
      KeepCodes(left, n, p.cols, begin, &product.codes_a);
      product.scale_a[static_cast<size_t>(n * product.chunks + c)] = left.scale;
      for (int64_t d = 0; d < v.cols; ++d) {
        for (int64_t t = begin; t < begin + dims; ++t) {
          right_levels[static_cast<size_t>(t)] = values[static_cast<size_t>(t)].q[static_cast<size_t>(d)];
        }
        float& y = product.y.row(n)[d];
        if (op.config.arith == ScArith::kFp8E4m3) {
          const int64_t sum = SumOfLevels(left_levels.data() + begin, right_levels.data() + begin, dims);
          y = y + E4m3Product(sum, left.scale, 1.0f);
          continue;
        }
        const ScLevelRange range{left_levels.data(), right_levels.data(), begin, begin, dims};
        const int32_t acc = AccumulateLevels(op, accumulator, range, keys, FaultColumn(c, d));
        product.acc[static_cast<size_t>((n * product.chunks + c) * v.cols + d)] = acc;
        y = y + (static_cast<float>(acc) * op.gain) * left.scale;
      }
    }
  }
  return product;
}

}  // namespace stoch
