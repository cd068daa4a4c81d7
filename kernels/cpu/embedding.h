// SPDX-License-Identifier: Apache-2.0
// Token embeddings, read from where they are stored.
#pragma once

#include "kernels/backend.h"
#include "kernels/cpu/context.h"

namespace stoch::cpu {

// Keeps no copy: rows are read from the mapped file, or made again where they are random.
class CpuEmbedding final : public EmbeddingTable {
 public:
  CpuEmbedding(Device device, WeightSource source) : device_(device), source_(std::move(source)) {}
  Device device() const override { return device_; }
  int64_t vocab_size() const override { return source_.rows; }
  int64_t hidden_size() const override { return source_.cols; }
  int64_t bytes() const override { return 0; }
  const WeightSource& source() const { return source_; }

 private:
  Device device_;
  WeightSource source_;
};

void Embed(Context& context, const EmbeddingTable& table, const Pass& pass, const TensorView& out);

}  // namespace stoch::cpu
