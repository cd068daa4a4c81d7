// SPDX-License-Identifier: Apache-2.0
// A backend that says what a GPU nobody has to own would take, by the plans that the CUDA backend asks.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "kernels/plan/attention/plan.h"
#include "kernels/plan/attention/ring.h"
#include "kernels/plan/linear/experts.h"
#include "kernels/plan/linear/plan.h"
#include "kernels/wrappers/forwarding_backend.h"

namespace stoch::test {

// Requires: linears in SC or exact, attention per_token or exact. Buffers are what is asked for, to the byte.
class PlannedGpu final : public ForwardingBackend {
 public:
  PlannedGpu(std::shared_ptr<Backend> inner, const GpuTraits& gpu) : ForwardingBackend(std::move(inner)), gpu_(gpu) {}
  int64_t LinearScratchBytes(const LinearSpec& spec, std::span<const int64_t> out_features, int64_t in_features,
                             int64_t max_tokens) const override {
    if (spec.precision != Precision::kSc) return 0;
    return stoch::LinearScratchBytes(gpu_, spec, {max_tokens, in_features, out_features});
  }
  int64_t AttentionScratchBytes(const KvCacheSpec& spec, int num_heads, const PassLimits& limits) const override {
    if (spec.stripes > 1) return RingWorkspaceBytes(gpu_, spec, num_heads, limits);
    return stoch::AttentionScratchBytes(gpu_, MakeAttentionLayers(spec, num_heads), MakeAttentionLimits(spec, limits));
  }
  std::string LinearKernel(const LinearSpec& spec, std::span<const int64_t> out_features, int64_t in_features,
                           int64_t tokens) const override {
    return LinearRouteText(gpu_, spec, {tokens, in_features, out_features});
  }
  std::string ExpertKernel(const LinearSpec& spec, const ExpertShape& shape) const override {
    return ExpertRouteText(gpu_, spec, shape);
  }
  std::string AttentionKernel(const KvCacheSpec& spec, int num_heads, int64_t tokens, bool is_prompt,
                              std::span<const int64_t> windows) const override {
    return AttentionRoutes(gpu_, MakeAttentionLayers(spec, num_heads), tokens, is_prompt, windows);
  }
  int64_t RingScratchBytes(const KvCacheSpec& spec, int num_heads, const PassLimits& limits) const override {
    return RingLayout(spec, num_heads, limits).end;
  }
  int64_t KvCacheBytes(const KvCacheSpec& spec) const override {
    const int64_t vector = spec.mode == AttentionMode::kExact ? spec.head_dim * 4 : spec.head_dim + 4;
    return spec.num_layers * spec.num_pages * (spec.page_tokens / spec.stripes) * spec.num_kv_heads * 2 * vector;
  }

 private:
  GpuTraits gpu_;
};

}  // namespace stoch::test
