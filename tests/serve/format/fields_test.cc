// SPDX-License-Identifier: Apache-2.0
// Every field that clients of this and of other servers send: read, a hint, neutral at some value, or refused by name.
#include <set>

#include "engine/serve/format/foreign_fields.h"
#include "tests/serve/server_fixture.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

using serve::FieldPlace;
using serve::ForeignField;

class Fields : public ServerFixture {
 protected:
  void SetUp() override { StartServer(); }

  // The status and the field that the answer names ("" for 200).
  std::pair<int, std::string> Send(const std::string& field, const Json& value) {
    Json body = {{"prompt", "a"}, {"max_tokens", 1}};
    body[field] = value;
    const Reply reply = Post("/v1/completions", body);
    const Json answer = reply.Json();
    if (reply.status == 200) return {200, ""};
    EXPECT_EQ(answer["error"]["type"], "invalid_request_error") << reply.body;
    EXPECT_NE(answer["error"]["message"], "") << reply.body;
    return {reply.status, answer["error"]["param"].get<std::string>()};
  }
  std::string Message(const std::string& field, const Json& value) {
    Json body = {{"prompt", "a"}, {"max_tokens", 1}};
    body[field] = value;
    return Post("/v1/completions", body).Json()["error"]["message"];
  }
};

// Values that ask for something, of fields of vLLM, llama.cpp, TGI, Ollama and the OpenAI API.
constexpr std::pair<const char*, const char*> kMeaningful[] = {
    {"add_special_tokens", "false"},
    {"allowed_token_ids", "[5]"},
    {"prompt_logprobs", "1"},
    {"return_token_ids", "true"},
    {"return_tokens_as_token_ids", "true"},
    {"min_tokens", "5"},
    {"bad_words", "[\"a\"]"},
    {"use_beam_search", "true"},
    {"length_penalty", "2"},
    {"truncate_prompt_tokens", "4"},
    {"skip_special_tokens", "false"},
    {"include_stop_str_in_output", "true"},
    {"response_format", "{\"type\":\"json_object\"}"},
    {"structured_outputs", "{\"regex\":\"a\"}"},
    {"guided_json", "{}"},
    {"guided_regex", "\"a\""},
    {"guided_choice", "[\"a\"]"},
    {"guided_grammar", "\"a\""},
    {"regex", "\"a\""},
    {"ebnf", "\"a\""},
    {"logits_processors", "[\"a\"]"},
    {"prompt_embeds", "\"a\""},
    {"kv_transfer_params", "{\"a\":1}"},
    {"suffix", "\"a\""},
    {"max_completion_tokens", "5"},
    {"top_logprobs", "2"},
    {"messages", "[{\"role\":\"user\",\"content\":\"a\"}]"},
    {"input", "\"a\""},
    {"n_predict", "5"},
    {"n_probs", "5"},
    {"n_keep", "5"},
    {"samplers", "[\"top_k\"]"},
    {"grammar", "\"a\""},
    {"json_schema", "{\"type\":\"object\"}"},
    {"mirostat", "2"},
    {"dry_multiplier", "0.8"},
    {"xtc_probability", "0.5"},
    {"typical_p", "0.5"},
    {"tfs_z", "0.5"},
    {"top_n_sigma", "1"},
    {"dynatemp_range", "0.5"},
    {"repeat_last_n", "64"},
    {"penalize_nl", "false"},
    {"min_keep", "3"},
    {"post_sampling_probs", "true"},
    {"return_tokens", "true"},
    {"timings_per_token", "true"},
    {"response_fields", "[\"content\"]"},
    {"lora", "[{\"id\":0,\"scale\":1}]"},
    {"t_max_predict_ms", "100"},
    {"image_data", "[{}]"},
    {"inputs", "\"a\""},
    {"parameters", "{\"temperature\":1}"},
    {"max_new_tokens", "5"},
    {"min_new_tokens", "5"},
    {"stop_sequences", "[\"a\"]"},
    {"do_sample", "false"},
    {"num_return_sequences", "2"},
    {"num_beams", "4"},
    {"top_n_tokens", "5"},
    {"typical", "0.5"},
    {"watermark", "true"},
    {"details", "true"},
    {"decoder_input_details", "true"},
    {"return_full_text", "true"},
    {"truncate", "5"},
    {"bad_words_ids", "[[5]]"},
    {"no_repeat_ngram_size", "3"},
    {"encoder_repetition_penalty", "1.2"},
    {"epsilon_cutoff", "0.1"},
    {"guidance_scale", "2"},
    {"penalty_alpha", "0.6"},
    {"num_predict", "5"},
    {"options", "{\"temperature\":0}"},
    {"raw", "true"},
    {"format", "\"json\""},
    {"template", "\"a\""},
    {"system", "\"a\""},
    {"context", "[5]"},
    {"think", "true"},
    {"num_ctx", "64"},
};

TEST_F(Fields, ThatMeanSomethingAreRefusedByName) {
  EXPECT_GE(std::size(kMeaningful), 75u);
  for (const auto& [field, value] : kMeaningful) {
    const auto [status, param] = Send(field, Json::parse(value));
    EXPECT_EQ(status, 400) << field;
    EXPECT_EQ(param.substr(0, param.find('.')), field);  // or a part of it
    EXPECT_EQ(Send(field, nullptr).first, 200) << field;
  }
}

TEST_F(Fields, OfTheListPassWhereTheyChangeNothing) {
  const Json body = {{"prompt", "a"}, {"max_tokens", 2}, {"seed", 3}};
  const Json expected = Post("/v1/completions", body).Json()["choices"];
  std::set<std::string> names;
  for (const ForeignField& field : serve::ForeignFields()) {
    if (field.place != FieldPlace::kEither && field.place != FieldPlace::kCompletion) continue;
    EXPECT_TRUE(names.insert(field.name).second) << field.name << " is there twice";
    const bool hint = field.neutral == nullptr;
    EXPECT_TRUE(!hint || *field.note != '\0') << field.name << ": a hint says why it changes nothing";
    Json more = body;
    more[field.name] = hint ? Json("anything") : Json();
    const Reply reply = Post("/v1/completions", more);
    ASSERT_EQ(reply.status, 200) << field.name << reply.body;
    EXPECT_EQ(reply.Json()["choices"], expected) << field.name;
    std::string_view neutral = hint ? "" : field.neutral;
    if (neutral.empty()) continue;
    more[field.name] = Json::parse(neutral.substr(0, neutral.find('|')));
    EXPECT_EQ(Post("/v1/completions", more).status, 200) << field.name;
    more[field.name] = {{"not", "neutral"}};
    EXPECT_EQ(Post("/v1/completions", more).Json()["error"]["param"], field.name);
  }
}

TEST_F(Fields, OfNobodyAreRefusedWithTheNearest) {
  EXPECT_EQ(Send("flavour", "sweet"), std::pair(400, std::string("flavour")));
  EXPECT_EQ(Message("flavour", 1), "flavour: this server has no such field");
  EXPECT_EQ(Message("temprature", 1), "temprature: this server has no such field; did you mean temperature?");
  EXPECT_EQ(Message("max_token", 1), "max_token: this server has no such field; did you mean max_tokens?");
  EXPECT_EQ(Message("n_predict", 5), "n_predict: is not supported; use max_tokens");
  EXPECT_EQ(Message("min_tokens", 5), "min_tokens: is not supported; allowed is 0, which changes nothing");
}

TEST_F(Fields, RepeatPenaltyIsRepetitionPenalty) {
  const auto text = [this](const Json& more) {
    Json body = {{"prompt", "a"}, {"max_tokens", 12}, {"temperature", 0}};
    body.update(more);
    const Json answer = Post("/v1/completions", body).Json();
    return answer.contains("choices") ? answer["choices"][0]["text"].get<std::string>() : answer.dump();
  };
  EXPECT_EQ(text({{"repeat_penalty", 1000}}), text({{"repetition_penalty", 1000}}));
  EXPECT_NE(text({{"repeat_penalty", 1000}}), text(Json::object()));
  EXPECT_EQ(text({{"repeat_penalty", 1000}, {"repetition_penalty", 1000}}), text({{"repetition_penalty", 1000}}));
  EXPECT_EQ(Send("repeat_penalty", 0), std::pair(400, std::string("repeat_penalty")));
  EXPECT_EQ(Send("repetition_penalty", 0), std::pair(400, std::string("repetition_penalty")));
  const Json both = {{"prompt", "a"}, {"repeat_penalty", 2}, {"repetition_penalty", 3}};
  EXPECT_EQ(Post("/v1/completions", both).Json()["error"]["param"], "repeat_penalty");
}

// The page says of every hint why it changes nothing.
TEST(FieldsPage, ListsEveryHint) {
  const std::string page = ReadFile(std::filesystem::path(STOCH_SOURCE_DIR) / "docs/requests.md");
  for (const ForeignField& field : serve::ForeignFields()) {
    if (field.neutral != nullptr) continue;
    EXPECT_NE(page.find("| `" + std::string(field.name) + "` | " + field.note + " |"), std::string::npos)
        << "| `" << field.name << "` | " << field.note << " |";
  }
}

}  // namespace
}  // namespace stoch::test
