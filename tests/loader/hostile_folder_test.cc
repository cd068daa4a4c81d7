// SPDX-License-Identifier: Apache-2.0
// Model folders that are wrong, one test per way.

#include <gtest/gtest.h>

#include <filesystem>

#include "loader/checkpoint/weight_store.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch {
namespace {

namespace fs = std::filesystem;
using test::ExpectInvalid;
using test::StoredTensor;
using test::TempDir;
using test::TinyModel;
using test::WriteTinyModel;

constexpr const char* kUp = "model.layers.1.mlp.up_proj.weight";

void ExpectRefused(const fs::path& folder, std::initializer_list<std::string_view> parts) {
  ExpectInvalid([&] { OpenModelFiles(folder.string()); }, parts);
}

using Edit = std::function<void(std::vector<StoredTensor>&)>;

// A tiny model after `edit`, in one file and in two, must be refused.
void ExpectEditRefused(const Edit& edit, std::initializer_list<std::string_view> parts, TinyModel model = {}) {
  for (model.shards = 1; model.shards <= 2; ++model.shards) {
    const TempDir folder;
    WriteTinyModel(folder.path(), model, edit);
    ExpectRefused(folder.path(), parts);
  }
}

StoredTensor& Named(std::vector<StoredTensor>& tensors, std::string_view name) {
  for (StoredTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  throw std::logic_error("no such tensor");
}

TEST(HostileFolder, NotAFolder) {
  const TempDir folder;
  ExpectRefused(folder / "none", {"none: expected a model folder, a .gguf file or random:SHAPE", "nothing there"});
  test::WriteFile(folder / "file", "x");
  ExpectRefused(folder / "file", {"expected a model folder", "got a file"});
  fs::create_directory_symlink("loop", folder / "loop");
  ExpectRefused(folder / "loop", {"expected a model folder", "symbolic links"});
  ExpectInvalid([] { OpenModelFiles(""); }, {"expected a model folder"});
}

TEST(HostileFolder, NoConfig) {
  const TempDir folder;
  ExpectRefused(folder.path(), {"config.json: cannot open", "No such file"});
  fs::create_directory(folder / "config.json");
  ExpectRefused(folder.path(), {"config.json: expected a regular file", "directory"});
}

TEST(HostileFolder, EmptyOrHugeConfig) {
  const TempDir folder;
  WriteTinyModel(folder.path(), {});
  test::WriteFile(folder / "config.json", "");
  ExpectRefused(folder.path(), {"config.json: expected JSON"});
  fs::resize_file(folder / "config.json", 5 << 20);
  ExpectRefused(folder.path(), {"config.json: expected at most 4194304 bytes", "got 5242880"});
}

TEST(HostileFolder, BrokenGenerationConfig) {
  const TempDir folder;
  WriteTinyModel(folder.path(), {});
  test::WriteFile(folder / "generation_config.json", "{");
  ExpectRefused(folder.path(), {"generation_config.json: expected JSON"});
  fs::remove(folder / "generation_config.json");
  fs::create_symlink("gone", folder / "generation_config.json");
  ExpectRefused(folder.path(), {"generation_config.json: cannot open"});
}

TEST(HostileFolder, NoWeights) {
  const TempDir folder;
  WriteTinyModel(folder.path(), {});
  fs::rename(folder / "model.safetensors", folder / "pytorch_model.bin");
  ExpectRefused(folder.path(), {"expected model.safetensors", "got pytorch_model.bin", "converted to safetensors"});
  fs::remove(folder / "pytorch_model.bin");
  ExpectRefused(folder.path(), {"expected model.safetensors or model.safetensors.index.json", "got neither"});
}

TEST(HostileFolder, WeightsThatAreAFolderOrALoop) {
  const TempDir folder;
  WriteTinyModel(folder.path(), {});
  fs::remove(folder / "model.safetensors");
  fs::create_symlink("model.safetensors", folder / "model.safetensors");
  ExpectRefused(folder.path(), {"model.safetensors: cannot open", "symbolic links"});
  fs::remove(folder / "model.safetensors");
  fs::create_directory(folder / "model.safetensors");
  ExpectRefused(folder.path(), {"model.safetensors: expected a regular file", "directory"});
}

TEST(HostileFolder, TruncatedWeights) {
  const TempDir folder;
  WriteTinyModel(folder.path(), {});
  const fs::path file = folder / "model.safetensors";
  fs::resize_file(file, fs::file_size(file) - 1);
  ExpectRefused(folder.path(), {"model.safetensors: tensor \"lm_head.weight\"", "truncated"});
}

TEST(HostileFolder, MissingTensor) {
  ExpectEditRefused([](auto& tensors) { std::erase_if(tensors, [](auto& tensor) { return tensor.name == kUp; }); },
                    {kUp, "is missing"});
  ExpectEditRefused([](auto& tensors) { tensors.resize(5); },
                    {"model.layers.0.self_attn.o_proj.weight", "is missing (and 15 more)"});
}

TEST(HostileFolder, MissingEmbeddings) {
  const auto drop = [](const char* name) {
    return [name](auto& tensors) { std::erase_if(tensors, [&](auto& tensor) { return tensor.name == name; }); };
  };
  // Without tying, one cannot stand for the other.
  ExpectEditRefused(drop("lm_head.weight"), {"\"lm_head.weight\" is missing", "says tie_word_embeddings: true"});
  ExpectEditRefused(drop("model.embed_tokens.weight"), {"\"model.embed_tokens.weight\" is missing"});
  TinyModel tied;
  tied.config.tie_word_embeddings = true;
  ExpectEditRefused(drop("model.embed_tokens.weight"), {"\"model.embed_tokens.weight\" is missing"}, tied);
}

TEST(HostileFolder, UnexpectedTensor) {
  ExpectEditRefused(
      [](auto& tensors) {
        tensors.push_back({"model.layers.2.mlp.up_proj.weight", DType::kF32, {0}, {}});
      },
      {"model.layers.2.mlp.up_proj.weight", "expected only the tensors of a Llama"});
  ExpectEditRefused(
      [](auto& tensors) {
        tensors.push_back({"model.layers.0.self_attn.q_proj.bias", DType::kF32, {0}, {}});
      },
      {"model.layers.0.self_attn.q_proj.bias", "expected only"});
}

TEST(HostileFolder, MisshapedTensor) {
  ExpectEditRefused(
      [](auto& tensors) {
        Named(tensors, kUp).shape = {64, 172};
      },
      {kUp, "expected shape [172, 64]", "got [64, 172]"});
  ExpectEditRefused([](auto& tensors) { Named(tensors, kUp).shape = {172 * 64}; }, {kUp, "got [11008]"});
  ExpectEditRefused(
      [](auto& tensors) {
        Named(tensors, "model.norm.weight").shape = {1, 64};
      },
      {"model.norm.weight", "expected shape [64]", "got [1, 64]"});
}

TEST(HostileFolder, MisshapedSecondCopyOfATiedEmbedding) {
  TinyModel tied;
  tied.config.tie_word_embeddings = true;
  ExpectEditRefused(
      [](auto& tensors) {
        tensors.push_back({"lm_head.weight", DType::kF32, {0}, {}});
      },
      {"lm_head.weight", "expected shape [96, 64]", "got [0]"}, tied);
}

TEST(HostileFolder, TensorOfATypeThatHoldsNoWeights) {
  for (const DType dtype : {DType::kI32, DType::kI8, DType::kU8, DType::kI64}) {
    ExpectEditRefused(
        [&](auto& tensors) {
          StoredTensor& tensor = Named(tensors, kUp);
          tensor.dtype = dtype;
          tensor.bytes.resize(172 * 64 * DTypeSize(dtype));
        },
        {kUp, "F32, F16 or BF16", "got " + std::string(DTypeName(dtype))});
  }
}

// What a clone without Git LFS leaves in the place of each file.
TEST(HostileFolder, PointersOfGitLfs) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid "
      "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
      "size 12345\n";
  for (int shards = 1; shards <= 2; ++shards) {
    const TempDir whole;
    TinyModel model;
    model.shards = shards;
    WriteTinyModel(whole.path(), model);
    int files = 0;
    for (const auto& entry : fs::directory_iterator(whole.path())) {
      const TempDir folder;
      WriteTinyModel(folder.path(), model);
      const std::string name = entry.path().filename().string();
      test::WriteFile(folder / name, pointer);
      ExpectRefused(folder.path(), {name + ": this is a Git LFS pointer", "git lfs pull"});
      ++files;
    }
    EXPECT_GE(files, shards + 1);
  }
  const TempDir folder;
  test::WriteFile(folder / "m.gguf", pointer);
  ExpectRefused(folder / "m.gguf", {"m.gguf: this is a Git LFS pointer"});
}

// A buffer that the model does not use may be of any type; a weight may not.
TEST(HostileFolder, TensorsOfOtherTypes) {
  for (const char* dtype : {"F64", "BOOL", "I16"}) {
    const TempDir folder;
    WriteTinyModel(folder.path(), {}, [](auto& tensors) {
      tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", DType::kU8, {0}, {}});
      tensors.push_back({"model.layers.1.self_attn.rotary_emb.inv_freq", DType::kU8, {0}, {}});
    });
    const fs::path file = folder / "model.safetensors";
    std::string content = test::ReadFile(file);
    size_t renamed = 0;
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, content.data(), sizeof(header_bytes));
    for (size_t at = 0; (at = content.find("\"U8\"", at)) < 8 + header_bytes; ++renamed) {
      content.replace(at, 4, '"' + std::string(dtype) + '"');
      header_bytes += std::string_view(dtype).size() - 2;
    }
    EXPECT_EQ(renamed, 2u);
    std::memcpy(content.data(), &header_bytes, sizeof(header_bytes));
    test::WriteFile(file, content);
    EXPECT_EQ(OpenModelFiles(folder.path().string()).weights->Has(kUp), true) << dtype;

    const size_t weight = content.find("\"F", content.find(kUp));
    ASSERT_LT(weight, header_bytes);
    std::string broken = content;
    broken.replace(weight, 5, "\"F64\"");
    test::WriteFile(file, broken);
    ExpectRefused(folder.path(), {kUp});
  }
}

TEST(HostileFolder, AskingForAnotherShapeOrName) {
  const TempDir folder;
  WriteTinyModel(folder.path(), {});
  const ModelFiles files = OpenModelFiles(folder.path().string());
  ExpectInvalid([&] { (void)files.weights->Matrix(kUp, 64, 172); }, {kUp, "expected shape [64, 172]", "got [172, 64]"});
  ExpectInvalid([&] { (void)files.weights->Matrix("model.norm.weight", 64, 1); }, {"model.norm.weight", "[64]"});
  ExpectInvalid([&] { (void)files.weights->Matrix("nothing", 1, 1); }, {"\"nothing\" is missing"});
  const ModelFiles random = OpenModelFiles("random:tinyllama-1.1b");
  ExpectInvalid([&] { (void)random.weights->Matrix("model.norm.weight", 1, 2047); },
                {"random:tinyllama-1.1b", "[1, 2047]", "got [2048]"});
}

// A folder in two shards whose index is `text`.
void ExpectIndexRefused(const std::string& text, std::initializer_list<std::string_view> parts) {
  const TempDir folder;
  TinyModel model;
  model.shards = 2;
  WriteTinyModel(folder.path(), model);
  test::WriteFile(folder / "model.safetensors.index.json", text);
  ExpectRefused(folder.path(), parts);
  ExpectRefused(folder.path(), {"model.safetensors.index.json: "});
}

TEST(HostileIndex, NotAWeightMap) {
  ExpectIndexRefused("", {"expected JSON"});
  ExpectIndexRefused("[]", {"weight_map", "got nothing"});
  ExpectIndexRefused("{}", {"weight_map", "got nothing"});
  ExpectIndexRefused(R"({"weight_map": []})", {"weight_map"});
  ExpectIndexRefused(R"({"weight_map": [1]})", {"weight_map", "got another type"});
  ExpectIndexRefused(R"({"weight_map": {}})", {"weight_map", "got an empty one"});
  ExpectIndexRefused(R"({"weight_map": {"a": 1}})", {"\"a\"", "name of a file", "got an integer"});
  ExpectIndexRefused(R"({"weight_map": {"a": "x", "a": "y"}})", {"\"a\"", "given twice"});
  ExpectIndexRefused(R"({"weight_map": )" + std::string(100'000, '['), {"nested at most"});
}

TEST(HostileIndex, MissingShard) {
  ExpectIndexRefused(R"({"weight_map": {"a": "model-9.safetensors"}})", {"shard \"model-9.safetensors\" is missing"});
}

TEST(HostileIndex, PathsOutOfTheFolder) {
  for (const char* path :
       {"../x.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".", "", "a\\\\b", "x\\u0000y", "x\\ny"}) {
    ExpectIndexRefused(std::string(R"({"weight_map": {"a": ")") + path + "\"}}",
                       {"\"a\"", "a file in the same folder"});
  }
}

TEST(HostileIndex, ShardWithoutAPromisedTensor) {
  const TempDir folder;
  TinyModel model;
  model.shards = 2;
  WriteTinyModel(folder.path(), model);
  const fs::path index = folder / "model.safetensors.index.json";
  std::string text = test::ReadFile(index);
  text.replace(text.find("\"weight_map\": {"), 15, "\"weight_map\": {\"extra\": \"model-00001-of-00002.safetensors\",");
  test::WriteFile(index, text);
  ExpectRefused(folder.path(), {"model-00001-of-00002.safetensors: tensor \"extra\" is missing"});
}

TEST(HostileIndex, ShardWithATensorOfAnother) {
  const TempDir folder;
  TinyModel model;
  model.shards = 2;
  WriteTinyModel(folder.path(), model);
  const fs::path index = folder / "model.safetensors.index.json";
  std::string text = test::ReadFile(index);
  const std::string entry = "\"lm_head.weight\": \"model-00002";
  text.replace(text.find(entry), entry.size(), "\"lm_head.weight\": \"model-00001");
  test::WriteFile(index, text);
  ExpectRefused(folder.path(),
                {"model-00002-of-00002.safetensors: tensor \"lm_head.weight\"", "expected in \"model-00001"});
}

TEST(HostileIndex, ShardThatIsAFolderOrBroken) {
  const TempDir folder;
  TinyModel model;
  model.shards = 2;
  WriteTinyModel(folder.path(), model);
  const fs::path shard = folder / "model-00002-of-00002.safetensors";
  fs::resize_file(shard, 20);
  ExpectRefused(folder.path(), {"model-00002-of-00002.safetensors: no safetensors file, or cut short: header length"});
  fs::remove(shard);
  fs::create_directory(shard);
  ExpectRefused(folder.path(), {"model-00002-of-00002.safetensors: expected a regular file"});
}

TEST(HostileRandom, NamesAndSeeds) {
  ExpectInvalid([] { OpenModelFiles("random:"); }, {"expected one of llama-3.2-1b", "got \"\""});
  ExpectInvalid([] { OpenModelFiles("random:llama-4"); }, {"expected one of", "got \"llama-4\""});
  for (const char* seed : {"", "x", "-1", "1x", "1.5", " 1", "18446744073709551616", "1:2"}) {
    ExpectInvalid([&] { OpenModelFiles(std::string("random:llama-3.2-1b:") + seed); },
                  {"seed: expected an integer", std::string("got \"") + seed + "\""});
  }
}

}  // namespace
}  // namespace stoch
