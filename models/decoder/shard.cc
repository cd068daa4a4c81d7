// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/shard.h"

#include "kernels/base/check.h"
#include "loader/config/decoder_tensors.h"

namespace stoch {
namespace {

// Rows of a weight come in multiples of this: 16 floats are a cache line's half, so no two devices write one sector of
// a gathered row.
constexpr int64_t kRowGranule = 16;

}  // namespace

IndexRange EvenPart(int64_t total, int64_t granule, int64_t index, int64_t count) {
  STOCH_CHECK(total >= 0 && granule > 0 && index >= 0 && index < count);
  const int64_t granules = (total + granule - 1) / granule;
  const auto at = [&](int64_t part) { return part == count ? total : granules * part / count * granule; };
  return {at(index), at(index + 1)};
}

std::vector<DecoderShard> DivideRows(const DecoderConfig& config, std::span<const Device> devices) {
  STOCH_CHECK(!devices.empty());
  const auto count = static_cast<int64_t>(devices.size());
  const int64_t group = config.num_attention_heads / config.num_key_value_heads;
  std::vector<DecoderShard> shards;
  for (int64_t i = 0; i < count; ++i) {
    DecoderShard shard;
    shard.device = devices[static_cast<size_t>(i)];
    shard.kv_heads = EvenPart(config.num_key_value_heads, 1, i, count);
    shard.heads = {shard.kv_heads.begin * group, shard.kv_heads.end * group};
    shard.hidden = EvenPart(config.hidden_size, kRowGranule, i, count);
    shard.intermediate = EvenPart(config.intermediate_size, kRowGranule, i, count);
    shard.expert_intermediate = EvenPart(config.moe_intermediate_size, kRowGranule, i, count);
    shard.vocab = EvenPart(config.vocab_size, kRowGranule, i, count);
    shards.push_back(shard);
  }
  return shards;
}

std::vector<DecoderShard> DealPositions(const DecoderConfig& config, std::span<const std::vector<Device>> devices) {
  const auto count = static_cast<int>(devices.size());
  STOCH_CHECK(IsStripeCount(count));
  std::vector<DecoderShard> shards;
  for (int i = 0; i < count; ++i) {
    STOCH_CHECK(devices[static_cast<size_t>(i)].size() == devices[0].size());
    for (DecoderShard& shard : DivideRows(config, devices[static_cast<size_t>(i)])) {
      shard.stripe = {i, count};
      if (i > 0) shard.vocab = {};
      shards.push_back(shard);
    }
  }
  return shards;
}

PassShape ShapeOn(const PassShape& shape, const DecoderShard& shard) {
  PassShape own = shape;
  own.max_rows = MaxDealtRows(shape.max_rows, shape.max_sequences, shard.stripe.count);
  return own;
}

IndexRange RangeOf(const DecoderConfig& config, const DecoderShard& shard, Axis axis) {
  const auto of_heads = [&config](const IndexRange& heads) {
    return IndexRange{heads.begin * config.head_dim, heads.end * config.head_dim};
  };
  switch (axis) {
    case Axis::kHidden: return shard.hidden;
    case Axis::kHeads: return of_heads(shard.heads);
    case Axis::kKvHeads: return of_heads(shard.kv_heads);
    case Axis::kIntermediate: return shard.intermediate;
    case Axis::kExpertIntermediate: return shard.expert_intermediate;
    case Axis::kHeadDim: return {0, config.head_dim};
  }
  STOCH_CHECK(false);
}

std::vector<DeviceMatrix> BlockMatrices(const DecoderConfig& config, const DecoderShard& shard, int64_t layer,
                                        std::span<const BlockLinear> linears, int64_t expert) {
  const auto axis = [expert](Axis of) { return expert < 0 ? of : ExpertAxis(of); };
  std::vector<DeviceMatrix> matrices;
  for (const BlockLinear& linear : linears) {
    matrices.push_back({OperatorOf(linear.id), LinearTensorName(config, layer, expert, linear),
                        SizeOf(config, axis(linear.out)), SizeOf(config, axis(linear.in)),
                        RangeOf(config, shard, axis(linear.out))});
  }
  return matrices;
}

int64_t BiasSize(const DecoderConfig& config, const DecoderShard& shard, std::span<const BlockLinear> linears) {
  int64_t size = 0;
  for (const BlockLinear& linear : linears) size += RangeOf(config, shard, linear.out).size();
  return size;
}

DeviceMatrix RouterMatrix(const DecoderConfig& config, int64_t layer) {
  return {ScOperatorId::kLmHead, LayerTensorName(layer, config.architecture->router), config.num_experts,
          config.hidden_size, IndexRange{0, config.num_experts}};
}

}  // namespace stoch
