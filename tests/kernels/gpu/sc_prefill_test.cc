// SPDX-License-Identifier: Apache-2.0
// The prefill SC linear: its split over clusters (no GPU needed), and its bits against the definition on every path.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/base/cuda_check.h"
#include "kernels/cuda/base/memory.h"
#include "kernels/cuda/sc/hopper/prefill.h"
#include "kernels/cuda/sc/hopper/prefill_kernels.h"
#include "kernels/cuda/sc/tiles/tiles.h"
#include "kernels/math/random.h"
#include "kernels/plan/sc_traits.h"
#include "tests/kernels/gpu/cuda_or_skip.h"

namespace stoch::cuda {
namespace {

// Runs the clusters of a schedule side by side, each piece as soon as the piece before it in its tile is done. Every
// chunk must be computed once and in order, and nothing may wait for ever.
void RunSchedule(const PrefillSchedule& schedule) {
  std::vector<int> done(static_cast<size_t>(schedule.tiles), 0);
  std::vector<int> pieces(static_cast<size_t>(schedule.tiles), 0);
  std::vector<int> step(static_cast<size_t>(schedule.clusters), 0);
  for (bool progress = true; progress;) {
    progress = false;
    for (int cluster = 0; cluster < schedule.clusters; ++cluster) {
      int& at = step[static_cast<size_t>(cluster)];
      for (; at < schedule.max_steps; ++at, progress = true) {
        const auto piece = schedule.At(cluster, at);
        if (piece.chunk_begin == piece.chunk_end) continue;
        ASSERT_GE(piece.tile, 0);
        ASSERT_LT(piece.tile, schedule.tiles);
        ASSERT_LT(piece.chunk_begin, piece.chunk_end);
        ASSERT_LE(piece.chunk_end, schedule.chunks);
        const size_t tile = static_cast<size_t>(piece.tile);
        if (pieces[tile] < piece.number) break;  // what LoadPartial waits for
        ASSERT_EQ(pieces[tile], piece.number);
        ASSERT_EQ(done[tile], piece.chunk_begin);
        ASSERT_EQ(piece.number == 0, piece.chunk_begin == 0);
        done[tile] = piece.chunk_end;
        ++pieces[tile];
      }
    }
  }
  for (const int chunks : done) ASSERT_EQ(chunks, schedule.chunks);
}

TEST(CudaScPrefillSchedule, ComputesEveryChunkOnceAndInOrder) {
  for (const int clusters : {1, 2, 3, 5, 7, 16, 66}) {
    for (const int supers : {1, 2, 3, 11, 16, 24, 40, 112}) {
      for (const int tokens : {1, 64, 65, 128, 150, 192, 193, 256, 384, 1000, 2048}) {
        for (const int chunks : {1, 2, 3, 8, 32, 112}) {
          SCOPED_TRACE(testing::Message() << clusters << " clusters, " << supers << " super tiles, " << tokens
                                          << " tokens, " << chunks << " chunks");
          PrefillSchedule schedule = MakePrefillSchedule(clusters, supers, tokens, chunks);
          RunSchedule(schedule);
          SortPlaces(&schedule);
          RunSchedule(schedule);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// What a cluster has done when it comes to a step: PrefillChunkCost.
int64_t CostBefore(const PrefillSchedule& schedule, int cluster, int step) {
  int64_t cost = 0;
  for (int i = 0; i < step; ++i) {
    const auto piece = schedule.At(cluster, i);
    cost += int64_t{PrefillChunkCost(piece.width)} * (piece.chunk_end - piece.chunk_begin);
  }
  return cost;
}

// The point of cutting tiles: the 8B shapes at 2048 tokens leave no cluster idle for more than 1 % of the time.
TEST(CudaScPrefillSchedule, BalancesTheLlamaShapes) {
  const std::pair<int, int> shapes[] = {{24, 32}, {16, 32}, {112, 32}, {16, 112}};
  for (const auto& [supers, chunks] : shapes) {
    const PrefillSchedule schedule = MakePrefillSchedule(66, supers, 2048, chunks);
    int64_t total = 0, largest = 0;
    for (int cluster = 0; cluster < schedule.clusters; ++cluster) {
      const int64_t cost = CostBefore(schedule, cluster, schedule.max_steps);
      total += cost;
      largest = std::max(largest, cost);
    }
    EXPECT_GT(static_cast<double>(total) / static_cast<double>(largest * 66), 0.99) << supers << " super tiles";
  }
}

// Down projections of 8B and 70B, 2048 tokens: cut tiles are cut at few places, so that their clusters read the same
// activations at the same time.
TEST(CudaScPrefillSchedule, LongTilesAreCutAtFewPlaces) {
  const std::pair<int, int> shapes[] = {{16, 112}, {32, 224}};
  for (const auto& [supers, chunks] : shapes) {
    const PrefillSchedule schedule = MakePrefillSchedule(66, supers, 2048, chunks);
    std::set<int> wide, narrow;
    for (int cluster = 0; cluster < schedule.clusters; ++cluster) {
      for (int step = 0; step < schedule.max_steps; ++step) {
        const auto piece = schedule.At(cluster, step);
        if (piece.chunk_begin == 0) continue;
        (piece.width == kPrefillWidth ? wide : narrow).insert(piece.chunk_begin);
      }
    }
    EXPECT_LE(wide.size(), 8u) << supers << " super tiles";
    EXPECT_LE(narrow.size(), 16u) << supers << " super tiles";
  }
}

// Clusters that share the tokens of their first whole tiles begin with them one after another.
TEST(CudaScPrefillSchedule, WholeTilesOfTheSameTokensBeginTogether) {
  for (const int supers : {16, 24, 112}) {
    PrefillSchedule schedule = MakePrefillSchedule(66, supers, 2048, 112);
    ASSERT_GT(schedule.full, 0);
    SortPlaces(&schedule);
    std::vector<int64_t> begin(66, -1);
    for (int cluster = 0; cluster < 66; ++cluster) {
      for (int step = 0; step < schedule.max_steps; ++step) {
        const auto piece = schedule.At(cluster, step);
        if (piece.chunk_end - piece.chunk_begin < schedule.chunks || piece.tile >= 66) continue;
        begin[static_cast<size_t>(piece.tile)] = step <= 1 ? CostBefore(schedule, cluster, 1) : -1;
      }
    }
    EXPECT_GE(begin.front(), 0);
    EXPECT_TRUE(std::is_sorted(begin.begin(), begin.end())) << supers << " super tiles";
  }
}

// "name=value,name=value"
ScOperatorPtr OperatorOf(const std::string& parameters) {
  ScConfig config;
  for (size_t i = 0; i < parameters.size();) {
    const size_t end = std::min(parameters.find(',', i), parameters.size());
    const size_t equals = parameters.find('=', i);
    SetScParameter(config, parameters.substr(i, equals - i), parameters.substr(equals + 1, end - equals - 1));
    i = end + 1;
  }
  return MakeScOperator(config);
}

// Without a formula the bits are the same, but prompts take 6 % longer at 64 cycles: only this would notice.
TEST(RanksAreDirect, WhereAFormulaGivesThem) {
  for (const char* parameters :
       {"halve=1", "halve=1,stoc_len=96", "halve=1,stoc_len=64", "halve=1,stoc_len=32", "halve=1,scramble=off"}) {
    EXPECT_TRUE(RanksAreDirect(*OperatorOf(parameters))) << parameters;
  }
  for (const char* parameters :
       {"", "halve=1,stoc_len=100", "halve=1,stoc_len=48", "halve=1,stoc_len=16", "halve=1,sc_prec=5",
        "halve=1,stoc_len=32,scramble=off", "halve=1,stoc_len=96,scramble=off", "halve=1,stoc_len=64,scramble=random",
        "halve=1,stoc_len=64,source=lfsr"}) {
    EXPECT_FALSE(RanksAreDirect(*OperatorOf(parameters))) << parameters;
  }
}

struct Matrix {
  std::vector<uint8_t> codes;  // in the layout of the device
  std::vector<float> scales;
  Buffer device_codes, device_scales;
};

// Every level, the extremes often, both signs, and the negative zero that no quantizer makes but the layout allows.
uint8_t RandomCode(uint64_t stream, uint64_t index, int levels) {
  const uint64_t bits = RandomBits(11, stream, index);
  const int level = bits % 8 == 0 ? (bits >> 3) % 2 * (levels - 1) : static_cast<int>((bits >> 8) % levels);
  return static_cast<uint8_t>(level | ((bits >> 40) % 2 << 7));
}

struct Case {
  std::string config;
  int64_t tokens = 0;
  std::vector<int64_t> rows;  // of the weights of one call
  int64_t dims = 0;
  bool add = false;
  int clusters = 0;
};

class CudaScPrefill : public testing::TestWithParam<Case> {};

enum class Path { kWgmma, kTiles, kTilesSplit };

void CompareWithDefinition(const Case& c, Path path) {
  const ScOperatorPtr op = OperatorOf(c.config);
  DeviceContext ctx(0);
  const ScTraits& traits = ctx.tables.Traits(*op);
  ASSERT_TRUE(CanPrefill(traits));
  if (path == Path::kWgmma && !CanPrefillWgmma(ctx.traits, traits)) {
    GTEST_SKIP() << "no wgmma path: the code, the device or its limits (GpuTraits) have none for " << c.config;
  }
  const ScDims dims = MakeScDims(c.dims, op->config.chunk_d);
  const ScTables& tables = ctx.tables.Get(*op);

  Matrix a;
  a.codes.resize(static_cast<size_t>(c.tokens * dims.padded));
  for (int64_t n = 0; n < c.tokens; ++n) {
    for (int64_t d = 0; d < c.dims; ++d) {
      a.codes[static_cast<size_t>(n * dims.padded + dims.padded_index(d))] =
          RandomCode(1, static_cast<uint64_t>(n * c.dims + d), op->levels);
    }
  }
  a.scales.resize(static_cast<size_t>(dims.chunks * c.tokens));
  for (size_t i = 0; i < a.scales.size(); ++i) a.scales[i] = 0.01f + std::abs(RandomWeight(11, 2, i, 1.0f));
  a.device_codes = DeviceCopy(ctx.device, a.codes);
  a.device_scales = DeviceCopy(ctx.device, a.scales);
  ScActivationView view;
  view.dims = dims;
  view.tokens = c.tokens;
  view.codes = static_cast<const uint8_t*>(a.device_codes.data());
  view.scales = static_cast<const float*>(a.device_scales.data());

  std::vector<Matrix> weights(c.rows.size());
  std::vector<std::vector<float>> before(c.rows.size());
  std::vector<Buffer> outs;
  std::vector<ScLinearTask> tasks(c.rows.size());
  for (size_t w = 0; w < c.rows.size(); ++w) {
    ScWeightView& weight = tasks[w].weight;
    weight.dims = dims;
    weight.rows = c.rows[w];
    weight.rows_padded = (c.rows[w] + kRowPadding - 1) / kRowPadding * kRowPadding;
    weights[w].codes.resize(static_cast<size_t>(weight.rows_padded * dims.padded));
    weights[w].scales.resize(static_cast<size_t>(dims.chunks * weight.rows_padded));
    for (int64_t m = 0; m < weight.rows; ++m) {
      for (int64_t d = 0; d < c.dims; ++d) {
        weights[w].codes[static_cast<size_t>(weight.code_offset(m, dims.padded_index(d)))] =
            RandomCode(3 + w, static_cast<uint64_t>(m * c.dims + d), op->levels);
      }
      for (int64_t k = 0; k < dims.chunks; ++k) {
        weights[w].scales[static_cast<size_t>(k * weight.rows_padded + m)] =
            0.001f + std::abs(RandomWeight(11, 100 + w, static_cast<uint64_t>(k * weight.rows + m), 0.1f));
      }
    }
    weights[w].device_codes = DeviceCopy(ctx.device, weights[w].codes);
    weights[w].device_scales = DeviceCopy(ctx.device, weights[w].scales);
    weight.codes = static_cast<const uint8_t*>(weights[w].device_codes.data());
    weight.scales = static_cast<const float*>(weights[w].device_scales.data());
    const int64_t stride = c.rows[w] + 7;  // what lies between rows must stay
    before[w].resize(static_cast<size_t>(c.tokens * stride));
    for (size_t i = 0; i < before[w].size(); ++i) before[w][i] = RandomWeight(11, 200 + w, i, 1.0f);
    outs.push_back(DeviceCopy(ctx.device, before[w]));
    tasks[w].out = {static_cast<float*>(outs.back().data()), stride, c.add};
  }

  const LinearShape shape{c.tokens, c.dims, c.rows};
  const auto task_count = static_cast<int>(tasks.size());
  if (path == Path::kWgmma) {
    ScPrefillOptions options;
    options.clusters = c.clusters;
    LaunchScPrefill(ctx, PlanScPrefill(ctx.traits, traits, shape), tables, view, tasks.data(), task_count, options);
  } else {
    const LinearPlan plan = PlanScTiles(ctx.traits, traits, shape, path == Path::kTilesSplit);
    if (plan.shared_bytes > ctx.traits.max_shared_bytes) {
      GTEST_SKIP() << plan.shared_bytes << " bytes of shared memory for " << c.config
                   << ", where plans choose no tiles";
    }
    LaunchScTiles(ctx, plan, *op, view, {}, tasks.data(), task_count);
  }

  for (size_t w = 0; w < c.rows.size(); ++w) {
    const ScWeightView& weight = tasks[w].weight;
    std::vector<float> got(before[w].size());
    STOCH_CUDA(
        cudaMemcpyAsync(got.data(), outs[w].data(), got.size() * sizeof(float), cudaMemcpyDeviceToHost, ctx.stream));
    STOCH_CUDA(cudaStreamSynchronize(ctx.stream));
    std::vector<float> want = before[w];
    for (int64_t n = 0; n < c.tokens; ++n) {
      for (int64_t m = 0; m < weight.rows; ++m) {
        float y = 0;
        for (int64_t k = 0; k < dims.chunks; ++k) {
          int32_t acc = 0;
          for (int64_t i = 0; i < dims.chunk_dims(k); ++i) {
            const uint8_t x = a.codes[static_cast<size_t>(n * dims.padded + k * dims.chunk_stride + i)];
            const uint8_t q = weights[w].codes[static_cast<size_t>(weight.code_offset(m, k * dims.chunk_stride + i))];
            const int count = op->count(static_cast<int>(i) & (op->masks - 1), x & 0x7f, q & 0x7f);
            acc += ((x ^ q) & 0x80) != 0 ? -count : count;
          }
          const float scale = a.scales[static_cast<size_t>(k * c.tokens + n)] *
                              weights[w].scales[static_cast<size_t>(k * weight.rows_padded + m)];
          y = y + (static_cast<float>(acc) * op->gain) * scale;
        }
        float& out = want[static_cast<size_t>(n * tasks[w].out.stride + m)];
        out = c.add ? out + y : y;
      }
    }
    int64_t wrong = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): bits are what is compared
      if (std::memcmp(&got[i], &want[i], sizeof(float)) == 0) continue;
      if (wrong++ == 0) {
        ADD_FAILURE() << "weight " << w << ", token " << static_cast<int64_t>(i) / tasks[w].out.stride << ", row "
                      << static_cast<int64_t>(i) % tasks[w].out.stride << ": got " << got[i] << ", want " << want[i];
      }
    }
    EXPECT_EQ(wrong, 0) << "of " << got.size();
  }
}

TEST_P(CudaScPrefill, WgmmaGivesTheDefinitionsBits) {
  STOCH_CUDA_OR_SKIP();
  CompareWithDefinition(GetParam(), Path::kWgmma);
}

TEST_P(CudaScPrefill, TilesGiveTheDefinitionsBits) {
  STOCH_CUDA_OR_SKIP();
  CompareWithDefinition(GetParam(), Path::kTiles);
}

TEST_P(CudaScPrefill, SplitTilesGiveTheDefinitionsBits) {
  STOCH_CUDA_OR_SKIP();
  CompareWithDefinition(GetParam(), Path::kTilesSplit);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaScPrefill,
                         testing::Values(Case{"stoc_len=128,halve=1,chunk_d=128", 128, {384}, 128},
                                         Case{"halve=1,chunk_d=128", 150, {300}, 400, true},
                                         Case{"halve=1,chunk_d=128", 7, {64}, 16},
                                         Case{"halve=1,chunk_d=128", 31, {1100}, 640},
                                         Case{"halve=1,chunk_d=128", 65, {513, 2100}, 257, true},
                                         Case{"halve=1,chunk_d=128", 33, {70, 500, 1}, 250, true},
                                         // Cut tiles: few clusters, many pieces, tiles of every width.
                                         Case{"halve=1,chunk_d=16", 200, {600, 200}, 256, false, 1},
                                         Case{"halve=1,chunk_d=16", 260, {600, 200}, 256, true, 2},
                                         Case{"halve=1,chunk_d=16", 320, {600, 200}, 256, false, 3},
                                         Case{"halve=1,chunk_d=16", 400, {600, 200}, 256, true, 5}));

INSTANTIATE_TEST_SUITE_P(
    Operators, CudaScPrefill,
    testing::Values(Case{"stoc_len=64,halve=1,chunk_d=128", 70, {260}, 300},
                    Case{"stoc_len=64,halve=1,chunk_d=128,scramble=random", 70, {260}, 300},  // another rank a mask
                    Case{"stoc_len=32,halve=1,chunk_d=128", 70, {260}, 300},
                    Case{"stoc_len=96,halve=1,chunk_d=128", 70, {260}, 300},
                    Case{"stoc_len=48,halve=1,chunk_d=64", 70, {260}, 300},
                    Case{"stoc_len=1,halve=1,chunk_d=64", 40, {260}, 300}, Case{"chunk_d=128", 70, {260}, 300},
                    Case{"stoc_len=200,chunk_d=48", 70, {260}, 300}, Case{"stoc_len=129,chunk_d=0", 70, {260}, 300},
                    Case{"halve=1,chunk_d=100,scramble=off", 70, {260}, 333},
                    Case{"sc_prec=5,chunk_d=128", 70, {260}, 300}, Case{"halve=1,chunk_d=0", 70, {260}, 333},
                    Case{"stoc_len=128,chunk_d=128,scramble_masks=256", 70, {260}, 300}));

}  // namespace
}  // namespace stoch::cuda
