// SPDX-License-Identifier: Apache-2.0
#include "research/vectors/vector_operands.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "engine/perplexity.h"
#include "kernels/base/error.h"
#include "loader/config/decoder_tensors.h"
#include "loader/range_text.h"
#include "models/sc_plan.h"
#include "research/calibrate/exact_windows.h"
#include "research/operand_capture.h"
#include "research/reference.h"

namespace stoch {
namespace {

[[noreturn]] void Refuse(const std::string& why) { throw InvalidInput("vectors: " + why); }

bool IsAttention(ScOperatorId id) { return id == ScOperatorId::kQk || id == ScOperatorId::kAv; }

void CheckRange(const char* what, int64_t first, int64_t last, int64_t count) {
  if (first >= 0 && first <= last && last < count) return;
  if (first >= 0 && first > last) Refuse(fmt::format("--{} {}-{}: the first is after the last", what, first, last));
  const std::string given = first == last ? std::to_string(first) : fmt::format("{}-{}", first, last);
  Refuse(fmt::format("--{} {}: allowed is {}", what, given, RangeText(0, count - 1)));
}

std::vector<int64_t> Indices(int64_t first, int64_t last) {
  std::vector<int64_t> indices;
  for (int64_t i = first; i <= last; ++i) indices.push_back(i);
  return indices;
}

// Columns [first, first + count) of rows [begin, end].
HostMatrix Part(const HostMatrix& x, int64_t begin, int64_t end, int64_t first, int64_t count) {
  HostMatrix part{end - begin + 1, count, {}};
  for (int64_t row = begin; row <= end; ++row) {
    part.values.insert(part.values.end(), x.row(row) + first, x.row(row) + first + count);
  }
  return part;
}

const BlockLinear& MatrixOf(const DecoderConfig& config, ScOperatorId op) {
  const auto& linears = config.architecture->linears;
  return *std::find_if(linears.begin(), linears.end(),
                       [op](const BlockLinear& linear) { return OperatorOf(linear.id) == op; });
}

void CheckProducts(const VectorChoice& choice, int64_t dims) {
  CheckVectorProducts(choice.last_row - choice.first_row + 1, choice.last_output - choice.first_output + 1, dims);
}

// Requires that the operator multiplies streams and adds with a counter. Errors: InvalidInput that names it.
void CheckStreams(const ScOperatorPtr& op, const std::string& name) {
  if (op == nullptr || op->config.arith != ScArith::kSc || !HasSource(op->config.gate)) {
    Refuse(name + " multiplies no streams: allowed is arith = sc and a gate of streams");
  }
  if (op->config.adder != ScAdder::kCounter) Refuse(name + " has an adder of gates: allowed is adder = counter");
}

void CheckLinear(ScPlan* plan, const DecoderConfig& config, const VectorChoice& choice, const std::string& name) {
  const LinearSpec spec = plan->Linear(choice.layer, choice.op);
  CheckStreams(spec.sc, name);
  const ScConfig& op = spec.sc->config;
  if (op.granularity != ScGranularity::kPerRow || op.group_a != 1 || op.group_b != 1) {
    Refuse("scales of several rows: allowed is granularity = per_row");
  }
  if (spec.extras != nullptr && (spec.extras->lengths != nullptr || spec.extras->protected_op != nullptr)) {
    Refuse("mixed lengths and protected channels are not written: leave out --mp");
  }
  const BlockLinear& linear = MatrixOf(config, choice.op);
  CheckRange("outputs", choice.first_output, choice.last_output, SizeOf(config, linear.out));
  CheckProducts(choice, SizeOf(config, linear.in));
}

void CheckAttention(ScPlan* plan, const ScModelConfig& sc, const DecoderConfig& config, const VectorChoice& choice,
                    const std::string& name) {
  if (sc.attention != AttentionMode::kPerToken || sc.dilated.enabled) {
    Refuse("attention: allowed is attention = per_token");
  }
  const KvCacheSpec::Products products = plan->Attention(choice.layer);
  CheckStreams(choice.op == ScOperatorId::kQk ? products.qk : products.av, name);
  if (products.qk_extras != nullptr && products.qk_extras->lengths != nullptr) {
    Refuse("mixed lengths are not written: leave out --mp");
  }
  if (config.WindowOf(choice.layer) > 0) Refuse("layers with a sliding window are not written");
  CheckRange("head", choice.head, choice.head, config.num_attention_heads);
  if (choice.op == ScOperatorId::kQk) {
    CheckRange("outputs", choice.first_output, choice.last_output, choice.first_row + 1);  // visible keys
    return CheckProducts(choice, config.head_dim);
  }
  if (choice.first_row != choice.last_row) Refuse("av takes one row: rows see different numbers of positions");
  CheckRange("outputs", choice.first_output, choice.last_output, config.head_dim);
  CheckProducts(choice, choice.first_row + 1);
}

// The same product on ideal hardware: codes keep their faults, sums have none.
ScConfig Ideal(ScConfig config) {
  config.acc_bits = config.acc_group = 0;
  config.fault_product = config.fault_acc = 0;
  config.fault_acc_bit = -1;
  return config;
}

// Ends the observation of a backend, also after an error.
class Observation {
 public:
  Observation(Backend& backend, OpObserver* observer) : backend_(backend) {
    if (!backend.Observe(observer)) Refuse("runs on the CPU only: give --device cpu");
  }
  ~Observation() { backend_.Observe(nullptr); }
  Observation(const Observation&) = delete;
  Observation& operator=(const Observation&) = delete;

 private:
  Backend& backend_;
};

WindowOperands RunWindow(Engine& engine, std::span<const int32_t> ids, const VectorChoice& choice) {
  OperandCapture capture(false, nullptr);
  const Observation observation(engine.backend(), &capture);
  PerplexityOptions options;
  options.ctx = choice.ctx;
  options.windows = std::vector<int64_t>{choice.window};
  EvaluatePerplexity(engine, ids, options);
  return capture.Take();
}

// What all operands have besides their numbers.
VectorOperands Named(const VectorChoice& choice, const Engine& engine, const ScConfig& config) {
  VectorOperands operands;
  operands.op = MakeScOperator(config);
  operands.name = fmt::format("{}.{}", choice.layer, ScOperatorName(choice.op));
  if (IsAttention(choice.op)) operands.name += fmt::format(".h{}", choice.head);
  operands.config = engine.sc_description();
  operands.rows = Indices(choice.first_row, choice.last_row);
  operands.outputs = Indices(choice.first_output, choice.last_output);
  return operands;
}

void Keep(const ReferenceProduct& product, int64_t dims, int64_t chunk_d, VectorOperands* operands) {
  operands->dims = dims;
  operands->chunk_d = chunk_d;
  operands->codes_a = product.codes_a;
  operands->codes_b = product.codes_b;
  operands->scale_a = product.scale_a;
  operands->scale_b = product.scale_b;
}

class Capture {
 public:
  Capture(Engine& engine, const ModelFiles& files, const VectorChoice& choice)
      : engine_(engine),
        config_(engine.config()),
        files_(files),
        choice_(choice),
        plan_(engine.options().sc, config_) {}

  VectorOperands Of(const WindowOperands& window) {
    if (choice_.op == ScOperatorId::kQk) return Scores(window);
    return choice_.op == ScOperatorId::kAv ? Values(window) : Linear(window);
  }

 private:
  ScSite SiteOf(ScOperatorId op, int64_t unit, int64_t position) const {
    ScSite site{.layer = choice_.layer, .op = static_cast<int>(op), .unit = unit};
    site.first_row = FaultRow(static_cast<uint32_t>(choice_.window), position);
    return site;
  }

  VectorOperands Linear(const WindowOperands& window) {
    const BlockLinear& linear = MatrixOf(config_, choice_.op);
    const LinearSpec spec = plan_.Linear(choice_.layer, choice_.op);
    const HostMatrix& x = window.inputs.at({choice_.layer, std::string(GroupName(linear.group))});
    const WeightSource source = files_.weights->Matrix(LayerTensorName(choice_.layer, linear.tensor),
                                                       SizeOf(config_, linear.out), SizeOf(config_, linear.in));
    HostMatrix a = Part(x, choice_.first_row, choice_.last_row, 0, x.cols);
    HostMatrix b = Part(ReadWeight(source, 1), choice_.first_output, choice_.last_output, 0, x.cols);
    if (spec.extras != nullptr && !spec.extras->smooth.empty()) {
      a = Smoothed(a, spec.extras->smooth, false);
      b = Smoothed(b, spec.extras->smooth, true);
    }
    const ScConfig config = Ideal(spec.sc->config);
    ScSite site = SiteOf(choice_.op, 0, choice_.first_row);
    site.first_output = choice_.first_output;
    VectorOperands operands = Named(choice_, engine_, config);
    Keep(MultiplyReference(a, b, config, {}, site), a.cols,
         config.chunk_d > 0 ? std::min(config.chunk_d, a.cols) : a.cols, &operands);
    return operands;
  }

  HostMatrix Query(const AttentionOperands& attention, int64_t last) const {
    return Part(attention.q, choice_.first_row, last, choice_.head * config_.head_dim, config_.head_dim);
  }
  int64_t kv_head() const { return choice_.head / (config_.num_attention_heads / config_.num_key_value_heads); }

  VectorOperands Scores(const WindowOperands& window) {
    const AttentionOperands& attention = window.attention.at(choice_.layer);
    const ScConfig config = Ideal(plan_.Attention(choice_.layer).qk->config);
    const HostMatrix k =
        Part(attention.k, choice_.first_output, choice_.last_output, kv_head() * config_.head_dim, config_.head_dim);
    ScSite site = SiteOf(ScOperatorId::kQk, choice_.head, choice_.first_row);
    site.first_output = choice_.first_output;
    const ScSite cached = SiteOf(ScOperatorId::kQk, kv_head(), choice_.first_output);
    VectorOperands operands = Named(choice_, engine_, config);
    Keep(MultiplyReference(Query(attention, choice_.last_row), k, config, {}, site, &cached), config_.head_dim,
         config_.head_dim, &operands);
    return operands;
  }

  VectorOperands Values(const WindowOperands& window) {
    const AttentionOperands& attention = window.attention.at(choice_.layer);
    const KvCacheSpec::Products products = plan_.Attention(choice_.layer);
    const int64_t row = choice_.first_row, positions = row + 1, first = kv_head() * config_.head_dim;
    const HostMatrix k = Part(attention.k, 0, row, first, config_.head_dim);
    const ScSite k_site = SiteOf(ScOperatorId::kQk, kv_head(), 0);
    HostMatrix p = MultiplyReference(Query(attention, row), k, products.qk->config, {},
                                     SiteOf(ScOperatorId::kQk, choice_.head, row), &k_site)
                       .y;
    const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)));
    for (float& score : p.values) score = score * scale;
    SoftmaxReference(p.row(0), positions, engine_.options().sc.tables.softmax.table.get());
    const HostMatrix v = Part(attention.v, 0, row, first, config_.head_dim);
    const ScConfig config = Ideal(products.av->config);
    const ReferenceProduct product = PerTokenReference(
        p, v, config, {}, row, SiteOf(ScOperatorId::kAv, choice_.head, 0), SiteOf(ScOperatorId::kAv, kv_head(), 0));
    VectorOperands operands = Named(choice_, engine_, config);
    Keep(product, positions, positions, &operands);
    operands.codes_b.clear();
    for (const int64_t channel : operands.outputs) {
      for (int64_t t = 0; t < positions; ++t) {
        operands.codes_b.push_back(product.codes_b[static_cast<size_t>(t * config_.head_dim + channel)]);
      }
    }
    operands.scale_b.assign(operands.outputs.size(), 1.0f);  // p has the scales of v
    return operands;
  }

  Engine& engine_;
  const DecoderConfig& config_;
  const ModelFiles& files_;
  const VectorChoice& choice_;
  ScPlan plan_;
};

}  // namespace

void ParseVectorOperator(const std::string& text, VectorChoice* choice) {
  const size_t dot = text.find('.');
  const auto [end, error] = std::from_chars(text.data(), text.data() + std::min(dot, text.size()), choice->layer);
  const std::string name = dot == std::string::npos ? "" : text.substr(dot + 1);
  for (int i = 0; i < kNumScOperators; ++i) {
    const auto id = static_cast<ScOperatorId>(i);
    if (id == ScOperatorId::kLmHead || name != ScOperatorName(id)) continue;
    if (error != std::errc() || end != text.data() + dot || dot == 0) break;
    choice->op = id;
    return;
  }
  throw InvalidInput("--op '" + text + "': allowed is LAYER.OPERATOR, as 0.q_proj, 3.down_proj, 1.qk or 1.av");
}

void CheckVectors(const ScModelConfig& sc, const DecoderConfig& config, size_t tokens, const VectorChoice& choice) {
  if (config.HasExperts()) Refuse("a model with experts shows no operands of its linears");
  if (choice.layer < 0 || choice.layer >= config.num_hidden_layers) {
    Refuse(fmt::format("layer {}: allowed is {}", choice.layer, RangeText(0, config.num_hidden_layers - 1)));
  }
  CheckRange("rows", choice.first_row, choice.last_row, choice.ctx);
  ScPlan plan(sc, config);
  const std::string name = fmt::format("{}.{}", choice.layer, ScOperatorName(choice.op));
  if (IsAttention(choice.op)) {
    CheckAttention(&plan, sc, config, choice, name);
  } else {
    CheckLinear(&plan, config, choice, name);
  }
  const int64_t windows = static_cast<int64_t>(tokens) / choice.ctx;
  if (choice.window < 0 || choice.window >= windows) {
    Refuse(fmt::format("--sequence {}: the text has {} windows of {} tokens: give more text, or --ctx", choice.window,
                       windows, choice.ctx));
  }
}

VectorOperands CaptureVectors(Engine& engine, const ModelFiles& files, std::span<const int32_t> ids,
                              const VectorChoice& choice) {
  CheckVectors(engine.options().sc, engine.config(), ids.size(), choice);
  Capture capture(engine, files, choice);
  return capture.Of(RunWindow(engine, ids, choice));
}

}  // namespace stoch
