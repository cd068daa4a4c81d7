// SPDX-License-Identifier: Apache-2.0
// GGUF files as they should be: every type against the gguf package, and models against folders of the same numbers.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "loader/checkpoint/gguf/config.h"
#include "loader/checkpoint/gguf/tensor_names.h"
#include "loader/checkpoint/weight_store.h"
#include "loader/config/decoder_tensors.h"
#include "tests/loader/gguf_samples.h"
#include "tests/support/shared_folder.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

using gguf::NameInGguf;

// All of a matrix or vector as floats, whatever its source.
std::vector<float> Numbers(const WeightStore& store, const std::string& name, const std::vector<int64_t>& shape) {
  const WeightSource source = store.Matrix(name, shape.size() == 2 ? shape[0] : 1, shape.back());
  std::vector<float> numbers(static_cast<size_t>(source.rows * source.cols));
  const auto count = static_cast<int64_t>(numbers.size());
  if (source.decoder != nullptr) {
    source.decoder->Decode(source.first, count, numbers.data());
  } else {
    const gguf::Type type = source.dtype == DType::kF32   ? gguf::Type::kF32
                            : source.dtype == DType::kF16 ? gguf::Type::kF16
                                                          : gguf::Type::kBF16;
    gguf::Dequantize(type, static_cast<const std::byte*>(source.host), count, numbers.data());
  }
  return numbers;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(GgufTypes, BlocksAreTheNumbersOfTheGgufPackage) {
  const auto all = ReadGgufBlocks();
  ASSERT_EQ(all.size(), 16u);
  for (const auto& [name, blocks] : all) {
    const gguf::TypeInfo* info = gguf::FindType(blocks.number);
    ASSERT_NE(info, nullptr) << name;
    EXPECT_EQ(info->name, name);
    for (size_t row = 0; row < 2; ++row) {
      ASSERT_EQ(static_cast<int64_t>(blocks.blocks[row].size()), 256 / info->block_elements * info->block_bytes);
      // One byte on: data may be unaligned.
      const std::string shifted = " " + blocks.blocks[row];
      std::vector<float> values(256);
      gguf::Dequantize(info->type, reinterpret_cast<const std::byte*>(shifted.data()) + 1, 256, values.data());
      EXPECT_TRUE(SameBits(values, blocks.values[row])) << name << " row " << row;
    }
  }
}

// Every type in one model, q and k permuted by the rule of the converter, any range of rows on its own.
TEST(GgufModel, RowsOfEveryType) {
  const TempDir folder;
  WriteFile(folder / "m.gguf", SampleGguf().Bytes());
  const ModelFiles files = OpenModelFiles((folder / "m.gguf").string());
  EXPECT_EQ(files.name, "m.gguf");
  EXPECT_EQ(files.config.num_key_value_heads, 2);
  EXPECT_EQ(files.config.rope_theta, 500000);
  EXPECT_EQ(files.config.vocab_size, 8);
  EXPECT_FALSE(files.config.tie_word_embeddings);
  EXPECT_EQ(files.config.eos_token_ids, (std::vector<int32_t>{2}));
  EXPECT_EQ(files.weights->files().size(), 1u);
  const auto all = ReadGgufBlocks();
  for (const DecoderTensor& tensor : DecoderTensors(files.config)) {
    const gguf::TensorName name = NameInGguf(tensor.name, HasOutNorms(*files.config.architecture));
    const GgufBlocks& blocks = all.at(std::string(SampleType(name.name)));
    const bool permuted = name.heads != gguf::TensorName::Heads::kNone;
    const std::vector<float> numbers = Numbers(*files.weights, tensor.name, tensor.shape);
    for (size_t row = 0; row < numbers.size() / 256; ++row) {
      const size_t within = row % 128;
      const size_t stored = permuted ? row - within + 2 * (within % 64) + within / 64 : row;
      const std::vector<float> got(numbers.begin() + static_cast<std::ptrdiff_t>(row * 256),
                                   numbers.begin() + static_cast<std::ptrdiff_t>(row * 256 + 256));
      ASSERT_TRUE(SameBits(got, blocks.values[stored % 2])) << tensor.name << " row " << row;
    }
    if (tensor.shape.size() != 2) continue;
    const WeightSource source = files.weights->Matrix(tensor.name, tensor.shape[0], 256);
    const WeightSource slice = SliceRows(source, 3, 4);
    if (slice.decoder == nullptr) continue;
    std::vector<float> rows(4 * 256);
    slice.decoder->Decode(slice.first, 4 * 256, rows.data());
    EXPECT_EQ(std::memcmp(rows.data(), numbers.data() + 3 * 256, rows.size() * sizeof(float)), 0) << tensor.name;
    files.weights->Release(tensor.name);
    EXPECT_TRUE(SameBits(Numbers(*files.weights, tensor.name, tensor.shape), numbers));
  }
}

// Devices that share a layer read parts of the biases of q and k, which are permuted too.
TEST(GgufModel, PartsOfVectors) {
  std::vector<float> stored(16);
  for (size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<float>(i);
  const gguf::RowDecoder decoder(gguf::Type::kF32, reinterpret_cast<const std::byte*>(stored.data()), 1, 16, 2);
  const std::vector<float> expected = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
  for (int64_t first = 0; first < 16; ++first) {
    for (int64_t count = 0; count <= 16 - first; ++count) {
      std::vector<float> out(static_cast<size_t>(count) + 1, -1.0f);
      decoder.Decode(first, count, out.data());
      EXPECT_TRUE(std::equal(out.begin(), out.end() - 1, expected.begin() + first)) << first << " " << count;
      EXPECT_EQ(out.back(), -1.0f) << first << " " << count;
    }
  }
}

TEST(GgufModel, PlainTensorsStayInTheFile) {
  const TempDir folder;
  WriteFile(folder / "m.gguf", SampleGguf().Bytes());
  const ModelFiles files = OpenModelFiles((folder / "m.gguf").string());
  const WeightSource head = files.weights->Matrix("lm_head.weight", 8, 256);
  EXPECT_NE(head.host, nullptr);
  EXPECT_EQ(head.dtype, DType::kBF16);
  EXPECT_EQ(files.weights->tensors().front().stored, "Q5_1");
}

TEST(GgufModel, NumbersAreThoseOfTheFolder) {
  STOCH_REQUIRE_SHARED();
  for (const std::string type : {"F16", "Q8_0", "Q4_0"}) {
    const std::string stem = (SharedFolder() / "models/gguf/stories260K-").string() + type;
    const ModelFiles file = OpenModelFiles(stem + ".gguf");
    const ModelFiles folder = OpenModelFiles(stem);
    const DecoderConfig& a = file.config;
    const DecoderConfig& b = folder.config;
    EXPECT_EQ(a.hidden_size, b.hidden_size);
    EXPECT_EQ(a.num_key_value_heads, b.num_key_value_heads);
    EXPECT_EQ(a.head_dim, b.head_dim);
    EXPECT_EQ(a.max_position_embeddings, b.max_position_embeddings);
    EXPECT_EQ(a.rope_theta, b.rope_theta);
    EXPECT_EQ(static_cast<float>(a.rms_norm_eps), static_cast<float>(b.rms_norm_eps));
    EXPECT_TRUE(a.tie_word_embeddings);
    EXPECT_EQ(a.bos_token_id, b.bos_token_id);
    EXPECT_EQ(a.eos_token_ids, b.eos_token_ids);
    for (const TensorInfo& tensor : folder.weights->tensors()) {
      EXPECT_TRUE(SameBits(Numbers(*file.weights, tensor.name, tensor.shape),
                           Numbers(*folder.weights, tensor.name, tensor.shape)))
          << type << " " << tensor.name;
    }
  }
}

TEST(GgufModel, SplitFilesAreOneModel) {
  const TempDir folder;
  GgufBuilder first = SampleGguf();
  GgufBuilder second;
  second.tensors.assign(first.tensors.begin() + 5, first.tensors.end());
  first.tensors.resize(5);
  const auto part = [](GgufBuilder file, uint32_t number) {
    return file.U32("split.no", number).U32("split.count", 2).U32("split.tensors.count", 21).Bytes();
  };
  WriteFile(folder / "m-00001-of-00002.gguf", part(first, 0));
  WriteFile(folder / "m-00002-of-00002.gguf", part(second, 1));
  WriteFile(folder / "m.gguf", SampleGguf().Bytes());
  const ModelFiles split = OpenModelFiles((folder / "m-00001-of-00002.gguf").string());
  const ModelFiles whole = OpenModelFiles((folder / "m.gguf").string());
  EXPECT_EQ(split.weights->files().size(), 2u);
  for (const TensorInfo& tensor : whole.weights->tensors()) {
    EXPECT_TRUE(SameBits(Numbers(*split.weights, tensor.name, tensor.shape),
                         Numbers(*whole.weights, tensor.name, tensor.shape)));
  }
}

TEST(GgufModel, TiedAndPaddedAndOldVersion) {
  const TempDir folder;
  GgufBuilder file = SampleGguf();
  std::erase_if(file.tensors, [](const auto& tensor) { return tensor.name == "output.weight"; });
  file.version = 2;
  file.alignment = 64;
  file.U32("general.alignment", 64);
  WriteFile(folder / "m.gguf", file.Bytes());
  const ModelFiles files = OpenModelFiles((folder / "m.gguf").string());
  EXPECT_TRUE(files.config.tie_word_embeddings);
  EXPECT_TRUE(files.weights->Has("lm_head.weight"));
  EXPECT_TRUE(SameBits(Numbers(*files.weights, "lm_head.weight", {8, 256}),
                       Numbers(*files.weights, "model.embed_tokens.weight", {8, 256})));
}

nlohmann::json ConfigOf(const GgufBuilder& file) {
  const TempDir folder;
  WriteFile(folder / "m.gguf", file.Bytes());
  return nlohmann::json::parse(gguf::ConfigJson(gguf::Model(folder / "m.gguf")));
}

// As llama.cpp's converter writes them for Llama 3.1 (factor 8) and 3.2 (factor 32).
TEST(GgufConfig, RopeFactorsAreLlama3Scaling) {
  for (const double factor : {8.0, 32.0}) {
    GgufBuilder file = SampleGguf();
    std::string factors;
    for (int i = 0; i < 64; ++i) {
      const double wavelength = 2 * M_PI * std::pow(500000.0, 2.0 * i / 128);
      const double smooth = (8192 / wavelength - 1) / 3;
      const double value = wavelength < 8192 / 4.0 ? 1
                           : wavelength > 8192.0   ? factor
                                                   : 1 / ((1 - smooth) / factor + smooth);
      const auto number = static_cast<float>(value);
      factors.append(reinterpret_cast<const char*>(&number), sizeof(number));
    }
    file.tensors.push_back({"rope_freqs.weight", {64}, 0, factors});
    const auto config = ConfigOf(file);
    EXPECT_EQ(config["rope_scaling"]["rope_type"], "llama3");
    EXPECT_EQ(config["rope_scaling"]["factor"], factor);
    EXPECT_EQ(config["rope_scaling"]["original_max_position_embeddings"], 8192);
    file.tensors.back().data[4 * 40 + 2] ^= 0x40;
    EXPECT_ANY_THROW(ConfigOf(file));
  }
}

TEST(GgufConfig, OtherArchitectures) {
  GgufBuilder yarn = SampleGguf();
  yarn.String("llama.rope.scaling.type", "yarn").F32("llama.rope.scaling.factor", 4);
  yarn.U32("llama.rope.scaling.original_context_length", 4096).U32("llama.attention.sliding_window", 32);
  const auto mistral = ConfigOf(yarn);
  EXPECT_EQ(mistral["model_type"], "mistral");
  EXPECT_EQ(mistral["sliding_window"], 32);
  EXPECT_EQ(mistral["rope_scaling"]["rope_type"], "yarn");
  EXPECT_EQ(mistral["rope_scaling"]["factor"], 4);
  EXPECT_EQ(mistral["rope_scaling"]["original_max_position_embeddings"], 4096);

  GgufBuilder mixtral = SampleGguf();
  mixtral.U32("llama.expert_count", 8).U32("llama.expert_used_count", 2);
  EXPECT_EQ(ConfigOf(mixtral)["model_type"], "mixtral");
  EXPECT_EQ(ConfigOf(mixtral)["num_experts"], 8);
  EXPECT_EQ(ConfigOf(mixtral)["num_experts_per_tok"], 2);
  EXPECT_FALSE(ConfigOf(mixtral).contains("sliding_window"));
  mixtral.U32("llama.attention.sliding_window", 32);
  EXPECT_EQ(ConfigOf(mixtral)["model_type"], "mixtral");
  EXPECT_EQ(ConfigOf(mixtral)["sliding_window"], 32);

  GgufBuilder moe;
  moe.String("general.architecture", "qwen3moe").U32("qwen3moe.block_count", 2).U32("qwen3moe.context_length", 64);
  moe.U32("qwen3moe.embedding_length", 256).U32("qwen3moe.feed_forward_length", 512);
  moe.U32("qwen3moe.attention.head_count", 4).U32("qwen3moe.attention.head_count_kv", 2);
  moe.U32("qwen3moe.attention.key_length", 128).U32("qwen3moe.expert_count", 8).U32("qwen3moe.expert_used_count", 2);
  moe.U32("qwen3moe.expert_feed_forward_length", 96);
  moe.tensors.push_back({"token_embd.weight", {256, 8}, 0, std::string(256 * 8 * 4, '\0')});
  moe.tensors.push_back({"blk.0.ffn_gate_inp.weight", {256, 8}, 0, std::string(256 * 8 * 4, '\0')});
  const auto experts = ConfigOf(moe);
  EXPECT_EQ(experts["model_type"], "qwen3_moe");
  EXPECT_EQ(experts["num_experts"], 8);
  EXPECT_EQ(experts["num_experts_per_tok"], 2);
  EXPECT_EQ(experts["moe_intermediate_size"], 96);
  EXPECT_EQ(experts["head_dim"], 128);
  EXPECT_EQ(experts["norm_topk_prob"], true);
  EXPECT_EQ(experts["mlp_only_layers"], nlohmann::json::array({1}));
}

TEST(GgufConfig, TensorNames) {
  using Heads = gguf::TensorName::Heads;
  std::string_view model_type = "qwen3_moe";
  const auto expect = [&](std::string_view from, std::string_view name, int64_t expert = -1,
                          Heads heads = Heads::kNone) {
    const gguf::TensorName got = NameInGguf(from, HasOutNorms(*FindArchitecture(model_type)));
    EXPECT_EQ(got.name, name) << from;
    EXPECT_EQ(got.expert, expert) << from;
    EXPECT_EQ(got.heads, heads) << from;
  };
  expect("model.layers.3.self_attn.q_proj.bias", "blk.3.attn_q.bias", -1, Heads::kQuery);
  expect("model.layers.3.self_attn.k_proj.weight", "blk.3.attn_k.weight", -1, Heads::kKey);
  expect("model.layers.0.self_attn.q_norm.weight", "blk.0.attn_q_norm.weight");
  expect("model.layers.12.mlp.experts.17.down_proj.weight", "blk.12.ffn_down_exps.weight", 17);
  EXPECT_EQ(NameInGguf("model.layers.12.mlp.experts.17.down_proj.weight").own, "blk.12.ffn_down.17.weight");
  EXPECT_EQ(NameInGguf("model.layers.2.block_sparse_moe.experts.7.w1.weight").own, "blk.2.ffn_gate.7.weight");
  EXPECT_EQ(NameInGguf("model.layers.12.mlp.down_proj.weight").own, "");
  expect("model.layers.12.mlp.gate.weight", "blk.12.ffn_gate_inp.weight");
  expect("model.layers.12.mlp.experts.x.down_proj.weight", "");
  expect("model.layers.12", "");
  expect("something.else", "");
  expect("model.layers.1.post_attention_layernorm.weight", "blk.1.ffn_norm.weight");
  expect("model.layers.2.block_sparse_moe.gate.weight", "blk.2.ffn_gate_inp.weight");
  expect("model.layers.2.block_sparse_moe.experts.7.w1.weight", "blk.2.ffn_gate_exps.weight", 7);
  expect("model.layers.2.block_sparse_moe.experts.0.w2.weight", "blk.2.ffn_down_exps.weight", 0);
  expect("model.layers.2.block_sparse_moe.experts.0.w3.weight", "blk.2.ffn_up_exps.weight", 0);
  model_type = "olmo2";
  expect("model.layers.1.post_attention_layernorm.weight", "blk.1.post_attention_norm.weight");
  expect("model.layers.1.post_feedforward_layernorm.weight", "blk.1.post_ffw_norm.weight");
  model_type = "phi3";
  expect("model.layers.1.self_attn.qkv_proj.weight", "blk.1.attn_qkv.weight");
  expect("model.layers.1.mlp.gate_up_proj.weight", "blk.1.ffn_up.weight");
}

}  // namespace
}  // namespace stoch::test
