// SPDX-License-Identifier: Apache-2.0
// Threshold tables of mixed stream lengths in the published JSON, read as they are and treated as hostile.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace stoch {

// A bucket of layers of one operator. Absent: the key is not there.
struct MpBucket {
  std::vector<double> thresholds;
  std::vector<int> levels;
  std::optional<double> metric_mean, metric_std, metric_lo, metric_hi;
};

struct MpDispatch {
  std::string metric = "amax";  // amax, l2, crest
  int sign = 1;
};

struct MpFile {
  std::string name;  // for messages
  std::vector<int> levels;
  std::optional<int> sc_prec;
  std::optional<bool> halve;
  int64_t layer_buckets = 1;
  std::map<std::string, MpBucket> operator_defaults;  // by operator
  std::map<std::string, MpBucket> buckets;            // by "op:t0:lJ"
  std::map<std::string, MpDispatch> dispatch;         // by operator
  int64_t chunk_layer_buckets = 1;
  std::map<std::string, MpBucket> chunk_buckets;  // per_row_chunk; levels rise
  int64_t band_chunk_d = 0;
  std::map<std::string, int64_t> residual_width;                 // by operator: channels that the bands divide
  std::map<std::string, std::vector<int>> chunk_bands;           // by "op:bN"
  std::map<std::string, std::vector<std::vector<int>>> ladders;  // by "op:t0:lJ": [band][level]
  int protected_len = 0;
  std::map<std::string, std::vector<int32_t>> protected_channels;  // by "op:bN" or "op:bN:uK"
  std::map<int, int> grids;  // per_rung_grid: comparator levels by length; empty: those of the settings
  std::optional<double> escape_k;
  int escape_len = 128;
  std::vector<double> level_fractions;  // MPConfig: no thresholds
  std::vector<std::string> unknown_keys;
};

// The text of a table, or of a wrapper {type: AdaptiveMPConfig or MPConfig}, whose table is read from `folder`.
// `contents` gets what was read, for a hash.
// Errors: InvalidInput, one sentence naming `name`, key, value and what is allowed.
MpFile ParseMpFile(const std::string& text, const std::string& name, const std::filesystem::path& folder,
                   std::string* contents);

// The bucket of layer `layer` of `layers`, one of `buckets`.
int64_t LayerBucket(int64_t layer, int64_t layers, int64_t buckets);

}  // namespace stoch
