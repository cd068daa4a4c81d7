// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/rank_link.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "kernels/base/check.h"
#include "loader/crc32c.h"

namespace stoch {
namespace {

static_assert(std::endian::native == std::endian::little, "ranks send numbers as they are in memory");

enum class Kind : uint32_t {
  kPiece = 0x53740001,
  kClose,
  kRows,
  kOutputs,
  kRefusal,
  kText,
  kHeartbeat,
  kLost,
  kAlive,
  kLoading
};

struct Head {
  Kind kind = Kind::kText;
  uint32_t crc32c = 0;  // of the kind and of what follows
  uint64_t number =
      0;  // of a piece, of the lost rank, or the milliseconds that a heartbeat asks to wait for the next one
};

static_assert(sizeof(Head) == kMessageHeadBytes);

constexpr size_t kMaxTextBytes = size_t{1} << 20;
constexpr size_t kMaxNoteBytes = 4096;  // of heartbeats, and of why a rank ends
constexpr std::chrono::milliseconds kHeartbeatPeriod{1000};
constexpr uint64_t kMostLimitMs = 86'400'000;  // of --rank-limit

uint32_t Checksum(Kind kind, std::span<const std::byte> bytes) {
  return Crc32c()
      .AddRaw({reinterpret_cast<const char*>(&kind), sizeof(kind)})
      .AddRaw({reinterpret_cast<const char*>(bytes.data()), bytes.size()})
      .value();
}

void SendMessage(RankLink& link, int to, Kind kind, uint64_t number, std::span<const std::byte> content) {
  const Head head{kind, Checksum(kind, content), number};
  std::vector<std::byte> message(sizeof(head) + content.size());
  std::memcpy(message.data(), &head, sizeof(head));
  if (!content.empty()) std::memcpy(message.data() + sizeof(head), content.data(), content.size());
  link.Send(to, message);
}

// A message whose checksum is right.
struct Message {
  Head head;
  std::vector<std::byte> bytes;

  std::span<const std::byte> content() const { return std::span(bytes).subspan(sizeof(Head)); }
  std::string Text() const { return {reinterpret_cast<const char*>(content().data()), content().size()}; }
};

std::string WaitsFor(int rank) { return "waits for rank " + std::to_string(rank); }

// Waits for a message, in turns of a second: a rank that waits gets on itself, and says so.
void AwaitMessage(RankLink& link, int from, size_t max_bytes, RankLink::Wait wait) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  for (;;) {
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
    const std::chrono::milliseconds limit = link.LimitOf(from, wait);
    if (waited >= limit) throw SilentRank(link, from, wait);
    if (link.WaitFor(from, max_bytes, std::min(kHeartbeatPeriod, limit - waited))) return;
    link.Heartbeat(WaitsFor(from));
  }
}

// The one that has arrived.
Message TakeOne(RankLink& link, int from) {
  Message message{{}, link.Take(from)};
  if (message.bytes.size() < sizeof(Head)) throw LostRank(from, "sent a message without a head");
  std::memcpy(&message.head, message.bytes.data(), sizeof(Head));
  if (Checksum(message.head.kind, message.content()) != message.head.crc32c) {
    throw LostRank(from, "sent a message whose checksum is another one: bytes were changed on their way");
  }
  return message;
}

// Whether it says no more than that its rank gets on, which is handed on to who waits for this rank.
bool IsSignOfLife(RankLink& link, int from, const Message& message) {
  switch (message.head.kind) {
    case Kind::kLost: throw LostRank(static_cast<int>(message.head.number), message.Text());
    case Kind::kHeartbeat: {
      const std::chrono::milliseconds asked(std::min(message.head.number, kMostLimitMs));
      if (asked.count() > 0) link.HearLimit(from, asked);
      const std::string where = message.Text();
      link.HearHeartbeat(where);
      link.Heartbeat(where);
      return true;
    }
    case Kind::kAlive:
    case Kind::kLoading: link.Heartbeat(WaitsFor(from)); return true;
    default: return false;
  }
}

// The next message that is no sign of life.
Message TakeMessage(RankLink& link, int from, size_t max_content, RankLink::Wait wait) {
  for (;;) {
    AwaitMessage(link, from, sizeof(Head) + std::max(max_content, kMaxNoteBytes), wait);
    Message message = TakeOne(link, from);
    if (IsSignOfLife(link, from, message)) continue;
    if (message.content().size() <= max_content) return message;
    throw LostRank(from, "sent " + std::to_string(message.content().size()) + " bytes where at most " +
                             std::to_string(max_content) + " were to come");
  }
}

void CheckNumber(const Message& message, int from, uint64_t number) {
  if (message.head.number == number) return;
  throw LostRank(from, "sent piece " + std::to_string(message.head.number) + " where piece " + std::to_string(number) +
                           " was to come");
}

// The words of a piece one after another.
class WordReader {
 public:
  explicit WordReader(std::span<const int32_t> words) : words_(words) {}

  int32_t Next(const char* what, int64_t low, int64_t high) {
    if (at_ == words_.size()) throw InvalidInput(std::string("a piece of a pass ends in front of its ") + what);
    const int32_t value = words_[at_++];
    if (value >= low && value <= high) return value;
    throw InvalidInput(std::string("a piece of a pass has ") + what + " = " + std::to_string(value) + ": allowed is " +
                       std::to_string(low) + ".." + std::to_string(high));
  }
  std::span<const int32_t> Next(const char* what, int64_t count, int64_t low, int64_t high) {
    const size_t first = at_;
    for (int64_t i = 0; i < count; ++i) Next(what, low, high);
    return words_.subspan(first, static_cast<size_t>(count));
  }
  void ExpectEnd() const {
    if (at_ == words_.size()) return;
    throw InvalidInput("a piece of a pass has " + std::to_string(words_.size() - at_) + " words behind its end");
  }

 private:
  std::span<const int32_t> words_;
  size_t at_ = 0;
};

// Pieces of a pass: some cuts, or one where each sequence may be a piece of its own.
int64_t MaxPieces(const PassShape& shape) { return shape.max_sequences + 64; }

// The largest message of a piece, in words.
size_t MaxPieceWords(const PassShape& shape) {
  return static_cast<size_t>(6 + shape.max_sequences * (5 + PagesOf(shape.context)) + 2 * shape.max_rows);
}

}  // namespace

bool RankLink::TakesHeartbeat() {
  if (heartbeat_to_ < 0) return false;
  const auto now = std::chrono::steady_clock::now();
  if (now - last_heartbeat_ < kHeartbeatPeriod) return false;
  last_heartbeat_ = now;
  return true;
}

void RankLink::Heartbeat(const std::string& where) {
  if (!TakesHeartbeat()) return;
  const std::string text = where.substr(0, kMaxNoteBytes);
  const auto limit_ms = static_cast<uint64_t>(limit(Wait::kLimit).count());
  SendMessage(*this, heartbeat_to_, Kind::kHeartbeat, limit_ms, std::as_bytes(std::span(text)));
}

void RankLink::Heartbeat(const LoadedBytes& loaded) {
  if (!TakesHeartbeat()) return;
  SendMessage(*this, heartbeat_to_, Kind::kLoading, 0, std::as_bytes(std::span(&loaded, 1)));
}

std::chrono::milliseconds RankLink::LimitOf(int from, Wait wait) const {
  const auto told = limits_of_others_.find(from);
  return wait == Wait::kLimit && told != limits_of_others_.end() ? told->second : limit(wait);
}

LostRank SilentRank(const RankLink& link, int from, RankLink::Wait wait) {
  return {from, "sent nothing for " + std::to_string(link.LimitOf(from, wait).count()) + " ms"};
}

void SendAlive(RankLink& link) {
  if (link.rank() > 0) return SendMessage(link, 0, Kind::kAlive, 0, {});
  for (int to = 1; to < link.count(); ++to) SendMessage(link, to, Kind::kAlive, 0, {});
}

void SendLost(RankLink& link, int to, int lost, const std::string& why) {
  try {
    const std::string text = why.substr(0, kMaxNoteBytes);
    SendMessage(link, to, Kind::kLost, static_cast<uint64_t>(lost), std::as_bytes(std::span(text)));
  } catch (const LostRank&) {  // who is to hear it is gone too
  }
}

std::vector<int32_t> PackPiece(const ModelStage::Piece& piece, const PassLayout& layout) {
  std::vector<int32_t> words = {static_cast<int32_t>(piece.lane), static_cast<int32_t>(piece.index),
                                static_cast<int32_t>(piece.first_row), static_cast<int32_t>(layout.ids.size()),
                                static_cast<int32_t>(layout.sequences.size())};
  for (const PassLayout::Sequence& sequence : layout.sequences) {
    // Those that its positions are on: followers see no room that a sequence has left.
    const auto used = static_cast<size_t>(PagesOf(int64_t{sequence.start_position} + sequence.num_rows));
    STOCH_CHECK(used <= sequence.pages.size());
    words.insert(words.end(), {sequence.first_row, sequence.num_rows, sequence.start_position,
                               static_cast<int32_t>(sequence.number), static_cast<int32_t>(used)});
    words.insert(words.end(), sequence.pages.begin(), sequence.pages.begin() + static_cast<ptrdiff_t>(used));
  }
  words.insert(words.end(), layout.ids.begin(), layout.ids.end());
  words.push_back(static_cast<int32_t>(layout.output_rows.size()));
  words.insert(words.end(), layout.output_rows.begin(), layout.output_rows.end());
  return words;
}

RankPiece UnpackPiece(std::vector<int32_t> words, const PassShape& shape, int64_t vocab_size) {
  RankPiece result;
  result.words = std::move(words);
  WordReader reader(result.words);
  ModelStage::Piece& piece = result.piece;
  piece.lane = static_cast<size_t>(reader.Next("lane", 0, shape.lanes - 1));
  piece.index = static_cast<size_t>(reader.Next("index", 0, MaxPieces(shape) - 1));
  piece.first_row = reader.Next("first row", 0, shape.max_rows - 1);
  piece.rows = reader.Next("rows", 1, shape.max_rows - piece.first_row);
  const int32_t sequences = reader.Next("sequences", 1, std::min(shape.max_sequences, piece.rows));
  int64_t rows = 0;
  for (int32_t i = 0; i < sequences; ++i) {
    PassLayout::Sequence& sequence = result.layout.sequences.emplace_back();
    sequence.first_row = reader.Next("first row of a sequence", rows, rows);
    sequence.num_rows = reader.Next("rows of a sequence", 1, piece.rows - rows);
    sequence.start_position = reader.Next("position of a sequence", 0, shape.context - sequence.num_rows);
    sequence.number = static_cast<uint32_t>(reader.Next("number of a sequence", 0, kMaxSequenceNumber));
    const int64_t pages = PagesOf(int64_t{sequence.start_position} + sequence.num_rows);
    reader.Next("pages of a sequence", pages, pages);
    sequence.pages = reader.Next("page", pages, 0, NumPages(shape) - 1);
    rows += sequence.num_rows;
  }
  if (rows != piece.rows) {
    throw InvalidInput("a piece of a pass has " + std::to_string(piece.rows) + " rows, its sequences have " +
                       std::to_string(rows));
  }
  const std::span<const int32_t> ids = reader.Next("token", piece.rows, 0, vocab_size - 1);
  result.layout.ids.assign(ids.begin(), ids.end());
  piece.outputs = reader.Next("output rows", 0, piece.rows);
  for (int64_t i = 0, low = 0; i < piece.outputs; ++i) {
    result.layout.output_rows.push_back(reader.Next("output row", low, piece.rows - 1));
    low = result.layout.output_rows.back() + 1;
  }
  reader.ExpectEnd();
  return result;
}

void SendPiece(RankLink& link, uint64_t number, std::span<const int32_t> words) {
  for (int to = 1; to < link.count(); ++to) SendMessage(link, to, Kind::kPiece, number, std::as_bytes(words));
}

std::optional<RankPiece> TakePiece(RankLink& link, uint64_t number, const PassShape& shape, int64_t vocab_size) {
  const Message message = TakeMessage(link, 0, MaxPieceWords(shape) * sizeof(int32_t), RankLink::Wait::kIdle);
  if (message.head.kind == Kind::kClose) return std::nullopt;
  if (message.head.kind != Kind::kPiece) throw LostRank(0, "sent something else than a piece of a pass");
  CheckNumber(message, 0, number);
  const std::span<const std::byte> content = message.content();
  if (content.empty() || content.size() % sizeof(int32_t) != 0) {
    throw LostRank(0, "sent a piece of a pass of " + std::to_string(content.size()) + " bytes");
  }
  std::vector<int32_t> words(content.size() / sizeof(int32_t));
  std::memcpy(words.data(), content.data(), content.size());
  try {
    return UnpackPiece(std::move(words), shape, vocab_size);
  } catch (const InvalidInput& error) {
    throw LostRank(0, std::string("sent ") + error.what());
  }
}

void SendClose(RankLink& link) {
  for (int to = 1; to < link.count(); ++to) SendMessage(link, to, Kind::kClose, 0, {});
}

void TakeClose(RankLink& link) {
  const Message message = TakeMessage(link, 0, 0, RankLink::Wait::kIdle);
  if (message.head.kind != Kind::kClose) throw LostRank(0, "sent something else than the end of a model");
}

void SendRows(RankLink& link, int to, uint64_t number, std::span<const float> rows) {
  SendMessage(link, to, Kind::kRows, number, std::as_bytes(rows));
}

void SendOutputs(RankLink& link, int to, uint64_t number, std::span<const float> rows) {
  SendMessage(link, to, Kind::kOutputs, number, std::as_bytes(rows));
}

void SendRefusal(RankLink& link, int to, uint64_t number, const std::string& refused) {
  const std::string text = refused.substr(0, kMaxTextBytes);
  SendMessage(link, to, Kind::kRefusal, number, std::as_bytes(std::span(text)));
}

std::string TakeRows(RankLink& link, int from, uint64_t number, std::span<float> rows, int64_t cols,
                     std::span<const int32_t> output_rows) {
  const auto begin = std::chrono::steady_clock::now();
  const Message message = TakeMessage(link, from, std::max(rows.size_bytes(), kMaxTextBytes), RankLink::Wait::kLimit);
  link.AddWaited(std::chrono::steady_clock::now() - begin);
  const Kind kind = message.head.kind;
  const bool is_whole = kind == Kind::kRows, is_refusal = kind == Kind::kRefusal;
  if (!is_whole && !is_refusal && kind != Kind::kOutputs) throw LostRank(from, "sent something else than rows");
  CheckNumber(message, from, number);
  if (is_refusal) {
    std::string text = message.Text();
    return text.empty() ? "refused a piece of a pass without saying why" : text;
  }
  const size_t row_bytes = static_cast<size_t>(cols) * sizeof(float);
  const size_t expected = is_whole ? rows.size_bytes() : output_rows.size() * row_bytes;
  const std::span<const std::byte> content = message.content();
  if (content.size() != expected) {
    throw LostRank(from, "sent rows of " + std::to_string(content.size()) + " bytes where " + std::to_string(expected) +
                             " were to come");
  }
  if (is_whole) std::memcpy(rows.data(), content.data(), expected);
  for (size_t i = 0; !is_whole && i < output_rows.size(); ++i) {
    const size_t place = static_cast<size_t>(output_rows[i]) * static_cast<size_t>(cols);
    STOCH_CHECK(place + static_cast<size_t>(cols) <= rows.size());
    std::memcpy(rows.data() + place, content.data() + i * row_bytes, row_bytes);
  }
  return "";
}

void SendText(RankLink& link, int to, const std::string& text) {
  STOCH_CHECK(text.size() <= kMaxTextBytes);
  SendMessage(link, to, Kind::kText, 0, std::as_bytes(std::span(text)));
}

namespace {

std::string TextOf(const Message& message, int from) {
  if (message.head.kind != Kind::kText) throw LostRank(from, "sent something else than a text");
  return message.Text();
}

}  // namespace

std::string TakeText(RankLink& link, int from, RankLink::Wait wait) {
  return TextOf(TakeMessage(link, from, kMaxTextBytes, wait), from);
}

std::optional<LoadingWord> HearLoading(RankLink& link, int from, std::chrono::milliseconds most) {
  if (!link.WaitFor(from, sizeof(Head) + kMaxTextBytes, most)) return std::nullopt;
  const Message message = TakeOne(link, from);
  LoadingWord word;
  if (message.head.kind == Kind::kLoading) {
    LoadedBytes& loaded = word.loaded.emplace();
    const bool is_whole = message.content().size() == sizeof(loaded);
    if (is_whole) std::memcpy(&loaded, message.content().data(), sizeof(loaded));
    if (is_whole && loaded.done >= 0 && loaded.done <= loaded.total) return word;
    throw LostRank(from, "says that it has loaded what cannot be");
  }
  word.gets_on = message.head.kind != Kind::kAlive;
  if (!IsSignOfLife(link, from, message)) word.text = TextOf(message, from);
  return word;
}

}  // namespace stoch
