// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>

#include "engine/grammar/grammar_checker.h"
#include "kernels/base/error.h"
#include "tests/engine/grammar/walk.h"
#include "tests/support/expect_invalid.h"

namespace stoch {
namespace {

using Kind = GrammarSpec::Kind;

class Checker : public testing::Test {
 protected:
  void SetUp() override {
    STOCH_SKIP_WITHOUT_GRAMMARS();
    tokenizer_ = LoadTokenizer(std::string(STOCH_SOURCE_DIR) + "/demo");
    checker_ = std::make_unique<GrammarChecker>(*tokenizer_, tokenizer_->vocab_size(), Patient());
  }
  // A busy machine may take long over what takes little of a processor: only the latter is tested.
  static GrammarChecker::Limits Patient() {
    GrammarChecker::Limits limits;
    limits.time = std::chrono::minutes(10);
    return limits;
  }
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<GrammarChecker> checker_;
};

TEST_F(Checker, SaysWhatACompilerSays) {
  checker_->Check({});
  checker_->Check({Kind::kRegex, "a+"});
  checker_->Check({Kind::kJson, ""});
  for (int i = 0; i < 2; ++i) {  // the second time from what it knows
    test::ExpectInvalid([&] { checker_->Check({Kind::kJsonSchema, R"({"type": "objekt"})"}); }, {"objekt"});
  }
  test::ExpectInvalid([&] { checker_->Check({Kind::kRegex, std::string(kMaxGrammarBytes + 1, 'a')}); }, {"bytes"});
}

std::string Repeated(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

// Processor seconds of the processes that were waited for, by this one or by one of those.
double SecondsOfChildren() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// What takes seconds, deep nesting, and what looks like either.
TEST_F(Checker, EndsWhatTakesTooLong) {
  const std::string nested = Repeated("(", 30000) + "a" + Repeated(")", 30000);
  const GrammarSpec hostile[] = {
      {Kind::kRegex, "((((a{1,200}){1,200}){1,200}){1,200}){1,200}"},
      {Kind::kRegex, "(.*a){300}(.*b){300}(.*c){300}"},
      {Kind::kRegex, nested},
      {Kind::kEbnf, "root ::= " + nested.substr(0, 30000) + "\"a\"" + Repeated(")", 30000)},
      {Kind::kJsonSchema, R"({"type":"string","maxLength":2000000000})"},
      {Kind::kJsonSchema,
       R"({"type":"array","minItems":100000,"items":{"type":"array","minItems":100000,"items":{}}})"},
  };
  const double before = SecondsOfChildren();
  for (const GrammarSpec& grammar : hostile) {
    try {
      checker_->Check(grammar);
    } catch (const InvalidInput& error) {
      EXPECT_NE(std::string(error.what()), "") << grammar.text.substr(0, 60);
    }
    checker_->Check({Kind::kRegex, "b+" + std::to_string(&grammar - hostile)});  // it goes on
  }
  test::ExpectInvalid(
      [&] {
        checker_->Check({Kind::kEbnf, "root ::= " + Repeated("[a-z]* ", 8000)});
      },
      {"500 ms of a processor"});
  checker_->Check({Kind::kRegex, "c+"});
  checker_.reset();  // waits for the process that waited for those of the grammars
  const double took = SecondsOfChildren() - before;
  RecordProperty("processor_seconds", std::to_string(took));
  // Seven of at most half a second each, and the beginning and end of their processes.
  EXPECT_LT(took, 4.0);
}

TEST_F(Checker, NamesTheLimit) {
  const GrammarSpec large = {Kind::kEbnf, "root ::= " + Repeated("[a-z]* ", 8000)};
  GrammarChecker::Limits limits = Patient();
  limits.processor = std::chrono::milliseconds(1);
  GrammarChecker hasty(*tokenizer_, tokenizer_->vocab_size(), limits);
  test::ExpectInvalid([&] { hasty.Check(large); }, {"1 ms of a processor"});
  limits = Patient();
  limits.memory_bytes = 1 << 20;
  GrammarChecker small(*tokenizer_, tokenizer_->vocab_size(), limits);
  test::ExpectInvalid([&] { small.Check(large); }, {"1 MiB of memory"});
}

}  // namespace
}  // namespace stoch
