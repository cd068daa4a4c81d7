// SPDX-License-Identifier: Apache-2.0
// The YAML of tools: what is read, and one sentence for everything else.
#include "loader/research/block_yaml.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/expect_invalid.h"

namespace stoch {
namespace {

using Json = nlohmann::json;

Json Read(const std::string& text) { return ParseBlockYaml(text, "f.yaml"); }

TEST(BlockYaml, ReadsWhatAccelergyWrites) {
  EXPECT_EQ(Read("ERT:\n"
                 "  version: '0.4'  # a comment\n"
                 "  tables:\n"
                 "  - name: system.chip.mac[0..3]\n"
                 "    actions:\n"
                 "      - name: read\n"
                 "        arguments: {address_delta: 0, data: [1, x]}\n"
                 "        energy: 2.5e-1\n"
                 "      - name: idle\n"
                 "        arguments:\n"
                 "        energy: 0\n"),
            Json::parse(R"({"ERT": {"version": "0.4", "tables": [{"name": "system.chip.mac[0..3]", "actions": [
              {"name": "read", "arguments": {"address_delta": 0, "data": [1, "x"]}, "energy": 0.25},
              {"name": "idle", "arguments": null, "energy": 0}]}]}})"));
}

TEST(BlockYaml, ReadsScalarsAndNesting) {
  EXPECT_EQ(Read(""), Json(nullptr));
  EXPECT_EQ(Read("---\n# nothing\n"), Json(nullptr));
  EXPECT_EQ(Read("a: true\nb: ~\nc: 'it''s # no comment'\nd: \"x\\\"y\"\ne: a:b\nf: -3\ng: 1.2.3\nh: inf\n"),
            Json::parse(R"({"a": true, "b": null, "c": "it's # no comment", "d": "x\"y", "e": "a:b", "f": -3,
                            "g": "1.2.3", "h": "inf"})"));
  EXPECT_EQ(Read("- - 1\n  - 2\n-\n  a: 3\n- []\n"), Json::parse(R"([[1, 2], {"a": 3}, []])"));
  EXPECT_EQ(Read("{a: {b: [1, 2,]}, 'c d': }"), Json::parse(R"({"a": {"b": [1, 2]}, "c d": null})"));
}

TEST(BlockYaml, RefusesTheRest) {
  const auto refused = [](const std::string& text, const std::string& why) {
    test::ExpectInvalid([&] { Read(text); }, {"f.yaml: line ", why});
  };
  refused("a: &x 1\n", "anchors");
  refused("a: *x\n", "anchors");
  refused("a: |\n  text\n", "block texts");
  refused("a: !tag 1\n", "tags");
  refused("\ta: 1\n", "tab");
  refused("a: 1\na: 2\n", "given twice");
  refused("{a: 1, a: 2}", "given twice");
  refused("a: [1\n", "no end");
  refused("a: {b 1}\n", "no value");
  refused("a: {[\"\xdc\xfe\"]: 1}\n", "a key of a collection is a collection");
  refused("a: 'b\n", "no end");
  refused("a: \"\\n\"\n", "escape");
  refused("a: [1] 2\n", "follows");
  refused("a: 1\n   b: 2\n", "fits no key");
  refused("- 1\n   - 2\n", "no item");
  refused("a: 1\nb\n", "is no key");
  refused(std::string("a: \0b\n", 6), "NUL");
  refused(std::string(40, '[') + "1" + std::string(40, ']'), "deeper");
  std::string deep;
  for (int i = 0; i < 40; ++i) deep += std::string(static_cast<size_t>(i), ' ') + "a:\n";
  refused(deep, "deeper");
}

}  // namespace
}  // namespace stoch
