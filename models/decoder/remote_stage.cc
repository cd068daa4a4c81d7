// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/remote_stage.h"

#include <deque>
#include <optional>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/error.h"

namespace stoch {

HostRows::HostRows(Backend& backend, Device device, const PassShape& shape, int64_t hidden_size)
    : backend_(backend),
      hidden_size_(hidden_size),
      host_(static_cast<size_t>(shape.max_rows * hidden_size)),
      staged_(backend.Allocate(device, shape.max_rows * hidden_size * int64_t{sizeof(float)})) {}

std::span<const float> HostRows::Fetch(const TensorView& hidden) {
  const std::span<float> rows = host(hidden.dim(0));
  backend_.CopyToHost(rows.data(), hidden);
  return rows;
}

TensorView HostRows::Put(int64_t rows) {
  const TensorView view = MakeView(staged_.data(), DType::kF32, staged_.device(), rows, hidden_size_);
  backend_.CopyFromHost(view, host_.data());
  return view;
}

struct RemoteStage::Link {
  RankLink& ranks;
  HostRows rows;
  struct Sent {
    uint64_t number = 0;
    int64_t rows = 0;
    std::vector<int32_t> output_rows;
  };
  std::deque<Sent> sent = {};  // pieces whose rows have not come back
  uint64_t next_number = 0;
  bool is_lost = false;

  // The rows of the piece that was sent first.
  std::string Take() {
    const Sent first = std::move(sent.front());
    sent.pop_front();
    try {
      return TakeRows(ranks, ranks.count() - 1, first.number, rows.host(first.rows), rows.cols(), first.output_rows);
    } catch (const LostRank&) {
      is_lost = true;
      throw;
    }
  }
};

RemoteStage::RemoteStage(Backend& backend, const DecoderConfig& config, const PassShape& shape,
                         std::vector<Device> before, Device head, RankLink& link, const Role& role)
    : backend_(backend),
      before_(std::move(before)),
      role_(role),
      layouts_(static_cast<size_t>(shape.lanes)),
      link_(new Link{link, HostRows(backend, head, shape, config.hidden_size)}) {
  STOCH_CHECK(link.rank() == 0 && link.count() > 1 && !role.embeds && !role.has_head);
}

RemoteStage::~RemoteStage() = default;

int64_t RemoteStage::staging_bytes() const { return link_->rows.bytes(); }

void RemoteStage::Upload(size_t lane, size_t index, const PassLayout& layout) {
  std::vector<PassLayout>& layouts = layouts_[lane];
  if (layouts.size() <= index) layouts.resize(index + 1);
  layouts[index] = layout;
}

void RemoteStage::Receive(const Piece& piece, const TensorView& hidden) {
  const std::span<const float> rows = link_->rows.Fetch(hidden);
  for (const Device& device : before_) backend_.CheckFinite(device);  // no rank computes with what this one refuses
  const uint64_t number = link_->next_number++;
  SendPiece(link_->ranks, number, PackPiece(piece, layouts_[piece.lane][piece.index]));
  SendRows(link_->ranks, 1, number, rows);
  link_->sent.push_back({number, piece.rows, layouts_[piece.lane][piece.index].output_rows});
}

TensorView RemoteStage::Hidden(const Piece& piece) const {
  STOCH_CHECK(!link_->sent.empty() && link_->sent.front().rows == piece.rows);
  const std::string refused = link_->Take();
  if (!refused.empty()) throw InvalidInput(refused);
  return link_->rows.Put(piece.rows);
}

void RemoteStage::Abandon() {
  while (!link_->is_lost && !link_->sent.empty()) link_->Take();
}

namespace {
// A part of a model without a head was asked about logits.
[[noreturn]] void FailWithoutHead() { CheckFailed("the stage has a head", __FILE__, __LINE__); }
}  // namespace

void RemoteStage::RunHead(size_t, int64_t, int64_t, int64_t, bool) { FailWithoutHead(); }
LogitQueryBuffer& RemoteStage::queries(size_t) { FailWithoutHead(); }
void RemoteStage::UploadQueries(size_t, const LogitQueries&) { FailWithoutHead(); }
void RemoteStage::AnswerQueries(size_t, int64_t, int64_t, const QueryRange&, const QueryRange&) { FailWithoutHead(); }
TensorView RemoteStage::Logits(size_t, int64_t) const { FailWithoutHead(); }

namespace {

// Runs the stages of this rank in place over `rows`, or over the output rows alone. Returns: why not, "" where it did.
std::string RunStages(Backend& backend, std::span<const std::unique_ptr<ModelStage>> stages,
                      const ModelStage::Piece& piece, HostRows& rows, bool* only_outputs) {
  std::string refused;
  try {
    TensorView hidden = rows.Put(piece.rows);
    for (const auto& stage : stages) {
      stage->Receive(piece, hidden);
      backend.RunGraph(stage->devices(), "", [&] { stage->Run(piece, {}); });
      hidden = stage->Hidden(piece);
    }
    const std::optional<TensorView> outputs = stages.back()->Outputs(piece);
    *only_outputs = outputs.has_value();
    if (!outputs || piece.outputs > 0) rows.Fetch(outputs ? *outputs : hidden);
  } catch (const InvalidInput& error) {
    refused = error.what();
  }
  // Every device, so that none has something left for the next piece; the first one names where it began.
  for (const auto& stage : stages) {
    for (const Device& device : stage->devices()) {
      try {
        backend.CheckFinite(device);
      } catch (const InvalidInput& error) {
        if (refused.empty()) refused = error.what();
      }
    }
  }
  return refused;
}

// One piece of a pass: its rows come from the rank before, and go to the next one.
void FollowPiece(RankLink& link, Backend& backend, std::span<const std::unique_ptr<ModelStage>> stages,
                 const RankPiece& taken, uint64_t number, int next, HostRows& rows) {
  const ModelStage::Piece& piece = taken.piece;
  std::string refused = TakeRows(link, link.rank() - 1, number, rows.host(piece.rows), rows.cols());
  bool only_outputs = false;
  if (refused.empty()) {
    for (const auto& stage : stages) stage->Upload(piece.lane, piece.index, taken.layout);
    refused = RunStages(backend, stages, piece, rows, &only_outputs);
  }
  if (!refused.empty()) {
    SendRefusal(link, next, number, refused);
  } else if (only_outputs) {
    SendOutputs(link, next, number, rows.host(piece.outputs));
  } else {
    SendRows(link, next, number, rows.host(piece.rows));
  }
}

}  // namespace

void FollowRanks(RankLink& link, Backend& backend, const DecoderConfig& config, const PassShape& shape,
                 std::span<const std::unique_ptr<ModelStage>> stages) {
  STOCH_CHECK(link.rank() > 0 && !stages.empty());
  HostRows rows(backend, stages.front()->devices().front(), shape, config.hidden_size);
  const int next = (link.rank() + 1) % link.count();
  try {
    for (uint64_t number = 0;; ++number) {
      const std::optional<RankPiece> taken = TakePiece(link, number, shape, config.vocab_size);
      if (!taken) return;
      link.HeartbeatTo(next);  // from here on somebody waits
      FollowPiece(link, backend, stages, *taken, number, next, rows);
      link.HeartbeatTo(-1);
    }
  } catch (const LostRank& error) {
    SendLost(link, next, error.rank(), error.why());
    throw;
  } catch (const DeviceError& error) {
    SendLost(link, next, link.rank(), error.what());
    throw;
  }
}

}  // namespace stoch
