// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/decoder_model.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "kernels/context_bucket.h"
#include "models/decoder/remote_stage.h"
#include "models/decoder/stage.h"
#include "models/decoder/striped_stage.h"
#include "models/decoder/workspace.h"
#include "models/sc_settings.h"

namespace stoch {
namespace {

// Backends remember graphs by key; two models on one backend must not share any.
std::string NextModelKey() {
  static std::atomic<uint64_t> next{0};
  return "decoder" + std::to_string(next++);
}

// av sums over positions; the other bounds are checked where weights are loaded.
void CheckAttentionAccumulator(const KvCacheSpec& spec, int64_t context) {
  if (spec.mode == AttentionMode::kExact) return;
  if (context * spec.av->max_count < (int64_t{1} << 31)) return;
  throw InvalidInput("context " + std::to_string(context) + " times stoc_len " +
                     std::to_string(spec.av->config.stoc_len) +
                     " of av overflows its int32 sum; allowed is below 2^31");
}

// Whether the largest logit of the row answers all queries.
bool NeedOnlyLargest(const LogitQueries& queries) {
  const auto is_largest = [](const TokenPick& pick) {
    return pick.temperature == 0.0f && pick.biases.empty() && pick.allowed.empty() && pick.repeat_penalty == 1.0f &&
           pick.presence_penalty == 0.0f && pick.frequency_penalty == 0.0f;
  };
  return !queries.wants_logits && queries.picks.size() == 1 && queries.logprobs.empty() &&
         is_largest(queries.picks.front());
}

// Tables of functions were read.
void CheckTables(const ScTables& tables) {
  for (const TableEntry& entry : TableFunctions()) {
    const ScTable& table = tables.*entry.table;
    if (table.name.empty() || table.table != nullptr) continue;
    throw InvalidInput("SC setting " + std::string(entry.name) + " = " + table.name + ": its file was not read");
  }
}

}  // namespace

void CheckSupported(const ModelFiles& files, Precision precision, const ScModelConfig& sc) {
  if (precision != Precision::kSc) return;
  if (files.config.HasGelu() && !sc.tables.silu.name.empty()) {
    throw InvalidInput("SC setting silu = " + sc.tables.silu.name + ": " + files.name + " has GELU in its place");
  }
  CheckTables(sc.tables);
}

void CheckDealt(Precision precision, const ScModelConfig& sc) {
  const std::string why = precision == Precision::kSc     ? WhyPassesCouple(sc)
                          : precision == Precision::kFp16 ? "fp16 has no fixed order of sums"
                                                          : "";
  const std::string missing = precision == Precision::kSc ? WhyNotDealt(sc) : "";
  if (!missing.empty()) {
    throw InvalidInput("--split sequence: " + missing +
                       " are drawn by a token's place in its text, and every device stores keys and values by their "
                       "places in its own share: give --split row");
  }
  if (!why.empty()) throw InvalidInput("--split sequence needs rows that depend on themselves alone: " + why);
}

DecoderModel::DecoderModel(Backend& backend, const ModelFiles& files, const DecoderOptions& options)
    : backend_(&backend), config_(files.config), options_(options), graph_key_(NextModelKey()) {
  CheckAttentionAccumulator(MakeKvCacheSpec(config_, options.precision, options.sc, 1, 1), options.shape.context);
  CheckSupported(files, options.precision, options.sc);
  const DecoderPlacement& placement = options.placement;
  STOCH_CHECK((options.ranks == nullptr) == (placement.ranks == 1) &&
              placement.local.empty() == (placement.ranks == 1));
  if (placement.ranks > 1 && !placement.stripes.empty()) {
    throw InvalidInput("--ranks: positions that are dealt over devices (--split sequence) have all layers on one rank");
  }
  if (!placement.stripes.empty()) CheckDealt(options.precision, options.sc);
  ReserveScratch();  // before loading, which takes some too
  weights_ = LoadDecoderWeights(backend, files, options.precision, options.sc, options.placement, options.progress);
  const bool is_sc = options.precision == Precision::kSc;
  cut_rules_ = {!is_sc || IsBatchInvariant(options.sc), !is_sc || IsChunkInvariant(options.sc)};
  MakeStages();
}

DecoderModel::~DecoderModel() = default;

void DecoderModel::ReserveScratch() {
  const DecoderPlacement& placement = options_.placement;
  std::vector<DecoderShard> shards;
  for (size_t layer = 0; layer < placement.layers.size(); ++layer) {
    if (!placement.is_local(static_cast<int64_t>(layer))) continue;
    for (const DecoderShard& shard : ShardsOf(config_, placement, placement.layers[layer])) {
      const bool known = std::any_of(shards.begin(), shards.end(),
                                     [&](const DecoderShard& other) { return other.device == shard.device; });
      if (!known) shards.push_back(shard);
    }
  }
  for (const DecoderShard& shard : shards) {
    const bool is_head = !placement.rows.empty() || shard.device == placement.head || !shard.vocab.empty();
    const bool has_head = is_head && placement.has_ends();
    const int64_t bytes =
        ScratchBytes(config_, options_.precision, options_.sc, options_.shape, *backend_, shard, has_head);
    backend_->ReserveScratch(shard.device, bytes);
    workspace_bytes_ += bytes;
  }
}

DecoderWorkspace* DecoderModel::WorkspaceOn(const DecoderShard& shard, bool divided, bool is_first, bool layers,
                                            bool head) {
  std::unique_ptr<DecoderWorkspace>& workspace = workspaces_[shard.device];
  if (workspace == nullptr) {
    workspace = std::make_unique<DecoderWorkspace>(*backend_, config_, options_.shape, shard, divided, is_first,
                                                   DecoderWorkspace::Uses{layers, head});
    workspace_bytes_ += workspace->bytes;
  }
  return workspace.get();
}

void DecoderModel::MakeStripedStage() {
  const std::vector<DecoderShard> shards = DealPositions(config_, options_.placement.stripes);
  const size_t sharers = options_.placement.stripes.front().size();
  std::vector<DecoderWorkspace*> workspaces;
  for (size_t i = 0; i < shards.size(); ++i) {
    workspaces.push_back(WorkspaceOn(shards[i], sharers > 1, i == 0, true, i < sharers));
  }
  auto stage = std::make_unique<StripedStage>(*backend_, config_, options_, weights_, shards, workspaces);
  workspace_bytes_ += stage->ring_bytes();
  kv_cache_bytes_ += stage->kv_cache_bytes();
  stages_.push_back(std::move(stage));
}

void DecoderModel::MakeStages() {
  const DecoderPlacement& placement = options_.placement;
  if (!placement.stripes.empty()) return MakeStripedStage();
  struct Plan {
    Device device;
    ModelStage::Role role;
  };
  std::vector<Plan> plans;
  const auto on = [&plans](Device device) -> ModelStage::Role& {
    if (plans.empty() || plans.back().device != device) plans.push_back({device, {}});
    return plans.back().role;
  };
  const bool is_divided = placement.ranks > 1, has_ends = placement.has_ends();
  if (has_ends) on(placement.embedding).embeds = true;
  for (size_t i = 0; i < placement.layers.size(); ++i) {
    if (!placement.is_local(static_cast<int64_t>(i))) continue;
    ModelStage::Role& role = on(placement.layers[i]);
    if (role.num_layers == 0) role.first_layer = static_cast<int>(i);
    ++role.num_layers;
  }
  if (has_ends && is_divided) plans.push_back({placement.head, {}});  // other ranks come before it
  if (has_ends) on(placement.head).has_head = true;
  if (!has_ends && placement.local.end == config_.num_hidden_layers) plans.back().role.leaves_outputs = true;
  // The first of several devices has all of the logits, every other its rows.
  const auto devices_of = [&placement](const Plan& plan) {
    return placement.rows.empty() ? std::vector<Device>{plan.device} : placement.rows;
  };
  std::map<Device, DecoderWorkspace::Uses, DeviceOrder> uses;
  for (const Plan& plan : plans) {
    for (const Device& device : devices_of(plan)) {
      uses[device].layers |= plan.role.num_layers > 0;
      uses[device].head |= plan.role.has_head;
    }
  }
  for (const Plan& plan : plans) {
    if (is_divided && plan.role.has_head) AddRemoteStage();
    const std::vector<Device> devices = devices_of(plan);
    const std::vector<DecoderShard> shards = DivideRows(config_, devices);
    std::vector<DecoderWorkspace*> workspaces;
    for (size_t i = 0; i < devices.size(); ++i) {
      const DecoderWorkspace::Uses& use = uses[devices[i]];
      workspaces.push_back(WorkspaceOn(shards[i], devices.size() > 1, i == 0, use.layers, use.head));
    }
    stages_.push_back(
        std::make_unique<DecoderStage>(*backend_, config_, options_, weights_, shards, 0, workspaces, plan.role));
    kv_cache_bytes_ += stages_.back()->kv_cache_bytes();
  }
}

void DecoderModel::AddRemoteStage() {
  const auto first = static_cast<int>(options_.placement.local.end);
  std::vector<Device> before;
  for (const auto& [device, workspace] : workspaces_) before.push_back(device);
  auto stage = std::make_unique<RemoteStage>(
      *backend_, config_, options_.shape, std::move(before), options_.placement.head, *options_.ranks,
      ModelStage::Role{false, false, first, static_cast<int>(config_.num_hidden_layers) - first, false});
  workspace_bytes_ += stage->staging_bytes();
  stages_.push_back(std::move(stage));
  waiting_stage_ = stages_.size();
}

void DecoderModel::Follow() {
  STOCH_CHECK(options_.ranks != nullptr && !options_.placement.has_ends());
  FollowRanks(*options_.ranks, *backend_, config_, options_.shape, stages_);
}

size_t DecoderModel::FreeLane() const {
  const auto lanes = static_cast<size_t>(options_.shape.lanes);
  STOCH_CHECK(flights_.size() < lanes);
  for (size_t lane = 0;; ++lane) {
    if (std::none_of(flights_.begin(), flights_.end(), [lane](const Flight& flight) { return flight.lane == lane; })) {
      return lane;
    }
  }
}

void DecoderModel::CopyHidden(int layers, float* rows) {
  STOCH_CHECK(layers >= 0 && layers <= config_.num_hidden_layers);
  const IndexRange& local = options_.placement.local;
  if (!local.empty() && layers > local.end) {
    throw InvalidInput("the residual stream after layer " + std::to_string(layers) +
                       " is on another rank: this one has " + std::to_string(local.end) + " layers");
  }
  next_tap_ = {layers, rows};
}

void DecoderModel::Begin(const PassLayout& layout, const LogitQueries& queries,
                         const std::function<void()>& fill_masks) {
  const HiddenTap tap = std::exchange(next_tap_, {});
  const size_t lane = FreeLane();
  ForgetOutput();
  const auto rows = static_cast<int64_t>(layout.ids.size());
  const auto num_stages = static_cast<int64_t>(stages_.size());
  Flight& flight = flights_.emplace_back();
  flight.lane = lane;
  flight.tap = tap;
  flight.output_rows = static_cast<int64_t>(layout.output_rows.size());
  const int64_t block = options_.shape.max_logit_rows;
  int64_t asked = 1;  // output rows up to the last one that a query is about
  for (const TokenPick& pick : queries.picks) asked = std::max<int64_t>(asked, pick.row + 1);
  for (const LogProbQuery& query : queries.logprobs) asked = std::max<int64_t>(asked, query.row + 1);
  flight.logits_end = std::min(flight.output_rows, (asked + block - 1) / block * block);
  flight.picks = queries.picks.size();
  flight.logprobs = queries.logprobs.size();
  flight.only_largest = flight.logits_end == 1 && NeedOnlyLargest(queries);
  flight.head_apart = static_cast<bool>(fill_masks);
  flight.pieces = CutPass(layout, PiecesFor(rows, num_stages, options_.min_piece_rows), cut_rules_);
  // Passes of one token per sequence repeat with the same shapes; a prompt's shape rarely comes twice.
  LogitQueries padded;
  const LogitQueries* uploaded = &queries;
  // Dealt positions: who has how many rows changes from step to step.
  const bool is_dealt = !options_.placement.stripes.empty();
  if (rows == static_cast<int64_t>(layout.sequences.size()) && flight.output_rows == rows && rows <= block &&
      tap.rows == nullptr && !is_dealt) {
    if (flight.logprobs > 0) {
      // A graph answers for every row; those that nobody asked about are skipped on the device.
      padded = queries;
      padded.logprobs.resize(static_cast<size_t>(rows), LogProbQuery{.row = -1});
      flight.logprobs = padded.logprobs.size();
      uploaded = &padded;
    }
    int64_t longest = 0;
    for (const PassLayout::Sequence& sequence : layout.sequences) {
      longest = std::max<int64_t>(longest, sequence.start_position + sequence.num_rows);
    }
    flight.key = graph_key_ + ":lane=" + std::to_string(flight.lane) + ",rows=" + std::to_string(rows) +
                 ",context=" + std::to_string(ContextBucket(longest)) +
                 ",pieces=" + std::to_string(flight.pieces.size()) + ",picks=" + std::to_string(flight.picks) +
                 ",logprobs=" + std::to_string(flight.logprobs) + (flight.only_largest ? ",largest" : "") +
                 (flight.head_apart ? ",apart" : "");
  }
  for (const TokenPick& pick : uploaded->picks) flight.pick_rows.push_back(pick.row);
  for (const LogProbQuery& query : uploaded->logprobs) flight.logprob_rows.push_back(query.row);
  const bool has_queries = flight.picks + flight.logprobs > 0;
  if (has_queries && !flight.head_apart) stages_.back()->UploadQueries(flight.lane, *uploaded);
  for (size_t p = 0; p < flight.pieces.size(); ++p) {
    for (const auto& stage : stages_) stage->Upload(flight.lane, p, flight.pieces[p].layout);
  }
  const auto in_flight = static_cast<int64_t>(flights_.size());
  for (int64_t i = 0; i < in_flight; ++i) {
    // Other ranks get on with every pass; waiting for the first here would leave them with nothing else to do.
    const auto end = static_cast<size_t>(StagesIssued(num_stages, i, in_flight));
    Issue(flights_[static_cast<size_t>(i)], waiting_stage_ < stages_.size() ? waiting_stage_ : end);
  }
  if (!flight.head_apart) return;
  fill_masks();
  if (has_queries) stages_.back()->UploadQueries(flight.lane, *uploaded);
  flight.has_queries = true;
  IssueHead(flight);
}

void DecoderModel::Issue(Flight& flight, size_t end) {
  if (end <= flight.issued) return;
  // A stage's device takes the pieces in turn, while the stages behind it work on those before.
  for (size_t p = 0; p < flight.pieces.size(); ++p) {
    const MicroBatch& cut = flight.pieces[p];
    const bool is_last = p + 1 == flight.pieces.size();
    const ModelStage::Piece piece{flight.lane,      p,
                                  cut.first_row,    static_cast<int64_t>(cut.layout.ids.size()),
                                  cut.first_output, static_cast<int64_t>(cut.layout.output_rows.size())};
    for (size_t i = flight.issued; i < end; ++i) {
      ModelStage& stage = *stages_[i];
      if (!stage.role().embeds) stage.Receive(piece, stages_[i - 1]->Hidden(piece));
      const std::string part = ",stage=" + std::to_string(i) + ",piece=" + std::to_string(p);
      if (stage.devices().empty()) continue;  // its layers run on other ranks
      backend_->RunGraph(stage.devices(), flight.key.empty() ? flight.key : flight.key + part, [&] {
        stage.Run(piece, flight.tap);
        if (is_last && stage.role().has_head && !flight.head_apart) RunHead(flight, stage);
      });
    }
  }
  flight.issued = end;
  if (flight.head_apart) IssueHead(flight);
}

// Does nothing until the last layers are issued and the queries are uploaded, whichever comes last.
void DecoderModel::IssueHead(const Flight& flight) {
  ModelStage& stage = *stages_.back();
  if (flight.issued < stages_.size() || !flight.has_queries || !stage.role().has_head) return;
  backend_->RunGraph(stage.devices(), flight.key.empty() ? flight.key : flight.key + ",head",
                     [&] { RunHead(flight, stage); });
}

// Block by block of logits, each with the queries about its rows, and nobody waits in between.
void DecoderModel::RunHead(const Flight& flight, ModelStage& stage) const {
  QueryRange picks, logprobs;
  const auto take = [](const std::vector<int32_t>& rows, QueryRange& range, int64_t end) {
    range.first += range.count;
    range.count = 0;
    while (range.first + range.count < static_cast<int64_t>(rows.size()) &&
           rows[static_cast<size_t>(range.first + range.count)] < end) {
      ++range.count;
    }
  };
  for (int64_t first = 0; first < flight.logits_end; first += options_.shape.max_logit_rows) {
    const int64_t count = std::min(options_.shape.max_logit_rows, flight.logits_end - first);
    take(flight.pick_rows, picks, first + count);
    take(flight.logprob_rows, logprobs, first + count);
    stage.RunHead(flight.lane, first, count, flight.output_rows, flight.only_largest);
    stage.AnswerQueries(flight.lane, first, count, picks, logprobs);
  }
}

void DecoderModel::ForgetOutput() {
  output_ = {};
  picked_ = {};
  logprobs_ = {};
}

void DecoderModel::Finish() {
  STOCH_CHECK(!flights_.empty());
  Flight& flight = flights_.front();
  Issue(flight, stages_.size());
  CheckFinite();
  ForgetOutput();
  const int64_t block = options_.shape.max_logit_rows;
  const int64_t first = flight.logits_end > 0 ? (flight.logits_end - 1) / block * block : 0;
  output_ = {flight.lane, flight.output_rows, first, flight.only_largest ? 0 : flight.logits_end - first};
  const LogitQueryBuffer& queries = stages_.back()->queries(flight.lane);
  if (flight.picks > 0) picked_ = queries.picked();
  if (flight.logprobs > 0) logprobs_ = queries.logprobs();
  flights_.pop_front();
}

void DecoderModel::Abandon() {
  flights_.clear();
  ForgetOutput();
  for (const auto& stage : stages_) stage->Abandon();
  for (const auto& [device, workspace] : workspaces_) {
    try {
      backend_->CheckFinite(device);
    } catch (const InvalidInput&) {
      // What a pass met that nobody waits for any more.
    }
  }
}

void DecoderModel::CheckFinite() {
  for (const auto& [device, workspace] : workspaces_) backend_->CheckFinite(device);
}

TensorView DecoderModel::Logits(int64_t first, int64_t count) {
  Output& out = output_;
  STOCH_CHECK(first >= 0 && count > 0 && first + count <= out.rows && count <= options_.shape.max_logit_rows);
  ModelStage& stage = *stages_.back();
  if (first < out.logits_first || first + count > out.logits_first + out.logits_count) {
    out.logits_count = 0;
    stage.RunHead(out.lane, first, count, out.rows, false);
    CheckFinite();
    out.logits_first = first;
    out.logits_count = count;
  }
  return Slice(stage.Logits(out.lane, out.logits_count), 0, first - out.logits_first, count);
}

}  // namespace stoch
