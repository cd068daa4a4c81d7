// SPDX-License-Identifier: Apache-2.0
// The interface between models and devices: a dozen coarse ops, memory, and nothing about how they are done.
//
// A Backend drives one or more devices of one kind. Every handle, buffer and view knows its device; an op runs on the
// device of its operands and operands on different devices are InvalidInput before anything is launched.
//
// Bits:    every op gives the same bits on every backend (kernels/math has the shared source of each float step and
//          reduce.h the order of every sum), except where Precision::kFp16 is involved.
// Async:   ops of one device are ordered as issued and may return before they ran; Synchronize, CopyToHost and the
//          ops that return host values wait.
// Threads: one thread at a time per Backend.
// Errors:  InvalidInput for operands that break a "Requires", before any work; DeviceError when a device fails.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/buffer.h"
#include "kernels/base/device.h"
#include "kernels/base/dtype.h"
#include "kernels/base/tensor_view.h"
#include "kernels/logit_queries.h"
#include "kernels/sc/sc_lengths.h"
#include "kernels/sc/sc_operator.h"

namespace stoch {

enum class Precision : uint8_t { kSc, kFp32, kFp16 };

struct DeviceInfo {
  std::string name;  // "AMD EPYC, 2 threads, avx512vbmi", "NVIDIA H200"
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
  std::string detail;           // driver, compute capability, variant
  double read_bytes_per_s = 0;  // measured memory read bandwidth, 0 = not measured yet (Backend::MeasureBandwidth)
  // What the process takes there besides buffers: the driver's context, code, memory that kernels keep for each thread,
  // graphs. And how much of that free_bytes lacks already.
  int64_t runtime_bytes = 0;
  int64_t runtime_taken_bytes = 0;
};

// How one device of a backend reaches another.
struct DeviceLink {
  Device from, to;
  bool direct = false;  // reads and writes the other's memory; else copies are staged through the host
  std::string detail;   // "NVLink, performance rank 0"
};

// ---------------------------------------------------------------------------------------------------- weights ----

// The numbers of a tensor whose file holds them in another form: in blocks of few bits, or rows in another order.
class WeightDecoder {
 public:
  virtual ~WeightDecoder() = default;
  // Writes elements [first, first + count) of row-major order as F32. Threads: safe.
  // Requires: both are multiples of a matrix's row length; of a vector, any range inside it.
  virtual void Decode(int64_t first, int64_t count, float* out) const = 0;
};

// Where the numbers of one [rows, cols] tensor (or a [cols] vector, rows = 1) come from.
struct WeightSource {
  std::string name;  // of the tensor, for errors
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
};

// How a linear multiplies. sc is set exactly for kSc.
struct LinearSpec {
  Precision precision = Precision::kFp32;
  ScOperatorPtr sc;
  ScExtrasPtr extras = {};  // kSc: mixed lengths, protected channels, smoothing; null = none
};

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
  AttentionMode mode = AttentionMode::kExact;
  ScOperatorPtr qk, av;  // set where mode is not kExact
  // What a layer has instead of qk and av; empty where all layers are alike.
  struct Products {
    ScOperatorPtr qk, av;
    ScExtrasPtr qk_extras = {}, av_extras = {};  // mixed lengths of rows; null = none
  };
  std::vector<Products> layers = {};       // [num_layers]
  Precision precision = Precision::kFp32;  // kFp16: half storage of the baseline
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

// -------------------------------------------------------------------------------------------------------- ops ----

// Named for error messages: which layer (-1: none) and operator a call belongs to.
struct OpSite {
  int layer = -1;
  std::string_view op;
};

enum class Prologue : uint8_t {
  kNone,
  kRmsNorm,  // x * (1 / sqrt(mean(x^2) + eps)) * norm_weight, rounded as (x * r) * w
  kSiluMul,  // Silu(x) * x2
};

// For every weight i: out_i = f(x) @ weight_i^T, or out_i = out_i + that product, f = the prologue.
// Shapes:   x, x2 F32 [rows, cols]; norm_weight F32 [cols]; out_i F32 [rows, weight_i.rows()].
// Requires: all weights share cols; x, x2 and outs have dense rows (any row stride) and do not overlap.
// Bits:     kSc: docs/sc_arithmetic.md#5-back-to-real-numbers exactly; one row's result depends on that row alone when
//           its spec is per_row without row groups. kFp32: dot products in kDotLanes order.
struct LinearCall {
  OpSite site;
  Prologue prologue = Prologue::kNone;
  TensorView x, x2;
  TensorView norm_weight;
  float norm_eps = 0;
  std::vector<const LinearWeight*> weights;
  std::vector<TensorView> outs;
  bool add_to_out = false;
};

// RoPE on q and k, append k and v to the cache, then causal attention of every row over its sequence.
// Shapes:   q F32 [rows, num_heads * head_dim]; k, v F32 [rows, num_kv_heads * head_dim]; q and k are overwritten;
//           rope F32 [max_positions, head_dim]: cos of pairs 0..head_dim/2-1, then sin; out F32 [rows, num_heads *
//           head_dim]. Query head h reads KV head h / (num_heads / num_kv_heads). Rotation pairs are (i, i +
//           head_dim/2): x1' = (x1 * cos) - (x2 * sin), x2' = (x2 * cos) + (x1 * sin), every product and sum rounded.
// Bits:     score = (SC or exact q k) * float(1 / sqrt(head_dim)); softmax: m = max over the causal positions,
//           e = Exp(s - m), sum in kRowLanes order by absolute position, p = e / sum; then p v as the mode says
//           (exact: kDotLanes order by absolute position). Modes: docs/sc_arithmetic.md#6-in-the-model.
struct AttentionCall {
  OpSite site;
  TensorView q, k, v;
  TensorView rope;
  KvCache* cache = nullptr;
  int cache_layer = 0;  // index within the cache
  const Pass* pass = nullptr;
  int num_heads = 0;
  TensorView out;
  // Sliding window: the row at position i sees positions t with i - t < window; 0: every t <= i. A position outside has
  // a score of -inf, so p = 0; lanes, masks and scopes go by absolute position as without a window.
  int window = 0;
};

// x[r, i] = x[r, i] + bias[i], rounded once, in place.
// Shapes: x F32 [rows, n], dense rows, any row stride; bias F32 [n].
struct AddBiasCall {
  OpSite site;
  TensorView x;
  TensorView bias;
};

// RMSNorm of every head of q and of k, in place: x * (1 / sqrt(mean(x^2) + eps)) * weight over head_dim, rounded as
// (x * r) * w. Qwen3 does it between the projections and RoPE.
// Shapes: q F32 [rows, heads * head_dim], k F32 [rows, kv_heads * head_dim], dense rows, any row stride; q_weight,
//         k_weight F32 [head_dim].
// Bits:   the sum of squares in kRowLanes order.
struct NormHeadsCall {
  OpSite site;
  int64_t head_dim = 0;
  float eps = 0;
  TensorView q, k;
  TensorView q_weight, k_weight;
};

// ---------------------------------------------------------------------------------------------------- experts ----
// A mixture of experts: every row takes top_k of a layer's feed-forward networks. Slot s = row * top_k + rank is the
// row's expert of that rank, the most probable first; slots have fixed places, so that nothing waits for the choice.

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

// The router: p = softmax(logits[row]), the top_k largest p, ties to the lower index, and their weights: p, or where
// `normalize` is set p / (p_0 + p_1 + ...).
// Shapes: logits F32 [rows, experts]; chosen I32 [rows, top_k]; weights F32 [rows, top_k]; all dense.
// Bits:   softmax as in attention (Exp(x - max), sum in kRowLanes order, e / sum); the sum of the chosen p from rank 0
//         on.
struct RouteCall {
  OpSite site;
  TensorView logits;
  bool normalize = false;
  TensorView chosen;
  TensorView weights;
};

// out_i[s] = f(x of slot s) @ weight_i[chosen[s]]^T for every slot s; f and the products are those of LinearCall.
// Shapes:   x, x2 F32 [rows, cols], which all slots of a row share, or F32 [rows * top_k, cols]; chosen I32 [rows,
//           top_k], dense; out_i F32 [rows * top_k, weight_i.rows()].
// Requires: chosen is what Route wrote. As LinearCall otherwise; where scopes of activations hold several rows, they
//           are the slots of one expert in ascending order.
struct ExpertLinearCall {
  OpSite site;
  Prologue prologue = Prologue::kNone;
  TensorView x, x2;
  TensorView norm_weight;
  float norm_eps = 0;
  TensorView chosen;
  std::vector<const ExpertWeights*> weights;
  std::vector<TensorView> outs;
};

// out[r] = out[r] + ((w_0 x_0 + w_1 x_1) + w_2 x_2 ...) over the slots of row r in order of rank, every product and
// sum rounded.
// Shapes: x F32 [rows * top_k, n]; weights F32 [rows, top_k], dense; out F32 [rows, n].
struct CombineExpertsCall {
  OpSite site;
  TensorView x;
  TensorView weights;
  TensorView out;
};

// How data of an AllGather travels: the backend's choice, or what a check asks for (InvalidInput if that is not
// there).
enum class AllGatherRoute : uint8_t { kAuto, kDirect, kNccl };

// An exchange: what every device computed, side by side, on every device that wants it. Columns of `to` are those of
// f(from_0), f(from_1), ... in order, f the prologue of one value: kNone or kSiluMul.
// Shapes:   from_i, from2_i (kSiluMul) F32 [rows, n_i], n_i = 0 where a device gives nothing; to_j F32 [rows, sum of
//           n_i]. Dense rows, any row stride.
// Requires: each device is named once in `from`, and at most once in `to`, where no other device is. from_i may be its
//           own columns of the `to` of its device (kNone); outputs overlap nothing else.
// Bits:     values are moved, never added up.
// Async:    an op of every device in `from`: in order with the ops issued before and after on each.
struct AllGatherCall {
  OpSite site;
  Prologue prologue = Prologue::kNone;
  AllGatherRoute route = AllGatherRoute::kAuto;
  std::vector<TensorView> from, from2;
  std::vector<TensorView> to;
};

// What rows of a product with mixed lengths ran at, or a protected part at one length.
struct ScLengthRecord {
  OpSite site;
  std::string_view op;  // "q_proj", "qk", ...
  int64_t unit = -1;    // query head; -1: none
  int64_t rows = 0;
  int64_t in_features = 0;  // of qk head_dim, of av the positions that the last row sees
  int64_t out_features = 0;
  int64_t chunk = 0;                  // dimensions of a chunk
  int64_t lengths_per_row = 1;        // 1, or the number of chunks
  std::span<const int> lengths = {};  // [rows][lengths_per_row], cycles; 0 = pruned
  int64_t first_position = -1;        // attention: of the first row, which sees first_position + 1 positions
};

// Sees the operands of ops on the host, for calibration, profiles and traces. Calls come from the thread that issues
// ops; what is passed is valid during the call.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  // f(x) of a Linear: floats [rows][cols], rows `stride` apart.
  virtual void OnLinear(const LinearCall& /*call*/, const float* /*x*/, int64_t /*rows*/, int64_t /*cols*/,
                        int64_t /*stride*/) {}
  // Queries and keys are rotated.
  virtual void OnAttention(const AttentionCall& /*call*/, const PassLayout& /*layout*/) {}
  virtual void OnLengths(const ScLengthRecord& /*record*/) {}
};

// Rows [first_row, first_row + view.dim(0)) of the logits that queries number from 0: F32 [rows, vocab_size].
struct LogitRows {
  TensorView view;
  int64_t first_row = 0;
};

// Queries [first, first + count) of the last upload. A query whose row is below 0 is skipped.
struct QueryRange {
  int64_t first = 0;
  int64_t count = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;  // "cpu", "cuda"
  virtual std::span<const Device> devices() const = 0;
  virtual DeviceInfo info(Device device) const = 0;
  // Measures and remembers the read bandwidth shown by info(). Takes about a tenth of a second.
  virtual double MeasureBandwidth(Device device) = 0;

  // Every ordered pair of different devices; and what moves data of an AllGather, for people.
  virtual std::vector<DeviceLink> links() const = 0;
  virtual std::string collectives() const = 0;

  // Memory. Allocate zero-fills. Copies need dense views of equal byte size; CopyToHost waits for the device.
  virtual Buffer Allocate(Device device, int64_t bytes) = 0;
  // What a buffer of so many bytes takes of its device.
  virtual int64_t AllocatedBytes(int64_t bytes) const { return bytes; }
  // The most memory, besides its operands, that a Linear of matrices [out_features[i], in_features] takes while it
  // runs, with any number of tokens up to max_tokens. 0 where that is not memory of a device.
  virtual int64_t LinearScratchBytes(const LinearSpec& /*spec*/, std::span<const int64_t> /*out_features*/,
                                     int64_t /*in_features*/, int64_t /*max_tokens*/) const {
    return 0;
  }
  // The same for an Attention over a cache of this kind (num_pages does not matter), in passes within the limits.
  virtual int64_t AttentionScratchBytes(const KvCacheSpec& /*spec*/, int /*num_heads*/,
                                        const PassLimits& /*limits*/) const {
    return 0;
  }
  // Which kernels such a Linear of `tokens` tokens runs, or an Attention of `tokens` tokens, of one sequence
  // (is_prompt) or of as many; for people, "" where there is no choice.
  virtual std::string LinearKernel(const LinearSpec& /*spec*/, std::span<const int64_t> /*out_features*/,
                                   int64_t /*in_features*/, int64_t /*tokens*/) const {
    return {};
  }
  virtual std::string AttentionKernel(const KvCacheSpec& /*spec*/, int /*num_heads*/, int64_t /*tokens*/,
                                      bool /*is_prompt*/) const {
    return {};
  }
  // Takes memory for the scratch of ops to come, in one piece, that all of them share. What they need beyond it, they
  // take at their first use.
  virtual void ReserveScratch(Device /*device*/, int64_t /*bytes*/) {}
  // Zero-filled memory of the device that the host may read too, once it has waited for what writes it. For a few
  // results: the device writes it more slowly than its own.
  virtual Buffer AllocateShared(Device device, int64_t bytes) = 0;
  virtual void CopyFromHost(const TensorView& to, const void* from) = 0;
  virtual void CopyToHost(void* to, const TensorView& from) = 0;
  virtual void Copy(const TensorView& to, const TensorView& from) = 0;  // devices may differ
  virtual void Synchronize(Device device) = 0;

  // Weights. `parts` are stacked by rows into one matrix. NaN or infinity is InvalidInput naming the tensor.
  virtual std::unique_ptr<LinearWeight> MakeLinear(Device device, std::span<const WeightSource> parts,
                                                   const LinearSpec& spec) = 0;
  // Rows [first, first + count) of the matrix that MakeLinear(device, {source}, spec) would be, with the scales that
  // they have there. SliceRows of the source is the same, and cheaper, where no two rows share a scale.
  virtual std::unique_ptr<LinearWeight> MakeLinearRows(Device device, const WeightSource& source,
                                                       const LinearSpec& spec, int64_t first, int64_t count) = 0;
  virtual Buffer MakeVector(Device device, const WeightSource& source) = 0;  // F32 [cols]
  // `tied`, when given, is an exact LM head made from the same source; a backend may share its memory.
  virtual std::unique_ptr<EmbeddingTable> MakeEmbedding(Device device, const WeightSource& source,
                                                        const LinearWeight* tied) = 0;
  // Whether an embedding that shares no memory takes pinned memory of the host and none of its device.
  virtual bool keeps_embedding_on_host() const { return false; }
  // Gives back what making weights took besides them; the next one takes it again.
  virtual void EndLoading() {}
  // The matrix as plain numbers, for tests and inspection: kSc: codes U8 [rows, cols] and scales F32 [rows, chunks];
  // kFp32/kFp16: values F32 [rows, cols] in `values`.
  struct PlainLinear {
    std::vector<uint8_t> codes;
    std::vector<float> scales;
    std::vector<float> values;
  };
  virtual PlainLinear Unpack(const LinearWeight& weight) = 0;

  // Whether the ops of a mixture of experts are there; without them a model of that kind is refused before it loads.
  virtual bool has_experts() const { return false; }
  // Takes the same matrix of every expert. Requires: at least one; one device, shape and spec.
  virtual std::unique_ptr<ExpertWeights> MakeExperts(std::vector<std::unique_ptr<LinearWeight>> experts);

  virtual std::unique_ptr<KvCache> MakeKvCache(Device device, const KvCacheSpec& spec) = 0;
  virtual int64_t KvCacheBytes(const KvCacheSpec& spec) const = 0;  // what MakeKvCache would allocate
  virtual std::unique_ptr<Pass> MakePass(Device device, const PassLimits& limits) = 0;
  // Makes `layout` the content of `pass`. Requires: within its limits, ids checked by the caller.
  virtual void UploadPass(Pass& pass, const PassLayout& layout) = 0;

  // Ops.
  virtual void Embed(const EmbeddingTable& table, const Pass& pass, const TensorView& out) = 0;  // F32 [rows, hidden]
  virtual void Linear(const LinearCall& call) = 0;
  virtual void Attention(const AttentionCall& call) = 0;
  virtual void AddBias(const AddBiasCall& call);
  virtual void NormHeads(const NormHeadsCall& call);
  virtual void Route(const RouteCall& call);
  virtual void ExpertLinear(const ExpertLinearCall& call);
  virtual void CombineExperts(const CombineExpertsCall& call);
  // out[i] = x[pass.output_rows[i]]. Shapes: x F32 [rows, n], out F32 [output rows, n].
  virtual void SelectRows(const Pass& pass, const TensorView& x, const TensorView& out) = 0;
  virtual void AllGather(const AllGatherCall& call) = 0;
  // Argmax of every row of logits F32 [rows, vocab], ties to the lower index; ids I32 [rows], dense.
  virtual void Argmax(const TensorView& logits, const TensorView& ids) = 0;
  // Queries about logits (logit_queries.h). What LogitQueryBytes says is the device memory that MakeLogitQueries takes.
  virtual std::unique_ptr<LogitQueryBuffer> MakeLogitQueries(Device device, const LogitQueryLimits& limits) = 0;
  virtual int64_t LogitQueryBytes(const LogitQueryLimits& limits) const = 0;
  // Makes `queries` the content of the buffer; what their spans refer to is copied. Errors: InvalidInput naming the
  // query (logit_query_check.h).
  virtual void UploadLogitQueries(LogitQueryBuffer& buffer, const LogitQueries& queries) = 0;
  // Answers the picks, or the log-probabilities, of a range; rows outside of `logits` are InvalidInput or skipped.
  // A log-probability of a pick comes after the pick. Bits: identical on all backends.
  virtual void PickTokens(const LogitRows& logits, LogitQueryBuffer& buffer, const QueryRange& range) = 0;
  virtual void LogProbs(const LogitRows& logits, LogitQueryBuffer& buffer, const QueryRange& range) = 0;
  // y = a @ b^T of docs/sc_arithmetic.md for any configuration, operands quantized on the fly.
  // Shapes: a F32 [n, d] or [batch, n, d], b F32 [m, d] or [batch, m, d], out F32 [n, m] or [batch, n, m]; any strides.
  virtual void ScMatmul(const TensorView& a, const TensorView& b, const ScOperator& op, const TensorView& out) = 0;

  // The same with extras, and a stream length for every row, or every (row, chunk), of a: `lengths` [n][1 or chunks]
  // are cycles of extras.by_length, 0 = pruned; empty: by the rule of the extras, or the operator's own.
  // Shapes: as ScMatmul, 2-D, dense rows. Errors: InvalidInput where a backend does not have it.
  virtual void ScMixedMatmul(const TensorView& a, const TensorView& b, const ScOperatorPtr& op, const ScExtras& extras,
                             std::span<const int> lengths, const TensorView& out);

  // Runs `body` (ops on `devices` only, each distinct, no host reads), possibly by replaying what it did last time
  // under the same non-empty key. Requires: the same key means the same ops on the same handles, buffers and shapes;
  // only the contents of buffers, and of passes of one ContextBucket, may differ. Ops that join devices are AllGathers.
  virtual void RunGraph(std::span<const Device> devices, std::string_view key, const std::function<void()>& body) = 0;
  void RunGraph(Device device, std::string_view key, const std::function<void()>& body) {
    RunGraph({&device, 1}, key, body);
  }

  // Whether MakeLinear and MakeKvCache take extras.
  virtual bool has_extras() const { return false; }
  // Ops issued from now on show their operands to `observer`; null ends it. False where the backend cannot.
  virtual bool Observe(OpObserver* observer) { return observer == nullptr; }

  // Throws InvalidInput naming layer and operator if an op met NaN or infinity since the last call. Waits.
  virtual void CheckFinite(Device device) = 0;
};

}  // namespace stoch
