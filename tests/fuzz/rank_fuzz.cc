// SPDX-License-Identifier: Apache-2.0
// Any words of a piece of a pass are either refused with one sentence or are those of a pass of this shape, and any messages of
// a rank are either taken as what was to come, or that rank is lost. A message whose checksum fits has one that is made here.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "loader/crc32c.h"
#include "models/decoder/rank_link.h"
#include "tests/fuzz/try.h"

namespace {

using namespace stoch;
using test::Check;
using test::Try;

constexpr int64_t kVocab = 96, kCols = 3, kRows = 4;
constexpr int kOther = 1;

PassShape Shape() {
  PassShape shape;
  shape.context = 128;
  shape.kv_tokens = 3 * shape.context;
  shape.max_rows = 192;
  shape.lanes = 2;
  shape.max_sequences = 3;
  return shape;
}

void CheckPiece(const RankPiece& piece) {
  const PassShape shape = Shape();
  Check(piece.piece.lane < static_cast<size_t>(shape.lanes));
  Check(piece.piece.first_row >= 0 && piece.piece.rows > 0 &&
        piece.piece.first_row + piece.piece.rows <= shape.max_rows);
  int64_t rows = 0;
  for (const PassLayout::Sequence& sequence : piece.layout.sequences) {
    Check(sequence.first_row == rows && sequence.num_rows > 0 && sequence.start_position >= 0);
    rows += sequence.num_rows;
    Check(sequence.start_position + sequence.num_rows <= shape.context);
    Check(static_cast<int64_t>(sequence.pages.size()) == PagesOf(sequence.start_position + sequence.num_rows));
    for (const int32_t page : sequence.pages) Check(page >= 0 && page < PagesOf(shape.kv_tokens));
  }
  Check(rows == piece.piece.rows && static_cast<int64_t>(piece.layout.ids.size()) == rows);
  for (const int32_t id : piece.layout.ids) Check(id >= 0 && id < kVocab);
  int32_t last = -1;
  for (const int32_t row : piece.layout.output_rows) {
    Check(row > last && row < rows);
    last = row;
  }
  Check(PackPiece(piece.piece, piece.layout) == piece.words);
}

// The other rank sends these messages, and then is lost.
class ScriptedLink final : public RankLink {
 public:
  explicit ScriptedLink(std::deque<std::vector<std::byte>> messages) : messages_(std::move(messages)) {}

  int rank() const override { return 0; }
  int count() const override { return 2; }
  std::chrono::milliseconds limit(Wait /*wait*/) const override { return std::chrono::hours(1); }
  void LimitRows(std::chrono::milliseconds /*limit*/) override {}
  void Send(int /*to*/, std::span<const std::byte> /*message*/) override {}
  bool WaitFor(int from, size_t max_bytes, std::chrono::milliseconds /*most*/) override {
    if (messages_.empty()) throw LostRank(from, "sent nothing");
    if (messages_.front().size() > max_bytes) throw LostRank(from, "sent too much");
    return true;
  }
  std::vector<std::byte> Take(int /*from*/) override {
    std::vector<std::byte> message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }

 private:
  std::deque<std::vector<std::byte>> messages_;
};

// Messages of a byte for their length and so many of content; with a checksum that fits where a head has room for one.
std::deque<std::vector<std::byte>> Messages(const uint8_t* data, size_t size, bool is_mended) {
  constexpr size_t kKind = 0, kCrc = 4, kHead = 16;
  std::deque<std::vector<std::byte>> messages;
  for (size_t at = 0; at < size;) {
    const size_t count = std::min<size_t>(data[at], size - at - 1);
    std::vector<std::byte> message(count);
    if (count > 0) std::memcpy(message.data(), data + at + 1, count);
    at += 1 + count;
    if (is_mended && count >= kHead) {
      const auto* bytes = reinterpret_cast<const char*>(message.data());
      const uint32_t crc = Crc32c().AddRaw({bytes + kKind, kCrc}).AddRaw({bytes + kHead, count - kHead}).value();
      std::memcpy(message.data() + kCrc, &crc, sizeof(crc));
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

void TryMessages(const std::deque<std::vector<std::byte>>& messages) {
  const auto lost = [&](auto body) {
    ScriptedLink link(messages);
    link.HeartbeatTo(kOther);
    try {
      Try([&] { body(link); });
    } catch (const LostRank& error) {
      Check(std::strlen(error.what()) > 0);
    }
  };
  std::vector<float> rows(kRows * kCols);
  const std::vector<int32_t> output_rows = {1, 3};
  lost([&](RankLink& link) { TakeRows(link, kOther, 0, rows, kCols, output_rows); });
  lost([&](RankLink& link) {
    if (const auto piece = TakePiece(link, 0, Shape(), kVocab)) CheckPiece(*piece);
  });
  lost([&](RankLink& link) { TakeText(link, kOther, RankLink::Wait::kOpening); });
  lost([&](RankLink& link) { TakeClose(link); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<int32_t> words(size / sizeof(int32_t));
  if (!words.empty()) std::memcpy(words.data(), data, words.size() * sizeof(int32_t));
  Try([&] { CheckPiece(UnpackPiece(words, Shape(), kVocab)); });
  // Small ones, of a byte each, are what passes have.
  words.assign(data, data + size);
  Try([&] { CheckPiece(UnpackPiece(words, Shape(), kVocab)); });
  for (const bool is_mended : {false, true}) TryMessages(Messages(data, size, is_mended));
  return 0;
}
