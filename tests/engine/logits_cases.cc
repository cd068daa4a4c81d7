// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/logits_cases.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "engine/logits_hash.h"
#include "kernels/math/random.h"
#include "loader/checkpoint/safetensors.h"
#include "tests/support/shared_folder.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

constexpr int64_t kChunkSizes[] = {7, 1, 30, 16, 3};

std::vector<int32_t> RandomPrompt(uint64_t stream, int64_t length, int64_t vocab) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i) {
    ids.push_back(
        static_cast<int32_t>(RandomBits(11, stream, static_cast<uint64_t>(i)) % static_cast<uint64_t>(vocab)));
  }
  return ids;
}

// The next piece of a sequence: of its prompt as `cut` says, then token by token.
int64_t PieceSize(Cut cut, int piece, int64_t pending) {
  if (cut == Cut::kWhole) return pending;
  if (cut == Cut::kTokens) return 1;
  return std::min(pending, kChunkSizes[static_cast<size_t>(piece) % std::size(kChunkSizes)]);
}

// Sequences that share passes with the hashed one. Their logits are not read.
class Neighbours {
 public:
  explicit Neighbours(Engine& engine) : engine_(engine) {}

  // The items of pass number `pass`: a neighbour starts in the first and in the third, and lives for 6 passes.
  std::vector<StepItem> Items(int pass) {
    if (pass == 0 || pass == 2) Start(static_cast<uint64_t>(pass));
    std::vector<StepItem> items;
    for (auto& [sequence, age] : live_) {
      if (sequence->pending() == 0) sequence->Append(RandomPrompt(90, 1, engine_.config().vocab_size));
      items.push_back({sequence.get(), engine_.NextTokens(*sequence, 64), StepOutput::kLast});
      ++age;
    }
    return items;
  }
  void Retire() {
    std::erase_if(live_, [](const auto& entry) { return entry.second == 6; });
  }

 private:
  void Start(uint64_t stream) {
    const auto length = static_cast<int64_t>(5 + 3 * stream);
    auto sequence = engine_.NewSequence(length + 8);
    if (sequence == nullptr) throw std::runtime_error("no pages for a neighbour");
    sequence->Append(RandomPrompt(stream, length, engine_.config().vocab_size));
    live_.emplace_back(std::move(sequence), 0);
  }

  Engine& engine_;
  std::vector<std::pair<std::unique_ptr<Sequence>, int>> live_;
};

}  // namespace

const std::vector<LogitsConfig>& LogitsConfigs() {
  static const std::vector<LogitsConfig> configs = {
      {"fp32", Precision::kFp32, ""},
      {"halved", Precision::kSc, "preset=halved"},
      {"halved_l96", Precision::kSc, "stoc_len=96"},
      {"halved_l64", Precision::kSc, "stoc_len=64"},
      {"halved_l48", Precision::kSc, "stoc_len=48"},
      {"halved_l32", Precision::kSc, "stoc_len=32"},
      {"halved_l17", Precision::kSc, "stoc_len=17"},
      {"halved_off", Precision::kSc, "scramble=off"},
      {"halved_l64_off", Precision::kSc, "stoc_len=64,scramble=off"},
      {"halved_l64_counter", Precision::kSc, "stoc_len=64,scramble=counter"},
      {"halved_masks256", Precision::kSc, "scramble_masks=256"},
      {"halved_per_head", Precision::kSc, "attention=per_head"},
      {"halved_per_row", Precision::kSc, "attention=per_row"},
      {"halved_exact_attention", Precision::kSc, "attention=exact"},
      {"halved_lm_head", Precision::kSc, "lm_head=1"},
      {"halved_mixed", Precision::kSc, "down_proj.stoc_len=64,k_proj.stoc_len=96,qk.stoc_len=48,up_proj.chunk_d=64"},
      {"published", Precision::kSc, "preset=published"},
      {"published_per_row", Precision::kSc, "preset=published,attention=per_row"},
      {"published_per_token", Precision::kSc, "preset=published,attention=per_token"},
      {"published_exact_attention", Precision::kSc, "preset=published,attention=exact"},
      {"published_l100", Precision::kSc, "preset=published,stoc_len=100,attention=per_token"},
      {"unchunked", Precision::kSc, "chunk_d=0"},
      {"per_tensor", Precision::kSc, "chunk_d=0,granularity=per_tensor"},
      {"groups", Precision::kSc, "chunk_d=0,group_a=4,group_b=8"},
      {"unipolar", Precision::kSc, "preset=published,chunk_d=0,mode=unipolar,qk.stoc_len=256,attention=per_token"},
      {"unipolar_l96", Precision::kSc,
       "preset=published,chunk_d=0,mode=unipolar,stoc_len=96,attention=exact,lm_head=1"},
      {"prec6", Precision::kSc, "halve=0,sc_prec=6,stoc_len=64"},
      {"lfsr", Precision::kSc, "source=lfsr,source_seed=7"},
      {"and_gate", Precision::kSc, "gate=and,source=sobol,halve=0"},
      {"xnor_gate", Precision::kSc, "gate=xnor,source=sobol,halve=0,stoc_len=256,attention=exact"},
  };
  return configs;
}

EngineOptions OptionsOf(const LogitsConfig& config) {
  EngineOptions options;
  options.precision = config.precision;
  if (*config.settings != '\0') options.sc = ParseScModelConfig(std::vector<std::string>{config.settings});
  options.context = 128;
  options.max_sequences = 3;
  options.max_pass_rows = 192;
  return options;
}

std::unique_ptr<Engine> OpenCase(std::shared_ptr<Backend> backend, const std::filesystem::path& folder,
                                 const LogitsConfig& config) {
  return Engine::Open(std::move(backend), OpenModelFiles(folder.string()), OptionsOf(config));
}

std::string HashRun(Engine& engine, const std::vector<int32_t>& prompt, const LogitsRun& run) {
  const auto vocab = static_cast<size_t>(engine.config().vocab_size);
  const auto sequence = engine.NewSequence(static_cast<int64_t>(prompt.size()) + kDecodeTokens);
  if (sequence == nullptr) throw std::runtime_error("no pages for the sequence");
  sequence->Append(prompt);
  Neighbours neighbours(engine);
  LogitsHash hash;
  std::vector<float> logits;
  int generated = 0;
  for (int pass = 0; generated <= kDecodeTokens; ++pass) {
    const int64_t count = PieceSize(run.cut, pass, sequence->pending());
    std::vector<StepItem> items;
    if (run.batched) items = neighbours.Items(pass);
    // Neither first nor last where there is company.
    const size_t place = std::min<size_t>(1, items.size());
    items.insert(items.begin() + static_cast<std::ptrdiff_t>(place), {sequence.get(), count, StepOutput::kAll});
    engine.Step(items);
    logits.resize(static_cast<size_t>(count) * vocab);
    engine.ReadLogits(static_cast<int64_t>(place), count, logits.data());
    hash.Add(logits);
    if (sequence->pending() == 0) {
      int32_t id = 0;
      engine.Argmax(static_cast<int64_t>(place) + count - 1, {&id, 1});
      if (generated < kDecodeTokens) sequence->Append({&id, 1});
      ++generated;
    }
    neighbours.Retire();
  }
  return hash.Hex();
}

LogitsModel TinyLogitsModel(const std::filesystem::path& scratch) {
  const TinyModel model;
  WriteTinyModel(scratch, model);
  return {"tiny", scratch, RandomPrompt(0, 70, model.config.vocab_size)};  // crosses a page of the KV cache
}

std::vector<std::string> SharedLogitsModels() { return {"stories260K", "babyllama-936K", "TinyStories-656K"}; }

LogitsModel SharedLogitsModel(const std::string& name) {
  const std::filesystem::path shared = SharedFolder();
  const SafetensorsFile golden(shared / "goldens" / ("llama_" + name + "_golden.safetensors"));
  return {name, shared / "models" / name, golden.CopyI32(golden.Require("exact.0.ids"))};
}

std::vector<LogitsModel> RandomFamilyModels(const std::filesystem::path& scratch, int64_t vocab_size) {
  std::vector<LogitsModel> models;
  const auto add = [&](const char* name, const DecoderConfig& config) {
    TinyModel model;
    model.config = config;
    model.config.vocab_size = vocab_size;
    WriteTinyModel(scratch / name, model);
    models.push_back({name, scratch / name, RandomPrompt(0, 70, vocab_size)});
  };
  DecoderConfig config = TinyLlamaConfig();
  config.biases.fill(true);
  add("random-llama-biases", config);

  config = TinyLlamaConfig();
  config.architecture = FindArchitecture("qwen2");
  config.biases[static_cast<size_t>(BlockGroup::kQkv)] = true;
  config.windows = {0, 9};
  add("random-qwen2", config);

  config = TinyLlamaConfig();
  config.architecture = FindArchitecture("qwen3");
  config.head_dim = 24;
  add("random-qwen3", config);

  config.architecture = FindArchitecture("qwen3_moe");
  config.num_hidden_layers = 3;
  config.num_experts = 6;
  config.num_experts_per_tok = 3;
  config.moe_intermediate_size = 40;
  config.norm_topk_prob = true;
  config.sparse_layers = {true, false, true};
  add("random-qwen3-moe", config);

  add("random-mixtral", TinyMixtralConfig());

  config = TinyLlamaConfig();
  config.architecture = FindArchitecture("mistral");
  config.windows = {21, 21};
  add("random-mistral", config);

  config = TinyLlamaConfig();
  config.architecture = FindArchitecture("phi3");
  config.rotary_dim = 12;
  add("random-phi3", config);

  config = TinyLlamaConfig();
  config.architecture = FindArchitecture("smollm3");
  config.num_hidden_layers = 5;
  config.rope_layers = {true, true, true, false, true};
  add("random-smollm3", config);

  config = TinyLlamaConfig();
  config.architecture = FindArchitecture("granite");
  config.biases.fill(true);
  config.embedding_multiplier = 12;
  config.residual_multiplier = 0.25;
  config.attention_multiplier = 0.125;
  config.logits_scaling = 8;
  add("random-granite", config);

  config = TinyLlamaConfig();
  config.architecture = FindArchitecture("olmo2");
  config.head_dim = 24;
  add("random-olmo2", config);

  config = TinyLlamaConfig();
  config.architecture = FindArchitecture("gemma2");
  config.head_dim = 24;
  config.tie_word_embeddings = true;
  config.embedding_multiplier = 8;  // sqrt(hidden_size)
  config.score_cap = 3;
  config.logit_cap = 0.5;
  config.windows = {9, 0};
  add("random-gemma2", config);

  config = TinyLlamaConfig();
  config.architecture = FindArchitecture("gemma3_text");
  config.num_hidden_layers = 3;
  config.head_dim = 256;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.tie_word_embeddings = true;
  config.embedding_multiplier = 8;
  config.rope_theta = 1e6;
  config.local_rope_theta = 1e4;
  config.rope_layers = {false, false, true};
  config.windows = {21, 21, 0};
  add("random-gemma3", config);
  return models;
}

std::vector<std::string> SharedFamilyNames() {
  return {"tiny-qwen2",        "tiny-qwen3",   "tiny-qwen3-moe", "tiny-mistral", "tiny-mixtral", "tiny-phi3",
          "tiny-phi3-partial", "tiny-smollm3", "tiny-granite",   "tiny-olmo2",   "tiny-gemma2",  "tiny-gemma3"};
}

LogitsModel SharedFamilyModel(const std::string& name) {
  const std::filesystem::path shared = SharedFolder();
  const SafetensorsFile golden(shared / "goldens" / (name + "_golden.safetensors"));
  return {name, shared / "models" / name, golden.CopyI32(golden.Require("exact.1.ids"))};
}

bool IsFamilyConfig(const LogitsConfig& config) {
  for (const std::string_view name : {"fp32", "halved", "halved_per_head", "halved_per_row", "halved_exact_attention",
                                      "halved_mixed", "published", "published_per_token", "unipolar_l96"}) {
    if (name == config.name) return true;
  }
  return false;
}

std::map<std::string, std::string> ReadRecordedHashes() {
  std::ifstream file(STOCH_GOLDEN_FOLDER "/logits_sha256.txt");
  if (!file) throw std::runtime_error("tests/golden/logits_sha256.txt is missing");
  std::map<std::string, std::string> hashes;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string model, config, hash;
    words >> model >> config >> hash;
    hashes[model + ' ' + config] = hash;
  }
  return hashes;
}

}  // namespace stoch::test
