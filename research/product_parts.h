// SPDX-License-Identifier: Apache-2.0
// The products of a decoder one by one: exact, of quantized operands, and as configured.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "loader/config/decoder_config.h"
#include "models/sc_model_config.h"
#include "research/operand_capture.h"
#include "research/reference.h"

namespace stoch {

// The specification whose products are those of the quantized operands of `spec`, multiplied exactly: gain 1, scopes,
// chunks, smoothing and protected channels the same. fp32 is itself.
LinearSpec QuantizedSpec(const LinearSpec& spec);
ScOperatorPtr QuantizedOperator(const ScOperator& op);

// Runs products of host matrices on a backend.
class ProductRunner {
 public:
  ProductRunner(Backend& backend, Device device) : backend_(backend), device_(device) {}

  // x @ source^T as the specification says.
  HostMatrix Linear(const WeightSource& source, const LinearSpec& spec, const HostMatrix& x) const;
  // a @ b^T: exact in kDotLanes order.
  HostMatrix Exact(const HostMatrix& a, const HostMatrix& b) const;
  // a @ b^T: `lengths` are those of the rows of a, empty without extras.
  HostMatrix Matmul(const HostMatrix& a, const HostMatrix& b, const ScOperatorPtr& op, const ScExtras* extras,
                    std::span<const int> lengths) const;

 private:
  Backend& backend_;
  Device device_;
};

// y exact, v as configured, z of quantized operands (no values: no split).
struct ProductParts {
  HostMatrix y, z, v;
};

// qk and av of one layer, head by head.
class AttentionParts {
 public:
  // `products` is read unless attention is exact.
  AttentionParts(const ProductRunner& runner, const DecoderConfig& config, const ScModelConfig& sc,
                 KvCacheSpec::Products products);

  // Row i of the parts; columns [first, first + count) are compared: the positions that it sees, or all channels.
  struct Visible {
    int64_t first = 0, count = 0;
  };
  using Receiver = std::function<void(ScOperatorId op, int64_t head, const ProductParts& parts,
                                      const std::function<Visible(int64_t row)>& visible)>;
  // qk of every head, then av of every head. y and z are of `exact`, v of `configured`; z only with `split`.
  void Run(const AttentionOperands& exact, const AttentionOperands& configured, bool split,
           const Receiver& receive) const;

 private:
  // Rows of one head on their way.
  struct Head {
    HostMatrix q, k, v;
    HostMatrix scores;
  };
  std::vector<Head> Cut(const AttentionOperands& operands) const;
  Visible Seen(const AttentionOperands& operands, int64_t row) const;
  // [heads][rows], empty where all rows run at one length.
  std::vector<std::vector<int>> Lengths(const ScExtrasPtr& extras, const std::vector<Head>& heads,
                                        const std::function<Visible(int64_t row)>& visible, bool of_scores) const;
  HostMatrix ScoresOf(const Head& head, std::span<const int> lengths) const;
  HostMatrix ValuesOf(const Head& head, std::span<const int> lengths) const;
  // How often `row` of a head sees position t.
  int Times(const AttentionOperands& operands, int64_t head, int64_t row, int64_t t) const;
  void Softmax(const AttentionOperands& operands, int64_t head, HostMatrix* scores) const;
  // Scores with what is dilated away left out: those that a row sees come first. Sets how many these are.
  ProductParts Compact(const AttentionOperands& operands, int64_t head, const ProductParts& parts,
                       std::vector<int64_t>* counts) const;

  const ProductRunner& runner_;
  const DecoderConfig& config_;
  AttentionMode mode_;
  std::vector<DilatedPair> dilated_;
  KvCacheSpec::Products products_;
};

}  // namespace stoch
