// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/workspace.h"

#include "models/decoder/rope_table.h"

namespace stoch {

DecoderWorkspace::DecoderWorkspace(Backend& backend, const DecoderConfig& config, const PassShape& shape,
                                   const DecoderShard& shard, bool divided, bool is_first, const Uses& uses) {
  const auto buffer = [&](int64_t size) {
    bytes += size;
    return backend.Allocate(shard.device, size);
  };
  const WorkspaceSizes sizes = MakeWorkspaceSizes(config, shape, shard, divided, is_first);
  for (int64_t lane = 0; lane < shape.lanes; ++lane) {
    hidden.push_back(buffer(sizes.hidden));
    if (!uses.head) continue;
    head_input.push_back(buffer(sizes.head_input));
    logits.push_back(buffer(sizes.logits));
    if (!is_first) continue;
    queries.push_back(backend.MakeLogitQueries(shard.device, LogitQueryLimitsOf(config, shape)));
    bytes += queries.back()->bytes();
  }
  if (sizes.branch > 0) {
    branch = buffer(sizes.branch);
    factors = buffer(sizes.factors);
    const int64_t rows = sizes.factors / 8;
    std::vector<float> values(static_cast<size_t>(rows), static_cast<float>(config.residual_multiplier));
    values.resize(static_cast<size_t>(2 * rows), static_cast<float>(config.embedding_multiplier - 1));
    backend.CopyFromHost(MakeView(factors.data(), DType::kF32, shard.device, 2 * rows), values.data());
  }
  if (!uses.layers) return;
  qkv = buffer(sizes.qkv);
  attention = buffer(sizes.attention);
  gate_up = buffer(sizes.gate_up);
  activation = buffer(sizes.activation);
  if (config.HasExperts()) {
    router = buffer(sizes.router);
    chosen = buffer(sizes.chosen);
    expert_weights = buffer(sizes.expert_weights);
    expert_out = buffer(sizes.expert_out);
  }
  rope = buffer(sizes.rope);
  const int64_t rows = RopeRows(shape, shard);
  const std::vector<float> tables = MakeRopeTables(config, rows, shard.stripe);
  backend.CopyFromHost(MakeView(rope.data(), DType::kF32, shard.device, NumRopeTables(config) * rows, config.head_dim),
                       tables.data());
}

}  // namespace stoch
