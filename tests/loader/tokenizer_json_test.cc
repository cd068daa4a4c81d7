// SPDX-License-Identifier: Apache-2.0
// tokenizer.json by hand: normalizers, pre-tokenizers, merges, added tokens, BOS rules, decoding.
#include <gtest/gtest.h>

#include "tests/loader/tokenizer_samples.h"

namespace stoch::test {
namespace {

using nlohmann::json;

json Metaspace(const char* scheme, bool split) {
  json file = SentencePieceJson();
  file["normalizer"] = nullptr;
  file["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", split}};
  return file;
}

json AddedToken(int32_t id, const char* content) {
  return {{"id", id}, {"content", content}, {"special", false}, {"normalized", false}};
}

TEST(SentencePieceJson, MergesInRankOrder) {
  const auto tokenizer = FromJson(SentencePieceJson());
  EXPECT_EQ(tokenizer->kind(), "tokenizer.json/bpe");
  EXPECT_EQ(tokenizer->vocab_size(), 266);
  // "a b" goes before "▁ a", so ▁ a b becomes ▁ ab, then ▁ab.
  EXPECT_EQ(Plain(*tokenizer, "ab"), (Ids{kSpaceAb}));
  EXPECT_EQ(Plain(*tokenizer, "a b"), (Ids{kSpaceA, kSpace, kB}));
  EXPECT_EQ(Plain(*tokenizer, "aab"), (Ids{kSpaceA, kAb}));
  EXPECT_EQ(Plain(*tokenizer, ""), (Ids{}));
  EXPECT_EQ(Plain(*tokenizer, " "), (Ids{kSpaces}));
}

TEST(SentencePieceJson, UnknownCharactersBecomeBytes) {
  const auto tokenizer = FromJson(SentencePieceJson());
  EXPECT_EQ(Plain(*tokenizer, "aé"), (Ids{kSpaceA, ByteToken(0xc3), ByteToken(0xa9)}));
  EXPECT_EQ(Plain(*tokenizer, "\n"), (Ids{kSpace, ByteToken(0x0a)}));
}

TEST(SentencePieceJson, UnknownCharactersBecomeUnkWithoutByteFallback) {
  json file = SentencePieceJson();
  file["model"]["byte_fallback"] = false;
  EXPECT_EQ(Plain(*FromJson(file), "xyaz"), (Ids{kSpace, 0, kA, 0}));
  file["model"]["fuse_unk"] = false;
  EXPECT_EQ(Plain(*FromJson(file), "xyaz"), (Ids{kSpace, 0, 0, kA, 0}));
  file["model"]["unk_token"] = nullptr;
  EXPECT_EQ(Refusal([&] { Plain(*FromJson(file), "xyaz"); }),
            "the text has \"x\", for which the tokenizer has no token");
}

TEST(SentencePieceJson, MergesMayBePairs) {
  json file = SentencePieceJson();
  file["model"]["merges"] = json::array({{"a", "b"}, {"▁", "a"}, {"▁a", "b"}, {"▁", "ab"}, {"▁", "▁"}});
  EXPECT_EQ(Plain(*FromJson(file), "ab a"), (Ids{kSpaceAb, kSpaceA}));
}

TEST(SentencePieceJson, MergesAcrossWordsAreFound) {
  json file = SentencePieceJson();
  file["model"]["vocab"]["b▁"] = 266;
  file["model"]["merges"].push_back("b ▁");
  EXPECT_EQ(Plain(*FromJson(file), "bb a"), (Ids{kSpace, kB, kB, kSpaceA}));  // ▁ a goes first
  EXPECT_EQ(Plain(*FromJson(file), "b b"), (Ids{kSpace, 266, kB}));
}

TEST(SentencePieceJson, IgnoreMergesTakesWholeWords) {
  json file = Metaspace("always", true);
  file["model"]["merges"] = json::array();
  EXPECT_EQ(Plain(*FromJson(file), "ab ab"), (Ids{kSpace, kA, kB, kSpace, kA, kB}));
  file["model"]["ignore_merges"] = true;
  EXPECT_EQ(Plain(*FromJson(file), "ab ab"), (Ids{kSpaceAb, kSpaceAb}));
}

TEST(SentencePieceJson, MetaspaceSchemes) {
  EXPECT_EQ(Parsed(*FromJson(Metaspace("always", false)), "a<s>a"), (Ids{kSpaceA, 1, kSpaceA}));
  EXPECT_EQ(Parsed(*FromJson(Metaspace("first", false)), "a<s>a"), (Ids{kSpaceA, 1, kA}));
  EXPECT_EQ(Parsed(*FromJson(Metaspace("never", false)), "a<s>a"), (Ids{kA, 1, kA}));
  // Unlike the normalizer, Metaspace does not put a second space in front.
  EXPECT_EQ(Plain(*FromJson(Metaspace("always", false)), " a"), (Ids{kSpaceA}));
  EXPECT_EQ(Plain(*FromJson(SentencePieceJson()), " a"), (Ids{kSpace, kSpaceA}));
  // Files from before prepend_scheme.
  json old = Metaspace("always", true);
  old["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"add_prefix_space", false}};
  EXPECT_EQ(Plain(*FromJson(old), "a a"), (Ids{kA, kSpaceA}));
}

TEST(SentencePieceJson, WordsOfMetaspaceDoNotMergeWithEachOther) {
  EXPECT_EQ(Plain(*FromJson(Metaspace("always", false)), "  "), (Ids{kSpaces}));
  EXPECT_EQ(Plain(*FromJson(Metaspace("always", true)), "  "), (Ids{kSpace, kSpace}));
}

TEST(SentencePieceJson, TextThatGoesOnHasNoFirstWord) {
  const EncodeOptions going_on = {.add_bos = false, .at_start = false};
  EXPECT_EQ(FromJson(Metaspace("first", false))->Encode("a", going_on), (Ids{kA}));
  EXPECT_EQ(FromJson(SentencePieceJson())->Encode("a", going_on), (Ids{kSpaceA}));
}

TEST(SentencePieceJson, BosComesFromTheTemplate) {
  EXPECT_EQ(FromJson(SentencePieceJson())->Encode("a", {}), (Ids{1, kSpaceA}));
  EXPECT_EQ(FromJson(SentencePieceJson())->bos_id(), 1);
  json file = SentencePieceJson();
  file["post_processor"] = nullptr;
  EXPECT_EQ(FromJson(file)->Encode("a", {}), (Ids{kSpaceA}));
  TokenizerSettings settings;
  settings.bos_token = "<s>";
  settings.tokenizer_class = "LlamaTokenizer";  // adds BOS by default
  EXPECT_EQ(FromJson(file, settings)->Encode("a", {}), (Ids{1, kSpaceA}));
  settings.add_bos = false;
  EXPECT_EQ(FromJson(file, settings)->Encode("a", {}), (Ids{kSpaceA}));
  EXPECT_EQ(FromJson(SentencePieceJson(), settings)->Encode("a", {}), (Ids{kSpaceA}));
}

TEST(SentencePieceJson, SpecialTokensAreTextUnlessAskedFor) {
  const auto tokenizer = FromJson(SentencePieceJson());
  EXPECT_EQ(Parsed(*tokenizer, "a</s>b"), (Ids{kSpaceA, 2, kSpace, kB}));
  const Ids plain = Plain(*tokenizer, "a</s>b");
  EXPECT_EQ(plain.size(), 6u);
  EXPECT_EQ(plain[1], ByteToken('<'));
  EXPECT_EQ(tokenizer->FindSpecial("</s>"), 2);
  EXPECT_EQ(tokenizer->FindSpecial("ab"), std::nullopt);
  EXPECT_TRUE(tokenizer->IsSpecial(2));
  EXPECT_FALSE(tokenizer->IsSpecial(kA));
}

TEST(SentencePieceJson, AddedTokensTakeSpaceAlong) {
  json file = Metaspace("first", false);
  file["added_tokens"].push_back(AddedToken(266, "LEFT"));
  file["added_tokens"].push_back(AddedToken(267, "RIGHT"));
  file["added_tokens"].push_back(AddedToken(268, "RIGHTS"));
  file["added_tokens"][3]["lstrip"] = true;
  file["added_tokens"][4]["rstrip"] = true;
  const auto tokenizer = FromJson(file);
  EXPECT_EQ(Plain(*tokenizer, "a \u3000LEFT a"), (Ids{kSpaceA, 266, kSpaceA}));
  EXPECT_EQ(Plain(*tokenizer, "a RIGHT \na"), (Ids{kSpaceA, kSpace, 267, kA}));
  EXPECT_EQ(Plain(*tokenizer, "RIGHTS a"), (Ids{268, kSpaceA}));  // the longest
  EXPECT_EQ(Plain(*tokenizer, "RIGHT LEFT"), (Ids{267, 266}));    // the space is taken only once
  EXPECT_EQ(tokenizer->Decode(Ids{kSpaceA, 268, kSpaceA}), "aRIGHTS a");
}

TEST(SentencePieceJson, NormalizedAddedTokensAreFoundInNormalizedText) {
  json file = SentencePieceJson();
  file["added_tokens"].push_back(AddedToken(266, "x y"));
  file["added_tokens"][3]["normalized"] = true;
  const auto tokenizer = FromJson(file);
  // Its normalized form is "▁x▁y".
  EXPECT_EQ(Plain(*tokenizer, "x y"), (Ids{266}));
  EXPECT_EQ(Plain(*tokenizer, "a x yb"), (Ids{kSpaceA, 266, kB}));
  EXPECT_EQ(tokenizer->Decode(Ids{kSpaceA, 266, kB}), "a x yb");
  EXPECT_EQ(Plain(*tokenizer, "ax y").front(), kSpaceA);
  EXPECT_EQ(Plain(*tokenizer, "ax y").size(), 4u);
}

TEST(SentencePieceJson, TextBehindANormalizedAddedTokenIsNotFirst) {
  json file = Metaspace("first", false);
  file["added_tokens"].push_back(AddedToken(266, "x"));
  file["added_tokens"][3]["normalized"] = true;
  EXPECT_EQ(Plain(*FromJson(file), "axa"), (Ids{kSpaceA, 266, kA}));
  EXPECT_EQ(Plain(*FromJson(file), "xa"), (Ids{266, kA}));
}

// As tokenizers 0.23 decodes them, normalized or not.
TEST(SentencePieceJson, AddedTokensAreDecodedAsOthers) {
  json file = SentencePieceJson();
  file["added_tokens"].push_back(AddedToken(ByteToken(0x41), "<0x41>"));
  file["added_tokens"].push_back(AddedToken(266, "▁q r"));
  const auto tokenizer = FromJson(file);
  EXPECT_EQ(tokenizer->Decode(Ids{kA, 266, ByteToken(0x41)}), "a q rA");
  EXPECT_EQ(tokenizer->Decode(Ids{266}), "q r");
  EXPECT_EQ(Plain(*tokenizer, "▁q r"), (Ids{266}));
  file["added_tokens"][4]["normalized"] = true;
  EXPECT_EQ(FromJson(file)->Decode(Ids{kA, 266}), "a  q r");
}

TEST(SentencePieceJson, DecodesAndStreams) {
  const auto tokenizer = FromJson(SentencePieceJson());
  const Ids ids = {1, kSpaceA, kSpaceAb, ByteToken(0xe2), ByteToken(0x82), ByteToken(0xac), 2, kB};
  EXPECT_EQ(tokenizer->Decode(ids), "a ab€b");
  StreamDecoder stream(*tokenizer);
  std::vector<std::string> parts;
  for (const int32_t id : ids) parts.push_back(stream.Push(id));
  EXPECT_EQ(parts, (std::vector<std::string>{"", "a", " ab", "", "", "€", "", "b"}));
  EXPECT_EQ(stream.Flush(), "");
  StreamDecoder going_on(*tokenizer, false);
  EXPECT_EQ(going_on.Push(kSpaceA), " a");
}

TEST(SentencePieceJson, HalfCharactersWaitOrBecomeReplacementCharacters) {
  const auto tokenizer = FromJson(SentencePieceJson());
  StreamDecoder stream(*tokenizer);
  EXPECT_EQ(stream.Push(ByteToken(0xf0)), "");
  EXPECT_EQ(stream.Push(ByteToken(0x9f)), "");
  EXPECT_EQ(stream.Push(kA), "\ufffd\ufffda");  // the character was never finished
  EXPECT_EQ(stream.Push(ByteToken(0xc3)), "");
  EXPECT_EQ(stream.Flush(), "\ufffd");
  EXPECT_EQ(stream.Flush(), "");
  EXPECT_EQ(tokenizer->Decode(Ids{ByteToken(0xed), ByteToken(0xa0), ByteToken(0x80)}), "\ufffd\ufffd\ufffd");
}

TEST(SentencePieceJson, TokenTextIsAlwaysUtf8) {
  const auto tokenizer = FromJson(SentencePieceJson());
  EXPECT_EQ(tokenizer->TokenText(kSpaceAb), " ab");
  EXPECT_EQ(tokenizer->TokenText(2), "</s>");
  EXPECT_EQ(tokenizer->TokenText(ByteToken(0x0a)), "\n");
  EXPECT_EQ(tokenizer->TokenText(ByteToken(0xe2)), "<0xE2>");
  EXPECT_EQ(tokenizer->TokenBytes(ByteToken(0xe2)), "\xe2");
  EXPECT_EQ(tokenizer->TokenBytes(2), "");
}

TEST(ByteLevelJson, SplitsThenMerges) {
  const auto tokenizer = FromJson(ByteLevelJson());
  EXPECT_EQ(tokenizer->kind(), "tokenizer.json/byte-level");
  EXPECT_EQ(tokenizer->Encode("hello", {}), (Ids{kBegin, kHell, 'o'}));
  // " hello" is one word: h e and l l go first, so " h" never gets its h.
  EXPECT_EQ(Plain(*tokenizer, "hello hello"), (Ids{kHell, 'o', ' ', kHell, 'o'}));
  EXPECT_EQ(Plain(*tokenizer, " hi"), (Ids{kSpaceH, 'i'}));
  EXPECT_EQ(Plain(*tokenizer, "  hi"), (Ids{' ', kSpaceH, 'i'}));  // \s+(?!\S) leaves the last space to the word
  EXPECT_EQ(Plain(*tokenizer, "é"), (Ids{0xc3, 0xa9}));
  EXPECT_EQ(tokenizer->Decode(Ids{kBegin, kHell, 0xc3, 0xa9, ' ', 0xff}), "hellé \ufffd");
  EXPECT_EQ(tokenizer->TokenText(0xff), "<0xFF>");
}

TEST(ByteLevelJson, SpaceIsUnicodeWhiteSpace) {
  // U+180E, which stands inside Mongolian words, stopped being White_Space in Unicode 6.3.
  json file = ByteLevelJson();
  json& split = file["pre_tokenizer"]["pretokenizers"][0];
  split["behavior"] = "Removed";
  for (const char* pattern : {R"(\s)", R"([\s])", R"([]\s])"}) {
    split["pattern"] = {{"Regex", pattern}};
    EXPECT_EQ(Plain(*FromJson(file), "a \u180e\u3000\u0085b"), (Ids{'a', 0xe1, 0xa0, 0x8e, 'b'})) << pattern;
  }
  split["pattern"] = {{"Regex", R"(\S)"}};
  EXPECT_EQ(Plain(*FromJson(file), "a \u180eb"), (Ids{' '}));
}

TEST(ByteLevelJson, PrefixSpaceAndGpt2Pattern) {
  json file = ByteLevelJson();
  file["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}};
  const auto tokenizer = FromJson(file);
  EXPECT_EQ(Plain(*tokenizer, "hi"), (Ids{kSpaceH, 'i'}));
  EXPECT_EQ(Plain(*tokenizer, " hi"), (Ids{kSpaceH, 'i'}));
  EXPECT_EQ(Plain(*tokenizer, "\nhi"), (Ids{' ', '\n', 'h', 'i'}));
}

TEST(ByteLevelJson, AddedTokensAreDecodedAsOthers) {
  for (const bool normalized : {false, true}) {
    json file = ByteLevelJson();
    file["normalizer"] = {{"type", "NFC"}};
    file["added_tokens"].push_back(AddedToken(265, "ĠÃ©"));
    file["added_tokens"].push_back(AddedToken(266, "h\u00e9"));  // its letters stand for bytes that are no text
    file["added_tokens"].push_back(AddedToken(267, "日"));       // no letter of the alphabet
    file["added_tokens"].push_back(AddedToken(268, "e\u0301"));
    for (json& token : file["added_tokens"]) token["normalized"] = normalized;
    const auto tokenizer = FromJson(file);
    EXPECT_EQ(tokenizer->Decode(Ids{'a', 265, 266, 267}), "a éhé日");
    EXPECT_EQ(tokenizer->Decode(Ids{268}), normalized ? "\u00e9" : "e\u0301");
  }
}

TEST(ByteLevelJson, SplitBehaviours) {
  json file = ByteLevelJson();
  json& split = file["pre_tokenizer"]["pretokenizers"][0];
  split["pattern"] = {{"String", "l"}};
  EXPECT_EQ(Plain(*FromJson(file), "hell"), (Ids{kHe, 'l', 'l'}));
  split["behavior"] = "Removed";
  EXPECT_EQ(Plain(*FromJson(file), "hello"), (Ids{kHe, 'o'}));
  split["invert"] = true;
  EXPECT_EQ(Plain(*FromJson(file), "hello"), (Ids{'l', 'l'}));
  split["invert"] = false;
  split["behavior"] = "MergedWithPrevious";
  split["pattern"] = {{"String", "e"}};
  EXPECT_EQ(Plain(*FromJson(file), "hello"), (Ids{kHe, kLl, 'o'}));
  EXPECT_EQ(Plain(*FromJson(file), "heehe"), (Ids{kHe, 'e', kHe}));  // the second match has a match before it
  split["pattern"] = {{"String", "h"}};
  EXPECT_EQ(Plain(*FromJson(file), "hehe"), (Ids{'h', 'e', 'h', 'e'}));
  split = {{"type", "Digits"}, {"individual_digits", true}};
  EXPECT_EQ(Plain(*FromJson(file), "hell12"), (Ids{kHell, '1', '2'}));
}

TEST(ByteLevelJson, LongWordsAreNotQuadratic) {
  const auto tokenizer = FromJson(ByteLevelJson());
  const Ids ids = Plain(*tokenizer, std::string(300000, 'l'));  // 45e9 steps if every merge looked at every symbol
  ASSERT_EQ(ids.size(), 150000u);
  EXPECT_EQ(ids.back(), kLl);
}

}  // namespace
}  // namespace stoch::test
