// SPDX-License-Identifier: Apache-2.0
// Weights in device memory: quantized, exact or fp16, made while they are loaded.
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

// An exact matrix: element (row, d) in the order in which kDotLanes strided lanes read it with 16-byte loads.
// [rows][padded_cols / (16 * vector)][kDotLanes][vector], vector = 16 / sizeof(T): element d = (block * vector + v) *
// kDotLanes + lane. Padding is -0, which leaves every lane as it is: fma(+0, -0, lane) == lane, signs of zero included.
struct ExactWeightView {
  const void* data = nullptr;
  DType dtype = DType::kF32;  // kF32, kF16 or kBF16, as in the file
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t padded_cols = 0;  // multiple of kDotLanes * vector

  STOCH_LAYOUT_FN int vector() const { return dtype == DType::kF32 ? 4 : 8; }
};

// A matrix that multiplies as integers (IsFixedPoint): its numbers as they are stored, in the order in which int8 tensor
// cores take bytes made of them. [row groups of 16][steps of 32 columns][half of the rows][lane][8 numbers]: lane l has
// columns 8 * (l % 4) on of row l / 4 of the half. Padding is 0.
struct FixedWeightView {
  static constexpr int kGroupRows = 16;
  static constexpr int kStepCols = 32;
  static constexpr int kBlockCols = 4 * kStepCols;

  const void* data = nullptr;
  DType dtype = DType::kBF16;  // kF16 or kBF16
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t padded_cols = 0;        // multiple of kBlockCols
  const float* scales = nullptr;  // [padded_rows()]: the FixedScale of each row

  // A high byte h of each integer q of a weight, q = 256 h + r, and the norm of r of each row: they find the largest
  // output without reading all (linear/fixed_screen.h), and where that leaves what it found.
  struct Screen {
    const uint8_t* bytes = nullptr;  // [row groups][steps][lane][16]: operands of int8 products, as lanes take them
    const float* rests = nullptr;    // [padded_rows()]: at least the norm
    float* uppers = nullptr;         // [padded_rows()]: what an output is at most
    double* norm = nullptr;          // at least that of the integers of x
    uint32_t* best = nullptr;        // the most that an output is at least, as an OrderedWord
  };
  Screen screen;

  STOCH_LAYOUT_FN int64_t padded_rows() const { return (rows + kGroupRows - 1) / kGroupRows * kGroupRows; }
  // Offset of eight numbers from column 8 * vector on, in vectors.
  STOCH_LAYOUT_FN int64_t vector_offset(int64_t row, int64_t vector) const {
    const int64_t step = row / kGroupRows * (padded_cols / kStepCols) + vector / 4;
    return (step * 2 + row / 8 % 2) * 32 + row % 8 * 4 + vector % 4;
  }
};

// Plain halves for cuBLAS.
struct HalfWeightView {
  const uint16_t* data = nullptr;  // [rows, cols]
  int64_t rows = 0;
  int64_t cols = 0;
};

class CudaLinear final : public LinearWeight {
 public:
  using View = std::variant<ScWeightView, ExactWeightView, FixedWeightView, HalfWeightView>;

  CudaLinear(Device device, LinearSpec spec, View view, Buffer memory);
  // With extras, integers or a multiplier table (weights/mixed.h); view<ScWeightView> is one of its parts.
  CudaLinear(Device device, LinearSpec spec, std::unique_ptr<MixedWeight> mixed);
  ~CudaLinear() override;

  Device device() const override { return device_; }
  int64_t rows() const override;
  int64_t cols() const override;
  const LinearSpec& spec() const override { return spec_; }
  int64_t bytes() const override;
  int64_t stream_bytes() const override;

  // Null: a uniform operator of streams, an exact matrix, or halves.
  const MixedWeight* mixed() const { return mixed_.get(); }
  template <typename T>
  const T& view() const {
    return std::get<T>(view_);
  }
  // A weight of precision kFp32.
  bool is_fixed_point() const { return std::holds_alternative<FixedWeightView>(view_); }

 private:
  Device device_;
  LinearSpec spec_;
  View view_;
  Buffer memory_;
  std::unique_ptr<MixedWeight> mixed_;
};

// Rows of a table, plain or inside an exact LM head (tied embeddings).
struct EmbeddingView {
  enum class Order : uint8_t {
    kPlain,  // row-major [rows, cols]
    kExact,  // ExactWeightView's
    kFixed,  // FixedWeightView's
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
  Buffer memory_;  // empty where the table is the tied head's memory, which then must live longer
};

// Bytes that a FixedWeightView::Screen takes.
int64_t ScreenBytes(int64_t rows, int64_t cols);

// The ops of Backend, for one device.
std::unique_ptr<CudaLinear> MakeLinear(DeviceContext& ctx, Uploader& uploader, std::span<const WeightSource> parts,
                                       const LinearSpec& spec);
std::unique_ptr<CudaLinear> MakeLinearRows(DeviceContext& ctx, Uploader& uploader, const WeightSource& source,
                                           const LinearSpec& spec, int64_t first, int64_t count);
Buffer MakeVector(DeviceContext& ctx, Uploader& uploader, const WeightSource& source);
std::unique_ptr<CudaEmbedding> MakeEmbedding(DeviceContext& ctx, Uploader& uploader, const WeightSource& source,
                                             const LinearWeight* tied);
Backend::PlainLinear Unpack(DeviceContext& ctx, const CudaLinear& weight);

}  // namespace stoch::cuda
