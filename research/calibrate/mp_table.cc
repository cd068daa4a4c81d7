// SPDX-License-Identifier: Apache-2.0
#include "research/calibrate/mp_table.h"

#include <nlohmann/json.hpp>

#include "loader/json_text.h"

namespace stoch {
namespace {

using Json = nlohmann::json;

Json BucketJson(const MpBucket& bucket) {
  Json json = {{"thresholds", bucket.thresholds}};
  if (!bucket.levels.empty()) json["levels"] = bucket.levels;
  if (bucket.metric_lo) json["metric_lo"] = *bucket.metric_lo;
  if (bucket.metric_hi) json["metric_hi"] = *bucket.metric_hi;
  if (bucket.metric_mean) json["metric_mean"] = *bucket.metric_mean;
  if (bucket.metric_std) json["metric_std"] = *bucket.metric_std;
  return json;
}

}  // namespace

std::string MpTableJson(const CalibratedLengths& lengths, const TableOrigin& origin) {
  const MpFile& table = lengths.table;
  Json root = {{"schema", "stoch-mp-v1"},
               {"normalise", "fixed"},
               {"stoc_len_levels", table.levels},
               {"layer_buckets", table.layer_buckets},
               {"timestep_buckets", 1},
               {"buckets", Json::object()},
               {"dispatch_metrics", Json::object()},
               {"expected_avg_stoc_len", lengths.average},
               {"expected_flop_avg_stoc_len", lengths.mac_average},
               {"metadata", origin}};
  if (table.sc_prec) root["sc_prec"] = *table.sc_prec;
  if (table.halve) root["halve_bipolar_stoc_len"] = *table.halve;
  for (const auto& [key, bucket] : table.buckets) root["buckets"][key] = BucketJson(bucket);
  for (const auto& [op, dispatch] : table.dispatch) {
    root["dispatch_metrics"][op] = {{"metric", dispatch.metric}, {"sign", dispatch.sign}};
  }
  if (!table.chunk_buckets.empty()) {
    root["per_row_chunk"] = {{"layer_buckets", table.chunk_layer_buckets}, {"buckets", Json::object()}};
    for (const auto& [key, bucket] : table.chunk_buckets) root["per_row_chunk"]["buckets"][key] = BucketJson(bucket);
  }
  if (!table.protected_channels.empty()) {
    root["protected_channels"] = {{"stoc_len", table.protected_len}, {"indices", table.protected_channels}};
  }
  for (const auto& [op, rho] : lengths.fidelity) root["metric_fidelity_rho"][op] = rho ? Json(*rho) : Json(nullptr);
  return JsonText(root, 1) + '\n';
}

}  // namespace stoch
