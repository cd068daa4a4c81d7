// SPDX-License-Identifier: Apache-2.0
#include "tests/loader/quantized_samples.h"

#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "kernels/math/half.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

using Json = nlohmann::json;
using Kind = QuantizedKind;

constexpr int64_t kBlock[2] = {48, 40};
constexpr int kAwqOrder[8] = {0, 4, 1, 5, 2, 6, 3, 7};

template <typename T>
std::vector<std::byte> BytesOf(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

uint16_t RoundToBf16(float x) {
  const uint32_t bits = FloatToBits(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// By the definition: (-1)^s 2^(e - 7) (1 + m / 8), or 2^-6 m / 8 where e is 0.
float E4M3(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(1 + mantissa / 8.0, exponent - 7);
  return static_cast<float>((code & 0x80) != 0 ? -magnitude : magnitude);
}

float F16(float x) { return F16ToFloat(FloatToF16(x)); }

class Maker {
 public:
  Maker(const QuantizedSample& sample, QuantizedModel* model) : sample_(sample), model_(*model) {}

  void Add(const StoredTensor& tensor) {
    module_ = tensor.name.substr(0, tensor.name.size() - 7);
    rows_ = tensor.shape[0];
    cols_ = tensor.shape[1];
    numbers_.assign(static_cast<size_t>(rows_ * cols_), 0.0f);
    const bool fp8 = sample_.kind != Kind::kGptq && sample_.kind != Kind::kAwq;
    fp8 ? AddFp8() : AddPacked();
    model_.numbers[tensor.name] = numbers_;
  }

 private:
  void Store(const std::string& name, DType dtype, std::vector<int64_t> shape, std::vector<std::byte> bytes) {
    model_.tensors.push_back({module_ + name, dtype, std::move(shape), std::move(bytes)});
  }

  float& At(int64_t row, int64_t col) { return numbers_[static_cast<size_t>(row * cols_ + col)]; }
  int Draw(int below) { return static_cast<int>(random_() % static_cast<uint32_t>(below)); }
  float DrawScale() { return std::ldexp(1.0f + static_cast<float>(Draw(1000)) / 1000.0f, Draw(6) - 14); }

  void AddFp8() {
    const int64_t high = sample_.kind == Kind::kFp8Block ? kBlock[0] : sample_.kind == Kind::kFp8Row ? 1 : rows_;
    const int64_t wide = sample_.kind == Kind::kFp8Block ? kBlock[1] : cols_;
    const int64_t down = (rows_ + high - 1) / high, across = (cols_ + wide - 1) / wide;
    std::vector<float> scales;
    std::vector<uint16_t> halves;
    for (int64_t i = 0; i < down * across; ++i) {
      float scale = DrawScale();
      halves.push_back(sample_.scales == DType::kF16 ? FloatToF16(scale) : RoundToBf16(scale));
      if (sample_.scales == DType::kF16) scale = F16ToFloat(halves.back());
      if (sample_.scales == DType::kBF16) scale = Bf16ToFloat(halves.back());
      scales.push_back(scale);
    }
    std::vector<uint8_t> codes;
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t col = 0; col < cols_; ++col) {
        const auto code = static_cast<uint8_t>(Draw(127) | Draw(2) << 7);
        codes.push_back(code);
        At(row, col) = E4M3(code) * scales[static_cast<size_t>(row / high * across + col / wide)];
        // compressed-tensors rounds to the type of its scales.
        if (sample_.kind == Kind::kFp8Block) continue;
        if (sample_.scales == DType::kF16) At(row, col) = F16(At(row, col));
        if (sample_.scales == DType::kBF16) At(row, col) = Bf16ToFloat(RoundToBf16(At(row, col)));
      }
    }
    Store(".weight", DType::kU8, {rows_, cols_}, BytesOf(codes));
    std::vector<int64_t> shape = {down, across};
    if (sample_.kind == Kind::kFp8Tensor) shape = {1};
    Store(sample_.kind == Kind::kFp8Block ? ".weight_scale_inv" : ".weight_scale", sample_.scales, shape,
          sample_.scales == DType::kF32 ? BytesOf(scales) : BytesOf(halves));
  }

  void AddPacked() {
    const bool gptq = sample_.kind == Kind::kGptq;
    const int64_t group = sample_.group < 0 ? cols_ : sample_.group;
    const int64_t groups = (cols_ + group - 1) / group;
    std::vector<uint16_t> scales;
    for (int64_t i = 0; i < groups * rows_; ++i) scales.push_back(FloatToF16(DrawScale() / 256));  // some subnormal
    std::vector<int32_t> g_idx;
    for (int64_t i = 0; i < cols_; ++i) {
      g_idx.push_back(static_cast<int32_t>(sample_.shuffled ? Draw(static_cast<int>(groups)) : i / group));
    }
    const auto place = [&](int64_t row) { return gptq ? row % 8 : kAwqOrder[row % 8]; };
    std::vector<uint32_t> zeros(static_cast<size_t>(groups * rows_ / 8)), words(static_cast<size_t>(rows_ * cols_ / 8));
    std::vector<int> zero_of;
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t row = 0; row < rows_; ++row) {
        zero_of.push_back(Draw(16));
        zeros[static_cast<size_t>(g * (rows_ / 8) + row / 8)] |= static_cast<uint32_t>(zero_of.back())
                                                                 << 4 * place(row);
      }
    }
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t col = 0; col < cols_; ++col) {
        const auto code = static_cast<uint32_t>(Draw(16));
        const auto word = static_cast<size_t>(gptq ? col / 8 * rows_ + row : col * (rows_ / 8) + row / 8);
        words[word] |= code << 4 * (gptq ? col % 8 : place(row));
        const auto at = static_cast<size_t>(g_idx[static_cast<size_t>(col)] * rows_ + row);
        const int zero = zero_of[at] + (gptq ? sample_.zeros_added : 0);
        At(row, col) = F16(F16ToFloat(scales[at]) * static_cast<float>(static_cast<int>(code) - zero));
      }
    }
    Store(".qweight", DType::kI32, gptq ? std::vector{cols_ / 8, rows_} : std::vector{cols_, rows_ / 8},
          BytesOf(words));
    Store(".qzeros", DType::kI32, {groups, rows_ / 8}, BytesOf(zeros));
    Store(".scales", DType::kF16, {groups, rows_}, BytesOf(scales));
    if (sample_.shuffled) Store(".g_idx", DType::kI32, {cols_}, BytesOf(g_idx));
  }

  const QuantizedSample& sample_;
  QuantizedModel& model_;
  std::mt19937 random_{20261128};
  std::string module_;
  int64_t rows_ = 0, cols_ = 0;
  std::vector<float> numbers_;
};

Json ConfigOf(const QuantizedSample& sample) {
  switch (sample.kind) {
    case Kind::kFp8Block:
      return {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}, {"weight_block_size", kBlock}};
    case Kind::kFp8Row:
    case Kind::kFp8Tensor: {
      const Json weights = {
          {"num_bits", 8}, {"type", "float"}, {"strategy", sample.kind == Kind::kFp8Row ? "channel" : "tensor"}};
      return {{"quant_method", "compressed-tensors"},
              {"format", "float-quantized"},
              {"ignore", {"lm_head"}},
              {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
    }
    case Kind::kGptq:
      return {{"quant_method", "gptq"},
              {"bits", 4},
              {"group_size", sample.group},
              {"desc_act", sample.shuffled},
              {"sym", false},
              {"checkpoint_format", sample.zeros_added == 1 ? "gptq" : "gptq_v2"}};
    case Kind::kAwq: return {{"quant_method", "awq"}, {"bits", 4}, {"group_size", sample.group}, {"version", "gemm"}};
  }
  return {};
}

}  // namespace

QuantizedModel MakeQuantized(const QuantizedSample& sample) {
  TinyModel base;
  base.config.intermediate_size = 176;
  QuantizedModel model;
  Json config = Json::parse(ConfigJson(base.config));
  config["quantization_config"] = ConfigOf(sample);
  model.config = config.dump();
  Maker maker(sample, &model);
  for (const StoredTensor& tensor : TinyModelTensors(base)) {
    const bool matrix = tensor.name.find("_proj.weight") != std::string::npos;
    matrix ? maker.Add(tensor) : model.tensors.push_back(tensor);
  }
  return model;
}

// WriteTensors has no FP8: it is written as U8 and renamed in the header, which becomes longer by its seven letters.
void WriteQuantized(const std::filesystem::path& folder, const QuantizedModel& model) {
  WriteFile(folder / "config.json", model.config);
  const std::filesystem::path path = folder / "model.safetensors";
  WriteTensors(path, model.tensors);
  const std::string file = ReadFile(path);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  std::string header = file.substr(8, length);
  for (size_t at = header.find("\"U8\""); at != std::string::npos; at = header.find("\"U8\"", at)) {
    header.replace(at, 4, "\"F8_E4M3\"");
  }
  length = header.size();
  std::string size(sizeof(length), '\0');
  std::memcpy(size.data(), &length, sizeof(length));
  uint64_t before = 0;
  std::memcpy(&before, file.data(), sizeof(before));
  WriteFile(path, size + header + file.substr(8 + before));
}

}  // namespace stoch::test
