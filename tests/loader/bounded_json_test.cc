// SPDX-License-Identifier: Apache-2.0
// The limits on JSON of hostile files.

#include "loader/bounded_json.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/base/error.h"

namespace stoch::test {
namespace {

std::string Refusal(const std::string& text, int64_t max_values) {
  try {
    ParseBoundedJson(text, "x.json", 8, max_values);
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "";
}

TEST(BoundedJson, CountsValues) {
  EXPECT_EQ(Refusal("[1,[],{\"a\":[2]},null]", 7), "");
  EXPECT_EQ(Refusal("[1,[],{\"a\":[2]},null]", 6), "x.json: expected JSON of at most 6 values, got more");
  // Two bytes each in the text, some fifty in memory.
  std::string bomb = "[";
  for (int i = 0; i < 100000; ++i) bomb += "[],";
  EXPECT_EQ(Refusal(bomb, 1000), "x.json: expected JSON of at most 1000 values, got more");
  EXPECT_EQ(Refusal("1", 1), "");
  EXPECT_EQ(Refusal("", 1), "x.json: expected JSON, got nothing: it is empty");
}

// A check sees each list and each object of the outermost object before it grows, and nothing else.
TEST(BoundedJson, EntriesAreCheckedBeforeTheyAreKept) {
  std::map<std::string, std::vector<size_t>> seen;
  const JsonEntryCheck note = [&](const std::string& member, const JsonEntries& entries) {
    seen[member].push_back(entries.count);
  };
  const auto read = [](const std::string& text, const JsonEntryCheck& check) {
    return ParseBoundedJson(text, "x.json", 8, kMaxJsonFileValues, INT64_MAX, check);
  };
  const std::string text = R"({"a":[1,[2,3,{"b":4}],"c"],"d":5,"e":{"f":[6],"g":{}},"h":[],"a2":[{}]})";
  EXPECT_EQ(read(text, note), nlohmann::json::parse(text));
  EXPECT_EQ(seen, (std::map<std::string, std::vector<size_t>>{{"a", {0, 1, 2}}, {"e", {0, 1}}, {"a2", {0}}}));
  seen.clear();
  EXPECT_EQ(read("[[1,2],{\"a\":[3]}]", note).size(), 2u);
  EXPECT_TRUE(seen.empty());
  // What is refused is not read on: the rest is no JSON.
  size_t most = 0;
  const JsonEntryCheck few = [&](const std::string& member, const JsonEntries& entries) {
    most = std::max(most, entries.count);
    if (entries.count == 3) throw InvalidInput(member + " is full");
  };
  EXPECT_THROW(read(R"({"a":[1,2,3,4,5,})", few), InvalidInput);
  EXPECT_THROW(read(R"({"a":{"1":1,"2":2,"3":3,"4":4,})", few), InvalidInput);
  EXPECT_EQ(most, 3u);
  try {
    read(R"({"b":[1,2,3],"a":[1,2,3,4,})", few);
    ADD_FAILURE();
  } catch (const InvalidInput& error) {
    EXPECT_STREQ(error.what(), "a is full");
  }
}

// Members stay in the order of the text, however many there are, and are refused where one is given twice.
TEST(BoundedJson, MembersMayKeepTheirOrder) {
  const auto read = [](const std::string& text) {
    return ConsumeOrderedJson(text, "x.json", 8, kMaxJsonFileValues, INT64_MAX);
  };
  const std::string text = R"({"b":[1,{"d":2,"c":{"z":1.5,"y":null}}],"a":true,"":"é"})";
  EXPECT_EQ(read(text).dump(), nlohmann::ordered_json::parse(text).dump());
  std::string many = "{";
  for (int i = 0; i < 100'000; ++i) many += (i == 0 ? "\"" : ",\"") + std::to_string(99'999 - i) + "\":[]";
  EXPECT_EQ(read(many + "}").dump(), many + "}");
  EXPECT_THROW(read(R"({"a":{"b":1,"c":2,"b":3}})"), InvalidInput);
  EXPECT_EQ(read(R"({"a":{"b":1},"b":{"a":{"b":2}}})").dump(), R"({"a":{"b":1},"b":{"a":{"b":2}}})");
  EXPECT_THROW(read(many), InvalidInput);
}

TEST(BoundedJson, MemoryIsCountedAlikeBeforeAndAfter) {
  const std::string text = R"({"a":[1,"b",[[],{"c":[2.5,"a text of more than fifteen bytes"]}]],"d":{},
    "a name of more than fifteen bytes":null,"f":true})";
  const auto read = [&text](int64_t most) { return ConsumeOrderedJson(text, "x.json", 8, kMaxJsonFileValues, most); };
  const int64_t bytes = JsonBytes(read(INT64_MAX));
  EXPECT_EQ(JsonBytes(read(bytes)), bytes);
  EXPECT_THROW(read(bytes - 1), InvalidInput);
}

// Lengths around every step in which the text is given back.
TEST(BoundedJson, ATextThatIsConsumedIsReadAlike) {
  const auto both = [](const std::string& text) {
    const auto attempt = [&](bool consume) -> std::string {
      try {
        return consume ? ConsumeBoundedJson(text, "x.json", 8, kMaxJsonFileValues, INT64_MAX).dump()
                       : ParseBoundedJson(text, "x.json", 8).dump();
      } catch (const InvalidInput& error) {
        return error.what();
      }
    };
    std::string consumed = attempt(true);
    EXPECT_EQ(consumed, attempt(false));
    return consumed;
  };
  for (const size_t length : {0u, 1u, 65535u, 262144u, 327679u, 327680u, 327681u, 600000u, 3000000u}) {
    std::string text = "[\"";
    while (text.size() < length) text += std::to_string(text.size()) + "\",\"";
    text += "\",[{\"a\":1.5}]]";
    EXPECT_EQ(both(text), nlohmann::json::parse(text).dump());
    const std::string at = std::to_string(text.size() + 1);
    EXPECT_NE(both(text + "]").find("got something else at byte " + at), std::string::npos);
    text[text.size() / 2] = '\0';
    EXPECT_NE(both(text).find("got a zero byte at byte " + std::to_string(text.size() / 2)), std::string::npos);
    EXPECT_NE(both(text.substr(0, text.size() / 2)).find("got something else"), std::string::npos);
  }
}

TEST(BoundedJson, ReleasedDocumentsAreEmpty) {
  nlohmann::json document = nlohmann::json::parse(R"({"a":[1,"b",[[],{"c":[2]}]],"d":{},"e":"f"})");
  ReleaseJson(&document);
  EXPECT_EQ(document, nlohmann::json::object());
  document = nlohmann::json::parse(R"([1,[2,[3]],{"a":[4]}])");
  ReleaseJson(&document);
  EXPECT_EQ(document, nlohmann::json::array());
  document = "text";
  ReleaseJson(&document);
  EXPECT_EQ(document, "text");
}

}  // namespace
}  // namespace stoch::test
