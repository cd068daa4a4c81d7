#include "models/llama_model.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "models/llama_stage.h"

namespace stoch {
namespace {

// Backends remember graphs by key; two models on one backend must not share any.
std::string NextModelKey() {
  static std::atomic<uint64_t> next{0};
  return "llama" + std::to_string(next++);
}

// av sums over positions; the other bounds are checked where weights are loaded.
void CheckAttentionAccumulator(const KvCacheSpec& spec, int64_t context) {
  if (spec.mode == AttentionMode::kExact) return;
  if (context * spec.av->max_count < (int64_t{1} << 31)) return;
  throw InvalidInput("context " + std::to_string(context) + " times stoc_len " +
                     std::to_string(spec.av->config.stoc_len) +
                     " of av overflows its int32 sum; allowed is below 2^31");
}

}  // namespace

LlamaModel::LlamaModel(Backend& backend, const ModelFiles& files, const Options& options)
    : backend_(&backend), config_(files.config), options_(options), graph_key_(NextModelKey()) {
  CheckAttentionAccumulator(MakeKvCacheSpec(config_, options.precision, options.sc, 1, 1), options.shape.context);
  weights_ = LoadLlamaWeights(backend, files, options.precision, options.sc, options.placement, options.progress);
  const bool is_sc = options.precision == Precision::kSc;
  cut_rules_ = {!is_sc || IsBatchInvariant(options.sc), !is_sc || IsChunkInvariant(options.sc)};
  MakeStages();
}

LlamaModel::~LlamaModel() = default;

void LlamaModel::MakeStages() {
  const LlamaPlacement& placement = options_.placement;
  struct Plan {
    Device device;
    LlamaStage::Role role;
  };
  std::vector<Plan> plans;
  const auto on = [&plans](Device device) -> LlamaStage::Role& {
    if (plans.empty() || plans.back().device != device) plans.push_back({device, {}});
    return plans.back().role;
  };
  on(placement.embedding).embeds = true;
  for (size_t i = 0; i < placement.layers.size(); ++i) {
    LlamaStage::Role& role = on(placement.layers[i]);
    if (role.num_layers == 0) role.first_layer = static_cast<int>(i);
    ++role.num_layers;
  }
  on(placement.head).has_head = true;
  for (const Plan& plan : plans) {
    const std::span<const Device> alone(&plan.device, 1);
    const std::span<const Device> devices = placement.rows.empty() ? alone : std::span<const Device>(placement.rows);
    stages_.push_back(std::make_unique<LlamaStage>(*backend_, config_, options_, weights_, devices, plan.role));
    kv_cache_bytes_ += stages_.back()->kv_cache_bytes();
    workspace_bytes_ += stages_.back()->workspace_bytes();
  }
}

void LlamaModel::Forward(const PassLayout& layout) {
  const auto rows = static_cast<int64_t>(layout.ids.size());
  output_rows_ = static_cast<int64_t>(layout.output_rows.size());
  logits_count_ = 0;
  const int64_t first_logits = std::min(output_rows_, options_.shape.max_logit_rows);
  const std::vector<MicroBatch> pieces =
      CutPass(layout, PiecesFor(rows, static_cast<int64_t>(stages_.size()), options_.min_piece_rows), cut_rules_);

  // Passes of one token per sequence repeat with the same shapes; a prompt's shape rarely comes twice.
  std::string key;
  if (rows == static_cast<int64_t>(layout.sequences.size()) && output_rows_ == rows && first_logits == rows) {
    key = graph_key_ + ":rows=" + std::to_string(rows) + ",pieces=" + std::to_string(pieces.size());
  }
  // Everything is issued at once. A stage's device takes the pieces in turn, while the stages behind it work on those
  // before.
  for (size_t p = 0; p < pieces.size(); ++p) {
    for (const auto& stage : stages_) stage->Upload(p, pieces[p].layout);
  }
  for (size_t p = 0; p < pieces.size(); ++p) {
    const bool is_last = p + 1 == pieces.size();
    const LlamaStage::Piece piece{p, pieces[p].first_row, static_cast<int64_t>(pieces[p].layout.ids.size()),
                                  pieces[p].first_output, static_cast<int64_t>(pieces[p].layout.output_rows.size())};
    for (size_t i = 0; i < stages_.size(); ++i) {
      LlamaStage& stage = *stages_[i];
      if (!stage.role().embeds) stage.Receive(piece, stages_[i - 1]->Hidden(piece));
      const std::string part = ",stage=" + std::to_string(i) + ",piece=" + std::to_string(p);
      backend_->RunGraph(stage.devices(), key.empty() ? key : key + part, [&] {
        stage.Run(piece);
        if (is_last && stage.role().has_head && first_logits > 0) stage.RunHead(0, first_logits, output_rows_);
      });
    }
  }
  CheckFinite();
  logits_count_ = first_logits;
  logits_first_ = 0;
}

void LlamaModel::CheckFinite() {
  for (const auto& stage : stages_) {
    for (const Device& device : stage->devices()) backend_->CheckFinite(device);
  }
}

TensorView LlamaModel::Logits(int64_t first, int64_t count) {
  STOCH_CHECK(first >= 0 && count > 0 && first + count <= output_rows_ && count <= options_.shape.max_logit_rows);
  LlamaStage& stage = *stages_.back();
  if (first < logits_first_ || first + count > logits_first_ + logits_count_) {
    logits_count_ = 0;
    stage.RunHead(first, count, output_rows_);
    CheckFinite();
    logits_first_ = first;
    logits_count_ = count;
  }
  return Slice(stage.Logits(logits_count_), 0, first - logits_first_, count);
}

}  // namespace stoch
