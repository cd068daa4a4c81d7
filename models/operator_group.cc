// SPDX-License-Identifier: Apache-2.0
#include "models/operator_group.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "models/sc_plan.h"

namespace stoch {
namespace {

bool PlannedAlike(const ScOperatorPtr& a, const ScOperatorPtr& b) {
  if (a == nullptr || b == nullptr) return a == b;
  return a->config == b->config;
}

bool PlannedAlike(const ScLengthRule* a, const ScLengthRule* b) {
  if (a == nullptr || b == nullptr) return a == b;
  return a->scope == b->scope && a->normalise == b->normalise && a->thresholds.size() == b->thresholds.size() &&
         a->levels == b->levels && a->escapes == b->escapes && a->escape_len == b->escape_len &&
         a->fractions.size() == b->fractions.size() && a->chunk_bands.size() == b->chunk_bands.size() &&
         a->ladders == b->ladders;
}

bool PlannedAlike(const ScExtras* a, const ScExtras* b) {
  if (a == nullptr || b == nullptr) return a == b;
  return PlannedAlike(a->lengths.get(), b->lengths.get()) && PlannedAlike(a->protected_op, b->protected_op) &&
         a->protected_channels.size() == b->protected_channels.size() && a->smooth.size() == b->smooth.size();
}

std::string KernelOf(const OperatorGroup& group, const LinearSpec& spec, std::span<const int64_t> out_features,
                     int64_t tokens, const Backend& backend) {
  if (group.of_token.experts == 0) return backend.LinearKernel(spec, out_features, group.in_features, tokens);
  ExpertShape shape = group.of_token;
  shape.rows *= tokens;
  shape.in_features = group.in_features;
  shape.out_features = out_features.front();
  shape.matrices = static_cast<int64_t>(out_features.size());
  return backend.ExpertKernel(spec, shape);
}

}  // namespace

bool PlannedAlike(const LinearSpec& a, const LinearSpec& b) {
  return a.precision == b.precision && a.fixed_point == b.fixed_point && PlannedAlike(a.sc, b.sc) &&
         PlannedAlike(a.extras.get(), b.extras.get());
}

std::vector<std::vector<LinearSpec>> LayerSpecs(const DecoderConfig& config, Precision precision,
                                                const ScModelConfig& sc, std::span<const ScOperatorId> ids) {
  std::vector<std::vector<LinearSpec>> rows;
  if (precision != Precision::kSc) {
    for (const ScOperatorId id : ids) {
      if (rows.empty()) rows.emplace_back();
      rows.front().push_back(id == ScOperatorId::kLmHead ? HeadOf(precision) : LinearSpec{precision, nullptr});
    }
    return rows;
  }
  ScPlan plan(sc, config);
  const bool is_head = ids.front() == ScOperatorId::kLmHead;
  const bool are_alike = sc.layers.empty() && sc.files.mp == nullptr && sc.files.smooth == nullptr;
  const int64_t layers = is_head || are_alike ? 1 : config.num_hidden_layers;
  for (int64_t layer = 0; layer < layers; ++layer) {
    std::vector<LinearSpec> row;
    for (const ScOperatorId id : ids) row.push_back(plan.Linear(is_head ? -1 : static_cast<int>(layer), id));
    const bool is_known = std::any_of(rows.begin(), rows.end(), [&](const std::vector<LinearSpec>& other) {
      return std::equal(row.begin(), row.end(), other.begin(),
                        [](const LinearSpec& a, const LinearSpec& b) { return PlannedAlike(a, b); });
    });
    if (!is_known) rows.push_back(std::move(row));
  }
  return rows;
}

int64_t GroupScratchBytes(const OperatorGroup& group, const std::vector<std::vector<LinearSpec>>& layers,
                          int64_t tokens, const Backend& backend) {
  int64_t most = 0;
  std::vector<LinearSpec> seen;
  for (const std::vector<LinearSpec>& layer : layers) {
    for (const LinearSpec& spec : layer) {
      const auto alike = [&](const LinearSpec& other) { return PlannedAlike(spec, other); };
      if (std::any_of(seen.begin(), seen.end(), alike)) continue;
      seen.push_back(spec);
      most = std::max(most, backend.LinearScratchBytes(spec, group.out_features, group.in_features, tokens));
    }
  }
  return most;
}

std::string GroupKernels(const OperatorGroup& group, const std::vector<std::vector<LinearSpec>>& layers, int64_t tokens,
                         const Backend& backend) {
  std::vector<std::string> kernels;
  for (const std::vector<LinearSpec>& layer : layers) {
    for (size_t i = 0; i < layer.size(); ++i) {
      const auto alike = [&](const LinearSpec& other) { return PlannedAlike(layer[i], other); };
      if (std::any_of(layer.begin(), layer.begin() + static_cast<std::ptrdiff_t>(i), alike)) continue;
      std::vector<int64_t> out_features;
      for (size_t j = i; j < layer.size(); ++j) {
        if (alike(layer[j])) out_features.push_back(group.out_features[j]);
      }
      std::string kernel = KernelOf(group, layer[i], out_features, tokens, backend);
      if (std::find(kernels.begin(), kernels.end(), kernel) == kernels.end()) kernels.push_back(std::move(kernel));
    }
  }
  std::string all = kernels.front();
  for (size_t i = 1; i < kernels.size(); ++i) all += "; " + kernels[i];
  return all;
}

}  // namespace stoch
