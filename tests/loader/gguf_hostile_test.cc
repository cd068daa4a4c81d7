// SPDX-License-Identifier: Apache-2.0
// Broken and foreign GGUF files: one sentence each, naming the file and what is wrong.

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>

#include "kernels/base/error.h"
#include "loader/checkpoint/weight_store.h"
#include "tests/loader/gguf_samples.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

using Parts = std::initializer_list<std::string_view>;

void ExpectRefused(const std::string& bytes, Parts parts) {
  const TempDir folder;
  WriteFile(folder / "m.gguf", bytes);
  SCOPED_TRACE(*parts.begin());
  ExpectInvalid([&] { OpenModelFiles((folder / "m.gguf").string()); }, parts);
  ExpectInvalid([&] { OpenModelFiles((folder / "m.gguf").string()); }, {"m.gguf"});
}

// The sample, changed.
void ExpectRefused(const std::function<void(GgufBuilder&)>& edit, Parts parts) {
  GgufBuilder file = SampleGguf();
  edit(file);
  ExpectRefused(file.Bytes(), parts);
}

TEST(GgufHostile, TheSampleItselfIsAccepted) {
  const TempDir folder;
  WriteFile(folder / "m.gguf", SampleGguf().Bytes());
  EXPECT_NO_THROW(OpenModelFiles((folder / "m.gguf").string()));
}

TEST(GgufHostile, Beginning) {
  ExpectRefused("", {"the magic number", "expected 4 bytes", "got 0"});
  ExpectRefused("GGML and more", {"does not begin with \"GGUF\""});
  ExpectRefused([](GgufBuilder& file) { file.version = 1; }, {"expected GGUF version 2 or 3, got 1"});
  ExpectRefused([](GgufBuilder& file) { file.version = 4; }, {"got 4"});
  ExpectRefused([](GgufBuilder& file) { file.version = 0x03000000; }, {"little-endian", "big-endian"});
  std::string many = SampleGguf().Bytes();
  many[15] = '\x10';
  ExpectRefused(many, {"tensors, got"});
  many = SampleGguf().Bytes();
  many[19] = '\x10';
  ExpectRefused(many, {"keys, got"});
}

TEST(GgufHostile, EveryTruncationIsRefused) {
  const std::string bytes = SampleGguf().Bytes();
  const TempDir folder;
  const size_t header = bytes.find("output_norm.weight") + 60;
  for (size_t size = 0; size < bytes.size(); size += size < header ? 1 : 1009) {
    WriteFile(folder / "m.gguf", bytes.substr(0, size));
    ExpectInvalid([&] { OpenModelFiles((folder / "m.gguf").string()); }, {"m.gguf: "});
  }
}

TEST(GgufHostile, Values) {
  using namespace std::string_literals;
  ExpectRefused([](GgufBuilder& file) { file.U32("general.architecture", 7); },
                {"\"general.architecture\" is there twice"});
  ExpectRefused([](GgufBuilder& file) { file.U32("", 7); }, {"a key: expected a name of 1 to 1024 bytes, got 0"});
  ExpectRefused([](GgufBuilder& file) { file.U32(std::string(2000, 'k'), 7); }, {"got 2000"});
  ExpectRefused([](GgufBuilder& file) { file.Raw("odd", 13, "1234"); }, {"\"odd\"", "a value type of GGUF, got 13"});
  ExpectRefused([](GgufBuilder& file) { file.Raw("b", 7, "\2"); }, {"\"b\"", "0 or 1 for a boolean"});
  ExpectRefused([](GgufBuilder& file) { file.Raw("a", 9, "\x09\0\0\0\1\0\0\0\0\0\0\0"s); },
                {"\"a\"", "no array in an array"});
  ExpectRefused([](GgufBuilder& file) { file.Raw("a", 9, "\x04\0\0\0\0\0\0\0\0\0\0\x10"s); },
                {"\"a\"", "elements, got"});
  ExpectRefused([](GgufBuilder& file) { file.Raw("s", 8, "\0\0\0\0\0\0\0\x7f"s); }, {"\"s\"", "bytes at byte"});
  ExpectRefused(
      [](GgufBuilder& file) {
        file.U32("general.alignment", 24);
        file.alignment = 24;
      },
      {"general.alignment", "a power of two", "got 24"});
  ExpectRefused([](GgufBuilder& file) { file.U32("general.alignment", 0); }, {"a power of two", "got 0"});
}

TEST(GgufHostile, Tensors) {
  const auto edit = [](const std::function<void(GgufBuilder::Tensor&)>& change) {
    return [change](GgufBuilder& file) { change(file.Find("blk.0.ffn_up.weight")); };
  };
  using Tensor = GgufBuilder::Tensor;
  ExpectRefused(edit([](Tensor& t) { t.name = "output.weight"; }), {"\"output.weight\" is there twice"});
  ExpectRefused(edit([](Tensor& t) { t.name = ""; }), {"the name of a tensor", "got 0"});
  ExpectRefused(edit([](Tensor& t) { t.dims = {}; }), {"1 to 4 dimensions, got 0"});
  ExpectRefused(edit([](Tensor& t) { t.dims = {256, 1, 1, 1, 256}; }), {"1 to 4 dimensions, got 5"});
  ExpectRefused(edit([](Tensor& t) { t.dims = {256, 0}; }), {"expected dimensions from 1", "got 0"});
  ExpectRefused(edit([](Tensor& t) { t.dims = {uint64_t{1} << 32, uint64_t{1} << 32}; }), {"a product of 2^60"});
  ExpectRefused(edit([](Tensor& t) { t.dims = {~uint64_t{0}, 2}; }), {"a product of 2^60"});
  ExpectRefused(edit([](Tensor& t) { t.type = 16; }), {"ffn_up", "expected one of F32, ", "got IQ2_XXS"});
  ExpectRefused(edit([](Tensor& t) { t.type = 77; }), {"got type 77"});
  ExpectRefused(edit([](Tensor& t) { t.dims = {128, 512}, t.type = 12; }), {"a multiple of 256 for Q4_K, got 128"});
  ExpectRefused(edit([](Tensor& t) { t.offset = 8; }), {"a multiple of 32, got 8"});
  ExpectRefused(edit([](Tensor& t) { t.offset = 0; }), {"overlaps the data of"});
  ExpectRefused(edit([](Tensor& t) { t.offset = int64_t{1} << 40; }), {"inside the", "bytes of data"});
  ExpectRefused(edit([](Tensor& t) { t.offset = INT64_MAX - 31; }), {"inside the", "bytes of data"});
  const std::string whole = SampleGguf().Bytes();
  ExpectRefused(whole.substr(0, whole.size() - 1), {"output_norm.weight", "inside the"});
}

TEST(GgufHostile, Models) {
  ExpectRefused([](GgufBuilder& file) { file.Remove("general.architecture"); },
                {"\"general.architecture\": is missing"});
  ExpectRefused(
      [](GgufBuilder& file) {
        file.Remove("general.architecture");
        file.String("general.architecture", "mamba");
      },
      {"expected one of llama, qwen2, qwen3, qwen3moe, phi3, smollm3, granite, olmo2, gemma2, gemma3, got \"mamba\""});
  ExpectRefused([](GgufBuilder& file) { file.Remove("llama.block_count"); }, {"\"llama.block_count\": is missing"});
  ExpectRefused(
      [](GgufBuilder& file) {
        file.Remove("llama.block_count");
        file.String("llama.block_count", "1");
      },
      {"\"llama.block_count\": expected an integer"});
  ExpectRefused(
      [](GgufBuilder& file) {
        file.Remove("llama.block_count");
        file.U32("llama.block_count", 3);
      },
      {"tensor \"blk.2.attn_norm.weight\" is missing"});
  ExpectRefused(
      [](GgufBuilder& file) {
        file.Remove("llama.embedding_length");
        file.U32("llama.embedding_length", 0);
      },
      {"metadata as config.json: hidden_size"});
  ExpectRefused(
      [](GgufBuilder& file) {
        file.I32s("llama.attention.head_count_kv", {2, 1});
      },
      {"head_count_kv", "the same number for every layer"});
  ExpectRefused([](GgufBuilder& file) { file.U32("llama.rope.dimension_count", 64); },
                {"rope.dimension_count", "expected all 128", "got 64"});
  ExpectRefused([](GgufBuilder& file) { file.U32("llama.attention.value_length", 64); },
                {"value_length", "128, got 64"});
  ExpectRefused([](GgufBuilder& file) { file.String("llama.rope.scaling.type", "longrope"); },
                {"expected none, linear or yarn, got \"longrope\""});
  ExpectRefused([](GgufBuilder& file) { file.U32("llama.expert_count", 8); }, {"llama.expert_used_count", "missing"});
  ExpectRefused(
      [](GgufBuilder& file) {
        file.U32("llama.expert_count", 8).U32("llama.expert_used_count", 2).U32("llama.expert_feed_forward_length", 96);
      },
      {"llama.expert_feed_forward_length", "expected 256", "got 96"});
  ExpectRefused([](GgufBuilder& file) { file.F32("llama.final_logit_softcapping", 30); }, {"final_logit_softcapping"});
  ExpectRefused(
      [](GgufBuilder& file) {
        file.Remove("tokenizer.ggml.eos_token_id");
        file.U32("tokenizer.ggml.eos_token_id", 8);
      },
      {"eos_token_id", "expected an id of the vocabulary, got 8"});
  ExpectRefused(
      [](GgufBuilder& file) {
        file.tensors.push_back({"blk.0.extra.weight", {4}, 0, std::string(16, 0)});
      },
      {"blk.0.extra.weight", "expected only the tensors"});
  ExpectRefused(
      [](GgufBuilder& file) {
        file.Find("blk.0.ffn_up.weight").dims = {256, 128};
      },
      {"blk.0.ffn_up.weight", "expected shape [256, 256] by the metadata, got [128, 256]"});
  ExpectRefused(
      [](GgufBuilder& file) {
        file.tensors.push_back({"rope_freqs.weight", {8}, 0, std::string(32, 0)});
      },
      {"rope_freqs.weight", "expected 64 numbers in F32"});
}

// Mixtral with a tensor for each expert, one of them broken.
TEST(GgufHostile, ExpertsOfTheirOwn) {
  const TempDir scratch;
  TinyModel model;
  model.config = TinyMixtralConfig();
  WriteTinyModel(scratch / "m", model);
  const GgufBuilder merged = GgufOf(OpenModelFiles((scratch / "m").string()));
  const auto refused = [&](const std::function<void(GgufBuilder&)>& edit, Parts parts) {
    GgufBuilder file = WithOwnExperts(merged);
    edit(file);
    ExpectRefused(file.Bytes(), parts);
  };
  for (const std::string name : {"blk.1.ffn_up.3.weight", "blk.0.ffn_gate.0.weight", "blk.1.ffn_down.4.weight"}) {
    refused([&](GgufBuilder& file) { std::erase_if(file.tensors, [&](const auto& t) { return t.name == name; }); },
            {"tensor \"" + name + "\" is missing"});
  }
  refused(
      [](GgufBuilder& file) {
        file.Find("blk.0.ffn_down.2.weight").dims = {64, 172};
      },
      {"blk.0.ffn_down.2.weight", "expected shape [64, 172] by the metadata, got [172, 64]"});
  refused(
      [](GgufBuilder& file) {
        GgufBuilder::Tensor& expert = file.Find("blk.1.ffn_gate.4.weight");
        expert.type = 1;
        expert.data.resize(expert.data.size() / 2);
      },
      {"blk.1.ffn_gate.4.weight", "expected type F32, as expert 0 has, got F16"});
  refused(
      [](GgufBuilder& file) {
        GgufBuilder::Tensor more = file.Find("blk.0.ffn_up.4.weight");
        more.name = "blk.0.ffn_up.5.weight";
        file.tensors.push_back(more);
      },
      {"blk.0.ffn_up.5.weight", "expected only the tensors"});
  GgufBuilder both = WithOwnExperts(merged), more = merged;
  both.tensors.push_back(more.Find("blk.0.ffn_gate_exps.weight"));
  ExpectRefused(both.Bytes(), {"_exps.weight\" is missing"});
  GgufBuilder::Tensor& all = more.Find("blk.1.ffn_up_exps.weight");
  all.data += all.data.substr(0, all.data.size() / all.dims.back());
  ++all.dims.back();
  ExpectRefused(more.Bytes(), {"blk.1.ffn_up_exps.weight", "expected shape [5, 172, 64]", "got [6, 172, 64]"});
}

// A key that would be ignored could change what the model computes.
TEST(GgufHostile, KeysOfUnknownMeaning) {
  const auto key = [](const char* name, float value) { return [=](GgufBuilder& file) { file.F32(name, value); }; };
  ExpectRefused(key("llama.attention.temperature_scale", 0.5f),
                {"\"llama.attention.temperature_scale\"", "whose meaning is known for this architecture"});
  ExpectRefused([](GgufBuilder& file) { file.Raw("llama.attention.causal", 7, std::string(1, '\0')); },
                {"attention.causal", "expected true"});
  GgufBuilder file = SampleGguf();
  file.F32("llama.attention.temperature_scale", 0).U32("llama.vocab_size", 8).F32("tool.note", 1);
  const TempDir folder;
  WriteFile(folder / "m.gguf", file.Bytes());
  EXPECT_NO_THROW(OpenModelFiles((folder / "m.gguf").string()));
}

TEST(GgufHostile, SplitFiles) {
  const TempDir folder;
  const auto part = [](uint32_t number, uint32_t count) {
    return SampleGguf().U32("split.no", number).U32("split.count", count).Bytes();
  };
  const auto refused = [&](const char* name, Parts parts) {
    ExpectInvalid([&] { OpenModelFiles((folder / name).string()); }, parts);
  };
  WriteFile(folder / "m-00002-of-00002.gguf", part(1, 2));
  refused("m-00002-of-00002.gguf",
          {"split.no", "the first part of a split model, got part 2 of 2", "-00001-of-00002.gguf"});
  WriteFile(folder / "m.gguf", part(0, 2));
  refused("m.gguf", {"expected a name that ends in -00001-of-00002.gguf"});
  WriteFile(folder / "n-00001-of-00002.gguf", part(0, 2));
  refused("n-00001-of-00002.gguf", {"n-00002-of-00002.gguf: cannot open"});
  WriteFile(folder / "n-00002-of-00002.gguf", part(2, 2));
  refused("n-00001-of-00002.gguf", {"expected part 2 of 2, got 2"});
  WriteFile(folder / "n-00002-of-00002.gguf", part(1, 2));
  refused("n-00001-of-00002.gguf", {"is in another part too"});
  GgufBuilder empty;
  WriteFile(folder / "n-00002-of-00002.gguf", empty.U32("split.no", 1).U32("split.count", 2).Bytes());
  WriteFile(folder / "n-00001-of-00002.gguf",
            SampleGguf().U32("split.no", 0).U32("split.count", 2).U32("split.tensors.count", 13).Bytes());
  refused("n-00001-of-00002.gguf", {"split.tensors.count", "21, got 13"});
  WriteFile(folder / "many-00001-of-00002.gguf", part(0, 100000));
  refused("many-00001-of-00002.gguf", {"split.count", "got 100000"});
  refused("nothing.gguf", {"nothing.gguf: cannot open"});
}

// Any damage is refused by one sentence, or the model, which has a matrix of every type, reads every number without leaving
// its file.
TEST(GgufHostile, Mutations) {
  std::mt19937 random(5);
  const std::string whole = SampleGguf().Bytes();
  const size_t header = whole.find("output_norm.weight") + 60;
  const TempDir folder;
  const std::string path = (folder / "m.gguf").string();
  int opened = 0, refused = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string bytes = whole;
    for (uint32_t i = 0; i <= random() % 3; ++i) {
      bytes[random() % (round % 3 == 0 ? bytes.size() : header)] = static_cast<char>(random() % 256);
    }
    if (round % 16 == 15) bytes.resize(random() % bytes.size());
    WriteFile(path, bytes);
    try {
      const ModelFiles files = OpenModelFiles(path);
      for (const TensorInfo& tensor : files.weights->tensors()) {
        const bool is_matrix = tensor.shape.size() == 2;
        const WeightSource source =
            files.weights->Matrix(tensor.name, is_matrix ? tensor.shape[0] : 1, tensor.shape.back());
        std::vector<float> row(static_cast<size_t>(source.cols));
        for (int64_t i = 0; source.decoder != nullptr && i < source.rows; ++i) {
          source.decoder->Decode(source.first + i * source.cols, source.cols, row.data());
        }
      }
      ++opened;
    } catch (const InvalidInput& error) {
      EXPECT_EQ(std::strchr(error.what(), '\n'), nullptr) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(opened, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace stoch::test
