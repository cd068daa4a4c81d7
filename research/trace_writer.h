// SPDX-License-Identifier: Apache-2.0
// Traces of a run in the published schemas (docs/research.md#traces).
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "research/cost.h"

namespace stoch {

// kSummary: scmp-trace-summary-v1, JSON of groups. kTrace: scmp-trace-v1, a line for each record.
enum class TraceMode : uint8_t { kSummary, kTrace };

// The groups of scmp-trace-summary-v1, of the calls that are complete.
nlohmann::ordered_json TraceGroupsJson(const ScCostCollector& collector);

// Whom a trace is of.
struct TraceOrigin {
  std::string version, config, model_sha256, text_sha256;
  ScConfig common;  // the scrambling that headers tell
};

// Source: the public package scmp_kernels, trace.py: its keys, and `stoch` in the header.
class TraceWriter final : public CallSink {
 public:
  // A file that is at `path` keeps its content until Finish; one that was not is gone again if that never runs. Records
  // of a kTrace are kept next to it until the end. Errors: InvalidInput where a file cannot be created.
  TraceWriter(const std::filesystem::path& path, TraceMode mode);
  ~TraceWriter() override;
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // What a collector needs for this: null where groups are enough.
  CallSink* sink() { return mode_ == TraceMode::kTrace ? this : nullptr; }
  void OnOperator(const TracedOperator& traced, std::span<const TraceCall> products) override;
  // Writes the file. Errors: InvalidInput if it cannot be written. Requires: once; `collector` had sink().
  void Finish(const ScCostCollector& collector, const TraceOrigin& origin);

 private:
  std::filesystem::path path_, records_path_;
  TraceMode mode_;
  bool is_new_;           // there was no file at path_
  bool written_ = false;  // Finish began
  std::ofstream file_;
  std::ofstream records_;
  int64_t count_ = 0;
};

}  // namespace stoch
