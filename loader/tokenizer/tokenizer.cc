// SPDX-License-Identifier: Apache-2.0
#include "loader/tokenizer/tokenizer.h"

#include "kernels/base/error.h"
#include "loader/checkpoint/gguf/file.h"
#include "loader/file.h"
#include "loader/tokenizer/kinds.h"
#include "loader/tokenizer/limits.h"

namespace stoch {

std::unique_ptr<Tokenizer> LoadTokenizer(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (gguf::IsGgufPath(folder) && !std::filesystem::is_directory(folder, ignored)) {
    const MappedFile file(folder);
    return MakeGgufTokenizer(gguf::ParseHeader(file.bytes(), folder.string()).metadata);
  }
  const std::filesystem::path json = folder / "tokenizer.json";
  const std::filesystem::path model = folder / "tokenizer.model";
  const bool has_json = std::filesystem::exists(json);
  if (!has_json && !std::filesystem::exists(model)) {
    throw InvalidInput(folder.string() + ": expected tokenizer.json or tokenizer.model, found neither");
  }
  const std::filesystem::path& file = has_json ? json : model;
  const TokenizerSettings settings = LoadTokenizerSettings(folder);
  const std::string content = ReadSmallFile(file, kMaxTokenizerFileBytes);
  if (has_json) return MakeHuggingFaceTokenizer(content, file.string(), settings);
  if (LooksLikeTiktoken(content)) return MakeTiktokenTokenizer(content, file.string(), settings);
  return MakeSentencePieceTokenizer(content, file.string(), settings);
}

std::string StreamDecoder::Push(int32_t id) {
  std::string bytes = id < tokenizer_->vocab_size() ? tokenizer_->TokenBytes(id) : "";
  if (at_start_ && !bytes.empty()) {
    if (tokenizer_->strips_leading_space() && bytes.starts_with(' ')) bytes.erase(0, 1);
    at_start_ = false;
  }
  pending_ += bytes;
  std::string text;
  pending_.erase(0, AppendUtf8Lossy(pending_, false, text, tokenizer_->replacement()));
  return text;
}

std::string StreamDecoder::Flush() {
  std::string text;
  AppendUtf8Lossy(pending_, true, text, tokenizer_->replacement());
  pending_.clear();
  return text;
}

}  // namespace stoch
