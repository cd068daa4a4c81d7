// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/mixed/experts.h"

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/call_check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/device/length_dispatch.h"
#include "kernels/cuda/mixed/linear.h"
#include "kernels/cuda/mixed/observe.h"
#include "kernels/cuda/plain/product.h"
#include "kernels/plan/sc_dims.h"

namespace stoch::cuda {
namespace {

// Slots sorted by (expert, token): entries [begins[e], begins[e + 1]) are the slots of expert e.
struct SlotOrder {
  std::vector<int64_t> begins;
  std::vector<int32_t> slots, rows;  // slots: slot of each entry; rows: the row of the input that the slot multiplies
};

SlotOrder OrderSlots(DeviceContext& ctx, const OpSite& site, const SortedExperts& experts) {
  std::vector<int32_t> chosen(static_cast<size_t>(experts.slots));
  STOCH_CUDA(cudaMemcpyAsync(chosen.data(), experts.chosen, chosen.size() * sizeof(int32_t), cudaMemcpyDeviceToHost,
                             ctx.stream));
  STOCH_CUDA(cudaStreamSynchronize(ctx.stream));
  std::vector<std::vector<int32_t>> by_expert(experts.weights.size());
  for (size_t s = 0; s < chosen.size(); ++s) {
    if (chosen[s] < 0 || static_cast<size_t>(chosen[s]) >= by_expert.size()) {
      Reject(site,
             "expert " + std::to_string(chosen[s]) + ", expected below " + std::to_string(experts.weights.size()));
    }
    by_expert[static_cast<size_t>(chosen[s])].push_back(static_cast<int32_t>(s));
  }
  SlotOrder order;
  for (const std::vector<int32_t>& own : by_expert) {
    order.begins.push_back(static_cast<int64_t>(order.slots.size()));
    for (const int32_t slot : own) {
      order.slots.push_back(slot);
      order.rows.push_back(static_cast<int32_t>(slot / experts.row_slots));
    }
  }
  order.begins.push_back(experts.slots);
  return order;
}

template <typename T>
T* Upload(DeviceContext& ctx, Scratch& scratch, const std::vector<T>& values) {
  auto* const to = scratch.Take<T>(static_cast<int64_t>(values.size()));
  // The source is pageable memory, so the copy has read it when the call returns.
  STOCH_CUDA(cudaMemcpyAsync(to, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, ctx.stream));
  return to;
}

// Runs one LaunchSortedExperts call: sorts the slots by expert, then for each expert gathers the rows of its slots and
// multiplies them.
class SortedCall {
 public:
  SortedCall(DeviceContext& ctx, const OpSite& site, const MixedRows& input, const SortedExperts& experts,
             const SiteReporter& reporter, const LinearOutput& out)
      : ctx_(ctx),
        site_(site),
        input_(input),
        experts_(experts),
        reporter_(reporter),
        out_(out),
        order_(OrderSlots(ctx, site, experts)),
        scratch_(ctx.workspace) {
    int64_t most_rows = 0;
    for (size_t e = 0; e < experts.weights.size(); ++e) most_rows = std::max(most_rows, rows_of(e));
    slots_ = Upload(ctx, scratch_, order_.slots);
    rows_ = Upload(ctx, scratch_, order_.rows);
    x_ = scratch_.Take<float>(most_rows * input.cols);
    whole_.view.dims = MakeScDims(input.cols, 0);
    std::vector<uint64_t> fault_rows;
    for (size_t i = 0; i < order_.slots.size() && !experts.fault_rows.empty(); ++i) {
      fault_rows.push_back(experts.fault_rows[static_cast<size_t>(order_.slots[i] / experts.top_k)]);
    }
    fault_rows_ = UploadFaultRows(ctx, scratch_, fault_rows);
  }

  void Run() {
    MeasureCall();
    if (Shows()) ShowCall();
    for (size_t e = 0; e < experts_.weights.size(); ++e) {
      if (rows_of(e) == 0) continue;
      Scratch scratch(ctx_.workspace);
      const RowSlots slots = SlotsOf(scratch, e);
      if (Shows()) ShowRows(e, slots);
      LaunchMixedProduct(ctx_, site_, Gather(e), weight(e), experts_.extras[e],
                         slots.slots == nullptr ? nullptr : &slots, reporter_,
                         {out_.data, out_.stride, 1, false, slots_ + order_.begins[e]});
    }
  }

 private:
  const MixedWeight& weight(size_t e) const { return *experts_.weights[e]; }
  int64_t rows_of(size_t e) const { return order_.begins[e + 1] - order_.begins[e]; }
  bool has_rule(size_t e) const { return !weight(e).rest.empty() && weight(e).rest.lengths->view().has_rule; }
  // Number of metrics of a row: one for each chunk if chunks have metrics of their own, else 1.
  static int64_t MetricsPerRow(const MixedPart& part) {
    return part.lengths->view().scope == ScLengthScope::kChunk ? part.view.dims.chunks : 1;
  }
  static int64_t SlotsPerRow(const MixedPart& part) {
    return part.lengths->view().bands != nullptr ? part.view.dims.chunks : MetricsPerRow(part);
  }

  // Gathers the input rows of expert e into x_.
  MixedRows Gather(size_t e) {
    const int64_t first = order_.begins[e];
    MixedRows rows = input_;
    rows.rows = rows_of(e);
    LaunchGatherRows(ctx_, rows, whole_, nullptr, rows_ + first, x_, input_.cols);
    MixedRows gathered{x_, input_.cols, rows.rows, input_.cols};
    if (fault_rows_ != nullptr) gathered.fault_rows = fault_rows_ + first;
    return gathered;
  }

  // Computes the metrics of all experts whose length rule depends on the whole call.
  void MeasureCall() {
    const auto reads = [&](size_t e) {
      return rows_of(e) > 0 && has_rule(e) && !weight(e).rest.lengths->view().alone();
    };
    for (size_t e = 0; e < experts_.weights.size(); ++e) {
      first_metrics_.push_back(num_metrics_);
      if (reads(e)) num_metrics_ += rows_of(e) * MetricsPerRow(weight(e).rest);
    }
    if (num_metrics_ == 0) return;
    metrics_ = scratch_.Take<float>(num_metrics_);
    for (size_t e = 0; e < experts_.weights.size(); ++e) {
      if (reads(e)) LaunchRowMetrics(ctx_, Gather(e), weight(e).rest, metrics_ + first_metrics_[e]);
    }
  }

  // Picks the stream lengths (slots, in the sense of LengthView) of the rows of expert e; empty without a length rule.
  RowSlots SlotsOf(Scratch& scratch, size_t e) {
    if (!has_rule(e)) return {};
    const MixedPart& part = weight(e).rest;
    const LengthView& view = part.lengths->view();
    const int64_t rows = rows_of(e);
    auto* const extremes = scratch.Take<float>(2);
    RowSlots slots;
    slots.per_row = SlotsPerRow(part);
    if (view.alone()) {
      auto* const to = scratch.Take<uint8_t>(rows * slots.per_row);
      auto* const metrics = scratch.Take<float>(rows * MetricsPerRow(part));
      LaunchRowMetrics(ctx_, Gather(e), part, metrics);
      LaunchDispatch(ctx_.stream, view, metrics, MetricsPerRow(part), slots.per_row, {0, rows, 1}, extremes, to);
      slots.slots = to;
      return slots;
    }
    // Applies the rule to all metrics of the call; this expert uses its own part of the slots. If each chunk has a
    // metric of its own, each (row, chunk) counts as a row.
    const int64_t per_metric = view.bands != nullptr ? part.view.dims.chunks : 1;
    auto* const to = scratch.Take<uint8_t>(num_metrics_ * per_metric);
    LaunchDispatch(ctx_.stream, view, metrics_, 1, per_metric, {0, num_metrics_, 1}, extremes, to);
    slots.slots = to + first_metrics_[e] * per_metric;
    return slots;
  }

  bool Shows() const {
    return ctx_.observer != nullptr && experts_.extras[0] != nullptr &&
           (experts_.extras[0]->lengths != nullptr || experts_.extras[0]->protected_op != nullptr);
  }

  // Tells the observer that a call of experts begins, in the form of kernels/cpu/mixed_linear.h.
  void ShowCall() {
    ScLengthRecord record;
    record.site = site_;
    record.op = experts_.extras[0]->op;
    record.rows = experts_.slots / experts_.top_k;
    record.lengths_per_row = 0;
    ctx_.observer->OnLengths(record);
  }

  void ShowRows(size_t e, const RowSlots& slots) {
    const bool has_rest = !weight(e).rest.empty();
    const MixedPart& part = has_rest ? weight(e).rest : weight(e).own;
    const int64_t rows = rows_of(e);
    const std::vector<int> lengths = ReadLengths(ctx_, part, slots, rows);
    ScLengthRecord record;
    record.site = site_;
    record.op = experts_.extras[e]->op;
    record.unit = static_cast<int64_t>(e);
    record.in_features = part.view.dims.dims;
    record.out_features = part.view.rows;
    record.chunk = part.view.dims.chunk_d;
    record.lengths_per_row = slots.per_row;
    const auto token = [&](int64_t i) {
      return order_.slots[static_cast<size_t>(order_.begins[e] + i)] / experts_.top_k;
    };
    for (int64_t first = 0; first < rows; first += record.rows) {
      record.first_position = token(first);
      record.rows = 1;
      while (first + record.rows < rows && token(first + record.rows) == record.first_position + record.rows) {
        ++record.rows;
      }
      record.lengths = std::span(lengths).subspan(static_cast<size_t>(first * slots.per_row),
                                                  static_cast<size_t>(record.rows * slots.per_row));
      ctx_.observer->OnLengths(record);
    }
  }

  DeviceContext& ctx_;
  const OpSite& site_;
  const MixedRows& input_;
  const SortedExperts& experts_;
  const SiteReporter& reporter_;
  const LinearOutput& out_;
  const SlotOrder order_;
  Scratch scratch_;
  const int32_t* slots_ = nullptr;  // order_.slots in device memory; rows_: order_.rows
  const int32_t* rows_ = nullptr;
  float* x_ = nullptr;  // gathered input rows of one expert, [rows][cols]
  MixedPart whole_;     // part with all channels in order, for gathering whole rows
  const uint64_t* fault_rows_ = nullptr;
  float* metrics_ = nullptr;  // metrics of the experts whose rule depends on the whole call
  int64_t num_metrics_ = 0;
  std::vector<int64_t> first_metrics_;  // [experts] index in metrics_ of each expert's first metric
};

}  // namespace

void LaunchSortedExperts(DeviceContext& ctx, const OpSite& site, const MixedRows& input, const SortedExperts& experts,
                         const SiteReporter& reporter, const LinearOutput& out) {
  ctx.RequireEager();
  SortedCall(ctx, site, input, experts, reporter, out).Run();
}

}  // namespace stoch::cuda
