// SPDX-License-Identifier: Apache-2.0
// What ops work on: where weights come from, and the handles of matrices, embeddings, experts, caches and passes, each on
// one device with a layout of its backend's own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "kernels/math/fixed_point.h"
#include "kernels/sc/sc_lengths.h"
#include "kernels/sc/sc_operator.h"

namespace stoch {

enum class Precision : uint8_t { kSc, kFp32, kFp16 };

// ---------------------------------------------------------------------------------------------------- weights ----

// A matrix [rows, cols] of codes of few bits, for devices that decode it themselves: number (row, col) is
// (code - zero) * scale, rounded to `rounded`, with scale and zero point of (row, col / block).
// Requires: cols and block are multiples of 8.
struct WeightCodes {
  enum class Form : uint8_t {
    kE4m3,     // bytes [rows][cols]; zero points are 0
    kNibbles,  // words [cols / 8][rows] of eight columns each, from the lowest nibble
  };
  Form form = Form::kE4m3;
  const std::byte* data = nullptr;  // often in a mapped file: may be unaligned
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t block = 8;
  DType rounded = DType::kF32;

  int64_t blocks() const { return (cols + block - 1) / block; }  // blocks of a row
};

// The numbers of a tensor whose file holds them in another form: in blocks of few bits, or rows in another order.
class WeightDecoder {
 public:
  virtual ~WeightDecoder() = default;
  // Writes elements [first, first + count) of row-major order as F32. Threads: safe.
  // Requires: both are multiples of a matrix's row length; of a vector, any range inside it.
  virtual void Decode(int64_t first, int64_t count, float* out) const = 0;
  // Bytes that `count` elements take where they are stored. Requires: a multiple of the row length.
  virtual int64_t StoredBytes(int64_t count) const = 0;
  // The codes that Decode reads; null: they have no such form.
  virtual const WeightCodes* codes() const { return nullptr; }
  // Writes what the codes of a row are scaled by: scales and zeros [codes()->blocks()]. Threads: safe. Requires: codes().
  virtual void Scales(int64_t /*row*/, float* /*scales*/, float* /*zeros*/) const {}
};

// Where the numbers of one [rows, cols] tensor (or a [cols] vector, rows = 1) come from.
struct WeightSource {
  std::string name;  // name of the tensor, for errors
  int64_t rows = 0;
  int64_t cols = 0;
  // Row-major host memory, often a mapped file: may be unaligned, must outlive the handle made from it.
  const void* host = nullptr;
  DType dtype = DType::kF32;
  // Instead of host: elements [first, first + rows * cols) of what this decodes, F32 numbers made where they are needed.
  // Must outlive the handle too. dtype is F32 then.
  const WeightDecoder* decoder = nullptr;
  // Neither of them: element i of row-major order is RandomWeight(seed, stream, first + i, stddev), or `constant` where
  // stddev is 0. Backends generate it where they need it.
  uint64_t seed = 0;
  uint64_t stream = 0;
  int64_t first = 0;
  float stddev = 0;
  float constant = 0;

  bool generated() const { return host == nullptr && decoder == nullptr; }
  // Type of the numbers as backends keep exact ones: random ones are F16, which holds them.
  DType type() const {
    if (!generated()) return dtype;
    return stddev == 0.0f ? DType::kF32 : DType::kF16;
  }
};

// How a linear multiplies. sc is set exactly for kSc.
struct LinearSpec {
  Precision precision = Precision::kFp32;
  ScOperatorPtr sc;
  ScExtrasPtr extras = {};  // kSc: mixed lengths, protected channels, smoothing; null = none
  // kFp32: products of integers (math/fixed_point.h) where the parts have 16-bit numbers (IsFixedPoint).
  bool fixed_point = false;
};

// Whether the matrix of these parts multiplies as integers: one that is to, of 16-bit floats of one type, and at most
// kMaxFixedColumns columns. Requires: parts that CheckStack takes.
inline bool IsFixedPoint(const LinearSpec& spec, std::span<const WeightSource> parts) {
  if (!spec.fixed_point || parts.front().cols > kMaxFixedColumns) return false;
  for (const WeightSource& part : parts) {
    if (part.type() == DType::kF32 || part.type() != parts.front().type()) return false;
  }
  return true;
}

// A matrix prepared for multiplication on one device. Its layout is the backend's own.
class LinearWeight {
 public:
  virtual ~LinearWeight() = default;
  virtual Device device() const = 0;
  virtual int64_t rows() const = 0;  // output features
  virtual int64_t cols() const = 0;  // input features
  virtual const LinearSpec& spec() const = 0;
  virtual int64_t bytes() const = 0;         // device memory, scales included; 0 where it stays in a mapped file
  virtual int64_t stream_bytes() const = 0;  // bytes read by one pass over the weight
};

// A token embedding table on one device.
class EmbeddingTable {
 public:
  virtual ~EmbeddingTable() = default;
  virtual Device device() const = 0;
  virtual int64_t vocab_size() const = 0;
  virtual int64_t hidden_size() const = 0;
  virtual int64_t bytes() const = 0;
};

// ------------------------------------------------------------------------------------------------- passes, KV ----

enum class AttentionMode : uint8_t { kExact, kPerToken, kPerHead, kPerRow };

// A paged KV cache of consecutive layers on one device. Page p of every layer belongs together; which pages hold a
// sequence is the caller's business (PassLayout). Content is exact floats, codes, or fp16, as the mode needs.
struct KvCacheSpec {
  int num_layers = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int page_tokens = 64;
  int64_t num_pages = 0;
  // Devices that the positions of every page are dealt over (stripes.h): the cache of one holds page_tokens / stripes of
  // each page, and RingAttention is the op that reads it.
  int stripes = 1;
  AttentionMode mode = AttentionMode::kExact;
  ScOperatorPtr qk, av;  // set where mode is not kExact
  // Products of a layer instead of qk and av; empty where all layers are alike.
  struct Products {
    ScOperatorPtr qk, av;
    ScExtrasPtr qk_extras = {}, av_extras = {};  // mixed lengths of rows; null = none
  };
  std::vector<Products> layers = {};       // [num_layers]
  bool smooths_qk = false;                 // calls may give AttentionCall::qk_smooth
  bool dilated = false;                    // calls may give AttentionCall::dilated; the mode is kPerToken
  Precision precision = Precision::kFp32;  // kFp16: half storage of the baseline
  int64_t key_scales = 1;                  // scales of a key: one for each block of a layer's qk in MXINT8
};

class KvCache {
 public:
  virtual ~KvCache() = default;
  virtual Device device() const = 0;
  virtual const KvCacheSpec& spec() const = 0;
  virtual int64_t bytes() const = 0;
};

// One forward pass: rows (tokens) of one or more sequences, on the host.
struct PassLayout {
  struct Sequence {
    int32_t first_row = 0;
    int32_t num_rows = 0;            // >= 1; rows of a sequence are consecutive tokens
    int32_t start_position = 0;      // absolute position of its first row; earlier positions are in the cache
    std::span<const int32_t> pages;  // page of position t is pages[t / page_tokens]
    uint32_t number = 0;             // its faults are drawn by it (FaultRow)
  };
  std::vector<int32_t> ids;          // [rows] token ids
  std::vector<Sequence> sequences;   // in row order, covering every row once
  std::vector<int32_t> output_rows;  // rows whose logits are wanted, ascending
};

struct PassLimits {
  int64_t max_rows = 0;
  int64_t max_sequences = 0;
  int64_t max_pages_per_sequence = 0;
};

// The device-side copy of a PassLayout, with room for the largest one; reused by every pass.
class Pass {
 public:
  virtual ~Pass() = default;
  virtual Device device() const = 0;
};

// ---------------------------------------------------------------------------------------------------- experts ----

// One matrix, or several stacked, of every expert of a layer, on one device: all of one shape and one spec.
class ExpertWeights {
 public:
  virtual ~ExpertWeights() = default;
  virtual Device device() const = 0;
  virtual int64_t count() const = 0;
  virtual int64_t rows() const = 0;  // output features of one
  virtual int64_t cols() const = 0;
  virtual int64_t bytes() const = 0;         // device memory of all
  virtual int64_t stream_bytes() const = 0;  // read by one pass over one of them
};

}  // namespace stoch
