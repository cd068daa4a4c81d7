// SPDX-License-Identifier: Apache-2.0
// Quantized checkpoints that are broken or of another kind: one sentence each, naming the tensor or key and what is wrong.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "kernels/base/error.h"
#include "loader/checkpoint/weight_store.h"
#include "loader/config/decoder_tensors.h"
#include "tests/loader/quantized_samples.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

using Json = nlohmann::json;
using Parts = std::initializer_list<std::string_view>;
using Kind = QuantizedKind;

const std::string kQ = "model.layers.0.self_attn.q_proj";

StoredTensor& Named(QuantizedModel& model, const std::string& name) {
  for (StoredTensor& tensor : model.tensors) {
    if (tensor.name == name) return tensor;
  }
  throw std::logic_error("no tensor " + name);
}

void ExpectRefused(const QuantizedModel& model, Parts parts) {
  const TempDir folder;
  WriteQuantized(folder.path(), model);
  SCOPED_TRACE(*parts.begin());
  ExpectInvalid([&] { OpenModelFiles(folder.path().string()); }, parts);
}

void ExpectTensorsRefused(const QuantizedSample& sample, const std::function<void(QuantizedModel&)>& edit,
                          Parts parts) {
  QuantizedModel model = MakeQuantized(sample);
  edit(model);
  ExpectRefused(model, parts);
}

void Reshape(StoredTensor& tensor, std::vector<int64_t> shape) {
  int64_t count = static_cast<int64_t>(DTypeSize(tensor.dtype));
  for (const int64_t dim : shape) count *= dim;
  tensor.shape = std::move(shape);
  tensor.bytes.resize(static_cast<size_t>(count));
}

void Retype(StoredTensor& tensor, DType dtype) {
  tensor.bytes.resize(tensor.bytes.size() / DTypeSize(tensor.dtype) * DTypeSize(dtype));
  tensor.dtype = dtype;
}

void Drop(QuantizedModel& model, const std::string& name) {
  std::erase_if(model.tensors, [&](const StoredTensor& tensor) { return tensor.name == name; });
}

TEST(QuantizedHostile, PackedTensors) {
  for (const Kind kind : {Kind::kGptq, Kind::kAwq}) {
    SCOPED_TRACE(kind == Kind::kGptq ? "gptq" : "awq");
    const auto refused = [&](const std::function<void(QuantizedModel&)>& edit, Parts parts) {
      ExpectTensorsRefused({.kind = kind}, edit, parts);
    };
    for (const std::string part : {".qzeros", ".scales"}) {
      refused([&](QuantizedModel& m) { Drop(m, kQ + part); }, {part + "\" is missing, next to", ".qweight"});
      refused(
          [&](QuantizedModel& m) {
            Reshape(Named(m, kQ + part), {1, 8});
          },
          {kQ + part, "expected shape [4, ", "got [1, 8]"});
    }
    refused([&](QuantizedModel& m) { Drop(m, kQ + ".qweight"); }, {kQ + ".qweight\" is missing"});
    refused([&](QuantizedModel& m) { Reshape(Named(m, kQ + ".qweight"), {7, 64}); }, {kQ + ".qweight", "got [7, 64]"});
    refused([&](QuantizedModel& m) { Reshape(Named(m, kQ + ".qweight"), {512}); }, {kQ + ".qweight", "got [512]"});
    refused([&](QuantizedModel& m) { Retype(Named(m, kQ + ".qweight"), DType::kI64); }, {"expected I32, got I64"});
    refused([&](QuantizedModel& m) { Retype(Named(m, kQ + ".qzeros"), DType::kF32); }, {"expected I32, got F32"});
    refused([&](QuantizedModel& m) { Retype(Named(m, kQ + ".scales"), DType::kF32); }, {"expected F16, got F32"});
    refused(
        [&](QuantizedModel& m) {
          m.tensors.push_back({kQ + ".extra", DType::kF32, {1}, std::vector<std::byte>(4)});
        },
        {kQ + ".extra", "expected only the tensors"});
  }
}

TEST(QuantizedHostile, GroupsOfColumns) {
  const QuantizedSample sample{.kind = Kind::kGptq, .shuffled = true};
  for (const int32_t group : {-1, 4, INT32_MAX, INT32_MIN}) {
    ExpectTensorsRefused(
        sample,
        [&](QuantizedModel& m) {
          const auto bytes = std::as_bytes(std::span(&group, 1));
          std::copy(bytes.begin(), bytes.end(), Named(m, kQ + ".g_idx").bytes.begin() + 4 * 63);
        },
        {kQ + ".g_idx", "expected groups from 0 to 3, got " + std::to_string(group) + " of column 63"});
  }
  ExpectTensorsRefused(sample, [](QuantizedModel& m) { Drop(m, kQ + ".g_idx"); }, {kQ + ".g_idx\" is missing"});
  ExpectTensorsRefused(sample, [](QuantizedModel& m) { Reshape(Named(m, kQ + ".g_idx"), {0}); }, {"got [0]"});
  ExpectTensorsRefused(sample, [](QuantizedModel& m) { Retype(Named(m, kQ + ".g_idx"), DType::kI64); }, {"got I64"});
}

TEST(QuantizedHostile, Fp8Tensors) {
  const auto refused = [&](Kind kind, const std::function<void(QuantizedModel&)>& edit, Parts parts) {
    ExpectTensorsRefused({.kind = kind}, edit, parts);
  };
  const std::string scales = kQ + ".weight_scale_inv";
  refused(Kind::kFp8Block, [&](QuantizedModel& m) { Drop(m, scales); }, {"q_proj.weight_scale\" is missing"});
  refused(Kind::kFp8Block,
          [&](QuantizedModel& m) {
            Reshape(Named(m, scales), {2, 3});
          },
          {scales, "expected shape [2, 2] by config.json, got [2, 3]"});
  refused(Kind::kFp8Block, [&](QuantizedModel& m) { Retype(Named(m, scales), DType::kI32); }, {scales, "got I32"});
  refused(Kind::kFp8Block, [&](QuantizedModel& m) { Retype(Named(m, scales), DType::kU8); }, {scales, "got F8_E4M3"});
  refused(Kind::kFp8Block, [&](QuantizedModel& m) { Reshape(Named(m, kQ + ".weight"), {64, 63}); }, {"got [64, 63]"});
  refused(Kind::kFp8Block, [&](QuantizedModel& m) { Retype(Named(m, kQ + ".weight"), DType::kI8); }, {"got I8"});
  refused(Kind::kFp8Row,
          [&](QuantizedModel& m) {
            Reshape(Named(m, kQ + ".weight_scale"), {1, 64});
          },
          {"expected a scale for all, [1], or for every row, [64, 1], got [1, 64]"});
  refused(Kind::kFp8Row, [&](QuantizedModel& m) { Reshape(Named(m, kQ + ".weight_scale"), {2}); }, {"got [2]"});
}

// Sizes that are no whole words.
TEST(QuantizedHostile, Sides) {
  QuantizedModel model = MakeQuantized({.kind = Kind::kGptq});
  Json config = Json::parse(model.config);
  config["intermediate_size"] = 172;
  model.config = config.dump();
  ExpectRefused(model, {"gate_proj.qweight", "multiples of 8, got [172, 64]"});
}

void ExpectConfigRefused(Kind kind, const Json& changes, Parts parts) {
  QuantizedModel model = MakeQuantized({.kind = kind});
  Json config = Json::parse(model.config);
  config["quantization_config"].merge_patch(changes);
  model.config = config.dump();
  ExpectRefused(model, parts);
}

TEST(QuantizedHostile, OtherMethods) {
  for (const std::string method :
       {"bitsandbytes", "hqq", "exl2", "exl3", "quip", "aqlm", "mxfp4", "modelopt", "fbgemm_fp8", "torchao",
        "auto-round", "eetq", "vptq", "higgs", "spqr", "marlin", ""}) {
    ExpectConfigRefused(Kind::kGptq, {{"quant_method", method}},
                        {"config.json: quantization_config: quant_method: expected \"fp8\"", "got \"" + method + "\"",
                         "stoch.torch.patch"});
  }
  ExpectConfigRefused(Kind::kGptq, {{"quant_method", nullptr}}, {"quant_method: expected", "got nothing"});
  ExpectConfigRefused(Kind::kGptq, {{"quant_method", 7}}, {"quant_method: expected a string"});
}

TEST(QuantizedHostile, OtherFormsOfTheMethods) {
  for (const int bits : {2, 3, 8}) {
    const std::string got = "got \"gptq\" of " + std::to_string(bits);
    ExpectConfigRefused(Kind::kGptq, {{"bits", bits}}, {"bits: expected", got, "stoch.torch.patch"});
  }
  ExpectConfigRefused(Kind::kGptq, {{"bits", nullptr}}, {"bits: expected an integer, got nothing"});
  ExpectConfigRefused(Kind::kGptq, {{"group_size", "16"}}, {"group_size: expected an integer"});
  ExpectConfigRefused(Kind::kGptq, {{"group_size", -2}}, {"group_size: expected -1 to"});
  for (const std::string format : {"marlin", "bitblas", "qqq", "gemm"}) {
    ExpectConfigRefused(Kind::kGptq, {{"checkpoint_format", format}},
                        {"checkpoint_format", "\"gptq\" in the format \"" + format});
  }
  ExpectConfigRefused(Kind::kGptq, {{"is_marlin_format", true}}, {"marlin"});
  ExpectConfigRefused(Kind::kGptq, {{"rotation", "hadamard"}},
                      {"\"rotation\": expected only keys whose meaning is known"});
  for (const std::string version : {"gemv", "gemv_fast", "llm-awq"}) {
    ExpectConfigRefused(Kind::kAwq, {{"version", version}}, {"version", "\"awq\" in the layout \"" + version});
  }
  ExpectConfigRefused(Kind::kAwq, {{"zero_point", false}}, {"zero_point", "without zero points"});
  ExpectConfigRefused(Kind::kFp8Block, {{"fmt", "e5m2"}}, {"fmt", "\"e5m2\""});
  ExpectConfigRefused(Kind::kFp8Block, {{"weight_block_size", {128}}}, {"weight_block_size: expected two numbers"});
  ExpectConfigRefused(Kind::kFp8Block, {{"weight_block_size", {0, 128}}}, {"weight_block_size: expected 1 to"});
  ExpectConfigRefused(Kind::kFp8Block, {{"weight_block_size", {1, 2, 3}}}, {"a list of at most 2 integers, got 3"});
}

TEST(QuantizedHostile, OtherFormsOfCompressedTensors) {
  for (const std::string format : {"pack-quantized", "int-quantized", "nvfp4-pack-quantized", "marlin-24"}) {
    ExpectConfigRefused(Kind::kFp8Row, {{"format", format}}, {"format", "in the format \"" + format});
  }
  const auto weights = [](const Json& changes) {
    return Json{{"config_groups", {{"group_0", {{"weights", changes}}}}}};
  };
  ExpectConfigRefused(Kind::kFp8Row, weights({{"num_bits", 4}}), {"\"float\" with 4 bits"});
  ExpectConfigRefused(Kind::kFp8Row, weights({{"type", "int"}}), {"\"int\" with 8 bits"});
  ExpectConfigRefused(Kind::kFp8Row, weights({{"strategy", "group"}}), {"with scales by \"group\""});
  ExpectConfigRefused(Kind::kFp8Row, weights({{"symmetric", false}}), {"with zero points"});
  ExpectConfigRefused(Kind::kFp8Row, {{"config_groups", nullptr}}, {"config_groups: expected an object"});
  ExpectConfigRefused(Kind::kFp8Row, {{"config_groups", {{std::string("a\0b", 3), Json::object()}}}},
                      {"expected an object"});
  ExpectConfigRefused(Kind::kFp8Row, {{"sparsity_config", {{"format", "sparse-24-bitmask"}}}}, {"sparsity_config"});
  ExpectConfigRefused(Kind::kFp8Row, {{"transform_config", {{"config_groups", {{"u", 1}}}}}}, {"transform_config"});
}

// Any damage is refused, or the model reads every number without leaving its files.
TEST(QuantizedHostile, Mutations) {
  std::mt19937 random(7);
  for (const QuantizedSample& sample :
       {QuantizedSample{.kind = Kind::kFp8Block}, QuantizedSample{.kind = Kind::kFp8Row},
        QuantizedSample{.kind = Kind::kGptq, .shuffled = true}, QuantizedSample{.kind = Kind::kAwq}}) {
    const TempDir folder;
    const QuantizedModel model = MakeQuantized(sample);
    WriteQuantized(folder.path(), model);
    const std::string file = ReadFile(folder / "model.safetensors");
    int opened = 0, refused = 0;
    for (int round = 0; round < 500; ++round) {
      std::string config = model.config, damaged = file;
      std::string& text = round % 3 == 0 ? config : damaged;
      for (uint32_t i = 0; i <= random() % 3; ++i) text[random() % text.size()] = static_cast<char>(random() % 256);
      if (round % 16 == 15) text.resize(random() % text.size());
      WriteFile(folder / "config.json", config);
      WriteFile(folder / "model.safetensors", damaged);
      try {
        const ModelFiles files = OpenModelFiles(folder.path().string());
        for (const TensorInfo& tensor : files.weights->tensors()) {
          if (tensor.shape.size() != 2) continue;
          const WeightSource source = files.weights->Matrix(tensor.name, tensor.shape[0], tensor.shape[1]);
          std::vector<float> row(static_cast<size_t>(source.cols));
          for (int64_t i = 0; source.decoder != nullptr && i < source.rows; ++i) {
            source.decoder->Decode(source.first + i * source.cols, source.cols, row.data());
          }
        }
        ++opened;
      } catch (const InvalidInput& error) {
        EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos) << error.what();
        ++refused;
      }
    }
    EXPECT_GT(opened, 20);
    EXPECT_GT(refused, 20);
  }
}

}  // namespace
}  // namespace stoch::test
