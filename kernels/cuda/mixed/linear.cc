// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/mixed/linear.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/call_check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/length_dispatch.h"
#include "kernels/cuda/mixed/observe.h"
#include "kernels/cuda/prologue/activations.h"
#include "kernels/cuda/sc/linear.h"
#include "kernels/plan/linear/mixed.h"

namespace stoch::cuda {

std::vector<int> ReadLengths(DeviceContext& ctx, const MixedPart& part, const RowSlots& slots, int64_t rows) {
  std::vector<uint8_t> host(static_cast<size_t>(rows * slots.per_row), 0);
  if (slots.slots != nullptr) {
    STOCH_CUDA(cudaMemcpyAsync(host.data(), slots.slots, host.size(), cudaMemcpyDeviceToHost, ctx.stream));
    STOCH_CUDA(cudaStreamSynchronize(ctx.stream));
  }
  std::vector<int> lengths;
  lengths.reserve(host.size());
  for (const uint8_t slot : host) {
    const ScOperatorPtr& one = part.operators[slot];
    lengths.push_back(one == nullptr ? 0 : one->config.stoc_len);
  }
  return lengths;
}

void ShowLengths(DeviceContext& ctx, const OpSite& site, const MixedPart& part, const RowSlots& slots, int64_t rows,
                 const std::string& op) {
  const std::vector<int> lengths = ReadLengths(ctx, part, slots, rows);
  ScLengthRecord record;
  record.site = site;
  record.op = op;
  record.rows = rows;
  record.in_features = part.view.dims.dims;
  record.out_features = part.view.rows;
  record.chunk = part.view.dims.chunk_d;
  record.lengths_per_row = slots.per_row;
  record.lengths = lengths;
  ctx.observer->OnLengths(record);
}

namespace {

RowSlots Dispatch(DeviceContext& ctx, Scratch& scratch, const MixedRows& input, const MixedPart& part) {
  const LengthView& view = part.lengths->view();
  if (!view.has_rule) return {};
  const int64_t metrics_per_row = view.scope == ScLengthScope::kChunk ? part.view.dims.chunks : 1;
  RowSlots slots;
  slots.per_row = view.bands != nullptr ? part.view.dims.chunks : metrics_per_row;
  auto* const to = scratch.Take<uint8_t>(input.rows * slots.per_row);
  auto* const metrics = scratch.Take<float>(input.rows * metrics_per_row);
  auto* const extremes = scratch.Take<float>(2);
  LaunchRowMetrics(ctx, input, part, metrics);
  LaunchDispatch(ctx.stream, view, metrics, metrics_per_row, slots.per_row, {0, input.rows, 1}, extremes, to);
  slots.slots = to;
  return slots;
}

// Rows sorted stably by slot (index of a stream length), and how many rows each slot has.
struct SortedRows {
  // [rows]: row numbers in ascending order of slot.
  std::vector<int32_t> order;
  std::vector<int64_t> counts;  // [slots]: number of rows of each slot
};

SortedRows SortRows(DeviceContext& ctx, const RowSlots& slots, int64_t rows, size_t num_slots) {
  std::vector<uint8_t> host(static_cast<size_t>(rows));
  STOCH_CUDA(cudaMemcpyAsync(host.data(), slots.slots, host.size(), cudaMemcpyDeviceToHost, ctx.stream));
  STOCH_CUDA(cudaStreamSynchronize(ctx.stream));
  SortedRows sorted;
  sorted.counts.assign(num_slots, 0);
  for (const uint8_t slot : host) ++sorted.counts[slot];
  sorted.order.resize(host.size());
  std::iota(sorted.order.begin(), sorted.order.end(), 0);
  std::stable_sort(sorted.order.begin(), sorted.order.end(),
                   [&](int32_t i, int32_t j) { return host[static_cast<size_t>(i)] < host[static_cast<size_t>(j)]; });
  return sorted;
}

// SC product of rows under a row rule: sorts the rows by slot on the host, which waits for the device, and runs each
// slot's rows as an ordinary SC linear of that length. A null operator (length 0) gives zeros.
void RunSorted(DeviceContext& ctx, Scratch& scratch, const MixedRows& input, const MixedPart& part, const float* smooth,
               const RowSlots& slots, const SiteReporter& reporter, const LinearOutput& out) {
  const SortedRows sorted = SortRows(ctx, slots, input.rows, part.operators.size());
  const int64_t cols = part.view.dims.dims;
  const int64_t stride = (cols + 3) / 4 * 4;  // floats per row, so that rows begin at multiples of 16 bytes
  const int64_t out_features = part.view.rows;
  auto* const order = scratch.Take<int32_t>(input.rows);
  auto* const x = scratch.Take<float>(input.rows * stride);
  auto* const y = scratch.Take<float>(input.rows * out_features);
  // The source is pageable memory, so the copy has read it when the call returns.
  STOCH_CUDA(cudaMemcpyAsync(order, sorted.order.data(), sorted.order.size() * sizeof(int32_t), cudaMemcpyHostToDevice,
                             ctx.stream));
  LaunchGatherRows(ctx, input, part, smooth, order, x, stride);
  int64_t first = 0;
  for (size_t slot = 0; slot < sorted.counts.size(); ++slot) {
    const int64_t rows = sorted.counts[slot];
    if (rows == 0) continue;
    float* const to = y + first * out_features;
    const RowSource source{Prologue::kNone, x + first * stride, stride, nullptr, 0, nullptr, 0};
    if (part.operators[slot] == nullptr) {
      STOCH_CUDA(cudaMemsetAsync(to, 0, static_cast<size_t>(rows * out_features) * sizeof(float), ctx.stream));
    } else {
      const ScLinearTask task{part.view, {to, out_features, false}};
      LaunchScLinear(ctx, *part.operators[slot], source, rows, cols, reporter, &task, 1);
    }
    first += rows;
  }
  LaunchScatterRows(ctx, y, order, input.rows, out_features, out);
}

// Applies the faults of non-ideal hardware to a part's quantized activations, in place. chosen: [slots], expert of each
// slot; null: no experts.
void ReadFaulty(DeviceContext& ctx, const MixedRows& input, const MixedPart& part, const ScSite& site,
                const MixedScratch& codes, const int32_t* chosen = nullptr) {
  StoredCodes stored;
  stored.codes = codes.codes;
  stored.dims = part.view.dims;
  stored.rows = input.rows;
  stored.sums = part.op().code == ScCode::kAsymmetric ? codes.sums : nullptr;
  stored.channels = part.channels();
  CodeFaults faults;
  faults.words = part.hardware->view().activation;
  faults.seed = part.hardware->view().seed;
  faults.kind = FaultKind::kActivation;
  faults.site.number = SiteOfActivations(site).number();
  faults.site.fault_rows = input.fault_rows;
  faults.site.first_row = site.first_row;
  faults.site.row_slots = input.row_slots;
  faults.chosen = chosen;
  LaunchReadCodes(ctx, stored, faults);
}

// Product of one part of a weight (some of its input channels). addend: [rows][out_features], added to the product;
// null: none.
void RunPart(DeviceContext& ctx, const MixedRows& input, const MixedPart& part, const float* smooth, LinearRoute route,
             const ScSite& site, const RowSlots& slots, const SiteReporter& reporter, const PlainOutput& out,
             const float* addend) {
  Scratch scratch(ctx.workspace);
  // Taken on every route, so that a graph recorded later finds the memory reserved.
  const MixedScratch taken = TakeMixedScratch(scratch, part, input.rows);
  if (route == LinearRoute::kMixedSorted) {
    return RunSorted(ctx, scratch, input, part, smooth, slots, reporter, {out.data, out.row_stride, out.add});
  }
  const ScActivationView a = LaunchQuantizePart(ctx, input, part, smooth, taken, reporter);
  PlainProduct product;
  product.lengths = part.lengths->view();
  product.a = a;
  product.w = part.view;
  product.slots = slots;
  product.out = out;
  product.addend = addend;
  if (part.hardware != nullptr) {
    ReadFaulty(ctx, input, part, site, taken);
    product.hardware = part.hardware->view();
    product.site = {site.number(),    part.first_chunk, part.first_output,
                    input.fault_rows, site.first_row,   input.row_slots};
  }
  LaunchPlainProduct(ctx, product);
}

// Multiplies all parts of a weight: `rest` by `route`, and the protected channels, if any, by the generic kernel.
// forced: the slots of the rows for `rest`; null: picked by the weight's length rule, if it has one.
void Run(DeviceContext& ctx, const OpSite& site, const MixedRows& input, const MixedWeight& weight,
         const ScExtras* extras, LinearRoute route, const RowSlots* forced, const SiteReporter& reporter,
         const PlainOutput& out, bool may_show = true) {
  const ScLengthRule* rule = extras == nullptr ? nullptr : extras->lengths.get();
  const bool shows = may_show && ctx.observer != nullptr && extras != nullptr;
  const ScSite site_of_faults = extras == nullptr ? ScSite{} : extras->site;
  Scratch scratch(ctx.workspace);
  const bool both = !weight.rest.empty() && !weight.own.empty();
  // The outputs are increased by one sum, so the product of `rest` is kept until that of the protected channels is there.
  float* const rest_out = both && out.add ? scratch.Take<float>(input.rows * weight.rows()) : nullptr;
  if (!weight.rest.empty()) {
    const RowSlots slots = forced != nullptr ? *forced : Dispatch(ctx, scratch, input, weight.rest);
    if (shows && (rule != nullptr || forced != nullptr)) {
      ShowLengths(ctx, site, weight.rest, slots, input.rows, extras->op);
    }
    const PlainOutput to = rest_out != nullptr ? PlainOutput{rest_out, weight.rows()} : out;
    RunPart(ctx, input, weight.rest, weight.factors(), route, site_of_faults, slots, reporter, to, nullptr);
  }
  if (weight.own.empty()) return;
  if (shows) ShowLengths(ctx, site, weight.own, {}, input.rows, extras->op);
  PlainOutput own_out = out;
  own_out.add = out.add || both;
  RunPart(ctx, input, weight.own, weight.factors(), LinearRoute::kMixedGeneric, site_of_faults, {}, reporter, own_out,
          rest_out);
}

}  // namespace

void LaunchMixedRows(DeviceContext& ctx, const OpSite& site, const MixedRows& input, const MixedTask& task,
                     LinearRoute route, const SiteReporter& reporter) {
  Run(ctx, site, input, *task.weight, task.spec->extras.get(), route, nullptr, reporter,
      {task.out.data, task.out.stride, 1, task.out.add});
}

void LaunchMixedProduct(DeviceContext& ctx, const OpSite& site, const MixedRows& input, const MixedWeight& weight,
                        const ScExtras* extras, const RowSlots* slots, const SiteReporter& reporter,
                        const PlainOutput& out) {
  Run(ctx, site, input, weight, extras, LinearRoute::kMixedGeneric, slots, reporter, out, false);
}

void LaunchMixedExperts(DeviceContext& ctx, const MixedRows& input, const MixedExperts& experts,
                        const SiteReporter& reporter, const LinearOutput& out) {
  const MixedPart& part = experts.first->rest;
  Scratch scratch(ctx.workspace);
  const RowSlots slots = Dispatch(ctx, scratch, input, part);
  const MixedScratch taken = TakeMixedScratch(scratch, part, input.rows);
  PlainProduct product;
  product.lengths = part.lengths->view();
  product.a = LaunchQuantizePart(ctx, input, part, nullptr, taken, reporter);
  product.w = part.view;
  product.slots = slots;
  product.out = {out.data, out.stride, 1, out.add};
  product.experts = experts.views;
  product.chosen = experts.chosen;
  product.row_slots = experts.row_slots;
  if (part.hardware != nullptr) {
    const ScSite site = experts.extras == nullptr ? ScSite{} : experts.extras->site;
    // If the activations do not depend on the expert, the faults are drawn once for all experts of a row.
    const bool are_shared = SiteOfActivations({.op = site.op, .unit = 1}).unit == 0;
    ReadFaulty(ctx, input, part, site, taken, are_shared ? nullptr : experts.chosen);
    product.hardware = part.hardware->view();
    product.site = {site.number(),    part.first_chunk, part.first_output,
                    input.fault_rows, site.first_row,   input.row_slots};
  }
  LaunchPlainProduct(ctx, product);
}

void LaunchScMixedMatmul(DeviceContext& ctx, const TensorView& a, const TensorView& b, const ScOperatorPtr& op,
                         const ScExtras& extras, std::span<const int> lengths, const TensorView& out) {
  CheckScMixedMatmul(a, b, *op, extras, lengths, out);
  const OpSite site{-1, "sc_mixed_matmul"};
  const int64_t cols = a.dim(1);
  const SiteReporter reporter = ctx.Reporter(site);
  const LinearSpec spec{Precision::kSc, op, std::make_shared<ScExtras>(extras)};
  const std::unique_ptr<MixedWeight> weight =
      MakeMixedMatrix(ctx, b.ptr<const float>(), b.step(0), b.dim(0), cols, spec, reporter);
  const MixedRows input{a.ptr<const float>(), a.step(0), a.dim(0), cols};
  const PlainOutput to{out.ptr<float>(), out.step(0)};
  if (lengths.empty() || weight->rest.empty()) {
    MixedTraits traits;
    SetRuleTraits(spec, &traits);
    const LinearRoute route = PlanMixedRows(traits, a.dim(0), {.recorded = ctx.IsRecording()});
    Run(ctx, site, input, *weight, &extras, route, nullptr, reporter, to);
  } else {
    const auto count = static_cast<int64_t>(lengths.size());
    std::vector<uint8_t> slots;
    slots.reserve(lengths.size());
    for (const int length : lengths) slots.push_back(static_cast<uint8_t>(extras.Slot(length)));
    Scratch scratch(ctx.workspace);
    auto* const device = scratch.Take<uint8_t>(count);
    STOCH_CUDA(cudaMemcpyAsync(device, slots.data(), slots.size(), cudaMemcpyHostToDevice, ctx.stream));
    const RowSlots forced{device, count / a.dim(0)};
    Run(ctx, site, input, *weight, &extras, LinearRoute::kMixedGeneric, &forced, reporter, to);
  }
  STOCH_CUDA(cudaStreamSynchronize(ctx.stream));  // the kernels must end before `weight` is freed
}

}  // namespace stoch::cuda
