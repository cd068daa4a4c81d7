// SPDX-License-Identifier: Apache-2.0
// Any text: two implementations of one vocabulary give the same ids, decoding gives the text back, and invalid UTF-8 is
// refused.
#include "loader/tokenizer/kinds.h"
#include "tests/fuzz/tokenizer_fuzz.h"
#include "tests/loader/tokenizer_samples.h"

namespace {

using stoch::fuzz::Check;

void CheckText(const stoch::Tokenizer& one, const stoch::Tokenizer& other, const std::string& text,
               const std::string& decoded) {
  for (const bool special : {false, true}) {
    const stoch::EncodeOptions options = {.add_bos = false, .parse_special = special};
    const auto ids = one.Encode(text, options);
    Check(ids == other.Encode(text, options));
    stoch::fuzz::CheckDecoding(one, ids);
    if (!special) Check(one.Decode(ids) == decoded);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stoch;
  static const auto kTiktoken = MakeTiktokenTokenizer(test::TiktokenLines(), "fuzz", {});
  static const auto kByteLevel = MakeHuggingFaceTokenizer(test::ByteLevelJsonOf(test::TiktokenLines()), "fuzz", {});
  static const auto kModel = MakeSentencePieceTokenizer(test::SentencePieceFile({}), "fuzz", {});
  static const auto kJson = test::FromJson(test::SentencePieceJson());
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (!fuzz::IsUtf8(text)) {
    for (const auto* tokenizer : {kTiktoken.get(), kModel.get(), kJson.get()}) {
      bool refused = false;
      try {
        tokenizer->Encode(text, {});
      } catch (const InvalidInput&) {
        refused = true;
      }
      Check(refused);
    }
    return 0;
  }
  if (text.find("<|") == std::string::npos) CheckText(*kTiktoken, *kByteLevel, text, text);
  CheckText(*kModel, *kJson, text, ReplaceAll(text, "▁", " "));
  return 0;
}
