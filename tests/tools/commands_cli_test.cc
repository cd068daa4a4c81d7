// SPDX-License-Identifier: Apache-2.0
// stoch bench, perplexity, verify and inspect, as a user drives them.

#include <sstream>

#include "loader/checkpoint/safetensors_writer.h"
#include "tests/support/temp_dir.h"
#include "tests/tools/cli_support.h"

namespace stoch::test {
namespace {

const std::vector<std::string> kQuickBench = {"-p", "16", "-n", "3", "-d", "0,8", "-b", "1,2", "-r", "2"};

std::vector<std::string> BenchWith(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = WithDemo("bench", kQuickBench);
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(BenchCli, JsonHoldsEveryRepetition) {
  const nlohmann::json json = ExpectJson(RunStoch(BenchWith({"-o", "json"})));
  ASSERT_EQ(json["results"].size(), 10u);  // (1 prompt + 2 depths x 2 batches) x 2 precisions
  EXPECT_GT(json["read_bytes_per_s"].get<double>(), 0);
  for (const nlohmann::json& result : json["results"]) {
    EXPECT_EQ(result["samples_ms"].size(), 2u);
    EXPECT_GT(result["median_ms"].get<double>(), 0);
    EXPECT_NEAR(result["tokens_per_s"].get<double>() * result["median_ms"].get<double>() / 1000,
                result["tokens"].get<double>(), 1e-6);
    EXPECT_GT(result["ratio_to_fp32"].get<double>(), 0);
    if (result["precision"] == "fp32") {
      EXPECT_EQ(result["ratio_to_fp32"], 1.0);
    }
    EXPECT_EQ(result.contains("floor_ms"), result["test"] == "decode");
  }
}

TEST(BenchCli, TheOtherForms) {
  const ProcessResult table = RunStoch(BenchWith({"--precision", "sc"}));
  EXPECT_EQ(table.exit_code, 0) << table.err;
  for (const char* part : {"prompt 16", "decode @8 x2", "spread", "share of floor", "sc: preset=halved"}) {
    EXPECT_NE(table.out.find(part), std::string::npos) << part << " in " << table.out;
  }
  EXPECT_EQ(LinesOf(RunStoch(BenchWith({"-o", "csv"})).out).size(), 11u);
  const std::vector<std::string> lines = LinesOf(RunStoch(BenchWith({"-o", "jsonl", "--precision", "fp32"})).out);
  ASSERT_EQ(lines.size(), 5u);
  for (const std::string& line : lines) EXPECT_TRUE(nlohmann::json::parse(line).contains("samples_ms"));
}

TEST(BenchCli, SpeculationTellsTheSpeedWithAndWithoutGuesses) {
  const nlohmann::json json = ExpectJson(
      RunStoch(WithDemo("bench", {"--speculate", "ngram", "-n", "24", "-b", "1,3", "-r", "2", "--json", "--quiet"})));
  ASSERT_EQ(json["results"].size(), 4u);  // 2 prompts x 2 numbers of sequences
  for (const nlohmann::json& result : json["results"]) {
    EXPECT_EQ(result["same_ids"], true);
    EXPECT_EQ(result["tokens"], 23 * result["sequences"].get<int64_t>());
    EXPECT_EQ(result["passes"], 23);
    EXPECT_LE(result["passes_with"], result["passes"]);
    EXPECT_EQ(result["samples_ms"].size(), 2u);
    EXPECT_EQ(result["samples_ms_with"].size(), 2u);
    EXPECT_GE(result["drafts"]["drafted"], result["drafts"]["accepted"]);
  }
  for (const char* who : {"ngram", "demo"}) {
    const nlohmann::json told = ExpectJson(RunStoch(
        WithDemo("bench", {"--speculate", who, "--told", "-n", "24", "-b", "2", "-r", "1", "--json", "--quiet"})));
    const bool is_ngram = std::string_view(who) == "ngram";
    ASSERT_EQ(told["results"].size(), is_ngram ? 2u : 4u);
    EXPECT_EQ(told["results"][0]["prompt"], is_ngram ? "edits" : "right 0.95");
    EXPECT_EQ(told["results"][0]["told"], true);
    EXPECT_EQ(told["results"][0]["same_ids"], true);
  }
  ExpectRefused(RunStoch(WithDemo("bench", {"-p", "99999"})), "-p, -d and -n: need a context of 99999 tokens, ");
  ExpectRefused(RunStoch(WithDemo("bench", {"--told"})), "no meaning without --speculate");
  ExpectRefused(RunStoch(WithDemo("bench", {"--speculate", "ngram", "-d", "8"})), "no meaning with --speculate");
  ExpectRefused(RunStoch(WithDemo("bench", {"--speculate", "ngram", "-n", "500"})), "-n 500");
  ExpectRefused(RunStoch(WithDemo("bench", {"--speculate", "ngram", "--sc", "attention=per_head"})),
                "draft_tokens = 7: rows of a pass");
}

// Enough text for three windows of 32 tokens.
std::string Story() {
  std::string text;
  for (int i = 0; i < 12; ++i) text += "Once upon a time, there was a little girl named Lily. ";
  return text;
}

TEST(PerplexityCli, ConfigurationsSideBySide) {
  const TempDir folder;
  WriteFile(folder / "text", Story());
  const nlohmann::json json = ExpectJson(
      RunStoch(WithDemo("perplexity", {"--file", folder / "text", "--ctx", "32", "--max-windows", "3", "--config",
                                       "fp32", "--config", "preset=halved", "--config", "stoc_len=16", "--json"})));
  ASSERT_EQ(json["results"].size(), 3u);
  for (const nlohmann::json& row : json["results"]) {
    EXPECT_EQ(row["windows"], 3);
    EXPECT_EQ(row["predictions"], 93);
    EXPECT_NEAR(std::exp(row["mean_nll"].get<double>()), row["ppl"].get<double>(), 1e-9);
    EXPECT_GT(row["ppl_error"].get<double>(), 0);
  }
  // Sixteen cycles are far from enough.
  EXPECT_GT(json["results"][2]["ppl"].get<double>(), 1.1 * json["results"][0]["ppl"].get<double>());
  EXPECT_NE(json["results"][0]["ppl"], json["results"][1]["ppl"]);
}

TEST(PerplexityCli, KlAgainstABaseFile) {
  const TempDir folder;
  WriteFile(folder / "text", Story());
  const std::string base = folder / "base";
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"--file", folder / "text", "--ctx", "32", "--max-windows", "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunStoch(WithDemo("perplexity", arguments));
  };
  ExpectJson(run({"--precision", "fp32", "--kl-base", base, "--json"}));
  const nlohmann::json same = ExpectJson(run({"--precision", "fp32", "--kl", base, "--json"}))["results"][0]["kl"];
  EXPECT_EQ(same["rows"], 62);
  EXPECT_NEAR(same["kld"]["mean"].get<double>(), 0, 1e-9);
  EXPECT_EQ(same["same_top"]["mean"], 1.0);
  const nlohmann::json sc = ExpectJson(run({"--sc", "stoc_len=16", "--kl", base, "--json"}))["results"][0]["kl"];
  EXPECT_GT(sc["kld"]["mean"].get<double>(), 1e-3);
  EXPECT_LT(sc["kld_percentiles"]["0"].get<double>(), sc["kld_percentiles"]["100"].get<double>());
  const ProcessResult text = run({"--kl", base});
  EXPECT_NE(text.out.find("Mean    KLD"), std::string::npos) << text.out;

  ExpectRefused(run({"--kl", folder / "text"}), "text");
  ExpectRefused(run({"--kl-base", "/dev/full"}), "/dev/full");
}

TEST(PerplexityCli, BadInput) {
  const TempDir folder;
  WriteFile(folder / "short", "Once");
  WriteFile(folder / "binary", "a\xff\xfe");
  const auto run = [](const std::vector<std::string>& more) { return RunStoch(WithDemo("perplexity", more)); };
  ExpectRefused(run({"--file", folder / "short", "--ctx", "32"}),
                (folder / "short").string() + ": has 2 tokens; expected at least one window of 32 (--ctx)");
  ExpectRefused(run({"--file", folder / "binary", "--ctx", "32"}),
                (folder / "binary").string() + ": is not valid UTF-8 at byte ");
  ExpectRefused(run({"--file", folder.path()}), folder.path());
  ExpectRefused(run({"--file", folder / "short", "--config", "preset=best"}), "best");
  ExpectRefused(run({"--file", folder / "short", "--ctx", "1"}), "--ctx: Value 1 not in range 2 to ");
  ExpectRefused(run({"--file", folder / "short", "--context", "16", "--ctx", "32"}),
                "--context 16: expected at least a window of 32 tokens (--ctx)");
  // What options tell comes before the text is read.
  const std::string nowhere = folder / "nowhere";
  ExpectRefused(run({"--file", nowhere, "--kl", folder / "base"}), "cannot read " + (folder / "base").string());
  ExpectRefused(run({"--file", nowhere, "--kl-base", nowhere + "/base"}), nowhere + "/base: cannot be created: ");
}

TEST(VerifyCli, ListAndOnly) {
  const ProcessResult list = RunStoch({"verify", "--list"});
  EXPECT_EQ(list.exit_code, 0);
  for (const char* name : {"product.halved", "logits.halved", "passes.halved"}) {
    EXPECT_NE(list.out.find(name), std::string::npos) << name;
  }
  const ProcessResult one = RunStoch({"verify", "--device", "cpu", "--only", "product.halved"});
  EXPECT_EQ(one.exit_code, 0) << one.out;
  EXPECT_NE(one.out.find("1 of 1 checks passed"), std::string::npos) << one.out;
  ExpectRefused(RunStoch(WithDemo("verify", {"--only", "everything"})), "everything");
  ExpectRefused(RunStoch({"verify", "--device", "cpu", "--model", "nowhere"}), "nowhere: expected a model folder");
}

TEST(VerifyCli, OnlyTakesPatterns) {
  const std::string list = RunStoch({"verify", "--list"}).out;
  size_t products = 0;
  for (const std::string& line : LinesOf(list)) products += line.starts_with("product.") ? 1 : 0;
  ASSERT_GT(products, 1u);
  const std::string of = " of " + std::to_string(LinesOf(list).size()) + " checks\n";
  const std::string some = std::to_string(products);
  const ProcessResult result = RunStoch(WithDemo("verify", {"--only", "product.*", "--only", "product.halved"}));
  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_EQ(result.err, "info: --only product.*: " + some + of + "info: --only product.halved: 1" + of);
  EXPECT_NE(result.out.find(some + " of " + some + " checks passed"), std::string::npos) << "each once: " << result.out;
  EXPECT_EQ(RunStoch(WithDemo("verify", {"--only", "product.h?lved", "--quiet"})).err, "");
  ExpectRefused(RunStoch(WithDemo("verify", {"--only", "product.*", "--only", "nothing.*"})),
                "--only nothing.*: names none");
}

TEST(VerifyCli, RunsTheModelAsItIsDivided) {
  const auto verify = [](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"verify", "--device", "cpu:2", "--threads", "1", "--quiet"};
    words.insert(words.end(), more.begin(), more.end());
    return RunStoch(words);
  };
  for (const std::vector<std::string>& how :
       std::vector<std::vector<std::string>>{{"--split", "row"}, {"--device-map", "sequential"}}) {
    const ProcessResult result = verify({"--only", "logits.halved", how[0], how[1]});
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    EXPECT_NE(result.out.find(" with " + how[0] + " " + how[1]), std::string::npos) << result.out;
  }
  ExpectRefused(verify({"--only", "logits.halved", "--split", "diagonal"}), "diagonal");
  ExpectRefused(verify({"--only", "logits.halved", "--device-map", "nowhere"}), "nowhere");
  ExpectRefused(verify({"--only", "logits.halved", "--max-memory", "0=1KiB,1=1KiB"}), "1");
  ExpectRefused(verify({"--context", "64"}), "--context");
  ExpectRefused(verify({"--pass-rows", "5"}), "--pass-rows 5: has no meaning in stoch verify");
}

// A golden file of one case; y is right only for `y`.
void WriteGolden(const std::filesystem::path& path, float y, const std::string& cases) {
  const std::vector<SafetensorsSpec> specs = {
      {"one.a", DType::kF32, {1, 1}}, {"one.b", DType::kF32, {1, 1}}, {"one.y", DType::kF32, {1, 1}}};
  const float values[] = {1.0F, 1.0F, y};
  SafetensorsWriter writer(path, specs, {{"cases", cases}});
  writer.Append(std::as_bytes(std::span(values)));
  writer.Finish();
}

TEST(VerifyCli, GoldenFilesPassFailAndAreChecked) {
  const TempDir folder;
  const auto verify = [&](float y, const std::string& cases) {
    WriteGolden(folder / "golden.safetensors", y, cases);
    return RunStoch({"verify", "--device", "cpu", "--goldens", folder / "golden.safetensors"});
  };
  // a = b = 1: both quantize to Q = 127 = every one of the 128 boundary levels, so each of the L = 128 cycles counts:
  // y = 128 * (127 * 127 / 128) / (127 * 127) = 1.
  const std::string good = R"([{"case": "one", "halve_bipolar_stoc_len": true, "granularity": "per_row"}])";
  const ProcessResult passed = verify(1.0F, good);
  EXPECT_EQ(passed.exit_code, 0) << passed.out;
  const ProcessResult failed = verify(1.00001F, good);
  EXPECT_EQ(failed.exit_code, 1) << failed.out;
  EXPECT_NE(failed.out.find("FAILED golden.one"), std::string::npos) << failed.out;

  ExpectRefused(verify(1, "[]"), "cases");
  ExpectRefused(verify(1, R"([{"case": "one", "colour": 3}])"), "colour");
  ExpectRefused(verify(1, R"([{"stoc_len": 3}])"), "case");
  EXPECT_EQ(verify(1, R"([{"case": "two"}])").exit_code, 1);
  ExpectRefused(RunStoch({"verify", "--goldens", DemoModel() + "/model.safetensors"}), "cases");
}

TEST(VerifyCli, HashFilesPassAndFail) {
  const TempDir folder;
  const std::string path = folder / "hashes.json";
  const nlohmann::json recorded = nlohmann::json::parse(ReadFile(STOCH_SOURCE_DIR "/tests/golden/demo_logits.json"));
  nlohmann::json one = recorded;
  one["sha256"] = {{"preset=halved", recorded["sha256"]["preset=halved"]}};
  WriteFile(path, one.dump());
  const ProcessResult passed = RunStoch(WithDemo("verify", {"--hashes", path}));
  EXPECT_EQ(passed.exit_code, 0) << passed.out;
  one["prompt_ids"][0] = 7;
  WriteFile(path, one.dump());
  const ProcessResult failed = RunStoch(WithDemo("verify", {"--hashes", path}));
  EXPECT_EQ(failed.exit_code, 1) << failed.out;
  EXPECT_NE(failed.out.find("expected sha256"), std::string::npos) << failed.out;
  WriteFile(path, "{}");
  ExpectRefused(RunStoch(WithDemo("verify", {"--hashes", path})), "prompt_ids");
}

TEST(InspectCli, PlansWithoutLoading) {
  const ProcessResult big = RunStoch({"inspect", "--model", "random:llama-3.1-8b", "--device", "cpu", "--json"});
  const nlohmann::json json = ExpectJson(big);
  // The weights alone would be 8 GB; a binary with cuBLAS in it takes 220 MB.
  EXPECT_LT(big.max_resident_kb, 500 * 1024);
  EXPECT_EQ(json["config"]["num_hidden_layers"], 32);
  EXPECT_EQ(json["tensors"].size(), 32u * 9 + 3);
  EXPECT_EQ(json["device_map"].size(), 32u + 3);
  const nlohmann::json& memory = json["memory"];
  int64_t sum = 0;
  for (const char* part : {"weights", "scales", "embedding", "kv_cache", "workspace", "runtime"})
    sum += memory[part].get<int64_t>();
  EXPECT_EQ(memory["total"], sum);
  // The model's own context, or what fits of it, said so.
  EXPECT_GE(json["context"].get<int64_t>(), 2048);
  EXPECT_EQ(json["context"].get<int64_t>() == 131072, json["notices"].empty());
  EXPECT_GT(memory["weights"].get<int64_t>(), 6'900'000'000);

  const ProcessResult demo = RunStoch(WithDemo("inspect"));
  EXPECT_EQ(demo.exit_code, 0);
  for (const char* part : {"model.layers.4.mlp.down_proj.weight", "KV cache", "preset=halved", "lm_head"}) {
    EXPECT_NE(demo.out.find(part), std::string::npos) << part;
  }
}

// Two logical CPU devices: the layers are divided, the bits are not changed.
TEST(InspectCli, DeviceMapsAreShownAndUsed) {
  const TempDir folder;
  const std::vector<std::string> two = {"--model", DemoModel(), "--device", "cpu:2", "--threads", "1"};
  const auto run = [&two](const std::string& command, std::vector<std::string> more) {
    more.insert(more.begin(), two.begin(), two.end());
    more.insert(more.begin(), command);
    return RunStoch(more);
  };
  const nlohmann::json map = ExpectJson(run("inspect", {"--json"}))["device_map"];
  EXPECT_EQ(map["model.layers.0"], "cpu:0");
  EXPECT_EQ(map["model.layers.4"], "cpu:1");

  const std::vector<std::string> prompt = {"--prompt", "Tom", "--max-tokens", "3", "--json"};
  const nlohmann::json divided = ExpectJson(run("generate", prompt));
  EXPECT_EQ(divided["device"], "cpu:0,cpu:1");
  EXPECT_EQ(divided["logits_sha256"], ExpectJson(RunStoch(WithDemo("generate", prompt)))["logits_sha256"]);

  WriteFile(folder / "map.json", R"({"": 1})");
  EXPECT_EQ(ExpectJson(run("inspect", {"--json", "--device-map", folder / "map.json"}))["device_map"]["lm_head"],
            "cpu:1");
  WriteFile(folder / "uneven.json", R"({"": 0, "model.layers.1": 1})");
  const nlohmann::json uneven = ExpectJson(run("inspect", {"--json", "--device-map", folder / "uneven.json"}));
  EXPECT_EQ(uneven["device_map"]["model.layers.1"], "cpu:1");
  EXPECT_EQ(uneven["device_map"]["model.layers.4"], "cpu:0");
  std::vector<std::string> mapped = prompt;
  mapped.insert(mapped.end(), {"--device-map", folder / "uneven.json"});
  EXPECT_EQ(ExpectJson(run("generate", mapped))["logits_sha256"], divided["logits_sha256"]);
  ExpectRefused(run("inspect", {"--max-memory", "0=1MB,1=1MB"}), "more than the");
  ExpectRefused(run("generate", {"--prompt", "a", "--max-memory", "0=1MB,1=1MB"}), "more than the");
  ExpectRefused(run("inspect", {"--max-memory", "7=1MB"}), "device 7");
  ExpectRefused(run("inspect", {"--device-map", "fair"}), "fair");
  ExpectRefused(run("inspect", {"--split", "diagonal"}), "diagonal");

  std::vector<std::string> rows = prompt;
  rows.insert(rows.end(), {"--split", "row"});
  EXPECT_EQ(ExpectJson(run("generate", rows))["logits_sha256"], divided["logits_sha256"]);
  const nlohmann::json plan = ExpectJson(run("inspect", {"--json", "--split", "row"}));
  EXPECT_EQ(plan["split"], "row");
  const nlohmann::json many = ExpectJson(run("inspect", {"--json", "--split", "row", "--batch", "8"}));
  EXPECT_EQ(many["memory"]["kv_cache"].get<int64_t>(), 8 * plan["memory"]["kv_cache"].get<int64_t>());
  EXPECT_EQ(plan["links"].size(), 2u);
  EXPECT_EQ(plan["devices"].size(), 2u);
  EXPECT_EQ(plan["devices"][0]["memory"]["kv_cache"], plan["devices"][1]["memory"]["kv_cache"]);
  EXPECT_EQ(plan["device_map"]["lm_head"].size(), 2u);
  ExpectRefused(run("inspect", {"--split", "row", "--device-map", "balanced"}), "balanced");
  ExpectRefused(run("inspect", {"--split", "row", "--max-memory", "0=1MB,1=1GB"}), "cpu:0");
}

TEST(InspectCli, PassesOfFewerRowsTakeLessMemoryAndKeepTheBits) {
  const auto run = [](const std::string& command, std::vector<std::string> more) {
    more.insert(more.begin(), {command, "--model", DemoModel(), "--threads", "1", "--device", "cpu", "--json"});
    return RunStoch(more);
  };
  const nlohmann::json usual = ExpectJson(run("inspect", {}));
  const nlohmann::json small = ExpectJson(run("inspect", {"--pass-rows", "16"}));
  EXPECT_EQ(small["pass_rows"], 16);
  EXPECT_GT(usual["pass_rows"], 16);
  EXPECT_LT(small["memory"]["workspace"].get<int64_t>(), usual["memory"]["workspace"].get<int64_t>());
  const std::vector<std::string> prompt = {"--prompt", "Tom went to the park", "--max-tokens", "3"};
  std::vector<std::string> cut = prompt;
  cut.insert(cut.end(), {"--pass-rows", "3"});
  EXPECT_EQ(ExpectJson(run("generate", cut))["logits_sha256"], ExpectJson(run("generate", prompt))["logits_sha256"]);
  ExpectRefused(run("generate", {"--prompt", "a", "--pass-rows", "-1"}), "--pass-rows");
  ExpectRefused(run("inspect", {"--pass-rows", "65537"}), "--pass-rows");
}

TEST(InspectCli, StripesAreShownAndUsed) {
  const auto run = [](const std::string& command, const std::string& device, std::vector<std::string> more) {
    more.insert(more.begin(), {command, "--model", DemoModel(), "--threads", "1", "--device", device, "--split"});
    return RunStoch(more);
  };
  const auto words = [](const std::string& split) {
    return std::vector<std::string>{split, "--prompt", "Tom", "--max-tokens", "3", "--json"};
  };
  const auto hash = ExpectJson(run("generate", "cpu", words("layer")))["logits_sha256"];
  EXPECT_EQ(ExpectJson(run("generate", "cpu", words("sequence")))["logits_sha256"], hash) << "of one device";
  EXPECT_EQ(ExpectJson(run("generate", "cpu:4", words("sequence")))["logits_sha256"], hash);
  EXPECT_EQ(ExpectJson(run("generate", "cpu:4", words("sequence:2,row:2")))["logits_sha256"], hash);

  const nlohmann::json whole = ExpectJson(run("inspect", "cpu", {"layer", "--json"}));
  const nlohmann::json plan = ExpectJson(run("inspect", "cpu:4", {"sequence", "--json"}));
  EXPECT_EQ(plan["split"], "sequence");
  ASSERT_EQ(plan["devices"].size(), 4u);
  for (int i = 0; i < 4; ++i) {
    const nlohmann::json& device = plan["devices"][static_cast<size_t>(i)];
    EXPECT_EQ(device["stripe"]["index"], i);
    EXPECT_EQ(device["stripe"]["first"], 4 * i);
    EXPECT_EQ(device["stripe"]["positions"], 4);
    EXPECT_EQ(device["memory"]["kv_cache"].get<int64_t>() * 4, whole["memory"]["kv_cache"].get<int64_t>());
  }
  EXPECT_EQ(plan["device_map"]["model.layers.0"].size(), 4u);
  EXPECT_EQ(plan["device_map"]["lm_head"], "cpu:0");
  EXPECT_NE(run("inspect", "cpu:2", {"sequence"}).out.find("t mod 16 in 8..15"), std::string::npos);
  EXPECT_EQ(ExpectJson(run("inspect", "cpu:4", {"sequence:2,row:2", "--json"}))["split"], "sequence:2,row:2");

  ExpectRefused(run("inspect", "cpu:3", {"sequence"}), "1, 2, 4 or 8 devices");
  ExpectRefused(run("generate", "cpu:2", {"sequence:4", "--prompt", "a"}), "--device names 2");
  ExpectRefused(run("generate", "cpu:2", {"sequence", "--prompt", "a", "--sc", "attention=per_row"}),
                "attention=per_row");
  ExpectRefused(run("generate", "cpu:2", {"sequence", "--prompt", "a", "--device-map", "balanced"}), "balanced");
}

TEST(InspectCli, CountsADraftModel) {
  const auto inspect = [](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"--json", "--batch", "2"};
    all.insert(all.end(), more.begin(), more.end());
    return ExpectJson(RunStoch(WithDemo("inspect", all)));
  };
  const nlohmann::json plain = inspect({});
  EXPECT_FALSE(plain.contains("draft_model"));
  const nlohmann::json both = inspect({"--speculate", "demo"});
  const nlohmann::json& draft = both["draft_model"];
  EXPECT_EQ(draft["model"], plain["model"]);
  EXPECT_EQ(draft["precision"], "sc");
  for (const char* part : {"weights", "scales", "embedding", "kv_cache"}) {
    EXPECT_EQ(draft["memory"][part], plain["memory"][part]) << part;
    EXPECT_EQ(both["memory"][part], plain["memory"][part]) << part;
  }
  EXPECT_GT(draft["memory"]["workspace"], 0);
  const ProcessResult text = RunStoch(WithDemo("inspect", {"--speculate", "demo"}));
  EXPECT_NE(text.out.find("draft model demo, KV cache"), std::string::npos) << text.out;
  // Room for the model, and none for its draft model.
  const int64_t own = plain["memory"]["total"].get<int64_t>();
  ExpectRefused(RunStoch(WithDemo("inspect",
                                  {"--batch", "2", "--speculate", "demo", "--max-memory", "0=" + std::to_string(own)})),
                "for its draft model");
}

}  // namespace
}  // namespace stoch::test
