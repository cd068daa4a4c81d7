// SPDX-License-Identifier: Apache-2.0
// JSON of the server goes without a word where there is no memory, whole or half made.
#include <gtest/gtest.h>

#include <cstdint>
#include <new>
#include <string>
#include <vector>

#include "engine/chat/chat_renderer.h"
#include "engine/serve/format/completion_response.h"
#include "engine/serve/format/messages.h"
#include "loader/bounded_json.h"
#include "tests/serve/faults/failing_new.h"
#include "tests/support/chat_python.h"

namespace {

thread_local int64_t left = INT64_MAX;      // allocations until there is no memory
thread_local int64_t failures = INT64_MAX;  // until there is some again

}  // namespace

bool stoch::test::IsToFail() noexcept {
  if (left > 0) return --left, false;
  if (failures > 0) return --failures, true;
  return false;
}

namespace stoch::test {
namespace {

using serve::Dump;

class JsonScarce : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "sanitizers bring their own operator new";
#endif
  }
  void TearDown() override { Have(INT64_MAX); }
  static void Have(int64_t allocations, int64_t afterwards = INT64_MAX) {
    left = allocations;
    failures = afterwards;
  }
  // Makes a text, without memory from each of its allocations on, which are at least so many.
  template <class Make>
  static void FailEach(const Make& make, int64_t least) {
    const std::string whole = make();
    int64_t made = 0;
    for (bool done = false; !done; ++made) {
      Have(made);
      std::string text;
      try {
        text = make();
        done = true;
      } catch (const std::bad_alloc&) {
      }
      Have(INT64_MAX);
      EXPECT_EQ(text, done ? whole : "");
    }
    EXPECT_GT(made, least);
  }
};

OrderedJson Answer() {
  OrderedJson entries = OrderedJson::array();
  for (int i = 0; i < 20; ++i) {
    OrderedJson top = OrderedJson::object();
    for (int t = 0; t < 5; ++t) top.emplace("a token that is longer than fifteen bytes " + std::to_string(t), -0.5 * t);
    entries.push_back({{"token", "also longer than fifteen bytes"}, {"bytes", {97, 98, 99}}, {"top", std::move(top)}});
  }
  return {{"choices", OrderedJson::array({{{"index", 0}, {"logprobs", {{"content", std::move(entries)}}}}})},
          {"usage", {{"prompt_tokens", 1}, {"completion_tokens", 2}}}};
}

TEST_F(JsonScarce, AnyAllocationMayBeTheLast) {
  FailEach([] { return Dump(Answer()); }, 200);
}

// What a chat goes through until its template: read, taken apart, copied in both orders.
TEST_F(JsonScarce, AConversationMayFindNoMemoryAnywhere) {
  const OrderedJson part = {{"type", "text"}, {"text", "some text that is longer than fifteen bytes"}};
  const OrderedJson message = {{"role", "user"}, {"content", OrderedJson::array({part, part, part})}};
  const OrderedJson body = {{"messages", std::vector(8, message)}, {"stop", {"a", "b"}}, {"logit_bias", {{"1", 2}}}};
  const std::string text = body.dump();
  const auto read = [&text] {
    constexpr int kDepth = 16;
    OrderedJson rest = ConsumeOrderedJson(text, "a body", kDepth, kMaxJsonFileValues, INT64_MAX);
    const OrderedJson conversation = serve::TakeConversation(&rest);
    const SortedJson sorted = conversation;
    const OrderedJson copy = conversation;  // NOLINT(performance-unnecessary-copy-initialization): what is tried
    return sorted.dump() + copy.dump() + SortedJson(rest).dump() +
           ConsumeBoundedJson(text, "a body", kDepth, kMaxJsonFileValues, INT64_MAX).dump();
  };
  FailEach(read, 400);
}

// A request for which there was no memory leaves none of its text to the next one.
TEST_F(JsonScarce, ATextIsOfTheConversationThatAskedForIt) {
  STOCH_REQUIRE_JINJA();
  ChatRenderer renderer({.pythons = {ChatPython()}}, "{{ messages[0]['content'] }}");
  const auto request = [](const std::string& content) {
    return OrderedJson({{"messages", OrderedJson::array({{{"role", "user"}, {"content", content}}})}});
  };
  const std::string large(100'000, 'x');  // read in pieces
  for (const int64_t failing : {int64_t{1}, int64_t{1000}}) {
    int64_t made = 0;
    for (bool done = false; !done; ++made) {
      const OrderedJson first = request(large);
      Have(made, failing);
      try {
        const std::string text = renderer.Render(first);
        Have(INT64_MAX);
        EXPECT_EQ(text, large);
        done = true;
      } catch (const std::bad_alloc&) {
        Have(INT64_MAX);
      }
      const std::string other = "another one " + std::to_string(made);
      EXPECT_EQ(renderer.Render(request(other)), other);
    }
    EXPECT_GT(made, 10);
  }
}

// The values of one level take more than is there for it.
TEST_F(JsonScarce, ManyValuesWaitForMemory) {
  {
    const OrderedJson document = std::vector<int>(4096, 7);
    Have(0, 3);
  }
  EXPECT_EQ(failures, 0);
}

TEST_F(JsonScarce, ManyValuesTakeNoneOnceTheyAreWritten) {
  const OrderedJson values = std::vector<int>(100'000, 7);
  const auto taken = [](const auto& write) {
    const int64_t before = left;
    write();
    return before - left;
  };
  std::string text;
  const int64_t by_text = taken([&] { text = values.dump(); });
  const int64_t by_copy = taken([&] { new OrderedJson(values); });  // NOLINT: never destroyed
  EXPECT_EQ(taken([&] { text = Dump(OrderedJson(values)); }), by_text + by_copy - 1);
  EXPECT_EQ(text.size(), 200'001u);
}

}  // namespace
}  // namespace stoch::test
