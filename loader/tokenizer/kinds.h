// SPDX-License-Identifier: Apache-2.0
// The kinds of tokenizer, made from the content of their files.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "loader/checkpoint/gguf/header.h"
#include "loader/tokenizer/settings.h"
#include "loader/tokenizer/tokenizer.h"

namespace stoch {

// Errors of all three: InvalidInput, one sentence beginning with `where`, for whatever is wrong with the content.

// A tokenizer.json with a BPE model: SentencePiece-style with byte fallback, or byte-level.
// Source: huggingface/tokenizers 0.20 (tokenizer/mod.rs, models/bpe); kinds not found in Llama checkpoints are refused.
std::unique_ptr<Tokenizer> MakeHuggingFaceTokenizer(std::string_view content, const std::string& where,
                                                    const TokenizerSettings& settings);

// A SentencePiece model (protobuf) of type BPE without normalization rules of its own.
// Source: google/sentencepiece, sentencepiece_model.proto; special tokens as Hugging Face's LlamaTokenizer treats them.
std::unique_ptr<Tokenizer> MakeSentencePieceTokenizer(const std::string& content, const std::string& where,
                                                      const TokenizerSettings& settings);

// A tiktoken model: a line per token, base64 and rank; 256 special tokens follow, named as Llama-3 names them unless
// the settings name them otherwise.
// Source: meta-llama/llama3, llama/tokenizer.py; openai/tiktoken, src/lib.rs.
std::unique_ptr<Tokenizer> MakeTiktokenTokenizer(std::string_view content, const std::string& where,
                                                 const TokenizerSettings& settings);

// The tokenizer of a GGUF file: tokenizer.ggml.model "llama" (as SentencePiece), or "gpt2" with a known
// tokenizer.ggml.pre (as tokenizer.json). Errors: InvalidInput beginning with the file.
std::unique_ptr<Tokenizer> MakeGgufTokenizer(const gguf::Metadata& metadata);

// Whether a tokenizer.model looks like text lines of tiktoken rather than a protobuf.
bool LooksLikeTiktoken(std::string_view content);

}  // namespace stoch
