// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/linear_weight.h"

#include <atomic>

#include "kernels/base/error.h"
#include "kernels/cpu/weight_reader.h"
#include "kernels/math/elementary.h"
#include "kernels/math/half.h"
#include "kernels/spec_check.h"

namespace stoch::cpu {
namespace {

// scales: null, or where FixedScale of every row goes.
void MakeGenerated(Context& context, const WeightSource& source, CpuLinear::ExactPart* part, float* scales) {
  if (source.stddev == 0.0f) {
    part->floats = MakeArray<float>(source.rows * source.cols);
    std::fill(part->floats.get(), part->floats.get() + source.rows * source.cols, source.constant);
    part->rows = {part->floats.get(), source.cols, DType::kF32};
    return;
  }
  part->halves = MakeArray<uint16_t>(source.rows * source.cols);
  part->rows = {part->halves.get(), source.cols, DType::kF16};
  context.pool.ParallelFor(source.rows, [&](int64_t row, int) {
    std::vector<float> scratch(static_cast<size_t>(source.cols));
    const float* x = ReadRow(context.simd, source, row, scratch.data());
    uint16_t* out = part->halves.get() + row * source.cols;
    for (int64_t i = 0; i < source.cols; ++i) out[i] = FloatToF16(x[i]);
    if (scales != nullptr) scales[row] = FixedScale(context.simd.max_abs_bits(x, source.cols), kFixedWeightBits);
  });
}

void MakeExactPart(Context& context, const WeightSource& source, CpuLinear::ExactPart* part, float* scales) {
  part->num_rows = source.rows;
  part->scales = scales;
  if (source.generated()) return MakeGenerated(context, source, part, scales);
  part->rows = {source.host, source.cols, source.dtype};
  if (source.decoder != nullptr) part->decoded = source;
}

// Rows [first, first + count) of the stacked parts, quantized as rows of the whole.
std::unique_ptr<CpuLinear> MakeSc(Context& context, Device device, std::span<const WeightSource> parts,
                                  const LinearSpec& spec, int64_t first, int64_t count) {
  const StackedRows rows(parts);
  const std::string& name = parts.front().name;
  const int64_t cols = parts.front().cols;
  auto weight = std::make_unique<CpuLinear>(device, spec, count, cols);
  if (!spec.sc) throw InvalidInput("tensor " + name + ": precision sc without an SC operator");
  const ScOperator& op = *spec.sc;
  if (op.config.granularity == ScGranularity::kPerHead) {
    throw InvalidInput("tensor " + name + ": SC parameter granularity = per_head needs 3-D operands; a linear takes " +
                       "per_tensor, per_row");
  }
  const RowReader reader = [&](int64_t row, float* scratch) { return rows.Read(context.simd, row, scratch); };
  if (spec.extras != nullptr) {
    const int64_t bad_row =
        MakeMixedWeight(context, spec.sc, *spec.extras, reader, first, count, rows.rows(), cols, &weight->mixed);
    if (bad_row >= 0) {
      CheckFiniteWeights(context, parts);
      throw InvalidInput("tensor " + name + ": a weight times its smoothing is no finite number");
    }
    return weight;
  }
  CheckAccumulator(op, !HasSource(op.config.gate) && op.config.chunk_d > 0 ? op.config.chunk_d : cols,
                   "tensor " + name);
  weight->lookup = context.lookups.Get(spec.sc);
  const ScQuantizer quantizer(context.pool, context.simd, op, ScChunks(op, cols),
                              ScopesOf(op, ScOperand::kB, 1, rows.rows()), rows.rows(), reader);
  const int64_t bad = PackBlocks(context.pool, op, quantizer, first, count, reader, &weight->blocks);
  if (bad >= 0) {
    CheckFiniteWeights(context, parts);  // a shared scope names its first row, not the bad one
    RejectNonFinite(parts, bad);
  }
  return weight;
}

}  // namespace

const float* CpuLinear::ExactPart::Row(const Simd& simd, int64_t cols, int64_t row, float* scratch) const {
  if (decoded.decoder != nullptr) {
    decoded.decoder->Decode(decoded.first + row * cols, cols, scratch);
  } else {
    const int64_t bytes = row * rows.stride * static_cast<int64_t>(DTypeSize(rows.dtype));
    simd.load(static_cast<const char*>(rows.data) + bytes, rows.dtype, cols, scratch);
  }
  return scratch;
}

int64_t CpuLinear::bytes() const {
  if (spec_.precision == Precision::kSc) return spec_.extras != nullptr ? mixed.bytes() : blocks.bytes();
  int64_t total = 0;
  for (const ExactPart& part : parts) {
    const bool owned = part.halves != nullptr || part.floats != nullptr;
    if (owned) total += part.num_rows * cols_ * static_cast<int64_t>(DTypeSize(part.rows.dtype));
    total += part.screen.size_bytes(part.num_rows) + part.float_screen.size_bytes(part.num_rows);
  }
  return total;
}

int64_t CpuLinear::stream_bytes() const {
  if (spec_.precision == Precision::kSc) return spec_.extras != nullptr ? mixed.bytes() : blocks.bytes();
  int64_t total = 0;
  for (const ExactPart& part : parts) {
    const int64_t count = part.num_rows * cols_;
    total += part.decoded.decoder != nullptr ? part.decoded.decoder->StoredBytes(count)
                                             : count * static_cast<int64_t>(DTypeSize(part.rows.dtype));
  }
  return total;
}

void CheckFiniteWeights(Context& context, std::span<const WeightSource> parts, float* scales) {
  const StackedRows rows(parts);
  std::atomic<int64_t> bad{rows.rows()};
  context.pool.ParallelFor(rows.rows(), [&](int64_t row, int) {
    const WeightSource& source = parts[rows.part(row)];
    if (source.generated() && source.stddev != 0.0f) return;
    std::vector<float> scratch(static_cast<size_t>(source.cols));
    const float* x = rows.Read(context.simd, row, scratch.data());
    const uint32_t max_bits = context.simd.max_abs_bits(x, source.cols);
    if (!IsFinite(BitsToFloat(max_bits))) return AtomicMin(bad, row);
    if (scales != nullptr) scales[row] = FixedScale(max_bits, kFixedWeightBits);
  });
  if (bad.load() < rows.rows()) RejectNonFinite(parts, bad.load());
}

std::unique_ptr<CpuLinear> MakeCpuLinear(Context& context, Device device, std::span<const WeightSource> parts,
                                         const LinearSpec& spec) {
  CheckStack(parts);
  const StackedRows rows(parts);
  switch (spec.precision) {
    case Precision::kSc: return MakeSc(context, device, parts, spec, 0, rows.rows());
    case Precision::kFp16:
      throw InvalidInput("tensor " + parts.front().name + ": precision fp16 needs a GPU; the CPU has sc and fp32");
    case Precision::kFp32: break;
  }
  auto weight = std::make_unique<CpuLinear>(device, spec, rows.rows(), parts.front().cols);
  if (IsFixedPoint(spec, parts)) weight->scales = MakeArray<float>(rows.rows());
  float* scales = weight->scales.get();
  CheckFiniteWeights(context, parts, scales);
  weight->parts.resize(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    MakeExactPart(context, parts[i], &weight->parts[i], scales);
    if (scales != nullptr) scales += parts[i].rows;
  }
  CpuLinear::ExactPart& part = weight->parts.front();
  if (parts.size() > 1) return weight;
  const int64_t cols = weight->cols();
  if (part.scales != nullptr) {
    part.screen = MakeFixedScreen(context.pool, context.simd, part.rows, part.scales, part.num_rows, cols);
  } else if (spec.fixed_point && cols <= kMaxFixedColumns) {
    part.float_screen =
        MakeFloatScreen(context.pool, context.simd, part.num_rows, cols,
                        [&](int64_t row, float* scratch) { return part.Row(context.simd, cols, row, scratch); });
  }
  return weight;
}

std::unique_ptr<CpuLinear> MakeCpuLinearRows(Context& context, Device device, const WeightSource& source,
                                             const LinearSpec& spec, int64_t first, int64_t count) {
  const std::span<const WeightSource> parts(&source, 1);
  CheckStack(parts);
  if (spec.precision != Precision::kSc || first < 0 || count < 1 || first > source.rows - count) {
    throw InvalidInput("tensor " + source.name + ": rows " + std::to_string(first) + " and " + std::to_string(count) +
                       " more of " + std::to_string(source.rows) + " in precision sc were expected to be its own");
  }
  return MakeSc(context, device, parts, spec, first, count);
}

Backend::PlainLinear UnpackCpuLinear(Context& context, const CpuLinear& weight) {
  Backend::PlainLinear plain;
  const size_t size = static_cast<size_t>(weight.rows() * weight.cols());
  if (weight.spec().precision == Precision::kFp32) {
    plain.values.resize(size);
    float* out = plain.values.data();
    for (const CpuLinear::ExactPart& part : weight.parts) {
      const int64_t count = part.num_rows * weight.cols();
      if (part.decoded.decoder != nullptr) {
        part.decoded.decoder->Decode(part.decoded.first, count, out);
      } else {
        context.simd.load(part.rows.data, part.rows.dtype, count, out);
      }
      out += count;
    }
    return plain;
  }
  if (weight.spec().extras != nullptr) throw InvalidInput("a weight with extras has no plain form");
  const ScBlocks& blocks = weight.blocks;
  plain.codes.resize(size);
  plain.scales.resize(static_cast<size_t>(weight.rows() * blocks.chunks.count));
  for (int64_t row = 0; row < weight.rows(); ++row) {
    const int64_t lane = row % kBlockRows;
    const uint8_t* block = blocks.block(row / kBlockRows);
    for (int64_t d = 0; d < weight.cols(); ++d) {
      plain.codes[static_cast<size_t>(row * weight.cols() + d)] = block[d * kBlockRows + lane];
    }
    for (int64_t c = 0; c < blocks.chunks.count; ++c) {
      plain.scales[static_cast<size_t>(row * blocks.chunks.count + c)] = blocks.block_scales(row / kBlockRows, c)[lane];
    }
  }
  return plain;
}

}  // namespace stoch::cpu
