// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/stage.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "models/decoder/layer_calls.h"
#include "models/sc_plan.h"

namespace stoch {
namespace {

// A device has some of the heads, so no length may depend on all of them.
void CheckHeadsAlone(const KvCacheSpec::Products& products) {
  for (const ScExtrasPtr& extras : {products.qk_extras, products.av_extras}) {
    const bool alone = extras == nullptr || extras->lengths == nullptr ||
                       extras->lengths->normalise == ScNormalise::kFixed ||
                       extras->lengths->scope == ScLengthScope::kFractions;
    if (alone) continue;
    throw InvalidInput(
        "normalise=call places a row of qk and av between the extremes of all heads, which devices that share a "
        "layer do not have: give --split layer, or a table with metric_lo and metric_hi");
  }
}

}  // namespace

DecoderStage::DecoderStage(Backend& backend, const DecoderConfig& config, const DecoderOptions& options,
                           const DecoderWeights& weights, std::span<const DecoderShard> shards, size_t first_shard,
                           std::span<DecoderWorkspace* const> workspaces, const Role& role)
    : backend_(backend),
      config_(config),
      options_(options),
      dilated_(options.precision == Precision::kSc ? options.sc.DilatedPairs() : std::vector<DilatedPair>{}),
      tables_(options.precision == Precision::kSc ? options.sc.tables : ScTables{}),
      weights_(weights),
      first_shard_(first_shard),
      role_(role),
      draws_faults_(options.precision == Precision::kSc && DrawsFaultsByRow(options.sc)),
      rows_alone_(options.precision != Precision::kSc || IsChunkInvariant(options.sc)) {
  for (const DecoderShard& shard : shards) devices_.push_back(shard.device);
  STOCH_CHECK(workspaces.size() == shards.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    Part& part = parts_.emplace_back();
    part.shard = shards[i];
    part.workspace = workspaces[i];
    part.passes.resize(static_cast<size_t>(options.shape.lanes));
    if (role.num_layers == 0 || part.shard.kv_heads.empty()) continue;
    KvCacheSpec spec = MakeKvCacheSpec(config, options.precision, options.sc, role.num_layers, NumPages(options.shape));
    spec.num_kv_heads = static_cast<int>(part.shard.kv_heads.size());
    spec.stripes = part.shard.stripe.count;
    if (spec.mode != AttentionMode::kExact) {
      ScPlan plan(options.sc, config);
      spec.layers = plan.AttentionLayers(role.first_layer, role.num_layers);
      for (const KvCacheSpec::Products& layer : spec.layers) {
        if (shards.size() > 1) CheckHeadsAlone(layer);
      }
    }
    part.cache = backend.MakeKvCache(part.shard.device, spec);
    kv_cache_bytes_ += part.cache->bytes();
  }
}

void DecoderStage::KeepFaultRows(size_t lane, size_t index, const PassLayout& layout) {
  fault_rows_.resize(std::max(fault_rows_.size(), lane + 1));
  fault_rows_[lane].resize(index + 1);
  FaultRows& rows = fault_rows_[lane][index];
  rows = {};
  if (!draws_faults_) return;
  const Stripe& stripe = parts_.front().shard.stripe;
  for (const PassLayout::Sequence& sequence : layout.sequences) {
    for (int32_t i = 0; i < sequence.num_rows; ++i) {
      rows.all.push_back(FaultRow(sequence.number, stripe.Absolute(int64_t{sequence.start_position} + i)));
    }
  }
  for (const int32_t row : layout.output_rows) rows.outputs.push_back(rows.all[static_cast<size_t>(row)]);
}

std::vector<uint64_t> DecoderStage::OutputFaultRows(size_t lane) const {
  std::vector<uint64_t> rows;
  if (!draws_faults_ || lane >= fault_rows_.size()) return rows;  // a stripe may have had no pass yet
  for (const FaultRows& piece : fault_rows_[lane]) {
    rows.insert(rows.end(), piece.outputs.begin(), piece.outputs.end());
  }
  return rows;
}

void DecoderStage::Upload(size_t lane, size_t index, const PassLayout& layout) {
  KeepFaultRows(lane, index, layout);
  const PassShape& shape = options_.shape;
  const int64_t pages_per_sequence = PagesOf(shape.context);
  for (Part& part : parts_) {
    std::vector<std::unique_ptr<Pass>>& passes = part.passes[lane];
    while (passes.size() <= index) {
      const int64_t max_rows = ShapeOn(shape, part.shard).max_rows;
      passes.push_back(backend_.MakePass(part.shard.device, {max_rows, shape.max_sequences, pages_per_sequence}));
    }
    backend_.UploadPass(*passes[index], layout);
  }
}

TensorView DecoderStage::Hidden(const Part& part, const Piece& piece) const {
  return Slice(MatrixIn(part.workspace->hidden[piece.lane], piece.first_row + piece.rows, config_.hidden_size), 0,
               piece.first_row, piece.rows);
}

std::optional<TensorView> DecoderStage::Outputs(const Piece& piece) const {
  if (!has_outputs_ || !role_.leaves_outputs) return std::nullopt;
  return OutputRows(piece).front();
}

TensorView DecoderStage::Logits(size_t lane, int64_t count) const {
  return MatrixIn(parts_[0].workspace->logits[lane], count, config_.vocab_size);
}

void DecoderStage::Receive(const Piece& piece, const TensorView& hidden) {
  for (const Part& part : parts_) backend_.Copy(Hidden(part, piece), hidden);
}

void DecoderStage::CopyHidden(const HiddenTap& tap, int layers, const Piece& piece) {
  if (tap.layers != layers) return;
  backend_.CopyToHost(tap.rows + piece.first_row * config_.hidden_size, Hidden(piece));
}

void DecoderStage::Run(const Piece& piece, const HiddenTap& tap) {
  if (role_.embeds) {
    Embed(piece);
    CopyHidden(tap, 0, piece);
  }
  for (int i = 0; i < role_.num_layers; ++i) {
    const bool is_last = (role_.has_head || role_.leaves_outputs) && i + 1 == role_.num_layers;
    const bool only_outputs =
        is_last && piece.outputs < piece.rows && !WantsAllRows(tap) && HasRoomForOutputs(piece, role_.leaves_outputs);
    Attend(i, piece, only_outputs);
    has_outputs_ = only_outputs;
    if (only_outputs && role_.leaves_outputs) return EndOutputs(i, piece, OutputRows(piece));
    if (only_outputs) return EndOutputs(i, piece, HeadInput(piece.lane, piece.first_output, piece.outputs));
    EndLayer(i, piece, i + 1 < role_.num_layers);
    CopyHidden(tap, role_.first_layer + i + 1, piece);
  }
  if (!role_.has_head || piece.outputs == 0) return;
  const std::vector<TensorView> inputs = HeadInput(piece.lane, piece.first_output, piece.outputs);
  for (size_t i = 0; i < parts_.size(); ++i) {
    backend_.SelectRows(parts_[i].pass(piece), Hidden(parts_[i], piece), inputs[i]);
  }
}

void DecoderStage::Embed(const Piece& piece) {
  const int stripe = parts_[0].shard.stripe.index;
  const EmbeddingTable& table =
      stripe == 0 ? *weights_.embedding : *weights_.more_embeddings[static_cast<size_t>(stripe - 1)];
  backend_.Embed(table, parts_[0].pass(piece), Hidden(piece));
  if (config_.embedding_multiplier != 1) {
    // x + (m - 1) x, the rounded sum of both: m x to the bit where that many bits of x are 0, as in 16-bit weights.
    const TensorView again = MatrixIn(parts_[0].workspace->branch, piece.rows, config_.hidden_size);
    backend_.Embed(table, parts_[0].pass(piece), again);
    AddScaled({-1, "embed"}, again, FactorsOf(parts_[0], piece.rows, true), Hidden(piece));
  }
  if (!divided()) return;
  AllGatherCall spread;
  spread.site = {-1, "embed"};
  for (const Part& part : parts_) {
    spread.to.push_back(Hidden(part, piece));
    spread.from.push_back(spread.from.empty() ? spread.to[0] : Slice(spread.to.back(), 1, 0, 0));
  }
  backend_.AllGather(spread);
}

bool DecoderStage::WantsAllRows(const HiddenTap& tap) const {
  return !rows_alone_ || tap.layers == config_.num_hidden_layers || backend_.is_observed();
}

bool DecoderStage::HasRoomForOutputs(const Piece& piece, bool with_hidden) const {
  const int64_t row = config_.num_attention_heads * config_.head_dim + (with_hidden ? config_.hidden_size : 0);
  const int64_t bytes = piece.outputs * row * 4;
  return std::all_of(parts_.begin(), parts_.end(),
                     [bytes](const Part& part) { return bytes <= static_cast<int64_t>(part.workspace->qkv.bytes()); });
}

std::vector<TensorView> DecoderStage::OutputRows(const Piece& piece) const {
  const int64_t attended = piece.outputs * config_.num_attention_heads * config_.head_dim;
  std::vector<TensorView> rows;
  for (const Part& part : parts_) {
    rows.push_back(MatrixIn(part.workspace->qkv, piece.outputs, config_.hidden_size, attended));
  }
  return rows;
}

std::vector<TensorView> DecoderStage::HeadInput(size_t lane, int64_t first, int64_t count) const {
  std::vector<TensorView> inputs;
  for (const Part& part : parts_) {
    inputs.push_back(
        Slice(MatrixIn(part.workspace->head_input[lane], first + count, config_.hidden_size), 0, first, count));
  }
  return inputs;
}

void DecoderStage::RunHead(size_t lane, int64_t first, int64_t count, int64_t output_rows, bool only_largest) {
  const std::vector<uint64_t> rows = OutputFaultRows(lane);
  std::span<const uint64_t> fault_rows = rows;
  if (!rows.empty()) fault_rows = fault_rows.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
  RunHead(lane, first, count, output_rows, only_largest, fault_rows);
}

void DecoderStage::RunHead(size_t lane, int64_t first, int64_t count, int64_t output_rows, bool only_largest,
                           std::span<const uint64_t> fault_rows) {
  STOCH_CHECK(role_.has_head);
  AllGatherCall gather;
  gather.site = {-1, "lm_head"};
  gather.to = {Logits(lane, count)};
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    const IndexRange& vocab = part.shard.vocab;
    gather.from.push_back(i == 0 ? Columns(gather.to[0], vocab)
                                 : MatrixIn(part.workspace->logits[lane], count, vocab.size()));
    if (vocab.empty()) continue;
    LinearCall project;
    project.site = gather.site;
    project.x = Slice(MatrixIn(part.workspace->head_input[lane], output_rows, config_.hidden_size), 0, first, count);
    AddNorm(weights_.head[i].final_norm, config_.rms_norm_eps, tables_.rms_norm.table.get(), &project);
    project.weights = {weights_.head[i].lm_head.get()};
    project.outs = {gather.from.back()};
    project.fault_rows = fault_rows;
    project.only_largest = only_largest && config_.logit_cap == 0;  // a cap may make equals of unequal logits
    backend_.Linear(project);
    if (config_.logit_cap > 0) {
      backend_.SoftCap({gather.site, gather.from.back(), static_cast<float>(config_.logit_cap)});
    }
  }
  if (divided()) backend_.AllGather(gather);
}

void DecoderStage::AnswerQueries(size_t lane, int64_t first, int64_t count, const QueryRange& picks,
                                 const QueryRange& logprobs) {
  const LogitRows logits{Logits(lane, count), first};
  if (picks.count > 0) backend_.PickTokens(logits, queries(lane), picks);
  if (logprobs.count > 0) backend_.LogProbs(logits, queries(lane), logprobs);
}

}  // namespace stoch
