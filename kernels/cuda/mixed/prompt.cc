// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/mixed/prompt.h"

#include <algorithm>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/cuda/mixed/observe.h"
#include "kernels/cuda/mixed/prepare.h"
#include "kernels/cuda/sc/tensor_core/prefill.h"
#include "kernels/plan/sc_linear_plan.h"
#include "kernels/sc/sc_nested.h"

namespace stoch::cuda {

ScOperatorPtr NestingOperator(const LinearSpec& spec) {
  if (spec.extras == nullptr || spec.extras->by_length.size() < 2) return nullptr;
  ScOperatorPtr longest;
  for (const ScOperatorPtr& one : spec.extras->by_length) {
    if (one != nullptr && (longest == nullptr || one->config.stoc_len > longest->config.stoc_len)) longest = one;
  }
  if (longest == nullptr || longest->code != ScCode::kSignMagnitude || !longest->has_streams) return nullptr;
  longest = MakeScOperator(longest->config);
  for (const ScOperatorPtr& one : spec.extras->by_length) {
    if (one != nullptr && !NestStreams(*MakeScOperator(one->config), *longest)) return nullptr;
  }
  return longest;
}

bool PromptsMixed(const GpuTraits& gpu, const LinearSpec& spec, int64_t in_features) {
  if (!HasPlainRows(gpu, spec, in_features)) return false;
  const ScOperatorPtr longest = NestingOperator(spec);
  return longest != nullptr && CanPrefillWgmma(gpu, MakeScTraits(*longest), true);
}

bool PromptsMixed(DeviceContext& ctx, const MixedTask& task) {
  const MixedPart& rest = task.weight->rest;
  return task.weight->own.empty() && !rest.empty() && rest.lengths->view().streams != nullptr &&
         HasPlainRows(ctx.traits, *task.spec, rest.view.dims.dims) &&
         CanPrefillWgmma(ctx.traits, ctx.tables.Traits(*rest.lengths->longest()), true);
}

void LaunchMixedPrompt(DeviceContext& ctx, const OpSite& site, const RowSource& source, int64_t rows,
                       std::span<const MixedTask> tasks, const SiteReporter& reporter) {
  STOCH_CHECK(!tasks.empty() && tasks.size() <= kMaxScTasks);
  Scratch scratch(ctx.workspace);
  const PreparedRows prepared = PrepareMixedRows(ctx, scratch, source, rows, tasks, reporter);
  for (size_t i = 0; i < tasks.size(); ++i) {
    const MixedPart& part = tasks[i].weight->rest;
    const ScOperator& longest = *part.lengths->longest();
    const int64_t out_features = part.view.rows;
    const ScPlan plan = PlanScPrefill(ctx.traits, ctx.tables.Traits(longest),
                                      {rows, part.view.dims.dims, {&out_features, 1}}, true, true);
    const RowStreams streams{part.lengths->view().streams, prepared.lengths[i].slots};
    const ScLinearTask product{part.view, tasks[i].out};
    ScPrefillOptions options;
    options.rows = &streams;
    LaunchScPrefill(ctx, plan, ctx.tables.Get(longest), prepared.a, &product, 1, options);
  }
  ShowLengths(ctx, site, tasks, prepared, rows);
}

int64_t MixedPromptScratchBytes(const GpuTraits& gpu, const LinearSpec& spec, std::span<const int64_t> out_features,
                                int64_t in_features, int64_t tokens) {
  if (!PromptsMixed(gpu, spec, in_features)) return 0;
  const ScTraits traits = MakeScTraits(*NestingOperator(spec));
  int64_t most = 0;
  for (const int64_t out : out_features) {
    // The quantized rows are counted in it.
    most = std::max(most, PlanScPrefill(gpu, traits, {tokens, in_features, {&out, 1}}, true, true).scratch_bytes());
  }
  return most + PreparedSlotBytes(spec, in_features, tokens);
}

}  // namespace stoch::cuda
