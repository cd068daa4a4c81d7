// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/weights/weights.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/weights/bad_row.h"
#include "kernels/cuda/weights/mixed.h"
#include "kernels/cuda/weights/pack.h"
#include "kernels/cuda/weights/sc_memory.h"
#include "kernels/cuda/weights/uploader.h"
#include "kernels/math/reduce.h"
#include "kernels/plan/linear/mixed_traits.h"
#include "kernels/spec_check.h"

namespace stoch::cuda {
namespace {

int64_t TotalRows(std::span<const WeightSource> parts) {
  int64_t rows = 0;
  for (const WeightSource& part : parts) rows += part.rows;
  return rows;
}

// The type of the parts; F32 if they differ.
DType CommonType(std::span<const WeightSource> parts) {
  for (const WeightSource& part : parts) {
    if (part.type() != parts[0].type()) return DType::kF32;
  }
  return parts[0].type();
}

// Number of rows of side b (weights) that share a scale.
int64_t GroupRows(const ScOperator& op, int64_t rows) {
  return op.config.granularity == ScGranularity::kPerRow ? op.config.group_b : rows;
}

std::unique_ptr<CudaLinear> MakeSc(DeviceContext& ctx, Uploader& uploader, std::span<const WeightSource> parts,
                                   const LinearSpec& spec) {
  STOCH_CHECK(spec.sc != nullptr);
  const ScOperator& op = *spec.sc;
  const int64_t rows = TotalRows(parts);
  const int64_t cols = parts[0].cols;
  CheckAccumulator(op, cols, "tensor " + parts[0].name);
  ScMemory memory(op, rows, cols);
  Buffer buffer = AllocateZeroed(ctx, memory.bytes);
  memory.Place(static_cast<char*>(buffer.data()));
  const BadRow bad(ctx);

  const int64_t group = std::min(GroupRows(op, rows), rows);
  int64_t at = 0;
  bool aligned = group < rows;
  for (const WeightSource& part : parts) {
    aligned = aligned && at % group == 0;
    at += part.rows;
  }
  if (aligned || group == 1) {
    uploader.ForEachSlab(
        parts, group, [&](const WeightSlab& slab) { LaunchPackSc(ctx, slab, op, group, memory.view, bad.device()); });
  } else {
    // Rows that share a scale may be in different parts or slabs, so the stack is first collected in one type and then
    // packed at once.
    const DType dtype = CommonType(parts);
    const Buffer plain = AllocateDevice(ctx.device, static_cast<size_t>(rows * cols) * DTypeSize(dtype));
    uploader.ForEachSlab(
        parts, 1, [&](const WeightSlab& slab) { LaunchPackPlain(ctx, slab, dtype, plain.data(), bad.device()); });
    bad.Check(parts);  // a scale over several rows would spread a NaN to all of them
    LaunchPackSc(ctx, WeightSlab{plain.data(), dtype, 0, rows, cols}, op, group, memory.view, bad.device());
    STOCH_CUDA(cudaStreamSynchronize(ctx.stream));
  }
  bad.Check(parts);
  return std::make_unique<CudaLinear>(ctx.device, spec, memory.view, std::move(buffer));
}

std::unique_ptr<CudaLinear> MakeExact(DeviceContext& ctx, Uploader& uploader, std::span<const WeightSource> parts,
                                      const LinearSpec& spec) {
  ExactWeightView view;
  view.dtype = CommonType(parts);
  view.rows = TotalRows(parts);
  view.cols = parts[0].cols;
  view.padded_cols = RoundUp(view.cols, int64_t{kDotLanes} * view.vector());
  Buffer buffer = AllocateDevice(ctx.device, static_cast<size_t>(view.rows * view.padded_cols) * DTypeSize(view.dtype));
  view.data = buffer.data();
  const BadRow bad(ctx);
  uploader.ForEachSlab(parts, 1, [&](const WeightSlab& slab) { LaunchPackExact(ctx, slab, view, bad.device()); });
  bad.Check(parts);
  return std::make_unique<CudaLinear>(ctx.device, spec, view, std::move(buffer));
}

constexpr int64_t kScreenAlignment = 256;

int64_t PaddedFixedRows(int64_t rows) { return RoundUp(rows, int64_t{FixedWeightView::kGroupRows}); }
int64_t PaddedFixedCols(int64_t cols) { return RoundUp(cols, int64_t{FixedWeightView::kBlockCols}); }

// Sets the pointers of view->screen. memory: ScreenBytes bytes in device memory.
void PlaceScreen(char* memory, FixedWeightView* view) {
  const auto floats = view->padded_rows() * static_cast<int64_t>(sizeof(float));
  char* at = memory + kScreenAlignment - 1;
  at -= reinterpret_cast<uintptr_t>(at) % kScreenAlignment;
  view->screen.norm = reinterpret_cast<double*>(at);
  view->screen.best = reinterpret_cast<uint32_t*>(at + sizeof(double));
  at += kScreenAlignment;
  view->screen.bytes = reinterpret_cast<const uint8_t*>(at);
  at += view->padded_rows() * view->padded_cols;
  view->screen.rests = reinterpret_cast<const float*>(at);
  view->screen.uppers = reinterpret_cast<float*>(at + floats);
}

std::unique_ptr<CudaLinear> MakeFixed(DeviceContext& ctx, Uploader& uploader, std::span<const WeightSource> parts,
                                      const LinearSpec& spec) {
  FixedWeightView view;
  view.dtype = CommonType(parts);
  view.rows = TotalRows(parts);
  view.cols = parts[0].cols;
  view.padded_cols = PaddedFixedCols(view.cols);
  const size_t bytes = static_cast<size_t>(view.padded_rows() * view.padded_cols) * DTypeSize(view.dtype);
  const size_t scales = static_cast<size_t>(view.padded_rows()) * sizeof(float);
  Buffer buffer = AllocateZeroed(ctx, bytes + scales + static_cast<size_t>(ScreenBytes(view.rows, view.cols)));
  auto* const memory = static_cast<char*>(buffer.data());
  view.data = memory;
  view.scales = reinterpret_cast<const float*>(memory + bytes);
  PlaceScreen(memory + bytes + scales, &view);
  const BadRow bad(ctx);
  uploader.ForEachSlab(parts, 1, [&](const WeightSlab& slab) { LaunchPackFixed(ctx, slab, view, bad.device()); });
  bad.Check(parts);
  LaunchPackScreen(ctx, view);
  return std::make_unique<CudaLinear>(ctx.device, spec, view, std::move(buffer));
}

std::unique_ptr<CudaLinear> MakeHalf(DeviceContext& ctx, Uploader& uploader, std::span<const WeightSource> parts,
                                     const LinearSpec& spec) {
  HalfWeightView view;
  view.rows = TotalRows(parts);
  view.cols = parts[0].cols;
  Buffer buffer = AllocateDevice(ctx.device, static_cast<size_t>(view.rows * view.cols) * sizeof(uint16_t));
  view.data = static_cast<const uint16_t*>(buffer.data());
  const BadRow bad(ctx);
  uploader.ForEachSlab(parts, 1, [&](const WeightSlab& slab) { LaunchPackHalf(ctx, slab, view, bad.device()); });
  bad.Check(parts);
  return std::make_unique<CudaLinear>(ctx.device, spec, view, std::move(buffer));
}

}  // namespace

CudaLinear::CudaLinear(Device device, LinearSpec spec, View view, Buffer memory)
    : device_(device), spec_(std::move(spec)), view_(view), memory_(std::move(memory)) {}

CudaLinear::CudaLinear(Device device, LinearSpec spec, std::unique_ptr<MixedWeight> mixed)
    : device_(device), spec_(std::move(spec)), mixed_(std::move(mixed)) {
  view_ = mixed_->rest.view.rows > 0 ? mixed_->rest.view : mixed_->own.view;
}

CudaLinear::~CudaLinear() = default;

int64_t CudaLinear::bytes() const {
  return static_cast<int64_t>(memory_.bytes()) + (mixed_ == nullptr ? 0 : mixed_->bytes());
}

int64_t CudaLinear::stream_bytes() const {
  const bool fixed = mixed_ == nullptr && is_fixed_point();
  return bytes() - (fixed ? ScreenBytes(rows(), cols()) : 0);
}

int64_t ScreenBytes(int64_t rows, int64_t cols) {
  const int64_t padded = PaddedFixedRows(rows);
  return 2 * kScreenAlignment + padded * (PaddedFixedCols(cols) + 2 * static_cast<int64_t>(sizeof(float)));
}

int64_t CudaLinear::rows() const {
  return std::visit([](const auto& view) { return view.rows; }, view_);
}

int64_t CudaLinear::cols() const {
  if (mixed_ != nullptr) return mixed_->cols;
  if (const auto* sc = std::get_if<ScWeightView>(&view_)) return sc->dims.dims;
  if (const auto* exact = std::get_if<ExactWeightView>(&view_)) return exact->cols;
  if (const auto* fixed = std::get_if<FixedWeightView>(&view_)) return fixed->cols;
  return std::get<HalfWeightView>(view_).cols;
}

std::unique_ptr<CudaLinear> MakeLinear(DeviceContext& ctx, Uploader& uploader, std::span<const WeightSource> parts,
                                       const LinearSpec& spec) {
  CheckStack(parts);
  switch (spec.precision) {
    case Precision::kSc:
      if (!NeedsMixed(spec)) return MakeSc(ctx, uploader, parts, spec);
      return std::make_unique<CudaLinear>(ctx.device, spec, MakeMixedWeight(ctx, uploader, parts, spec));
    case Precision::kFp32:
      return IsFixedPoint(spec, parts) ? MakeFixed(ctx, uploader, parts, spec) : MakeExact(ctx, uploader, parts, spec);
    case Precision::kFp16: return MakeHalf(ctx, uploader, parts, spec);
  }
  return nullptr;
}

std::unique_ptr<CudaLinear> MakeLinearRows(DeviceContext& ctx, Uploader& uploader, const WeightSource& source,
                                           const LinearSpec& spec, int64_t first, int64_t count) {
  if (spec.precision != Precision::kSc || first < 0 || count < 1 || first > source.rows - count) {
    throw InvalidInput("tensor " + source.name + ": rows " + std::to_string(first) + " and " + std::to_string(count) +
                       " more of " + std::to_string(source.rows) + " in precision sc were expected to be its own");
  }
  // Scales that rows share depend on all rows, so the whole weight is made and the other rows are dropped at once.
  const std::unique_ptr<CudaLinear> whole = MakeLinear(ctx, uploader, {&source, 1}, spec);
  if (whole->mixed() != nullptr) {
    return std::make_unique<CudaLinear>(ctx.device, spec, SliceMixed(ctx, *whole->mixed(), spec, first, count));
  }
  ScMemory memory(*spec.sc, count, source.cols);
  Buffer buffer = AllocateZeroed(ctx, memory.bytes);
  memory.Place(static_cast<char*>(buffer.data()));
  LaunchCopyScRows(ctx, whole->view<ScWeightView>(), first, memory.view);
  STOCH_CUDA(cudaStreamSynchronize(ctx.stream));
  return std::make_unique<CudaLinear>(ctx.device, spec, memory.view, std::move(buffer));
}

Buffer MakeVector(DeviceContext& ctx, Uploader& uploader, const WeightSource& source) {
  const std::span<const WeightSource> parts(&source, 1);
  CheckStack(parts);
  STOCH_CHECK(source.rows == 1);
  Buffer buffer = AllocateDevice(ctx.device, static_cast<size_t>(source.cols) * sizeof(float));
  const BadRow bad(ctx);
  uploader.ForEachSlab(
      parts, 1, [&](const WeightSlab& slab) { LaunchPackPlain(ctx, slab, DType::kF32, buffer.data(), bad.device()); });
  bad.Check(parts);
  return buffer;
}

std::unique_ptr<CudaEmbedding> MakeEmbedding(DeviceContext& ctx, Uploader& uploader, const WeightSource& source,
                                             const LinearWeight* tied) {
  const auto* head = dynamic_cast<const CudaLinear*>(tied);
  if (head != nullptr && head->device() == ctx.device && head->spec().precision == Precision::kFp32) {
    using enum EmbeddingView::Order;
    if (!head->is_fixed_point()) {
      return std::make_unique<CudaEmbedding>(ctx.device, EmbeddingView{head->view<ExactWeightView>(), kExact},
                                             Buffer());
    }
    const auto& fixed = head->view<FixedWeightView>();
    const ExactWeightView table{fixed.data, fixed.dtype, fixed.rows, fixed.cols, fixed.padded_cols};
    return std::make_unique<CudaEmbedding>(ctx.device, EmbeddingView{table, kFixed}, Buffer());
  }
  const std::span<const WeightSource> parts(&source, 1);
  CheckStack(parts);
  const DType dtype = source.type();
  // Pinned host memory: a token reads one row, while the 1 to 2 GB of a table are better spent on weights, keys and
  // values.
  Buffer buffer = AllocatePinned(static_cast<size_t>(source.rows * source.cols) * DTypeSize(dtype), ctx.device);
  const BadRow bad(ctx);
  uploader.ForEachSlab(parts, 1,
                       [&](const WeightSlab& slab) { LaunchPackPlain(ctx, slab, dtype, buffer.data(), bad.device()); });
  bad.Check(parts);
  const ExactWeightView table{buffer.data(), dtype, source.rows, source.cols, source.cols};
  return std::make_unique<CudaEmbedding>(ctx.device, EmbeddingView{table, EmbeddingView::Order::kPlain},
                                         std::move(buffer));
}

Backend::PlainLinear Unpack(DeviceContext& ctx, const CudaLinear& weight) {
  Backend::PlainLinear plain;
  const size_t count = static_cast<size_t>(weight.rows() * weight.cols());
  const auto fetch = [&](void* to, const Buffer& from) {
    STOCH_CUDA(cudaMemcpyAsync(to, from.data(), from.bytes(), cudaMemcpyDeviceToHost, ctx.stream));
    STOCH_CUDA(cudaStreamSynchronize(ctx.stream));
  };
  const Precision precision = weight.spec().precision;
  if (precision == Precision::kSc) {
    if (weight.spec().extras != nullptr) throw InvalidInput("a weight with extras has no plain form");
    const auto& view = weight.view<ScWeightView>();
    const Buffer codes = AllocateDevice(ctx.device, count);
    const Buffer scales = AllocateDevice(ctx.device, static_cast<size_t>(view.rows * view.dims.chunks) * sizeof(float));
    LaunchUnpackSc(ctx, view, static_cast<uint8_t*>(codes.data()), static_cast<float*>(scales.data()));
    plain.codes.resize(count);
    plain.scales.resize(scales.bytes() / sizeof(float));
    fetch(plain.codes.data(), codes);
    fetch(plain.scales.data(), scales);
    return plain;
  }
  const Buffer values = AllocateDevice(ctx.device, count * sizeof(float));
  auto* const to = static_cast<float*>(values.data());
  switch (precision) {
    case Precision::kSc: break;
    case Precision::kFp32:
      weight.is_fixed_point() ? LaunchUnpackFixed(ctx, weight.view<FixedWeightView>(), to)
                              : LaunchUnpackExact(ctx, weight.view<ExactWeightView>(), to);
      break;
    case Precision::kFp16: LaunchUnpackHalf(ctx, weight.view<HalfWeightView>(), to); break;
  }
  plain.values.resize(count);
  fetch(plain.values.data(), values);
  return plain;
}

}  // namespace stoch::cuda
