// SPDX-License-Identifier: Apache-2.0
// Files of the research suite: what is read, and one sentence for each thing that is refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "loader/checkpoint/safetensors.h"
#include "loader/checkpoint/safetensors_writer.h"
#include "loader/research/mask_file.h"
#include "loader/research/mp_file.h"
#include "loader/research/multiplier_file.h"
#include "loader/research/nonlinear_file.h"
#include "loader/research/sweep_file.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

MpFile Mp(const std::string& text) {
  std::string contents;
  return ParseMpFile(text, "mp.json", ".", &contents);
}

TEST(MpFile, ReadsEveryPart) {
  const MpFile mp = Mp(R"({"stoc_len_levels": [128, 64], "sc_prec": 8, "halve_bipolar_stoc_len": true,
    "layer_buckets": 2, "timestep_buckets": 1, "novel": 1,
    "operator_defaults": {"qk": {"thresholds": [0.5]}},
    "buckets": {"q_proj:t0:l0": {"thresholds": [0.25], "metric_lo": 1, "metric_hi": 2, "metric_mean": 0.5}},
    "dispatch_metrics": {"q_proj": {"metric": "crest", "sign": -1}},
    "per_row_chunk": {"buckets": {"k_proj:t0:l1": {"levels": [16, 32, 64], "thresholds": [0.25, 0.5]}}},
    "k_bands": {"n_bands": 2, "chunk_d": 128, "residual_width": {"o_proj": 200}, "chunk_bands": {"o_proj:b0": [0, 1]},
                "ladders": {"o_proj:t0:l0": [[128, 64], [64, 32]]}},
    "protected_channels": {"stoc_len": 84, "indices": {"q_proj:b0": [5, 3], "q_proj:b0:u1": [9]}},
    "per_rung_grid": {"128": 128, "84": 64}})");
  EXPECT_EQ(mp.levels, (std::vector<int>{128, 64}));
  EXPECT_EQ(mp.buckets.at("q_proj:t0:l0").metric_hi, 2.0);
  EXPECT_EQ(mp.dispatch.at("q_proj").metric, "crest");
  EXPECT_EQ(mp.dispatch.at("q_proj").sign, -1);
  EXPECT_EQ(mp.chunk_buckets.at("k_proj:t0:l1").levels, (std::vector<int>{16, 32, 64}));
  EXPECT_EQ(mp.chunk_layer_buckets, 2);
  EXPECT_EQ(mp.ladders.at("o_proj:t0:l0")[1], (std::vector<int>{64, 32}));
  EXPECT_EQ(mp.residual_width.at("o_proj"), 200);
  EXPECT_EQ(mp.protected_channels.at("q_proj:b0"), (std::vector<int32_t>{3, 5}));
  EXPECT_EQ(mp.protected_channels.at("q_proj:b0:u1"), (std::vector<int32_t>{9}));
  EXPECT_EQ(mp.grids, (std::map<int, int>{{84, 64}, {128, 128}}));
  EXPECT_EQ(mp.unknown_keys, (std::vector<std::string>{"\"novel\""}));
}

TEST(MpFile, RefusesInOneSentence) {
  const auto refused = [](const std::string& text, std::initializer_list<std::string_view> parts) {
    ExpectInvalid([&] { Mp(text); }, parts);
  };
  refused("[]", {"mp.json", "an object"});
  refused("", {"mp.json: expected JSON, got nothing: it is empty"});
  refused("{}", {"mp.json", "stoc_len_levels"});
  refused(R"({"stoc_len_levels": "fast"})", {R"(stoc_len_levels = "fast": allowed)"});
  refused(R"({"stoc_len_levels": [64, 128]})", {"stoc_len_levels", "fall"});
  refused(R"({"stoc_len_levels": [128, 64], "buckets": {"q": {"thresholds": [0.2, 0.1]}}})",
          {"thresholds", "2 entries"});
  refused(R"({"stoc_len_levels": [128, 64], "buckets": {"q": {"thresholds": [1.5]}}})", {"thresholds", "0..1"});
  refused(R"({"stoc_len_levels": [128, 64, 32], "buckets": {"q": {"thresholds": [0.1, 0.2]}}})", {"do not rise"});
  refused(R"({"stoc_len_levels": [128, 64], "buckets": {"q": {"thresholds": [0.1], "metric_lo": 2, "metric_hi": 2}}})",
          {"metric_lo", "below metric_hi"});
  refused(
      R"({"stoc_len_levels": [128, 64], "buckets": {"q": {"thresholds": [0.1], "metric_lo": 2, "metric_hi": 1e39}}})",
      {"metric_hi", "1e+39", "float32"});
  refused(R"({"stoc_len_levels": [128, 64], "k_bands": {"n_bands": 2, "residual_width": {"q_proj": 0}}})",
          {"residual_width", "q_proj", "1.."});
  refused(R"({"stoc_len_levels": [128, 64], "dispatch_metrics": {"q": {"metric": "max"}}})", {"amax, l2, crest"});
  refused(R"({"stoc_len_levels": [999, 64]})", {"999", "0..256"});
  refused(R"({"type": "MPConfig", "stoc_len_levels": [128, 64], "level_fractions": [1]})", {"level_fractions", "2"});
  refused(R"({"type": "MPConfig", "stoc_len_levels": [128, 64], "level_fractions": [0.9, 0.9]})",
          {"level_fractions", "[0.9,0.9]", "a sum of at most 1"});
  refused(R"({"stoc_len_levels": [128, 64], "dispatch_metrics": {"q": {"sign": 18446744073709551615}}})",
          {"sign", "18446744073709551615", "-1..1"});
  refused(R"({"stoc_len_levels": [64, 128]})", {"stoc_len_levels", "[64,128]", "lengths that fall"});
  refused(R"({"type": "AdaptiveMPConfig", "stoc_len_levels": [128, 64], "threshold_table_path": "no-such-file"})",
          {"no-such-file"});
  refused(R"({"stoc_len_levels": [128, 64], "per_rung_grid": {"x": 3}})", {"per_rung_grid", "\"x\"", "1..256"});
  refused(R"({"stoc_len_levels": [128, 64], "per_rung_grid": {"64": 0}})", {"per_rung_grid", "1..256"});
  refused(R"({"stoc_len_levels": [128, 64], "per_rung_grid": [64]})", {"per_rung_grid", "an object"});
  refused(R"({"stoc_len_levels": [128, 64], "protected_channels": {"stoc_len": 0, "indices": {}}})", {"1..256"});
}

TEST(MpFile, LayersFallIntoBuckets) {
  EXPECT_EQ(LayerBucket(5, 32, 1), 0);
  EXPECT_EQ(LayerBucket(0, 1, 4), 0);
  EXPECT_EQ(LayerBucket(0, 32, 4), 0);
  EXPECT_EQ(LayerBucket(7, 32, 4), 0);
  EXPECT_EQ(LayerBucket(8, 32, 4), 1);
  EXPECT_EQ(LayerBucket(31, 32, 4), 3);
}

TEST(MaskFile, ReadsEntriesAndForcesBits) {
  const std::string text =
      R"({"format": "scmp_llm_hybrid_v1", "default": "sc", "int_bits": 6, "int_sym": true,
          "schedule": {"q_proj": ["sc", "fp", "int4", 0, 1, 2]}})";
  EXPECT_EQ(ParseMaskFile(text, "m", 0).schedule.at("q_proj"),
            (std::vector<std::string>{"sc", "fp", "int4", "fp", "sc", "int6"}));
  EXPECT_EQ(ParseMaskFile(text, "m", 8).schedule.at("q_proj")[2], "int8");
  ExpectInvalid([] { ParseMaskFile(R"({"int_sym": false})", "m", 0); }, {"m: int_sym", "true"});
  ExpectInvalid([] { ParseMaskFile(R"({"int_bits": 9})", "m", 0); }, {"int_bits", "2..8"});
  ExpectInvalid([] { ParseMaskFile(R"({"schedule": {"qk": ["int9"]}})", "m", 0); }, {"schedule", "int9"});
  ExpectInvalid([] { ParseMaskFile(R"({"schedule": {"qk": 3}})", "m", 0); }, {"schedule", "a list"});
  ExpectInvalid([] { ParseMaskFile(R"({"type": "object"})", "m", 0); }, {"m:", "neither"});
}

class NonlinearFile : public testing::Test {
 protected:
  using Metadata = std::map<std::string, std::string>;
  struct Parts {
    std::vector<float> cuts = {-1, 0, 2}, values = {0.5f, 1, 3}, slopes = {0.5f, 1, 0};
    Metadata metadata = {{"schema", "stoch-nonlinear-v1"}, {"function", "exp"}};
  };
  std::filesystem::path Write(const Parts& parts) {
    auto path = scratch_.path() / "table.safetensors";
    std::vector<SafetensorsSpec> specs;
    const std::pair<const char*, const std::vector<float>*> all[] = {
        {"cuts", &parts.cuts}, {"values", &parts.values}, {"slopes", &parts.slopes}};
    for (const auto& [name, part] : all) {
      specs.push_back({name, DType::kF32, {static_cast<int64_t>(part->size())}});
    }
    SafetensorsWriter writer(path, specs, parts.metadata);
    for (const auto& [name, part] : all) writer.Append(std::as_bytes(std::span(*part)));
    writer.Finish();
    return path;
  }
  void ExpectRefused(const Parts& parts, std::initializer_list<std::string_view> said) {
    ExpectInvalid([&] { ReadNonlinearFile(Write(parts), NonlinearFunction::kExp); }, said);
  }
  TempDir scratch_;
};

TEST_F(NonlinearFile, IsReadAsItIsWritten) {
  Parts parts;
  parts.metadata["in_bits"] = "-8";
  parts.metadata["out_bits"] = "none";
  const NonlinearTable table = ReadNonlinearFile(Write(parts), NonlinearFunction::kExp);
  EXPECT_EQ(table.cuts, parts.cuts);
  EXPECT_EQ(table.slopes, parts.slopes);
  EXPECT_EQ(table.in_bits, -8);
  EXPECT_FALSE(table.out_bits.has_value());
  const auto again = scratch_.path() / "again.safetensors";
  WriteNonlinearFile(again, table, {{"source", "test"}});
  EXPECT_EQ(ReadNonlinearFile(again, NonlinearFunction::kExp).values, parts.values);
  EXPECT_EQ(SafetensorsFile(again).metadata().at("source"), "test");
}

TEST_F(NonlinearFile, RefusesInOneSentence) {
  const Parts good;
  const auto with = [&](const char* key, const char* value) {
    Parts parts = good;
    parts.metadata[key] = value;
    return parts;
  };
  ExpectRefused(with("schema", "other"), {"table.safetensors", R"(schema = "other")", "stoch-nonlinear-v1"});
  ExpectRefused(with("function", "silu"), {R"(function = "silu")", "exp"});
  ExpectRefused(with("in_bits", "21"), {R"(in_bits = "21")", "none or -8..20"});
  ExpectRefused(with("out_bits", "3x"), {R"(out_bits = "3x")"});
  Parts parts = good;
  parts.cuts = {-1, 2, 2};
  ExpectRefused(parts, {"cuts[2]", "more than the one before"});
  parts = good;
  parts.slopes[1] = std::numeric_limits<float>::infinity();
  ExpectRefused(parts, {"slopes[1] = inf", "a finite number"});
  parts = good;
  parts.values.pop_back();
  ExpectRefused(parts, {"values, slopes = 2, 3", "as many as cuts, 3"});
  parts = good;
  parts.values[1] = 0;
  ExpectRefused(parts, {"exp at 0", "above 0"});
  parts.cuts = parts.values = parts.slopes = {};
  ExpectRefused(parts, {"cuts = F32 [0]", "1..4096"});
}

// a * b of signed operands in byte order, as AdaPT writes it.
std::string AdaptText() {
  std::string text = "// a comment, with { braces }\nconst int lut[256][256] = {\n";
  for (int i = 0; i < 256; ++i) {
    text += "{";
    for (int j = 0; j < 256; ++j) {
      const int a = i < 128 ? i : i - 256;
      const int b = j < 128 ? j : j - 256;
      text += std::to_string(a * b) + (j < 255 ? "," : "");
    }
    text += i < 255 ? "},\n" : "}\n";
  }
  return text + "};\n";
}

TEST(MultiplierFile, ReadsEveryForm) {
  const auto error = [](const std::string& bytes, const std::string& name) {
    return MeasureMultiplier(ParseMultiplierFile(bytes, name, ScTableCode::kFile, ScTableOrder::kFile)).wce;
  };
  EXPECT_EQ(error(AdaptText(), "a.h"), 0);
  std::string numeric, binary, npy_data;
  for (int a = -128; a < 128; ++a) {
    for (int b = -128; b < 128; ++b) numeric += std::to_string(a * b) + (b % 2 == 0 ? " " : ",\n");
  }
  EXPECT_EQ(error(numeric, "a.txt"), 0);
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) binary += {static_cast<char>(a * b & 0xff), static_cast<char>(a * b >> 8)};
  }
  EXPECT_EQ(error(binary, "a.bin"), 0);
  std::string header = "{'descr': '<u2', 'fortran_order': True, 'shape': (256, 256), }\n";
  const std::string npy = std::string("\x93NUMPY\x01", 7) + '\0' + static_cast<char>(header.size()) + '\0' + header;
  EXPECT_EQ(error(npy + binary, "a.npy"), 0);
}

TEST(MultiplierFile, RefusesInOneSentence) {
  const auto refused = [](const std::string& bytes, const std::string& name,
                          std::initializer_list<std::string_view> parts) {
    ExpectInvalid([&] { ParseMultiplierFile(bytes, name, ScTableCode::kFile, ScTableOrder::kFile); }, parts);
  };
  refused("1 2 3", "a.txt", {"a.txt", "expected 65536 entries, got 3"});
  refused("1 2 x", "a.txt", {"whole number"});
  refused("int a;", "a.h", {"braces"});
  refused("", "a.csv", {".h, .bin, .txt or .npy"});
  refused(std::string(10, 'x'), "a.bin", {"131072 bytes", "got 10"});
  refused(std::string(131073, 'x'), "a.bin", {"131072 bytes", "got 131073"});
  refused("no header at all", "a.npy", {"header"});
  std::string wrong_order = AdaptText();
  ExpectInvalid([&] { ParseMultiplierFile(wrong_order, "a.h", ScTableCode::kFile, ScTableOrder::kNumeric); },
                {"reads better as signed in byte order", "give table_code and table_order"});
}

TEST(SweepFile, GridIsInFileOrderWithTheLastNameFastest) {
  const SweepFile sweep = ParseSweepFile(R"({"model": "m", "text": "t", "base": ["preset=halved", "chunk_d=64"],
    "grid": {"stoc_len": [64, 32], "halve": [true, false, "x"]}, "runs": ["fp32", ["a=1", "b=2,c=3"]],
    "files": {"mp": "mp.json", "other": 1}, "metrics": ["ppl", "kl", "ppl"], "ctx": 16, "array": "1,2,3", "novel": 0})",
                                         "sweep.json");
  ASSERT_EQ(sweep.runs.size(), 8u);
  using Settings = std::vector<std::string>;
  EXPECT_EQ(sweep.runs[0].settings, (Settings{"preset=halved", "chunk_d=64", "stoc_len=64", "halve=1"}));
  EXPECT_EQ(sweep.runs[1].settings, (Settings{"preset=halved", "chunk_d=64", "stoc_len=64", "halve=0"}));
  EXPECT_EQ(sweep.runs[5].settings, (Settings{"preset=halved", "chunk_d=64", "stoc_len=32", "halve=x"}));
  EXPECT_EQ(sweep.runs[6].settings, (Settings{"preset=halved", "chunk_d=64", "fp32"}));
  EXPECT_EQ(sweep.runs[7].settings, (Settings{"preset=halved", "chunk_d=64", "a=1", "b=2,c=3"}));
  EXPECT_EQ(sweep.runs[5].parameters[0], (std::pair<std::string, std::string>{"stoc_len", "32"}));
  EXPECT_TRUE(sweep.runs[6].parameters.empty());
  EXPECT_EQ(sweep.runs[7].parameters[2], (std::pair<std::string, std::string>{"c", "3"}));
  EXPECT_EQ(sweep.metrics, (Settings{"kl", "ppl"}));
  EXPECT_EQ(sweep.mp, "mp.json");
  EXPECT_EQ(sweep.ctx, 16);
  EXPECT_EQ(sweep.max_windows, 0);
  EXPECT_EQ(sweep.unknown_keys, (Settings{"files.\"other\"", "\"novel\""}));
}

TEST(SweepFile, WrongPlansAreOneSentence) {
  const auto refused = [](const std::string& rest, std::initializer_list<std::string_view> parts) {
    ExpectInvalid([&] { ParseSweepFile(R"({"model": "m", "text": "t")" + rest, "sweep.json"); }, parts);
  };
  refused("", {"sweep.json"});
  refused("}", {"sweep.json", "grid and runs", "at least one run"});
  refused(R"(, "runs": "fp32"})", {"runs", "list"});
  refused(R"(, "runs": [1]})", {"runs", "text"});
  refused(R"(, "grid": {}})", {"grid"});
  refused(R"(, "grid": {"stoc_len": []}})", {"stoc_len", "list of values"});
  refused(R"(, "grid": {"stoc_len": [[1]]}})", {"stoc_len", "texts, numbers"});
  refused(R"(, "grid": {"a=b": [1]}})", {"grid", "a=b"});
  refused(R"(, "grid": {"a": [1], "a": [2]}})", {"a"});
  refused(R"(, "runs": ["x"], "ctx": 0})", {"ctx", "above 0"});
  refused(R"(, "runs": ["x"], "max_windows": 1.5})", {"max_windows", "whole"});
  refused(R"(, "runs": ["x"], "metrics": []})", {"metrics"});
  refused(R"(, "runs": ["x\n"]})", {"runs", "control"});
  std::string many;
  for (int i = 0; i < 300; ++i) many += (i == 0 ? "" : ", ") + std::to_string(i);
  refused(R"(, "grid": {"a": [)" + many + R"(], "b": [)" + many + "]}}", {"grid", "65536"});
  ExpectInvalid([] { ParseSweepFile(R"({"text": "t", "runs": ["x"]})", "sweep.json"); }, {"model"});
  ExpectInvalid([] { ParseSweepFile("[]", "sweep.json"); }, {"object"});
}

}  // namespace
}  // namespace stoch::test
