// SPDX-License-Identifier: Apache-2.0
#include "engine/request/grammar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "engine/request/grammar_failure.h"
#include "tests/engine/grammar/walk.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/letters_tokenizer.h"

namespace stoch {
namespace {

using Json = nlohmann::json;
using Kind = GrammarSpec::Kind;

constexpr const char* kSchema = R"({
  "type": "object", "additionalProperties": false, "required": ["name", "age", "tags", "kind"],
  "properties": {
    "name": {"type": "string", "maxLength": 12},
    "age": {"type": "integer", "minimum": 0, "maximum": 130},
    "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    "kind": {"enum": ["cat", "dog"]},
    "note": {"anyOf": [{"type": "null"}, {"type": "number", "minimum": -9, "maximum": 9}]}}})";

class Grammars : public testing::Test {
 protected:
  void SetUp() override {
    STOCH_SKIP_WITHOUT_GRAMMARS();
    tokenizer_ = LoadTokenizer(std::string(STOCH_SOURCE_DIR) + "/demo");
    vocab_ = tokenizer_->vocab_size() + 7;  // a model's may be padded
    compiler_ = std::make_unique<GrammarCompiler>(*tokenizer_, vocab_);
  }
  std::unique_ptr<TokenGuide> Guide(Kind kind, const std::string& text) {
    return compiler_->Guide({kind, text}, tokenizer_->eos_ids());
  }
  std::string Walk(Kind kind, const std::string& text) {
    return test::Walk(*Guide(kind, text), *tokenizer_, vocab_, random_);
  }
  void ExpectRefused(Kind kind, const std::string& text, std::initializer_list<std::string_view> words) {
    test::ExpectInvalid([&] { compiler_->Compile({kind, text}); }, words);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  int64_t vocab_ = 0;
  std::unique_ptr<GrammarCompiler> compiler_;
  std::mt19937_64 random_{1};
};

// A number that no double holds is JSON, but nlohmann has no value for it.
bool IsObject(const std::string& text) {
  try {
    return Json::parse(text).is_object();
  } catch (const Json::out_of_range&) {
    return true;
  } catch (const Json::parse_error&) {
    return false;
  }
}

TEST_F(Grammars, OfASchemaParseAndValidate) {
  for (int i = 0; i < 1000; ++i) {
    const std::string text = Walk(Kind::kJsonSchema, kSchema);
    const Json json = Json::parse(text, nullptr, false);
    ASSERT_FALSE(json.is_discarded()) << text;
    ASSERT_TRUE(json.at("name").is_string() && json.at("kind").is_string()) << text;
    ASSERT_TRUE(json.at("kind") == "cat" || json.at("kind") == "dog") << text;
    ASSERT_TRUE(json.at("age").is_number_integer() && json.at("age") >= 0 && json.at("age") <= 130) << text;
    ASSERT_TRUE(json.at("tags").is_array() && json.at("tags").size() <= 3) << text;
    ASSERT_TRUE(!json.contains("note") || json["note"].is_null() || json["note"].is_number()) << text;
    ASSERT_LE(json.size(), 5u) << text;
  }
}

// Halves of surrogate pairs and raw control characters, which xgrammar lets through.
TEST_F(Grammars, OfStringsAreJson) {
  for (const char* schema : {R"({"type":"string"})", R"({"type":"string","minLength":8,"maxLength":20})",
                             R"({"type":"string","pattern":"^[^a]{4,20}$"})"}) {
    for (int i = 0; i < 300; ++i) {
      const std::string text = Walk(Kind::kJsonSchema, schema);
      ASSERT_TRUE(Json::parse(text, nullptr, false).is_string()) << schema << "\n" << text;
    }
  }
}

// Characters, not bytes, whichever they are; and no token more or less than where each is a state of its own, also where
// a token is longer than what is left of the string.
TEST_F(Grammars, OfStringsHaveTheLengthThatIsAsked) {
  for (const auto& [least, most] : {std::pair<size_t, size_t>{3, 40}, {12, 19}, {20, 24}, {0, 5}}) {
    const std::string schema =
        R"({"type":"string","minLength":)" + std::to_string(least) + ",\"maxLength\":" + std::to_string(most) + "}";
    const std::string regex = R"("[^"\\\x00-\x1f]{)" + std::to_string(least) + "," + std::to_string(most) + "}\"";
    std::set<size_t> seen;
    for (int i = 0; i < 20; ++i) {
      const auto guide = Guide(Kind::kJsonSchema, schema);
      const auto same = Guide(Kind::kRegex, regex);
      std::string text;
      for (std::vector<int32_t> ids;; text += tokenizer_->TokenBytes(ids.front())) {
        ids = test::Allowed(*guide, vocab_);
        ASSERT_EQ(ids, test::Allowed(*same, vocab_)) << schema << " after " << text;
        std::swap(ids.front(), ids[random_() % ids.size()]);
        if (ids.front() == tokenizer_->eos_ids().front()) break;
        guide->Accept(ids.front());
        same->Accept(ids.front());
      }
      const std::string value = Json::parse(text).get<std::string>();
      seen.insert(
          static_cast<size_t>(std::count_if(value.begin(), value.end(), [](char c) { return (c & 0xc0) != 0x80; })));
    }
    EXPECT_GE(*seen.begin(), least) << schema;
    EXPECT_LE(*seen.rbegin(), most) << schema;
  }
}

TEST_F(Grammars, KeepTheOrderOfProperties) {
  const std::string text = Walk(Kind::kJsonSchema, R"({"type":"object","required":["z","a"],"properties":{
      "z":{"const":1},"a":{"const":2}}})");
  EXPECT_LT(text.find("\"z\""), text.find("\"a\"")) << text;
  EXPECT_LT(text.find("\"a\""), text.size());
}

TEST_F(Grammars, OfAnyJsonAreObjects) {
  int ended = 0;
  for (int i = 0; i < 100; ++i) {
    const std::string text = Walk(Kind::kJson, "");
    if (text.empty()) continue;  // it nests on and on
    ++ended;
    ASSERT_TRUE(IsObject(text)) << text;
  }
  EXPECT_GT(ended, 20);
}

TEST_F(Grammars, OfARegexMatchIt) {
  const std::regex date(R"([12][0-9]{3}-(0[1-9]|1[0-2])-[0-3][0-9](T[a-f]+)?)");
  for (int i = 0; i < 200; ++i) {
    const std::string text = Walk(Kind::kRegex, R"([12][0-9]{3}-(0[1-9]|1[0-2])-[0-3][0-9](T[a-f]+)?)");
    ASSERT_TRUE(std::regex_match(text, date)) << text;
  }
}

TEST_F(Grammars, OfChoicesAreOneOfThem) {
  const std::vector<std::string> choices = {"yes", "no", "\"quoted\" \\ and\nmore", "naïve"};
  std::set<std::string> seen;
  for (int i = 0; i < 200; ++i) {
    const GrammarSpec grammar = ChoiceGrammar(choices);
    seen.insert(Walk(grammar.kind, grammar.text));
  }
  EXPECT_EQ(seen, std::set<std::string>(choices.begin(), choices.end()));
}

TEST_F(Grammars, OfEbnfAreWordsOfIt) {
  const std::string sum = "root ::= term (\" + \" term)*\nterm ::= [0-9]+ | \"(\" root \")\"\n";
  for (int i = 0; i < 100; ++i) {
    const std::string text = Walk(Kind::kEbnf, sum);
    EXPECT_EQ(text.find_first_not_of("0123456789+() "), std::string::npos) << text;
    EXPECT_EQ(std::count(text.begin(), text.end(), '('), std::count(text.begin(), text.end(), ')')) << text;
  }
}

TEST_F(Grammars, GoOnFromTokensThatCameBefore) {
  const auto first = Guide(Kind::kJsonSchema, kSchema);
  const auto second = Guide(Kind::kJsonSchema, kSchema);
  std::vector<int32_t> ids;
  for (int i = 0; i < 12; ++i) {
    const std::vector<int32_t> allowed = test::Allowed(*first, vocab_);
    ids.push_back(allowed[random_() % allowed.size()]);
    first->Accept(ids.back());
  }
  for (const int32_t id : ids) second->Accept(id);  // no mask in between
  EXPECT_EQ(test::Allowed(*first, vocab_), test::Allowed(*second, vocab_));
}

TEST_F(Grammars, AllowNoTokenButTheirOwn) {
  const auto guide = Guide(Kind::kRegex, "a");
  for (const int32_t id : test::Allowed(*guide, vocab_)) EXPECT_EQ(tokenizer_->TokenBytes(id), "a") << id;
  const std::vector<int32_t> eos = tokenizer_->eos_ids();
  test::ExpectInvalid(
      [&] {
        try {
          guide->Accept(eos.front());
        } catch (const GrammarFailure&) {
          ADD_FAILURE() << "the request is not at fault, but who picked the token";
        }
      },
      {"does not allow token"});
  const std::vector<int32_t> a = test::Allowed(*guide, vocab_);
  guide->Accept(a.front());
  EXPECT_EQ(test::Allowed(*guide, vocab_), eos);
}

// One that is text ends the answer where it comes, and may come where the grammar has it.
TEST(Guides, LetStopIdsThatAreTextBeText) {
  STOCH_SKIP_WITHOUT_GRAMMARS();
  const test::LettersTokenizer tokenizer;
  GrammarCompiler compiler(tokenizer, 96);
  const int32_t a = 'a' - ' ';
  const auto guide = compiler.Guide({Kind::kRegex, "a+"}, std::vector<int32_t>{2, a});
  EXPECT_EQ(test::Allowed(*guide, 96), std::vector<int32_t>{a});
  guide->Accept(a);
  EXPECT_EQ(test::Allowed(*guide, 96), (std::vector<int32_t>{2, a}));
  test::ExpectInvalid(
      [&] {
        (void)compiler.Guide({Kind::kRegex, "a+"}, std::vector<int32_t>{a});
      },
      {"end-of-sequence token"});
}

TEST(Guides, RefuseWhatNoTokenIs) {
  STOCH_SKIP_WITHOUT_GRAMMARS();
  const test::LettersTokenizer tokenizer;
  GrammarCompiler compiler(tokenizer, 96);
  const auto guide = compiler.Guide({Kind::kEbnf, "root ::= \"aü\""}, std::vector<int32_t>{2});
  guide->Accept('a' - ' ');
  guide->Accept(95);  // its first half
  std::vector<uint32_t> mask(3);
  test::ExpectInvalid([&] { guide->Fill(mask); }, {"no token of the vocabulary"});
}

TEST_F(Grammars, AreRefusedWithTheReason) {
  ExpectRefused(Kind::kJsonSchema, "{", {});
  ExpectRefused(Kind::kJsonSchema, R"({"type": "objekt"})", {"objekt"});
  ExpectRefused(Kind::kJsonSchema, R"({"$ref": "#/$defs/none"})", {"none"});
  ExpectRefused(Kind::kRegex, "(a", {});
  ExpectRefused(Kind::kRegex, "a(?!b)", {"ookahead"});
  ExpectRefused(Kind::kEbnf, "root ::= other", {"other"});
  ExpectRefused(Kind::kEbnf, "start ::= \"a\"", {"root"});
  ExpectRefused(Kind::kEbnf, "", {"empty"});
  ExpectRefused(Kind::kEbnf, "root ::= Token(99999)", {"Token id 99999"});
  ExpectRefused(Kind::kRegex, "a{3,2}", {"upper bound: 3 > 2"});
  ExpectRefused(Kind::kRegex, "\\u{110000}", {"beyond the last character"});
  ExpectRefused(Kind::kEbnf, "root ::= \"a\"{99999999999}", {"repeats too often"});
  ExpectRefused(Kind::kJsonSchema, R"({"type": "integer", "minimum": 1e300})", {"Integer exceeds maximum limit"});
  ExpectRefused(Kind::kRegex, std::string(kMaxGrammarBytes + 1, 'a'), {"bytes", "65536"});
  test::ExpectInvalid([] { (void)ChoiceGrammar({}); }, {"no choices"});
  test::ExpectInvalid([] { (void)ChoiceGrammar({"a", ""}); }, {"choice 1 is empty"});
  test::ExpectInvalid([] { (void)ChoiceGrammar(std::vector<std::string>(1025, "a")); }, {"1025", "1024"});
}

// Before the first token, for any kind of grammar.
TEST_F(Grammars, AreRefusedWhereNoTextCompletesThem) {
  ExpectRefused(Kind::kEbnf, "root ::= []", {"accepts no text"});
  ExpectRefused(Kind::kEbnf, "root ::= \"a\" root", {"accepts no text"});
  ExpectRefused(Kind::kEbnf, "root ::= \"a\" | \"b\" c\nc ::= \"d\" c\n", {"rule \"c\" that accepts no text"});
  ExpectRefused(Kind::kJsonSchema, R"({"$ref": "#"})", {"accepts no text"});
  ExpectRefused(Kind::kJsonSchema, R"({"type":"object","required":["a"],"properties":{"a":{"$ref":"#"}}})",
                {"accepts no text"});
  EXPECT_EQ(Walk(Kind::kEbnf, "root ::= \"\"\n"), "");
  EXPECT_EQ(Walk(Kind::kEbnf, "root ::= \"a\" | [a] root \"b\" []*\n").front(), 'a');
}

}  // namespace
}  // namespace stoch
