// SPDX-License-Identifier: Apache-2.0
// SentencePiece and tiktoken models by hand, and which files of a folder count.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "loader/tokenizer/kinds.h"
#include "loader/tokenizer/regex.h"
#include "tests/loader/tokenizer_samples.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

std::unique_ptr<Tokenizer> FromModel(const SentencePieceModel& model = {}, const TokenizerSettings& settings = {}) {
  return MakeSentencePieceTokenizer(SentencePieceFile(model), "tokenizer.model", settings);
}

TEST(SentencePiece, EncodesAsItsTokenizerJsonDoes) {
  const auto model = FromModel();
  const auto json = FromJson(SentencePieceJson());
  EXPECT_EQ(model->kind(), "sentencepiece");
  EXPECT_EQ(model->vocab_size(), 266);
  for (const char* text : {"", " ", "a", "ab", " ab", "ab  ab", "a b ab   a ", "aé\n", "▁a ▁", "<s>", "abababab"}) {
    EXPECT_EQ(Plain(*model, text), Plain(*json, text)) << text;
  }
}

TEST(SentencePiece, BosEosAndSpecials) {
  const auto tokenizer = FromModel();
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->eos_ids(), (Ids{2}));
  EXPECT_EQ(tokenizer->pad_id(), std::nullopt);
  EXPECT_EQ(tokenizer->Encode("a", {}), (Ids{1, kSpaceA}));
  EXPECT_EQ(tokenizer->Decode(Ids{1, kSpaceA, kSpaceAb, 2}), "a ab");
  EXPECT_TRUE(tokenizer->IsSpecial(0));
}

TEST(SentencePiece, LegacyPutsASpaceBehindSpecialTokens) {
  TokenizerSettings settings;
  EXPECT_EQ(Parsed(*FromModel({}, settings), "a</s>a"), (Ids{kSpaceA, 2, kSpaceA}));
  settings.legacy = false;
  EXPECT_EQ(Parsed(*FromModel({}, settings), "a</s>a"), (Ids{kSpaceA, 2, kA}));
  settings.add_prefix_space = false;
  EXPECT_EQ(Parsed(*FromModel({}, settings), "a</s>a"), (Ids{kA, 2, kA}));
  EXPECT_EQ(FromModel({}, settings)->Decode(Ids{kSpaceA}), " a");
}

TEST(SentencePiece, SpacesAsTheModelSays) {
  SentencePieceModel model;
  model.add_dummy_prefix = false;
  EXPECT_EQ(Plain(*FromModel(model), "a  a"), (Ids{kA, kSpace, kSpaceA}));
  model.add_dummy_prefix = true;
  model.remove_extra_whitespaces = true;
  EXPECT_EQ(Plain(*FromModel(model), "  a   a  "), (Ids{kSpaceA, kSpaceA}));
  EXPECT_EQ(Plain(*FromModel(model), "   "), (Ids{}));
}

TEST(SentencePiece, PiecesAcrossWordsAreFound) {
  // With such a piece words cannot be encoded one by one.
  SentencePieceModel model;
  model.pieces = SentencePiecePieces();
  model.pieces.push_back({"b▁", -0.5});
  EXPECT_EQ(Plain(*FromModel(model), "ab a"), (Ids{kSpaceA, 266, kA}));
  TokenizerSettings settings;
  settings.legacy = false;
  EXPECT_EQ(Parsed(*FromModel(model, settings), "</s>b a"), (Ids{2, 266, kA}));
}

TEST(SentencePiece, AddedTokensOfTheConfig) {
  TokenizerSettings settings;
  ReadTokenizerConfig(R"({"add_bos_token": false, "bos_token": {"content": "<s>"}, "eos_token": "<|im_end|>",
    "pad_token": "[PAD]", "added_tokens_decoder": {"266": {"content": "<|im_end|>", "special": true},
    "267": {"content": "word", "lstrip": true}}})",
                      "tokenizer_config.json", settings);
  const auto tokenizer = FromModel({}, settings);
  EXPECT_EQ(tokenizer->vocab_size(), 268);
  EXPECT_EQ(tokenizer->eos_ids(), (Ids{266}));
  EXPECT_EQ(tokenizer->pad_id(), std::nullopt);  // a token that was never made
  EXPECT_EQ(tokenizer->Encode("a", {}), (Ids{kSpaceA}));
  EXPECT_EQ(Parsed(*tokenizer, "a<|im_end|>a word"), (Ids{kSpaceA, 266, kSpaceA, 267}));
  EXPECT_EQ(tokenizer->Decode(Ids{266, 267}), "word");
}

TEST(Tiktoken, MergesByRank) {
  const auto tokenizer = MakeTiktokenTokenizer(TiktokenLines(), "tokenizer.model", {});
  EXPECT_EQ(tokenizer->kind(), "tiktoken");
  EXPECT_EQ(tokenizer->vocab_size(), 259 + 256);
  EXPECT_EQ(tokenizer->Encode("hello hell", {}), (Ids{259, 258, 'o', ' ', 258}));
  EXPECT_EQ(tokenizer->bos_id(), 259);
  EXPECT_EQ(tokenizer->eos_ids(), (Ids{260, 268}));
  EXPECT_EQ(tokenizer->FindSpecial("<|start_header_id|>"), 265);
  EXPECT_EQ(tokenizer->FindSpecial("<|eot_id|>"), 268);
  EXPECT_EQ(tokenizer->FindSpecial("<|reserved_special_token_5|>"), 269);
  EXPECT_EQ(tokenizer->FindSpecial("<|reserved_special_token_250|>"), 514);
  EXPECT_EQ(Parsed(*tokenizer, "he<|eot_id|>"), (Ids{256, 268}));
  EXPECT_EQ(tokenizer->Decode(Ids{259, 258, 'o', 268}), "hello");
}

TEST(Tiktoken, TheConfigNamesSpecialTokens) {
  TokenizerSettings settings;
  ReadTokenizerConfig(R"({"added_tokens_decoder": {"267": {"content": "<|eom_id|>", "special": true}}})", "config",
                      settings);
  const auto tokenizer = MakeTiktokenTokenizer(TiktokenLines(), "tokenizer.model", settings);
  EXPECT_EQ(tokenizer->FindSpecial("<|eom_id|>"), 267);
  EXPECT_EQ(tokenizer->FindSpecial("<|reserved_special_token_4|>"), std::nullopt);
}

TEST(Tiktoken, LastLineMayLackItsNewline) {
  std::string lines = TiktokenLines();
  lines.pop_back();
  EXPECT_EQ(Plain(*MakeTiktokenTokenizer(lines, "tokenizer.model", {}), "hell"), (Ids{258}));
}

TEST(TokenizerRegex, LongRunsOfSpaceAreWithinTheLimits) {
  // PCRE2's own limit of steps refuses a run of 10 million.
  const Regex pattern(R"(\s*[\r\n]+|\s+(?!\S)|\s+)", "pattern");
  std::string text;
  text.resize(12'000'000, ' ');
  text += 'x';
  const auto spans = pattern.FindAll(text);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].end, 11'999'999u);
}

TEST(Tokenizer, ThreadsMayShareOne) {
  std::vector<std::unique_ptr<Tokenizer>> tokenizers;
  tokenizers.push_back(FromModel());
  tokenizers.push_back(FromJson(ByteLevelJson()));
  tokenizers.push_back(MakeTiktokenTokenizer(TiktokenLines(), "tokenizer.model", {}));
  std::string text;
  for (int i = 0; i < 200; ++i) text += "hello ab  ab\n" + std::to_string(i);
  for (const auto& tokenizer : tokenizers) {
    const Ids expected = Plain(*tokenizer, text);
    std::vector<std::thread> threads;
    std::atomic<int> same = 0;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] { same += Plain(*tokenizer, text) == expected && tokenizer->Decode(expected) == text; });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(same, 4);
  }
}

TEST(TokenizerFolder, TokenizerJsonGoesFirst) {
  const TempDir folder;
  WriteFile(folder / "tokenizer.model", TiktokenLines());
  EXPECT_EQ(LoadTokenizer(folder.path())->kind(), "tiktoken");
  WriteFile(folder / "tokenizer.model", SentencePieceFile({}));
  EXPECT_EQ(LoadTokenizer(folder.path())->kind(), "sentencepiece");
  WriteFile(folder / "tokenizer.json", SentencePieceJson().dump());
  EXPECT_EQ(LoadTokenizer(folder.path())->kind(), "tokenizer.json/bpe");
}

TEST(TokenizerFolder, SmallFilesAreRead) {
  const TempDir folder;
  WriteFile(folder / "tokenizer.json", ByteLevelJson().dump());
  WriteFile(folder / "generation_config.json", R"({"eos_token_id": [261, 264]})");
  WriteFile(folder / "special_tokens_map.json",
            R"({"eos_token": "<|eot_id|>", "pad_token": {"content": "<|end_of_text|>"}})");
  WriteFile(folder / "tokenizer_config.json",
            R"({"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]})");
  const auto tokenizer = LoadTokenizer(folder.path());
  EXPECT_EQ(tokenizer->eos_ids(), (Ids{kEot, kEnd}));
  EXPECT_EQ(tokenizer->pad_id(), kEnd);
  EXPECT_EQ(tokenizer->chat_template(), "D");
  WriteFile(folder / "tokenizer_config.json", R"({"eos_token": "<|end_of_text|>"})");  // the map goes before it
  EXPECT_EQ(LoadTokenizer(folder.path())->eos_ids(), (Ids{kEot, kEnd}));
  EXPECT_EQ(LoadTokenizer(folder.path())->pad_id(), kEnd);
  WriteFile(folder / "chat_template.jinja", "J");
  EXPECT_EQ(LoadTokenizer(folder.path())->chat_template(), "J");
  WriteFile(folder / "generation_config.json", R"({"eos_token_id": 264})");
  EXPECT_EQ(LoadTokenizer(folder.path())->eos_ids(), (Ids{kEot}));
}

}  // namespace
}  // namespace stoch::test
