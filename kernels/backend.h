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
#include "kernels/calls.h"
#include "kernels/handles.h"
#include "kernels/logit_queries.h"
#include "kernels/op_observer.h"
#include "kernels/ring.h"

namespace stoch {

struct DeviceInfo {
  std::string name;  // "AMD EPYC, 2 threads, avx512vbmi", "NVIDIA H200"
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
  std::string detail;           // driver, compute capability, variant
  double read_bytes_per_s = 0;  // measured memory read bandwidth, 0 = not measured yet (Backend::MeasureBandwidth)
  // Memory that the process takes there besides buffers: the driver's context, code, memory that kernels keep for each thread,
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

  // Memory. Allocate zero-fills. Copies need dense views of equal byte size, of Copy also in memory of AllocateShared;
  // CopyToHost waits for the device.
  virtual Buffer Allocate(Device device, int64_t bytes) = 0;
  // Bytes of its device that a buffer of so many bytes takes.
  virtual int64_t AllocatedBytes(int64_t bytes) const { return bytes; }
  // The most memory, besides its operands, that a Linear of matrices [out_features[i], in_features] takes while it
  // runs, with any number of tokens up to max_tokens. 0 where that is not memory of a device.
  virtual int64_t LinearScratchBytes(const LinearSpec& /*spec*/, std::span<const int64_t> /*out_features*/,
                                     int64_t /*in_features*/, int64_t /*max_tokens*/) const {
    return 0;
  }
  // As LinearScratchBytes, for an Attention over a cache of this kind (num_pages does not matter), in passes within the limits.
  virtual int64_t AttentionScratchBytes(const KvCacheSpec& /*spec*/, int /*num_heads*/,
                                        const PassLimits& /*limits*/) const {
    return 0;
  }
  // As LinearScratchBytes, for an ExpertLinear over matrices of in_features columns, of up to max_rows rows of x.
  virtual int64_t ExpertScratchBytes(const LinearSpec& /*spec*/, int64_t /*in_features*/, int64_t /*max_rows*/) const {
    return 0;
  }
  // The kernels of such a Linear of `tokens` tokens, of an ExpertLinear, or of an Attention of `tokens` tokens, of one
  // sequence (is_prompt) or of as many. windows: AttentionCall::window of every layer; empty: none. For people, ""
  // where there is no choice.
  virtual std::string LinearKernel(const LinearSpec& /*spec*/, std::span<const int64_t> /*out_features*/,
                                   int64_t /*in_features*/, int64_t /*tokens*/) const {
    return {};
  }
  virtual std::string ExpertKernel(const LinearSpec& /*spec*/, const ExpertShape& /*shape*/) const { return {}; }
  virtual std::string AttentionKernel(const KvCacheSpec& /*spec*/, int /*num_heads*/, int64_t /*tokens*/,
                                      bool /*is_prompt*/, std::span<const int64_t> /*windows*/) const {
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
  // For devices that run behind their host: the op whose kernels began last on any of them, also in a graph, so the one to
  // name where a device fails or hangs. nullopt: none has, or ops have run when they return.
  // Threads: any, also after a DeviceError.
  virtual std::optional<OpSite> RunningSite() const { return std::nullopt; }

  // Weights. `parts` are stacked by rows into one matrix. NaN or infinity is InvalidInput naming the tensor.
  virtual std::unique_ptr<LinearWeight> MakeLinear(Device device, std::span<const WeightSource> parts,
                                                   const LinearSpec& spec) = 0;
  // Rows [first, first + count) of the matrix that MakeLinear(device, {source}, spec) would be, with the scales that
  // they have there. SliceRows of the source is the same, and cheaper, where no two rows share a scale.
  virtual std::unique_ptr<LinearWeight> MakeLinearRows(Device device, const WeightSource& source,
                                                       const LinearSpec& spec, int64_t first, int64_t count) = 0;
  // Storage of a matrix of exact numbers (kFp32): memory, or the part of a mapped file that is read in place.
  virtual int64_t ExactBytes(const WeightSource& source) const {
    const size_t size = source.generated() ? sizeof(uint16_t) : DTypeSize(source.dtype);
    return source.rows * source.cols * static_cast<int64_t>(size);
  }
  virtual Buffer MakeVector(Device device, const WeightSource& source) = 0;  // F32 [cols]
  // `tied`, when given, is an exact LM head made from the same source; a backend may share its memory.
  virtual std::unique_ptr<EmbeddingTable> MakeEmbedding(Device device, const WeightSource& source,
                                                        const LinearWeight* tied) = 0;
  // Whether an embedding that shares no memory takes pinned memory of the host and none of its device.
  virtual bool keeps_embedding_on_host() const { return false; }
  // Bytes that an exact LM head takes besides its numbers and scales, to find the largest output of a row without reading
  // all of it (LinearCall::only_largest). is_fixed: it multiplies as integers (IsFixedPoint), else as floats.
  virtual int64_t ScreenBytes(int64_t /*rows*/, int64_t /*cols*/, bool /*is_fixed*/) const { return 0; }
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

  // Takes the same matrix of every expert. Requires: at least one; one device, shape and spec.
  virtual std::unique_ptr<ExpertWeights> MakeExperts(std::vector<std::unique_ptr<LinearWeight>> experts);

  virtual std::unique_ptr<KvCache> MakeKvCache(Device device, const KvCacheSpec& spec) = 0;
  virtual int64_t KvCacheBytes(const KvCacheSpec& spec) const = 0;  // bytes that MakeKvCache would allocate
  virtual std::unique_ptr<Pass> MakePass(Device device, const PassLimits& limits) = 0;
  // Makes `layout` the content of `pass`. Requires: within its limits, ids checked by the caller.
  virtual void UploadPass(Pass& pass, const PassLayout& layout) = 0;

  // Ops.
  virtual void Embed(const EmbeddingTable& table, const Pass& pass, const TensorView& out) = 0;  // F32 [rows, hidden]
  // Those of calls.h. Errors: InvalidInput where a backend does not have the op.
#define OP(Op) virtual void Op(const Op##Call& call);
  STOCH_FOR_EACH_OP(OP)
#undef OP
  // out[i] = x[pass.output_rows[i]]. Shapes: x F32 [rows, n], out F32 [output rows, n].
  virtual void SelectRows(const Pass& pass, const TensorView& x, const TensorView& out) = 0;
  virtual void AllGather(const AllGatherCall& call) = 0;
  // Attention over dealt positions (ring.h). Errors: InvalidInput where a backend does not have it.
  virtual void RingAttention(const RingAttentionCall& call);
  // Memory of each device that a RingAttention over such a cache works in, for passes within the limits.
  virtual int64_t RingScratchBytes(const KvCacheSpec& /*spec*/, int /*num_heads*/, const PassLimits& /*limits*/) const {
    return 0;
  }
  // Rings from now on show their hops to `probe`; null ends it. False where the backend cannot.
  virtual bool ProbeRing(RingProbe* probe) { return probe == nullptr; }
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

  // As ScMatmul, with extras, and a stream length for every row, or every (row, chunk), of a: `lengths` [n][1 or chunks]
  // are cycles of extras.by_length, 0 = pruned; empty: by the rule of the extras, or the operator's own.
  // Shapes: as ScMatmul, 2-D, dense rows. Errors: InvalidInput where a backend does not have it.
  virtual void ScMixedMatmul(const TensorView& a, const TensorView& b, const ScOperatorPtr& op, const ScExtras& extras,
                             std::span<const int> lengths, const TensorView& out);

  // Runs `body` (ops on `devices` only, each distinct, no host reads), possibly by replaying what it did last time
  // under the same non-empty key. Requires: the same key means the same ops on the same handles, buffers and shapes;
  // only the contents of buffers, and of passes of one ContextBucket, may differ. Ops that join devices are AllGathers and RingAttentions.
  virtual void RunGraph(std::span<const Device> devices, std::string_view key, const std::function<void()>& body) = 0;
  void RunGraph(Device device, std::string_view key, const std::function<void()>& body) {
    RunGraph({&device, 1}, key, body);
  }

  // Ops issued from now on show their operands to `observer`; null ends it. False where the backend cannot.
  virtual bool Observe(OpObserver* observer) { return observer == nullptr; }
  // As Observe, for OnLengths alone, which more backends can. Ops then wait for their lengths.
  virtual bool ObserveLengths(OpObserver* observer) { return Observe(observer); }
  // Whether somebody observes: who leaves out rows that nobody needs the results of then does not.
  virtual bool is_observed() const { return false; }

  // Throws InvalidInput naming layer and operator if an op met NaN or infinity since the last call. Waits.
  virtual void CheckFinite(Device device) = 0;
};

}  // namespace stoch
