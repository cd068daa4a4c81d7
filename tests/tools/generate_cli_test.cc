// SPDX-License-Identifier: Apache-2.0
// stoch generate and stoch tokenize, as a user drives them.

#include <algorithm>
#include <regex>

#include "tests/support/chat_python.h"
#include "tests/support/shared_folder.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/tools/cli_support.h"

namespace stoch::test {
namespace {

TEST(GenerateCli, StreamsTextAndEndsWithASummary) {
  const ProcessResult text = RunStoch(WithDemo("generate", {"--prompt", "Once upon a time", "--max-tokens", "12"}));
  EXPECT_EQ(text.exit_code, 0);
  for (const char* part : {"12 tokens", "ms/token", "first token after", "length", "preset=halved"}) {
    EXPECT_NE(text.err.find(part), std::string::npos) << part << " in " << text.err;
  }
  const nlohmann::json json =
      ExpectJson(RunStoch(WithDemo("generate", {"--prompt", "Once upon a time", "--max-tokens", "12", "--json"})));
  EXPECT_EQ(text.out, json["text"].get<std::string>() + "\n");

  const ProcessResult quiet =
      RunStoch(WithDemo("generate", {"--prompt", "Once", "--max-tokens", "2", "--quiet", "--echo"}));
  EXPECT_EQ(quiet.err, "");
  EXPECT_EQ(quiet.out.rfind("Once", 0), 0u);
}

TEST(GenerateCli, JsonHasEveryKey) {
  const nlohmann::json json = ExpectJson(RunStoch(WithDemo(
      "generate", {"--prompt", "Lily and Tom", "--max-tokens", "5", "--json", "--top-logprobs", "3", "--quiet"})));
  for (const char* key : {"model", "precision", "sc", "device", "prompt_ids", "ids", "text", "logprobs",
                          "logits_sha256", "finish_reason", "timings", "top_logprobs"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  for (const char* key : {"load_ms", "prompt_ms", "ttft_ms", "ms_per_token"}) {
    EXPECT_GE(json["timings"].value(key, -1.0), 0.0) << key;
  }
  EXPECT_EQ(json["ids"].size(), 5u);
  EXPECT_EQ(json["logprobs"].size(), 5u);
  EXPECT_EQ(json["top_logprobs"][0].size(), 3u);
  EXPECT_EQ(json["top_logprobs"][0][0][0], json["ids"][0]);
  EXPECT_EQ(json["logits_sha256"].get<std::string>().size(), 64u);
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(json["prompt_ids"][0], 1);
}

TEST(GenerateCli, TextIsOfTheGrammar) {
  const TempDir folder;
  WriteFile(folder / "schema.json", R"({"type": "object", "properties": {"age": {"type": "integer", "maximum": 99,
      "minimum": 0}, "kind": {"enum": ["cat", "dog"]}}, "required": ["age", "kind"]})");
  WriteFile(folder / "list.gbnf", "root ::= \"- \" word (\", \" word)*\nword ::= [a-z]+\n");
  const auto run = [](std::vector<std::string> words) {
    words.insert(words.end(), {"--prompt", "Once upon a time", "--max-tokens", "60", "--temperature", "1", "--quiet"});
    return RunStoch(WithDemo("generate", words));
  };
  const ProcessResult any = run({"--choice", "a"});
  if (any.err.find("this build has no grammars") != std::string::npos) GTEST_SKIP() << any.err;
  EXPECT_EQ(any.out, "a\n");
  const nlohmann::json json = ExpectJson(run({"--json-schema", folder / "schema.json"}));
  EXPECT_TRUE(json.at("age").is_number_integer());
  EXPECT_TRUE(json.at("kind") == "cat" || json.at("kind") == "dog") << json;
  EXPECT_TRUE(std::regex_match(run({"--regex", "[0-9]{4}(-[0-9]{2}){2}"}).out, std::regex("[0-9]{4}(-[0-9]{2}){2}\n")));
  EXPECT_EQ(run({"--grammar", folder / "list.gbnf"}).out.substr(0, 2), "- ");
  const std::string choice = run({"--choice", "yes, please", "--choice", "no"}).out;
  EXPECT_TRUE(choice == "yes, please\n" || choice == "no\n") << choice;
  ExpectRefused(run({"--regex", "(a"}), "--regex");
  for (const char* option : {"--regex", "--json-schema", "--grammar"}) ExpectRefused(run({option, ""}), option);
  ExpectRefused(run({"--json-schema", folder / "none.json"}), "none.json");
  ExpectRefused(run({"--regex", "a", "--choice", "a"}), "--choice");
  ExpectRefused(run({"--regex", "a", "--ignore-eos"}), "--ignore-eos");
}

TEST(GenerateCli, PromptsFromFilesAndPipes) {
  const TempDir folder;
  WriteFile(folder / "prompt", "Tom had a ball\n");
  const std::vector<std::string> rest = {"--max-tokens", "3", "--json"};
  const auto ids = [](const ProcessResult& result) { return ExpectJson(result)["prompt_ids"]; };
  const auto expected =
      ids(RunStoch(WithDemo("generate", {"--prompt", "Tom had a ball", "--max-tokens", "3", "--json"})));
  EXPECT_EQ(ids(RunStoch(WithDemo("generate", {"--file", folder / "prompt", "--max-tokens", "3", "--json"}))),
            expected);
  EXPECT_EQ(
      ids(RunStoch(WithDemo("generate", rest), {.input = "Tom had a ball\n", .output = "", .interrupt_after_out = ""})),
      expected);
}

TEST(GenerateCli, SameBitsOnThreadsAndKernelsOthersWithAnotherConfiguration) {
  const auto hash = [](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"generate", "--model", DemoModel(),    "--prompt", "The dog",
                                          "--device", "cpu",     "--max-tokens", "4",        "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return ExpectJson(RunStoch(arguments))["logits_sha256"].get<std::string>();
  };
  const std::string base = hash({"--threads", "1"});
  EXPECT_EQ(hash({"--threads", "2"}), base);
  EXPECT_EQ(hash({"--threads", "1", "--cpu-variant", "scalar"}), base);
  EXPECT_NE(hash({"--threads", "1", "--sc", "stoc_len=64"}), base);
  EXPECT_NE(hash({"--threads", "1", "--precision", "fp32"}), base);
}

TEST(GenerateCli, SamplingIsReproducible) {
  const auto text = [](const char* seed) {
    return RunStoch(WithDemo("generate",
                             {"--prompt", "One day", "--max-tokens", "16", "--temperature", "1.2", "--seed", seed}))
        .out;
  };
  EXPECT_EQ(text("3"), text("3"));
  EXPECT_NE(text("3"), text("4"));
  const std::string negative = text("-1");
  EXPECT_EQ(negative, text("18446744073709551615"));
  EXPECT_NE(negative, "");
  for (const char* seed : {"-9223372036854775809", "18446744073709551616", "-x"}) {
    ExpectRefused(RunStoch(WithDemo("generate", {"--prompt", "a", "--seed", seed})), seed);
  }
}

TEST(GenerateCli, StopsAtTheContextAndAtStopStrings) {
  const nlohmann::json full =
      ExpectJson(RunStoch(WithDemo("generate", {"--prompt", "Once", "--context", "16", "--ignore-eos", "--json"})));
  EXPECT_EQ(full["finish_reason"], "length");
  EXPECT_EQ(full["ids"].size() + full["prompt_ids"].size(), 16u);

  const nlohmann::json stopped = ExpectJson(RunStoch(WithDemo(
      "generate", {"--prompt", "Once upon a time", "--max-tokens", "60", "--stop", "girl", "--stop", ".", "--json"})));
  EXPECT_EQ(stopped["finish_reason"], "stop");
  EXPECT_EQ(stopped["text"].get<std::string>().find('.'), std::string::npos);
  EXPECT_EQ(stopped["text"].get<std::string>().find("girl"), std::string::npos);
  ExpectRefused(RunStoch(WithDemo("generate", {"--prompt", "Once", "--stop", ""})), "--stop: expected a value");
}

TEST(GenerateCli, CtrlCEndsWithTheSummary) {
  const ProcessResult result =
      RunStoch(WithDemo("generate", {"--prompt", "Once upon a time", "--ignore-eos", "--temperature", "1"}),
               {.input = "", .output = "", .interrupt_after_out = " "});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("cancelled"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("tokens"), std::string::npos) << result.err;
}

TEST(GenerateCli, BadInputIsOneSentence) {
  const auto generate = [](const std::vector<std::string>& more) { return RunStoch(WithDemo("generate", more)); };
  ExpectRefused(RunStoch({"generate", "--model", "/no/such/folder", "--prompt", "a"}), "/no/such/folder");
  ExpectRefused(RunStoch({"generate", "--model", "random:llama-9-1b", "--prompt", "a"}), "llama-9-1b");
  ExpectRefused(RunStoch({"generate", "--model", "random:llama-3.2-1b", "--prompt", "a"}), "tokenizer");
  ExpectRefused(generate({"--file", "/no/such/file"}), "/no/such/file");
  ExpectRefused(generate({"--prompt", "a\xff"}), "UTF-8");
  ExpectRefused(generate({"--prompt", "a b c d e f g h i j k l m", "--context", "8"}), "context");
  ExpectRefused(generate({"--prompt", "a", "--context", "100000"}), "context");
  ExpectRefused(generate({"--prompt", "a", "--temperature", "-1"}), "temperature");
  ExpectRefused(generate({"--prompt", "a", "--top-p", "0"}), "top_p");
  ExpectRefused(generate({"--prompt", "a", "--sc", "stoc_len=999"}), "stoc_len");
  ExpectRefused(generate({"--prompt", "a", "--sc", "stok_len=64"}), "stok_len");
  ExpectRefused(generate({"--chat", "--chat-template", "no-such-format"}), "chatml");
  ExpectRefused(RunStoch({"generate", "no/such-model", "--prompt", "a"}), "hf download no/such-model");
}

// With sampling that suits the demo, which is the model where none is named.
TEST(ChatCli, IsAChatOfGenerate) {
  STOCH_REQUIRE_JINJA();
  const std::string lines = "Tell me a story about a cat.\nShe was hungry.\n";
  const auto talk = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--device", "cpu", "--max-tokens", "12", "--quiet"});
    const ProcessResult result = RunStoch(arguments, {.input = lines, .output = "", .interrupt_after_out = ""});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    return result.out;
  };
  const std::string text = talk({"chat"});
  EXPECT_GE(std::count(text.begin(), text.end(), '\n'), 2) << text;
  EXPECT_EQ(text, talk({"generate", DemoModel(), "--chat", "--temperature", "0.6", "--top-p", "0.9",
                        "--repetition-penalty", "1.1"}));
  EXPECT_NE(text, talk({"chat", DemoModel(), "--seed", "5"}));
  ExpectRefused(RunStoch({"chat", "/no/such/folder"}), "/no/such/folder");
  ExpectRefused(RunStoch({"chat", "--prompt", "a"}), "--prompt");
}

// A model by its name on the hub is the folder that a client of the hub has left, and is served by that name.
TEST(GenerateCli, ModelsOfTheHubAreFoundInItsCache) {
  namespace fs = std::filesystem;
  const TempDir home;
  const fs::path repository = home / "hub" / "models--some-org--Model_1.5";
  fs::create_directories(repository / "refs");
  fs::create_directories(repository / "snapshots" / "0a1b2c");
  WriteFile(repository / "refs" / "main", "0a1b2c\n");
  for (const auto& file : fs::directory_iterator(DemoModel())) {
    fs::create_symlink(fs::canonical(file.path()), repository / "snapshots" / "0a1b2c" / file.path().filename());
  }
  setenv("HF_HOME", home.path().c_str(), 1);
  const auto generate = [](const std::string& model) {
    return RunStoch({"generate", model, "--device", "cpu", "--prompt", "Once", "--max-tokens", "3", "--json"});
  };
  for (const char* model : {"some-org/Model_1.5", "some-org/Model_1.5@main", "some-org/Model_1.5@0a1b2c"}) {
    const ProcessResult result = generate(model);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(nlohmann::json::parse(result.out)["model"], "some-org/Model_1.5");
  }
  ExpectRefused(generate("some-org/Model_1.5@v2"), "hf download some-org/Model_1.5 --revision v2");
  ExpectRefused(generate("some-org/other"), "hf download some-org/other");
  ExpectRefused(generate("some-org/Model_1.5@../../x"), "some-org/Model_1.5@../../x");
  unsetenv("HF_HOME");
}

TEST(GenerateCli, FullDiskIsNoticed) {
  const auto full = [](const std::vector<std::string>& more) {
    const ProcessResult result =
        RunStoch(WithDemo("generate", more), {.input = "", .output = "/dev/full", .interrupt_after_out = ""});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.err.find("error: standard output: cannot be written: No space left"), std::string::npos)
        << result.err;
  };
  full({"--prompt", "Once", "--max-tokens", "3"});
  full({"--prompt", "Once", "--max-tokens", "3", "--json"});
}

// A checkpoint with NaN weights, and one whose weights do not fit its config.
TEST(GenerateCli, BrokenWeightsAreNamed) {
  const TempDir folder;
  WriteTinyModel(folder.path(), TinyModel{}, [](std::vector<StoredTensor>& tensors) {
    std::fill(tensors.back().bytes.begin(), tensors.back().bytes.end(), std::byte{0xff});
  });
  const std::string tokenizer = DemoModel();
  const auto generate = [&folder, &tokenizer] {
    return RunStoch(
        {"generate", "--model", folder.path(), "--tokenizer", tokenizer, "--prompt", "a", "--device", "cpu"});
  };
  ExpectRefused(generate(), "tokenizer");  // its vocabulary is smaller
  WriteFile(folder / "model.safetensors", "not one");
  ExpectRefused(generate(), "model.safetensors");
}

TEST(TokenizeCli, IdsAndBack) {
  const auto tokenize = [](const std::vector<std::string>& more, const std::string& input = "") {
    std::vector<std::string> arguments = {"tokenize", "--model", DemoModel()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunStoch(arguments, {.input = input, .output = "", .interrupt_after_out = ""});
  };
  const ProcessResult ids = tokenize({"--prompt", "Once upon a time"});
  EXPECT_EQ(ids.exit_code, 0);
  EXPECT_EQ(ids.out.rfind("1 ", 0), 0u) << ids.out;
  EXPECT_EQ(tokenize({"--decode"}, ids.out).out, "Once upon a time\n");
  EXPECT_EQ("1 " + tokenize({"--prompt", "Once upon a time", "--no-bos"}).out, ids.out);
  EXPECT_EQ(tokenize({}, "Once upon a time").out, ids.out);
  EXPECT_EQ(RunStoch({"tokenize", DemoModel(), "--prompt", "Once upon a time"}).out, ids.out);
  const nlohmann::json json = ExpectJson(tokenize({"--prompt", "Once upon a time", "--json"}));
  EXPECT_EQ(json["ids"][0], 1);
  EXPECT_EQ(tokenize({"--decode"}, json["ids"].dump()).out, "Once upon a time\n");

  ExpectRefused(tokenize({"--prompt", "\xc3("}), "UTF-8");
  ExpectRefused(tokenize({"--decode", "--prompt", "1 x"}), "'x'");
  ExpectRefused(tokenize({"--decode", "--prompt", "99999999"}), "99999999");
  ExpectRefused(RunStoch({"tokenize", "--model", "/dev/null", "--prompt", "a"}), "/dev/null");
}

// Guesses of a draft model change no text, and one that is no use is refused in a sentence.
TEST(GenerateCli, ADraftModelHasTheSameText) {
  const std::vector<std::string> request = {"--prompt", "Once upon a time", "--max-tokens", "40", "--json", "--quiet"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = request;
    all.insert(all.end(), more.begin(), more.end());
    return RunStoch(WithDemo("generate", all));
  };
  nlohmann::json plain = ExpectJson(with({"--temperature", "0.8"}));
  nlohmann::json drafting = ExpectJson(with({"--temperature", "0.8", "--speculate", DemoModel()}));
  for (const char* key : {"ids", "text", "logprobs", "logits_sha256"}) EXPECT_EQ(drafting[key], plain[key]) << key;
  EXPECT_EQ(drafting["timings"]["draft_n"], drafting["drafts"]["drafted"]);
  EXPECT_EQ(drafting["timings"]["draft_n_accepted"], drafting["drafts"]["accepted"]);
  std::vector<std::string> by_rows = {"generate", "--model",       DemoModel(), "--device",    "cpu:2", "--split",
                                      "row",      "--temperature", "0.8",       "--speculate", "demo"};
  by_rows.insert(by_rows.end(), request.begin(), request.end());
  EXPECT_EQ(ExpectJson(RunStoch(by_rows))["ids"], plain["ids"]);

  ExpectRefused(with({"--speculate", "nobody"}), "speculate = 'nobody': allowed is ngram, off or a model: nobody");
  ExpectRefused(with({"--speculate", "random:llama-3.2-1b"}),
                "draft model random:llama-3.2-1b: has no tokenizer; a draft model needs the tokenizer of demo");
  ExpectRefused(with({"--speculate", "demo", "--sc", "attention=per_head"}), "draft_tokens = 7: rows of a pass");
  const TempDir folder;
  TinyModel tiny;
  WriteTinyModel(folder.path(), tiny);
  ExpectRefused(with({"--speculate", folder.path().string()}), "tokenizer");
}

}  // namespace
}  // namespace stoch::test
