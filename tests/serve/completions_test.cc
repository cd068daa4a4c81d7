// SPDX-License-Identifier: Apache-2.0
// Completions: what comes back, whole and streamed, and that it is what the engine gives alone.

#include <algorithm>

#include "tests/serve/server_fixture.h"

namespace stoch::test {
namespace {

class Completions : public ServerFixture {
 protected:
  void SetUp() override { StartServer(); }

  // The same request, without the server.
  GenerateResult Reference(const GenerateRequest& request) {
    if (reference_ == nullptr) reference_ = OpenEngine();
    return Generate(*reference_, &tokenizer_, request);
  }

  std::unique_ptr<Engine> reference_;
};

const Json kPrompt = {1, 40, 41, 7, 9, 33, 60};

GenerateRequest Greedy(int64_t max_tokens) {
  GenerateRequest request;
  request.prompt = kPrompt.get<std::vector<int32_t>>();
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return request;
}

TEST_F(Completions, HaveTheShapeOfTheApi) {
  const Json body = Complete({{"model", "tiny"}, {"prompt", "Hello"}, {"max_tokens", 5}, {"ignore_eos", true}});
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["model"], "tiny");
  EXPECT_EQ(body["id"].get<std::string>().rfind("cmpl-", 0), 0u);
  EXPECT_GT(body["created"].get<int64_t>(), 1'600'000'000);
  ASSERT_EQ(body["choices"].size(), 1u);
  EXPECT_EQ(body["choices"][0]["index"], 0);
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(body["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(body["usage"], Json({{"prompt_tokens", 6}, {"completion_tokens", 5}, {"total_tokens", 11}}));
}

TEST_F(Completions, GiveTheBitsOfGenerateAlone) {
  GenerateRequest request = Greedy(20);
  request.sampling.temperature = 0.9;
  request.sampling.top_p = 0.95;
  request.sampling.top_k = 40;
  request.sampling.min_p = 0.001;
  request.sampling.repeat_penalty = 1.1;
  request.sampling.presence_penalty = 0.2;
  request.sampling.frequency_penalty = 0.1;
  request.sampling.logit_bias = {{5, 2.5f}, {17, -1.0f}};
  request.sampling.seed = 99;
  request.top_logprobs = 3;
  const Json choices = Complete({{"prompt", kPrompt},
                                 {"max_tokens", 20},
                                 {"n", 2},
                                 {"temperature", 0.9},
                                 {"top_p", 0.95},
                                 {"top_k", 40},
                                 {"min_p", 0.001},
                                 {"repetition_penalty", 1.1},
                                 {"presence_penalty", 0.2},
                                 {"frequency_penalty", 0.1},
                                 {"logit_bias", {{"5", 2.5}, {"17", -1}}},
                                 {"seed", 99},
                                 {"logprobs", 3},
                                 {"ignore_eos", true}})["choices"];
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_NE(choices[0]["text"], choices[1]["text"]);
  for (uint64_t choice = 0; choice < 2; ++choice) {
    request.sampling.choice = choice;
    const GenerateResult expected = Reference(request);
    EXPECT_EQ(choices[choice]["text"], expected.text);
    for (size_t i = 0; i < expected.ids.size(); ++i) {
      EXPECT_EQ(choices[choice]["logprobs"]["token_logprobs"][i], expected.logprobs[i].logprob) << i;
    }
  }
}

TEST_F(Completions, TakeTextsAndIdsAloneOrInLists) {
  const auto texts = [this](const Json& prompt) {
    const Json body = Complete({{"prompt", prompt}, {"max_tokens", 6}, {"temperature", 0}, {"ignore_eos", true}});
    std::vector<std::string> all;
    for (const Json& choice : body["choices"]) all.push_back(choice["text"]);
    return all;
  };
  const std::vector<std::string> a = texts("Hello");
  const std::vector<std::string> b = texts("World!");
  ASSERT_EQ(a.size(), 1u);
  EXPECT_EQ(texts({"Hello", "World!"}), (std::vector<std::string>{a[0], b[0]}));
  // Ids are taken as they are: BOS only where it is given.
  const std::vector<int32_t> hello = tokenizer_.Encode("Hello", {});
  const std::vector<int32_t> world = tokenizer_.Encode("World!", {});
  EXPECT_EQ(texts(hello), a);
  EXPECT_EQ(texts(Json({hello, world})), (std::vector<std::string>{a[0], b[0]}));
  GenerateRequest bare = Greedy(6);
  bare.prompt = tokenizer_.Encode("Hello", {.add_bos = false});
  EXPECT_EQ(texts(bare.prompt)[0], Reference(bare).text);
}

TEST_F(Completions, StreamedAreTheWholeOnes) {
  for (const Json& extra : std::vector<Json>{Json::object(),
                                             {{"logprobs", 2}},
                                             {{"echo", true}},
                                             {{"echo", true}, {"logprobs", 1}},
                                             {{"n", 3}, {"logprobs", 0}},
                                             {{"echo", true}, {"logprobs", 1}, {"max_tokens", 0}}}) {
    Json body = {{"prompt", {kPrompt, {7, 8, 9}}}, {"max_tokens", 12}, {"seed", 3}, {"ignore_eos", true}};
    body.update(extra);
    EXPECT_EQ(Collect(body), Complete(body)["choices"]) << extra;
  }
}

TEST_F(Completions, StreamedReportUsageWhereAsked) {
  const Json body = {{"prompt", kPrompt},
                     {"max_tokens", 4},
                     {"ignore_eos", true},
                     {"stream", true},
                     {"stream_options", {{"include_usage", true}}}};
  std::vector<std::string> events = Post("/v1/completions", body).Events();
  ASSERT_GE(events.size(), 3u);
  EXPECT_TRUE(Json::parse(events[0])["usage"].is_null());
  const Json last = Json::parse(events[events.size() - 2]);
  EXPECT_EQ(last["choices"], Json::array());
  EXPECT_EQ(last["usage"], Json({{"prompt_tokens", 7}, {"completion_tokens", 4}, {"total_tokens", 11}}));
}

// What lm-evaluation-harness sends for loglikelihoods, and how it reads the answer.
TEST_F(Completions, EchoedLogprobsAreWhatTheHarnessReads) {
  const Json prompts = {kPrompt, {3, 4, 5, 6}};
  const Json body = Complete({{"model", "tiny"},
                              {"prompt", prompts},
                              {"max_tokens", 1},
                              {"logprobs", 1},
                              {"echo", true},
                              {"temperature", 0},
                              {"seed", 1234}});
  ASSERT_EQ(body["choices"].size(), 2u);
  for (size_t p = 0; p < 2; ++p) {
    GenerateRequest request;
    request.prompt = prompts[p].get<std::vector<int32_t>>();
    request.max_tokens = 1;
    request.top_logprobs = 1;
    request.prompt_logprobs = true;
    const GenerateResult expected = Reference(request);
    const Json& logprobs = body["choices"][p]["logprobs"];
    const size_t total = request.prompt.size() + expected.ids.size();
    for (const char* name : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
      EXPECT_EQ(logprobs[name].size(), total) << name;
    }
    EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
    EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
    int64_t offset = 0;
    for (size_t i = 0; i < total; ++i) {
      EXPECT_EQ(logprobs["text_offset"][i], offset) << i;
      offset += static_cast<int64_t>(logprobs["tokens"][i].get<std::string>().size());
    }
    for (size_t i = 1; i < total; ++i) {
      const bool echoed = i < request.prompt.size();
      const TokenLogprob& token = echoed ? *expected.prompt_logprobs[i] : expected.logprobs[i - request.prompt.size()];
      EXPECT_EQ(logprobs["token_logprobs"][i], token.logprob) << i;
      const Json& top = logprobs["top_logprobs"][i];
      ASSERT_FALSE(top.empty()) << i;
      double best = -1e30;
      for (const auto& [text, value] : top.items()) best = std::max(best, value.get<double>());
      EXPECT_EQ(best, token.top[0].second) << i;
      EXPECT_EQ(best == logprobs["token_logprobs"][i], token.logprob == token.top[0].second) << i;
    }
    EXPECT_EQ(body["choices"][p]["text"], tokenizer_.Decode(request.prompt) + expected.text);
  }
}

TEST_F(Completions, MayEndInTheEcho) {
  const Json choice =
      Complete({{"prompt", kPrompt}, {"max_tokens", 0}, {"logprobs", 10}, {"echo", true}})["choices"][0];
  EXPECT_EQ(choice["logprobs"]["tokens"].size(), kPrompt.size());
  EXPECT_GE(choice["logprobs"]["top_logprobs"][3].size(), 10u);
  EXPECT_EQ(choice["finish_reason"], "length");
  const Json bare = Complete({{"prompt", "Hello"}, {"max_tokens", 0}, {"echo", true}});
  EXPECT_EQ(bare["choices"][0]["text"], "Hello");
  EXPECT_EQ(bare["usage"]["completion_tokens"], 0);
}

TEST_F(Completions, EndAtStopStringsAndIds) {
  GenerateRequest greedy = Greedy(30);
  greedy.sampling.logit_bias = {{95, -1000.0f}};  // half a character
  const GenerateResult whole = Reference(greedy);
  const std::string stop = whole.text.substr(6, 2);
  const Json request = {{"prompt", kPrompt},
                        {"max_tokens", 30},
                        {"temperature", 0},
                        {"ignore_eos", true},
                        {"logit_bias", {{"95", -1000}}}};
  Json body = request;
  body["stop"] = {"never there", stop};
  const Json stopped = Complete(body)["choices"][0];
  EXPECT_EQ(stopped["text"], whole.text.substr(0, whole.text.find(stop)));
  EXPECT_EQ(stopped["finish_reason"], "stop");
  EXPECT_EQ(Collect(body)[0]["text"], stopped["text"]);
  body["stop"] = stop;
  EXPECT_EQ(Complete(body)["choices"][0]["text"], stopped["text"]);
  body = request;
  body["stop_token_ids"] = {whole.ids[4]};
  const auto first = std::find(whole.ids.begin(), whole.ids.end(), whole.ids[4]);
  EXPECT_EQ(Complete(body)["usage"]["completion_tokens"], first - whole.ids.begin() + 1);
}

TEST_F(Completions, GoOnPastEndOfSequenceOnlyWhereAsked) {
  Json body = {{"prompt", kPrompt}, {"max_tokens", 9}, {"logit_bias", {{"2", 1000}}}, {"logprobs", 0}};
  const Json ended = Complete(body)["choices"][0];
  EXPECT_EQ(ended["finish_reason"], "stop");
  EXPECT_EQ(ended["text"], "");
  EXPECT_EQ(ended["logprobs"]["tokens"].size(), 1u);  // the end-of-sequence token has its entry
  body["ignore_eos"] = true;
  EXPECT_EQ(Complete(body)["choices"][0]["logprobs"]["tokens"].size(), 9u);
}

TEST_F(Completions, EndAtTheContext) {
  const Json body = Complete({{"prompt", kPrompt}, {"max_tokens", 100000}, {"ignore_eos", true}});
  EXPECT_EQ(body["usage"]["total_tokens"], kContext);
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
}

}  // namespace
}  // namespace stoch::test
