// SPDX-License-Identifier: Apache-2.0
// Which stream length every row, or every chunk of a row, of an SC product runs at: the rule and its arithmetic.
//
// The functions here are the definition that every backend meets bit for bit. They take floats on the host.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/sc/sc_operator.h"
#include "kernels/sc/sc_site.h"

namespace stoch {

enum class ScMetric : uint8_t { kAmax, kL2, kCrest };

// kFixed: a metric is placed between two constants. kCall: between the extremes of the call (published), so that a row
// depends on its neighbours.
enum class ScNormalise : uint8_t { kFixed, kCall };

// kRow: one length a row. kChunk: one for each (row, chunk). kFractions: rows of a call in order of their metric.
enum class ScLengthScope : uint8_t { kRow, kChunk, kFractions };

// Units: lengths in cycles; 0 = pruned.
struct ScLengthRule {
  ScLengthScope scope = ScLengthScope::kRow;
  ScNormalise normalise = ScNormalise::kFixed;
  ScMetric metric = ScMetric::kAmax;
  float sign = 1.0f;              // +1 or -1
  std::vector<float> thresholds;  // kRow: not increasing; kChunk: not decreasing
  std::vector<int> levels;        // one more than thresholds
  float lo = 0.0f, hi = 1.0f;     // kFixed: of the signed metric, lo < hi
  bool escapes = false;           // kRow: u above the threshold runs at escape_len
  double escape_threshold = 0.0;
  int escape_len = 0;
  std::vector<double> fractions;          // kFractions: the first rint(f[i] * rows) rows have level i
  std::vector<int> chunk_bands;           // kRow with bands: the band of each chunk
  std::vector<std::vector<int>> ladders;  // [band][level] lengths, in place of levels

  bool by_chunk() const { return scope == ScLengthScope::kChunk || !ladders.empty(); }
  // The length of a level number in a chunk; thresholds.size() + 1 is the escape.
  int Length(int level, int64_t chunk) const;
  // Every length that can occur, longest first, each once.
  std::vector<int> Lengths() const;
};

// The signed metric of one row or chunk: amax = max |x|, l2 = sqrt of the sum of squares in kRowLanes order, crest =
// amax / (l2 + 1e-12); then times sign.
float ScRowMetric(ScMetric metric, float sign, const float* x, int64_t n);

// kRow, kFractions: level numbers of the rows of a call. Row rule: the first i with u >= thresholds[i], else the last.
std::vector<int> ScRowLevels(const ScLengthRule& rule, std::span<const float> metrics);

// kChunk: level numbers of the (row, chunk) pairs of a call: the number of thresholds below u.
std::vector<int> ScChunkLevels(const ScLengthRule& rule, std::span<const float> metrics);

// Extras of a product besides its configuration. Null members: it has none.
struct ScExtras {
  std::string op;  // "q_proj", for records and messages
  std::shared_ptr<const ScLengthRule> lengths;
  std::vector<ScOperatorPtr> by_length;     // one for each of lengths->Lengths(), all with as many masks; null = 0
  std::vector<int32_t> protected_channels;  // ascending: a product of their own, at protected_op
  ScOperatorPtr protected_op;
  std::vector<float> smooth;  // [in_features]: x / s and w * s before quantization
  ScSite site;                // site by which its faults are drawn

  // The index in by_length of a length that can occur.
  int Slot(int length) const;
};
using ScExtrasPtr = std::shared_ptr<const ScExtras>;

// The configuration at another length, and on the grid that `grids` has for it, if it has any.
// Units:  length in cycles; `grids`: comparator levels by length.
ScConfig AtLength(const ScConfig& config, int length, const std::map<int, int>& grids);

// Operators of a configuration at each of `lengths` (0: null), with a common number of masks, so that kernels may mix
// them within a product; where all are null, the operator of the configuration itself comes after them.
std::vector<ScOperatorPtr> MakeScOperators(const ScConfig& config, std::span<const int> lengths,
                                           const std::map<int, int>& grids = {});

}  // namespace stoch
