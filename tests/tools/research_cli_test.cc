// SPDX-License-Identifier: Apache-2.0
// --mp, --smooth, --mask and stoch calibrate, as a user drives them, and files that are wrong.

#include <filesystem>

#include "loader/sha256.h"
#include "tests/support/temp_dir.h"
#include "tests/tools/cli_support.h"

namespace stoch::test {
namespace {

class ResearchCli : public testing::Test {
 protected:
  void SetUp() override {
    const std::string text = BirdsText(60);
    WriteFile(folder_ / "text", text);
  }

  ProcessResult Perplexity(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"--file", folder_ / "text", "--ctx", "16", "--max-windows", "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunStoch(WithDemo("perplexity", arguments));
  }
  double Ppl(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = more;
    arguments.emplace_back("--json");
    return ExpectJson(Perplexity(arguments))["results"][0]["ppl"].get<double>();
  }
  // A file of a threshold table of lengths 128 and 16 that every operator uses.
  std::string Table(const std::string& bucket) const {
    std::string defaults;
    for (const std::string op :
         {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qk", "av"}) {
      defaults += (defaults.empty() ? "\"" : ", \"") + op + "\": " + bucket;
    }
    WriteFile(folder_ / "mp.json", R"({"stoc_len_levels": [128, 16], "operator_defaults": {)" + defaults + "}}");
    return folder_ / "mp.json";
  }

  TempDir folder_;
};

TEST_F(ResearchCli, MixedLengthsLieBetweenTheirLevels) {
  const std::string first = Table(R"({"thresholds": [0], "metric_lo": 0, "metric_hi": 1})");
  EXPECT_EQ(Ppl({"--mp", first}), Ppl({"--sc", "stoc_len=128"}));
  const std::string last = Table(R"({"thresholds": [1], "metric_lo": 0, "metric_hi": 1e9})");
  EXPECT_EQ(Ppl({"--mp", last}), Ppl({"--sc", "stoc_len=16"}));
  const std::string call = Table(R"({"thresholds": [0.5]})");
  EXPECT_NE(Ppl({"--mp", call, "--mp-normalise", "call"}), Ppl({"--sc", "stoc_len=128"}));
  ExpectRefused(Perplexity({"--mp", call}), "metric_lo");
}

TEST_F(ResearchCli, MaskIsTheSameAsSettings) {
  WriteFile(folder_ / "mask.json", R"({"format": "scmp_llm_hybrid_v1", "default": "int4", "int_bits": 4})");
  EXPECT_EQ(Ppl({"--mask", folder_ / "mask.json"}), Ppl({"--sc", "arith=int4"}));
  EXPECT_NE(Ppl({"--mask", folder_ / "mask.json"}), Ppl({"--mask", folder_ / "mask.json", "--mask-bits", "8"}));
}

TEST_F(ResearchCli, NoticesOfFilesAreToldOnce) {
  WriteFile(folder_ / "mask.json",
            R"({"format": "scmp_llm_hybrid_v1", "default": "int4", "int_bits": 4, "colour": "blue"})");
  const std::string mask = folder_ / "mask.json";
  for (const std::vector<std::string>& more :
       std::vector<std::vector<std::string>>{{}, {"--config", "stoc_len=64", "--config", "stoc_len=32"}}) {
    std::vector<std::string> words = {"--mask", mask, "--quiet"};
    words.insert(words.end(), more.begin(), more.end());
    const ProcessResult result = Perplexity(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "warning: " + mask + ": keys that are not known and have no effect: \"colour\"\n");
  }
}

TEST_F(ResearchCli, CalibrateTakesTheCommonOptions) {
  const std::string out = folder_ / "scales";
  const auto calibrate = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"smoothquant", "--file", folder_ / "text",   "--ctx",  "16", "--max-windows",
                                      "1",           "-o",     folder_ / "scales", "--quiet"};
    words.insert(words.end(), more.begin(), more.end());
    return RunStoch(WithDemo("calibrate", words));
  };
  const ProcessResult quiet = calibrate({});
  EXPECT_EQ(quiet.exit_code, 0) << quiet.err;
  EXPECT_EQ(quiet.out + quiet.err, "");
  const auto json = ExpectJson(calibrate({"--json"}));
  EXPECT_EQ(json["output"], out);
  EXPECT_EQ(json["kind"], "smoothquant");
  EXPECT_EQ(json["sha256"], Sha256Hex(ReadFile(out)));
  for (const std::vector<std::string>& ignored : std::vector<std::vector<std::string>>{
           {"--split", "row"}, {"--device-map", "balanced"}, {"--max-memory", "0=1GiB"}, {"--pass-rows", "7"}}) {
    ExpectRefused(calibrate(ignored), ignored[0] + " " + ignored[1] + ": has no meaning in stoch calibrate");
  }
  ExpectRefused(calibrate({"--context", "64"}), "--context");
}

TEST_F(ResearchCli, TablesOfFunctionsAreMadeWithoutAModelAndRead) {
  const auto make = [&](const std::string& function, const std::string& range,
                        const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"calibrate",  "nonlinear", "--function", function,          "--range=" + range,
                                      "--segments", "4",         "-o",         folder_ / function};
    words.insert(words.end(), more.begin(), more.end());
    return RunStoch(words);
  };
  for (const auto& [function, range] :
       {std::pair("silu", "-8,8"), std::pair("exp", "-16,0"), std::pair("rsqrt", "1,4")}) {
    const ProcessResult made = make(function, range);
    EXPECT_EQ(made.exit_code, 0) << made.err;
  }
  const double exact = Ppl({});
  const auto setting = [&](const char* name, const char* file) {
    return std::string(name) + "=" + std::string(folder_ / file);
  };
  EXPECT_NE(Ppl({"--sc", setting("silu", "silu")}), exact);
  EXPECT_NE(Ppl({"--sc", setting("softmax", "exp")}), exact);
  EXPECT_NE(Ppl({"--sc", setting("rms_norm", "rsqrt")}), exact);
  ExpectRefused(make("silu", "8,-8"), "numbers that rise");
  ExpectRefused(make("silu", "1,2", {"--model", DemoModel()}), "--model: has no meaning in stoch calibrate nonlinear");
  ExpectRefused(make("silu", "1,2", {"--alpha", "0.5"}), "--alpha: has no meaning");
  ExpectRefused(RunStoch({"calibrate", "awq", "-o", folder_ / "none"}), "--model is required");
  ExpectRefused(Perplexity({"--sc", setting("silu", "exp")}), "function = \"exp\"");
}

TEST_F(ResearchCli, CalibratedFactorsAreTheSameOnAnyThreads) {
  const auto calibrate = [&](const std::string& kind, const std::string& threads, const std::string& out) {
    return RunStoch({"calibrate", kind, "--model", DemoModel(), "--device", "cpu", "--threads", threads, "--file",
                     folder_ / "text", "--ctx", "16", "--max-windows", "2", "-o", folder_ / out});
  };
  EXPECT_EQ(calibrate("smoothquant", "1", "one").exit_code, 0);
  EXPECT_EQ(calibrate("smoothquant", "2", "two").exit_code, 0);
  EXPECT_EQ(ReadFile(folder_ / "one"), ReadFile(folder_ / "two"));
  EXPECT_EQ(calibrate("awq", "2", "awq").exit_code, 0);
  EXPECT_NE(Ppl({"--smooth", folder_ / "one"}), Ppl({}));
  EXPECT_NE(Ppl({"--smooth", folder_ / "awq"}), Ppl({"--smooth", folder_ / "one"}));
  ExpectRefused(calibrate("magic", "1", "none"), "smoothquant, awq");
  ExpectRefused(RunStoch(WithDemo("calibrate", {"smoothquant", "--file", folder_ / "text", "--ctx", "16",
                                                "--max-windows", "9999", "-o", folder_ / "none"})),
                "9999");
}

TEST_F(ResearchCli, CalibratedLengthsHoldTheBudgetAndAreRead) {
  const auto calibrate = [&](const std::vector<std::string>& more, const std::string& out) {
    std::vector<std::string> arguments = {
        "calibrate",      "mp",    "--model", DemoModel(),     "--device", "cpu", "--file",
        folder_ / "text", "--ctx", "16",      "--max-windows", "2",        "-o",  folder_ / out};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunStoch(arguments);
  };
  const std::vector<std::string> settings = {"--levels", "128,64,16", "--budget", "0.375", "--layer-buckets", "2"};
  std::string first;
  const std::vector<std::vector<std::string>> variants = {
      {},
      {"--chunks", "--protect", "0.02"},
      {"--metric", "crest", "--sign", "-1"},
      {"--sc", "attention=exact"},
      {"--sc", "attention=per_row,0-3.down_proj.arith=int6,1.o_proj.arith=fp"}};
  for (const std::vector<std::string>& more : variants) {
    std::vector<std::string> one = settings;
    one.insert(one.end(), more.begin(), more.end());
    std::vector<std::string> two = one;
    one.insert(one.end(), {"--threads", "1"});
    two.insert(two.end(), {"--threads", "2", "--cpu-variant", "scalar"});
    ASSERT_EQ(calibrate(one, "one.json").exit_code, 0);
    ASSERT_EQ(calibrate(two, "two.json").exit_code, 0);
    const std::string text = ReadFile(folder_ / "one.json");
    EXPECT_EQ(text, ReadFile(folder_ / "two.json"));
    if (more.empty()) first = text;
    EXPECT_EQ(text == first, more.empty());
    const nlohmann::json table = nlohmann::json::parse(text);
    EXPECT_LE(table["expected_flop_avg_stoc_len"], 48);
    EXPECT_GT(table["expected_flop_avg_stoc_len"], 40);
    EXPECT_EQ(table["metadata"]["text_sha256"].get<std::string>().size(), 64u);
    std::vector<std::string> read = {"--mp", folder_ / "one.json"};
    if (!more.empty() && more[0] == "--sc") read.insert(read.end(), more.begin(), more.end());
    EXPECT_NE(Ppl(read), Ppl({}));
  }
  EXPECT_EQ(calibrate({"--levels", "128,16", "--budget", "1", "--weights", "measured", "--layer-buckets", "1"}, "w")
                .exit_code,
            0);
  WriteFile(folder_ / "w.json", R"({"q_proj": 3, "av:t0:l1": 0})");
  std::vector<std::string> weighted = settings;
  weighted.insert(weighted.end(), {"--weights", folder_ / "w.json"});
  ASSERT_EQ(calibrate(weighted, "weighted.json").exit_code, 0);
  EXPECT_NE(ReadFile(folder_ / "weighted.json"), first);

  ExpectRefused(calibrate({"--levels", "128,16", "--budget", "0.05"}, "x"),
                "budget 0.05: the shortest levels need 0.125");
  ExpectRefused(calibrate({"--levels", "16,128"}, "x"), "lengths that fall");
  ExpectRefused(calibrate({"--levels", "128,0"}, "x"),
                "qk: length 0 is uniform attention, not pruning: allowed is 1..128");
  ExpectRefused(calibrate({"--levels", "129,64"}, "x"), "allowed is 0..128");
  ExpectRefused(calibrate({"--metric", "mean"}, "x"), "amax, l2, crest");
  ExpectRefused(calibrate({"--sign", "0"}, "x"), "1, -1");
  ExpectRefused(calibrate({"--protect", "1"}, "x"), "--protect");
  ExpectRefused(calibrate({"--sc", "attention=per_head"}, "x"), "per_token, per_row, exact");
  ExpectRefused(calibrate({"--bits", "4"}, "x"), "no meaning in stoch calibrate mp");
  ExpectRefused(RunStoch(WithDemo("calibrate", {"mp", "--file", folder_ / "text", "--max-windows", "999", "-o", "x"})),
                "--max-windows 999");
  ExpectRefused(calibrate({"--ref", "0"}, "x"), "--ref 0: allowed is 1..65536");
  // Both before any window is looked at.
  const auto early = [&](const std::string& budget, const std::string& out) {
    return RunStoch(WithDemo("calibrate", {"mp", "--file", folder_ / "text", "--max-windows", "999", "--levels",
                                           "128,16", "--budget", budget, "-o", folder_ / out}));
  };
  ExpectRefused(early("0.05", "x"), "budget 0.05: the shortest levels need 0.125");
  ExpectRefused(early("0.5", "none/x"), "none/x: cannot be created");
  ExpectRefused(calibrate({"--weights", "even"}, "x"), "uniform, measured, divergence, FILE.json");
  WriteFile(folder_ / "w.json", R"({"q_proj:t0:l9": 3})");
  ExpectRefused(calibrate({"--weights", folder_ / "w.json"}, "x"), "q_proj:t0:l9");
  WriteFile(folder_ / "w.json", R"({"q_proj": -3})");
  ExpectRefused(calibrate({"--weights", folder_ / "w.json"}, "x"), "0 or above");
}

TEST_F(ResearchCli, RescaledTablesNeedNoCall) {
  const auto rescale = [&](const std::string& table, const std::string& threads, const std::string& out) {
    return RunStoch({"calibrate", "rescale", "--model", DemoModel(), "--device", "cpu", "--threads", threads, "--file",
                     folder_ / "text", "--ctx", "16", "--max-windows", "3", "--mp", table, "-o", folder_ / out});
  };
  const std::string table = Table(R"([0.25])");
  ASSERT_EQ(rescale(table, "1", "one.json").exit_code, 0);
  ASSERT_EQ(rescale(table, "2", "two.json").exit_code, 0);
  EXPECT_EQ(ReadFile(folder_ / "one.json"), ReadFile(folder_ / "two.json"));
  const nlohmann::json fixed = nlohmann::json::parse(ReadFile(folder_ / "one.json"));
  const nlohmann::json& bucket = fixed["operator_defaults"]["av"];
  EXPECT_EQ(bucket["thresholds"], nlohmann::json::parse("[0.25]"));
  EXPECT_EQ(bucket["metric_hi"], 1.0);  // the first row of a window sees itself alone
  EXPECT_GT(bucket["metric_lo"], 0.0);
  EXPECT_LT(bucket["metric_lo"], 1.0);
  EXPECT_NE(Ppl({"--mp", folder_ / "one.json"}), Ppl({"--sc", "stoc_len=128"}));
  EXPECT_NE(Ppl({"--mp", folder_ / "one.json"}), Ppl({"--sc", "stoc_len=16"}));
  WriteFile(folder_ / "wrapper.json",
            R"({"type": "AdaptiveMPConfig", "stoc_len_levels": [128, 16], "threshold_table_path": "mp.json"})");
  ExpectRefused(rescale(folder_ / "wrapper.json", "1", "x"), "not its wrapper");
  ExpectRefused(rescale(folder_ / "none.json", "1", "x"), "none.json");
  ExpectRefused(RunStoch(WithDemo("calibrate", {"rescale", "--file", folder_ / "text", "-o", folder_ / "x"})),
                "--mp TABLE");
}

TEST_F(ResearchCli, TablesSayWhatHasNoEffect) {
  const auto said = [&](const std::string& rest) {
    const std::string path = Table(R"({"thresholds": [0.5], "metric_lo": 0, "metric_hi": 4})");
    std::string text = ReadFile(path);
    text.back() = ',';
    WriteFile(path, text + rest + "}");
    const ProcessResult result = Perplexity({"--mp", path});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.err;
  };
  EXPECT_EQ(said(R"("buckets": {"q_proj:t3:l0": [0.5]})").find("no effect"), std::string::npos);
  EXPECT_NE(said(R"("buckets": {"q_proj:t0:l7": [0.5]})").find(R"(have no effect: buckets."q_proj:t0:l7")"),
            std::string::npos);
  EXPECT_NE(said(R"("protected_channels": {"stoc_len": 128, "indices": {"qk:b0": [1]}})")
                .find(R"(have no effect: protected_channels."qk:b0")"),
            std::string::npos);
  EXPECT_NE(said(R"("protected_channels": {"stoc_len": 128, "indices": {"q_proj:bX": [1]}})")
                .find(R"(have no effect: protected_channels."q_proj:bX")"),
            std::string::npos);
  const auto bands = [&](const std::string& ladders) {
    return said(
        R"("layer_buckets": 1, "buckets": {"q_proj:t0:l0": {"thresholds": [0.5], "metric_lo": 0, "metric_hi": 4}},
      "k_bands": {"n_bands": 2, "chunk_d": 128, "residual_width": {"q_proj": 256}, "chunk_bands": {"q_proj:b0": [0, 1]},
      "ladders": {"q_proj:t0:l0": )" +
        ladders + "}}");
  };
  EXPECT_EQ(bands("[[128, 20], [128, 12]]").find("k_bands"), std::string::npos);
  EXPECT_NE(bands("[[128, 20], [128, 14]]").find(R"(the ladders of "q_proj:t0:l0" take 17.0)"), std::string::npos);
}

TEST_F(ResearchCli, LengthsOfACallAreRefusedWhereTheyWouldCouple) {
  WriteFile(folder_ / "mp.json", R"({"type": "MPConfig", "stoc_len_levels": [128, 0], "level_fractions": [0.5, 0.5]})");
  const ProcessResult pruned = Perplexity({"--mp", folder_ / "mp.json"});
  EXPECT_EQ(pruned.exit_code, 2);
  EXPECT_NE(pruned.err.find("qk: length 0 is uniform attention"), std::string::npos) << pruned.err;
  WriteFile(folder_ / "mp.json",
            R"({"type": "MPConfig", "stoc_len_levels": [128, 16], "level_fractions": [0.5, 0.5]})");
  const ProcessResult result = RunStoch(WithDemo("bench", {"--mp", folder_ / "mp.json", "--precision", "sc", "-p", "4",
                                                           "-n", "1", "-b", "1,2", "-r", "1", "--quiet"}));
  ExpectRefused(result, "normalise=call makes an answer depend on its batch");
}

TEST_F(ResearchCli, CostIsReportedByWhatRanInSc) {
  const auto json = ExpectJson(Perplexity({"--json", "--array", "16,16,32,4", "--tile-rows", "1,16"}));
  const auto& cost = json["results"][0]["sc_cost"];
  EXPECT_EQ(cost["mac_avg_stoc_len"], 128.0);
  EXPECT_EQ(cost["calls"], 2);
  EXPECT_EQ(cost["tile_avg_stoc_len"].size(), 2u);
  // Two windows of 16 tokens are one tile of rows each; 256 x 256 and 32 x 16 dimensions, one chunk is 4 * 128 cycles.
  const int64_t of_256 = 2 * 4 * 128 + 4;
  const int64_t linears = of_256 * (16 + 8 + 8 + 16 + 32 + 32) + (2 * of_256 - 4) * 16;
  const int64_t attention = 8 * (132 + 2 * 132);
  EXPECT_EQ(cost["array"]["cycles"], 2 * 5 * (linears + attention));
  EXPECT_FALSE(ExpectJson(Perplexity({"--json", "--precision", "fp32"}))["results"][0].contains("sc_cost"));

  const std::string mp = Table(R"({"thresholds": [0.5], "metric_lo": 0, "metric_hi": 4})");
  const ProcessResult text = Perplexity({"--mp", mp, "--array", "16,16,32"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  for (const char* part : {"avg length", "average stream length: ", "by operator: q_proj ", "array 16,16,32,0: "}) {
    EXPECT_NE(text.out.find(part), std::string::npos) << part << " in " << text.out;
  }
  const auto generated = ExpectJson(
      RunStoch(WithDemo("generate", {"--prompt", "Once", "--max-tokens", "3", "--ignore-eos", "--mp", mp, "--json"})));
  EXPECT_EQ(generated["sc_cost"]["calls"], 3) << "a prompt and two tokens";
  EXPECT_LT(generated["sc_cost"]["mac_avg_stoc_len"], 128.0);
  EXPECT_GT(generated["sc_cost"]["mac_avg_stoc_len"], 16.0);
}

TEST_F(ResearchCli, ProfileHasRowsAndASummaryInFourForms) {
  const auto profile = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"--file", folder_ / "text", "--ctx", "16", "--max-windows", "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunStoch(WithDemo("profile", arguments));
  };
  const auto json = ExpectJson(profile({"-o", "json", "--sc", "stoc_len=64", "--sc", "stoc_len=16", "--quiet"}));
  ASSERT_EQ(json["configurations"].size(), 2u);
  const auto& first = json["configurations"][0];
  EXPECT_EQ(first["rows"].size(), 45u);
  EXPECT_EQ(first["worst"].size(), 10u);
  const auto& row = first["rows"][0];
  for (const char* key :
       {"schema",    "model_sha256", "text_sha256", "config", "mode", "layer",   "op",      "head",          "n",
        "mse",       "mse_quant",    "mse_stream",  "cross",  "bias", "max_abs", "sqnr_db", "rel_frobenius", "cosine",
        "sigma_p50", "sigma_p90",    "sigma_p99"}) {
    EXPECT_TRUE(row.contains(key)) << key;
  }
  EXPECT_EQ(row["schema"], "stoch-profile-v1");
  EXPECT_EQ(first["sc_cost"]["mac_avg_stoc_len"], 64.0);
  EXPECT_LT(row["mse"], json["configurations"][1]["rows"][0]["mse"]);
  EXPECT_EQ(first["ppl"], ExpectJson(Perplexity({"--json", "--sc", "stoc_len=64"}))["results"][0]["ppl"]);

  ExpectRefused(RunStoch({"profile", DemoModel(), "--file", folder_ / "none"}), "none: cannot be opened");

  const ProcessResult lines = profile({"-o", "jsonl", "--heads", "--quiet"});
  EXPECT_EQ(lines.exit_code, 0) << lines.err;
  EXPECT_EQ(std::count(lines.out.begin(), lines.out.end(), '\n'), 45 + 5 * 2 * 8 + 1);
  const ProcessResult cells = profile({"-o", "csv", "--quiet", "--mode", "propagated"});
  EXPECT_EQ(std::count(cells.out.begin(), cells.out.end(), '\n'), 46);
  EXPECT_EQ(cells.out.rfind("schema,model_sha256,text_sha256,config,mode,layer,op,head,n,mse,", 0), 0u);
  EXPECT_NE(profile({}).out.find("Largest shares of mse:"), std::string::npos);

  EXPECT_EQ(profile({"--sc", "stoc_len=64", "--sc", "stoc_len=16", "--plot", folder_ / "plots"}).exit_code, 0);
  for (const char* name : {"heat-1.svg", "heat-2.svg", "error-over-length.svg"}) {
    const std::string svg = ReadFile(folder_ / "plots" / name);
    EXPECT_EQ(svg.rfind("<svg ", 0), 0u) << name;
    EXPECT_NE(svg.find("down_proj"), std::string::npos) << name;
    EXPECT_EQ(svg.find("href"), std::string::npos) << name;
  }
  ExpectRefused(profile({"--plot", folder_ / "text"}), "--plot");
  ExpectRefused(profile({"--max-windows", "500"}), "--max-windows");
  ExpectRefused(profile({"--mode", "global"}), "global");
  ExpectRefused(profile({"-o", "xml"}), "xml");
  ExpectRefused(profile({"--sc", "stoc_len=64", "--sc", "stoc_len=9999"}), "9999");
  ExpectRefused(profile({"--array", "1"}), "R,C,K");
}

TEST_F(ResearchCli, ATraceIsWrittenAndPriced) {
  const std::string trace = folder_ / "trace.json";
  const std::string energy = folder_ / "energy.json";
  WriteFile(energy, R"({"schema": "stoch-energy-v1", "unit": "pJ", "process": "a test", "actions": {
      "sc_mac_cycle": {"energy": 2, "source": "invented for this test"}}})");
  const auto run = ExpectJson(Perplexity({"--json", "--trace", trace, "--energy", energy, "--array", "16,16,32"}));
  const auto& cost = run["results"][0]["sc_cost"];
  const double expected = 2 * cost["mac_cycles"].get<double>();
  EXPECT_EQ(run["results"][0]["energy"]["total"], expected);
  const auto priced = ExpectJson(RunStoch({"cost", trace, "--energy", energy, "--array", "16,16,32", "--json"}));
  EXPECT_EQ(priced["energy"]["total"], expected);
  EXPECT_EQ(priced["sc_cost"]["array"], cost["array"]);
  EXPECT_EQ(priced["sc_cost"]["mac_avg_stoc_len"], 128.0);
  EXPECT_EQ(priced["sc"], "preset=halved");

  const ProcessResult text =
      RunStoch({"cost", trace, "--accelergy", folder_ / "accelergy", "--usystolic", folder_ / "network.csv"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_EQ(text.out.find("energy"), std::string::npos) << "no energy without a table";
  EXPECT_NE(ReadFile(folder_ / "accelergy" / "action_counts.yaml").find("name: sc_mac_cycle"), std::string::npos);
  EXPECT_EQ(ReadFile(folder_ / "network.csv").rfind("Layer name, Layer Type, IFMAP Height", 0), 0u);

  // What Accelergy says of the same names.
  WriteFile(folder_ / "accelergy" / "ERT.yaml",
            "ERT:\n  version: '0.4'\n  tables:\n  - name: system.chip.sc_mac_array[0..3]\n    actions:\n"
            "    - name: sc_mac_cycle\n      arguments: {}\n      energy: 3.0  # pJ\n");
  const auto by_ert = ExpectJson(RunStoch({"cost", trace, "--accelergy", folder_ / "accelergy", "--json"}));
  EXPECT_EQ(by_ert["accelergy_energy"]["total"], 3 * cost["mac_cycles"].get<double>());
  EXPECT_FALSE(by_ert.contains("energy"));
  WriteFile(folder_ / "accelergy" / "ERT.yaml", "ERT: [");
  ExpectRefused(RunStoch({"cost", trace, "--accelergy", folder_ / "accelergy"}), "ERT.yaml");

  const ProcessResult generated = RunStoch(WithDemo("generate", {"--prompt", "Once", "--max-tokens", "2", "--trace",
                                                                 trace, "--trace-mode", "trace", "--energy", energy}));
  EXPECT_EQ(generated.exit_code, 0) << generated.err;
  EXPECT_NE(generated.err.find("energy: "), std::string::npos);
  EXPECT_EQ(RunStoch({"cost", trace, "--array", "8,8,8"}).exit_code, 0);
  const ProcessResult profiled = RunStoch(WithDemo(
      "profile", {"--file", folder_ / "text", "--ctx", "16", "--trace", trace, "--energy", energy, "-o", "jsonl"}));
  EXPECT_EQ(profiled.exit_code, 0) << profiled.err;
  EXPECT_NE(profiled.out.find("\"by_operator\""), std::string::npos);
  EXPECT_EQ(ReadFile(trace).find("scmp-trace-summary-v1"), 14u);

  ExpectRefused(RunStoch({"cost", energy}), "scmp-trace-v1");
  ExpectRefused(RunStoch({"cost", folder_ / "none"}), "none");
  ExpectRefused(RunStoch({"cost", trace, "--energy", trace}), "stoch-energy-v1");
  ExpectRefused(RunStoch({"cost", trace, "--array", "9,9,9"}), "--array");
  ExpectRefused(RunStoch({"cost", trace, "--tile-rows", "5"}), "--tile-rows 5");
  ExpectRefused(Perplexity({"--trace", folder_ / "no" / "where"}), "cannot be created");
  ExpectRefused(Perplexity({"--trace", trace, "--precision", "fp32"}), "--trace");
  ExpectRefused(Perplexity({"--trace", trace, "--config", "stoc_len=64", "--config", "stoc_len=32"}), "--trace");
  ExpectRefused(Perplexity({"--energy", trace}), "stoch-energy-v1");
  ExpectRefused(Perplexity({"--energy", energy, "--precision", "fp32"}), "--energy");
}

TEST_F(ResearchCli, InspectSaysWhatEveryOperatorRuns) {
  const std::string mp = Table(R"({"thresholds": [0.5], "metric_lo": 0, "metric_hi": 4})");
  const auto inspect = [&](const std::vector<std::string>& more) { return RunStoch(WithDemo("inspect", more)); };
  const auto json =
      ExpectJson(inspect({"--mp", mp, "--sc", "1-2.q_proj.arith=int7,4.down_proj.arith=fp", "--json", "--quiet"}));
  const auto row = [&](const std::string& op, int layer) {
    for (const auto& one : json["operators"]) {
      const auto& layers = one["layers"];
      if (one["operator"] == op && std::find(layers.begin(), layers.end(), layer) != layers.end()) return one;
    }
    return nlohmann::json();
  };
  EXPECT_EQ(row("q_proj", 0)["layers"], nlohmann::json::parse("[0, 3, 4]"));
  EXPECT_EQ(row("q_proj", 0)["lengths"], "128 16 by row: amax, fixed");
  EXPECT_EQ(row("q_proj", 1)["arithmetic"], "int7");
  EXPECT_EQ(row("q_proj", 1)["kernel"], "multiplication: every entry is the exact product");
  EXPECT_EQ(row("down_proj", 4)["arithmetic"], "fp32");
  EXPECT_EQ(row("av", 2)["lengths"], "128 16 by row: amax, fixed");
  EXPECT_NE(inspect({"--mp", mp}).out.find("| q_proj    |    0-4 | streams (bipolar, enabled) |"), std::string::npos)
      << inspect({"--mp", mp}).out;
  ExpectRefused(inspect({"--sc", "40.q_proj.stoc_len=64"}), "SC setting 40.q_proj.stoc_len = 64: the model has layers");
}

TEST_F(ResearchCli, CostOptionsAreChecked) {
  for (const std::string array : {"16", "16,16", "0,16,16", "1,2,3,-4", "1,2,3,4,5", "a,b,c", "1,2,9999999"}) {
    ExpectRefused(Perplexity({"--array", array}), array);
  }
  ExpectRefused(Perplexity({"--array", "8,8,8", "--precision", "fp32"}), "--array");
  ExpectRefused(Perplexity({"--tile-rows", "8,0"}), "--tile-rows 0");
  ExpectRefused(RunStoch(WithDemo("generate", {"--prompt", "a", "--array", "x"})), "R,C,K");
}

TEST_F(ResearchCli, WhatIsRefusedTouchesNoFile) {
  WriteFile(folder_ / "short", "Once");
  const std::vector<std::vector<std::string>> commands = {
      {"generate", "--prompt", "Once", "--max-tokens", "1"},
      {"perplexity", "--file", folder_ / "text", "--ctx", "16"},
      {"profile", "--file", folder_ / "text", "--ctx", "16"},
  };
  for (const std::vector<std::string>& command : commands) {
    for (const std::string mode : {"summary", "trace"}) {
      for (const std::string name : {"kept", "made"}) {
        WriteFile(folder_ / "kept", "of an earlier run");
        const std::string path = folder_ / name;
        std::vector<std::string> arguments(command.begin() + 1, command.end());
        const std::vector<std::string> refused = {"--sc", "99.q_proj.stoc_len=32", "--trace-mode", mode, "--trace",
                                                  path};
        arguments.insert(arguments.end(), refused.begin(), refused.end());
        ExpectRefused(RunStoch(WithDemo(command[0], arguments)), "layers 0..");
        EXPECT_EQ(ReadFile(folder_ / "kept"), "of an earlier run") << command[0] << " --trace-mode " << mode;
        EXPECT_FALSE(std::filesystem::exists(folder_ / "made")) << command[0] << " --trace-mode " << mode;
        EXPECT_FALSE(std::filesystem::exists(path + ".records")) << command[0];
      }
    }
  }
  for (const std::string name : {"kept", "made"}) {
    ExpectRefused(RunStoch(WithDemo("perplexity", {"--file", folder_ / "short", "--ctx", "16", "--precision", "fp32",
                                                   "--kl-base", folder_ / name})),
                  "window");
    EXPECT_EQ(ReadFile(folder_ / "kept"), "of an earlier run");
    EXPECT_FALSE(std::filesystem::exists(folder_ / "made"));
  }
  // What was there is not in front of what a run writes.
  const ProcessResult run = Perplexity({"--trace", folder_ / "kept"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(ReadFile(folder_ / "kept").find("scmp-trace-summary-v1"), 14u);
}

TEST_F(ResearchCli, WrongFilesAreOneSentence) {
  WriteFile(folder_ / "bad.json", "{");
  WriteFile(folder_ / "list.json", "[]");
  for (const std::string flag : {"--mp", "--mask", "--smooth"}) {
    for (const std::string name : {"bad.json", "list.json", "none"}) {
      ExpectRefused(Perplexity({flag, folder_ / name}), folder_ / name);
    }
    ExpectRefused(Perplexity({flag, folder_ / "bad.json", "--precision", "fp32"}), "no meaning");
  }
  WriteFile(folder_ / "escape.json", R"({"format": "scmp_llm_hybrid_v1", "schedule": {"\u001b[31m": ["sc"]}})");
  ExpectRefused(Perplexity({"--mask", folder_ / "escape.json"}), "unknown operator '\\x1b[31m'");
  ExpectRefused(Perplexity({"--mask-bits", "4"}), "without --mask");
  for (const std::string flag : {"--mp", "--mask", "--smooth", "--array", "--energy", "--trace"}) {
    ExpectRefused(Perplexity({flag, ""}), flag + ": expected a value, got an empty one");
  }
  ExpectRefused(Perplexity({"--sc", "99.q_proj.stoc_len=32"}), "layers 0..");
  ExpectRefused(Perplexity({"--sc", "gate=table,table=" + (folder_ / "bad.json").string()}), "bad.json");
  ExpectRefused(Perplexity({"--sc", "gate=table"}), "table");
}

}  // namespace
}  // namespace stoch::test
