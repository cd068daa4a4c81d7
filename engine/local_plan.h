// SPDX-License-Identifier: Apache-2.0
// Memory plans of one process of a model that ranks divide; the whole plan if none do.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/placement.h"

namespace stoch {

// A plan without what other ranks hold, and with the rows that come from them.
inline MemoryPlan LocalPlan(MemoryPlan plan, int ranks, const IndexRange& local, const PassShape& shape,
                            const DecoderConfig& config) {
  if (ranks == 1) return plan;
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    if (layer < local.begin || layer >= local.end) plan.layers[i] = {};
  }
  if (local.begin > 0) {
    plan.rest.weights = plan.rest.scales = plan.rest.embedding = plan.rest.host = 0;
    plan.rest.workspace -= std::exchange(plan.head_workspace, 0);
  }
  plan.rest.workspace += shape.max_rows * config.hidden_size * int64_t{sizeof(float)};
  plan.total = plan.rest;
  for (const MemoryBytes& layer : plan.layers) plan.total += layer;
  return plan;
}

// Bytes that a placed model takes on each device of the backend, in their order.
// Requires: engine.placement.
inline std::vector<MemoryBytes> BytesOfPlacement(const ModelFiles& files, const EngineOptions& engine,
                                                 const Backend& backend) {
  const DecoderPlacement& placement = *engine.placement;
  const PassShape shape = ShapeOf(files.config, engine);
  const auto local = [&](MemoryPlan plan) {
    return LocalPlan(std::move(plan), placement.ranks, placement.local, shape, files.config);
  };
  if (placement.rows.empty() && placement.stripes.empty()) {
    const MemoryPlan plan = local(PlanMemory(files, engine.precision, engine.sc, shape, backend));
    return BytesOfDevices(placement, plan, backend.devices());
  }
  const int stripes = std::max(1, static_cast<int>(placement.stripes.size()));
  std::vector<MemoryBytes> bytes;
  for (MemoryPlan& plan : PlanShards(files, engine, backend, stripes)) bytes.push_back(local(std::move(plan)).total);
  return bytes;
}

}  // namespace stoch
