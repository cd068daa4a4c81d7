// SPDX-License-Identifier: Apache-2.0
// Messages between processes that each hold consecutive layers of one model: pieces of passes, and rows of the residual
// stream between their layers.
//
// Rank 0 has the embedding, the first layers, final norm and LM head; it tells every other rank which piece comes next
// and gives its rows to rank 1. Each rank gives the next one the rows that its layers made of them, the last one gives
// them back to rank 0. Numbers travel as they are in memory: float32, little-endian, all bits.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/handles.h"
#include "models/decoder/model_stage.h"
#include "models/decoder/pass_shape.h"

namespace stoch {

// Of a message: those that have nothing behind it say that a rank lives, or that a model is closed.
inline constexpr size_t kMessageHeadBytes = 16;

// More ranks than this add latency and no throughput: so many passes are in flight at most.
inline constexpr int kMaxRanks = 8;

// A rank that is gone, late, or sent something else than it was to send. This process cannot go on with these ranks.
class LostRank : public DeviceError {
 public:
  LostRank(int rank, const std::string& why)
      : DeviceError("rank " + std::to_string(rank) + ": " + why), rank_(rank), why_(why) {}
  int rank() const { return rank_; }
  const std::string& why() const { return why_; }

 private:
  int rank_;
  std::string why_;
};

// How far a rank has loaded its layers: bytes of source tensors.
struct LoadedBytes {
  int64_t done = 0, total = 0;
};

// Moves messages between the ranks of a job. Messages from one rank to another arrive once, whole and in the order they
// were sent. Threads: one at a time; Send next to another one too.
class RankLink {
 public:
  enum class Wait {
    kLimit,    // for rows: from the last sign of life of the rank that sends them
    kOpening,  // for an answer while models are loaded, from the last sign that its rank gets on
    kIdle,     // for a rank that says by a thread of its own that it lives: from its last sign of life
  };

  virtual ~RankLink() = default;
  virtual int rank() const = 0;
  virtual int count() const = 0;
  // How long to wait for a message.
  virtual std::chrono::milliseconds limit(Wait wait) const = 0;
  // Sets limit(kLimit), to what fits the devices of this rank. Its heartbeats tell those who wait for it.
  virtual void LimitRows(std::chrono::milliseconds limit) = 0;
  // Copies the message, and returns before it has arrived. Errors: LostRank.
  virtual void Send(int to, std::span<const std::byte> message) = 0;
  // Whether the next message of a rank has arrived, all of it, within so long.
  // Errors: LostRank, also where it has more than max_bytes.
  virtual bool WaitFor(int from, size_t max_bytes, std::chrono::milliseconds most) = 0;
  // The message that WaitFor has found.
  virtual std::vector<std::byte> Take(int from) = 0;

  // Tells rank `to` from now on that this one gets on; -1: nobody.
  void HeartbeatTo(int to) {
    if (to >= 0 && to != last_heard_by_) last_heartbeat_ = {};  // it has heard nothing yet
    if (to >= 0) last_heard_by_ = to;
    heartbeat_to_ = to;
  }
  // Tells it, at most once a second, and where it is. Errors: LostRank.
  void Heartbeat(const std::string& where);
  // The same of a rank that loads, which says how far it is.
  void Heartbeat(const LoadedBytes& loaded);
  // How long a message of this rank is waited for: rows as it has said, before that as limit(kLimit). Rank 0 has it from the
  // answer of each rank, others from the first heartbeat, which comes before the first operator of a piece: they give up no
  // live rank too early, and one that is lost before its first piece is missed by rank 0 if not by them.
  std::chrono::milliseconds LimitOf(int from, Wait wait) const;
  void HearLimit(int from, std::chrono::milliseconds rows) { limits_of_others_[from] = rows; }
  // Hands what another rank's heartbeat says to this function, on the thread of the link.
  void OnHeartbeat(std::function<void(const std::string& where)> on_heartbeat) {
    on_heartbeat_ = std::move(on_heartbeat);
  }
  void HearHeartbeat(const std::string& where) const {
    if (on_heartbeat_) on_heartbeat_(where);
  }

  // Seconds that TakeRows has waited for rows of other ranks. Threads: any.
  double waited_seconds() const { return std::chrono::duration<double>(std::chrono::nanoseconds(waited_ns_)).count(); }
  void AddWaited(std::chrono::nanoseconds time) { waited_ns_ += time.count(); }

 private:
  bool TakesHeartbeat();

  std::atomic<int64_t> waited_ns_ = 0;
  int heartbeat_to_ = -1, last_heard_by_ = -1;
  std::chrono::steady_clock::time_point last_heartbeat_ = {};
  std::function<void(const std::string&)> on_heartbeat_;
  std::map<int, std::chrono::milliseconds> limits_of_others_;  // for rows, by rank
};

// A piece of a pass as followers run it: its output rows count from 0.
struct RankPiece {
  ModelStage::Piece piece;
  PassLayout layout;           // its pages are those of `words`
  std::vector<int32_t> words;  // as they came
};

// lane, index, first row, rows, sequences; {first_row, num_rows, start_position, pages, page ...} of each; token ids;
// output rows, their number first.
std::vector<int32_t> PackPiece(const ModelStage::Piece& piece, const PassLayout& layout);
// Errors: InvalidInput naming what is not that of a pass of this shape and vocabulary; no count is believed.
RankPiece UnpackPiece(std::vector<int32_t> words, const PassShape& shape, int64_t vocab_size);

// Rank 0 to all others. `number` counts pieces since the model was opened, and is the same on all ranks.
void SendPiece(RankLink& link, uint64_t number, std::span<const int32_t> words);
// Waits for as long as it takes. nullopt: rank 0 has closed the model.
// Errors: LostRank where it sent anything but that piece.
std::optional<RankPiece> TakePiece(RankLink& link, uint64_t number, const PassShape& shape, int64_t vocab_size);
// Rank 0 tells all others that no piece follows.
void SendClose(RankLink& link);
// Waits for that, where nothing else may come. Errors: LostRank.
void TakeClose(RankLink& link);

// Rows of a piece with their checksum; or why there are none, an InvalidInput of this rank or of one before it.
void SendRows(RankLink& link, int to, uint64_t number, std::span<const float> rows);
void SendRefusal(RankLink& link, int to, uint64_t number, const std::string& refused);
// The output rows alone, where a rank has computed no others.
void SendOutputs(RankLink& link, int to, uint64_t number, std::span<const float> rows);
// Fills `rows`, or those of them that are output rows; returns why they are not there, "" if they are.
// Shapes: rows [rows of the piece, cols]; output_rows: indices, of the last rank's piece.
// Errors: LostRank for another piece, another number of rows, or rows with another checksum.
std::string TakeRows(RankLink& link, int from, uint64_t number, std::span<float> rows, int64_t cols,
                     std::span<const int32_t> output_rows = {});

// Rank 0 to all others, once a second, that it lives: whoever hears nothing for limit(kIdle) ends itself, whatever the
// launcher does. On a thread of its own, as rank 0 may wait for requests, or load. Another rank to rank 0, while it opens a
// model or gives it back. Errors: LostRank.
void SendAlive(RankLink& link);

// The error that rank `from` is lost, as it has said nothing for LimitOf(from, wait).
LostRank SilentRank(const RankLink& link, int from, RankLink::Wait wait);

// That this rank ends, because of rank `lost`: whoever waits for its rows ends in these words. Never throws.
void SendLost(RankLink& link, int to, int lost, const std::string& why);

// A text, with its checksum. Errors: LostRank where anything else comes.
void SendText(RankLink& link, int to, const std::string& text);
std::string TakeText(RankLink& link, int from, RankLink::Wait wait);

// A message of a rank that loads its layers, and then sends a text.
struct LoadingWord {
  bool gets_on = true;  // false: its rank lives, and may be held up
  std::optional<LoadedBytes> loaded;
  std::optional<std::string> text;
};
// The next one, where it comes within so long. Errors: as TakeText.
std::optional<LoadingWord> HearLoading(RankLink& link, int from, std::chrono::milliseconds most);

}  // namespace stoch
