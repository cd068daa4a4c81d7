// SPDX-License-Identifier: Apache-2.0
// Host memory while a model is loaded: no more than one tensor beyond what is kept, whatever the form of the file.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "kernels/registry.h"
#include "loader/config/decoder_tensors.h"
#include "tests/loader/gguf_samples.h"
#include "tests/loader/quantized_samples.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

// A line of /proc/self/status in bytes; -1 where there is none.
int64_t StatusBytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1)) * 1024;
  }
  return -1;
}

// Makes VmHWM the memory of now.
bool ResetPeak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

constexpr int64_t kHidden = 512, kIntermediate = 4096, kVocabulary = 16384;

// `count` numbers in rows of 256 that are all alike.
std::string Repeated(const std::string& row, uint64_t count) {
  std::string data;
  data.reserve(count / 256 * row.size());
  for (uint64_t i = 0; i < count / 256; ++i) data += row;
  return data;
}

// Every matrix of one type, whose blocks of 256 numbers are `row`.
GgufBuilder LargerGguf(uint32_t type, const std::string& row, int64_t layers) {
  GgufBuilder file;
  file.String("general.architecture", "llama").U32("llama.block_count", static_cast<uint32_t>(layers));
  file.U32("llama.context_length", 64);
  file.U32("llama.embedding_length", kHidden).U32("llama.feed_forward_length", kIntermediate);
  file.U32("llama.attention.head_count", 8).F32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  const auto matrix = [&](const std::string& name, uint64_t cols, uint64_t rows) {
    file.tensors.push_back({name + ".weight", {cols, rows}, type, Repeated(row, rows * cols)});
  };
  const auto norm = [&](const std::string& name) {
    std::string data;
    for (int64_t i = 0; i < kHidden; ++i) data += std::string("\0\0\x80\x3f", 4);
    file.tensors.push_back({name + ".weight", {kHidden}, 0, std::move(data)});
  };
  matrix("token_embd", kHidden, kVocabulary);
  norm("output_norm");
  for (int64_t i = 0; i < layers; ++i) {
    const std::string block = "blk." + std::to_string(i) + ".";
    for (const char* name : {"attn_norm", "ffn_norm"}) norm(block + name);
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"}) matrix(block + name, kHidden, kHidden);
    for (const char* name : {"ffn_gate", "ffn_up"}) matrix(block + name, kHidden, kIntermediate);
    matrix(block + "ffn_down", kIntermediate, kHidden);
  }
  return file;
}

constexpr uint16_t kBf16Small = 0x3c00, kF16Small = 0x1c00;  // 2^-7 and 2^-8

// A folder whose linears are quantized; embedding and norms are BF16.
void WriteLargerFolder(const std::filesystem::path& folder, QuantizedKind kind, bool shuffled, int64_t layers) {
  TinyModel base;
  base.config.hidden_size = kHidden;
  base.config.intermediate_size = kIntermediate;
  base.config.num_hidden_layers = layers;
  base.config.num_attention_heads = base.config.num_key_value_heads = 8;
  base.config.head_dim = kHidden / 8;
  base.config.vocab_size = kVocabulary;
  base.config.tie_word_embeddings = true;
  QuantizedModel model;
  const auto add = [&](const std::string& name, DType dtype, const std::vector<int64_t>& shape, const auto& element) {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    std::vector<std::byte> bytes(static_cast<size_t>(count) * sizeof(element));
    for (size_t i = 0; i < bytes.size(); i += sizeof(element)) std::memcpy(&bytes[i], &element, sizeof(element));
    model.tensors.push_back({name, dtype, shape, std::move(bytes)});
  };
  constexpr int64_t kGroup = 128;
  for (const DecoderTensor& tensor : DecoderTensors(base.config)) {
    const std::string module = tensor.name.substr(0, tensor.name.rfind('.'));
    const auto rows = tensor.shape.front(), cols = tensor.shape.back();
    if (!module.ends_with("_proj")) {
      add(tensor.name, DType::kBF16, tensor.shape, kBf16Small);
    } else if (kind == QuantizedKind::kFp8Block) {
      add(tensor.name, DType::kU8, tensor.shape, uint8_t{0x31});
      add(tensor.name + "_scale_inv", DType::kF32, {rows / kGroup, cols / kGroup}, 0.25f);
    } else {
      const bool gptq = kind == QuantizedKind::kGptq;
      add(module + ".qweight", DType::kI32, gptq ? std::vector{cols / 8, rows} : std::vector{cols, rows / 8},
          0x75312468);
      add(module + ".qzeros", DType::kI32, {cols / kGroup, rows / 8}, 0x77777777);
      add(module + ".scales", DType::kF16, {cols / kGroup, rows}, kF16Small);
      if (!shuffled) continue;
      std::vector<std::byte> order(static_cast<size_t>(cols) * sizeof(int32_t));
      for (int64_t i = 0; i < cols; ++i) {
        const auto group = static_cast<int32_t>(i % (cols / kGroup));
        std::memcpy(&order[static_cast<size_t>(i) * sizeof(group)], &group, sizeof(group));
      }
      model.tensors.push_back({module + ".g_idx", DType::kI32, {cols}, std::move(order)});
    }
  }
  const char* method = R"("quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm")";
  if (kind == QuantizedKind::kFp8Block) {
    method = R"("quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128])";
  } else if (kind == QuantizedKind::kGptq) {
    method = shuffled ? R"("quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": true, "sym": false)"
                      : R"("quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": false, "sym": false)";
  }
  model.config = ConfigJson(base.config);
  model.config.insert(model.config.rfind('}'), std::string(", \"quantization_config\": {") + method + "}");
  WriteQuantized(folder, model);
}

void ExpectFlatPeak(const std::filesystem::path& path, int64_t largest_bytes, int64_t layers) {
  const std::shared_ptr<Backend> backend = OpenBackend("cpu", {}, nullptr);
  EngineOptions options;
  options.context = 64;
  ASSERT_TRUE(ResetPeak());
  const int64_t before = StatusBytes("VmRSS");
  const auto engine = Engine::Open(backend, OpenModelFiles(path.string()), options);
  const int64_t kept = StatusBytes("VmRSS");
  const int64_t peak = StatusBytes("VmHWM");
  // The codes of all layers are kept: what is measured is there.
  const int64_t layer_bytes = 4 * kHidden * kHidden + 3 * kHidden * kIntermediate;
  EXPECT_GT(kept - before, layers * layer_bytes);
  constexpr int64_t kSlackBytes = int64_t{6} << 20;  // tables, stacks, pages that the allocator holds
  EXPECT_LE(peak - kept, largest_bytes + kSlackBytes) << "kept " << kept - before << ", peak " << peak - before;
}

// Runs the body in a child, which has no memory of what another model left.
void InChild(const std::function<void()>& body) {
  std::fflush(stdout);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    body();
    std::fflush(stdout);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

bool CannotMeasure() { return StatusBytes("VmHWM") < 0 || !ResetPeak(); }

TEST(LoadingMemory, PeakOfGgufIsOneTensorAboveWhatIsKept) {
  if (CannotMeasure()) GTEST_SKIP() << "no /proc/self/clear_refs";
  for (const auto& [name, type] : ReadGgufBlocks()) {
    SCOPED_TRACE(name);
    // 12 layers, so that what grows with them is seen; a few of the types whose tensors go the way of Q8_0.
    const int64_t layers = name == "Q8_0" || name == "BF16" ? 12 : 3;
    InChild([&, &blocks = type] {
      const TempDir folder;
      WriteFile(folder / "m.gguf", LargerGguf(blocks.number, blocks.blocks[0], layers).Bytes());
      ExpectFlatPeak(folder / "m.gguf", kVocabulary * kHidden / 256 * static_cast<int64_t>(blocks.blocks[0].size()),
                     layers);
    });
  }
}

TEST(LoadingMemory, PeakOfQuantizedFoldersIsOneTensorAboveWhatIsKept) {
  if (CannotMeasure()) GTEST_SKIP() << "no /proc/self/clear_refs";
  const std::pair<const char*, QuantizedKind> kinds[] = {{"FP8", QuantizedKind::kFp8Block},
                                                         {"GPTQ", QuantizedKind::kGptq},
                                                         {"GPTQ in another order", QuantizedKind::kGptq},
                                                         {"AWQ", QuantizedKind::kAwq}};
  for (const auto& [name, kind] : kinds) {
    SCOPED_TRACE(name);
    InChild([kind = kind, shuffled = std::string_view(name).ends_with("order")] {
      const TempDir folder;
      constexpr int64_t kLayers = 6;
      WriteLargerFolder(folder.path(), kind, shuffled, kLayers);
      ExpectFlatPeak(folder.path(), kVocabulary * kHidden * 2, kLayers);
    });
  }
}

}  // namespace
}  // namespace stoch::test
