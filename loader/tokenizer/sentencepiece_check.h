// SPDX-License-Identifier: Apache-2.0
// A look at a SentencePiece model before libsentencepiece reads it: the library trusts what it is given.
#pragma once

#include <string>
#include <string_view>

namespace stoch {

struct SentencePieceFacts {
  int64_t pieces = 0;
  bool add_dummy_prefix = true;          // a space in front of the text
  bool remove_extra_whitespaces = true;  // no spaces at the ends, single ones inside
  bool has_space_piece = false;          // "▁" is a piece
  bool has_inner_space = false;          // some piece goes on into a next word

  // Every word, with the spaces before it, can be encoded on its own.
  bool WordsAreIndependent() const { return has_space_piece && !has_inner_space; }
};

// Walks the protobuf: every length inside the file, every piece not empty, valid UTF-8, without zero bytes and with a
// finite score.
// Errors: InvalidInput for a broken or empty file and for what no Llama checkpoint has: models other than BPE, compiled
// normalization rules (a trie the library would walk unchecked), white space as suffix. Source: google/sentencepiece,
// src/sentencepiece_model.proto.
SentencePieceFacts CheckSentencePieceModel(std::string_view content, const std::string& where);

}  // namespace stoch
