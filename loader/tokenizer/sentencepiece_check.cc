// SPDX-License-Identifier: Apache-2.0
#include "loader/tokenizer/sentencepiece_check.h"

#include <cmath>
#include <cstring>
#include <optional>

#include "kernels/base/error.h"
#include "loader/quote.h"
#include "loader/tokenizer/limits.h"
#include "loader/tokenizer/unicode/text.h"

namespace stoch {
namespace {

// One field of a protobuf message; `bytes` for wire type 2, `value` for the others.
struct ProtoField {
  uint64_t number = 0;
  int wire = 0;
  uint64_t value = 0;
  std::string_view bytes;
};

// Reads the fields of one message in order.
class ProtoReader {
 public:
  ProtoReader(std::string_view message, const std::string& where) : rest_(message), where_(where) {}

  std::optional<ProtoField> Next() {
    if (rest_.empty()) return std::nullopt;
    ProtoField field;
    const uint64_t key = Varint();
    field.number = key >> 3;
    field.wire = static_cast<int>(key & 7);
    if (field.number == 0) Broken();
    switch (field.wire) {
      case 0: field.value = Varint(); break;
      case 1: field.value = Fixed(8); break;
      case 2: field.bytes = Take(Varint()); break;
      case 5: field.value = Fixed(4); break;
      default: Broken();
    }
    return field;
  }

  [[noreturn]] void Broken() const { throw InvalidInput(where_ + ": not a SentencePiece model, or a truncated one"); }

 private:
  std::string_view Take(uint64_t size) {
    if (size > rest_.size()) Broken();
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  uint64_t Fixed(size_t size) {
    uint64_t value = 0;
    std::memcpy(&value, Take(size).data(), size);
    return value;
  }

  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(Take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    Broken();
  }

  std::string_view rest_;
  const std::string& where_;
};

bool IsBytes(const ProtoField& field, uint64_t number) { return field.number == number && field.wire == 2; }
bool IsVarint(const ProtoField& field, uint64_t number) { return field.number == number && field.wire == 0; }

void CheckPiece(std::string_view message, int64_t id, const std::string& where, SentencePieceFacts& facts) {
  const std::string place = where + ": piece " + std::to_string(id);
  ProtoReader reader(message, where);
  std::string_view piece;
  bool normal = true;
  while (const auto field = reader.Next()) {
    if (IsVarint(*field, 3)) normal = field->value == 1;
    if (IsBytes(*field, 1)) piece = field->bytes;
    if (field->number == 2 && field->wire == 5) {
      float score = 0;
      const auto bits = static_cast<uint32_t>(field->value);
      std::memcpy(&score, &bits, sizeof(score));
      if (!std::isfinite(score)) throw InvalidInput(place + ": expected a finite score, got infinity or NaN");
    }
  }
  if (piece.empty()) throw InvalidInput(place + " is empty");
  if (piece.find('\0') != std::string_view::npos) throw InvalidInput(place + " has a zero byte");
  CheckUtf8(piece, place);
  if (SpansMarkedWords(piece, "\u2581") || piece.find(' ') != std::string_view::npos) facts.has_inner_space = true;
  if (piece == "\u2581" && normal) facts.has_space_piece = true;
}

// Returns the model type, where the message names one.
std::optional<uint64_t> CheckTrainer(std::string_view message, const std::string& where) {
  std::optional<uint64_t> type;
  ProtoReader reader(message, where);
  while (const auto field = reader.Next()) {
    if (IsVarint(*field, 3)) type = field->value;
    if (IsVarint(*field, 24) && field->value != 0) {
      throw InvalidInput(where + ": models that write white space as a suffix are not supported");
    }
  }
  return type;
}

void CheckNormalizer(std::string_view message, const std::string& where, SentencePieceFacts* facts) {
  ProtoReader reader(message, where);
  while (const auto field = reader.Next()) {
    if (IsBytes(*field, 2) && !field->bytes.empty()) {
      throw InvalidInput(where + ": models with compiled normalization rules are not supported");
    }
    if (IsVarint(*field, 3) && facts != nullptr) facts->add_dummy_prefix = field->value != 0;
    if (IsVarint(*field, 4) && facts != nullptr) facts->remove_extra_whitespaces = field->value != 0;
    if (IsVarint(*field, 5) && field->value == 0) {
      throw InvalidInput(where + ": models that do not escape white space are not supported");
    }
  }
}

}  // namespace

SentencePieceFacts CheckSentencePieceModel(std::string_view content, const std::string& where) {
  constexpr uint64_t kUnigram = 1;  // also where the file does not say
  constexpr uint64_t kBpe = 2;
  SentencePieceFacts facts;
  uint64_t type = kUnigram;
  bool has_normalizer = false;
  ProtoReader reader(content, where);
  while (const auto field = reader.Next()) {
    if (IsBytes(*field, 1)) {
      if (facts.pieces > kMaxTokenId) {
        throw InvalidInput(where + ": more than " + std::to_string(kMaxTokenId) + " pieces");
      }
      CheckPiece(field->bytes, facts.pieces++, where, facts);
    }
    if (IsBytes(*field, 2)) type = CheckTrainer(field->bytes, where).value_or(type);
    if (IsBytes(*field, 3)) {
      CheckNormalizer(field->bytes, where, &facts);
      has_normalizer = true;
    }
    if (IsBytes(*field, 5)) CheckNormalizer(field->bytes, where, nullptr);
  }
  // Without its normalizer the model would load and split text otherwise; real files have one, and it comes last.
  if (facts.pieces > 0 && !has_normalizer) reader.Broken();
  if (facts.pieces == 0) throw InvalidInput(where + ": not a SentencePiece model: it has no pieces");
  if (type != kBpe) {
    throw InvalidInput(where + ": expected a BPE model (type 2), got type " + std::to_string(type));
  }
  return facts;
}

}  // namespace stoch
