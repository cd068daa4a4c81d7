// SPDX-License-Identifier: Apache-2.0
// Logits of a GGUF file are those of a folder with the same numbers, bit for bit, in SC and exactly.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "kernels/math/half.h"
#include "loader/checkpoint/safetensors.h"
#include "loader/config/decoder_tensors.h"
#include "models/decoder/weights.h"
#include "tests/engine/logits_cases.h"
#include "tests/loader/gguf_samples.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/shared_folder.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

// One of each precision, SC with rows and with a scale for a whole matrix.
const LogitsConfig kConfigs[] = {{"default", Precision::kSc, ""},
                                 {"lm_head", Precision::kSc, "lm_head=1"},
                                 {"per_tensor", Precision::kSc, "preset=published"},
                                 {"fp32", Precision::kFp32, ""}};

class GgufLogits : public testing::TestWithParam<BackendUnderTest> {
 protected:
  static void ExpectSame(const std::shared_ptr<Backend>& backend, const std::filesystem::path& file,
                         const std::filesystem::path& folder, const std::vector<int32_t>& prompt) {
    for (const LogitsConfig& config : kConfigs) {
      const std::string expected = HashRun(*OpenCase(backend, folder, config), prompt, {});
      EXPECT_EQ(HashRun(*OpenCase(backend, file, config), prompt, {}), expected)
          << file.filename() << " " << config.name;
    }
  }
};

bool IsHead(const ModelFiles& files, const std::string& tensor) {
  return tensor == (files.config.tie_word_embeddings ? EmbeddingTensor(files) : std::string(kLmHeadName));
}

StoredTensor Stored(const DecoderTensor& tensor, const std::vector<float>& values, DType dtype) {
  StoredTensor stored{tensor.name, dtype, tensor.shape, {}};
  const auto append = [&stored](const auto& number) {
    const auto bytes = std::as_bytes(std::span(&number, 1));
    stored.bytes.insert(stored.bytes.end(), bytes.begin(), bytes.end());
  };
  for (const float value : values) {
    if (dtype == DType::kF32) {
      append(value);
    } else {
      append(dtype == DType::kF16 ? FloatToF16(value) : static_cast<uint16_t>(FloatToBits(value) >> 16));
    }
  }
  return stored;
}

void WriteTwin(const std::filesystem::path& folder, const DecoderConfig& config,
               const std::vector<StoredTensor>& tensors) {
  std::filesystem::create_directory(folder);
  WriteFile(folder / "config.json", ConfigJson(config));
  WriteTensors(folder / "model.safetensors", tensors);
}

// Twins have F32 numbers but for heads of 16-bit ones, which multiply as integers (docs/numerics.md).
TEST_P(GgufLogits, StoriesInThreeTypes) {
  STOCH_REQUIRE_SHARED();
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const TempDir scratch;
  const std::vector<int32_t> prompt = SharedLogitsModel("stories260K").prompt;
  for (const std::string type : {"F16", "Q8_0", "Q4_0"}) {
    const std::string stem = (SharedFolder() / "models/gguf/stories260K-").string() + type;
    std::filesystem::path twin = stem;
    if (type == "F16") {
      const ModelFiles files = OpenModelFiles(stem);
      std::vector<StoredTensor> tensors;
      for (const DecoderTensor& tensor : DecoderTensors(files.config)) {
        const int64_t rows = tensor.shape.size() == 2 ? tensor.shape[0] : 1;
        const WeightSource source = files.weights->Matrix(tensor.name, rows, tensor.shape.back());
        ASSERT_EQ(source.dtype, DType::kF32);
        std::vector<float> values(static_cast<size_t>(rows * source.cols));
        std::memcpy(values.data(), source.host, values.size() * sizeof(float));
        tensors.push_back(Stored(tensor, values, IsHead(files, tensor.name) ? DType::kF16 : DType::kF32));
      }
      twin = scratch / "twin";
      WriteTwin(twin, files.config, tensors);
    }
    ExpectSame(backend, stem + ".gguf", twin, prompt);
  }
}

// Types that a quantizer of the reference data wrote, next to folders of their numbers in F32.
TEST_P(GgufLogits, LlamaInFiveTypes) {
  STOCH_REQUIRE_SHARED();
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const std::string type : {"Q2_K", "Q3_K", "IQ4_XS", "IQ4_NL", "MXFP4"}) {
    const std::string stem = (SharedFolder() / "models/gguf/tiny-llama-").string() + type;
    ExpectSame(backend, stem + ".gguf", stem, {1, 50, 17, 100, 4, 63, 80, 2, 9, 71});
  }
}

// A model with every type and rows of 256.
TEST_P(GgufLogits, EveryType) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const TempDir scratch;
  WriteFile(scratch / "m.gguf", SampleGguf().Bytes());
  const ModelFiles files = OpenModelFiles((scratch / "m.gguf").string());
  const auto blocks = ReadGgufBlocks();
  std::vector<StoredTensor> tensors;
  for (const DecoderTensor& expected : DecoderTensors(files.config)) {
    const int64_t rows = expected.shape.size() == 2 ? expected.shape[0] : 1;
    const WeightSource source = files.weights->Matrix(expected.name, rows, expected.shape.back());
    std::vector<float> values(static_cast<size_t>(rows * source.cols));
    if (source.decoder != nullptr) {
      source.decoder->Decode(0, rows * source.cols, values.data());
    } else {  // compared with the package by loader tests
      const std::string type = source.dtype == DType::kF32 ? "F32" : source.dtype == DType::kF16 ? "F16" : "BF16";
      for (size_t i = 0; i < values.size(); ++i) values[i] = blocks.at(type).values[i / 256 % 2][i % 256];
    }
    tensors.push_back(Stored(expected, values, IsHead(files, expected.name) ? source.dtype : DType::kF32));
  }
  WriteTwin(scratch / "twin", files.config, tensors);
  ExpectSame(backend, scratch / "m.gguf", scratch / "twin", {1, 4, 5, 6, 7, 3, 0, 2, 4});
}

// The other families (biases, norms of heads, experts, windows) as their GGUF files have them.
TEST_P(GgufLogits, Families) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const TempDir scratch;
  std::vector<LogitsModel> models = RandomFamilyModels(scratch.path());
  if (FindSharedFolder()) {
    for (const std::string& name : SharedFamilyNames()) models.push_back(SharedFamilyModel(name));
  }
  for (const LogitsModel& model : models) {
    if (model.name == "random-qwen2") continue;  // GGUF has no word for windows of some layers
    if (model.name == "tiny-gemma2" || model.name == "tiny-gemma3") continue;  // scores are divided by other roots
    if (model.name == "tiny-smollm3") continue;  // each fourth layer has no RoPE there, in this one the third
    SCOPED_TRACE(model.name);
    const std::filesystem::path file = scratch / (model.name + ".gguf");
    WriteFile(file, GgufOf(OpenModelFiles(model.folder.string())).Bytes());
    ExpectSame(backend, file, model.folder, model.prompt);
  }
}

// Numbers as Q8_0 stores them, near enough. Requires: rows of whole blocks of 32.
std::string InQ8(const std::string& floats) {
  constexpr size_t kBlock = 32;
  std::vector<float> values(floats.size() / sizeof(float));
  std::memcpy(values.data(), floats.data(), floats.size());
  std::string blocks;
  for (size_t first = 0; first < values.size(); first += kBlock) {
    const std::span<const float> block = std::span(values).subspan(first, kBlock);
    float largest = 0;
    for (const float value : block) largest = std::max(largest, std::abs(value));
    const uint16_t scale = FloatToF16(largest / 127);
    blocks.append(reinterpret_cast<const char*>(&scale), sizeof(scale));
    for (const float value : block) blocks += static_cast<char>(std::lround(value / (largest / 127)));
  }
  return blocks;
}

// Files of before April 2024 have a tensor for each expert: the same numbers, plain and in blocks.
TEST_P(GgufLogits, ExpertsOfTheirOwn) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const TempDir scratch;
  std::vector<LogitsModel> models = RandomFamilyModels(scratch.path());
  std::erase_if(models, [](const LogitsModel& model) { return model.name != "random-mixtral"; });
  if (FindSharedFolder()) models.push_back(SharedFamilyModel("tiny-mixtral"));
  for (const LogitsModel& model : models) {
    SCOPED_TRACE(model.name);
    GgufBuilder file = GgufOf(OpenModelFiles(model.folder.string()));
    WriteFile(scratch / "own.gguf", WithOwnExperts(file).Bytes());
    ExpectSame(backend, scratch / "own.gguf", model.folder, model.prompt);
    for (GgufBuilder::Tensor& tensor : file.tensors) {
      const bool has_blocks = tensor.type == 0 && tensor.dims.front() % 32 == 0;
      if (tensor.name.find("_exps.") == std::string::npos || !has_blocks) continue;
      tensor.data = InQ8(tensor.data);
      tensor.type = 8;
    }
    WriteFile(scratch / "merged.gguf", file.Bytes());
    WriteFile(scratch / "own.gguf", WithOwnExperts(file).Bytes());
    ExpectSame(backend, scratch / "own.gguf", scratch / "merged.gguf", model.prompt);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, GgufLogits, testing::ValuesIn(OneOfEachBackend()),
                         [](const auto& param) { return param.param.Name(); });

}  // namespace
}  // namespace stoch::test
