// SPDX-License-Identifier: Apache-2.0
// Writes first corpora for the tokenizer fuzz targets: write_tokenizer_seeds FOLDER.
#include <filesystem>
#include <iostream>

#include "tests/loader/tokenizer_samples.h"
#include "tests/support/temp_dir.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: write_tokenizer_seeds FOLDER\n";
    return 2;
  }
  using namespace stoch::test;
  const std::filesystem::path folder = argv[1];
  for (const char* target : {"tokenizer_json", "tokenizer_model", "tokenizer_encode"}) {
    std::filesystem::create_directories(folder / target);
  }
  nlohmann::json metaspace = SentencePieceJson();
  metaspace["normalizer"] = nullptr;
  metaspace["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", true}};
  nlohmann::json small = SentencePieceJson();  // few tokens: most mutations hit structure
  small["model"]["vocab"] = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}, {"▁", 3}, {"a", 4}, {"▁a", 5}};
  small["model"]["merges"] = nlohmann::json::array({"▁ a"});
  WriteFile(folder / "tokenizer_json/sentencepiece", SentencePieceJson().dump());
  WriteFile(folder / "tokenizer_json/metaspace", metaspace.dump());
  WriteFile(folder / "tokenizer_json/byte_level", ByteLevelJson().dump());
  WriteFile(folder / "tokenizer_json/small", small.dump());
  WriteFile(folder / "tokenizer_json/config",
            R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": true, "legacy": false,
                "added_tokens_decoder": {"7": {"content": "x", "lstrip": true}}, "eos_token_id": [1, 2],
                "chat_template": [{"name": "default", "template": "t"}]})");
  SentencePieceModel few;
  few.pieces = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3}, {"▁", -1}, {"a", -2}, {"▁a", -3}, {"b", -4, 4}};
  few.byte_fallback = false;
  WriteFile(folder / "tokenizer_model/tiktoken", TiktokenLines());
  WriteFile(folder / "tokenizer_model/sentencepiece", SentencePieceFile({}));
  WriteFile(folder / "tokenizer_model/few", SentencePieceFile(few));
  WriteFile(folder / "tokenizer_encode/text", "hello hell ab  ab\n\n a'll 123 é€😀<s></s>▁");
  return 0;
}
