// SPDX-License-Identifier: Apache-2.0
// Traces in the published schemas: written, read again, priced, and files that are wrong.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/registry.h"
#include "research/energy/cost_export.h"
#include "research/energy/energy.h"
#include "research/sc_files.h"
#include "research/trace_reader.h"
#include "research/trace_writer.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

using Json = nlohmann::ordered_json;

class TraceOfRun : public testing::Test {
 protected:
  void SetUp() override { WriteTinyModel(scratch_.path(), {}); }

  // The trace of a prompt of 20 tokens and three tokens more.
  std::string Run(const std::string& settings, TraceMode mode, const CostOptions& cost = {}, bool mixed = false,
                  int64_t pass_rows = 64) {
    EngineOptions options;
    options.sc = ParseScModelConfig(std::vector<std::string>{settings});
    if (mixed) ReadScFiles({.mp = Table()}, &options.sc);
    options.context = 32;
    const auto engine = Engine::Open(OpenBackend("cpu", {.threads = 1, .cpu_variant = ""}, nullptr),
                                     OpenModelFiles(scratch_.path().string()), options);
    const auto path = scratch_.path() / "trace";
    TraceWriter writer(path, mode);
    const ScCostCollector collector(*engine, cost, writer.sink());
    const auto sequence = engine->NewSequence(32);
    for (const int count : {20, 3}) {
      std::vector<int32_t> ids;
      for (int i = 0; i < count; ++i) ids.push_back((i * 37 + count) % 96);
      sequence->Append(ids);
      while (sequence->pending() > 0) {
        const int64_t now = std::min(pass_rows, sequence->pending());
        const StepItem item{sequence.get(), now, now == sequence->pending() ? StepOutput::kLast : StepOutput::kNone};
        engine->Step({&item, 1});
      }
    }
    writer.Finish(collector, {.version = "v",
                              .config = engine->sc_description(),
                              .model_sha256 = "m",
                              .text_sha256 = "t",
                              .common = Resolve(options.sc.at(ScOperatorId::kQProj))});
    cost_ = collector.Cost();
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  std::string Table() const {
    std::string defaults;
    for (const std::string op : {"k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qk", "av"}) {
      defaults += "\"" + op + R"(": {"thresholds": [0.5], "metric_lo": 0, "metric_hi": 2}, )";
    }
    const auto path = scratch_.path() / "mp.json";
    std::ofstream(path) << R"({"stoc_len_levels": [128, 24], "operator_defaults": {)" << defaults
                        << R"("q_proj": {"thresholds": [1], "metric_lo": 0, "metric_hi": 1e9}},
      "per_row_chunk": {"buckets": {"down_proj:t0:l0": {"levels": [0, 64], "thresholds": [0.5], "metric_lo": 0,
        "metric_hi": 1.5}}},
      "protected_channels": {"stoc_len": 100, "indices": {"q_proj:b0": [0, 9]}}})";
    return path.string();
  }

  TempDir scratch_;
  ScCost cost_;
};

TEST_F(TraceOfRun, RecordsFollowFromGeometry) {
  std::stringstream lines(Run("preset=halved", TraceMode::kTrace));
  std::string line;
  std::getline(lines, line);
  const Json header = Json::parse(line);
  EXPECT_EQ(header["schema"], "scmp-trace-v1");
  EXPECT_EQ(header["header"]["n_records"], 2 * 2 * 9);
  EXPECT_EQ(header["header"]["owen_mode"], "bitrev");
  EXPECT_EQ(header["header"]["stoch"]["config"], "preset=halved");
  std::vector<Json> records;
  while (std::getline(lines, line)) records.push_back(Json::parse(line));
  ASSERT_EQ(records.size(), 2u * 2 * 9 + 1);
  EXPECT_EQ(records.back(), (Json{{"trailer", true}, {"n_records", 2 * 2 * 9}}));
  // q k v, qk av, o, gate up down of layer 0, then layer 1.
  const std::vector<std::string> order = {"q_proj", "k_proj",    "v_proj",  "qk",       "av",
                                          "o_proj", "gate_proj", "up_proj", "down_proj"};
  for (size_t i = 0; i < 36; ++i) {
    EXPECT_EQ(records[i]["seq"], i);
    EXPECT_EQ(records[i]["op"], order[i % 9]);
    EXPECT_EQ(records[i]["block"], i / 9 % 2);
    EXPECT_EQ(records[i]["stoc_len"], 128);
    EXPECT_EQ(records[i]["rng_levels"], 128);
    EXPECT_EQ(records[i]["chunk_d"], i % 9 == 3 || i % 9 == 4 ? 0 : 128);
    EXPECT_EQ(records[i]["smoothed"], false);
    EXPECT_EQ(records[i]["unit"], nullptr);
  }
  EXPECT_EQ(records[8]["macs"], 20 * 172 * 64);
  EXPECT_EQ(records[3]["rows"], 4 * 20);
  EXPECT_EQ(records[3]["batch"], 4);
  EXPECT_EQ(records[3]["d_out"], 20);
  EXPECT_EQ(records[3]["macs"], 4 * 16 * 20 * 21 / 2);
  EXPECT_EQ(records[3]["row_cycles"], 4 * 20 * 128);
  EXPECT_EQ(records[18 + 4]["d_in"], 23) << "av of the tokens";
  EXPECT_EQ(records[18 + 4]["macs"], 4 * 16 * (21 + 22 + 23));
}

TEST_F(TraceOfRun, MixedLengthsAreRecordsOfTheirOwn) {
  std::stringstream lines(Run("preset=halved", TraceMode::kTrace, {}, true));
  std::string line;
  std::getline(lines, line);
  int64_t qk_rows = 0;
  Json last;
  while (std::getline(lines, line)) {
    const Json record = Json::parse(line);
    if (record.contains("trailer") || record["block"] != 0) continue;
    if (record["op"] == "q_proj") {  // protected channels, and the others all at the last level
      const bool own = record["d_in"] == 2;
      EXPECT_EQ(record["stoc_len"], own ? 100 : 24);
      EXPECT_TRUE(own || record["d_in"] == 62);
      EXPECT_EQ(own, last.is_null() || last["op"] != "q_proj") << "longest first";
    }
    if (record["op"] == "qk") {
      EXPECT_TRUE(record["unit"].is_number());
      const bool next = last["op"] == "qk" && last["unit"] == record["unit"];
      EXPECT_TRUE(!next || record["stoc_len"] < last["stoc_len"]);
      if (record["unit"] == 2) qk_rows += record["rows"].get<int64_t>();
    }
    EXPECT_TRUE(record["op"] != "down_proj" || record["d_in"] == 128 || record["d_in"] == 44);
    last = record;
  }
  EXPECT_EQ(qk_rows, 20 + 3);
}

TEST_F(TraceOfRun, CutsChangeNoByte) {
  for (const TraceMode mode : {TraceMode::kSummary, TraceMode::kTrace}) {
    const CostOptions cost{.array = ArrayShape{8, 8, 16, 1}};
    EXPECT_EQ(Run("lm_head=1", mode, cost, true, 7), Run("lm_head=1", mode, cost, true));
  }
}

TEST_F(TraceOfRun, IsReadAsWhatWasCounted) {
  const CostOptions options{.tile_rows = {1, 8}, .array = ArrayShape{8, 8, 16, 1}};
  for (const TraceMode mode : {TraceMode::kSummary, TraceMode::kTrace}) {
    for (const bool mixed : {false, true}) {
      const std::string text = Run("lm_head=1,1.o_proj.arith=int4,1.up_proj.arith=fp", mode, options, mixed);
      const TraceFile trace = ParseTraceFile(text, "trace");
      EXPECT_TRUE(trace.is_ours);
      EXPECT_EQ(trace.cost.ToJson(true), cost_.ToJson(true));
      EXPECT_EQ(trace.model_sha256, "m");
      const OperatorCost& down = trace.cost.operators[8];
      EXPECT_EQ(down.macs_by_len.count(0), mixed ? 1u : 0u) << "pruned rows are in no group";
    }
  }
}

TEST_F(TraceOfRun, CyclesOfAUniformTraceAreThoseThatWereCounted) {
  const ArrayShape array{8, 12, 20, 3};
  for (const char* settings : {"lm_head=1", "attention=per_row"}) {
    const std::string text = Run(settings, TraceMode::kTrace);
    const ScCost counted = CountArray(ParseTraceFile(text, "trace"), array);
    Run(settings, TraceMode::kTrace, {.array = array});
    EXPECT_EQ(counted.ToJson(true), cost_.ToJson(true));
    ASSERT_GT(counted.array().cycles, 0);
  }
  ExpectInvalid([&] { CountArray(ParseTraceFile(Run("lm_head=1", TraceMode::kSummary), "sums"), array); },
                {"--array", "sums", "how many rows"});
  ExpectInvalid([&] { CountArray(ParseTraceFile(Run("lm_head=1", TraceMode::kTrace, {}, true), "mixed"), array); },
                {"--array", "mixed", "order"});
}

// The sum over the lines of a network.csv of rows * d_in * d_out, and of that times the length.
std::pair<Int128, Int128> SumsOf(const std::string& network) {
  std::istringstream lines(network);
  std::string line;
  std::getline(lines, line);  // the header
  std::pair<Int128, Int128> sums{0, 0};
  while (std::getline(lines, line)) {
    std::vector<std::string> cells;
    std::istringstream stream(line);
    for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
    EXPECT_EQ(cells.size(), 11u) << line;
    EXPECT_EQ(cells[3], cells[5]) << line;
    const Int128 macs = static_cast<Int128>(std::stoll(cells[2])) * std::stoll(cells[3]) * std::stoll(cells[7]);
    sums.first += macs;
    sums.second += macs * std::stoll(cells[10]);
  }
  return sums;
}

// Causal attention has a triangle of macs, not a square.
TEST_F(TraceOfRun, LayersForOtherToolsHaveTheMacsOfTheTrace) {
  for (const TraceMode mode : {TraceMode::kSummary, TraceMode::kTrace}) {
    for (const bool mixed : {false, true}) {
      const TraceFile trace = ParseTraceFile(Run("lm_head=1", mode, {}, mixed), "trace");
      Int128 pruned = 0;
      for (const OperatorCost& op : trace.cost.operators) {
        const auto found = op.macs_by_len.find(0);
        if (found != op.macs_by_len.end()) pruned += found->second;
      }
      const auto [macs, mac_cycles] = SumsOf(UsystolicNetwork(trace.groups));
      EXPECT_EQ(ToText(macs), ToText(trace.cost.macs().sc - pruned));
      EXPECT_EQ(ToText(mac_cycles), ToText(trace.cost.mac_cycles()));
      ASSERT_GT(macs, 0);
    }
  }
}

TEST(TraceFile, ReadsWhatOthersWrote) {
  const TraceFile trace = ParseTraceFile(R"({"schema": "scmp-trace-summary-v1", "header": {"owen_mode": "bitrev"},
    "groups": [
      {"block": 0, "op": "q_proj", "unit": null, "stoc_len": 128, "sc_prec": 8, "d_in": 64, "d_out": 10,
       "dims_vary": false, "calls": 2, "rows": 6, "macs": 3840, "row_cycles": 768},
      {"block": 0, "op": "q_proj", "unit": null, "stoc_len": 64, "sc_prec": 8, "d_in": 64, "d_out": 10,
       "dims_vary": false, "calls": 1, "rows": 2, "macs": 1280, "row_cycles": 128},
      {"block": null, "op": null, "unit": 3, "stoc_len": 32, "sc_prec": 8, "d_in": 4, "d_out": 2, "dims_vary": true,
       "calls": 3, "rows": 5, "macs": 99, "row_cycles": 160}]})",
                                         "other");
  EXPECT_FALSE(trace.is_ours);
  EXPECT_EQ(trace.cost.by_op().at("q_proj"), (3840.0 * 128 + 1280 * 64) / 5120);
  EXPECT_EQ(trace.cost.mac_average(), (3840.0 * 128 + 1280 * 64 + 99 * 32) / 5219);
  EXPECT_NE(UsystolicNetwork(trace.groups).find("b0_q_proj_L64_1, GEMM, 2, 64, 1, 64, 1, 10, 1, 1, 64,\n"),
            std::string::npos);
  EXPECT_EQ(ToText(SumsOf(UsystolicNetwork(trace.groups)).first), "5219");
}

TEST(TraceFile, RefusesWhatIsNone) {
  const Json group = {{"block", 0}, {"op", "q_proj"}, {"unit", nullptr},    {"stoc_len", 64},
                      {"d_in", 64}, {"d_out", 10},    {"dims_vary", false}, {"calls", 1},
                      {"rows", 2},  {"macs", 1280},   {"row_cycles", 128}};
  const auto with = [&](const std::string& key, const Json& value) {
    Json changed = group;
    changed[key] = value;
    const Json file = {{"schema", "scmp-trace-summary-v1"}, {"header", Json::object()}, {"groups", {changed}}};
    ParseTraceFile(file.dump(), "t");
  };
  with("rows", 2);
  ExpectInvalid([&] { with("rows", 3); }, {"t: group 0", "macs = 1280", "1920"});
  ExpectInvalid([&] { with("row_cycles", 129); }, {"row_cycles = 129", "128"});
  ExpectInvalid([&] { with("stoc_len", 0); }, {"stoc_len", "1..65536"});
  ExpectInvalid([&] { with("macs", "many"); }, {"macs", "count"});
  ExpectInvalid([&] { with("macs", -1); }, {"macs", "count"});
  ExpectInvalid([&] { with("d_in", 1.5); }, {"d_in"});
  ExpectInvalid([&] { with("unit", "x"); }, {"unit"});
  ExpectInvalid([&] { with("op", 7); }, {"op", "a name"});
  ExpectInvalid([] { ParseTraceFile("{}", "t"); }, {"t", "schema"});
  ExpectInvalid([] { ParseTraceFile("[1]", "t"); }, {"t", "object"});
  ExpectInvalid([] { ParseTraceFile(R"({"schema": "other"})", "t"); }, {"schema", "scmp-trace-v1"});
  const std::string head = R"({"schema": "scmp-trace-v1", "header": {}})";
  ExpectInvalid([&] { ParseTraceFile(head + "\n", "t"); }, {"no trailer"});
  ExpectInvalid([&] { ParseTraceFile(head + "\n{\"trailer\": true, \"n_records\": 1}\n", "t"); },
                {"line 2", "n_records"});
  ExpectInvalid([&] { ParseTraceFile(head + "\n{\"trailer\": true, \"n_records\": 0}\n{}\n", "t"); },
                {"line 3", "trailer"});
  ExpectInvalid([&] { ParseTraceFile(head + "\n{\n", "t"); }, {"line 2"});
}

TEST_F(TraceOfRun, AHeaderThatSaysOtherwiseIsRefused) {
  Json file = Json::parse(Run("preset=halved", TraceMode::kSummary));
  ParseTraceFile(file.dump(), "t");
  Json& operators = file["header"]["stoch"]["sc_cost"]["operators"];
  operators[0]["mac_cycles"] = 5;
  ExpectInvalid([&] { ParseTraceFile(file.dump(), "t"); }, {"sc_cost", "q_proj", "other macs"});
  operators.erase(0);
  ExpectInvalid([&] { ParseTraceFile(file.dump(), "t"); }, {"sc_cost", "every operator"});
}

// ---------------------------------------------------------------------------------------------------- energy ----

std::string Priced(const std::string& actions) {
  return R"({"schema": "stoch-energy-v1", "unit": "pJ", "process": "none", "actions": {)" + actions + "}}";
}

TEST(Energy, IsCountsTimesPrices) {
  ScCost cost;
  OperatorCost op;
  op.layer = 0;
  op.op = "q_proj";
  op.macs.sc = 130;
  op.macs.integers[4] = 7;
  op.macs.fp = 3;
  op.macs_by_len = {{0, 30}, {64, 60}, {128, 40}};
  op.mac_cycles = 60 * 64 + 40 * 128;
  op.array.dram_read_bytes = 11;
  op.array.sng_bits = 1000;
  cost.operators = {op};
  const EnergyTable table = ParseEnergyTable(
      Priced(R"("sc_mac_cycle": {"energy": 0.5, "source": "x"}, "sc_mac_by_stoc_len": {"128": 3, "source": "y"},
               "int_mac_4": {"energy": 10, "source": "x"}, "sng_bit": {"energy": 0.25, "source": "z"},
               "dram_read_byte": {"energy": 100, "source": "x"}, "magic": {"energy": 1})"),
      "e");
  const EnergyReport report = PriceCost(cost, table);
  EXPECT_EQ(report.total, 8960 * 0.5 + 40 * 3.0 + 70 + 1100);
  EXPECT_EQ(report.by_layer, (std::vector<std::pair<std::string, double>>{{"0", report.total}}));
  EXPECT_EQ(report.unpriced, (std::vector<std::string>{"fp_mac", "counter_bit"}));
  EXPECT_EQ(report.uncounted, (std::vector<std::string>{"sng_bit"}));
  EXPECT_EQ(table.unknown_keys.size(), 1u);
  cost.array_shape = ArrayShape{1, 1, 1, 0};
  EXPECT_EQ(PriceCost(cost, table).total, report.total + 250);
  const std::string yaml = AccelergyActionCounts(cost);
  EXPECT_EQ(yaml.rfind("action_counts:\n  version: 0.3\n  local:\n    - name: sc_mac_array\n", 0), 0u);
  EXPECT_NE(yaml.find("    - name: sng\n      action_counts:\n        - name: sng_bit\n          counts: 1000\n"),
            std::string::npos);
  EXPECT_NE(yaml.find("        - name: sc_mac_by_stoc_len_64\n          counts: 60\n"), std::string::npos);
}

TEST(Energy, RefusesUncitedConstants) {
  const auto parse = [](const std::string& actions) { ParseEnergyTable(Priced(actions), "e.json"); };
  parse(R"("sng_bit": {"energy": 0, "source": "a paper"})");
  parse(R"("sc_mac_by_stoc_len": {"energy": {"16": 1}, "source": "a"})");
  parse(R"("sc_mac_by_stoc_len": {"16": {"energy": 1, "source": "a"}})");
  for (const char* none : {R"("sng_bit": {"energy": 1})", R"("sng_bit": {"energy": 1, "source": " "})",
                           R"("sng_bit": {"energy": 1, "source": 5})"}) {
    ExpectInvalid([&] { parse(none); }, {"e.json: actions.sng_bit has no source: a citation is required"});
  }
  ExpectInvalid([&] { parse(R"("sc_mac_by_stoc_len": {"16": 1})"); }, {"no source"});
  ExpectInvalid([&] { parse(R"("sc_mac_by_stoc_len": {"x": 1, "source": "a"})"); }, {"no stream length"});
  ExpectInvalid([&] { parse(R"("sc_mac_by_stoc_len": {"source": "a"})"); }, {"no lengths"});
  ExpectInvalid([&] { parse(R"("fp_mac": {"energy": -1, "source": "a"})"); }, {"actions.fp_mac.energy", "0 or more"});
  ExpectInvalid([&] { parse(R"("fp_mac": {"energy": "1", "source": "a"})"); }, {"actions.fp_mac.energy"});
  ExpectInvalid([&] { parse(R"("fp_mac": {"source": "a"})"); }, {"has no energy"});
  ExpectInvalid([&] { parse(R"("fp_mac": 3)"); }, {"actions.fp_mac"});
  ExpectInvalid([] { ParseEnergyTable(R"({"schema": "x"})", "e"); }, {"schema", "stoch-energy-v1"});
  ExpectInvalid([] { ParseEnergyTable(R"({"schema": "stoch-energy-v1", "unit": "J"})", "e"); }, {"unit", "pJ"});
  ExpectInvalid([] { ParseEnergyTable(R"({"schema": "stoch-energy-v1", "unit": "pJ"})", "e"); }, {"no actions"});
}

}  // namespace
}  // namespace stoch::test
