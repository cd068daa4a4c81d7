// A look at a SentencePiece model before libsentencepiece reads it: the library trusts what it is given.
#pragma once

#include <string>
#include <string_view>

namespace stoch {

struct SentencePieceFacts {
  int64_t pieces = 0;
  bool add_dummy_prefix = true;
};

// What:   walks the protobuf: every length inside the file, every piece not empty, valid UTF-8, without zero bytes and
//         with a finite score.
// Errors: InvalidInput for a broken or empty file and for what no Llama checkpoint has: models other than BPE and
//         unigram, compiled normalization rules (a trie the library would walk unchecked), white space as suffix.
// Source: google/sentencepiece, src/sentencepiece_model.proto.
SentencePieceFacts CheckSentencePieceModel(std::string_view content, const std::string& where);

}  // namespace stoch
