// SPDX-License-Identifier: Apache-2.0
#include "tests/research/tiny_logits.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "engine/engine.h"
#include "kernels/registry.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

constexpr size_t kVocab = 96;

}  // namespace

std::vector<float> TinyLogits(const std::filesystem::path& folder, const std::string& settings,
                              const ScFileOptions& files, const Way& way) {
  const std::string one = way.on_gpu ? "cuda:0" : "cpu";
  const std::string device = way.devices == 1 ? one : "cpu:" + std::to_string(way.devices);
  std::shared_ptr<Backend> backend = OpenBackend(device, {.threads = 2, .cpu_variant = way.variant}, nullptr);
  const DecoderConfig model = OpenModelFiles(folder.string()).config;
  EngineOptions options;
  options.sc = ParseScModelConfig(std::vector<std::string>{settings});
  ReadScFiles(files, &options.sc);
  options.max_pass_rows = 128;
  options.max_sequences = 8;
  if (way.dealt) {
    options.placement = SequenceSplit(model, backend->devices(), way.devices);
  } else if (way.devices > 1) {
    options.placement = RowSplit(model, backend->devices());
  }
  const auto engine = Engine::Open(std::move(backend), OpenModelFiles(folder.string()), options);
  std::vector<std::unique_ptr<Sequence>> company;
  for (int i = 0; i < way.others; ++i) {
    company.push_back(engine->NewSequence(64));
    company.back()->Append(std::vector<int32_t>(3, 7 + i));
    company.back()->set_number(static_cast<uint32_t>(3 + i));
  }
  const auto sequence = engine->NewSequence(64);
  std::vector<int32_t> ids;
  for (int i = 0; i < 40; ++i) ids.push_back((i * 37 + 5) % static_cast<int>(kVocab));
  sequence->set_number(way.number);
  sequence->Append(ids);
  std::vector<float> all;
  for (bool first = true; sequence->pending() > 0; first = false) {
    std::vector<StepItem> items;
    for (const auto& other : company) {
      if (first) items.push_back({other.get(), 3, StepOutput::kAll});
    }
    const auto before = static_cast<int64_t>(items.size()) * 3;
    const int64_t now = std::min(way.rows, sequence->pending());
    items.push_back({sequence.get(), now, StepOutput::kAll});
    engine->Step(items);
    std::vector<float> logits(static_cast<size_t>(now) * kVocab);
    engine->ReadLogits(before, now, logits.data());
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

bool SameLogits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !a.empty() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace stoch::test
