// SPDX-License-Identifier: Apache-2.0
// Rows that kernels hand to each other word by word give the CPU's bits: in graphs that end behind any op, from step to
// step, where attention changes its kernel, and where something else writes the row in between.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "kernels/context_bucket.h"
#include "tests/kernels/device_tensor.h"
#include "tests/kernels/gpu/both_backends.h"
#include "tests/kernels/random_floats.h"

namespace stoch::test {
namespace {

constexpr int kHeadDim = 64;
constexpr int kHeads = 4;
constexpr int kKvHeads = 2;
constexpr int64_t kHidden = 512;
constexpr int64_t kInner = 640;
constexpr int64_t kAttended = int64_t{kHeads} * kHeadDim;
constexpr int64_t kKeys = int64_t{kKvHeads} * kHeadDim;
constexpr int64_t kQkv = kAttended + 2 * kKeys;
constexpr int64_t kPageTokens = 64;
constexpr int64_t kPositions = 320;
constexpr int kLayerOps = 5;

// Decoder layers of one sequence, a token at a time.
class Layers {
 public:
  Layers(Backend& backend, int layers) : backend_(backend), device_(backend.devices()[0]), layers_(layers) {
    ScConfig config;
    config.halve = true;
    config.granularity = ScGranularity::kPerRow;
    const ScOperatorPtr of_attention = MakeScOperator(config);
    config.chunk_d = 128;
    spec_.precision = Precision::kSc;
    spec_.sc = MakeScOperator(config);
    qkv_weight_ = Weight(1, kQkv, kHidden);
    o_weight_ = Weight(2, kHidden, kAttended);
    gate_up_weight_ = Weight(3, 2 * kInner, kHidden);
    down_weight_ = Weight(4, kHidden, kInner);
    KvCacheSpec cache;
    cache.num_layers = layers;
    cache.num_kv_heads = kKvHeads;
    cache.head_dim = kHeadDim;
    cache.page_tokens = kPageTokens;
    cache.num_pages = kPositions / kPageTokens;
    cache.mode = AttentionMode::kPerToken;
    cache.qk = cache.av = of_attention;
    cache_ = backend.MakeKvCache(device_, cache);
    pass_ = backend.MakePass(device_, {1, 1, kPositions / kPageTokens});
    for (int32_t p = 0; p < kPositions / kPageTokens; ++p) pages_.push_back(p);
  }

  // Tensors after the first `ops` of all ops of a step; attention leaves q k v unspecified. bias: added to q k v in front of attention.
  std::vector<float> Step(int position, int ops, bool bias) {
    backend_.CopyFromHost(hidden_.view(), RandomFloats(1000 + static_cast<uint64_t>(position), kHidden).data());
    PassLayout layout;
    layout.sequences.push_back({0, 1, position, std::span<const int32_t>(pages_)});
    layout.ids = {0};
    layout.output_rows = {0};
    backend_.UploadPass(*pass_, layout);
    const std::string key = std::to_string(ops) + (bias ? " bias " : " ") + std::to_string(ContextBucket(position + 1));
    backend_.RunGraph(device_, key, [&] {
      for (int op = 0; op < ops; ++op) Run(op / kLayerOps, op % kLayerOps, bias);
    });
    std::vector<float> all;
    const auto read = [&](const DeviceTensor& tensor) {
      const std::vector<float> values = tensor.Read();
      all.insert(all.end(), values.begin(), values.end());
    };
    read(hidden_);
    read(attended_);
    read(gate_up_);
    if (ops % kLayerOps == 1) read(qkv_);
    return all;
  }

  // A row by the first linear, replaced by `values` from the host, and its product.
  std::vector<float> Replaced(const std::vector<float>& values) {
    Run(0, 2, false);
    backend_.CopyFromHost(hidden_.view(), values.data());
    Run(0, 3, false);
    return gate_up_.Read();
  }

  int ops() const { return layers_ * kLayerOps; }

 private:
  std::unique_ptr<LinearWeight> Weight(uint64_t seed, int64_t rows, int64_t cols) {
    const std::vector<float> values = RandomFloats(seed, rows * cols);
    WeightSource source;
    source.name = "w";
    source.rows = rows;
    source.cols = cols;
    source.host = values.data();
    return backend_.MakeLinear(device_, std::span(&source, 1), spec_);
  }
  DeviceTensor Zeros(int64_t cols) { return {backend_, {1, cols}, std::vector<float>(static_cast<size_t>(cols))}; }

  void Linear(const LinearWeight& weight, const TensorView& x, const TensorView& out, bool norm, bool add) {
    LinearCall call;
    call.site = {0, "test_proj"};
    call.x = x;
    if (norm) {
      call.prologue = Prologue::kRmsNorm;
      call.norm_weight = norm_.view();
      call.norm_eps = 1e-5f;
    }
    call.weights = {&weight};
    call.outs = {out};
    call.add_to_out = add;
    backend_.Linear(call);
  }

  void Run(int layer, int op, bool bias) {
    switch (op) {
      case 0:
        Linear(*qkv_weight_, hidden_.view(), qkv_.view(), true, false);
        if (bias) backend_.AddBias({{0, "bias"}, qkv_.view(), bias_.view()});
        return;
      case 1: {
        AttentionCall call;
        call.site = {0, "attention"};
        call.q = Slice(qkv_.view(), 1, 0, kAttended);
        call.k = Slice(qkv_.view(), 1, kAttended, kKeys);
        call.v = Slice(qkv_.view(), 1, kAttended + kKeys, kKeys);
        call.rope = rope_.view();
        call.cache = cache_.get();
        call.cache_layer = layer;
        call.pass = pass_.get();
        call.num_heads = kHeads;
        call.out = attended_.view();
        return backend_.Attention(call);
      }
      case 2: return Linear(*o_weight_, attended_.view(), hidden_.view(), false, true);
      case 3: return Linear(*gate_up_weight_, hidden_.view(), gate_up_.view(), true, false);
      default: {
        LinearCall call;
        call.site = {0, "down"};
        call.prologue = Prologue::kSiluMul;
        call.x = Slice(gate_up_.view(), 1, 0, kInner);
        call.x2 = Slice(gate_up_.view(), 1, kInner, kInner);
        call.weights = {down_weight_.get()};
        call.outs = {hidden_.view()};
        call.add_to_out = true;
        return backend_.Linear(call);
      }
    }
  }

  Backend& backend_;
  const Device device_;
  const int layers_;
  LinearSpec spec_;
  std::unique_ptr<LinearWeight> qkv_weight_, o_weight_, gate_up_weight_, down_weight_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Pass> pass_;
  std::vector<int32_t> pages_;
  DeviceTensor hidden_ = Zeros(kHidden);
  DeviceTensor qkv_ = Zeros(kQkv);
  DeviceTensor attended_ = Zeros(kAttended);
  DeviceTensor gate_up_ = Zeros(2 * kInner);
  DeviceTensor norm_{backend_, {kHidden}, RandomFloats(5, kHidden)};
  DeviceTensor bias_{backend_, {kQkv}, RandomFloats(6, kQkv)};
  DeviceTensor rope_{backend_, {kPositions, kHeadDim}, RandomFloats(7, kPositions* kHeadDim)};
};

class PostedRows : public BothBackends {};

// Beyond 256 positions attention is another kernel, which neither polls nor posts.
TEST_F(PostedRows, StepsOfSeveralLayersAsAttentionChangesItsKernel) {
  Layers reference(*cpu_, 3), layers(*cuda_, 3);
  for (int position = 0; position < 270; ++position) {
    ASSERT_TRUE(SameBits(layers.Step(position, layers.ops(), false), reference.Step(position, layers.ops(), false)))
        << "position " << position;
  }
}

// As few as one kernel that posts, and any number behind it, from graph to graph.
TEST_F(PostedRows, GraphsThatEndBehindAnyOp) {
  Layers reference(*cpu_, 2), layers(*cuda_, 2);
  int position = 0;
  for (int round = 0; round < 4; ++round) {  // a graph is recorded the second time
    for (int ops = layers.ops(); ops > 0; --ops, ++position) {
      ASSERT_TRUE(SameBits(layers.Step(position, ops, false), reference.Step(position, ops, false)))
          << ops << " ops, position " << position;
    }
  }
}

TEST_F(PostedRows, RowsThatAnotherOpWroteSince) {
  Layers reference(*cpu_, 2), layers(*cuda_, 2);
  for (int position = 0; position < 4; ++position) {
    ASSERT_TRUE(SameBits(layers.Step(position, layers.ops(), true), reference.Step(position, layers.ops(), true)))
        << "position " << position;
  }
  const std::vector<float> values = RandomFloats(8, kHidden);
  EXPECT_TRUE(SameBits(layers.Replaced(values), reference.Replaced(values)));
}

}  // namespace
}  // namespace stoch::test
