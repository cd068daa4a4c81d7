// SPDX-License-Identifier: Apache-2.0
// Checkpoint folders and random models that are as they should be.

#include "loader/checkpoint/weight_store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <set>

#include "kernels/math/half.h"
#include "kernels/math/random.h"
#include "loader/config/decoder_tensors.h"
#include "tests/support/shared_folder.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch {
namespace {

using test::StoredTensor;
using test::TempDir;
using test::TinyModel;
using test::WriteTinyModel;

std::string ContentOf(const WeightStore& store, const StoredTensor& tensor) {
  const int64_t rows = tensor.shape.size() == 1 ? 1 : tensor.shape[0];
  const WeightSource source = store.Matrix(tensor.name, rows, tensor.shape.back());
  EXPECT_EQ(source.dtype, tensor.dtype) << tensor.name;
  EXPECT_EQ(source.name, tensor.name);
  return {static_cast<const char*>(source.host),
          static_cast<size_t>(source.rows * source.cols) * DTypeSize(source.dtype)};
}

void ExpectSameContent(const WeightStore& store, const std::vector<StoredTensor>& tensors) {
  for (const StoredTensor& tensor : tensors) {
    ASSERT_TRUE(store.Has(tensor.name)) << tensor.name;
    const std::string expected(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    EXPECT_EQ(ContentOf(store, tensor), expected) << tensor.name;
  }
}

struct Layout {
  DType dtype;
  int shards;
};

class EveryLayout : public testing::TestWithParam<Layout> {};

// A folder of the Hugging Face cache is called as the model is, not as its revision.
TEST(ModelName, OfTheCacheIsThatOfTheRepository) {
  const TempDir cache;
  const std::string revision = "8c1f3a0b5d7e9f1a2b3c4d5e6f708192a3b4c5d6";
  for (const auto& [folder, name] :
       {std::pair<std::string, std::string>("models--org--some-model/snapshots/" + revision, "org/some-model"),
        {"models--org--a--b/snapshots/" + revision, "org/a--b"},
        {"models--gpt2/snapshots/main", "gpt2"},
        {"models--org--some-model/other/" + revision, revision},
        {"snapshots/" + revision, revision}}) {
    const std::filesystem::path path = cache / folder;
    std::filesystem::create_directories(path);
    WriteTinyModel(path, {});
    EXPECT_EQ(OpenModelFiles(path.string()).name, name);
    EXPECT_EQ(OpenModelFiles(path.string() + "/").name, name);
  }
}

TEST_P(EveryLayout, GivesTheStoredBytesOfEveryTensor) {
  const TempDir folder;
  TinyModel model;
  model.dtype = GetParam().dtype;
  model.shards = GetParam().shards;
  WriteTinyModel(folder.path(), model);
  const ModelFiles files = OpenModelFiles(folder.path().string());
  const std::vector<StoredTensor> stored = TinyModelTensors(model);
  ExpectSameContent(*files.weights, stored);
  EXPECT_EQ(files.name, folder.path().filename().string());
  EXPECT_EQ(files.folder, folder.path());
  ASSERT_EQ(files.weights->tensors().size(), stored.size());
  std::set<std::string> names_of_files;
  for (size_t i = 0; i < stored.size(); ++i) {
    const TensorInfo& info = files.weights->tensors()[i];
    EXPECT_EQ(info.name, stored[i].name);
    EXPECT_EQ(info.shape, stored[i].shape);
    EXPECT_EQ(info.dtype, model.dtype);
    names_of_files.insert(info.file);
  }
  EXPECT_EQ(names_of_files.size(), static_cast<size_t>(model.shards));
}

INSTANTIATE_TEST_SUITE_P(WeightStore, EveryLayout,
                         testing::Values(Layout{DType::kF32, 1}, Layout{DType::kF16, 1}, Layout{DType::kBF16, 1},
                                         Layout{DType::kF32, 3}, Layout{DType::kBF16, 2}));

TEST(WeightStore, TensorsOfOneFolderMayDifferInType) {
  const TempDir folder;
  std::vector<StoredTensor> expected;
  WriteTinyModel(folder.path(), {}, [&](std::vector<StoredTensor>& tensors) {
    TinyModel half;
    half.dtype = DType::kF16;
    tensors[1] = TinyModelTensors(half)[1];
    expected = tensors;
  });
  ExpectSameContent(*OpenModelFiles(folder.path().string()).weights, expected);
}

TEST(WeightStore, ReleasedTensorsReadTheSameAgain) {
  const TempDir folder;
  WriteTinyModel(folder.path(), {});
  const ModelFiles files = OpenModelFiles(folder.path().string());
  const std::vector<StoredTensor> stored = test::TinyModelTensors({});
  for (const StoredTensor& tensor : stored) files.weights->Release(tensor.name);
  ExpectSameContent(*files.weights, stored);
}

TEST(WeightStore, TiedEmbeddingAnswersToBothNamesWhicheverIsStored) {
  for (const bool as_lm_head : {false, true}) {
    const TempDir folder;
    TinyModel model;
    model.config.tie_word_embeddings = true;
    model.tied_as_lm_head = as_lm_head;
    WriteTinyModel(folder.path(), model);
    const ModelFiles files = OpenModelFiles(folder.path().string());
    const WeightSource embedding = files.weights->Matrix(kEmbeddingName, 96, 64);
    const WeightSource head = files.weights->Matrix(kLmHeadName, 96, 64);
    EXPECT_EQ(embedding.host, head.host);
    EXPECT_EQ(embedding.name, as_lm_head ? kLmHeadName : kEmbeddingName);
    EXPECT_EQ(files.weights->tensors().size(), DecoderTensors(model.config).size());
  }
}

TEST(WeightStore, SecondCopyOfATiedEmbeddingIsNotUsed) {
  const TempDir folder;
  TinyModel model;
  model.config.tie_word_embeddings = true;
  WriteTinyModel(folder.path(), model, [](std::vector<StoredTensor>& tensors) {
    StoredTensor head = tensors[0];
    head.name = kLmHeadName;
    head.bytes.assign(head.bytes.size(), std::byte{0x11});
    tensors.push_back(head);
  });
  const ModelFiles files = OpenModelFiles(folder.path().string());
  const WeightSource head = files.weights->Matrix(kLmHeadName, 96, 64);
  const std::vector<StoredTensor> stored = TinyModelTensors(model);
  EXPECT_EQ(std::memcmp(head.host, stored[0].bytes.data(), stored[0].bytes.size()), 0);
}

TEST(WeightStore, RotaryBuffersAreIgnored) {
  for (const int shards : {1, 2}) {
    const TempDir folder;
    TinyModel model;
    model.shards = shards;
    WriteTinyModel(folder.path(), model, [](std::vector<StoredTensor>& tensors) {
      tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", DType::kF32, {8}, std::vector<std::byte>(32)});
    });
    const ModelFiles files = OpenModelFiles(folder.path().string());
    EXPECT_FALSE(files.weights->Has("model.layers.0.self_attn.rotary_emb.inv_freq"));
    ExpectSameContent(*files.weights, TinyModelTensors(model));
  }
}

TEST(WeightStore, GenerationConfigAddsEndTokens) {
  const TempDir folder;
  WriteTinyModel(folder.path(), {});
  test::WriteFile(folder / "generation_config.json", R"({"eos_token_id": [2, 7]})");
  EXPECT_EQ(OpenModelFiles(folder.path().string()).config.eos_token_ids, (std::vector<int32_t>{2, 7}));
}

TEST(WeightStore, RealCheckpointsOpen) {
  STOCH_REQUIRE_SHARED();
  struct Expected {
    const char* name;
    int64_t parameters;
    DType dtype;
  };
  for (const auto& [name, expected_parameters, dtype] :
       {Expected{"stories260K", 260032, DType::kF16}, Expected{"babyllama-936K", 936448, DType::kF16},
        Expected{"TinyStories-656K", 656000, DType::kF32}}) {
    const ModelFiles files = OpenModelFiles((test::SharedFolder() / "models" / name).string());
    EXPECT_EQ(files.name, name);
    EXPECT_TRUE(files.config.tie_word_embeddings);
    EXPECT_EQ(files.config.eos_token_ids, std::vector<int32_t>{2});
    int64_t parameters = 0;
    for (const TensorInfo& info : files.weights->tensors()) {
      EXPECT_EQ(info.dtype, dtype);
      parameters += info.shape.size() == 1 ? info.shape[0] : info.shape[0] * info.shape[1];
    }
    EXPECT_EQ(parameters, expected_parameters);
    EXPECT_EQ(TotalParameters(files.config), expected_parameters);
    const int64_t vocab = files.config.vocab_size;
    const int64_t hidden = files.config.hidden_size;
    EXPECT_EQ(files.weights->Matrix(kLmHeadName, vocab, hidden).host,
              files.weights->Matrix(kEmbeddingName, vocab, hidden).host);
  }
}

TEST(RandomModel, StreamsDependOnTensorNamesAndTheSeedOnTheModelName) {
  const ModelFiles files = OpenModelFiles("random:llama-3.2-1b");
  const WeightSource q = files.weights->Matrix("model.layers.3.self_attn.q_proj.weight", 2048, 2048);
  EXPECT_EQ(q.host, nullptr);
  EXPECT_EQ(q.seed, 0u);
  EXPECT_EQ(q.first, 0);
  EXPECT_EQ(q.stddev, 0.02f);
  EXPECT_EQ(q.stream, TensorStream("model.layers.3.self_attn.q_proj.weight"));
  // Recorded: these two values are what random: models mean, on every machine, for ever.
  EXPECT_EQ(TensorStream("model.layers.3.self_attn.q_proj.weight"), 0xaf94c31c18c60faau);
  EXPECT_EQ(FloatToBits(RandomWeight(q.seed, q.stream, 12345, q.stddev)), 0xbc95c000u);
  EXPECT_EQ(
      OpenModelFiles("random:llama-3.2-1b:18446744073709551615").weights->Matrix("model.norm.weight", 1, 2048).seed,
      UINT64_MAX);
  EXPECT_EQ(files.name, "random:llama-3.2-1b");
  EXPECT_TRUE(files.folder.empty());
}

TEST(RandomModel, EveryTensorHasItsOwnStream) {
  const ModelFiles files = OpenModelFiles("random:llama-3.1-70b");
  std::set<uint64_t> streams;
  for (const TensorInfo& info : files.weights->tensors()) streams.insert(TensorStream(info.name));
  EXPECT_EQ(streams.size(), files.weights->tensors().size());
  EXPECT_EQ(files.weights->tensors().size(), 80u * 9 + 3);
}

TEST(RandomModel, NormsAreOneAndTiedHeadsAreTheEmbedding) {
  const ModelFiles tied = OpenModelFiles("random:llama-3.2-1b");
  const WeightSource norm = tied.weights->Matrix("model.layers.0.input_layernorm.weight", 1, 2048);
  EXPECT_EQ(norm.stddev, 0.0f);
  EXPECT_EQ(norm.constant, 1.0f);
  EXPECT_EQ(tied.weights->Matrix(kLmHeadName, 128256, 2048).stream, TensorStream(kEmbeddingName));
  const ModelFiles untied = OpenModelFiles("random:tinyllama-1.1b");
  EXPECT_EQ(untied.weights->Matrix(kLmHeadName, 32000, 2048).stream, TensorStream(kLmHeadName));
}

TEST(SliceRows, OfAFileMovesThePointer) {
  const uint16_t data[12] = {};
  WeightSource source;
  source.rows = 4;
  source.cols = 3;
  source.host = data;
  source.dtype = DType::kF16;
  const WeightSource slice = SliceRows(source, 1, 2);
  EXPECT_EQ(slice.host, data + 3);
  EXPECT_EQ(slice.rows, 2);
  EXPECT_EQ(slice.cols, 3);
  EXPECT_THROW(SliceRows(source, 3, 2), std::logic_error);
  EXPECT_THROW(SliceRows(source, -1, 2), std::logic_error);
}

TEST(SliceRows, OfARandomTensorMovesThePosition) {
  WeightSource source;
  source.rows = 4;
  source.cols = 3;
  source.stddev = 1;
  const WeightSource slice = SliceRows(SliceRows(source, 1, 3), 1, 1);
  EXPECT_EQ(slice.host, nullptr);
  EXPECT_EQ(slice.first, 6);
  EXPECT_EQ(slice.rows, 1);
}

}  // namespace
}  // namespace stoch
