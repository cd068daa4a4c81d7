// SPDX-License-Identifier: Apache-2.0
// Folders in which the files of a tokenizer say different things, against transformers (make_tokenizer_folders.py).
#include <gtest/gtest.h>

#include "tests/loader/tokenizer_samples.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

using nlohmann::json;

std::string FromBase64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<uint32_t>(kDigits.find(c));
    count += 6;
    if (count >= 8) bytes += static_cast<char>(bits >> (count -= 8));
  }
  return bytes;
}

// The file of a case: the golden's, with what changes.
json Changed(json base, const json& changes) {
  for (const auto& [key, value] : changes.items()) {
    if (key != "more") {
      base[key] = value;
      continue;
    }
    for (const json& token : value) base["added_tokens"].push_back(token);
  }
  return base;
}

class TokenizerFolders : public testing::Test {
 protected:
  const json golden_ = json::parse(ReadFile(std::filesystem::path(STOCH_GOLDEN_FOLDER) / "tokenizer_folders.json"));

  const json& Value(const json& row, size_t column) const { return golden_["values"][row[column].get<size_t>()]; }

  void Write(const json& row, const TempDir& folder) const {
    if (row[0] == -1) {
      WriteFile(folder / "tokenizer.model", FromBase64(golden_["tokenizer.model"].get<std::string>()));
    } else {
      WriteFile(folder / "tokenizer.json", Changed(golden_["tokenizer.json"], Value(row, 0)).dump());
    }
    for (size_t i = 0; i < golden_["files"].size(); ++i) {
      if (row[i + 1] != -1) WriteFile(folder / golden_["files"][i].get<std::string>(), Value(row, i + 1).dump());
    }
  }
  std::string Describe(const json& row) const {
    std::string text = row[0] == -1 ? "tokenizer.model" : "tokenizer.json " + Value(row, 0).dump().substr(0, 300);
    for (size_t i = 0; i < golden_["files"].size(); ++i) {
      if (row[i + 1] != -1) text += "\n" + golden_["files"][i].get<std::string>() + " " + Value(row, i + 1).dump();
    }
    return text;
  }
  // As in the golden: BOS, EOS, padding, the special tokens, the ids of each text.
  json Facts(const Tokenizer& tokenizer) const {
    const auto id = [](std::optional<int32_t> value) { return value ? json(*value) : json(); };
    json special = json::array();
    for (int32_t i = 0; i < tokenizer.vocab_size(); ++i) {
      if (tokenizer.IsSpecial(i)) special.push_back(i);
    }
    json ids = json::array();
    for (const json& text : golden_["texts"]) {
      ids.push_back(tokenizer.Encode(text.get<std::string>(), {.parse_special = true}));
    }
    const std::vector<int32_t> eos = tokenizer.eos_ids();
    return {id(tokenizer.bos_id()), eos.empty() ? json() : json(eos.front()), id(tokenizer.pad_id()), special, ids};
  }
};

TEST_F(TokenizerFolders, AreReadAsTransformersReadsThem) {
  size_t compared = 0, wrong = 0;
  for (const json& row : golden_["cases"]) {
    const json& expected = Value(row, row.size() - 1);
    const TempDir folder;
    Write(row, folder);
    json got;
    try {
      got = Facts(*LoadTokenizer(folder.path()));
    } catch (const std::exception& error) {
      got = error.what();
    }
    if (expected.is_null()) continue;  // transformers refuses it; here it must not crash
    ++compared;
    if (got == expected) continue;
    if (++wrong <= 10) ADD_FAILURE() << Describe(row) << "\ngot      " << got << "\nexpected " << expected;
  }
  EXPECT_EQ(wrong, 0u) << "of " << compared;
  EXPECT_GT(compared, 800u);
}

// A token at a time, as a server sends them.
std::string Streamed(const Tokenizer& tokenizer, const Ids& ids) {
  StreamDecoder stream(tokenizer);
  std::string text;
  for (const int32_t id : ids) text += stream.Push(id);
  return text + stream.Flush();
}

TEST_F(TokenizerFolders, BrokenCharactersAreThoseOfSentencePiece) {
  const TempDir folder;
  WriteFile(folder / "tokenizer.model", FromBase64(golden_["tokenizer.model"].get<std::string>()));
  const auto model = LoadTokenizer(folder.path());
  const auto file = FromJson(golden_["tokenizer.json"]);
  int broken = 0;
  for (const json& run : golden_["decoded"]) {
    const Ids ids = run[0].get<Ids>();
    const std::string expected = run[1].get<std::string>();
    for (const Tokenizer* tokenizer : {model.get(), file.get()}) {
      EXPECT_EQ(tokenizer->Decode(ids), expected) << run << tokenizer->kind();
      EXPECT_EQ(Streamed(*tokenizer, ids), expected) << run << tokenizer->kind();
    }
    broken += expected.find("\ufffd\ufffd") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(broken, 50);
}

}  // namespace
}  // namespace stoch::test
