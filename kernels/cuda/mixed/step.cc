// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/mixed/step.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/cuda/mixed/shared_slots.h"
#include "kernels/cuda/sc/decode/decode.h"
#include "kernels/cuda/sc/hopper/batch_wgmma.h"
#include "kernels/cuda/sc/table/table.h"
#include "kernels/plan/linear/mixed.h"
#include "kernels/plan/linear/sc.h"

namespace stoch::cuda {
namespace {

// Consecutive rows of a call that one launch takes: pointers of inputs, outputs and slots are advanced to its first
// row.
struct Share {
  DeviceContext& ctx;
  RowSource from;
  std::array<MixedTask, kMaxScTasks> all_tasks;
  std::array<ScTaskLengths, kMaxScTasks> lengths;
  size_t count = 0;
  const SiteReporter& reporter;

  std::span<const MixedTask> tasks() const { return {all_tasks.data(), count}; }
};

Share ShareOf(DeviceContext& ctx, const RowSource& source, std::span<const MixedTask> tasks,
              const std::array<ScTaskLengths, kMaxScTasks>& all, int64_t first, const SiteReporter& reporter) {
  Share share{ctx, source, {}, all, tasks.size(), reporter};
  share.from.x += first * source.x_stride;
  if (share.from.x2 != nullptr) share.from.x2 += first * source.x2_stride;
  for (size_t i = 0; i < tasks.size(); ++i) {
    share.all_tasks[i] = tasks[i];
    share.all_tasks[i].out.data += first * tasks[i].out.stride;
    RowSlots& slots = share.lengths[i].slots;
    if (slots.slots != nullptr) slots.slots += first * slots.per_row;
  }
  return share;
}

// The tables of each slot for the look-up kernels. A slot of length 0 has gain 0 and borrows the tables of the longest
// length.
LookupLengths MakeLengths(DeviceContext& ctx, const MixedPart& part, const RowSlots& slots) {
  LookupLengths lengths;
  lengths.slots = slots;
  const ScTables& longest = ctx.tables.Get(*LongestOperator(part.operators));
  for (size_t i = 0; i < part.operators.size(); ++i) {
    const ScOperatorPtr& one = part.operators[i];
    const ScTables& tables = one == nullptr ? longest : ctx.tables.Get(*one);
    lengths.tables[i] = {tables.quarters,
                         tables.factors,
                         tables.residuals,
                         one == nullptr ? 0.0f : tables.gain,
                         static_cast<uint16_t>(tables.masks - 1),
                         one == nullptr};
  }
  return lengths;
}

// Launches `rows` rows of a share. Tasks that share slots share one launch, planned for the longest of their stream
// lengths.
void LaunchAtLongest(const Share& share, LinearRoute route, int64_t rows) {
  DeviceContext& ctx = share.ctx;
  Scratch scratch(ctx.workspace);
  const ScActivationView a = PrepareRows(ctx, scratch, share.from, rows, share.tasks(), share.lengths, share.reporter);
  ForSharedSlots(share.tasks(), [&](const SlotGroup& group) {
    const MixedPart& part = share.all_tasks[group.first].weight->rest;
    const RowSlots& slots = share.lengths[group.first].slots;
    const ScOperator& longest = *LongestOperator(part.operators);
    const LinearPlan plan =
        PlanScLinear(ctx.traits, ctx.tables.Traits(longest), {rows, part.view.dims.dims, group.out_features});
    const ScTables& tables = ctx.tables.Get(longest);
    const auto count = static_cast<int>(group.products.size());
    if (route == LinearRoute::kMixedBatch) {
      const RowStreams streams{part.lengths->view().streams, slots};
      return LaunchScBatchWgmma(ctx, plan, tables, a, share.reporter, group.products.data(), count, &streams);
    }
    const auto launch = route == LinearRoute::kMixedFew ? &LaunchScBatchFewMixed : &LaunchScBatchTableMixed;
    launch(ctx, plan, tables, MakeLengths(ctx, part, slots), a, share.reporter, group.products.data(), count);
  });
}

// Launches `rows` rows of a share with the decode kernel, all tasks together. The rows are quantized here unless the
// kernel does it.
void LaunchDecode(const Share& share, const LinearPlan& plan, int64_t rows) {
  DeviceContext& ctx = share.ctx;
  const std::span<const MixedTask> tasks = share.tasks();
  std::array<ScLinearTask, kMaxScTasks> products;
  for (size_t i = 0; i < tasks.size(); ++i) products[i] = {tasks[i].weight->rest.view, tasks[i].out};
  Scratch scratch(ctx.workspace);
  ScActivationView a;
  a.tokens = rows;
  if (plan.quantizer != ScQuantizer::kKernel) {
    a = PrepareRows(ctx, scratch, share.from, rows, tasks, share.lengths, share.reporter);
  }
  const bool alike =
      std::all_of(tasks.begin(), tasks.end(), [&](const MixedTask& task) { return SharesSlots(tasks[0], task); });
  LaunchScDecodeMixed(ctx, plan, a, share.from, share.reporter, products.data(), share.lengths.data(),
                      static_cast<int>(tasks.size()), alike);
}

}  // namespace

void LaunchMixedStep(DeviceContext& ctx, const OpSite& site, const RowSource& source, int64_t rows,
                     std::span<const MixedTask> tasks, const LinearPass& pass, const SiteReporter& reporter) {
  Scratch scratch(ctx.workspace);
  const std::array<ScTaskLengths, kMaxScTasks> lengths = TakeSlots(scratch, rows, tasks);
  std::vector<MixedTraits> weights;
  std::vector<int64_t> out_features;
  for (const MixedTask& task : tasks) {
    weights.push_back(task.traits);
    out_features.push_back(task.weight->rest.view.rows);
  }
  const LinearShape shape{rows, tasks[0].traits.dims.dims, out_features};
  for (int64_t first = 0; first < rows;) {
    const LinearPlan plan = PlanMixedStep(ctx.traits, weights, shape, first, pass);
    const int64_t some = std::min<int64_t>(rows - first, plan.tile_tokens);
    const Share share = ShareOf(ctx, source, tasks, lengths, first, reporter);
    if (plan.route == LinearRoute::kMixedDecode) {
      LaunchDecode(share, plan, some);
    } else {
      LaunchAtLongest(share, plan.route, some);
    }
    first += some;
  }
  ShowLengths(ctx, site, tasks, lengths, rows);
}

}  // namespace stoch::cuda
