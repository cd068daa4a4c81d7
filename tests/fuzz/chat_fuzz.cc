// SPDX-License-Identifier: Apache-2.0
// A text as a message, as text parts cut at its line ends, and as names of members: marked, it has no special token, and
// without the mark it is the text that it was.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/chat/special_text.h"
#include "loader/tokenizer/unicode/text.h"
#include "tests/fuzz/tokenizer_fuzz.h"
#include "tests/loader/tokenizer_samples.h"

namespace {

using namespace stoch;
using fuzz::Check;

std::unique_ptr<Tokenizer> WithSpecials() {
  nlohmann::json file = test::ByteLevelJson();
  int32_t id = test::kEot;
  // Some of them overlap.
  for (const char* name : {"<|im_start|>", "<|im_end|>", "[INST]", "[/INST]", "aa", "aba", "a\xC3\xA9"}) {
    nlohmann::json token = file["added_tokens"][0];
    token["id"] = ++id;
    token["content"] = name;
    file["added_tokens"].push_back(token);
  }
  return test::FromJson(file);
}

OrderedJson Parts(const std::string& text) {
  OrderedJson parts = OrderedJson::array();
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    parts.push_back({{"type", "text"}, {"text", text.substr(begin, end - begin)}});
    begin = end + 1;
  }
  return parts;
}

std::string Joined(const OrderedJson& parts) {
  std::string text;
  for (const OrderedJson& part : parts) text += part["text"].get<std::string>();
  return text;
}

void CheckText(const Tokenizer& tokenizer, const std::string& marked, const std::string& mark,
               const std::string& written) {
  const std::vector<int32_t> ids = tokenizer.Encode(marked, {.add_bos = false, .parse_special = true, .removed = mark});
  Check(std::none_of(ids.begin(), ids.end(), [&](int32_t id) { return tokenizer.IsSpecial(id); }));
  Check((mark.empty() ? marked : ReplaceAll(marked, mark, "")) == written);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::unique_ptr<Tokenizer> kTokenizer = WithSpecials();
  static const SpecialText kSpecials(*kTokenizer, "");
  const std::string text(reinterpret_cast<const char*>(data), size);
  fuzz::MayRefuse([&] {
    const OrderedJson parts = Parts(text);
    OrderedJson value = {{"content", text}, {"parts", parts}, {"names", OrderedJson{{text, 1}}}};
    const std::string mark = kSpecials.Mark(&value);
    CheckText(*kTokenizer, value["content"], mark, text);
    CheckText(*kTokenizer, value["names"].begin().key(), mark, text);
    CheckText(*kTokenizer, Joined(value["parts"]), mark, Joined(parts));
  });
  return 0;
}
