// SPDX-License-Identifier: Apache-2.0
// What an answer says of how it came about: seeds, dates, digests; and text where tokens have none.

#include <set>

#include "kernels/base/error.h"
#include "tests/serve/server_fixture.h"

namespace stoch::test {
namespace {

class Answers : public ServerFixture {
 protected:
  Answers() : ServerFixture(512) {}

  GenerateResult Reference(const GenerateRequest& request, const Tokenizer& tokenizer) {
    if (reference_ == nullptr) reference_ = OpenEngine();
    return Generate(*reference_, &tokenizer, request);
  }

  std::unique_ptr<Engine> reference_;
};

const Json kPrompt = {1, 40, 41, 7, 9, 33, 60};

TEST_F(Answers, SayTheSeedThatWasDrawn) {
  server_options_.api.default_seed.reset();
  StartServer();
  Json body = {{"prompt", kPrompt}, {"max_tokens", 20}, {"ignore_eos", true}};
  std::set<int64_t> seeds;
  std::set<std::string> texts;
  for (int i = 0; i < 4; ++i) {
    body.erase("seed");
    const Json answer = Complete(body);
    seeds.insert(answer["seed"].get<int64_t>());
    texts.insert(answer["choices"][0]["text"]);
    body["seed"] = answer["seed"];
    const Json again = Complete(body);
    EXPECT_EQ(again["choices"], answer["choices"]);
    EXPECT_EQ(again["seed"], answer["seed"]);
  }
  // Samples of one prompt are samples, not one answer four times.
  EXPECT_EQ(seeds.size(), 4u);
  EXPECT_EQ(texts.size(), 4u);
  EXPECT_LT(*seeds.rbegin(), int64_t{1} << 53);
  body["seed"] = -5;
  EXPECT_EQ(Complete(body)["seed"], -5);
  body["seed"] = UINT64_MAX;
  const Json largest = Complete(body);
  EXPECT_EQ(largest["seed"].dump(), "18446744073709551615");
  body["seed"] = uint64_t{1} << 63;
  EXPECT_EQ(Complete(body)["seed"].dump(), "9223372036854775808");
  body["seed"] = -1;
  const Json same = Complete(body);
  EXPECT_EQ(same["choices"], largest["choices"]);
  EXPECT_EQ(same["seed"].dump(), "-1");
  for (const char* seed : {"18446744073709551616", "-9223372036854775809", "1.5", "true"}) {
    const Reply refused = Call(port(), "POST", "/v1/completions", std::string(R"({"prompt":"a","seed":)") + seed + "}");
    EXPECT_EQ(refused.status, 400) << seed;
    EXPECT_NE(refused.body.find("seed"), std::string::npos) << refused.body;
  }
  body["seed"] = -5;
  body["stream"] = true;
  EXPECT_EQ(Json::parse(Post("/v1/completions", body).Events().front())["seed"], -5);
}

TEST_F(Answers, TakeTheSeedOfTheServerWhereItHasOne) {
  server_options_.api.default_seed = 7;
  StartServer();
  Json body = {{"prompt", kPrompt}, {"max_tokens", 20}, {"ignore_eos", true}};
  const Json answer = Complete(body);
  EXPECT_EQ(answer["seed"], 7);
  body["seed"] = 7;
  EXPECT_EQ(Complete(body)["choices"], answer["choices"]);
}

TEST_F(Answers, NameWhatGaveThemOnceThatIsKnown) {
  StartServer();
  const Json body = {{"prompt", kPrompt}, {"max_tokens", 2}};
  EXPECT_TRUE(Complete(body)["system_fingerprint"].is_null());
  server_->SetWeightsDigest("abc");
  const std::string fingerprint = Complete(body)["system_fingerprint"];
  EXPECT_EQ(fingerprint.rfind("stoch-", 0), 0u);
  EXPECT_EQ(fingerprint.size(), 6u + 32u);
  Json streamed = body;
  streamed["stream"] = true;
  EXPECT_EQ(Json::parse(Post("/v1/completions", streamed).Events().front())["system_fingerprint"], fingerprint);
  const Json model = Call(port(), "GET", "/v1/models/tiny").Json();
  EXPECT_EQ(model["system_fingerprint"], fingerprint);
  EXPECT_EQ(model["digests"]["weights"], "abc");
  server_->SetWeightsDigest("abd");
  EXPECT_NE(Complete(body)["system_fingerprint"], fingerprint);
  // Another arithmetic, the same weights.
  server_.reset();
  engine_options_.sc = ParseScModelConfig(std::vector<std::string>{"preset=published"});
  StartServer();
  server_->SetWeightsDigest("abc");
  EXPECT_NE(Complete(body)["system_fingerprint"], fingerprint);
}

TEST_F(Answers, HaveTheHashOfTheirLogitsWhereAsked) {
  StartServer();
  GenerateRequest request;
  request.prompt = kPrompt.get<std::vector<int32_t>>();
  request.max_tokens = 9;
  request.ignore_eos = true;
  request.hash_logits = true;
  request.sampling.temperature = 1;
  request.sampling.seed = 3;
  Json body = {{"prompt", kPrompt}, {"max_tokens", 9}, {"ignore_eos", true}, {"seed", 3}, {"n", 2}};
  EXPECT_FALSE(Complete(body)["choices"][0].contains("logits_sha256"));
  body["return_logits_sha256"] = true;
  const Json choices = Complete(body)["choices"];
  const Json streamed = Collect(body);
  for (uint64_t i = 0; i < 2; ++i) {
    request.sampling.choice = i;
    const std::string expected = Reference(request, tokenizer_).logits_sha256;
    EXPECT_EQ(expected.size(), 64u);
    EXPECT_EQ(choices[i]["logits_sha256"], expected);
    EXPECT_EQ(streamed[i]["logits_sha256"], expected);
  }
}

// Letters whose tokens have written forms that are not their text.
class WrittenTokenizer : public LettersTokenizer {
 public:
  std::string TokenText(int32_t id) const override {
    if (IsSpecial(id)) return "<s>";
    return id == 95 ? "<0xC3>" : LettersTokenizer::TokenText(id);
  }
};

TEST_F(Answers, CountOffsetsInTheTextThatIsShown) {
  const WrittenTokenizer written;
  StartServer(written);
  const Json choice =
      Complete({{"prompt", {1, 40, 95, 41, 2, 42}}, {"max_tokens", 0}, {"logprobs", 0}, {"echo", true}})["choices"][0];
  EXPECT_EQ(choice["text"], "H\xEF\xBF\xBDIJ");
  EXPECT_EQ(choice["logprobs"]["tokens"], Json({"<s>", "H", "<0xC3>", "I", "<s>", "J"}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], Json({0, 0, 1, 1, 3, 3}));
  // What goes on from a prompt that is not shown begins at 0.
  const Json bias = {{"40", 1000}};
  const Json rest =
      Complete({{"prompt", {1, 95}}, {"max_tokens", 3}, {"logprobs", 0}, {"logit_bias", bias}})["choices"][0];
  EXPECT_EQ(rest["text"], "\xEF\xBF\xBDHHH");
  EXPECT_EQ(rest["logprobs"]["text_offset"], Json({0, 2, 3}));
}

// A vocabulary of 96, of which the tokenizer knows 90 and throws at others.
class ShortTokenizer : public LettersTokenizer {
 public:
  int32_t vocab_size() const override { return 90; }
  std::string TokenBytes(int32_t id) const override {
    if (id >= 90) throw InvalidInput("token id " + std::to_string(id) + " is out of range");
    return LettersTokenizer::TokenBytes(id);
  }
};

TEST_F(Answers, GoOnWhereATokenHasNoText) {
  const ShortTokenizer shorter;
  StartServer(shorter);
  Json body = {{"prompt", {1, 40, 93, 41}},    {"max_tokens", 3}, {"temperature", 0},
               {"logit_bias", {{"93", 1000}}}, {"logprobs", 1},   {"echo", true}};
  const Json choice = Complete(body)["choices"][0];
  EXPECT_EQ(choice["text"], "HI");
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["logprobs"]["tokens"].back(), "token_id:93");
  EXPECT_EQ(choice["logprobs"]["text_offset"], Json({0, 0, 1, 1, 2, 2, 2}));
  EXPECT_EQ(Collect(body)[0], choice);
  EXPECT_EQ(Post("/detokenize", {{"tokens", {40, 93, 41}}}).Json()["prompt"], "HI");
}

// Letters that speak Llama-3.1, whose prompts tell the date.
class DatedTokenizer : public LettersTokenizer {
 public:
  explicit DatedTokenizer(bool asks_for_the_day) : asks_for_the_day_(asks_for_the_day) {}
  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options) const override {
    std::string plain(text);
    std::replace(plain.begin(), plain.end(), '\n', '|');
    return LettersTokenizer::Encode(plain, options);
  }
  std::string chat_template() const override {
    return std::string(asks_for_the_day_ ? "{%- set date_string = strftime_now('%d %b %Y') %}" : "") +
           "{{- 'Today Date: ' + date_string + '\\n\\n' }}{{- messages[0]['content'] | trim + '<|eot_id|>' }}";
  }

 private:
  const bool asks_for_the_day_;
};

TEST_F(Answers, SayTheDateThatThePromptTells) {
  STOCH_REQUIRE_JINJA();
  const DatedTokenizer dated(true);
  StartServer(dated);
  const auto ask = [this](const Json& more) {
    Json body = {{"messages", {{{"role", "user"}, {"content", "hi"}}}},
                 {"max_tokens", 4},
                 {"ignore_eos", true},
                 {"logprobs", true}};
    body.update(more);
    return Post("/v1/chat/completions", body);
  };
  const Json today = ask(Json::object()).Json();
  const std::string day = today["chat_template_kwargs"]["date_string"];
  EXPECT_EQ(day.size(), std::string("26 Jul 2024").size()) << day;
  const Json then = ask({{"chat_template_kwargs", {{"date_string", "26 Jul 2024"}}}}).Json();
  EXPECT_EQ(then["chat_template_kwargs"]["date_string"], "26 Jul 2024");
  EXPECT_NE(then["choices"][0]["logprobs"], today["choices"][0]["logprobs"]);
  const Json again = ask({{"chat_template_kwargs", {{"date_string", day}}}}).Json();
  EXPECT_EQ(again["choices"], today["choices"]);
  for (const Json& wrong : {Json(5), Json(""), Json("a\nb"), Json(std::string(65, 'x'))}) {
    const Reply refused = ask({{"chat_template_kwargs", {{"date_string", wrong}}}});
    EXPECT_EQ(refused.status, 400);
    EXPECT_EQ(refused.Json()["error"]["param"], "chat_template_kwargs.date_string") << wrong;
  }
  // The server's date, for requests that give none.
  server_.reset();
  chat_settings_.date = "26 Jul 2024";
  StartServer(dated);
  EXPECT_EQ(ask(Json::object()).Json()["choices"], then["choices"]);
  EXPECT_EQ(ask({{"chat_template_kwargs", {{"date_string", day}}}}).Json()["choices"], today["choices"]);
}

}  // namespace
}  // namespace stoch::test
