// SPDX-License-Identifier: Apache-2.0
#include "loader/checkpoint/quantized_matrix.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "kernels/base/error.h"
#include "loader/checkpoint/quantized/decoders.h"
#include "loader/quote.h"

namespace stoch::quantized {
namespace {

using Method = Quantization::Method;
using Shape = std::vector<int64_t>;

constexpr int64_t kNibbles = 8;  // of a word
constexpr std::string_view kE4M3 = "F8_E4M3";
// Column 8 j + i is this nibble of word j. Source: AutoAWQ, awq/utils/packing_utils.py.
constexpr std::array<int, 8> kAwqOrder = {0, 4, 1, 5, 2, 6, 3, 7};

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

[[noreturn]] void Fail(const CheckpointTensor& found, const std::string& expected, const std::string& got) {
  throw InvalidInput(found.file->path().string() + ": tensor " + Quoted(found.tensor->name) + ": expected " + expected +
                     ", got " + got);
}

const std::byte* DataOf(const CheckpointTensor& found) { return found.file->Data(*found.tensor).data(); }

// Finds the tensors of one module, and remembers them.
class Module {
 public:
  Module(const Checkpoint& checkpoint, std::string name, Matrix* result)
      : checkpoint_(checkpoint), name_(std::move(name)), result_(*result) {}

  const CheckpointTensor* Find(std::string_view part) {
    const CheckpointTensor* found = checkpoint_.Find(name_ + "." + std::string(part));
    if (found != nullptr) result_.tensors.push_back(found);
    return found;
  }

  const CheckpointTensor& Require(std::string_view part) {
    const CheckpointTensor* found = Find(part);
    if (found != nullptr) return *found;
    throw InvalidInput(result_.tensors.front()->file->path().string() + ": tensor " +
                       Quoted(name_ + "." + std::string(part)) + " is missing, next to " +
                       Quoted(result_.tensors.front()->tensor->name));
  }

  const CheckpointTensor& Require(std::string_view part, DType dtype, const Shape& shape) {
    const CheckpointTensor& found = Require(part);
    CheckDType(found, dtype);
    CheckShape(found, shape);
    return found;
  }

  static void CheckDType(const CheckpointTensor& found, DType dtype) {
    if (found.tensor->other_dtype.empty() && found.tensor->dtype == dtype) return;
    Fail(found, std::string(DTypeName(dtype)), std::string(found.tensor->dtype_name()));
  }

  static void CheckShape(const CheckpointTensor& found, const Shape& shape) {
    if (found.tensor->shape == shape) return;
    Fail(found, "shape " + ShapeText(shape) + " by config.json", ShapeText(found.tensor->shape));
  }

 private:
  const Checkpoint& checkpoint_;
  std::string name_;
  Matrix& result_;
};

struct Size {
  int64_t rows, cols;
};

// The block that each of the scales is for.
std::array<int64_t, 2> BlockOf(const CheckpointTensor& scales, const Quantization& quantization, const Size& size) {
  const Shape& shape = scales.tensor->shape;
  if (shape.empty() || shape == Shape{1}) return {size.rows, size.cols};
  if (shape == Shape{size.rows, 1} || shape == Shape{size.rows}) return {1, size.cols};
  const auto [high, wide] = quantization.block;
  if (high == 0) {
    Fail(scales, "a scale for all, [1], or for every row, " + ShapeText(Shape{size.rows, 1}), ShapeText(shape));
  }
  Module::CheckShape(scales, {CeilDivide(size.rows, high), CeilDivide(size.cols, wide)});
  return {high, wide};
}

// In F32, where compressed-tensors rounds to the type of its scales.
Rounding RoundingOf(Method method, DType scales) {
  if (method != Method::kCompressedFp8 || scales == DType::kF32) return Rounding::kNone;
  return scales == DType::kF16 ? Rounding::kF16 : Rounding::kBf16;
}

void OpenFp8(Module& module, const Quantization& quantization, const Size& size, Matrix* result) {
  const CheckpointTensor* codes = module.Find("weight");
  if (codes == nullptr) return;
  if (codes->tensor->other_dtype != kE4M3) {
    Fail(*codes, "F32, F16, BF16 or F8_E4M3 weights", std::string(codes->tensor->dtype_name()));
  }
  Module::CheckShape(*codes, {size.rows, size.cols});
  const CheckpointTensor* inverse = module.Find("weight_scale_inv");
  const CheckpointTensor& scales = inverse != nullptr ? *inverse : module.Require("weight_scale");
  const DType dtype = scales.tensor->dtype;
  if (!scales.tensor->other_dtype.empty() || (dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16)) {
    Fail(scales, "F32, F16 or BF16", std::string(scales.tensor->dtype_name()));
  }
  const std::array<int64_t, 2> block = BlockOf(scales, quantization, size);
  result->decoder =
      std::make_unique<Fp8Decoder>(DataOf(*codes), size.rows, size.cols, StoredFloats{DataOf(scales), dtype}, block,
                                   RoundingOf(quantization.method, dtype));
  result->stored = kE4M3;
}

// Groups of columns that follow each other are not listed.
std::vector<int32_t> GroupsOf(const CheckpointTensor* g_idx, const Size& size, int64_t group, int64_t groups) {
  std::vector<int32_t> listed(static_cast<size_t>(size.cols));
  bool in_order = group % kNibbles == 0;
  if (g_idx == nullptr) {
    if (in_order) return {};
    for (int64_t i = 0; i < size.cols; ++i) listed[static_cast<size_t>(i)] = static_cast<int32_t>(i / group);
    return listed;
  }
  Module::CheckDType(*g_idx, DType::kI32);
  Module::CheckShape(*g_idx, {size.cols});
  std::memcpy(listed.data(), DataOf(*g_idx), listed.size() * sizeof(int32_t));
  for (int64_t i = 0; i < size.cols; ++i) {
    const int32_t at = listed[static_cast<size_t>(i)];
    if (at < 0 || at >= groups) {
      Fail(*g_idx, "groups from 0 to " + std::to_string(groups - 1),
           std::to_string(at) + " of column " + std::to_string(i));
    }
    in_order = in_order && at == i / group;
  }
  return in_order ? std::vector<int32_t>{} : listed;
}

void OpenPacked(Module& module, const Quantization& quantization, const Size& size, Matrix* result) {
  const CheckpointTensor* words = module.Find("qweight");
  if (words == nullptr) return;
  const bool gptq = quantization.method == Method::kGptq;
  if (size.rows % kNibbles != 0 || (gptq && size.cols % kNibbles != 0)) {
    Fail(*words, "a matrix whose sides are multiples of 8", ShapeText(Shape{size.rows, size.cols}));
  }
  Module::CheckDType(*words, DType::kI32);
  Module::CheckShape(*words, gptq ? Shape{size.cols / kNibbles, size.rows} : Shape{size.cols, size.rows / kNibbles});
  const int64_t group = quantization.group_size == 0 ? size.cols : std::min(quantization.group_size, size.cols);
  GroupTables tables;
  tables.rows = size.rows;
  tables.groups = CeilDivide(size.cols, group);
  tables.zeros = DataOf(module.Require("qzeros", DType::kI32, {tables.groups, size.rows / kNibbles}));
  tables.scales = {DataOf(module.Require("scales", DType::kF16, {tables.groups, size.rows})), DType::kF16};
  result->stored = std::string(gptq ? "GPTQ" : "AWQ") + " 4 bits";
  if (!gptq) {
    tables.order = kAwqOrder;
    result->decoder = std::make_unique<AwqDecoder>(DataOf(*words), size.rows, size.cols, tables, group);
    return;
  }
  tables.added = quantization.zeros_minus_one ? 1 : 0;
  const CheckpointTensor* g_idx = quantization.needs_g_idx ? &module.Require("g_idx") : module.Find("g_idx");
  result->decoder = std::make_unique<GptqDecoder>(DataOf(*words), size.rows, size.cols, tables, group,
                                                  GroupsOf(g_idx, size, group, tables.groups));
}

}  // namespace

Matrix OpenMatrix(const Checkpoint& checkpoint, const Quantization& quantization, const std::string& module,
                  int64_t rows, int64_t cols) {
  Matrix result;
  Module tensors(checkpoint, module, &result);
  if (quantization.is_fp8()) {
    OpenFp8(tensors, quantization, {rows, cols}, &result);
  } else {
    OpenPacked(tensors, quantization, {rows, cols}, &result);
  }
  return result;
}

std::string MainTensor(const Quantization& quantization, const std::string& module) {
  return module + (quantization.is_fp8() ? ".weight" : ".qweight");
}

bool IsIgnored(const Checkpoint& checkpoint, const Quantization& quantization, std::string_view name) {
  constexpr std::string_view kScales[] = {".input_scale", ".output_scale", ".q_scale",
                                          ".k_scale",     ".v_scale",      ".kv_scale"};
  if (quantization.is_fp8()) {
    return std::any_of(std::begin(kScales), std::end(kScales), [name](auto end) { return name.ends_with(end); });
  }
  constexpr std::string_view kBias = ".bias";
  if (!name.ends_with(kBias)) return false;
  const std::string module(name.substr(0, name.size() - kBias.size()));
  if (checkpoint.Find(MainTensor(quantization, module)) == nullptr) return false;
  const CheckpointTensor& bias = *checkpoint.Find(name);
  const auto bytes = bias.file->Data(*bias.tensor);
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace stoch::quantized
