// SPDX-License-Identifier: Apache-2.0
// Reads traces in the published schemas, ours and others': what was multiplied, at which length.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "research/cost.h"
#include "research/trace.h"

namespace stoch {

struct TraceFile {
  std::string name;    // for messages
  std::string schema;  // scmp-trace-summary-v1, scmp-trace-v1
  bool is_ours = false;
  std::string config, model_sha256, text_sha256;  // of ours
  std::vector<TraceGroup> groups;                 // of a trace: its records, each with calls = 1; batch in `batches`
  std::vector<int64_t> batches;                   // of groups; 1 in a summary
  std::vector<int64_t> chunk_d;                   // of groups
  // Of ours as the header says it, after it was compared with the groups; of others what the groups say.
  ScCost cost;
};

// Errors: InvalidInput, one sentence with name, place, value and what is allowed: no trace, shapes out of range, counts
//         that disagree with shapes, a header that disagrees with its groups.
TraceFile ParseTraceFile(std::string_view text, const std::string& name);

// One entry of `operators` of sc_cost, and a count of it. Errors: InvalidInput naming `where`.
OperatorCost ReadOperatorCost(const nlohmann::json& json, const std::string& where);
Int128 ReadCount(const nlohmann::json& object, const std::string& key, const std::string& where);

// Sums of an array in closed form, where every product ran at one length and the rows of every call are known.
// Errors: InvalidInput saying what a trace does not tell.
ScCost CountArray(const TraceFile& trace, const ArrayShape& array);

}  // namespace stoch
