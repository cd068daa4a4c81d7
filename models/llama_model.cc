#include "models/llama_model.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "models/rope_table.h"

namespace stoch {
namespace {

// Backends remember graphs by key; two models on one backend must not share any.
std::string NextModelKey() {
  static std::atomic<uint64_t> next{0};
  return "llama" + std::to_string(next++);
}

// A dense F32 matrix at the start of a buffer.
TensorView MatrixIn(const Buffer& buffer, int64_t rows, int64_t cols) {
  STOCH_CHECK(rows * cols * 4 <= static_cast<int64_t>(buffer.bytes()));
  return MakeView(buffer.data(), DType::kF32, buffer.device(), rows, cols);
}

// out = x @ weights^T, every weight of the group on its own columns of `out`.
LinearCall Project(const OpSite& site, const TensorView& x, const LinearGroup& group, const TensorView& out) {
  LinearCall call;
  call.site = site;
  call.x = x;
  int64_t begin = 0;
  for (const auto& weight : group.weights) {
    call.weights.push_back(weight.get());
    call.outs.push_back(Slice(out, 1, begin, weight->rows()));
    begin += weight->rows();
  }
  STOCH_CHECK(begin == out.dim(1));
  return call;
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

// Consecutive layers on one device with everything they need there. The residual stream hops between stages.
struct LlamaModel::Stage {
  Device device;
  bool embeds = false;  // starts from token ids, else from the previous stage's hidden states
  bool has_head = false;
  int first_layer = 0;
  int num_layers = 0;
  std::unique_ptr<KvCache> cache;
  std::unique_ptr<Pass> pass;
  Buffer hidden, head_input, qkv, attention, gate_up, logits, rope;
};

LlamaModel::LlamaModel(Backend& backend, const ModelFiles& files, const Options& options)
    : backend_(&backend),
      config_(files.config),
      options_(options),
      graph_key_(NextModelKey()),
      sizes_(MakeWorkspaceSizes(files.config, options.shape)) {
  CheckAttentionAccumulator(MakeKvCacheSpec(config_, options.precision, options.sc, 1, 1), options.shape.context);
  weights_ = LoadLlamaWeights(backend, files, options.precision, options.sc, options.placement, options.progress);
  MakeStages();
}

LlamaModel::~LlamaModel() = default;

void LlamaModel::MakeStages() {
  const LlamaPlacement& placement = options_.placement;
  const auto on = [this](Device device) -> Stage& {
    if (stages_.empty() || stages_.back()->device != device) {
      stages_.push_back(std::make_unique<Stage>());
      stages_.back()->device = device;
    }
    return *stages_.back();
  };
  on(placement.embedding).embeds = true;
  for (size_t i = 0; i < placement.layers.size(); ++i) {
    Stage& stage = on(placement.layers[i]);
    if (stage.num_layers == 0) stage.first_layer = static_cast<int>(i);
    ++stage.num_layers;
  }
  on(placement.head).has_head = true;
  for (const auto& stage : stages_) Allocate(*stage);
}

void LlamaModel::Allocate(Stage& stage) {
  const auto buffer = [&](int64_t bytes) {
    workspace_bytes_ += bytes;
    return backend_->Allocate(stage.device, bytes);
  };
  const PassShape& shape = options_.shape;
  stage.hidden = buffer(sizes_.hidden);
  if (stage.num_layers > 0) {
    stage.qkv = buffer(sizes_.qkv);
    stage.attention = buffer(sizes_.attention);
    stage.gate_up = buffer(sizes_.gate_up);
    stage.rope = buffer(sizes_.rope);
    const std::vector<float> table = MakeRopeTable(config_, shape.context);
    backend_->CopyFromHost(Rope(stage), table.data());
    stage.cache = backend_->MakeKvCache(
        stage.device, MakeKvCacheSpec(config_, options_.precision, options_.sc, stage.num_layers, NumPages(shape)));
    kv_cache_bytes_ += stage.cache->bytes();
  }
  if (stage.has_head) {
    stage.head_input = buffer(sizes_.hidden);
    stage.logits = buffer(sizes_.logits);
  }
  const int64_t pages_per_sequence = (shape.context + kKvPageTokens - 1) / kKvPageTokens;
  stage.pass = backend_->MakePass(stage.device, {shape.max_rows, options_.max_sequences, pages_per_sequence});
}

TensorView LlamaModel::Rope(const Stage& stage) const {
  return MatrixIn(stage.rope, options_.shape.context, config_.head_dim);
}

TensorView LlamaModel::Hidden(const Stage& stage, int64_t rows) const {
  return MatrixIn(stage.hidden, rows, config_.hidden_size);
}

void LlamaModel::Forward(const PassLayout& layout) {
  const auto rows = static_cast<int64_t>(layout.ids.size());
  output_rows_ = static_cast<int64_t>(layout.output_rows.size());
  logits_count_ = 0;
  const int64_t first_logits = std::min(output_rows_, options_.shape.max_logit_rows);

  // Passes of one token per sequence repeat with the same shapes; a prompt's shape rarely comes twice.
  std::string key;
  if (rows == static_cast<int64_t>(layout.sequences.size()) && output_rows_ == rows && first_logits == rows) {
    key = graph_key_ + ":rows=" + std::to_string(rows);
  }
  for (const auto& stage : stages_) backend_->UploadPass(*stage->pass, layout);
  for (size_t i = 0; i < stages_.size(); ++i) {
    Stage& stage = *stages_[i];
    if (!stage.embeds) backend_->Copy(Hidden(stage, rows), Hidden(*stages_[i - 1], rows));
    backend_->RunGraph(stage.device, key.empty() ? key : key + ",stage=" + std::to_string(i), [&] {
      RunStage(stage, rows);
      if (stage.has_head && first_logits > 0) RunHead(stage, 0, first_logits);
    });
  }
  for (const auto& stage : stages_) backend_->CheckFinite(stage->device);
  logits_count_ = first_logits;
  logits_first_ = 0;
}

void LlamaModel::RunStage(Stage& stage, int64_t rows) {
  const TensorView hidden = Hidden(stage, rows);
  if (stage.embeds) backend_->Embed(*weights_.embedding, *stage.pass, hidden);
  for (int i = 0; i < stage.num_layers; ++i) RunLayer(stage, i, rows);
  if (stage.has_head && output_rows_ > 0) {
    backend_->GatherOutputRows(*stage.pass, hidden, MatrixIn(stage.head_input, output_rows_, config_.hidden_size));
  }
}

void LlamaModel::RunLayer(Stage& stage, int cache_layer, int64_t rows) {
  const int index = stage.first_layer + cache_layer;
  const LlamaLayerWeights& layer = weights_.layers[static_cast<size_t>(index)];
  const int64_t q_cols = config_.num_attention_heads * config_.head_dim;
  const int64_t kv_cols = config_.num_key_value_heads * config_.head_dim;
  const TensorView hidden = Hidden(stage, rows);
  const TensorView qkv = MatrixIn(stage.qkv, rows, q_cols + 2 * kv_cols);
  const TensorView attended = MatrixIn(stage.attention, rows, q_cols);
  const TensorView gate_up = MatrixIn(stage.gate_up, rows, 2 * config_.intermediate_size);

  LinearCall project_qkv = Project({index, "qkv_proj"}, hidden, layer.qkv, qkv);
  AddNorm(project_qkv, layer.input_norm);
  backend_->Linear(project_qkv);

  AttentionCall attention;
  attention.site = {index, "attention"};
  attention.q = Slice(qkv, 1, 0, q_cols);
  attention.k = Slice(qkv, 1, q_cols, kv_cols);
  attention.v = Slice(qkv, 1, q_cols + kv_cols, kv_cols);
  attention.rope = Rope(stage);
  attention.cache = stage.cache.get();
  attention.cache_layer = cache_layer;
  attention.pass = stage.pass.get();
  attention.num_heads = static_cast<int>(config_.num_attention_heads);
  attention.out = attended;
  backend_->Attention(attention);

  LinearCall project_o = Project({index, "o_proj"}, attended, layer.o, hidden);
  project_o.add_to_out = true;
  backend_->Linear(project_o);

  LinearCall project_gate_up = Project({index, "gate_up_proj"}, hidden, layer.gate_up, gate_up);
  AddNorm(project_gate_up, layer.post_attention_norm);
  backend_->Linear(project_gate_up);

  const TensorView gate = Slice(gate_up, 1, 0, config_.intermediate_size);
  LinearCall project_down = Project({index, "down_proj"}, gate, layer.down, hidden);
  project_down.prologue = Prologue::kSiluMul;
  project_down.x2 = Slice(gate_up, 1, config_.intermediate_size, config_.intermediate_size);
  project_down.add_to_out = true;
  backend_->Linear(project_down);
}

void LlamaModel::AddNorm(LinearCall& call, const Buffer& weight) const {
  call.prologue = Prologue::kRmsNorm;
  call.norm_weight = MakeView(weight.data(), DType::kF32, call.x.device, config_.hidden_size);
  call.norm_eps = static_cast<float>(config_.rms_norm_eps);
}

void LlamaModel::RunHead(Stage& stage, int64_t first, int64_t count) {
  const TensorView input = MatrixIn(stage.head_input, output_rows_, config_.hidden_size);
  LinearCall project;
  project.site = {-1, "lm_head"};
  project.x = Slice(input, 0, first, count);
  AddNorm(project, weights_.final_norm);
  project.weights = {weights_.lm_head.get()};
  project.outs = {MatrixIn(stage.logits, count, config_.vocab_size)};
  backend_->Linear(project);
}

TensorView LlamaModel::Logits(int64_t first, int64_t count) {
  STOCH_CHECK(first >= 0 && count > 0 && first + count <= output_rows_ && count <= options_.shape.max_logit_rows);
  Stage& stage = *stages_.back();
  if (first < logits_first_ || first + count > logits_first_ + logits_count_) {
    logits_count_ = 0;
    RunHead(stage, first, count);
    backend_->CheckFinite(stage.device);
    logits_first_ = first;
    logits_count_ = count;
  }
  const TensorView logits = MatrixIn(stage.logits, logits_count_, config_.vocab_size);
  return Slice(logits, 0, first - logits_first_, count);
}

}  // namespace stoch
