// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/bench_floor.h"

#include <algorithm>
#include <utility>

#include "kernels/sc/sc_config.h"
#include "loader/config/decoder_config.h"

namespace stoch::cli {
namespace {

// Devices that divide every matrix.
double RowDevices(const Engine& engine) {
  return static_cast<double>(std::max<size_t>(1, engine.options().placement->rows.size()));
}

// Devices that share one pass: those, or all that positions are dealt over.
double DevicesAtOnce(const Engine& engine) {
  const auto& stripes = engine.options().placement->stripes;
  return stripes.empty() ? RowDevices(engine) : static_cast<double>(stripes.size() * stripes.front().size());
}

// Tensor core rates that prompts are held against, where they were measured: bit-MAC/s of binary wgmma for SC, MAC/s of
// fp16. 0 = unknown.
double TensorRate(const std::string& device_name, Precision precision) {
  if (device_name.find("H200") == std::string::npos) return 0;
  if (precision == Precision::kSc) return 7.8e15;
  return precision == Precision::kFp16 ? 3.95e14 : 0;
}

// MACs of one token in the decoder linears; an SC product is as many bit-MACs as its stream is long.
double MacsPerToken(const Engine& engine) {
  const DecoderConfig& config = engine.config();
  const double hidden = static_cast<double>(config.hidden_size);
  const double intermediate = static_cast<double>(config.intermediate_size);
  const double q = static_cast<double>(config.num_attention_heads * config.head_dim);
  const double kv = static_cast<double>(config.num_key_value_heads * config.head_dim);
  const std::pair<ScOperatorId, double> products[] = {{ScOperatorId::kQProj, hidden * q},
                                                      {ScOperatorId::kKProj, hidden * kv},
                                                      {ScOperatorId::kVProj, hidden * kv},
                                                      {ScOperatorId::kOProj, hidden * q},
                                                      {ScOperatorId::kGateProj, hidden * intermediate},
                                                      {ScOperatorId::kUpProj, hidden * intermediate},
                                                      {ScOperatorId::kDownProj, hidden * intermediate}};
  double macs = 0;
  for (const auto& [id, count] : products) {
    const bool sc = engine.options().precision == Precision::kSc;
    macs += count * (sc ? Resolve(engine.options().sc.at(id)).stoc_len : 1);
  }
  return macs * static_cast<double>(config.num_hidden_layers);
}

}  // namespace

double DecodeFloor(const Engine& engine, const BenchCase& test, int64_t steps, double read_bytes_per_s,
                   std::span<const RankReport> ranks) {
  if (read_bytes_per_s <= 0) return 0;
  int64_t stream_bytes = 0, kv_bytes = 0;  // of other ranks
  for (const RankReport& rank : ranks) {
    stream_bytes += rank.stream_bytes;
    kv_bytes += rank.kv_bytes;
  }
  const double kv_per_token =
      static_cast<double>(engine.model().kv_cache_bytes() + kv_bytes) / static_cast<double>(engine.shape().kv_tokens);
  const double positions = static_cast<double>(test.depth) + static_cast<double>(steps + 1) / 2;
  // Each row's matrices are read where its position is, its keys and values where theirs are.
  const double bytes = static_cast<double>(engine.model().weights().stream_bytes + stream_bytes) / RowDevices(engine) +
                       static_cast<double>(test.batch) * positions * kv_per_token / DevicesAtOnce(engine);
  return 1000 * bytes / read_bytes_per_s;
}

double PromptFloor(const Engine& engine, const BenchCase& test, const std::string& device_name) {
  const double rate = TensorRate(device_name, engine.options().precision) * DevicesAtOnce(engine);
  return rate > 0 ? 1000 * MacsPerToken(engine) * static_cast<double>(test.prompt) / rate : 0;
}

}  // namespace stoch::cli
