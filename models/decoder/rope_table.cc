// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/rope_table.h"

#include <algorithm>
#include <cmath>
#include <variant>

#include "kernels/math/elementary.h"

namespace stoch {
namespace {

template <typename T>
const T* ScalingOf(const DecoderConfig& config) {
  return config.rope_scaling ? std::get_if<T>(&*config.rope_scaling) : nullptr;
}

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

// Which of the frequencies yarn blends: dimensions from `low` on are slowed the more, from `high` on entirely.
struct YarnBand {
  double low = 0;
  double high = 0;
};

YarnBand BandOf(const YarnRopeScaling& scaling, double dim, double theta) {
  const auto dimension = [&](double rotations) {
    constexpr double kTwoPi = 6.283185307179586;
    return dim * Log(scaling.original_max_position_embeddings / (rotations * kTwoPi)) / (2 * Log(theta));
  };
  YarnBand band{dimension(scaling.beta_fast), dimension(scaling.beta_slow)};
  if (scaling.truncate) band = {std::floor(band.low), std::ceil(band.high)};
  band = {std::max(band.low, 0.0), std::min(band.high, dim - 1)};
  if (band.low == band.high) band.high += 0.001;
  return band;
}

float ScaleYarn(float power, int64_t i, const YarnRopeScaling& scaling, const YarnBand& band) {
  const float ramp = (static_cast<float>(i) - static_cast<float>(band.low)) / static_cast<float>(band.high - band.low);
  const float kept = 1.0f - std::clamp(ramp, 0.0f, 1.0f);
  const float slowed = 1.0f / (static_cast<float>(scaling.factor) * power);
  return slowed * (1.0f - kept) + 1.0f / power * kept;
}

// Attention multiplies scores by 1 / sqrt(head_dim): with attention_multiplier in its place, q and k take the square root of
// what is between them.
double ScoreGain(const DecoderConfig& config) {
  if (config.attention_multiplier <= 0) return 1;
  return std::sqrt(config.attention_multiplier * std::sqrt(static_cast<double>(config.head_dim)));
}

}  // namespace

std::vector<float> RopeInverseFrequencies(const DecoderConfig& config) {
  const int64_t pairs = config.head_dim / 2;
  const int64_t rotary_dim = config.RotaryDim();
  const auto* linear = ScalingOf<LinearRopeScaling>(config);
  const auto* llama3 = ScalingOf<Llama3RopeScaling>(config);
  const auto* yarn = ScalingOf<YarnRopeScaling>(config);
  const auto* longrope = ScalingOf<LongRopeScaling>(config);
  YarnBand band;
  if (yarn != nullptr) band = BandOf(*yarn, static_cast<double>(rotary_dim), config.rope_theta);
  std::vector<float> frequencies(static_cast<size_t>(pairs));
  for (int64_t i = 0; i < rotary_dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotary_dim);
    const float power = static_cast<float>(ExpDouble(static_cast<double>(exponent) * Log(config.rope_theta)));
    float frequency = 1.0f / power;
    if (linear != nullptr) frequency = frequency / static_cast<float>(linear->factor);
    if (llama3 != nullptr) frequency = ScaleLlama3(frequency, *llama3);
    if (yarn != nullptr) frequency = ScaleYarn(power, i, *yarn, band);
    if (longrope != nullptr) {
      frequency = 1.0f / (static_cast<float>(longrope->short_factor[static_cast<size_t>(i)]) * power);
    }
    frequencies[static_cast<size_t>(i)] = frequency;
  }
  return frequencies;
}

std::vector<float> MakeRopeTable(const DecoderConfig& config, int64_t rows, const Stripe& stripe) {
  const std::vector<float> frequencies = RopeInverseFrequencies(config);
  const size_t pairs = frequencies.size();
  const auto* yarn = ScalingOf<YarnRopeScaling>(config);
  const auto* longrope = ScalingOf<LongRopeScaling>(config);
  const double factor = yarn != nullptr       ? yarn->attention_factor
                        : longrope != nullptr ? longrope->attention_factor
                                              : 1.0;
  // Of q and of k, in place of a factor of their product.
  const double scale = ScoreGain(config);
  const auto rotated = static_cast<size_t>(config.RotaryDim() / 2);
  std::vector<float> table(static_cast<size_t>(rows) * pairs * 2);
  for (int64_t r = 0; r < rows; ++r) {
    float* row = table.data() + static_cast<size_t>(r) * pairs * 2;
    const auto position = static_cast<float>(stripe.Absolute(r));
    for (size_t i = 0; i < pairs; ++i) {
      const float angle = position * frequencies[i];
      double sine, cosine;
      SinCos(static_cast<double>(angle), &sine, &cosine);
      const auto gain = static_cast<float>(i < rotated ? factor * scale : scale);
      row[i] = static_cast<float>(cosine) * gain;
      row[pairs + i] = static_cast<float>(sine) * gain;
    }
  }
  return table;
}

std::vector<float> MakeRopeTables(const DecoderConfig& config, int64_t rows, const Stripe& stripe) {
  std::vector<float> tables = MakeRopeTable(config, rows, stripe);
  if (NumRopeTables(config) == 1) return tables;
  if (config.local_rope_theta > 0) {
    DecoderConfig local = config;
    local.rope_theta = config.local_rope_theta;
    local.rope_scaling.reset();
    const std::vector<float> table = MakeRopeTable(local, rows, stripe);
    tables.insert(tables.end(), table.begin(), table.end());
    return tables;
  }
  for (int64_t row = 0; row < rows; ++row) {
    tables.insert(tables.end(), static_cast<size_t>(config.head_dim / 2), static_cast<float>(ScoreGain(config)));
    tables.insert(tables.end(), static_cast<size_t>(config.head_dim / 2), 0.0f);
  }
  return tables;
}

}  // namespace stoch
