// SPDX-License-Identifier: Apache-2.0
// Host memory while a model is loaded: no more than one tensor beyond what is kept, whatever the form of the file.

#include <gtest/gtest.h>

#include <fstream>

#include "engine/engine.h"
#include "kernels/registry.h"
#include "tests/loader/gguf_samples.h"
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

constexpr int64_t kHidden = 512, kIntermediate = 4096, kVocabulary = 16384, kLayers = 12;

GgufBuilder LargerGguf(bool blocks) {
  GgufBuilder file;
  file.String("general.architecture", "llama").U32("llama.block_count", kLayers).U32("llama.context_length", 64);
  file.U32("llama.embedding_length", kHidden).U32("llama.feed_forward_length", kIntermediate);
  file.U32("llama.attention.head_count", 8).F32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  // Q8_0 blocks with scale 2^-8, or BF16 numbers, all alike.
  const auto matrix = [&](const std::string& name, uint64_t cols, uint64_t rows) {
    std::string block = blocks ? std::string("\0\x1c", 2) + std::string(32, 'a') : std::string("\x80\x3c", 2);
    const uint64_t count = rows * cols / (blocks ? 32 : 1);
    std::string data;
    data.reserve(count * block.size());
    for (uint64_t i = 0; i < count; ++i) data += block;
    file.tensors.push_back({name + ".weight", {cols, rows}, blocks ? 8u : 30u, std::move(data)});
  };
  const auto norm = [&](const std::string& name) {
    std::string data;
    for (int64_t i = 0; i < kHidden; ++i) data += std::string("\0\0\x80\x3f", 4);
    file.tensors.push_back({name + ".weight", {kHidden}, 0, std::move(data)});
  };
  matrix("token_embd", kHidden, kVocabulary);
  norm("output_norm");
  for (int64_t i = 0; i < kLayers; ++i) {
    const std::string block = "blk." + std::to_string(i) + ".";
    for (const char* name : {"attn_norm", "ffn_norm"}) norm(block + name);
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"}) matrix(block + name, kHidden, kHidden);
    for (const char* name : {"ffn_gate", "ffn_up"}) matrix(block + name, kHidden, kIntermediate);
    matrix(block + "ffn_down", kIntermediate, kHidden);
  }
  return file;
}

void ExpectFlatPeak(const std::filesystem::path& path, int64_t largest_bytes) {
  const std::shared_ptr<Backend> backend = OpenBackend("cpu", {}, nullptr);
  EngineOptions options;
  options.context = 64;
  ASSERT_TRUE(ResetPeak());
  const int64_t before = StatusBytes("VmRSS");
  const auto engine = Engine::Open(backend, OpenModelFiles(path.string()), options);
  const int64_t kept = StatusBytes("VmRSS");
  const int64_t peak = StatusBytes("VmHWM");
  // The codes of 12 layers are kept: what is measured is there.
  const int64_t layer_bytes = 4 * kHidden * kHidden + 3 * kHidden * kIntermediate;
  EXPECT_GT(kept - before, kLayers * layer_bytes);
  constexpr int64_t kSlackBytes = int64_t{6} << 20;  // tables, stacks, pages that the allocator holds
  EXPECT_LE(peak - kept, largest_bytes + kSlackBytes) << "kept " << kept - before << ", peak " << peak - before;
}

TEST(LoadingMemory, PeakIsOneTensorAboveWhatIsKept) {
  if (StatusBytes("VmHWM") < 0 || !ResetPeak()) GTEST_SKIP() << "no /proc/self/clear_refs";
  for (const bool blocks : {true, false}) {
    SCOPED_TRACE(blocks ? "Q8_0" : "BF16");
    const TempDir folder;
    WriteFile(folder / "m.gguf", LargerGguf(blocks).Bytes());
    ExpectFlatPeak(folder / "m.gguf", kVocabulary * kHidden * (blocks ? 34 : 64) / 32);
  }
}

}  // namespace
}  // namespace stoch::test
