// SPDX-License-Identifier: Apache-2.0
// Weights in device memory: quantized (SC), exact (fp32) or fp16, converted while they are loaded.
#pragma once

#include <memory>
#include <span>
#include <variant>

#include "kernels/backend.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sc/format/layout.h"

namespace stoch::cuda {

class Uploader;
struct MixedWeight;

// An exact matrix in the order in which kDotLanes strided lanes read it with 16-byte loads:
// [rows][blocks][kDotLanes][vector], with vector = 16 / sizeof(T) elements and blocks = padded_cols / (16 * vector).
// Element d of a row is at (block, lane, v) with d = (block * vector + v) * kDotLanes + lane. Padding is -0, which
// changes no sum: fma(+0, -0, lane) == lane, signs of zero included.
struct ExactWeightView {
  const void* data = nullptr;  // elements of type dtype, in the order above
  DType dtype = DType::kF32;   // kF32, kF16 or kBF16
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t padded_cols = 0;  // cols rounded up to a multiple of kDotLanes * vector

  STOCH_LAYOUT_FN int vector() const { return dtype == DType::kF32 ? 4 : 8; }
};

// A matrix that is multiplied as integers (IsFixedPoint, math/fixed_point.h). It holds 16-bit floats, in the order in
// which lanes load them to make int8 tensor core operands: [groups of 16 rows][steps of 32 columns][half of the
// group][lane][8 numbers]. Lane l has columns 8 * (l % 4) .. 8 * (l % 4) + 7 of row l / 4 of the half. Padding is 0.
struct FixedWeightView {
  static constexpr int kGroupRows = 16;
  static constexpr int kStepCols = 32;
  static constexpr int kBlockCols = 4 * kStepCols;

  const void* data = nullptr;
  DType dtype = DType::kBF16;  // kF16 or kBF16
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t padded_cols = 0;        // cols rounded up to a multiple of kBlockCols
  const float* scales = nullptr;  // [padded_rows()]: scale of each row (FixedScale)

  // Data for finding the largest output without reading the whole matrix (linear/fixed_screen.h): for each integer
  // q = 256 h + r of a weight the byte h, for each row the norm of its r. Also holds the intermediate results of that
  // search. Device memory.
  struct Screen {
    const uint8_t* bytes = nullptr;  // bytes h, [row groups][steps][lane][16]: int8 operands A as lanes load them
    const float* rests = nullptr;    // [padded_rows()]: upper bound of each row's norm of r
    float* uppers = nullptr;         // scratch [padded_rows()]: upper bound of each output
    double* norm = nullptr;          // scratch: upper bound of the norm of the integers of x
    uint32_t* best = nullptr;        // scratch: largest lower bound of any output, as an OrderedWord (exchange.cuh)
  };
  Screen screen;

  STOCH_LAYOUT_FN int64_t padded_rows() const { return (rows + kGroupRows - 1) / kGroupRows * kGroupRows; }
  // Offset of the eight numbers of `row` that begin at column 8 * vector, in units of eight numbers.
  STOCH_LAYOUT_FN int64_t vector_offset(int64_t row, int64_t vector) const {
    const int64_t step = row / kGroupRows * (padded_cols / kStepCols) + vector / 4;
    return (step * 2 + row / 8 % 2) * 32 + row % 8 * 4 + vector % 4;
  }
};

// A matrix of halves, row-major, for cuBLAS.
struct HalfWeightView {
  const uint16_t* data = nullptr;  // [rows, cols]
  int64_t rows = 0;
  int64_t cols = 0;
};

// A weight of any precision in device memory.
class CudaLinear final : public LinearWeight {
 public:
  using View = std::variant<ScWeightView, ExactWeightView, FixedWeightView, HalfWeightView>;

  CudaLinear(Device device, LinearSpec spec, View view, Buffer memory);
  // A weight with extras, integer arithmetic or a multiplier table (weights/mixed.h). view<ScWeightView>() is then one
  // of its parts.
  CudaLinear(Device device, LinearSpec spec, std::unique_ptr<MixedWeight> mixed);
  ~CudaLinear() override;

  Device device() const override { return device_; }
  int64_t rows() const override;
  int64_t cols() const override;
  const LinearSpec& spec() const override { return spec_; }
  int64_t bytes() const override;
  int64_t stream_bytes() const override;

  // The parts of a weight with extras, integer arithmetic or a multiplier table; null for all other weights.
  const MixedWeight* mixed() const { return mixed_.get(); }
  template <typename T>
  const T& view() const {
    return std::get<T>(view_);
  }
  // Whether the weight, of precision kFp32, is multiplied as integers (FixedWeightView).
  bool is_fixed_point() const { return std::holds_alternative<FixedWeightView>(view_); }

 private:
  Device device_;
  LinearSpec spec_;
  View view_;
  Buffer memory_;
  std::unique_ptr<MixedWeight> mixed_;
};

// An embedding table: plain, or the memory of an exact LM head with tied embeddings.
struct EmbeddingView {
  enum class Order : uint8_t {
    kPlain,  // row-major [rows, cols]
    kExact,  // the order of ExactWeightView
    kFixed,  // the order of FixedWeightView
  };
  ExactWeightView table;
  Order order = Order::kPlain;
};

class CudaEmbedding final : public EmbeddingTable {
 public:
  CudaEmbedding(Device device, EmbeddingView view, Buffer memory)
      : device_(device), view_(view), memory_(std::move(memory)) {}
  Device device() const override { return device_; }
  int64_t vocab_size() const override { return view_.table.rows; }
  int64_t hidden_size() const override { return view_.table.cols; }
  int64_t bytes() const override { return static_cast<int64_t>(memory_.bytes()); }
  const EmbeddingView& view() const { return view_; }

 private:
  Device device_;
  EmbeddingView view_;
  Buffer memory_;  // empty if the table is the memory of a tied LM head, which must outlive this object
};

// Bytes of a FixedWeightView::Screen for a matrix [rows, cols].
int64_t ScreenBytes(int64_t rows, int64_t cols);

// Implement the Backend functions of equal names for one device.
std::unique_ptr<CudaLinear> MakeLinear(DeviceContext& ctx, Uploader& uploader, std::span<const WeightSource> parts,
                                       const LinearSpec& spec);
std::unique_ptr<CudaLinear> MakeLinearRows(DeviceContext& ctx, Uploader& uploader, const WeightSource& source,
                                           const LinearSpec& spec, int64_t first, int64_t count);
Buffer MakeVector(DeviceContext& ctx, Uploader& uploader, const WeightSource& source);
std::unique_ptr<CudaEmbedding> MakeEmbedding(DeviceContext& ctx, Uploader& uploader, const WeightSource& source,
                                             const LinearWeight* tied);
Backend::PlainLinear Unpack(DeviceContext& ctx, const CudaLinear& weight);

}  // namespace stoch::cuda
