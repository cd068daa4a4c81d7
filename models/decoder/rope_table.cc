#include "models/decoder/rope_table.h"

#include "kernels/math/elementary.h"

namespace stoch {
namespace {

float ScaleLlama3(float frequency, const Llama3RopeScaling& scaling) {
  const float original = static_cast<float>(scaling.original_max_position_embeddings);
  const float factor = static_cast<float>(scaling.factor);
  const float low = static_cast<float>(scaling.low_freq_factor);
  const float high = static_cast<float>(scaling.high_freq_factor);
  const float wavelength = 6.2831853071795865f / frequency;
  if (wavelength < original / high) return frequency;
  if (wavelength > original / low) return frequency / factor;
  const float smooth = (original / wavelength - low) / (high - low);
  return (1.0f - smooth) * frequency / factor + smooth * frequency;
}

}  // namespace

std::vector<float> RopeInverseFrequencies(const LlamaConfig& config) {
  const int64_t pairs = config.head_dim / 2;
  std::vector<float> frequencies(static_cast<size_t>(pairs));
  for (int64_t i = 0; i < pairs; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.head_dim);
    const float power = static_cast<float>(ExpDouble(static_cast<double>(exponent) * Log(config.rope_theta)));
    const float frequency = 1.0f / power;
    frequencies[static_cast<size_t>(i)] =
        config.rope_scaling ? ScaleLlama3(frequency, *config.rope_scaling) : frequency;
  }
  return frequencies;
}

std::vector<float> MakeRopeTable(const LlamaConfig& config, int64_t positions) {
  const std::vector<float> frequencies = RopeInverseFrequencies(config);
  const size_t pairs = frequencies.size();
  std::vector<float> table(static_cast<size_t>(positions) * pairs * 2);
  for (size_t p = 0; p < static_cast<size_t>(positions); ++p) {
    float* row = table.data() + p * pairs * 2;
    for (size_t i = 0; i < pairs; ++i) {
      const float angle = static_cast<float>(p) * frequencies[i];
      double sine, cosine;
      SinCos(static_cast<double>(angle), &sine, &cosine);
      row[i] = static_cast<float>(cosine);
      row[pairs + i] = static_cast<float>(sine);
    }
  }
  return table;
}

}  // namespace stoch
