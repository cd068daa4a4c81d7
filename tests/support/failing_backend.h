// SPDX-License-Identifier: Apache-2.0
// A backend that hands every call on to another one, and fails where a test wants it to.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "kernels/backend.h"

namespace stoch::test {

class FailingBackend final : public Backend {
 public:
  explicit FailingBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

  // Called before every attention, with its rows; what it throws is what the op throws.
  std::function<void(int64_t rows)> before_attention;
  // Called after every choice of experts.
  std::function<void(const RouteCall& call)> after_route;
  // Called before every pass, with its tokens; the same.
  std::function<void(const PassLayout& layout)> before_pass;

  std::string_view name() const override { return inner_->name(); }
  std::span<const Device> devices() const override { return inner_->devices(); }
  DeviceInfo info(Device device) const override { return inner_->info(device); }
  double MeasureBandwidth(Device device) override { return inner_->MeasureBandwidth(device); }
  std::vector<DeviceLink> links() const override { return inner_->links(); }
  std::string collectives() const override { return inner_->collectives(); }
  Buffer Allocate(Device device, int64_t bytes) override { return inner_->Allocate(device, bytes); }
  Buffer AllocateShared(Device device, int64_t bytes) override { return inner_->AllocateShared(device, bytes); }
  void CopyFromHost(const TensorView& to, const void* from) override { inner_->CopyFromHost(to, from); }
  void CopyToHost(void* to, const TensorView& from) override { inner_->CopyToHost(to, from); }
  void Copy(const TensorView& to, const TensorView& from) override { inner_->Copy(to, from); }
  void Synchronize(Device device) override { inner_->Synchronize(device); }
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
  PlainLinear Unpack(const LinearWeight& weight) override { return inner_->Unpack(weight); }
  std::unique_ptr<KvCache> MakeKvCache(Device device, const KvCacheSpec& spec) override {
    return inner_->MakeKvCache(device, spec);
  }
  int64_t KvCacheBytes(const KvCacheSpec& spec) const override { return inner_->KvCacheBytes(spec); }
  std::unique_ptr<Pass> MakePass(Device device, const PassLimits& limits) override {
    return inner_->MakePass(device, limits);
  }
  void UploadPass(Pass& pass, const PassLayout& layout) override {
    if (before_pass) before_pass(layout);
    inner_->UploadPass(pass, layout);
  }
  void Embed(const EmbeddingTable& table, const Pass& pass, const TensorView& out) override {
    inner_->Embed(table, pass, out);
  }
  void Linear(const LinearCall& call) override { inner_->Linear(call); }
  void Attention(const AttentionCall& call) override {
    if (before_attention) before_attention(call.q.dim(0));
    inner_->Attention(call);
  }
  void AddBias(const AddBiasCall& call) override { inner_->AddBias(call); }
  void NormHeads(const NormHeadsCall& call) override { inner_->NormHeads(call); }
  bool has_experts() const override { return inner_->has_experts(); }
  std::unique_ptr<ExpertWeights> MakeExperts(std::vector<std::unique_ptr<LinearWeight>> experts) override {
    return inner_->MakeExperts(std::move(experts));
  }
  void Route(const RouteCall& call) override {
    inner_->Route(call);
    if (after_route) after_route(call);
  }
  void ExpertLinear(const ExpertLinearCall& call) override { inner_->ExpertLinear(call); }
  void CombineExperts(const CombineExpertsCall& call) override { inner_->CombineExperts(call); }
  void SelectRows(const Pass& pass, const TensorView& x, const TensorView& out) override {
    inner_->SelectRows(pass, x, out);
  }
  void AllGather(const AllGatherCall& call) override { inner_->AllGather(call); }
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

 private:
  std::unique_ptr<Backend> inner_;
};

}  // namespace stoch::test
