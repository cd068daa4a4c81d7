// SPDX-License-Identifier: Apache-2.0
// Quantized checkpoints: the numbers of their matrices, bit for bit.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "kernels/math/half.h"
#include "loader/checkpoint/quantized/codes.h"
#include "loader/checkpoint/weight_store.h"
#include "loader/config/decoder_tensors.h"
#include "tests/loader/quantized_samples.h"
#include "tests/support/shared_folder.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

using quantized::Rounding;

// All of a matrix as floats, whatever its source.
std::vector<float> Numbers(const WeightSource& source) {
  std::vector<float> numbers(static_cast<size_t>(source.rows * source.cols));
  if (source.decoder != nullptr) {
    source.decoder->Decode(source.first, source.rows * source.cols, numbers.data());
    return numbers;
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    const char* at = static_cast<const char*>(source.host) + i * DTypeSize(source.dtype);
    uint16_t half = 0;
    std::memcpy(&half, at, sizeof(half));
    if (source.dtype == DType::kF32) std::memcpy(&numbers[i], at, sizeof(float));
    if (source.dtype == DType::kF16) numbers[i] = F16ToFloat(half);
    if (source.dtype == DType::kBF16) numbers[i] = Bf16ToFloat(half);
  }
  return numbers;
}

// What a device makes of the codes of a matrix and their scales (WeightCodes).
std::vector<float> NumbersOfCodes(const WeightDecoder& decoder) {
  const WeightCodes& codes = *decoder.codes();
  const auto blocks = static_cast<size_t>(codes.blocks());
  std::vector<float> numbers, scales(blocks), zeros(blocks);
  for (int64_t row = 0; row < codes.rows; ++row) {
    decoder.Scales(row, scales.data(), zeros.data());
    for (int64_t col = 0; col < codes.cols; ++col) {
      float number = 0;
      if (codes.form == WeightCodes::Form::kE4m3) {
        quantized::ScaleE4M3(codes.data + row * codes.cols + col, 1, 1.0f, Rounding::kNone, &number);
      } else {
        uint32_t word = 0;
        std::memcpy(&word, codes.data + (col / 8 * codes.rows + row) * 4, sizeof(word));
        number = static_cast<float>(word >> col % 8 * 4 & 15);
      }
      const auto block = static_cast<size_t>(col / codes.block);
      const float y = (number - zeros[block]) * scales[block];
      numbers.push_back(codes.rounded == DType::kF16    ? F16ToFloat(FloatToF16(y))
                        : codes.rounded == DType::kBF16 ? RoundToBf16(y)
                                                        : y);
    }
  }
  return numbers;
}

WeightSource SourceOf(const ModelFiles& files, const DecoderTensor& tensor) {
  return files.weights->Matrix(tensor.name, tensor.shape.size() == 2 ? tensor.shape[0] : 1, tensor.shape.back());
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(QuantizedCodes, EveryE4M3) {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::byte>(code);
    float value = 0;
    quantized::ScaleE4M3(&byte, 1, 1.0f, Rounding::kNone, &value);
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << code;
      continue;
    }
    const double magnitude = exponent == 0 ? mantissa / 512.0 : std::ldexp(1 + mantissa / 8.0, exponent - 7);
    EXPECT_EQ(static_cast<double>(value), code < 128 ? magnitude : -magnitude) << code;
    EXPECT_EQ(std::signbit(value), code >= 128) << code;
  }
}

// Scales of every exponent, so that products are subnormal, normal and infinite in the type that they are rounded to.
TEST(QuantizedCodes, RoundingIsThatOfOneNumber) {
  std::byte codes[21];
  for (size_t i = 0; i < 21; ++i) codes[i] = static_cast<std::byte>(i * 11 + 3);
  for (uint32_t bits = 1; bits < 0x7f800000; bits += 0x3a9877) {
    const float scale = BitsToFloat(bits);
    std::vector<float> plain(21), half(21), brain(21);
    quantized::ScaleE4M3(codes, 21, scale, Rounding::kNone, plain.data());
    quantized::ScaleE4M3(codes, 21, scale, Rounding::kF16, half.data());
    quantized::ScaleE4M3(codes, 21, scale, Rounding::kBf16, brain.data());
    for (size_t i = 0; i < 21; ++i) {
      if (std::isnan(plain[i])) continue;
      const uint32_t magnitude = FloatToBits(plain[i]);
      EXPECT_EQ(FloatToBits(half[i]), FloatToBits(F16ToFloat(FloatToF16(plain[i])))) << plain[i];
      EXPECT_EQ(FloatToBits(brain[i]), (magnitude + 0x7fff + (magnitude >> 16 & 1)) & 0xffff0000) << plain[i];
    }
  }
}

const QuantizedSample kSamples[] = {
    {.kind = QuantizedKind::kFp8Block},
    {.kind = QuantizedKind::kFp8Block, .scales = DType::kBF16},
    {.kind = QuantizedKind::kFp8Row, .scales = DType::kBF16},
    {.kind = QuantizedKind::kFp8Row, .scales = DType::kF32},
    {.kind = QuantizedKind::kFp8Tensor, .scales = DType::kF16},
    {.kind = QuantizedKind::kFp8Tensor, .scales = DType::kBF16},
    {.kind = QuantizedKind::kGptq},
    {.kind = QuantizedKind::kGptq, .group = -1, .zeros_added = 0},
    {.kind = QuantizedKind::kGptq, .group = 20},  // no whole words, and a smaller last group
    {.kind = QuantizedKind::kGptq, .shuffled = true},
    {.kind = QuantizedKind::kAwq},
    {.kind = QuantizedKind::kAwq, .group = -1},
    {.kind = QuantizedKind::kAwq, .group = 20},
};

TEST(QuantizedModel, NumbersAreThoseOfTheFormulas) {
  for (const QuantizedSample& sample : kSamples) {
    SCOPED_TRACE(static_cast<int>(sample.kind));
    SCOPED_TRACE(sample.group);
    const TempDir folder;
    const QuantizedModel model = MakeQuantized(sample);
    WriteQuantized(folder.path(), model);
    const ModelFiles files = OpenModelFiles(folder.path().string());
    int quantized = 0;
    for (const DecoderTensor& tensor : DecoderTensors(files.config)) {
      const auto found = model.numbers.find(tensor.name);
      if (found == model.numbers.end()) continue;
      ++quantized;
      const WeightSource source = SourceOf(files, tensor);
      EXPECT_TRUE(SameBits(Numbers(source), found->second)) << tensor.name;
      // Devices take codes but of AWQ, whose words have eight rows each, and of GPTQ with groups that cut words.
      const bool has_codes =
          sample.kind != QuantizedKind::kAwq && !sample.shuffled && (sample.group % 8 == 0 || sample.group < 0);
      ASSERT_EQ(source.decoder->codes() != nullptr, has_codes) << tensor.name;
      if (has_codes) {
        EXPECT_TRUE(SameBits(NumbersOfCodes(*source.decoder), found->second)) << tensor.name;
      }
      files.weights->Release(tensor.name);
      // Any rows on their own, as devices that share a layer read them.
      const WeightSource slice = SliceRows(source, 9, 5);
      const auto begin = found->second.begin() + 9 * source.cols;
      EXPECT_TRUE(SameBits(Numbers(slice), {begin, begin + 5 * source.cols})) << tensor.name;
    }
    EXPECT_EQ(quantized, 14);
  }
}

// FP8 with a scale a row, as a Phi-3 of which RoPE turns 12 of 16 dimensions: rows of fused matrices, those of q and k in the
// order in which halves of 8 are turned.
TEST(QuantizedModel, FusedMatricesAndPartsOfHeads) {
  const TempDir folder;
  QuantizedModel model = MakeQuantized({.kind = QuantizedKind::kFp8Row, .scales = DType::kF32});
  auto config = nlohmann::json::parse(model.config);
  config["model_type"] = "phi3";
  config["architectures"] = {"Phi3ForCausalLM"};
  config["partial_rotary_factor"] = 0.75;
  model.config = config.dump();
  std::vector<StoredTensor> tensors;
  for (StoredTensor& tensor : model.tensors) {
    std::string fused = tensor.name;
    for (const auto& [part, whole] : {std::pair{".q_proj", ".qkv_proj"},
                                      {".k_proj", ".qkv_proj"},
                                      {".v_proj", ".qkv_proj"},
                                      {".gate_proj", ".gate_up_proj"},
                                      {".up_proj", ".gate_up_proj"}}) {
      const size_t at = fused.find(part);
      if (at != std::string::npos) fused.replace(at, std::string_view(part).size(), whole);
    }
    const auto found =
        std::find_if(tensors.begin(), tensors.end(), [&](const StoredTensor& other) { return other.name == fused; });
    if (found == tensors.end()) {
      tensor.name = fused;
      tensors.push_back(std::move(tensor));
      continue;
    }
    found->shape.front() += tensor.shape.front();
    found->bytes.insert(found->bytes.end(), tensor.bytes.begin(), tensor.bytes.end());
  }
  model.tensors = std::move(tensors);
  WriteQuantized(folder.path(), model);
  const ModelFiles files = OpenModelFiles(folder.path().string());
  constexpr int64_t kOrder[16] = {0, 1, 2, 3, 4, 5, 12, 13, 6, 7, 8, 9, 10, 11, 14, 15};
  for (const DecoderTensor& tensor : DecoderTensors(files.config)) {
    const auto found = model.numbers.find(tensor.name);
    if (found == model.numbers.end()) continue;
    const bool turns =
        tensor.name.find("q_proj") != std::string::npos || tensor.name.find("k_proj") != std::string::npos;
    const WeightSource source = SourceOf(files, tensor);
    std::vector<float> expected;
    for (int64_t row = 0; row < source.rows; ++row) {
      const int64_t from = turns ? row - row % 16 + kOrder[row % 16] : row;
      const auto begin = found->second.begin() + from * source.cols;
      expected.insert(expected.end(), begin, begin + source.cols);
    }
    EXPECT_TRUE(SameBits(Numbers(source), expected)) << tensor.name;
    const auto begin = expected.begin() + 9 * source.cols;
    EXPECT_TRUE(SameBits(Numbers(SliceRows(source, 9, 5)), {begin, begin + 5 * source.cols})) << tensor.name;
    files.weights->Release(tensor.name);
  }
}

// Strips belong to threads: rows of two matrices in turns, by several.
TEST(QuantizedModel, ThreadsReadRowsInAnyOrder) {
  for (const QuantizedKind kind : {QuantizedKind::kGptq, QuantizedKind::kAwq}) {
    const TempDir folder;
    const QuantizedModel model = MakeQuantized({.kind = kind});
    WriteQuantized(folder.path(), model);
    const ModelFiles files = OpenModelFiles(folder.path().string());
    const std::string names[] = {"model.layers.0.self_attn.q_proj.weight", "model.layers.1.self_attn.q_proj.weight"};
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&, thread] {
        for (int64_t i = 0; i < 256; ++i) {
          const std::string& name = names[i % 2];
          const int64_t row = (i * 37 + thread) % 64;
          const std::vector<float> got = Numbers(SliceRows(files.weights->Matrix(name, 64, 64), row, 1));
          const auto begin = model.numbers.at(name).begin() + row * 64;
          if (!SameBits(got, {begin, begin + 64})) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong.load(), 0);
  }
}

TEST(QuantizedModel, NumbersAreThoseOfTheDequantizedFolders) {
  STOCH_REQUIRE_SHARED();
  for (const std::string name : {"tiny-fp8-block", "tiny-fp8-channel", "tiny-gptq", "tiny-awq"}) {
    const std::filesystem::path folder = SharedFolder() / "models" / name;
    const ModelFiles files = OpenModelFiles(folder.string());
    const ModelFiles plain = OpenModelFiles(folder.string() + "-dequantized");
    for (const DecoderTensor& tensor : DecoderTensors(files.config)) {
      EXPECT_TRUE(SameBits(Numbers(SourceOf(files, tensor)), Numbers(SourceOf(plain, tensor)))) << tensor.name;
    }
  }
}

// Matrices that were left as they are, next to quantized ones, and tensors that change no weight.
TEST(QuantizedModel, PlainMatricesAndScalesOfActivations) {
  const TempDir folder;
  QuantizedModel model = MakeQuantized({.kind = QuantizedKind::kFp8Row});
  const std::string left = "model.layers.1.mlp.down_proj";
  std::erase_if(model.tensors, [&](const StoredTensor& tensor) { return tensor.name.starts_with(left); });
  model.tensors.push_back({left + ".weight", DType::kBF16, {64, 176}, std::vector<std::byte>(64 * 176 * 2)});
  const std::string scales[] = {"self_attn.q_proj.input_scale", "self_attn.k_scale", "self_attn.v_scale"};
  for (const std::string& name : scales) {
    model.tensors.push_back({"model.layers.0." + name, DType::kF32, {1}, std::vector<std::byte>(4)});
  }
  WriteQuantized(folder.path(), model);
  const ModelFiles files = OpenModelFiles(folder.path().string());
  EXPECT_EQ(files.weights->Matrix(left + ".weight", 64, 176).dtype, DType::kBF16);
  EXPECT_EQ(files.weights->tensors()[2].stored, "F8_E4M3");
}

// Early files of GPTQ have no quantization_config, and a bias of zeros for every linear.
TEST(QuantizedModel, EarlyFormsOfGptqAndAwq) {
  QuantizedModel model = MakeQuantized({.kind = QuantizedKind::kGptq});
  TinyModel base;
  base.config.intermediate_size = 176;
  const TempDir folder;
  const auto write = [&](std::byte bias) {
    QuantizedModel early = model;
    early.config = ConfigJson(base.config);
    early.tensors.push_back(
        {"model.layers.0.self_attn.q_proj.bias", DType::kF16, {64}, std::vector<std::byte>(128, bias)});
    WriteQuantized(folder.path(), early);
  };
  write(std::byte{0});
  EXPECT_ANY_THROW(OpenModelFiles(folder.path().string()));
  WriteFile(folder / "quantize_config.json",
            R"({"bits": 4, "group_size": 16, "damp_percent": 0.01, "desc_act": false})");
  const ModelFiles files = OpenModelFiles(folder.path().string());
  const std::string up = "model.layers.1.mlp.up_proj.weight";
  EXPECT_TRUE(SameBits(Numbers(files.weights->Matrix(up, 176, 64)), model.numbers.at(up)));
  write(std::byte{1});
  EXPECT_ANY_THROW(OpenModelFiles(folder.path().string()));

  model = MakeQuantized({.kind = QuantizedKind::kAwq});
  model.config = ConfigJson(base.config);
  std::filesystem::remove(folder / "quantize_config.json");
  WriteQuantized(folder.path(), model);
  WriteFile(folder / "quant_config.json", R"({"zero_point": true, "q_group_size": 16, "w_bit": 4, "version": "GEMM"})");
  EXPECT_TRUE(
      SameBits(Numbers(OpenModelFiles(folder.path().string()).weights->Matrix(up, 176, 64)), model.numbers.at(up)));
}

}  // namespace
}  // namespace stoch::test
