// SPDX-License-Identifier: Apache-2.0
// sc_cost of a run: what is counted, in closed form, and that cuts, batches and placement change nothing.
#include "research/cost.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/placement.h"
#include "kernels/registry.h"
#include "research/sc_files.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

constexpr const char* kOps[] = {"q_proj",  "k_proj",    "v_proj", "o_proj", "gate_proj",
                                "up_proj", "down_proj", "qk",     "av"};

// How the work of a run is cut.
struct Way {
  int64_t pass_rows = 64;
  bool together = false;  // all sequences in one pass
  std::string device = "cpu";
  bool by_rows = false;
};

class CostOfRun : public testing::Test {
 protected:
  void SetUp() override { WriteTinyModel(scratch_.path(), {}); }

  std::string Write(const std::string& name, const std::string& text) {
    const auto path = scratch_.path() / name;
    std::ofstream(path) << text;
    return path.string();
  }
  std::string Table(const std::string& levels, const std::string& bucket, const std::string& more = "") {
    std::string defaults;
    for (const char* op : kOps) defaults += (defaults.empty() ? "\"" : ", \"") + std::string(op) + "\": " + bucket;
    return Write("mp.json",
                 R"({"stoc_len_levels": )" + levels + R"(, "operator_defaults": {)" + defaults + "}" + more + "}");
  }

  // Two sequences of 40 and 9 tokens as prompts, then three tokens more for each.
  ScCost Run(const std::string& settings, const ScFileOptions& files, const Way& way, const CostOptions& cost = {}) {
    EngineOptions options;
    options.sc = ParseScModelConfig(std::vector<std::string>{settings});
    ReadScFiles(files, &options.sc);
    options.max_pass_rows = 64;
    options.min_piece_rows = 4;
    options.max_sequences = 2;
    const std::shared_ptr<Backend> backend = OpenBackend(way.device, {.threads = 1, .cpu_variant = ""}, nullptr);
    ModelFiles model = OpenModelFiles(scratch_.path().string());
    options.placement = way.by_rows ? RowSplit(model.config, backend->devices()) : Place({}, model, *backend, &options);
    const auto engine = Engine::Open(backend, std::move(model), options);
    const ScCostCollector collector(*engine, cost);
    std::vector<std::unique_ptr<Sequence>> sequences;
    for (const int length : {40, 9}) {
      sequences.push_back(engine->NewSequence(64));
      std::vector<int32_t> ids;
      for (int i = 0; i < length; ++i) ids.push_back((i * 37 + length) % 96);
      sequences.back()->Append(ids);
    }
    for (int more = 0; more < 4; ++more) {
      Finish(*engine, sequences, way);
      const int32_t id = 5 + more;
      for (const auto& sequence : sequences) sequence->Append({&id, 1});
    }
    return collector.Cost();
  }

  static void Finish(Engine& engine, const std::vector<std::unique_ptr<Sequence>>& sequences, const Way& way) {
    const auto item = [&](const auto& sequence) {
      const int64_t now = std::min(way.pass_rows, sequence->pending());
      return StepItem{sequence.get(), now, now == sequence->pending() ? StepOutput::kLast : StepOutput::kNone};
    };
    if (way.together) {
      for (;;) {
        std::vector<StepItem> items;
        for (const auto& sequence : sequences) {
          if (sequence->pending() > 0) items.push_back(item(sequence));
        }
        if (items.empty()) return;
        engine.Step(items);
      }
    }
    for (const auto& sequence : sequences) {
      while (sequence->pending() > 0) {
        const StepItem one = item(sequence);
        engine.Step({&one, 1});
      }
    }
  }

  TempDir scratch_;
};

constexpr const char* kSpread = R"({"thresholds": [0.5], "metric_lo": 0, "metric_hi": 2})";
// Of the calls of Run: rows, and visible positions of all rows.
constexpr int64_t kRows = 40 + 9 + 3 + 3;
constexpr int64_t kVisible = 40 * 41 / 2 + 9 * 10 / 2 + (41 + 42 + 43) + (10 + 11 + 12);
constexpr int64_t kLinear = 64 * (64 + 32 + 32 + 64) + 3 * 64 * 172;  // macs of a layer and row

TEST_F(CostOfRun, CountsEveryMultiplicationOfAUniformRun) {
  const ScCost cost = Run("preset=halved", {}, {});
  EXPECT_EQ(cost.calls, 8);
  const MacCounts macs = cost.macs();
  EXPECT_EQ(macs.sc, 2 * (kRows * kLinear + 2 * 64 * kVisible));
  EXPECT_EQ(macs.fp, 8 * 64 * 96) << "the LM head of the last row of each call";
  EXPECT_EQ(macs.table + macs.integer(), 0);
  EXPECT_EQ(cost.mac_cycles(), macs.sc * 128);
  EXPECT_EQ(cost.mac_average(), 128.0);
  EXPECT_EQ(cost.attention_average(), 128.0);
  EXPECT_EQ(cost.by_op().at("lm_head"), std::nullopt);
  for (const auto& [rows, average] : cost.tile_averages) EXPECT_EQ(average, 128.0) << rows;
}

TEST_F(CostOfRun, SharesFollowTheMask) {
  const ScCost cost = Run("q_proj.arith=int4,1.o_proj.arith=fp,1.o_proj.stoc_len=32,down_proj.stoc_len=32", {}, {});
  const MacCounts macs = cost.macs();
  EXPECT_EQ(macs.integers.at(4), 2 * kRows * 64 * 64);
  EXPECT_EQ(macs.fp, kRows * 64 * 64 + 8 * 64 * 96);
  EXPECT_EQ(macs.sc, 2 * (kRows * (kLinear - 64 * 64) + 2 * 64 * kVisible) - kRows * 64 * 64);
  EXPECT_EQ(cost.by_op().at("down_proj"), 32.0);
  EXPECT_EQ(cost.by_op().at("q_proj"), std::nullopt);
  const double down = static_cast<double>(2 * kRows * 64 * 172);
  const double all = static_cast<double>(macs.sc);
  EXPECT_EQ(cost.mac_average(), (down * 32 + (all - down) * 128) / all);
  const auto share = cost.ToJson()["mac_share"];
  EXPECT_EQ(share["int"], RatioOf(macs.integer(), macs.all()));
  EXPECT_EQ(share["sc"], RatioOf(macs.sc, macs.all()));
  EXPECT_EQ(Run("attention=exact", {}, {}).macs().fp, 2 * 2 * 64 * kVisible + 8 * 64 * 96);
}

TEST_F(CostOfRun, WholeWindowsCountTheirRectangle) {
  const ScCost cost = Run("attention=per_row", {}, {});
  const int64_t rectangle = 40 * 40 + 9 * 9 + (41 + 42 + 43) + (10 + 11 + 12);
  EXPECT_EQ(cost.macs().sc, 2 * (kRows * kLinear + 2 * 64 * rectangle));
}

// ceil(d_out / C) * (sum of ceil(width / K) over chunks * L + FILL), for every tile of R rows.
TEST_F(CostOfRun, CyclesAreTheClosedForm) {
  const ArrayShape array{16, 24, 20, 7};
  const ScCost cost = Run("preset=halved,stoc_len=96", {}, {}, {.tile_rows = {1}, .array = array});
  const auto ceil = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const auto linear = [&](int64_t rows, int64_t d_in, int64_t d_out) {
    int64_t steps = 0;
    for (int64_t c = 0; c < d_in; c += 128) steps += ceil(std::min<int64_t>(128, d_in - c), array.depth);
    return ceil(rows, array.rows) * ceil(d_out, array.cols) * (steps * 96 + array.fill);
  };
  const auto attention = [&](int64_t start, int64_t rows) {
    int64_t cycles = 0;
    for (int64_t first = 0; first < rows; first += array.rows) {
      const int64_t seen = start + std::min(first + array.rows, rows);
      cycles += 4 * ceil(seen, array.cols) * (ceil(16, array.depth) * 96 + array.fill);
      cycles += 4 * ceil(16, array.cols) * (ceil(seen, array.depth) * 96 + array.fill);
    }
    return cycles;
  };
  int64_t expected = 0;
  for (const auto& [start, rows] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 40}, {40, 1}, {41, 1}, {42, 1}, {0, 9}, {9, 1}, {10, 1}, {11, 1}}) {
    expected += 2 * (2 * linear(rows, 64, 64) + 2 * linear(rows, 64, 32) + 2 * linear(rows, 64, 172) +
                     linear(rows, 172, 64) + attention(start, rows));
  }
  EXPECT_EQ(ToText(cost.array().cycles), std::to_string(expected));
  // A byte for every weight and call, and for keys and values of every KV head.
  EXPECT_EQ(ToText(cost.array().dram_read_bytes), std::to_string(2 * (8 * kLinear + 2 * 32 * (40 + 9 + 126 + 33))));
}

TEST_F(CostOfRun, ConstantLengthsAreTheUniformRun) {
  const std::string mp = Table("[96, 32]", R"({"thresholds": [0], "metric_lo": 0, "metric_hi": 1})");
  const CostOptions options{.array = ArrayShape{8, 8, 16, 3}};
  for (const char* mode : {"attention=per_token", "attention=per_row"}) {
    const auto mixed = Run(mode, {.mp = mp}, {}, options).ToJson(true);
    EXPECT_EQ(mixed, Run(std::string(mode) + ",stoc_len=96", {}, {}, options).ToJson(true)) << mode;
  }
}

TEST_F(CostOfRun, MixedLengthsAreThoseOfTheRows) {
  const ScCost cost = Run("preset=halved", {.mp = Table("[128, 24]", kSpread)}, {});
  ASSERT_TRUE(cost.lengths_known());
  Int128 macs = 0;
  Int128 cycles = 0;
  for (const OperatorCost& op : cost.operators) {
    for (const auto& [length, count] : op.macs_by_len) {
      EXPECT_TRUE(length == 128 || length == 24) << length;
      macs += count;
      cycles += count * length;
    }
  }
  EXPECT_EQ(macs, 2 * (kRows * kLinear + 2 * 64 * kVisible));
  EXPECT_EQ(cost.mac_average(), RatioOf(cycles, macs));
  EXPECT_GT(*cost.mac_average(), 24.0);
  EXPECT_LT(*cost.mac_average(), 128.0);
  ASSERT_EQ(cost.tile_averages.size(), 5u);
  EXPECT_EQ(cost.tile_averages[0].second, *cost.mac_average());
  for (size_t i = 1; i < 5; ++i) EXPECT_GE(cost.tile_averages[i].second, cost.tile_averages[i - 1].second);
  EXPECT_GT(cost.tile_averages[4].second, cost.tile_averages[0].second);
}

TEST_F(CostOfRun, CutsBatchesAndPlacementChangeNothing) {
  std::string chunks;
  for (const std::string op : {"q_proj", "gate_proj", "down_proj"}) {
    chunks += (chunks.empty() ? "\"" : ", \"") + op +
              R"(:t0:l0": {"levels": [16, 64], "thresholds": [0.5], "metric_lo": 0, "metric_hi": 1.5})";
  }
  const std::string mp = Table("[128, 24]", kSpread,
                               R"(, "per_row_chunk": {"buckets": {)" + chunks +
                                   R"(}}, "protected_channels": {"stoc_len": 100, "indices": {"o_proj:b0": [0, 9, 17],)"
                                   R"( "down_proj:b1": [4]}})");
  const CostOptions options{.tile_rows = {1, 7, 32}, .array = ArrayShape{16, 24, 20, 7}};
  for (const ScFileOptions& files : {ScFileOptions{}, ScFileOptions{.mp = mp}}) {
    const auto whole = Run("lm_head=1", files, {}, options).ToJson(true);
    EXPECT_EQ(Run("lm_head=1", files, {.pass_rows = 7}, options).ToJson(true), whole);
    EXPECT_EQ(Run("lm_head=1", files, {.pass_rows = 5, .together = true}, options).ToJson(true), whole);
    EXPECT_EQ(Run("lm_head=1", files, {.device = "cpu:2"}, options).ToJson(true), whole) << "layers";
    EXPECT_EQ(Run("lm_head=1", files, {.pass_rows = 9, .together = true, .device = "cpu:3", .by_rows = true}, options)
                  .ToJson(true),
              whole)
        << "rows";
  }
}

TEST_F(CostOfRun, ASlidingWindowSeesItsPositions) {
  TinyModel model;
  model.config.architecture = FindArchitecture("mistral");
  model.config.windows = {8, 8};
  WriteTinyModel(scratch_.path(), model);
  const ScCost cost = Run("preset=halved", {}, {}, {.array = ArrayShape{16, 64, 64, 0}});
  int64_t visible = 0;
  for (int64_t i = 1; i <= 43; ++i) visible += std::min<int64_t>(i, 8);
  for (int64_t i = 1; i <= 12; ++i) visible += std::min<int64_t>(i, 8);
  EXPECT_EQ(ToText(cost.macs().sc), std::to_string(2 * (kRows * kLinear + 2 * 64 * visible)));
  // Rows of a prompt see all of it together, a token the window.
  EXPECT_EQ(ToText(cost.array().dram_read_bytes), std::to_string(2 * (8 * kLinear + 2 * 32 * (40 + 9 + 6 * 8))));
}

TEST_F(CostOfRun, RefusesCyclesOfExperts) {
  TinyModel model;
  model.config.architecture = FindArchitecture("qwen3_moe");
  model.config.num_experts = 4;
  model.config.num_experts_per_tok = 2;
  model.config.moe_intermediate_size = 48;
  model.config.sparse_layers = {true, true};
  WriteTinyModel(scratch_.path(), model);
  const ScCost cost = Run("preset=halved", {}, {});
  EXPECT_EQ(ToText(cost.macs().sc),
            std::to_string(2 * (kRows * (64 * (64 + 32 + 32 + 64) + 2 * 3 * 64 * 48) + 2 * 64 * kVisible)));
  ExpectInvalid([&] { Run("preset=halved", {}, {}, {.array = ArrayShape{8, 8, 8, 0}}); }, {"--array", "expert"});
}

// Every (token, expert) pair counts, and its expert is the unit of a group.
TEST_F(CostOfRun, LengthsOfExpertsAreThoseOfTheirPairs) {
  TinyModel model;
  model.config.architecture = FindArchitecture("qwen3_moe");
  model.config.num_experts = 4;
  model.config.num_experts_per_tok = 2;
  model.config.moe_intermediate_size = 48;
  model.config.sparse_layers = {true, true};
  WriteTinyModel(scratch_.path(), model);
  const std::string mp = Table("[128, 24]", R"({"thresholds": [0.5], "metric_lo": 0, "metric_hi": 5})",
                               R"(, "protected_channels": {"stoc_len": 100, "indices": {"down_proj:b0:u1": [0, 9, 17],)"
                               R"( "gate_proj:b1": [4], "o_proj:b0": [2]}})");
  const CostOptions options{.tile_rows = {1, 7, 32}, .array = ArrayShape{16, 24, 20, 7}};
  const ScCost cost = Run("preset=halved", {.mp = mp}, {}, options);
  EXPECT_GT(cost.array().cycles, 0);
  ASSERT_TRUE(cost.lengths_known());
  EXPECT_EQ(ToText(cost.macs().sc),
            std::to_string(2 * (kRows * (64 * (64 + 32 + 32 + 64) + 2 * 3 * 64 * 48) + 2 * 64 * kVisible)));
  std::map<std::string, int> lengths;
  for (const OperatorCost& op : cost.operators) {
    for (const auto& [length, count] : op.macs_by_len) ++lengths[op.op + " " + std::to_string(length)];
  }
  EXPECT_EQ(lengths["down_proj 100"], 1);
  EXPECT_EQ(lengths["gate_proj 100"], 1);
  EXPECT_EQ(lengths["up_proj 100"], 0);
  EXPECT_EQ(lengths["gate_proj 128"], 2);
  EXPECT_EQ(lengths["gate_proj 24"], 2);
  const auto whole = cost.ToJson(true);
  EXPECT_EQ(Run("preset=halved", {.mp = mp}, {.pass_rows = 7}, options).ToJson(true), whole);
  EXPECT_EQ(Run("preset=halved", {.mp = mp}, {.pass_rows = 5, .together = true}, options).ToJson(true), whole);
  EXPECT_EQ(Run("preset=halved", {.mp = mp}, {.device = "cpu:2"}, options).ToJson(true), whole) << "layers";
  EXPECT_EQ(
      Run("preset=halved", {.mp = mp}, {.pass_rows = 9, .together = true, .device = "cpu:3", .by_rows = true}, options)
          .ToJson(true),
      whole)
      << "rows";
  // One length for all is the uniform run.
  const std::string one = Table("[96, 32]", R"({"thresholds": [0], "metric_lo": 0, "metric_hi": 1})");
  const ScCost mixed = Run("preset=halved", {.mp = one}, {});
  const ScCost uniform = Run("stoc_len=96", {}, {});
  EXPECT_EQ(mixed.mac_cycles(), uniform.mac_cycles());
  EXPECT_EQ(mixed.by_op(), uniform.by_op());
}

TEST(Trace, CallsThatAreEqualCountAsOften) {
  TraceCall call;
  call.op = "q_proj";
  call.rows = 5;
  call.d_in = 300;
  call.d_out = 7;
  call.chunk_d = 128;
  call.lengths = {128, 64, 64, 0, 32};
  Trace one({1, 2}, ArrayShape{2, 4, 16, 1});
  for (int i = 0; i < 3; ++i) one.Add(call);
  call.calls = 3;
  Trace three({1, 2}, ArrayShape{2, 4, 16, 1});
  three.Add(call);
  EXPECT_EQ(ToText(three.array().cycles), ToText(one.array().cycles));
  EXPECT_EQ(ToText(three.array().dram_read_bytes), std::to_string(3 * 2100));
  EXPECT_EQ(three.TileAverage(1), one.TileAverage(1));
  EXPECT_EQ(three.total().mac_average(), one.total().mac_average());
  ASSERT_EQ(three.Groups().size(), one.Groups().size());
  EXPECT_EQ(three.Groups()[0].calls, 3);
}

}  // namespace
}  // namespace stoch::test
