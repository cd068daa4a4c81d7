// SPDX-License-Identifier: Apache-2.0
// Tokenizers in GGUF metadata: the same ids as from the files they were converted from.

#include <gtest/gtest.h>

#include <functional>
#include <sstream>

#include "tests/loader/gguf_samples.h"
#include "tests/loader/tokenizer_samples.h"
#include "tests/support/shared_folder.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

using nlohmann::json;

std::unique_ptr<Tokenizer> Load(const GgufBuilder& file) {
  const TempDir folder;
  WriteFile(folder / "m.gguf", file.Bytes());
  return LoadTokenizer(folder / "m.gguf");
}

TEST(GgufTokenizer, SentencePiece) {
  const auto tokenizer =
      Load(SampleGguf().String("tokenizer.chat_template", "T").Bool("tokenizer.ggml.add_bos_token", true));
  EXPECT_EQ(tokenizer->kind(), "sentencepiece");
  EXPECT_EQ(tokenizer->Encode("a ab", {}), (Ids{1, 6, 6, 5}));
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->eos_ids(), (Ids{2}));
  EXPECT_EQ(tokenizer->chat_template(), "T");
  EXPECT_TRUE(tokenizer->IsSpecial(2));
}

// Without token types, those of llama.cpp's defaults: bytes by name, <unk> 0, BOS 1, EOS 2.
TEST(GgufTokenizer, SentencePieceWithoutTypes) {
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<int32_t> types;
  for (const Piece& piece : SentencePiecePieces()) {
    tokens.push_back(piece.text);
    scores.push_back(piece.score);
    types.push_back(piece.type);
  }
  GgufBuilder bare;
  bare.String("tokenizer.ggml.model", "llama")
      .Strings("tokenizer.ggml.tokens", tokens)
      .F32s("tokenizer.ggml.scores", scores);
  GgufBuilder typed = bare;
  typed.I32s("tokenizer.ggml.token_type", types)
      .U32("tokenizer.ggml.bos_token_id", 1)
      .U32("tokenizer.ggml.eos_token_id", 2);
  const auto got = Load(bare);
  const auto expected = Load(typed);
  for (const char* text : {"a ab  b", "é\n", "</s>a<s>", "xyz \u4f60"}) {
    EXPECT_EQ(got->Encode(text, {}), expected->Encode(text, {})) << text;
    EXPECT_EQ(Parsed(*got, text), Parsed(*expected, text)) << text;
  }
  for (int32_t id = 0; id < got->vocab_size(); ++id) EXPECT_EQ(got->IsSpecial(id), expected->IsSpecial(id)) << id;
  EXPECT_EQ(got->bos_id(), 1);
  EXPECT_EQ(got->eos_ids(), (Ids{2}));
  const GgufBuilder named =
      GgufBuilder(bare).U32("tokenizer.ggml.bos_token_id", 2).U32("tokenizer.ggml.eos_token_id", 1);
  EXPECT_EQ(Load(named)->bos_id(), 2);
  EXPECT_EQ(Load(named)->Encode("a", {}), (Ids{2, kSpaceA}));
}

TEST(GgufTokenizer, IsThatOfTheFolder) {
  STOCH_REQUIRE_SHARED();
  const std::filesystem::path folder = SharedFolder() / "models/gguf";
  const auto file = LoadTokenizer(folder / "stories260K-Q4_0.gguf");
  const auto model = LoadTokenizer(folder / "stories260K-Q4_0");
  EXPECT_EQ(file->vocab_size(), model->vocab_size());
  EXPECT_EQ(file->eos_ids(), model->eos_ids());
  std::istringstream lines(ReadFile(SharedFolder() / "text/tinystories_val.txt").substr(0, 50000));
  // The folder's model drops extra spaces, which no key of the file says.
  for (std::string line; std::getline(lines, line);) {
    if (line.find("  ") != std::string::npos || line.ends_with(' ') || line.starts_with(' ')) continue;
    ASSERT_EQ(file->Encode(line, {}), model->Encode(line, {})) << line;
  }
  for (const std::string text : {"é\u4f60\U0001f642\t", "<s>a</s>"}) {
    EXPECT_EQ(file->Encode(text, {}), model->Encode(text, {})) << text;
    EXPECT_EQ(Parsed(*file, text), Parsed(*model, text)) << text;
  }
}

// A tokenizer.json in the words of GGUF.
GgufBuilder ByteLevelGguf(const json& file, const char* pre) {
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;
  const auto set = [&](size_t id, const std::string& token, int32_t type) {
    if (id >= tokens.size()) tokens.resize(id + 1), types.resize(id + 1, 5);
    tokens[id] = token;
    types[id] = type;
  };
  for (const auto& [token, id] : file["model"]["vocab"].items()) set(id, token, 1);
  for (const json& added : file["added_tokens"]) set(added["id"], added["content"], added["special"] ? 3 : 4);
  for (const json& merge : file["model"]["merges"]) {
    merges.push_back(merge.is_string() ? merge.get<std::string>()
                                       : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  GgufBuilder gguf;
  gguf.String("tokenizer.ggml.model", "gpt2").String("tokenizer.ggml.pre", pre);
  return gguf.Strings("tokenizer.ggml.tokens", tokens)
      .I32s("tokenizer.ggml.token_type", types)
      .Strings("tokenizer.ggml.merges", merges);
}

TEST(GgufTokenizer, ByteLevelOfLlama3) {
  GgufBuilder file = ByteLevelGguf(ByteLevelJson(), "llama-bpe");
  file.U32("tokenizer.ggml.bos_token_id", kBegin).U32("tokenizer.ggml.eos_token_id", kEot);
  const auto tokenizer = Load(file);
  EXPECT_EQ(tokenizer->Encode("hell", {}), (Ids{kBegin, kHell}));
  EXPECT_EQ(Parsed(*tokenizer, "hell<|eot_id|>"), (Ids{kHell, kEot}));
  EXPECT_EQ(tokenizer->eos_ids(), (Ids{kEot}));
  // A number is cut after three digits.
  EXPECT_EQ(Plain(*tokenizer, "1234").size(), 4u);
}

TEST(GgufTokenizer, ByteLevelOfQwen2) {
  STOCH_REQUIRE_SHARED();
  const std::filesystem::path folder = SharedFolder() / "tokenizers";
  const auto tokenizer = Load(ByteLevelGguf(json::parse(ReadFile(folder / "qwen2-tiny/tokenizer.json")), "qwen2"));
  const auto expected = LoadTokenizer(folder / "qwen2-tiny");
  std::istringstream lines(ReadFile(folder / "vectors/qwen2-tiny.inp"));
  int texts = 0;
  for (std::string line; std::getline(lines, line); ++texts) {
    EXPECT_EQ(Parsed(*tokenizer, line), Parsed(*expected, line)) << line;
  }
  EXPECT_GT(texts, 40);
}

TEST(GgufTokenizer, Refusals) {
  const auto refusal = [](const std::function<void(GgufBuilder&)>& edit) {
    GgufBuilder file = SampleGguf();
    edit(file);
    const std::string message = Refusal([&] { Load(file); });
    return message.substr(message.find("m.gguf: ") + 8);
  };
  const auto set = [](GgufBuilder& file, const char* key, const char* value) {
    file.Remove(key);
    file.String(key, value);
  };
  EXPECT_EQ(refusal([](GgufBuilder& file) { file.Remove("tokenizer.ggml.model"); }),
            "\"tokenizer.ggml.model\": is missing");
  EXPECT_EQ(refusal([&](GgufBuilder& file) { set(file, "tokenizer.ggml.model", "bert"); }),
            "\"tokenizer.ggml.model\": expected llama (SentencePiece) or gpt2 (byte-level), got \"bert\"");
  EXPECT_EQ(refusal([&](GgufBuilder& file) { set(file, "tokenizer.ggml.tokens", "bert"); }),
            "\"tokenizer.ggml.tokens\": expected an array, got a string");
  EXPECT_EQ(refusal([&](GgufBuilder& file) {
              set(file, "tokenizer.ggml.model", "gpt2");
              set(file, "tokenizer.ggml.pre", "viking");
            }),
            "\"tokenizer.ggml.pre\": expected one of llama-bpe, llama3, qwen2, tekken, gpt-2, got \"viking\"; give the "
            "model's own with --tokenizer");
  EXPECT_EQ(refusal([](GgufBuilder& file) {
              file.Remove("tokenizer.ggml.scores");
              file.F32s("tokenizer.ggml.scores", {1, 2});
            }),
            "\"tokenizer.ggml.scores\": expected one for each of 8 tokens, got 2");
  EXPECT_EQ(refusal([](GgufBuilder& file) {
              file.Remove("tokenizer.ggml.token_type");
              file.I32s("tokenizer.ggml.token_type", {2, 3, 3, 1, 1, 1, 1, 9});
            }),
            "\"tokenizer.ggml.token_type\": expected 1 to 6, got 9 for token 7");
  EXPECT_EQ(refusal([](GgufBuilder& file) {
              file.Remove("tokenizer.ggml.token_type");
              file.I32s("tokenizer.ggml.token_type", {2, 3});
            }),
            "\"tokenizer.ggml.token_type\": expected one for each of 8 tokens, got 2");
  EXPECT_EQ(refusal([](GgufBuilder& file) {
              file.Remove("tokenizer.ggml.bos_token_id");
              file.U32("tokenizer.ggml.bos_token_id", 8);
            }),
            "\"tokenizer.ggml.bos_token_id\": expected a token id below 8, got 8");
  EXPECT_EQ(refusal([](GgufBuilder& file) {
              file.Remove("tokenizer.ggml.tokens");
              file.Strings("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "\u2581", "a", "b", "\u2581a", "\xff"});
            }),
            "tokenizer.ggml.tokens[7] is not valid UTF-8 at byte 0");
  EXPECT_EQ(refusal([](GgufBuilder& file) {
              file.Remove("tokenizer.ggml.tokens");
              file.Strings("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "\u2581", "a", "b", "\u2581a", ""});
            }),
            "tokenizer.ggml.tokens[7]: expected a token, got none");
}

}  // namespace
}  // namespace stoch::test
