// SPDX-License-Identifier: Apache-2.0
#include "kernels/spec_check.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/call_check.h"
#include "kernels/math/elementary.h"
#include "kernels/math/half.h"
#include "kernels/math/number_formats.h"
#include "kernels/stripes.h"

namespace stoch {
namespace {

// Element i of row-major order. Generated numbers are finite by construction.
float Element(const WeightSource& source, int64_t i) {
  if (source.decoder != nullptr) {
    std::vector<float> row(static_cast<size_t>(source.cols));
    source.decoder->Decode(source.first + i / source.cols * source.cols, source.cols, row.data());
    return row[static_cast<size_t>(i % source.cols)];
  }
  if (source.host == nullptr) return source.stddev == 0.0f ? source.constant : 0.0f;
  const char* at = static_cast<const char*>(source.host) + i * static_cast<int64_t>(DTypeSize(source.dtype));
  if (source.dtype == DType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return source.dtype == DType::kF16 ? F16ToFloat(bits) : Bf16ToFloat(bits);
}

[[noreturn]] void RejectOperator(std::string_view name, std::string_view what) {
  throw InvalidInput("kv cache: " + std::string(name) + std::string(what));
}

void CheckKvOperator(std::string_view name, const ScOperatorPtr& op, AttentionMode mode) {
  if (!op) RejectOperator(name, " is missing");
  if (IntBits(op->config.arith) > 0 || IsNumberFormat(op->config.arith)) return;  // rows and chunks of its own
  if (op->config.chunk_d != 0) {
    RejectOperator(name,
                   ": SC parameter chunk_d = " + std::to_string(op->config.chunk_d) + ": allowed is 0 in attention");
  }
  switch (mode) {
    case AttentionMode::kExact: return;
    case AttentionMode::kPerHead:
      if (op->config.granularity == ScGranularity::kPerHead) return;
      RejectOperator(name, ": SC parameter granularity: allowed is per_head with attention = per_head");
    case AttentionMode::kPerRow:
    case AttentionMode::kPerToken: break;
  }
  if (op->config.granularity != ScGranularity::kPerRow) {
    RejectOperator(name, ": SC parameter granularity: allowed is per_row with attention = per_row, per_token");
  }
  if (mode == AttentionMode::kPerRow) return;
  if (op->code == ScCode::kAsymmetric) {
    RejectOperator(name, ": SC parameter mode = unipolar: allowed is bipolar with attention = per_token");
  }
  if (op->config.group_a != 1 || op->config.group_b != 1) {
    RejectOperator(name, ": SC parameters group_a, group_b: allowed is 1 with attention = per_token");
  }
}

}  // namespace

void CheckStack(std::span<const WeightSource> parts) {
  if (parts.empty()) throw InvalidInput("a weight needs at least one tensor");
  for (const WeightSource& part : parts) {
    if (part.rows < 1 || part.cols < 1 || part.cols != parts.front().cols) {
      throw InvalidInput("tensor " + part.name + ": shape [" + std::to_string(part.rows) + ", " +
                         std::to_string(part.cols) + "] cannot be stacked with columns " +
                         std::to_string(parts.front().cols));
    }
    if (part.host != nullptr && part.dtype != DType::kF32 && part.dtype != DType::kF16 && part.dtype != DType::kBF16) {
      throw InvalidInput("tensor " + part.name + ": type " + std::string(DTypeName(part.dtype)) +
                         " holds no weights, expected F32, F16 or BF16");
    }
  }
}

void CheckAccumulator(const ScOperator& op, int64_t dims, std::string_view where) {
  if (op.config.arith == ScArith::kFp8E4m3) {
    constexpr int64_t kMost = (int64_t{1} << 53) / (kE4m3Levels * kE4m3Levels);  // sums are exact in double
    if (dims <= kMost) return;
    throw InvalidInput(std::string(where) + ": " + std::to_string(dims) +
                       " dimensions of arith = fp8_e4m3 in a chunk: allowed are " + std::to_string(kMost));
  }
  if (!HasSource(op.config.gate) || op.config.arith != ScArith::kSc) {
    if (dims * std::max(op.max_count, op.q_max) < int64_t{1} << 31) return;
    throw InvalidInput(std::string(where) + ": " + std::to_string(dims) + " dimensions of table entries up to " +
                       std::to_string(op.max_count) + " overflow a 32-bit sum");
  }
  const int64_t largest = std::max<int64_t>(op.config.stoc_len, op.code == ScCode::kAsymmetric ? op.q_max : 0);
  if (dims * largest >= int64_t{1} << 31) {
    throw InvalidInput(std::string(where) + ": " + std::to_string(dims) + " dimensions of stream length " +
                       std::to_string(op.config.stoc_len) + " overflow a 32-bit count, expected a product below 2^31");
  }
}

void CheckKvOperators(const KvCacheSpec& spec) {
  if (spec.mode == AttentionMode::kExact) return;
  CheckKvOperator("qk", spec.qk, spec.mode);
  CheckKvOperator("av", spec.av, spec.mode);
  if (!spec.layers.empty() && static_cast<int>(spec.layers.size()) != spec.num_layers) {
    RejectOperator("layers",
                   ": " + std::to_string(spec.layers.size()) + " entries of " + std::to_string(spec.num_layers));
  }
  for (const KvCacheSpec::Products& layer : spec.layers) {
    CheckKvOperator("qk", layer.qk, spec.mode);
    CheckKvOperator("av", layer.av, spec.mode);
  }
}

void CheckStripes(const KvCacheSpec& spec) {
  constexpr int kDealtPage = 64;
  if (IsStripeCount(spec.stripes) && (spec.stripes == 1 || spec.page_tokens == kDealtPage)) return;
  Reject({-1, "kv cache"},
         "stripes must be 1, 2, 4 or 8, and pages of more than one have " + std::to_string(kDealtPage) + " positions");
}

void RejectNonFinite(std::span<const WeightSource> parts, int64_t row) {
  size_t part = 0;
  while (row >= parts[part].rows) row -= parts[part++].rows;
  const WeightSource& source = parts[part];
  int64_t col = 0;
  // The last column is left when all are finite: then one of them overflows on the way into a narrower type.
  while (col + 1 < source.cols && IsFinite(Element(source, row * source.cols + col))) ++col;
  const bool found = !IsFinite(Element(source, row * source.cols + col));
  throw InvalidInput("tensor " + source.name + ": NaN or infinity " +
                     (found ? "at (" + std::to_string(row) + ", " + std::to_string(col) + ")"
                            : "in float16 in row " + std::to_string(row)));
}

}  // namespace stoch
