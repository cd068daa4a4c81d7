// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/weights/mixed.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/plain/product.h"
#include "kernels/cuda/weights/bad_row.h"
#include "kernels/cuda/weights/pack.h"
#include "kernels/cuda/weights/sc_memory.h"
#include "kernels/cuda/weights/uploader.h"
#include "kernels/spec_check.h"

namespace stoch::cuda {
namespace {

// Number of rows of side b (weights) that share a scale.
int64_t GroupRows(const ScOperator& op, int64_t rows) {
  return std::min(op.config.granularity == ScGranularity::kPerRow ? op.config.group_b : rows, rows);
}

void CheckExtras(const ScExtras& extras, int64_t cols, const std::string& name) {
  if (!extras.smooth.empty() && static_cast<int64_t>(extras.smooth.size()) != cols) {
    throw InvalidInput(name + ": " + std::to_string(extras.smooth.size()) + " smoothing factors for " +
                       std::to_string(cols) + " input features");
  }
  int64_t before = -1;
  for (const int32_t channel : extras.protected_channels) {
    if (channel <= before || channel >= cols) {
      throw InvalidInput(name + ": protected channel " + std::to_string(channel) + ": allowed are 0.." +
                         std::to_string(cols - 1) + ", ascending");
    }
    before = channel;
  }
}

// Allocates a part's memory, zeroed, and its device tables. channels: the input channels of the part, ascending;
// part->operators must be set.
void MakePart(DeviceContext& ctx, MixedPart* part, const std::vector<int32_t>& channels, int64_t rows, int64_t cols,
              const std::string& name) {
  const ScOperator& op = part->op();
  const auto part_cols = static_cast<int64_t>(channels.size());
  const int64_t depth = op.config.chunk_d > 0 ? std::min(op.config.chunk_d, part_cols) : part_cols;
  CheckAccumulator(op, depth, name);
  part->hardware = MakeHardwareTables(ctx.device, op, depth);
  if (part_cols != cols) part->channel_list = DeviceCopy(ctx.device, channels);
  ScMemory memory(op, rows, part_cols);
  part->memory = AllocateZeroed(ctx, memory.bytes);
  memory.Place(static_cast<char*>(part->memory.data()));
  part->view = memory.view;
}

// Makes a weight with everything but its codes and scales.
std::unique_ptr<MixedWeight> Allocate(DeviceContext& ctx, const LinearSpec& spec, int64_t rows, int64_t cols,
                                      const std::string& name) {
  STOCH_CHECK(spec.sc != nullptr);
  auto weight = std::make_unique<MixedWeight>();
  weight->cols = cols;
  const ScExtras none;
  const ScExtras& extras = spec.extras == nullptr ? none : *spec.extras;
  CheckExtras(extras, cols, name);
  weight->smooth = DeviceCopy(ctx.device, extras.smooth);
  std::vector<int32_t> rest;
  for (int32_t channel = 0; channel < cols; ++channel) {
    if (!std::binary_search(extras.protected_channels.begin(), extras.protected_channels.end(), channel)) {
      rest.push_back(channel);
    }
  }
  weight->rest.first_output = weight->own.first_output = extras.site.first_output;
  if (!rest.empty()) {
    const std::vector<ScOperatorPtr> alone{spec.sc};
    for (const ScOperatorPtr& one : extras.by_length.empty() ? alone : extras.by_length) {
      // In by_length, the single mask of an operator may be repeated to match operators with more masks; the kernels
      // for one length need the operator as its configuration makes it.
      weight->rest.operators.push_back(one == nullptr ? nullptr : MakeScOperator(one->config));
    }
    weight->rest.lengths = std::make_shared<LengthTables>(ctx.device, ctx.tables, spec.sc, &extras);
    MakePart(ctx, &weight->rest, rest, rows, cols, name);
  }
  if (!extras.protected_channels.empty()) {
    weight->own.operators = {extras.protected_op};
    weight->own.first_chunk = kFirstProtectedChunk;
    weight->own.lengths = std::make_shared<LengthTables>(ctx.device, ctx.tables, extras.protected_op, nullptr);
    MakePart(ctx, &weight->own, extras.protected_channels, rows, cols, name);
  }
  return weight;
}

// Quantizes a slab of rows into all parts of the weight. stride: elements from one row of the slab to the next.
void Pack(DeviceContext& ctx, const MixedWeight& weight, const WeightSlab& slab, int64_t stride, int64_t* first_bad) {
  for (const MixedPart* part : {&weight.rest, &weight.own}) {
    if (part->empty()) continue;
    LaunchPackSc(ctx, slab, part->op(), GroupRows(part->op(), part->view.rows), part->view, first_bad,
                 {stride, part->channels(), weight.factors()});
  }
}

// Applies the faults of stored weights to the codes, in place; called once, when all slabs are packed.
void ReadStored(DeviceContext& ctx, const MixedWeight& weight, const LinearSpec& spec) {
  for (const MixedPart* part : {&weight.rest, &weight.own}) {
    if (part->empty() || part->hardware == nullptr) continue;
    StoredCodes stored;
    stored.codes = const_cast<uint8_t*>(part->view.codes);
    stored.dims = part->view.dims;
    stored.rows = part->view.rows;
    stored.is_weight = true;
    stored.sums = part->op().code == ScCode::kAsymmetric ? const_cast<int32_t*>(part->view.sums) : nullptr;
    stored.channels = part->channels();
    CodeFaults faults;
    faults.words = part->hardware->view().weight;
    faults.seed = part->hardware->view().seed;
    if (spec.extras != nullptr) faults.site.number = spec.extras->site.number();
    faults.site.first_row = static_cast<uint64_t>(part->first_output);
    LaunchReadCodes(ctx, stored, faults);
  }
}

// Whether several rows share a scale in any part.
bool SharesScales(const MixedWeight& weight) {
  for (const MixedPart* part : {&weight.rest, &weight.own}) {
    if (!part->empty() && GroupRows(part->op(), part->view.rows) > 1) return true;
  }
  return false;
}

// A copy of rows [first, first + count) of a part.
MixedPart RowsOf(DeviceContext& ctx, const MixedPart& whole, int64_t first, int64_t count) {
  MixedPart part;
  if (whole.empty()) return part;
  part.operators = whole.operators;
  part.lengths = whole.lengths;
  part.hardware = whole.hardware;
  part.first_chunk = whole.first_chunk;
  part.first_output = whole.first_output + first;
  ScMemory memory(whole.op(), count, whole.view.dims.dims);
  part.memory = AllocateZeroed(ctx, memory.bytes);
  memory.Place(static_cast<char*>(part.memory.data()));
  part.view = memory.view;
  LaunchCopyScRows(ctx, whole.view, first, part.view);
  if (whole.channels() != nullptr) {
    part.channel_list = AllocateDevice(ctx.device, whole.channel_list.bytes());
    STOCH_CUDA(cudaMemcpyAsync(part.channel_list.data(), whole.channel_list.data(), part.channel_list.bytes(),
                               cudaMemcpyDeviceToDevice, ctx.stream));
  }
  return part;
}

}  // namespace

const ScOperator& MixedPart::op() const {
  const auto found = std::find_if(operators.begin(), operators.end(), [](const auto& one) { return one != nullptr; });
  STOCH_CHECK(found != operators.end());
  return **found;
}

int64_t MixedWeight::bytes() const {
  return static_cast<int64_t>(rest.memory.bytes() + own.memory.bytes() + rest.channel_list.bytes() +
                              own.channel_list.bytes() + smooth.bytes());
}

std::unique_ptr<MixedWeight> MakeMixedWeight(DeviceContext& ctx, Uploader& uploader,
                                             std::span<const WeightSource> parts, const LinearSpec& spec) {
  int64_t rows = 0;
  for (const WeightSource& part : parts) rows += part.rows;
  const int64_t cols = parts[0].cols;
  const std::string name = "tensor " + parts[0].name;
  std::unique_ptr<MixedWeight> weight = Allocate(ctx, spec, rows, cols, name);
  const BadRow bad(ctx);
  if (SharesScales(*weight)) {
    // Rows that share a scale may be in different slabs, so the stack is first collected as floats and then packed at
    // once.
    const Buffer plain = AllocateDevice(ctx.device, static_cast<size_t>(rows * cols) * sizeof(float));
    uploader.ForEachSlab(
        parts, 1, [&](const WeightSlab& slab) { LaunchPackPlain(ctx, slab, DType::kF32, plain.data(), bad.device()); });
    bad.Check(parts);  // a scale over several rows would spread a NaN to all of them
    Pack(ctx, *weight, {plain.data(), DType::kF32, 0, rows, cols}, cols, bad.device());
    STOCH_CUDA(cudaStreamSynchronize(ctx.stream));
  } else {
    uploader.ForEachSlab(parts, 1, [&](const WeightSlab& slab) { Pack(ctx, *weight, slab, cols, bad.device()); });
  }
  ReadStored(ctx, *weight, spec);
  const int64_t row = bad.Find();
  if (row >= 0 && weight->factors() != nullptr) {
    throw InvalidInput(name + ": NaN or infinity in row " + std::to_string(row) +
                       ", of the weight or of the weight times its smoothing");
  }
  if (row >= 0) RejectNonFinite(parts, row);
  return weight;
}

std::unique_ptr<MixedWeight> MakeMixedMatrix(DeviceContext& ctx, const float* data, int64_t stride, int64_t rows,
                                             int64_t cols, const LinearSpec& spec, const SiteReporter& reporter) {
  std::unique_ptr<MixedWeight> weight = Allocate(ctx, spec, rows, cols, "sc_mixed_matmul");
  const BadRow bad(ctx);
  Pack(ctx, *weight, {data, DType::kF32, 0, rows, cols}, stride, bad.device());
  ReadStored(ctx, *weight, spec);
  if (bad.Find() >= 0) {
    STOCH_CUDA(cudaMemcpyAsync(reporter.flag, &reporter.site, sizeof(int), cudaMemcpyHostToDevice, ctx.stream));
    STOCH_CUDA(cudaStreamSynchronize(ctx.stream));
  }
  return weight;
}

std::unique_ptr<MixedWeight> SliceMixed(DeviceContext& ctx, const MixedWeight& whole, const LinearSpec& spec,
                                        int64_t first, int64_t count) {
  auto weight = std::make_unique<MixedWeight>();
  weight->cols = whole.cols;
  if (spec.extras != nullptr) weight->smooth = DeviceCopy(ctx.device, spec.extras->smooth);
  weight->rest = RowsOf(ctx, whole.rest, first, count);
  weight->own = RowsOf(ctx, whole.own, first, count);
  STOCH_CUDA(cudaStreamSynchronize(ctx.stream));
  return weight;
}

}  // namespace stoch::cuda
