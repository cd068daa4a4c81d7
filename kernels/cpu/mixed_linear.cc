// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/mixed_linear.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <string>
#include <utility>

#include "kernels/call_check.h"
#include "kernels/spec_check.h"

namespace stoch::cpu {
namespace {

// values[channels] of a row, divided by (activations) or multiplied with (weights) the smoothing.
class RowGather {
 public:
  RowGather(const MixedPart& part, const ScExtras& extras, bool is_weight)
      : channels_(part.channels), smooth_(extras.smooth), is_weight_(is_weight) {}
  void operator()(const float* x, float* out) const {
    for (size_t i = 0; i < channels_.size(); ++i) {
      const auto channel = static_cast<size_t>(channels_[i]);
      out[i] = x[channel];
      if (smooth_.empty()) continue;
      out[i] = is_weight_ ? x[channel] * smooth_[channel] : x[channel] / smooth_[channel];
    }
  }

 private:
  const std::vector<int32_t>& channels_;
  const std::vector<float>& smooth_;
  bool is_weight_;
};

int64_t PackPart(Context& context, const ScOperator& op, const ScExtras& extras, const RowReader& reader, int64_t first,
                 int64_t count, int64_t total_rows, int64_t cols, MixedPart* part) {
  if (part->empty()) return -1;
  const auto part_cols = static_cast<int64_t>(part->channels.size());
  const int64_t depth = op.config.chunk_d > 0 ? std::min(op.config.chunk_d, part_cols) : part_cols;
  CheckAccumulator(op, depth, extras.op);
  part->hardware = MakeScHardware(op, depth);
  part->first_output = extras.site.first_output + first;
  const RowGather gather(*part, extras, true);
  const RowReader part_reader = [&](int64_t row, float* scratch) -> const float* {
    std::vector<float> whole(static_cast<size_t>(cols));
    gather(reader(row, whole.data()), scratch);
    return scratch;
  };
  const ScQuantizer quantizer(context.pool, context.simd, op, ScChunks(op, part_cols),
                              ScopesOf(op, ScOperand::kB, 1, total_rows), total_rows, part_reader);
  CodeFilter faults;
  if (part->hardware != nullptr && part->hardware->b.any()) {
    faults = [&](int64_t row, uint8_t* codes, int32_t* sum) {
      const uint64_t key = FaultKey(part->hardware->seed(), FaultKind::kWeight, extras.site,
                                    static_cast<uint64_t>(extras.site.first_output + row));
      ReadCodes(op, part->hardware->b, key, part->channels, 0, codes, part_cols, sum);
    };
  }
  return PackBlocks(context.pool, op, quantizer, first, count, part_reader, &part->blocks, faults);
}

void CheckExtras(const ScExtras& extras, int64_t cols) {
  if (!extras.smooth.empty() && static_cast<int64_t>(extras.smooth.size()) != cols) {
    Reject({-1, extras.op},
           std::to_string(extras.smooth.size()) + " smoothing factors for " + std::to_string(cols) + " input features");
  }
  int64_t before = -1;
  for (const int32_t channel : extras.protected_channels) {
    if (channel <= before || channel >= cols) {
      Reject({-1, extras.op}, "protected channel " + std::to_string(channel) + ": allowed are 0.." +
                                  std::to_string(cols - 1) + ", ascending");
    }
    before = channel;
  }
}

const ScLookup& FirstLookup(const MixedPart& part) {
  const auto found =
      std::find_if(part.lookups.begin(), part.lookups.end(), [](const auto& lookup) { return lookup != nullptr; });
  return **found;
}

// The lengths of rows as slots of `part`, and for the observer.
struct Dispatch {
  std::vector<uint8_t> slots;  // [rows][per_row]
  std::vector<int> lengths;
  int64_t per_row = 1;
};

std::vector<float> Metrics(Context& context, const MixedInput& input, const ScExtras& extras, const ScChunks& chunks,
                           const MixedPart& part, bool by_chunk) {
  const ScLengthRule& rule = *extras.lengths;
  const int64_t per_row = by_chunk ? chunks.count : 1;
  std::vector<float> metrics(static_cast<size_t>(input.rows * per_row));
  const bool whole = static_cast<int64_t>(part.channels.size()) == input.cols;
  context.pool.ParallelFor(input.rows, [&](int64_t row, int) {
    std::vector<float> gathered;
    const float* x = input.row(row);
    if (!whole) {
      for (const int32_t channel : part.channels) gathered.push_back(x[channel]);
      x = gathered.data();
    }
    for (int64_t c = 0; c < per_row; ++c) {
      metrics[static_cast<size_t>(row * per_row + c)] =
          by_chunk ? ScRowMetric(ScMetric::kAmax, 1.0f, x + chunks.begin(c), chunks.dims(c))
                   : ScRowMetric(rule.metric, rule.sign, x, chunks.cols);
    }
  });
  return metrics;
}

// Appends the lengths of rows of so many chunks, whose levels are in `levels`.
void AppendLengths(const ScLengthRule& rule, std::span<const int> levels, int64_t rows, int64_t chunks,
                   std::vector<int>* lengths) {
  const bool chunk_metric = rule.scope == ScLengthScope::kChunk;
  const int64_t per_row = rule.by_chunk() ? chunks : 1;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t c = 0; c < per_row; ++c) {
      const int64_t at = chunk_metric ? row * per_row + c : row;
      lengths->push_back(rule.Length(levels[static_cast<size_t>(at)], c));
    }
  }
}

std::vector<int> LevelsOf(const ScLengthRule& rule, std::span<const float> metrics) {
  return rule.scope == ScLengthScope::kChunk ? ScChunkLevels(rule, metrics) : ScRowLevels(rule, metrics);
}

Dispatch DispatchRows(Context& context, const MixedInput& input, const ScExtras& extras, const ScChunks& chunks,
                      const MixedPart& part, std::span<const int> forced) {
  Dispatch result;
  if (!forced.empty()) {
    result.per_row = static_cast<int64_t>(forced.size()) / input.rows;
    result.lengths.assign(forced.begin(), forced.end());
  } else if (extras.lengths == nullptr) {
    result.slots.assign(static_cast<size_t>(input.rows), 0);
    return result;
  } else {
    const ScLengthRule& rule = *extras.lengths;
    result.per_row = rule.by_chunk() ? chunks.count : 1;
    const bool chunk_metric = rule.scope == ScLengthScope::kChunk;
    const std::vector<float> metrics = Metrics(context, input, extras, chunks, part, chunk_metric);
    AppendLengths(rule, LevelsOf(rule, metrics), input.rows, chunks.count, &result.lengths);
  }
  for (const int length : result.lengths) result.slots.push_back(static_cast<uint8_t>(extras.Slot(length)));
  return result;
}

// Quantizes the channels of a part and multiplies them.
bool RunPart(Context& context, const MixedInput& input, const ScExtras& extras, const MixedPart& part,
             std::span<const uint8_t> slots, int64_t slots_per_row, ScTarget target) {
  const ScLookup& lookup = FirstLookup(part);
  const ScOperator& op = *lookup.op;
  const auto cols = static_cast<int64_t>(part.channels.size());
  const ScChunks chunks(op, cols);
  const bool as_is = extras.smooth.empty() && cols == input.cols;
  const RowGather gather(part, extras, false);
  const RowReader reader = [&](int64_t row, float* scratch) -> const float* {
    if (as_is) return input.row(row);
    gather(input.row(row), scratch);
    return scratch;
  };
  const ScQuantizer quantizer(context.pool, context.simd, op, chunks, ScopesOf(op, ScOperand::kA, 1, input.rows),
                              input.rows, reader);
  ScHardwareUse use{part.hardware.get(), extras.site, part.first_chunk, input.fault_rows};
  use.site.first_output = part.first_output;
  if (use.hardware != nullptr && !HasPlainSums(op.config)) target.use = &use;
  const bool reads_faults = use.hardware != nullptr && use.hardware->a.any();
  const ScSite activations = SiteOfActivations(extras.site);
  ScRows& rows = context.rows;
  rows.Resize(lookup, chunks, input.rows, chunks.size);
  std::atomic<bool> finite{true};
  context.pool.ParallelFor(input.rows, [&](int64_t i, int) {
    std::vector<float> scratch(static_cast<size_t>(as_is ? 0 : cols));
    const ScQuantizer::Row row = rows.row(i);
    if (!quantizer.Quantize(i, reader(i, scratch.data()), row)) finite.store(false, std::memory_order_relaxed);
    if (reads_faults) {
      const uint64_t key = FaultKey(use.hardware->seed(), FaultKind::kActivation, activations, use.FaultRowOf(i));
      ReadCodes(op, use.hardware->a, key, part.channels, 0, row.codes, cols, row.sum);
    }
    rows.Derive(lookup, i);
  });
  ScProduct(context.pool, context.simd, {part.lookups, slots, slots_per_row}, rows, 0, input.rows, {&target, 1});
  return finite.load();
}

void Record(Context& context, const OpSite& site, const ScExtras& extras, const MixedInput& input,
            const MixedPart& part, int64_t chunk, int64_t per_row, std::span<const int> lengths) {
  ScLengthRecord record;
  record.site = site;
  record.op = extras.op;
  record.rows = input.rows;
  record.in_features = static_cast<int64_t>(part.channels.size());
  record.out_features = part.blocks.rows;
  record.chunk = chunk;
  record.lengths_per_row = per_row;
  record.lengths = lengths;
  if (input.tokens.empty()) return context.observer->OnLengths(record);
  record.unit = extras.site.unit;
  for (size_t first = 0; first < input.tokens.size();) {
    size_t end = first + 1;
    while (end < input.tokens.size() && input.tokens[end] == input.tokens[end - 1] + 1) ++end;
    record.rows = static_cast<int64_t>(end - first);
    record.first_position = input.tokens[first];
    record.lengths =
        lengths.subspan(first * static_cast<size_t>(per_row), (end - first) * static_cast<size_t>(per_row));
    context.observer->OnLengths(record);
    first = end;
  }
}

}  // namespace

int64_t MakeMixedWeight(Context& context, const ScOperatorPtr& op, const ScExtras& extras, const RowReader& reader,
                        int64_t first, int64_t count, int64_t total_rows, int64_t cols, MixedWeight* weight) {
  CheckExtras(extras, cols);
  std::vector<ScOperatorPtr> operators = extras.by_length;
  if (operators.empty()) operators.push_back(op);
  for (const ScOperatorPtr& one : operators) {
    weight->rest.lookups.push_back(one == nullptr ? nullptr : context.lookups.Get(one));
  }
  weight->protected_part.channels = extras.protected_channels;
  if (!extras.protected_channels.empty()) {
    weight->protected_part.lookups.push_back(context.lookups.Get(extras.protected_op));
    weight->protected_part.first_chunk = kFirstProtectedChunk;
  }
  for (int32_t channel = 0; channel < cols; ++channel) {
    if (!std::binary_search(extras.protected_channels.begin(), extras.protected_channels.end(), channel)) {
      weight->rest.channels.push_back(channel);
    }
  }
  const ScOperator& any = *FirstLookup(weight->rest).op;
  int64_t bad = PackPart(context, any, extras, reader, first, count, total_rows, cols, &weight->rest);
  if (bad < 0 && !weight->protected_part.empty()) {
    bad = PackPart(context, *extras.protected_op, extras, reader, first, count, total_rows, cols,
                   &weight->protected_part);
  }
  return bad;
}

bool MixedProduct(Context& context, const MixedInput& input, const ScOperator& op, const ScExtras& extras,
                  const MixedWeight& weight, std::span<const int> forced, const OpSite& site,
                  const MixedTarget& target) {
  const bool has_rest = !weight.rest.empty();
  const bool has_protected = !weight.protected_part.empty();
  const int64_t out_features = has_rest ? weight.rest.blocks.rows : weight.protected_part.blocks.rows;
  bool finite = true;
  // Both products are completed before they are added.
  std::vector<float> own(has_protected ? static_cast<size_t>(input.rows * out_features) : 0);
  std::vector<float> rest(has_protected && has_rest ? own.size() : 0);
  if (has_rest) {
    const ScChunks chunks(op, static_cast<int64_t>(weight.rest.channels.size()));
    const Dispatch dispatch = DispatchRows(context, input, extras, chunks, weight.rest, forced);
    const ScTarget to = has_protected
                            ? ScTarget{&weight.rest.blocks, rest.data(), out_features, 1, false}
                            : ScTarget{&weight.rest.blocks, target.out, target.row_step, target.col_step, target.add};
    finite = RunPart(context, input, extras, weight.rest, dispatch.slots, dispatch.per_row, to);
    if (context.observer != nullptr && !dispatch.lengths.empty()) {
      Record(context, site, extras, input, weight.rest, chunks.size, dispatch.per_row, dispatch.lengths);
    }
  }
  if (!has_protected) return finite;

  const std::vector<uint8_t> slots(static_cast<size_t>(input.rows), 0);
  const ScTarget to{&weight.protected_part.blocks, own.data(), out_features, 1, false};
  finite = RunPart(context, input, extras, weight.protected_part, slots, 1, to) && finite;
  if (context.observer != nullptr && (input.tokens.empty() || !has_rest)) {
    const std::vector<int> lengths(static_cast<size_t>(input.rows), extras.protected_op->config.stoc_len);
    const ScChunks chunks(*extras.protected_op, static_cast<int64_t>(weight.protected_part.channels.size()));
    Record(context, site, extras, input, weight.protected_part, chunks.size, 1, lengths);
  }
  context.pool.ParallelFor(input.rows, [&](int64_t row, int) {
    for (int64_t m = 0; m < out_features; ++m) {
      const auto at = static_cast<size_t>(row * out_features + m);
      const float y = has_rest ? own[at] + rest[at] : own[at];
      float& out = target.out[row * target.row_step + m * target.col_step];
      out = target.add ? out + y : y;
    }
  });
  return finite;
}

std::vector<std::vector<int>> LengthsOfCall(Context& context, std::span<const MixedPairs> all) {
  std::vector<std::vector<int>> lengths(all.size());
  const ScLengthRule& rule = *all.front().extras->lengths;
  std::vector<float> metrics;
  std::vector<size_t> begins;
  const auto chunks_of = [](const MixedPairs& pairs) {
    return ScChunks(*pairs.op, static_cast<int64_t>(pairs.weight->rest.channels.size()));
  };
  for (const MixedPairs& pairs : all) {
    begins.push_back(metrics.size());
    if (pairs.weight->rest.empty()) continue;
    const std::vector<float> own = Metrics(context, pairs.input, *pairs.extras, chunks_of(pairs), pairs.weight->rest,
                                           rule.scope == ScLengthScope::kChunk);
    metrics.insert(metrics.end(), own.begin(), own.end());
  }
  const std::vector<int> levels = LevelsOf(rule, metrics);
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].weight->rest.empty()) continue;
    AppendLengths(*all[i].extras->lengths, std::span(levels).subspan(begins[i]), all[i].input.rows,
                  chunks_of(all[i]).count, &lengths[i]);
  }
  return lengths;
}

void ShowExperts(Context& context, const OpSite& site, const ScExtras& extras, int64_t tokens) {
  ScLengthRecord record;
  record.site = site;
  record.op = extras.op;
  record.rows = tokens;
  record.lengths_per_row = 0;
  context.observer->OnLengths(record);
}

void ScMixedMatmul(Context& context, const TensorView& a, const TensorView& b, const ScOperatorPtr& op,
                   const ScExtras& extras, std::span<const int> lengths, const TensorView& out) {
  CheckScMixedMatmul(a, b, *op, extras, lengths, out);
  const OpSite site{-1, "sc_mixed_matmul"};
  const int64_t cols = a.dim(1);
  const RowReader reader = [&](int64_t row, float*) { return b.ptr<const float>() + row * b.step(0); };
  MixedWeight weight;
  const int64_t bad = MakeMixedWeight(context, op, extras, reader, 0, b.dim(0), b.dim(0), cols, &weight);
  const MixedInput input{a.ptr<const float>(), a.step(0), a.dim(0), cols};
  const bool finite = MixedProduct(context, input, *op, extras, weight, lengths, site,
                                   {out.ptr<float>(), out.step(0), out.step(1), false});
  if (bad >= 0 || !finite) context.finite.Report(a.device, site, "an operand");
}

}  // namespace stoch::cpu
