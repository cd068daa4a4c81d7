// SPDX-License-Identifier: Apache-2.0
// Counts the steps of an engine as calls, and follows lengths that rows have of their own.
#include <algorithm>
#include <deque>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "models/decoder/shard.h"
#include "research/call_geometry.h"
#include "research/cost.h"

namespace stoch {
namespace {

// A call on its way.
struct Call {
  CallShape shape;
  std::map<LengthsKey, CallLengths> lengths;
};

}  // namespace

struct ScCostCollector::State final : StepObserver, OpObserver {
 public:
  State(Engine& e, CostOptions o, CallSink* s)
      : engine(e),
        options(std::move(o)),
        sink(s),
        operators(ListModelOperators(e.config(), e.options().sc)),
        geometry(e.config(), e.options().sc),
        mixed(options.tile_rows, options.array) {
    const DecoderPlacement& placement = *e.options().placement;
    const std::vector<Device> alone(1);
    shards = DivideRows(e.config(), placement.rows.empty() ? alone : placement.rows);
    for (size_t i = 0; i < operators.size(); ++i) by_name[{operators[i].layer, operators[i].name}] = i;
  }

  bool any_mixed() const {
    return std::any_of(operators.begin(), operators.end(), [](const ModelOperator& op) { return op.mixed; });
  }
  // Every product of complete calls whose lengths are known.
  Trace All() const;

  // ------------------------------------------------------------------------------------------------- steps ----

  void OnBegin(std::span<const StepItem> items) override {
    Step& step = steps.emplace_back();
    for (const StepItem& item : items) {
      std::shared_ptr<Call>& call = open[item.sequence];
      if (call == nullptr || call->shape.start + call->shape.rows != item.sequence->computed()) {
        call = std::make_shared<Call>();
        call->shape.start = item.sequence->computed();
      }
      call->shape.rows += item.num_tokens;
      if (item.output == StepOutput::kAll) call->shape.head_rows += item.num_tokens;
      if (item.output == StepOutput::kLast) ++call->shape.head_rows;
      segments.push_back({call, rows_begun, item.num_tokens});
      rows_begun += item.num_tokens;
      if (item.num_tokens < item.sequence->pending()) continue;
      step.ended.push_back(std::move(call));
      open.erase(item.sequence);
    }
    step.segments = items.size();
  }

  void OnFinish() override {
    for (const std::shared_ptr<Call>& call : steps.front().ended) End(*call);
    segments.erase(segments.begin(), segments.begin() + static_cast<ptrdiff_t>(steps.front().segments));
    steps.pop_front();
  }

  // What begins again does so as a call of its own.
  void OnAbandon() override {
    steps.clear();
    open.clear();
    segments.clear();
    cursors.clear();
    rows_begun = 0;
  }

  void End(const Call& call) {
    ++calls;
    ++shapes[call.shape];
    for (const ModelOperator& op : operators) {
      if (op.kind != ProductKind::kStreams || !lengths_known || (sink == nullptr && !op.mixed)) continue;
      const std::vector<TraceCall> products = geometry.Calls(op, call.shape, call.lengths);
      for (size_t i = 0; op.mixed && i < products.size(); ++i) mixed.Add(products[i]);
      if (sink != nullptr && !products.empty()) sink->OnOperator({op.config, op.smoothed}, products);
    }
  }

  // ----------------------------------------------------------------------------------------------- lengths ----

  // Records of an operator come in the order of steps and, within one, of rows. Where matrices are divided by rows, one
  // device after the other shows all rows of a step.
  void OnLengths(const ScLengthRecord& record) override {
    const auto found = by_name.find({record.site.layer, std::string(record.op)});
    if (found == by_name.end() || !operators[found->second].mixed) return;
    const ModelOperator& op = operators[found->second];
    if (op.of_experts()) return OnExpert(op, record);
    if (!op.is_attention && op.protected_channels == op.d_in) return;  // all at one length
    Cursor& cursor = cursors[{op.layer, op.id, record.unit}];
    if (cursor.first_heads.empty()) cursor = NewCursor(op, record.unit);
    if (op.protected_channels > 0) {  // dispatch channels come first, then the protected ones
      cursor.is_protected = !cursor.is_protected;
      if (!cursor.is_protected) return;
    }
    // Every device has the lengths of a linear, but heads of its own.
    int64_t& position = cursor.positions[cursor.turn];
    if (op.is_attention) {
      Append({op.layer, op.id, cursor.first_heads[cursor.turn] + record.unit}, record, position);
    } else if (cursor.turn == 0) {
      Append({op.layer, op.id, -1}, record, position);
    }
    position += record.rows;
    if (position == rows_begun) cursor.turn = (cursor.turn + 1) % cursor.positions.size();
  }

 private:
  // Where the records of an operator, or of a head on every device that has so many, are.
  struct Cursor {
    std::vector<int64_t> first_heads;  // by device
    std::vector<int64_t> positions;    // rows seen, by device
    size_t turn = 0;
    bool is_protected = false;    // the next record
    int64_t first_of_call = 0;    // of experts: row 0 of the call that they are shown of,
    bool is_first_device = true;  // by the first device
  };

  // Experts come after a record of how many rows their call has; a row of theirs is one of those.
  void OnExpert(const ModelOperator& op, const ScLengthRecord& record) {
    Cursor& cursor = cursors[{op.layer, op.id, -1}];
    if (cursor.first_heads.empty()) cursor = NewCursor(op, 0);
    if (record.unit >= 0) {
      if (!cursor.is_first_device) return;
      return Append({op.layer, op.id, record.unit}, record, cursor.first_of_call + record.first_position);
    }
    int64_t& position = cursor.positions[cursor.turn];
    cursor.is_first_device = cursor.turn == 0;
    cursor.first_of_call = position;
    position += record.rows;
    if (position == rows_begun) cursor.turn = (cursor.turn + 1) % cursor.positions.size();
  }

  Cursor NewCursor(const ModelOperator& op, int64_t unit) const {
    Cursor cursor;
    for (const DecoderShard& shard : shards) {
      bool shows = unit < shard.heads.size();
      for (const BlockLinear& linear : engine.config().architecture->linears) {
        if (OperatorOf(linear.id) != op.id) continue;
        shows = !RangeOf(engine.config(), shard, op.of_experts() ? ExpertAxis(linear.out) : linear.out).empty();
      }
      if (shows) cursor.first_heads.push_back(shard.heads.begin);
    }
    STOCH_CHECK(!cursor.first_heads.empty());
    cursor.positions.assign(cursor.first_heads.size(), 0);
    return cursor;
  }

  // Gives rows from `position` on to the calls that they are of.
  void Append(const LengthsKey& key, const ScLengthRecord& record, int64_t position) {
    const int* values = record.lengths.data();
    int64_t rows = record.rows;
    for (const Segment& segment : segments) {
      if (rows == 0) return;
      const int64_t end = segment.first_row + segment.rows;
      if (position >= end) continue;
      const int64_t count = std::min(rows, end - position);
      CallLengths& lengths = segment.call->lengths[key];
      lengths.per_row = record.lengths_per_row;
      lengths.values.insert(lengths.values.end(), values, values + count * record.lengths_per_row);
      values += count * record.lengths_per_row;
      position += count;
      rows -= count;
    }
    STOCH_CHECK(rows == 0);
  }

  struct Segment {
    std::shared_ptr<Call> call;
    int64_t first_row = 0;  // of all rows that were begun
    int64_t rows = 0;
  };
  struct Step {
    size_t segments = 0;
    std::vector<std::shared_ptr<Call>> ended;
  };

 public:
  Engine& engine;
  CostOptions options;
  CallSink* sink;
  std::vector<ModelOperator> operators;
  CallGeometry geometry;
  bool lengths_known = true;
  bool observes = false;
  int64_t calls = 0;
  std::map<CallShape, int64_t> shapes;  // how many complete calls had each
  Trace mixed;                          // products of mixed lengths of complete calls

 private:
  std::map<std::pair<int, std::string>, size_t> by_name;
  std::vector<DecoderShard> shards;
  std::map<const Sequence*, std::shared_ptr<Call>> open;
  std::deque<Step> steps;
  std::deque<Segment> segments;
  int64_t rows_begun = 0;
  std::map<LengthsKey, Cursor> cursors;
};

ScCostCollector::ScCostCollector(Engine& engine, CostOptions options, CallSink* sink)
    : state_(std::make_unique<State>(engine, std::move(options), sink)) {
  STOCH_CHECK(engine.options().precision == Precision::kSc);
  const bool any_unseen = std::any_of(state_->operators.begin(), state_->operators.end(), [](const ModelOperator& op) {
    return op.of_experts() && op.kind == ProductKind::kStreams && !op.mixed;
  });
  if (state_->options.array && any_unseen) {
    throw InvalidInput(
        "--array: which rows an expert multiplies is recorded with --mp alone, so its cycles are not known");
  }
  if (state_->any_mixed()) state_->observes = engine.backend().ObserveLengths(state_.get());
  state_->lengths_known = !state_->any_mixed() || state_->observes;
  if (!state_->lengths_known && (state_->options.array || sink != nullptr)) {
    if (state_->observes) engine.backend().ObserveLengths(nullptr);
    throw InvalidInput("--array, --trace: rows have lengths of their own, which " +
                       std::string(engine.backend().name()) + " does not show: give --device cpu");
  }
  engine.Observe(state_.get());
}

ScCostCollector::~ScCostCollector() {
  state_->engine.Observe(nullptr);
  if (state_->observes) state_->engine.backend().ObserveLengths(nullptr);
}

OpObserver& ScCostCollector::lengths() { return *state_; }

Trace ScCostCollector::State::All() const {
  Trace trace = mixed;
  for (const ModelOperator& op : operators) {
    if (op.kind != ProductKind::kStreams || op.mixed) continue;
    // A linear does not depend on where a call begins.
    std::map<CallShape, int64_t> own;
    for (const auto& [shape, count] : shapes) {
      own[op.is_attention ? shape : CallShape{0, shape.rows, op.layer < 0 ? shape.head_rows : 0}] += count;
    }
    for (const auto& [shape, count] : own) {
      for (TraceCall& call : geometry.Calls(op, shape, {})) {
        call.calls = count;
        trace.Add(call);
      }
    }
  }
  return trace;
}

ScCost ScCostCollector::Cost() const {
  const Trace trace = state_->All();
  ScCost cost;
  cost.calls = state_->calls;
  cost.array_shape = state_->options.array;
  for (const ModelOperator& op : state_->operators) {
    OperatorCost& to = cost.operators.emplace_back();
    to.layer = op.layer;
    to.op = op.name;
    Int128 macs = 0;
    for (const auto& [shape, count] : state_->shapes) macs += state_->geometry.Macs(op, shape) * count;
    switch (op.kind) {
      case ProductKind::kStreams: to.macs.sc = macs; break;
      case ProductKind::kTable: to.macs.table = macs; break;
      case ProductKind::kInteger: to.macs.integers[IntBits(op.config.arith)] = macs; break;
      case ProductKind::kE4m3: to.macs.fp8 = macs; break;
      case ProductKind::kMxInt8: to.macs.mxint8 = macs; break;
      case ProductKind::kFp: to.macs.fp = macs; break;
    }
    to.lengths_known = !op.mixed || state_->lengths_known;
    const auto counted = trace.operators().find({op.layer, op.name});
    if (counted == trace.operators().end()) continue;
    STOCH_CHECK(counted->second.counts.macs + counted->second.counts.macs_pruned == macs);
    to.mac_cycles = counted->second.counts.mac_cycles;
    to.macs_by_len = counted->second.macs_by_len;
    to.array = counted->second.array;
  }
  if (!state_->lengths_known || cost.macs().sc == 0) return cost;
  for (size_t i = 0; i < trace.tile_rows().size(); ++i) {
    cost.tile_averages.emplace_back(trace.tile_rows()[i], trace.TileAverage(i));
    cost.tile_cycles.push_back(trace.tile_cycles(i));
  }
  return cost;
}

std::vector<TraceGroup> ScCostCollector::Groups() const { return state_->All().Groups(); }

TracedOperator ScCostCollector::Traced(int layer, const std::string& name) const {
  for (const ModelOperator& op : state_->operators) {
    if (op.layer == layer && op.name == name) return {op.config, op.smoothed};
  }
  STOCH_CHECK(false);
}

}  // namespace stoch
