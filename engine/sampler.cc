#include "engine/sampler.h"

#include <algorithm>
#include <map>
#include <string>

#include "engine/logprobs.h"
#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "kernels/math/elementary.h"
#include "kernels/math/random.h"

namespace stoch {
namespace {

// Random streams of the sampler start here, away from those of random weights.
constexpr uint64_t kSamplerStream = 0x73616d706c65ull << 16;

struct Candidate {
  int32_t id;
  float logit;
  double weight;  // proportional to its probability, 1 for the most likely
};

[[noreturn]] void Reject(const char* name, const std::string& value, const char* allowed) {
  throw InvalidInput(std::string(name) + " = " + value + ": allowed is " + allowed);
}

std::vector<float> Adjust(std::span<const float> logits, std::span<const int32_t> history, int64_t prompt_tokens,
                          const SamplingOptions& options) {
  std::vector<float> adjusted(logits.begin(), logits.end());
  for (const auto& [id, bias] : options.logit_bias) adjusted[static_cast<size_t>(id)] += bias;
  std::map<int32_t, int64_t> generated;  // occurrences; ordered, so that nothing depends on a hash
  for (size_t i = 0; i < history.size(); ++i) {
    int64_t& count = generated[history[i]];
    if (static_cast<int64_t>(i) >= prompt_tokens) ++count;
  }
  const auto repeat = static_cast<float>(options.repeat_penalty);
  const auto presence = static_cast<float>(options.presence_penalty);
  const auto frequency = static_cast<float>(options.frequency_penalty);
  for (const auto& [id, count] : generated) {
    float& logit = adjusted[static_cast<size_t>(id)];
    if (repeat != 1.0f) logit = logit > 0 ? logit / repeat : logit * repeat;
    if (count > 0) logit -= presence + frequency * static_cast<float>(count);
  }
  return adjusted;
}

// Ranked candidates that top_k, top_p and min_p leave.
std::vector<Candidate> Rank(std::span<const float> logits, const SamplingOptions& options) {
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < logits.size(); ++i) candidates.push_back({static_cast<int32_t>(i), logits[i], 0});
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(candidates.size())) {
    std::partial_sort(candidates.begin(), candidates.begin() + options.top_k, candidates.end(), before);
    candidates.resize(static_cast<size_t>(options.top_k));
  } else {
    std::sort(candidates.begin(), candidates.end(), before);
  }
  double total = 0;
  for (Candidate& candidate : candidates) {
    const double difference = static_cast<double>(candidate.logit) - static_cast<double>(candidates[0].logit);
    const double exponent = difference / options.temperature;
    candidate.weight = exponent < -700 ? 0 : ExpDouble(exponent);
    total += candidate.weight;
  }
  size_t keep = candidates.size();
  if (options.top_p < 1) {
    double reached = 0;
    for (keep = 0; keep < candidates.size() && reached < options.top_p * total; ++keep) {
      reached += candidates[keep].weight;
    }
  }
  while (keep > 1 && candidates[keep - 1].weight < options.min_p) --keep;
  candidates.resize(std::max<size_t>(keep, 1));
  return candidates;
}

}  // namespace

void Validate(const SamplingOptions& options, int64_t vocab_size) {
  // Negated comparisons, so that NaN is refused too.
  if (!(options.temperature >= 0 && options.temperature <= 1e6)) {
    Reject("temperature", std::to_string(options.temperature), "0..1000000");
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) Reject("top_p", std::to_string(options.top_p), "above 0, up to 1");
  if (options.top_k < 0) Reject("top_k", std::to_string(options.top_k), "0 or more");
  if (!(options.min_p >= 0 && options.min_p <= 1)) Reject("min_p", std::to_string(options.min_p), "0..1");
  if (!(options.repeat_penalty > 0 && options.repeat_penalty <= 1e6)) {
    Reject("repeat_penalty", std::to_string(options.repeat_penalty), "above 0, up to 1000000");
  }
  if (!(options.presence_penalty >= -1e6 && options.presence_penalty <= 1e6)) {
    Reject("presence_penalty", std::to_string(options.presence_penalty), "-1000000..1000000");
  }
  if (!(options.frequency_penalty >= -1e6 && options.frequency_penalty <= 1e6)) {
    Reject("frequency_penalty", std::to_string(options.frequency_penalty), "-1000000..1000000");
  }
  for (const auto& [id, bias] : options.logit_bias) {
    if (id < 0 || id >= vocab_size) Reject("logit_bias id", std::to_string(id), "an id of the vocabulary");
    if (!(bias >= -1e6f && bias <= 1e6f)) Reject("logit_bias", std::to_string(bias), "-1000000..1000000");
  }
}

bool IsPlainGreedy(const SamplingOptions& options) {
  return options.temperature == 0 && options.repeat_penalty == 1 && options.presence_penalty == 0 &&
         options.frequency_penalty == 0 && options.logit_bias.empty();
}

int32_t Sample(std::span<const float> logits, std::span<const int32_t> history, int64_t prompt_tokens, int64_t position,
               const SamplingOptions& options) {
  STOCH_CHECK(!logits.empty());
  const std::vector<float> adjusted = Adjust(logits, history, prompt_tokens, options);
  if (options.temperature == 0) return HostArgmax(adjusted);

  const std::vector<Candidate> candidates = Rank(adjusted, options);
  double total = 0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  const uint64_t bits = RandomBits(options.seed, kSamplerStream + options.choice, static_cast<uint64_t>(position));
  const double draw = static_cast<double>(bits >> 11) * 0x1p-53 * total;
  double reached = 0;
  for (const Candidate& candidate : candidates) {
    reached += candidate.weight;
    if (draw < reached) return candidate.id;
  }
  return candidates.back().id;  // rounding left the draw at the very end
}

}  // namespace stoch
