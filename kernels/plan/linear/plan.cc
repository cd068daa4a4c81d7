// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/linear/plan.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/plan/linear/float.h"
#include "kernels/plan/linear/mixed.h"
#include "kernels/plan/linear/sc.h"
#include "kernels/plan/plain_reason.h"

namespace stoch {
namespace {

// The kind of weights that a specification describes.
LinearKind KindOf(const LinearSpec& spec) {
  switch (spec.precision) {
    case Precision::kSc: return NeedsMixed(spec) ? LinearKind::kMixed : LinearKind::kSc;
    case Precision::kFp32: return spec.fixed_point ? LinearKind::kFixed : LinearKind::kExact;
    case Precision::kFp16: break;
  }
  return LinearKind::kHalf;
}

LinearShape FirstLaunch(const LinearShape& shape) {
  return {shape.tokens, shape.in_features,
          shape.out_features.first(std::min<size_t>(shape.out_features.size(), kMaxScTasks))};
}

const char* TileFormText(TileForm form) {
  switch (form) {
    case TileForm::kStreams: return " (streams)";
    case TileForm::kClosed: return " (closed form)";
    case TileForm::kInt8: break;
  }
  return " (closed form, int8)";
}

std::string WithTile(const LinearPlan& plan) {
  std::string text(LinearRouteName(plan.route));
  if (plan.tile_tokens > 0) text += " x" + std::to_string(plan.tile_tokens);
  if (plan.sums == BitProducts::kInt8) return text + " (int8)";
  const bool tiles = plan.route == LinearRoute::kScTiles || plan.route == LinearRoute::kScTilesSplit;
  return tiles ? text + TileFormText(plan.tile_form) : text;
}

// The route of a prompt, kMixedPrompt or kMixedGroups, by the groups that its lengths make.
LinearRoute PromptRoute(const GpuTraits& gpu, const LinearSpec& spec, const MixedTraits& weight, int64_t tokens) {
  std::vector<ScTraits> orders;
  for (const ScOperatorPtr& order : LengthOrders(OperatorsBySlot(spec.sc, spec.extras))) {
    orders.push_back(MakeScTraits(*order));
  }
  const bool by_chunk = spec.extras->lengths != nullptr && spec.extras->lengths->by_chunk();
  return PlanMixedPrompt(gpu, orders, by_chunk ? weight.dims.chunks : 1, tokens);
}

}  // namespace

LinearOperand MakeLinearOperand(const LinearSpec& spec, int64_t in_features) {
  constexpr int kFileBytes = 2;  // bytes of a number in most checkpoints
  LinearOperand weights;
  weights.kind = KindOf(spec);
  weights.value_bytes = kFileBytes;
  if (weights.kind == LinearKind::kSc) weights.sc = MakeScTraits(*spec.sc);
  if (weights.kind == LinearKind::kMixed) weights.mixed = MakeMixedTraits(spec, in_features);
  return weights;
}

LinearPlan PlanLinear(const GpuTraits& gpu, const LinearOperand& weights, const LinearShape& shape,
                      const LinearPass& pass) {
  STOCH_CHECK(shape.tokens >= 1 && !shape.out_features.empty() && shape.out_features.size() <= kMaxScTasks);
  switch (weights.kind) {
    case LinearKind::kSc: return PlanScLinear(gpu, weights.sc, shape, pass);
    case LinearKind::kMixed: return PlanMixedLinear(gpu, weights.mixed, shape, pass);
    case LinearKind::kExact: return PlanExactLinear(gpu, weights.value_bytes, shape);
    case LinearKind::kFixed: return PlanFixedLinear(gpu, shape, pass);
    case LinearKind::kHalf: break;
  }
  return PlanHalfLinear(shape);
}

std::string LinearRouteText(const GpuTraits& gpu, const LinearSpec& spec, const LinearShape& shape) {
  const LinearOperand weights = MakeLinearOperand(spec, shape.in_features);
  LinearPlan plan = PlanLinear(gpu, weights, FirstLaunch(shape));
  if (IsMixedPrompt(plan.route)) plan.route = PromptRoute(gpu, spec, weights.mixed, shape.tokens);
  const bool is_plain = plan.route == LinearRoute::kMixedGeneric || plan.route == LinearRoute::kScGeneric;
  if (is_plain) return WithTile(plan) + BecauseOf(PlainReason(spec));
  if (plan.route != LinearRoute::kMixedSorted) return WithTile(plan);
  const LinearPlan one = PlanScLinear(gpu, MakeScTraits(*spec.sc), FirstLaunch(shape));
  return std::string(LinearRouteName(plan.route)) + ", each " + WithTile(one);
}

int64_t LinearScratchBytes(const GpuTraits& gpu, const LinearSpec& spec, const LinearShape& shape) {
  switch (KindOf(spec)) {
    case LinearKind::kSc:
      return ScLinearScratchBytes(gpu, MakeScTraits(*spec.sc), shape.in_features, shape.out_features, shape.tokens);
    case LinearKind::kMixed: return MixedScratchBytes(gpu, spec, shape);
    case LinearKind::kFixed:  // 32-bit weights with this specification run as kExact
      return std::max(ExactLinearScratchBytes(shape.in_features, shape.tokens),
                      FixedLinearScratchBytes(shape.in_features, shape.tokens));
    case LinearKind::kExact: return ExactLinearScratchBytes(shape.in_features, shape.tokens);
    case LinearKind::kHalf: break;
  }
  return shape.tokens * shape.in_features * 2;
}

}  // namespace stoch
