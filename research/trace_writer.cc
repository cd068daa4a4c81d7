// SPDX-License-Identifier: Apache-2.0
#include "research/trace_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/sc/sc_parameters.h"
#include "loader/json_text.h"

namespace stoch {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kCoverage =
    "SC products only: what runs in fp32, in integers or by a multiplier table is counted in stoch.sc_cost alone";

std::string TextOf(const ScConfig& config, std::string_view parameter) {
  const ScParameter& found = FindScParameter(parameter);
  return found.get(config, found);
}

// {stoc_len, sc_prec, halve, mode, granularity, rng_levels, chunk_d, smoothed}
Json Arithmetic(const TracedOperator& traced, int stoc_len) {
  const ScConfig& config = traced.config;
  return {{"stoc_len", stoc_len},
          {"sc_prec", config.sc_prec},
          {"halve", config.halve},
          {"mode", TextOf(config, "mode")},
          {"granularity", TextOf(config, "granularity")},
          {"rng_levels", config.rng_levels},
          {"chunk_d", config.chunk_d},
          {"smoothed", traced.smoothed}};
}

Json Place(int block, const std::string& op, const std::optional<int64_t>& unit) {
  return {{"block", block < 0 ? Json(nullptr) : Json(block)}, {"op", op}, {"unit", unit ? Json(*unit) : Json(nullptr)}};
}

Json GroupJson(const TraceGroup& group, const TracedOperator& traced) {
  Json json = Place(group.block, group.op, group.unit);
  json.update(Arithmetic(traced, group.stoc_len));
  json.update(Json{{"d_in", group.d_in},
                   {"d_out", group.d_out},
                   {"dims_vary", group.dims_vary},
                   {"calls", group.calls},
                   {"rows", group.rows},
                   {"macs", IntegerJson(group.macs)},
                   {"row_cycles", IntegerJson(group.row_cycles)}});
  return json;
}

Json Header(const ScCostCollector& collector, const TraceOrigin& origin, TraceMode mode, int64_t records) {
  return {{"owen_mode", TextOf(origin.common, "scramble")},
          {"scramble_masks", origin.common.scramble_masks},
          {"mode", mode == TraceMode::kTrace ? "trace" : "summary"},
          {"n_records", records},
          {"coverage", kCoverage},
          {"stoch",
           {{"version", origin.version},
            {"config", origin.config},
            {"model_sha256", origin.model_sha256},
            {"text_sha256", origin.text_sha256},
            {"sc_cost", collector.Cost().ToJson(true)}}}};
}

std::ofstream Create(const std::filesystem::path& path, std::ios::openmode mode) {
  std::ofstream file(path, std::ios::binary | mode);
  if (!file) throw InvalidInput(path.string() + ": cannot be created");
  return file;
}

}  // namespace

Json TraceGroupsJson(const ScCostCollector& collector) {
  Json groups = Json::array();
  for (const TraceGroup& group : collector.Groups()) {
    groups.push_back(GroupJson(group, collector.Traced(group.block, group.op)));
  }
  return groups;
}

TraceWriter::TraceWriter(const std::filesystem::path& path, TraceMode mode)
    : path_(path),
      records_path_(path.string() + ".records"),
      mode_(mode),
      is_new_(!std::filesystem::exists(path)),
      file_(Create(path, std::ios::app)) {
  if (mode == TraceMode::kTrace) records_ = Create(records_path_, std::ios::trunc);
}

TraceWriter::~TraceWriter() {
  std::error_code ignored;
  if (mode_ == TraceMode::kTrace) std::filesystem::remove(records_path_, ignored);
  if (is_new_ && !written_) std::filesystem::remove(path_, ignored);
}

void TraceWriter::OnOperator(const TracedOperator& traced, std::span<const TraceCall> products) {
  // Protected channels are a product next to that of the others.
  std::vector<std::pair<const TraceCall*, TraceRecord>> records;
  for (const TraceCall& call : products) {
    for (const TraceRecord& record : RecordsOf(call)) records.emplace_back(&call, record);
  }
  std::stable_sort(records.begin(), records.end(), [](const auto& a, const auto& b) {
    const int64_t a_unit = a.first->unit.value_or(-1);
    const int64_t b_unit = b.first->unit.value_or(-1);
    return a_unit == b_unit ? a.second.stoc_len > b.second.stoc_len : a_unit < b_unit;
  });
  for (const auto& [call, record] : records) {
    Json json = {{"seq", count_++}};
    json.update(Place(call->block, call->op, call->unit));
    json.update(Json{{"rows", record.rows}, {"d_in", record.d_in}, {"d_out", call->d_out}, {"batch", call->batch}});
    json.update(Arithmetic(traced, record.stoc_len));
    json.update(Json{{"macs", IntegerJson(record.macs)},
                     {"row_cycles", IntegerJson(static_cast<Int128>(record.rows) * record.stoc_len)}});
    records_ << JsonText(json) << '\n';
  }
}

void TraceWriter::Finish(const ScCostCollector& collector, const TraceOrigin& origin) {
  const std::vector<TraceGroup> groups_of_run = collector.Groups();
  if (mode_ == TraceMode::kSummary) {
    for (const TraceGroup& group : groups_of_run) count_ += group.calls;
  }
  const Json header = Header(collector, origin, mode_, count_);
  written_ = true;
  if (std::filesystem::is_regular_file(path_)) std::filesystem::resize_file(path_, 0);
  if (mode_ == TraceMode::kTrace) {
    file_ << JsonText(Json{{"schema", "scmp-trace-v1"}, {"header", header}}) << '\n';
    records_.close();
    if (count_ > 0) file_ << std::ifstream(records_path_, std::ios::binary).rdbuf();
    file_ << JsonText(Json{{"trailer", true}, {"n_records", count_}}) << '\n';
  } else {
    file_ << JsonText(
                 Json{{"schema", "scmp-trace-summary-v1"}, {"header", header}, {"groups", TraceGroupsJson(collector)}},
                 1)
          << '\n';
  }
  file_.close();
  if (!file_ || (mode_ == TraceMode::kTrace && !records_)) throw InvalidInput(path_.string() + ": cannot be written");
}

}  // namespace stoch
