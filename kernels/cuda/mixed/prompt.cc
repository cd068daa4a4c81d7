// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/mixed/prompt.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/mixed/observe.h"
#include "kernels/cuda/mixed/prepare.h"
#include "kernels/cuda/mixed/shared_slots.h"
#include "kernels/cuda/sc/tensor_core/chunk_words.h"
#include "kernels/cuda/sc/tensor_core/row_groups.h"
#include "kernels/plan/linear/sc.h"
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

namespace {

// Rows from which those of one group of lengths make a product of their own; fewer are one, at the longest length.
constexpr int64_t kGroupedRows = 384;

// Products of weights whose rows have the same slots.
void LaunchProducts(DeviceContext& ctx, const LengthTables& tables, const RowSlots& slots, const ScActivationView& a,
                    const SlotGroup& group) {
  const CallLengths lengths{tables.groups(), tables.group_of(), slots};
  const auto count = static_cast<int>(group.products.size());
  const bool differ = lengths.groups.size() > 1;
  if (differ && slots.per_row > 1 && CanChunkWords(ctx, lengths, a.tokens)) {
    return LaunchScChunkWords(ctx, lengths, a, group.products.data(), count);
  }
  const bool fit = std::all_of(lengths.groups.begin(), lengths.groups.end(), [&](const LengthGroup& one) {
    return CanPrefillWgmma(ctx.traits, ctx.tables.Traits(*one.order), true);
  });
  if (differ && slots.per_row == 1 && a.tokens >= kGroupedRows && fit) {
    return LaunchScRowGroups(ctx, lengths, a, group.products.data(), count);
  }
  const LengthGroup all{tables.longest(), tables.view().streams, {}};
  LaunchScRowGroups(ctx, {{&all, 1}, nullptr, slots}, a, group.products.data(), count);
}

}  // namespace

void LaunchMixedPrompt(DeviceContext& ctx, const OpSite& site, const RowSource& source, int64_t rows,
                       std::span<const MixedTask> tasks, const SiteReporter& reporter) {
  STOCH_CHECK(!tasks.empty() && tasks.size() <= kMaxScTasks);
  Scratch scratch(ctx.workspace);
  const PreparedRows prepared = PrepareMixedRows(ctx, scratch, source, rows, tasks, reporter);
  ForSharedSlots(tasks, [&](const SlotGroup& group) {
    LaunchProducts(ctx, *tasks[group.first].weight->rest.lengths, prepared.lengths[group.first].slots, prepared.a,
                   group);
  });
  ShowLengths(ctx, site, tasks, prepared, rows);
}

int64_t MixedPromptScratchBytes(const GpuTraits& gpu, const LinearSpec& spec, std::span<const int64_t> out_features,
                                int64_t in_features, int64_t tokens) {
  if (!PromptsMixed(gpu, spec, in_features)) return 0;
  const ScTraits traits = MakeScTraits(*NestingOperator(spec));
  int64_t most = 0;
  for (size_t first = 0; first < out_features.size(); first += kMaxScTasks) {
    const auto some = out_features.subspan(first, std::min<size_t>(kMaxScTasks, out_features.size() - first));
    const ScShape shape{tokens, in_features, some};
    most = std::max(most,
                    PlanScPrefill(gpu, traits, shape, true, true).quantize_bytes +
                        std::max(RowGroupScratchBytes(gpu, traits, shape), ChunkWordsScratchBytes(gpu, traits, shape)));
  }
  return most + PreparedSlotBytes(spec, in_features, tokens);
}

}  // namespace stoch::cuda
