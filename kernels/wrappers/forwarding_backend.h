// SPDX-License-Identifier: Apache-2.0
// A backend that hands every call on to another one; the base of those that watch it, or make it fail in tests.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/backend.h"

namespace stoch {

// Bits: those of the inner backend. A test compares its functions with the interface's, so that none is left to a
// default.
class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(std::shared_ptr<Backend> inner) : inner_(std::move(inner)) {}

  std::string_view name() const override { return inner_->name(); }
  std::span<const Device> devices() const override { return inner_->devices(); }
  DeviceInfo info(Device device) const override { return inner_->info(device); }
  double MeasureBandwidth(Device device) override { return inner_->MeasureBandwidth(device); }
  std::vector<DeviceLink> links() const override { return inner_->links(); }
  std::string collectives() const override { return inner_->collectives(); }
  Buffer Allocate(Device device, int64_t bytes) override { return inner_->Allocate(device, bytes); }
  int64_t AllocatedBytes(int64_t bytes) const override { return inner_->AllocatedBytes(bytes); }
  int64_t LinearScratchBytes(const LinearSpec& spec, std::span<const int64_t> out_features, int64_t in_features,
                             int64_t max_tokens) const override {
    return inner_->LinearScratchBytes(spec, out_features, in_features, max_tokens);
  }
  int64_t AttentionScratchBytes(const KvCacheSpec& spec, int num_heads, const PassLimits& limits) const override {
    return inner_->AttentionScratchBytes(spec, num_heads, limits);
  }
  int64_t ExpertScratchBytes(const LinearSpec& spec, int64_t in_features, int64_t max_rows) const override {
    return inner_->ExpertScratchBytes(spec, in_features, max_rows);
  }
  int64_t ExactBytes(const WeightSource& source) const override { return inner_->ExactBytes(source); }
  int64_t ScreenBytes(int64_t rows, int64_t cols, bool is_fixed) const override {
    return inner_->ScreenBytes(rows, cols, is_fixed);
  }
  std::string LinearKernel(const LinearSpec& spec, std::span<const int64_t> out_features, int64_t in_features,
                           int64_t tokens) const override {
    return inner_->LinearKernel(spec, out_features, in_features, tokens);
  }
  std::string ExpertKernel(const LinearSpec& spec, const ExpertShape& shape) const override {
    return inner_->ExpertKernel(spec, shape);
  }
  std::string AttentionKernel(const KvCacheSpec& spec, int num_heads, int64_t tokens, bool is_prompt,
                              std::span<const int64_t> windows) const override {
    return inner_->AttentionKernel(spec, num_heads, tokens, is_prompt, windows);
  }
  void ReserveScratch(Device device, int64_t bytes) override { inner_->ReserveScratch(device, bytes); }
  Buffer AllocateShared(Device device, int64_t bytes) override { return inner_->AllocateShared(device, bytes); }
  void CopyFromHost(const TensorView& to, const void* from) override { inner_->CopyFromHost(to, from); }
  void CopyToHost(void* to, const TensorView& from) override { inner_->CopyToHost(to, from); }
  void Copy(const TensorView& to, const TensorView& from) override { inner_->Copy(to, from); }
  void Synchronize(Device device) override { inner_->Synchronize(device); }
  std::optional<OpSite> RunningSite() const override { return inner_->RunningSite(); }
  std::unique_ptr<LinearWeight> MakeLinear(Device device, std::span<const WeightSource> parts,
                                           const LinearSpec& spec) override {
    return inner_->MakeLinear(device, parts, spec);
  }
  std::unique_ptr<LinearWeight> MakeLinearRows(Device device, const WeightSource& source, const LinearSpec& spec,
                                               int64_t first, int64_t count) override {
    return inner_->MakeLinearRows(device, source, spec, first, count);
  }
  Buffer MakeVector(Device device, const WeightSource& source) override { return inner_->MakeVector(device, source); }
  std::unique_ptr<EmbeddingTable> MakeEmbedding(Device device, const WeightSource& source,
                                                const LinearWeight* tied) override {
    return inner_->MakeEmbedding(device, source, tied);
  }
  bool keeps_embedding_on_host() const override { return inner_->keeps_embedding_on_host(); }
  void EndLoading() override { inner_->EndLoading(); }
  PlainLinear Unpack(const LinearWeight& weight) override { return inner_->Unpack(weight); }
  bool Observe(OpObserver* observer) override { return inner_->Observe(observer); }
  bool ObserveLengths(OpObserver* observer) override { return inner_->ObserveLengths(observer); }
  bool is_observed() const override { return inner_->is_observed(); }
  void ScMixedMatmul(const TensorView& a, const TensorView& b, const ScOperatorPtr& op, const ScExtras& extras,
                     std::span<const int> lengths, const TensorView& out) override {
    inner_->ScMixedMatmul(a, b, op, extras, lengths, out);
  }
  std::unique_ptr<ExpertWeights> MakeExperts(std::vector<std::unique_ptr<LinearWeight>> experts) override {
    return inner_->MakeExperts(std::move(experts));
  }
  std::unique_ptr<KvCache> MakeKvCache(Device device, const KvCacheSpec& spec) override {
    return inner_->MakeKvCache(device, spec);
  }
  int64_t KvCacheBytes(const KvCacheSpec& spec) const override { return inner_->KvCacheBytes(spec); }
  std::unique_ptr<Pass> MakePass(Device device, const PassLimits& limits) override {
    return inner_->MakePass(device, limits);
  }
  void UploadPass(Pass& pass, const PassLayout& layout) override { inner_->UploadPass(pass, layout); }
  void Embed(const EmbeddingTable& table, const Pass& pass, const TensorView& out) override {
    inner_->Embed(table, pass, out);
  }
#define OP(Op) \
  void Op(const Op##Call& call) override { inner_->Op(call); }
  STOCH_FOR_EACH_OP(OP)
#undef OP
  void SelectRows(const Pass& pass, const TensorView& x, const TensorView& out) override {
    inner_->SelectRows(pass, x, out);
  }
  void AllGather(const AllGatherCall& call) override { inner_->AllGather(call); }
  void RingAttention(const RingAttentionCall& call) override { inner_->RingAttention(call); }
  int64_t RingScratchBytes(const KvCacheSpec& spec, int num_heads, const PassLimits& limits) const override {
    return inner_->RingScratchBytes(spec, num_heads, limits);
  }
  bool ProbeRing(RingProbe* probe) override { return inner_->ProbeRing(probe); }
  void Argmax(const TensorView& logits, const TensorView& ids) override { inner_->Argmax(logits, ids); }
  std::unique_ptr<LogitQueryBuffer> MakeLogitQueries(Device device, const LogitQueryLimits& limits) override {
    return inner_->MakeLogitQueries(device, limits);
  }
  int64_t LogitQueryBytes(const LogitQueryLimits& limits) const override { return inner_->LogitQueryBytes(limits); }
  void UploadLogitQueries(LogitQueryBuffer& buffer, const LogitQueries& queries) override {
    inner_->UploadLogitQueries(buffer, queries);
  }
  void PickTokens(const LogitRows& logits, LogitQueryBuffer& buffer, const QueryRange& range) override {
    inner_->PickTokens(logits, buffer, range);
  }
  void LogProbs(const LogitRows& logits, LogitQueryBuffer& buffer, const QueryRange& range) override {
    inner_->LogProbs(logits, buffer, range);
  }
  void ScMatmul(const TensorView& a, const TensorView& b, const ScOperator& op, const TensorView& out) override {
    inner_->ScMatmul(a, b, op, out);
  }
  void RunGraph(std::span<const Device> devices, std::string_view key, const std::function<void()>& body) override {
    inner_->RunGraph(devices, key, body);
  }
  void CheckFinite(Device device) override { inner_->CheckFinite(device); }

 protected:
  Backend& inner() const { return *inner_; }

  // Runs an op that others are part of as one op after the other, each a call of this backend. Returns whether there
  // were any; an op on its own is left alone.
  template <class Call>
  bool RunApart(const Call& /*call*/) {
    return false;
  }
  bool RunApart(const AttentionCall& call) {
    if (call.norm == nullptr) return false;
    NormHeads(*call.norm);
    AttentionCall rest = call;
    rest.norm = nullptr;
    Attention(rest);
    return true;
  }

 private:
  const std::shared_ptr<Backend> inner_;
};

}  // namespace stoch
