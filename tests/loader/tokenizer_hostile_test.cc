// SPDX-License-Identifier: Apache-2.0
// One test per way a tokenizer file or a text can be wrong.
#include <gtest/gtest.h>

#include "loader/tokenizer/kinds.h"
#include "loader/tokenizer/limits.h"
#include "tests/loader/tokenizer_samples.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

using nlohmann::json;

std::string JsonRefusal(const json& file, const TokenizerSettings& settings = {}) {
  return Refusal([&] { FromJson(file, settings); });
}
std::string ModelRefusal(const SentencePieceModel& model) {
  return Refusal([&] { MakeSentencePieceTokenizer(SentencePieceFile(model), "t.model", {}); });
}
std::string TiktokenRefusal(const std::string& lines) {
  return Refusal([&] { MakeTiktokenTokenizer(lines, "t.model", {}); });
}
std::string ConfigRefusal(const std::string& text) {
  TokenizerSettings settings;
  return Refusal([&] { ReadTokenizerConfig(text, "c.json", settings); });
}

TEST(HostileText, InvalidUtf8NamesTheByte) {
  const auto tokenizer = FromJson(ByteLevelJson());
  const std::pair<std::string, int> texts[] = {{"ab\xff", 2},    {"\xc3", 0},         {"a\xe2\x82", 1},
                                               {"a\xc0\x80", 1}, {"\xed\xa0\x80", 0}, {"ok\xf4\x90\x80\x80", 2},
                                               {"€\x80", 3},     {"\xe0\x80\x80", 0}};
  for (const auto& [text, byte] : texts) {
    const auto encode = [&tokenizer, &bad = text] { Plain(*tokenizer, bad); };
    EXPECT_EQ(Refusal(encode), "the text is not valid UTF-8 at byte " + std::to_string(byte));
  }
}

TEST(HostileText, IdsOutOfRange) {
  const auto tokenizer = FromJson(ByteLevelJson());
  EXPECT_EQ(Refusal([&] { tokenizer->TokenBytes(265); }), "token id 265 is out of range: expected 0 .. 264");
  EXPECT_EQ(Refusal([&] { tokenizer->Decode(Ids{-1}); }), "token id -1 is out of range: expected 0 .. 264");
  EXPECT_TRUE(Refusal([&] { tokenizer->TokenText(1 << 30); }).starts_with("token id 1073741824"));
  StreamDecoder stream(*tokenizer);
  Refusal([&] { stream.Push(-1); });
}

// A model whose vocabulary is padded may generate ids that its tokenizer does not have.
TEST(HostileText, IdsBeyondTheVocabularyStreamAsNothing) {
  const auto tokenizer = FromJson(ByteLevelJson());
  StreamDecoder stream(*tokenizer);
  EXPECT_EQ(stream.Push(0xC3), "");
  EXPECT_EQ(stream.Push(265), "");
  EXPECT_EQ(stream.Push(1 << 30), "");
  EXPECT_EQ(stream.Push(0xA9), "\xC3\xA9");
}

TEST(HostileFolder, NoTokenizer) {
  const TempDir folder;
  EXPECT_EQ(Refusal([&] { LoadTokenizer(folder.path()); }),
            folder.path().string() + ": expected tokenizer.json or tokenizer.model, found neither");
}

TEST(HostileFolder, FilesOfOtherKinds) {
  const TempDir folder;
  const std::string where = (folder / "tokenizer.model").string();
  WriteFile(folder / "tokenizer.model", "");
  EXPECT_EQ(Refusal([&] { LoadTokenizer(folder.path()); }), where + ": not a SentencePiece model: it has no pieces");
  WriteFile(folder / "tokenizer.model", "version https://git-lfs.github.com/spec/v1\noid sha256:00\n");
  EXPECT_EQ(Refusal([&] { LoadTokenizer(folder.path()); }),
            where + ": this is a Git LFS pointer, not the file it points to; git lfs pull in its folder fetches that");
}

TEST(HostileTiktoken, BrokenLines) {
  EXPECT_EQ(TiktokenRefusal("IQ==\n"), "t.model line 1: expected a base64 token, a space and a rank, got \"IQ==\"");
  EXPECT_EQ(TiktokenRefusal("IQ== 0\nI!== 1\n"), "t.model line 2: \"I!==\" is not base64");
  EXPECT_EQ(TiktokenRefusal("IQ= 0\n"), "t.model line 1: \"IQ=\" is not base64");
  EXPECT_EQ(TiktokenRefusal("IR== 0\n"), "t.model line 1: \"IR==\" is not base64");  // bits beyond the last byte
  EXPECT_EQ(TiktokenRefusal(" 0\n"), "t.model line 1: \"\" is not base64");
  EXPECT_EQ(TiktokenRefusal(""), "t.model: expected lines of tokens, got an empty file");
}

TEST(HostileTiktoken, RanksWithGaps) {
  EXPECT_EQ(TiktokenRefusal("IQ== 0\nIg== 2\n"), "t.model line 2: expected rank 1, got \"2\"");
  EXPECT_EQ(TiktokenRefusal("IQ== 0\nIg== -1\n"), "t.model line 2: expected rank 1, got \"-1\"");
  EXPECT_EQ(TiktokenRefusal("IQ== 0\nIg== 99999999999999999999\n"),
            "t.model line 2: expected rank 1, got \"99999999999999999999\"");
  EXPECT_EQ(TiktokenRefusal("IQ== 0x\n"), "t.model line 1: expected rank 0, got \"0x\"");
}

TEST(HostileTiktoken, DuplicateAndMissingTokens) {
  EXPECT_EQ(TiktokenRefusal(TiktokenLines() + Base64("he") + " 259\n"),
            "t.model: ranks 256 and 259 are the same token \"he\"");
  EXPECT_EQ(TiktokenRefusal("IQ== 0\n"), "t.model: no token for the single byte 0");
}

TEST(HostileSentencePiece, EveryTruncation) {
  const std::string file = SentencePieceFile({});
  for (size_t size = 1; size < file.size(); ++size) {
    ASSERT_EQ(Refusal([&] { MakeSentencePieceTokenizer(file.substr(0, size), "t.model", {}); }),
              "t.model: not a SentencePiece model, or a truncated one")
        << size;
  }
}

TEST(HostileSentencePiece, BadPieces) {
  SentencePieceModel model;
  model.pieces = SentencePiecePieces();
  model.pieces[kA].text = "b";
  EXPECT_TRUE(ModelRefusal(model).starts_with("t.model: not a usable SentencePiece model"));
  model.pieces[kA].text = "";
  EXPECT_EQ(ModelRefusal(model), "t.model: piece 260 is empty");
  model.pieces[kA].text = std::string("a\0", 2);
  EXPECT_EQ(ModelRefusal(model), "t.model: piece 260 has a zero byte");
  model.pieces[kA].text = "\xff";
  EXPECT_EQ(ModelRefusal(model), "t.model: piece 260 is not valid UTF-8 at byte 0");
  model.pieces[kA] = {"a", std::numeric_limits<float>::quiet_NaN()};
  EXPECT_EQ(ModelRefusal(model), "t.model: piece 260: expected a finite score, got infinity or NaN");
}

TEST(HostileSentencePiece, KindsThatAreNotLlama) {
  SentencePieceModel model;
  model.model_type = 1;
  EXPECT_EQ(ModelRefusal(model), "t.model: expected a BPE model (type 2), got type 1");
  model = {};
  model.charsmap = "rules";
  EXPECT_EQ(ModelRefusal(model), "t.model: models with compiled normalization rules are not supported");
  model = {};
  model.extra = std::string("\x12\x03\xc0\x01\x01", 5);  // trainer_spec { treat_whitespace_as_suffix: true }
  EXPECT_EQ(ModelRefusal(model), "t.model: models that write white space as a suffix are not supported");
}

TEST(HostileJson, NotJson) {
  const auto refusal = [](std::string_view text) {
    return Refusal([&] { MakeHuggingFaceTokenizer(text, "t.json", {}); });
  };
  EXPECT_EQ(refusal("{\"model\": "), "t.json: expected JSON, got something else at byte 11");
  EXPECT_EQ(refusal("[]"), "t.json: expected an object, got an array");
  EXPECT_EQ(refusal(std::string(100, '[')), "t.json: expected JSON nested at most 32 deep, got more");
  EXPECT_EQ(refusal("{}"), "t.json: model is missing");
}

TEST(HostileJson, TwoTokensOneIdAndOneTokenTwice) {
  json file = SentencePieceJson();
  file["model"]["vocab"]["zz"] = kA;
  EXPECT_EQ(JsonRefusal(file), "tokenizer.json: model: vocab: \"zz\": id 260 is already that of \"a\"");
  std::string text = SentencePieceJson().dump();
  text.insert(text.find("\"ab\":"), "\"ab\":7000,");
  EXPECT_EQ(Refusal([&] { MakeHuggingFaceTokenizer(text, "t.json", {}); }), "t.json: key \"ab\" is given twice");
}

TEST(HostileJson, IdsOutOfRange) {
  for (const json& id : {json(-1), json(kMaxTokenId + 1), json(uint64_t{1} << 63)}) {
    json file = SentencePieceJson();
    file["model"]["vocab"]["zz"] = id;
    EXPECT_EQ(JsonRefusal(file),
              "tokenizer.json: model: vocab: \"zz\": expected a token id in 0 .. 1048575, got " + id.dump());
  }
  json file = SentencePieceJson();
  file["model"]["vocab"]["zz"] = 1.5;
  EXPECT_EQ(JsonRefusal(file), "tokenizer.json: model: vocab: \"zz\": expected a token id, got a fraction");
  file = SentencePieceJson();
  file["post_processor"]["special_tokens"]["<s>"]["ids"] = {5000};
  EXPECT_EQ(JsonRefusal(file), "tokenizer.json: post_processor: expected a token id below 266, got 5000");
}

TEST(HostileJson, BadMerges) {
  const auto refusal = [](const json& merge) {
    json file = SentencePieceJson();
    file["model"]["merges"][1] = merge;
    return JsonRefusal(file);
  };
  EXPECT_EQ(refusal("a zz"), "tokenizer.json: model: merges[1]: \"azz\" is not in the vocabulary");
  EXPECT_EQ(refusal("b a"), "tokenizer.json: model: merges[1]: \"ba\" is not in the vocabulary");
  for (const json& merge : {json("ab"), json("a b a"), json(" b"), json(7), json({"a"}), json({"a", 1})}) {
    EXPECT_EQ(refusal(merge), "tokenizer.json: model: merges[1]: expected two tokens, as \"left right\" or a list");
  }
}

TEST(HostileJson, BadPattern) {
  json file = ByteLevelJson();
  json& split = file["pre_tokenizer"]["pretokenizers"][0];
  split["pattern"]["Regex"] = "(?:a";
  EXPECT_TRUE(JsonRefusal(file).starts_with("tokenizer.json: pre_tokenizer: the pattern \"(?:a\" does not compile: "));
  split["pattern"] = {{"Regex", "(a+)+$"}};  // exponential
  const auto tokenizer = FromJson(file);
  EXPECT_EQ(Refusal([&] { Plain(*tokenizer, std::string(64, 'a') + "b"); }),
            "tokenizer.json: pre_tokenizer: splitting the text failed: match limit exceeded");
  split["pattern"] = 7;
  EXPECT_EQ(JsonRefusal(file), "tokenizer.json: pre_tokenizer: pattern: expected an object, got an integer");
  split["pattern"] = {{"Regex", std::string(1 << 17, 'a')}};
  EXPECT_EQ(JsonRefusal(file), "tokenizer.json: pre_tokenizer: the pattern has 131072 bytes, more than 65536");
}

// One match is cheap enough; there is one at every character.
TEST(HostileJson, PatternThatIsSlowEverywhere) {
  json file = ByteLevelJson();
  file["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"Regex", "a(?=(?:a?){18}b|a|$)"}};
  const auto tokenizer = FromJson(file);
  EXPECT_EQ(Refusal([&] { Plain(*tokenizer, std::string(2000, 'a')); }),
            "tokenizer.json: pre_tokenizer: splitting the text failed: match limit exceeded");
}

TEST(HostileJson, LongTextsAndRunsOfSpaceStayWithinTheLimits) {
  const auto tokenizer = FromJson(ByteLevelJson());
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "hell he, ";
  for (const size_t run : {5000, 50000}) text += std::string(run, ' ') + "he" + std::string(run, '\n') + "ll";
  EXPECT_EQ(tokenizer->Decode(Plain(*tokenizer, text)), text);
}

// Every step replaces each a by eight.
TEST(HostileJson, ReplacementsThatMultiply) {
  const auto steps = [](const char* list, int count) {
    json sequence = {{"type", "Sequence"}, {list, json::array()}};
    for (int i = 0; i < count; ++i) {
      sequence[list].push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaaaaaa"}});
    }
    return sequence;
  };
  json normalizer = SentencePieceJson();
  normalizer["normalizer"] = steps("normalizers", 14);
  const auto tokenizer = FromJson(normalizer);
  EXPECT_NE(Refusal([&] { Plain(*tokenizer, "a"); }).find(" makes more than 65552 bytes of "), std::string::npos);
  EXPECT_GT(Plain(*tokenizer, "bb").size(), 0u);
  json decoder = SentencePieceJson();
  decoder["decoder"] = steps("decoders", 14);
  const std::string refusal = JsonRefusal(decoder);
  EXPECT_TRUE(refusal.starts_with("tokenizer.json: model: vocab: \"")) << refusal;
  EXPECT_NE(refusal.find(" makes more than "), std::string::npos) << refusal;
  normalizer["normalizer"] = steps("normalizers", 33);
  EXPECT_EQ(JsonRefusal(normalizer), "tokenizer.json: normalizer: expected at most 32 steps, got more");
  decoder["decoder"] = steps("decoders", 33);
  EXPECT_EQ(JsonRefusal(decoder), "tokenizer.json: decoder: expected at most 32 steps, got more");
}

TEST(HostileJson, KindsThatAreNotLlama) {
  const auto refusal = [](const char* pointer, const json& value) {
    json file = SentencePieceJson();
    file[json::json_pointer(pointer)] = value;
    return JsonRefusal(file);
  };
  EXPECT_EQ(refusal("/model/type", "Unigram"), "tokenizer.json: model: type: expected BPE, got \"Unigram\"");
  EXPECT_EQ(refusal("/model/dropout", 0.1),
            "tokenizer.json: model: dropout makes encoding random and is not supported");
  EXPECT_EQ(refusal("/model/end_of_word_suffix", "</w>"), "tokenizer.json: model: end_of_word_suffix is not supported");
  EXPECT_EQ(refusal("/normalizer", json{{"type", "NFKC"}}),
            "tokenizer.json: normalizer: the type \"NFKC\" is not supported (Sequence, Prepend, Replace and NFC are)");
  EXPECT_TRUE(refusal("/pre_tokenizer", json{{"type", "BertPreTokenizer"}})
                  .starts_with("tokenizer.json: pre_tokenizer: the type \"BertPreTokenizer\" is not"));
  EXPECT_TRUE(refusal("/decoder", json{{"type", "WordPiece"}})
                  .starts_with("tokenizer.json: decoder: the type \"WordPiece\" is"));
  EXPECT_TRUE(refusal("/post_processor", json{{"type", "BertProcessing"}})
                  .starts_with("tokenizer.json: post_processor: the type \"BertProcessing\" is no"));
  EXPECT_EQ(refusal("/decoder", json{{"type", "ByteLevel"}}),
            "tokenizer.json: expected ByteLevel in both pre_tokenizer and decoder or in neither");
  EXPECT_EQ(refusal("/added_tokens/0/single_word", true),
            "tokenizer.json: added_tokens[0]: single_word is not supported");
}

TEST(HostileJson, WrongTypes) {
  const std::pair<const char*, const char*> cases[] = {
      {"/model", "model: expected an object"},
      {"/model/vocab", "model: vocab: expected an object"},
      {"/model/merges", "model: merges: expected a list"},
      {"/model/unk_token", "model: unk_token: expected a string"},
      {"/model/byte_fallback", "model: byte_fallback: expected true or false"},
      {"/added_tokens", "added_tokens: expected a list"},
      {"/added_tokens/1", "added_tokens[1]: expected an object"},
      {"/added_tokens/1/content", "added_tokens[1]: content: expected a string"},
      {"/normalizer", "normalizer: expected an object"},
      {"/normalizer/normalizers", "normalizer: normalizers: expected a list"},
      {"/normalizer/normalizers/0/prepend", "normalizer: prepend: expected a string"},
      {"/decoder/decoders", "decoder: decoders: expected a list"},
      {"/pre_tokenizer", "pre_tokenizer: expected an object"},
      {"/post_processor/single", "post_processor: single: expected a list"},
      {"/post_processor/special_tokens", "post_processor: special_tokens: expected an object"},
  };
  for (const auto& [pointer, expected] : cases) {
    json file = SentencePieceJson();
    file[json::json_pointer(pointer)] = 7;
    EXPECT_EQ(JsonRefusal(file), "tokenizer.json: " + std::string(expected) + ", got an integer");
  }
  json file = SentencePieceJson();
  file["added_tokens"][1]["id"] = "one";
  EXPECT_EQ(JsonRefusal(file), "tokenizer.json: added_tokens[1]: id: expected a token id, got a string");
}

TEST(HostileJson, AddedTokensThatContradict) {
  json file = SentencePieceJson();
  file["added_tokens"][1]["content"] = "</s>";
  EXPECT_EQ(JsonRefusal(file), "tokenizer.json: added token \"</s>\" has two ids, 1 and 2");
  file = SentencePieceJson();
  file["added_tokens"][2]["id"] = 1;
  EXPECT_EQ(JsonRefusal(file), "tokenizer.json: id 1 is both \"<s>\" and \"</s>\"");
  file = SentencePieceJson();
  file["added_tokens"][2]["content"] = "";
  EXPECT_EQ(JsonRefusal(file), "tokenizer.json: added_tokens[2]: content is missing");
}

TEST(HostileSettings, WrongTypes) {
  EXPECT_EQ(ConfigRefusal("[]"), "c.json: expected an object, got an array");
  EXPECT_EQ(ConfigRefusal(R"({"add_bos_token": "yes"})"),
            "c.json: add_bos_token: expected true or false, got a string");
  EXPECT_EQ(ConfigRefusal(R"({"bos_token": 1})"), "c.json: bos_token: expected a string, got an integer");
  EXPECT_EQ(ConfigRefusal(R"({"chat_template": 1})"), "c.json: chat_template: expected a list, got an integer");
  EXPECT_EQ(ConfigRefusal(R"({"added_tokens_decoder": {"x": {}}})"),
            "c.json: added_tokens_decoder: expected token ids in 0 .. 1048575 as keys, got \"x\"");
  EXPECT_EQ(ConfigRefusal(R"({"added_tokens_decoder": {"9999999": {}}})"),
            "c.json: added_tokens_decoder: expected token ids in 0 .. 1048575 as keys, got \"9999999\"");
  EXPECT_EQ(ConfigRefusal(R"({"added_tokens_decoder": {"7": {}}})"),
            "c.json: added_tokens_decoder: 7: content is missing");
}

TEST(HostileSettings, NamesAndIdsThatAreNoTokens) {
  TokenizerSettings settings;
  settings.where = "folder";
  settings.bos_token = "<nope>";
  EXPECT_EQ(JsonRefusal(SentencePieceJson(), settings),
            "folder: bos_token is \"<nope>\", which the tokenizer does not have");
  settings = {};
  ReadGenerationConfig(R"({"eos_token_id": [2, 500]})", "g.json", settings);
  settings.where = "folder";
  EXPECT_EQ(JsonRefusal(SentencePieceJson(), settings), "folder: eos_token_id: expected a token id below 266, got 500");
  EXPECT_EQ(Refusal([&] { ReadGenerationConfig(R"({"eos_token_id": "x"})", "g.json", settings); }),
            "g.json: eos_token_id: expected a token id, got a string");
}

}  // namespace
}  // namespace stoch::test
