// SPDX-License-Identifier: Apache-2.0
// What a plan asks of a backend.
#include "models/decoder/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/simd/simd.h"
#include "kernels/registry.h"
#include "kernels/sc/hardware/accumulator.h"
#include "kernels/wrappers/forwarding_backend.h"
#include "models/hardware_plan.h"
#include "tests/kernels/plan/gpu_models.h"
#include "tests/models/planned_gpu.h"

namespace stoch {
namespace {

// Takes `per_element` bytes for every number that goes into an op, and remembers the ops.
class CountingBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  struct Asked {
    bool experts;
    Precision precision;
    int64_t in_features, rows;
    bool operator==(const Asked&) const = default;
  };
  int64_t LinearScratchBytes(const LinearSpec& spec, std::span<const int64_t> /*out_features*/, int64_t in_features,
                             int64_t max_tokens) const override {
    asked.push_back({false, spec.precision, in_features, max_tokens});
    return in_features * max_tokens;
  }
  int64_t ExpertScratchBytes(const LinearSpec& spec, int64_t in_features, int64_t max_rows) const override {
    asked.push_back({true, spec.precision, in_features, max_rows});
    return 10 * in_features * max_rows;
  }
  mutable std::vector<Asked> asked;
};

TEST(MemoryPlan, ScratchHoldsTheOpsOfExperts) {
  const CountingBackend backend(OpenBackend("cpu", {}, nullptr));
  const DecoderConfig config = NamedDecoderConfig("qwen3-30b-a3b");  // 2048 wide, 8 of 128 experts of 768
  PassShape shape;
  shape.context = 64;
  shape.max_rows = 100;
  shape.max_logit_rows = 1;
  const Device device;
  const DecoderShard shard = DivideRows(config, {&device, 1}).front();
  const int64_t bytes = ScratchBytes(config, Precision::kSc, ScModelConfig(), shape, backend, shard, true);
  const auto asked = [&](const CountingBackend::Asked& op) {
    return std::count(backend.asked.begin(), backend.asked.end(), op) == 1;
  };
  EXPECT_TRUE(asked({true, Precision::kSc, 2048, 100}));     // gate and up: the rows that the experts share
  EXPECT_TRUE(asked({true, Precision::kSc, 768, 800}));      // down: a row of each
  EXPECT_TRUE(asked({false, Precision::kFp32, 2048, 100}));  // router
  EXPECT_EQ(bytes, backend.AllocatedBytes(10 * 768 * 800));  // the largest
}

TEST(MemoryPlan, CountsRowsOfBaseLogits) {
  const auto backend = OpenBackend("cpu", {}, nullptr);
  const ModelFiles files = OpenModelFiles("random:llama-3.2-1b");
  PassShape shape;
  shape.context = 64;
  shape.kv_tokens = 64;
  shape.max_rows = 64;
  shape.max_logit_rows = 64;
  const MemoryPlan without = PlanMemory(files, Precision::kFp32, {}, shape, *backend);
  shape.base_rows = 3;
  const MemoryPlan with = PlanMemory(files, Precision::kFp32, {}, shape, *backend);
  const int64_t bytes = 3 * files.config.vocab_size * 4;
  EXPECT_EQ(with.total.total() - without.total.total(), bytes);
  EXPECT_EQ(with.head_workspace - without.head_workspace, bytes);  // they are where the logits are
}

TEST(MemoryPlan, CountsTablesOfHardwareOnce) {
  const auto backend = OpenBackend("cpu", {.threads = 2, .cpu_variant = ""}, nullptr);
  const ModelFiles files = OpenModelFiles("random:llama-3.2-1b");
  PassShape shape;
  shape.context = shape.kv_tokens = 128;
  shape.max_rows = shape.max_logit_rows = 64;
  const auto plan = [&](const std::string& settings) {
    const ScModelConfig sc = ParseScModelConfig(std::vector<std::string>{settings});
    return PlanMemory(files, Precision::kSc, sc, shape, *backend);
  };
  const auto tables = [&](const std::string& settings) {
    return HardwareTableBytes(files.config, ParseScModelConfig(std::vector<std::string>{settings}), 128);
  };
  const int64_t ideal = plan("attention=exact,stoc_len=128").total.workspace;
  EXPECT_EQ(tables("attention=exact,stoc_len=128"), 0);
  // Linears of 2048 and of 8192 dimensions in every layer, each in one chunk.
  const auto binomials = [](int64_t dims) { return BinomialTable(0.001, dims * 128).bytes(); };
  const std::string faults = "attention=exact,stoc_len=128,chunk_d=0,fault_product=0.001";
  EXPECT_EQ(tables(faults), binomials(2048) + binomials(8192));
  EXPECT_EQ(plan(faults).total.workspace, ideal + tables(faults));
  // Sums by gates take memory on each of two threads, too.
  const std::string adder = "attention=exact,stoc_len=128,q_proj.adder=or,q_proj.adder_group=4";
  const ScModelConfig config = ParseScModelConfig(std::vector<std::string>{adder});
  const ScOperatorPtr op = MakeScOperator(config.at(ScOperatorId::kQProj));
  EXPECT_EQ(tables(adder), ScAccumulator(*op, 2048).bytes());
  EXPECT_EQ(plan(adder).total.workspace, ideal + tables(adder) + 2 * cpu::GateCall::ScratchBytes(128, 4));
}

// A GPU of several that positions are dealt over has no more than its share, and 2 %, of the cache and the activations, and
// of these with all that a pass works in; but 3 % where streams of a whole KV head and a few tiles of scores are long.
TEST(MemoryPlan, DealtPositionsDivideCacheAndWorkspace) {
  const test::PlannedGpu gpu(OpenBackend("cpu", {}, nullptr), test::H200());
  const ModelFiles files = OpenModelFiles("random:llama-3.1-8b");
  const ScModelConfig sc = HalvedScModelConfig();
  struct Case {
    int stripes;
    int64_t context;
    int percent;  // beyond the share
  };
  for (const auto& [stripes, context, percent] :
       {Case{2, 16384, 2}, {2, 131072, 2}, {4, 32768, 2}, {4, 65536, 2}, {4, 131072, 3}}) {
    std::vector<std::vector<Device>> devices;
    for (int i = 0; i < stripes; ++i) devices.push_back({Device{DeviceKind::kCpu, i}});
    const std::vector<DecoderShard> shards = DealPositions(files.config, devices);
    const Device alone;
    const DecoderShard whole = DivideRows(files.config, {&alone, 1}).front();
    for (const int64_t rows : {2048, 4096}) {
      PassShape shape;
      shape.context = shape.kv_tokens = context;
      shape.max_rows = rows;
      shape.max_logit_rows = 128;
      const auto activations = [&](const DecoderShard& shard, bool is_first) {
        return MakeWorkspaceSizes(files.config, shape, shard, false, is_first).total();
      };
      const MemoryBytes one = PlanMemory(files, Precision::kSc, sc, shape, gpu).total;
      for (const size_t i : {size_t{0}, shards.size() - 1}) {
        SCOPED_TRACE(std::to_string(stripes) + " devices, context " + std::to_string(context) + ", " +
                     std::to_string(rows) + " rows, device " + std::to_string(i));
        const MemoryBytes own = PlanShard(files, Precision::kSc, sc, shape, gpu, shards, i).total;
        EXPECT_LE(100 * stripes * (own.kv_cache + activations(shards[i], i == 0)),
                  (100 + 2 * stripes) * (one.kv_cache + activations(whole, true)));
        EXPECT_LE(100 * stripes * (own.kv_cache + own.workspace),
                  (100 + percent * stripes) * (one.kv_cache + one.workspace))
            << own.kv_cache + own.workspace << " of " << one.kv_cache + one.workspace;
      }
    }
  }
}

// One bucket for every operator: rows at 128 cycles or 64.
std::shared_ptr<const MpFile> RowsAtTwoLengths() {
  auto mp = std::make_shared<MpFile>();
  mp->name = "mp.json";
  mp->levels = {128, 64};
  for (int i = 0; i < kNumScOperators; ++i) {
    MpBucket& bucket = mp->operator_defaults[std::string(ScOperatorName(static_cast<ScOperatorId>(i)))];
    bucket.thresholds = {0.5};
    bucket.metric_lo = 0.0;
    bucket.metric_hi = 10.0;
  }
  return mp;
}

PassShape ShapeOfRows(int64_t rows) {
  PassShape shape;
  shape.context = shape.kv_tokens = 8192;
  shape.max_rows = rows;
  shape.max_sequences = 8;
  shape.max_logit_rows = 1;
  return shape;
}

// Kernels and scratch are those of what is loaded: lengths of rows, and settings that some layers have.
TEST(MemoryPlan, SeesWhatEveryLayerRuns) {
  const test::PlannedGpu gpu(OpenBackend("cpu", {}, nullptr), test::H200());
  const DecoderConfig config = NamedDecoderConfig("llama-3.1-8b");
  const Device device;
  const DecoderShard shard = DivideRows(config, {&device, 1}).front();
  const auto kernels = [&](const ScModelConfig& sc) {
    std::map<std::string, std::string> by_op;
    for (const int64_t tokens : {1, 512}) {
      for (const OperatorKernels& row : KernelsOf(config, Precision::kSc, sc, gpu, shard, {&tokens, 1})) {
        by_op[row.op + ' ' + std::to_string(tokens)] = row.kernels.front();
      }
    }
    return by_op;
  };
  const auto scratch = [&](const ScModelConfig& sc, int64_t rows) {
    return ScratchBytes(config, Precision::kSc, sc, ShapeOfRows(rows), gpu, shard, true);
  };
  const ScModelConfig uniform = HalvedScModelConfig();
  auto seen = kernels(uniform);
  EXPECT_EQ(seen["qkv_proj 1"], "decode x1");
  EXPECT_EQ(seen["qkv_proj 512"], "prefill-wgmma x192");
  EXPECT_EQ(seen["attention 512"], "wide-tiles");

  ScModelConfig mixed = uniform;
  mixed.files.mp = RowsAtTwoLengths();
  seen = kernels(mixed);
  EXPECT_EQ(seen["qkv_proj 1"], "mixed decode x1");
  EXPECT_EQ(seen["qkv_proj 512"], "mixed prefill-wgmma by group x192");
  EXPECT_EQ(seen["lm_head 1"], kernels(uniform)["lm_head 1"]);  // it has no lengths
  EXPECT_EQ(seen["attention 1"], "mixed-rows fresh");
  EXPECT_EQ(seen["attention 512"], "mixed-wide-tiles");
  for (const int64_t rows : {8, 512}) EXPECT_GT(scratch(mixed, rows), scratch(uniform, rows)) << rows;

  const ScModelConfig own =
      ParseScModelConfig(std::vector<std::string>{"3.q_proj.arith=fp", "5.qk.arith=int8", "5.av.arith=int8"});
  seen = kernels(own);
  EXPECT_EQ(seen["qkv_proj 1"], "decode x1; exact vector x1");
  EXPECT_EQ(seen["o_proj 1"], "decode x1");
  EXPECT_EQ(seen["attention 512"], "tiles; plain-rows");
}

// `stoch inspect` names the routes that passes of layers with a sliding window run.
TEST(MemoryPlan, SeesTheWindowOfEveryLayer) {
  const test::PlannedGpu gpu(OpenBackend("cpu", {}, nullptr), test::H200());
  const ScModelConfig sc = HalvedScModelConfig();
  DecoderConfig config = NamedDecoderConfig("mistral-7b");
  ASSERT_EQ(config.WindowOf(0), 4096);
  const Device device;
  DecoderShard shard = DivideRows(config, {&device, 1}).front();
  const auto attention = [&](int64_t tokens) {
    for (const OperatorKernels& row : KernelsOf(config, Precision::kSc, sc, gpu, shard, {&tokens, 1})) {
      if (row.op == "attention") return row.kernels.front();
    }
    return std::string();
  };
  const KvCacheSpec cache = MakeKvCacheSpec(config, Precision::kSc, sc, 1, 1);
  const AttentionLayers layers = MakeAttentionLayers(cache, static_cast<int>(config.num_attention_heads));
  const auto runs = [&](int64_t length, int64_t window) {
    AttentionPass pass = AttentionPass::Rows(1, length, AttentionUse::kRecorded);
    pass.window = window;
    return std::string(AttentionRouteName(PlanAttention(test::H200(), layers.at(0), {1, 1, 131072}, pass).short_rows));
  };
  for (const int64_t length : {1024, 10240, 32768, 131072}) EXPECT_EQ(runs(length, 4096), "split-resident") << length;
  EXPECT_EQ(runs(32768, 0), "split-lookup");
  EXPECT_EQ(attention(1), "rows fresh, " + runs(1024, 4096) + " beyond 256");
  EXPECT_EQ(attention(512), "wide-tiles");
  config.windows[3] = 0;  // one layer sees all
  EXPECT_EQ(attention(1), "rows fresh, " + runs(1024, 4096) + " beyond 256; rows fresh, " + runs(1024, 0) +
                              " beyond 256, " + runs(32768, 0) + " beyond 10240");
  config.windows[3] = 4096;
  shard.stripe.count = 2;
  EXPECT_EQ(attention(512), "wide-tiles, rows beyond 4096, split-lookup beyond 6144");
}

// Linears of experts have rows of their own, by what a token takes of them.
TEST(MemoryPlan, SeesWhatExpertsRun) {
  const test::PlannedGpu gpu(OpenBackend("cpu", {}, nullptr), test::H200());
  const DecoderConfig config = NamedDecoderConfig("qwen3-30b-a3b");
  const Device device;
  const DecoderShard shard = DivideRows(config, {&device, 1}).front();
  const auto kernels = [&](const ScModelConfig& sc) {
    constexpr int64_t kTokens[] = {1, 96};
    std::map<std::string, std::vector<std::string>> by_op;
    for (const OperatorKernels& row : KernelsOf(config, Precision::kSc, sc, gpu, shard, kTokens)) {
      by_op[row.op] = row.kernels;
    }
    return by_op;
  };
  auto seen = kernels(HalvedScModelConfig());
  EXPECT_FALSE(seen.contains("down_proj"));  // no layer is dense
  // 6 slots for each of 128 experts; with less, tiles would be almost empty.
  EXPECT_EQ(seen["gate_up_proj of experts"], (std::vector<std::string>{"expert-lookup", "expert-groups"}));
  EXPECT_EQ(seen["down_proj of experts"], (std::vector<std::string>{"expert-lookup", "expert-groups"}));
  seen =
      kernels(ParseScModelConfig(std::vector<std::string>{"down_proj.granularity=per_tensor", "down_proj.chunk_d=0"}));
  EXPECT_EQ(seen["down_proj of experts"], std::vector<std::string>(2, "rows by expert, because rows share scales"));
  EXPECT_EQ(seen["gate_up_proj of experts"].front(), "expert-lookup");
}

// Bytes of a layer are those of its own settings.
TEST(MemoryPlan, CountsExactMatricesOfALayer) {
  const test::PlannedGpu gpu(OpenBackend("cpu", {}, nullptr), test::H200());
  const ModelFiles files = OpenModelFiles("random:llama-3.2-1b");
  const MemoryPlan all = PlanMemory(files, Precision::kSc, HalvedScModelConfig(), ShapeOfRows(8), gpu);
  const ScModelConfig own = ParseScModelConfig(std::vector<std::string>{"3.down_proj.arith=fp"});
  const MemoryPlan one = PlanMemory(files, Precision::kSc, own, ShapeOfRows(8), gpu);
  const int64_t numbers = files.config.hidden_size * files.config.intermediate_size;
  EXPECT_EQ(one.layers[2].weights, all.layers[2].weights);
  EXPECT_GE(one.layers[3].weights, all.layers[3].weights + numbers);  // of two bytes or four instead of one
  EXPECT_LT(one.layers[3].scales, all.layers[3].scales);
}

}  // namespace
}  // namespace stoch
