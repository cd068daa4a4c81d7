// SPDX-License-Identifier: Apache-2.0
// Against reference data: conformance vectors, recorded prompts, WikiText, and the kinds against each other.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "kernels/math/random.h"
#include "loader/tokenizer/kinds.h"
#include "loader/tokenizer/unicode/nfc.h"
#include "tests/loader/tokenizer_samples.h"
#include "tests/support/shared_folder.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

using nlohmann::json;

std::vector<std::string> VectorTexts(const std::string& content) {
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::vector<std::string> texts;
  size_t begin = 0;
  for (size_t end; (end = content.find(separator, begin)) != std::string::npos; begin = end + separator.size()) {
    texts.push_back(content.substr(begin, end - begin));
  }
  return texts;
}

std::vector<Ids> VectorIds(const std::string& content) {
  std::vector<Ids> all;
  std::istringstream lines(content);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream numbers(line);
    Ids ids;
    for (int32_t id; numbers >> id;) ids.push_back(id);
    all.push_back(ids);
  }
  return all;
}

// Texts of random pieces of a corpus, of random code points, and of white space, which is where tokenizers disagree.
std::vector<std::string> RandomTexts(const std::string& corpus, int count) {
  uint64_t position = 0;
  const auto pick = [&](uint64_t bound) { return RandomBits(7, 0, position++) % bound; };
  const auto append = [](std::string& text, uint64_t code) {
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else if (code < 0x800) {
      text += {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
    } else {
      text += {static_cast<char>(0xe0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 63)),
               static_cast<char>(0x80 | (code & 63))};
    }
  };
  std::vector<std::string> texts;
  for (int i = 0; i < count; ++i) {
    std::string text;
    for (uint64_t part = 0, parts = 1 + pick(4); part < parts; ++part) {
      const uint64_t kind = pick(4);
      if (kind == 0) {
        size_t begin = pick(corpus.size() - 300);
        while ((corpus[begin] & 0xc0) == 0x80) ++begin;
        size_t end = begin + pick(200);
        while ((corpus[end] & 0xc0) == 0x80) ++end;
        text += corpus.substr(begin, end - begin);
      }
      for (uint64_t n = kind == 0 ? 0 : pick(20); n > 0; --n) {
        constexpr uint64_t kSpaces[] = {' ', ' ', ' ', '\n', '\t', '\r', 0xa0, 0x85, 0x3000, 0x2028, 'x', '1'};
        if (kind == 1) append(text, kSpaces[pick(std::size(kSpaces))]);
        if (kind == 2) append(text, 32 + pick(95));
        if (kind == 3) append(text, pick(2) == 0 ? 0xa0 + pick(0xd700) : 0xe000 + pick(0x2000));
      }
    }
    texts.push_back(text);
  }
  return texts;
}

void ExpectVectors(const std::string& name) {
  const std::filesystem::path folder = SharedFolder() / "tokenizers";
  const auto tokenizer = LoadTokenizer(folder / name);
  const auto texts = VectorTexts(ReadFile(folder / "vectors" / (name + ".inp")));
  const auto expected = VectorIds(ReadFile(folder / "vectors" / (name + ".out")));
  ASSERT_EQ(texts.size(), 46u);
  ASSERT_EQ(expected.size(), 46u);
  for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(Plain(*tokenizer, texts[i]), expected[i]) << texts[i];
}

TEST(Reference, Llama2Vectors) {
  STOCH_REQUIRE_SHARED();
  ExpectVectors("llama2");
}

TEST(Reference, Llama3Vectors) {
  STOCH_REQUIRE_SHARED();
  ExpectVectors("llama3");
}

// Texts in any normalization form, with special tokens among them; ids of the NFC text.
TEST(Reference, Qwen2Vectors) {
  STOCH_REQUIRE_SHARED();
  const std::filesystem::path folder = SharedFolder() / "tokenizers";
  const auto texts = VectorTexts(ReadFile(folder / "vectors/qwen2-tiny.inp"));
  const auto expected = VectorIds(ReadFile(folder / "vectors/qwen2-tiny.out"));
  ASSERT_EQ(texts.size(), 40u);
  ASSERT_EQ(expected.size(), 40u);
  // Merges as pairs in the first two, as strings in the others.
  for (const char* name : {"tokenizers/qwen2-tiny", "models/tiny-qwen2", "models/tiny-qwen3", "models/tiny-mistral"}) {
    const auto tokenizer = LoadTokenizer(SharedFolder() / name);
    int normalized = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
      const Ids ids = Parsed(*tokenizer, texts[i]);
      EXPECT_EQ(ids, expected[i]) << name << ": " << texts[i];
      const bool plain = std::none_of(ids.begin(), ids.end(), [&](int32_t id) { return tokenizer->IsSpecial(id); });
      if (plain) {
        EXPECT_EQ(tokenizer->Decode(ids), ToNfc(texts[i])) << name;
      }
      normalized += ToNfc(texts[i]) != texts[i] ? 1 : 0;
    }
    EXPECT_GE(normalized, 11);
    EXPECT_EQ(tokenizer->Encode("a", {}), Plain(*tokenizer, "a"));  // no BOS, whatever config.json names
  }
}

TEST(Reference, WikiTextHas289076Ids) {
  STOCH_REQUIRE_SHARED();
  const auto tokenizer = LoadTokenizer(SharedFolder() / "tokenizers/llama3");
  const std::string text = ReadFile(SharedFolder() / "text/wiki.test.raw");
  const Ids ids = Plain(*tokenizer, text);
  EXPECT_EQ(ids.size(), 289076u);
  EXPECT_EQ(tokenizer->Encode(text, {}).size(), 289077u);
  EXPECT_EQ(tokenizer->Decode(ids), text);
}

TEST(Reference, WikiTextRoundTripsThroughSentencePiece) {
  STOCH_REQUIRE_SHARED();
  const auto tokenizer = LoadTokenizer(SharedFolder() / "tokenizers/llama2");
  const std::string text = ReadFile(SharedFolder() / "text/wiki.test.raw");
  EXPECT_EQ(tokenizer->Decode(Plain(*tokenizer, text)), text);
}

// The prompts recorded with Hugging Face transformers.
TEST(Reference, RecordedPrompts) {
  STOCH_REQUIRE_SHARED();
  for (const std::string model : {"stories260K", "babyllama-936K", "TinyStories-656K"}) {
    const auto tokenizer = LoadTokenizer(SharedFolder() / "models" / model);
    const std::string file = ReadFile(SharedFolder() / "goldens" / ("llama_" + model + "_golden.safetensors"));
    uint64_t header_size = 0;
    std::memcpy(&header_size, file.data(), sizeof(header_size));
    const json header = json::parse(file.substr(8, header_size));
    const json texts = json::parse(header["__metadata__"]["texts"].get<std::string>());
    ASSERT_EQ(texts.size(), 3u);
    for (size_t prompt = 0; prompt < texts.size(); ++prompt) {
      const json& tensor = header["exact." + std::to_string(prompt) + ".ids"];
      ASSERT_EQ(tensor["dtype"], "I32");
      const size_t begin = tensor["data_offsets"][0], end = tensor["data_offsets"][1];
      Ids recorded((end - begin) / sizeof(int32_t));
      std::memcpy(recorded.data(), file.data() + 8 + header_size + begin, end - begin);
      EXPECT_EQ(tokenizer->Encode(texts[prompt].get<std::string>(), {}), recorded) << model << " " << prompt;
      EXPECT_EQ(tokenizer->eos_ids(), (Ids{2}));
    }
  }
}

TEST(Reference, TiktokenAndItsTokenizerJsonAgree) {
  STOCH_REQUIRE_SHARED();
  const std::string lines = ReadFile(SharedFolder() / "tokenizers/llama3/tokenizer.model");
  const auto tiktoken = MakeTiktokenTokenizer(lines, "tokenizer.model", {});
  const auto byte_level = MakeHuggingFaceTokenizer(ByteLevelJsonOf(lines), "tokenizer.json", {});
  for (const std::string& text : RandomTexts(ReadFile(SharedFolder() / "text/wiki.test.raw"), 3000)) {
    const Ids ids = Plain(*tiktoken, text);
    ASSERT_EQ(Plain(*byte_level, text), ids) << text;
    ASSERT_EQ(tiktoken->Decode(ids), text);
    StreamDecoder stream(*byte_level);
    std::string streamed;
    for (const int32_t id : ids) {
      const std::string part = stream.Push(id);
      const bool whole = part.find("\ufffd") == std::string::npos || text.find("\ufffd") != std::string::npos;
      ASSERT_TRUE(whole) << text;
      streamed += part;
    }
    ASSERT_EQ(streamed + stream.Flush(), text);
  }
}

TEST(Reference, SentencePieceRoundTrips) {
  STOCH_REQUIRE_SHARED();
  const auto tokenizer = LoadTokenizer(SharedFolder() / "tokenizers/llama2");
  for (const std::string& text : RandomTexts(ReadFile(SharedFolder() / "text/tinystories_val.txt"), 3000)) {
    ASSERT_EQ(tokenizer->Decode(Plain(*tokenizer, text)), text);
  }
}

}  // namespace
}  // namespace stoch::test
