// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/striped_stage.h"

#include "kernels/base/check.h"

namespace stoch {

StripedStage::StripedStage(Backend& backend, const DecoderConfig& config, const DecoderOptions& options,
                           const DecoderWeights& weights, std::span<const DecoderShard> shards,
                           std::span<DecoderWorkspace* const> workspaces)
    : backend_(backend), config_(config) {
  const auto count = static_cast<size_t>(shards.front().stripe.count);
  role_ = {true, true, 0, static_cast<int>(config.num_hidden_layers)};
  sharers_ = shards.size() / count;
  rows_.resize(count);
  num_outputs_.resize(count);
  const PassShape& shape = options.shape;
  const int64_t pages = PagesOf(shape.context);
  for (size_t i = 0; i < count; ++i) {
    Role role = role_;
    role.has_head = i == 0;
    const size_t first = i * sharers_;
    stripes_.push_back(std::make_unique<DecoderStage>(backend, config, options, weights,
                                                      shards.subspan(first, sharers_), first,
                                                      workspaces.subspan(first, sharers_), role));
  }
  for (const DecoderShard& shard : shards) {
    devices_.push_back(shard.device);
    const int64_t bytes = RingBytes(config, options.precision, options.sc, shape, backend, shard);
    rings_.push_back(backend.Allocate(shard.device, bytes));
    passes_.push_back(backend.MakePass(shard.device, {shape.max_rows, shape.max_sequences, pages}));
  }
}

int64_t StripedStage::kv_cache_bytes() const {
  int64_t bytes = 0;
  for (const auto& stripe : stripes_) bytes += stripe->kv_cache_bytes();
  return bytes;
}

int64_t StripedStage::ring_bytes() const {
  int64_t bytes = 0;
  for (const Buffer& ring : rings_) bytes += static_cast<int64_t>(ring.bytes());
  return bytes;
}

TensorView StripedStage::Hidden(const Piece& /*piece*/) const { STOCH_CHECK(false); }
void StripedStage::Receive(const Piece& /*piece*/, const TensorView& /*hidden*/) { STOCH_CHECK(false); }

// Every device gets the whole pass, which attention goes by, and every stripe its own rows as a pass of their own.
void StripedStage::Upload(size_t lane, size_t index, const PassLayout& layout) {
  STOCH_CHECK(lane == 0 && index == 0);
  const auto count = static_cast<int>(stripes_.size());
  for (const auto& pass : passes_) backend_.UploadPass(*pass, layout);
  places_.assign(layout.ids.size(), {});
  std::vector<PassLayout> own_layouts(stripes_.size());
  for (int i = 0; i < count; ++i) {
    const Stripe stripe{i, count};
    PassLayout& own = own_layouts[static_cast<size_t>(i)];
    const std::vector<DealtRows> dealt = DealPass(layout, stripe);
    for (size_t s = 0; s < dealt.size(); ++s) {
      const PassLayout::Sequence& sequence = layout.sequences[s];
      const DealtRows& rows = dealt[s];
      if (rows.num_rows == 0) continue;
      own.sequences.push_back({rows.first_row, rows.num_rows, rows.first_local, sequence.pages, sequence.number});
      for (int32_t j = 0; j < rows.num_rows; ++j) {
        const auto row =
            static_cast<size_t>(sequence.first_row + stripe.Absolute(rows.first_local + j) - sequence.start_position);
        places_[row] = {static_cast<size_t>(i), rows.first_row + j};
        own.ids.push_back(layout.ids[row]);
      }
    }
    rows_[static_cast<size_t>(i)] = static_cast<int64_t>(own.ids.size());
  }
  outputs_.clear();
  selected_.clear();
  for (const int32_t row : layout.output_rows) {
    const RowPlace& place = outputs_.emplace_back(places_[static_cast<size_t>(row)]);
    std::vector<int32_t>& own = own_layouts[place.stripe].output_rows;
    selected_.push_back({place.stripe, static_cast<int64_t>(own.size())});
    own.push_back(static_cast<int32_t>(place.row));
  }
  for (size_t i = 0; i < stripes_.size(); ++i) {
    num_outputs_[i] = static_cast<int64_t>(own_layouts[i].output_rows.size());
    if (rows_[i] > 0) stripes_[i]->Upload(lane, index, own_layouts[i]);
  }
}

ModelStage::Piece StripedStage::Own(size_t stripe) const {
  Piece piece;
  piece.rows = rows_[stripe];
  piece.outputs = num_outputs_[stripe];
  return piece;
}

bool StripedStage::EndsWithOutputs(const HiddenTap& tap) const {
  if (outputs_.size() == places_.size() || stripes_[0]->WantsAllRows(tap)) return false;
  for (size_t i = 0; i < stripes_.size(); ++i) {
    if (!stripes_[i]->HasRoomForOutputs(Own(i), true)) return false;
  }
  return true;
}

template <typename CopyRows>
void StripedStage::ForRuns(std::span<const RowPlace> places, const CopyRows& copy) const {
  for (size_t begin = 0, end; begin < places.size(); begin = end) {
    const RowPlace& first = places[begin];
    const auto follows = [&](size_t i) {
      return places[i].stripe == first.stripe && places[i].row == first.row + static_cast<int64_t>(i - begin);
    };
    for (end = begin + 1; end < places.size() && follows(end);) ++end;
    copy(first.stripe, first.row, begin, static_cast<int64_t>(end - begin));
  }
}

void StripedStage::CopyHidden(const HiddenTap& tap, int layers) {
  if (tap.layers != layers) return;
  ForRuns(places_, [&](size_t stripe, int64_t row, size_t begin, int64_t count) {
    backend_.CopyToHost(tap.rows + static_cast<int64_t>(begin) * config_.hidden_size,
                        Slice(stripes_[stripe]->Hidden(Own(stripe)), 0, row, count));
  });
}

void StripedStage::Run(const Piece& piece, const HiddenTap& tap) {
  STOCH_CHECK(piece.rows == static_cast<int64_t>(places_.size()));
  for (size_t i = 0; i < stripes_.size(); ++i) {
    if (rows_[i] > 0) stripes_[i]->Embed(Own(i));
  }
  CopyHidden(tap, 0);
  has_selected_ = EndsWithOutputs(tap);
  for (int layer = 0; layer < role_.num_layers; ++layer) {
    Attend(layer);
    const bool only_outputs = has_selected_ && layer + 1 == role_.num_layers;
    for (size_t i = 0; i < stripes_.size(); ++i) {
      if (only_outputs) {
        stripes_[i]->EndOutputs(layer, Own(i), stripes_[i]->OutputRows(Own(i)));
      } else if (rows_[i] > 0) {
        stripes_[i]->EndLayer(layer, Own(i));
      }
    }
    CopyHidden(tap, layer + 1);
  }
}

// Devices that have the same heads of different positions form a ring.
void StripedStage::Attend(int layer) {
  std::vector<RingAttentionCall> rings(sharers_);
  for (size_t i = 0; i < stripes_.size(); ++i) {
    const std::vector<AttentionCall> calls = stripes_[i]->BeginLayer(layer, Own(i));
    for (size_t j = 0; j < sharers_; ++j) {
      if (calls[j].cache == nullptr) continue;  // fewer KV heads than devices
      const size_t device = i * sharers_ + j;
      RingAttentionCall& ring = rings[j];
      ring.site = calls[j].site;
      ring.parts.push_back(calls[j]);
      ring.parts.back().pass = passes_[device].get();
      const Buffer& scratch = rings_[device];
      ring.scratch.push_back(
          MakeView(scratch.data(), DType::kU8, devices_[device], static_cast<int64_t>(scratch.bytes())));
    }
  }
  for (const RingAttentionCall& ring : rings) {
    if (!ring.parts.empty()) backend_.RingAttention(ring);
  }
}

void StripedStage::RunHead(size_t lane, int64_t first, int64_t count, int64_t output_rows, bool only_largest) {
  STOCH_CHECK(first + count <= output_rows && output_rows == static_cast<int64_t>(outputs_.size()));
  const std::vector<TensorView> inputs = stripes_[0]->HeadInput(lane, 0, count);
  const auto places =
      std::span(has_selected_ ? selected_ : outputs_).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
  ForRuns(places, [&](size_t stripe, int64_t row, size_t begin, int64_t rows) {
    const DecoderStage& from_stage = *stripes_[stripe];
    const TensorView from = Slice(
        has_selected_ ? from_stage.OutputRows(Own(stripe)).front() : from_stage.Hidden(Own(stripe)), 0, row, rows);
    for (const TensorView& input : inputs) {
      backend_.Copy(Slice(input, 0, static_cast<int64_t>(begin), rows), from);
    }
  });
  std::vector<std::vector<uint64_t>> of_stripe;
  for (const auto& stripe : stripes_) of_stripe.push_back(stripe->OutputFaultRows(lane));
  std::vector<uint64_t> faults;
  for (const RowPlace& place : std::span(selected_).subspan(static_cast<size_t>(first), static_cast<size_t>(count))) {
    const std::vector<uint64_t>& rows = of_stripe[place.stripe];
    if (!rows.empty()) faults.push_back(rows[static_cast<size_t>(place.row)]);
  }
  stripes_[0]->RunHead(lane, 0, count, count, only_largest, faults);
}

}  // namespace stoch
