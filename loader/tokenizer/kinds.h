// The kinds of tokenizer, made from the content of their files.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "loader/tokenizer/settings.h"
#include "loader/tokenizer/tokenizer.h"

namespace stoch {

// Errors of all three: InvalidInput, one sentence beginning with `where`, for whatever is wrong with the content.

// What:   a tokenizer.json with a BPE model: SentencePiece-style with byte fallback, or byte-level.
// Source: huggingface/tokenizers 0.20 (tokenizer/mod.rs, models/bpe); kinds not found in Llama checkpoints are refused.
std::unique_ptr<Tokenizer> MakeHuggingFaceTokenizer(std::string_view content, const std::string& where,
                                                    const TokenizerSettings& settings);

// What:   a SentencePiece model (protobuf) of type BPE without normalization rules of its own.
// Source: google/sentencepiece, sentencepiece_model.proto; special tokens as Hugging Face's LlamaTokenizer treats them.
std::unique_ptr<Tokenizer> MakeSentencePieceTokenizer(const std::string& content, const std::string& where,
                                                      const TokenizerSettings& settings);

// What:   a tiktoken model: a line per token, base64 and rank; 256 special tokens follow, named as Llama-3 names them
//         unless the settings name them otherwise.
// Source: meta-llama/llama3, llama/tokenizer.py; openai/tiktoken, src/lib.rs.
std::unique_ptr<Tokenizer> MakeTiktokenTokenizer(std::string_view content, const std::string& where,
                                                 const TokenizerSettings& settings);

// Whether a tokenizer.model looks like text lines of tiktoken rather than a protobuf.
bool LooksLikeTiktoken(std::string_view content);

}  // namespace stoch
