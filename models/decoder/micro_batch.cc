// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/micro_batch.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace stoch {
namespace {

// A stage waits for the first piece and after the last one: with eight pieces that is an eighth a stage.
constexpr int64_t kMaxPieces = 8;

class Cutter {
 public:
  Cutter(const PassLayout& pass, int64_t pieces, const CutRules& rules)
      : pass_(pass), rules_(rules), rows_((static_cast<int64_t>(pass.ids.size()) + pieces - 1) / pieces) {}

  std::vector<MicroBatch> Cut() {
    Begin(0);
    for (const PassLayout::Sequence& sequence : pass_.sequences) {
      for (int32_t done = 0; done < sequence.num_rows;) {
        const int64_t room = rows_ - Size();
        if (Size() > 0 && (room <= 0 || (!rules_.within_sequences && sequence.num_rows > room))) {
          Begin(sequence.first_row + done);
          continue;
        }
        const auto left = static_cast<int64_t>(sequence.num_rows - done);
        const auto count = static_cast<int32_t>(rules_.within_sequences ? std::min(left, room) : left);
        Append(sequence, done, count);
        done += count;
      }
    }
    return std::move(pieces_);
  }

 private:
  int64_t Size() const { return static_cast<int64_t>(pieces_.back().layout.ids.size()); }

  void Begin(int64_t first_row) {
    MicroBatch piece;
    piece.first_row = first_row;
    piece.first_output = next_output_;
    pieces_.push_back(std::move(piece));
  }

  void Append(const PassLayout::Sequence& sequence, int32_t done, int32_t count) {
    MicroBatch& piece = pieces_.back();
    const int32_t begin = sequence.first_row + done;
    piece.layout.sequences.push_back(
        {static_cast<int32_t>(Size()), count, sequence.start_position + done, sequence.pages, sequence.number});
    piece.layout.ids.insert(piece.layout.ids.end(), pass_.ids.begin() + begin, pass_.ids.begin() + begin + count);
    const auto outputs = static_cast<int64_t>(pass_.output_rows.size());
    for (; next_output_ < outputs && pass_.output_rows[static_cast<size_t>(next_output_)] < begin + count;
         ++next_output_) {
      piece.layout.output_rows.push_back(pass_.output_rows[static_cast<size_t>(next_output_)] -
                                         static_cast<int32_t>(piece.first_row));
    }
  }

  const PassLayout& pass_;
  const CutRules rules_;
  const int64_t rows_;  // of a piece
  int64_t next_output_ = 0;
  std::vector<MicroBatch> pieces_;
};

}  // namespace

std::vector<MicroBatch> CutPass(const PassLayout& pass, int64_t pieces, const CutRules& rules) {
  STOCH_CHECK(pieces >= 1 && !pass.ids.empty());
  if (!rules.between_sequences) pieces = 1;
  return Cutter(pass, pieces, {rules.between_sequences, rules.between_sequences && rules.within_sequences}).Cut();
}

int64_t PiecesFor(int64_t rows, int64_t stages, int64_t min_rows) {
  return stages < 2 ? 1 : std::clamp<int64_t>(rows / min_rows, 1, kMaxPieces);
}

int64_t StagesIssued(int64_t stages, int64_t ahead, int64_t in_flight) {
  STOCH_CHECK(ahead >= 0 && ahead < in_flight);
  return (stages * (in_flight - ahead) + in_flight - 1) / in_flight;
}

}  // namespace stoch
