// SPDX-License-Identifier: Apache-2.0
// Rows that kernels hand to each other word by word give the CPU's bits: in graphs that end behind any op, from step to
// step, where attention changes its kernel, and where something else writes the row in between.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/context_bucket.h"
#include "tests/kernels/device_tensor.h"
#include "tests/kernels/gpu/both_backends.h"
#include "tests/kernels/random_floats.h"

namespace stoch::test {
namespace {

constexpr int kHeads = 4;
constexpr int kKvHeads = 2;
constexpr int64_t kHidden = 512;
constexpr int64_t kInner = 640;
constexpr int64_t kPageTokens = 64;
constexpr int64_t kPositions = 320;
constexpr int kLayerOps = 5;

// Decoder layers of one sequence, a token at a time.
class Layers {
 public:
  // `name` begins the keys of its graphs.
  Layers(Backend& backend, int layers, int head_dim, std::string name = "")
      : backend_(backend), device_(backend.devices()[0]), layers_(layers), head_dim_(head_dim), name_(std::move(name)) {
    ScConfig config;
    config.halve = true;
    config.granularity = ScGranularity::kPerRow;
    const ScOperatorPtr of_attention = MakeScOperator(config);
    config.chunk_d = 128;
    spec_.precision = Precision::kSc;
    spec_.sc = MakeScOperator(config);
    qkv_weight_ = Weight(1, qkv_columns(), kHidden);
    o_weight_ = Weight(2, kHidden, attended());
    gate_up_weight_ = Weight(3, 2 * kInner, kHidden);
    down_weight_ = Weight(4, kHidden, kInner);
    KvCacheSpec cache;
    cache.num_layers = layers;
    cache.num_kv_heads = kKvHeads;
    cache.head_dim = head_dim_;
    cache.page_tokens = kPageTokens;
    cache.num_pages = kPositions / kPageTokens;
    cache.mode = AttentionMode::kPerToken;
    cache.qk = cache.av = of_attention;
    cache_ = backend.MakeKvCache(device_, cache);
    pass_ = backend.MakePass(device_, {1, 1, kPositions / kPageTokens});
    for (int32_t p = 0; p < kPositions / kPageTokens; ++p) pages_.push_back(p);
  }

  // Gives every layer `positions` positions, by a pass of them all.
  void Fill(int positions) {
    const auto pass = backend_.MakePass(device_, {positions, 1, kPositions / kPageTokens});
    PassLayout layout;
    layout.sequences.push_back({0, positions, 0, std::span<const int32_t>(pages_)});
    layout.ids.resize(static_cast<size_t>(positions));
    layout.output_rows = {0};
    backend_.UploadPass(*pass, layout);
    const DeviceTensor out(backend_, {positions, attended()},
                           std::vector<float>(static_cast<size_t>(positions * attended())));
    for (int layer = 0; layer < layers_; ++layer) {
      const DeviceTensor qkv(backend_, {positions, qkv_columns()},
                             RandomFloats(9 + static_cast<uint64_t>(layer), positions * qkv_columns()));
      Attention(layer, *pass, qkv.view(), out.view());
      out.Read();  // the pass and its rows are read until then
    }
  }

  // Tensors after the first `ops` of all ops of a step; attention leaves q k v unspecified. bias: added to q k v in front of attention.
  std::vector<float> Step(int position, int ops, bool bias) {
    backend_.CopyFromHost(hidden_.view(), RandomFloats(1000 + static_cast<uint64_t>(position), kHidden).data());
    PassLayout layout;
    layout.sequences.push_back({0, 1, position, std::span<const int32_t>(pages_)});
    layout.ids = {0};
    layout.output_rows = {0};
    backend_.UploadPass(*pass_, layout);
    const std::string key =
        name_ + std::to_string(ops) + (bias ? " bias " : " ") + std::to_string(ContextBucket(position + 1));
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

  void Attention(int layer, Pass& pass, const TensorView& qkv, const TensorView& out) {
    AttentionCall call;
    call.site = {0, "attention"};
    call.q = Slice(qkv, 1, 0, attended());
    call.k = Slice(qkv, 1, attended(), keys());
    call.v = Slice(qkv, 1, attended() + keys(), keys());
    call.rope = rope_.view();
    call.cache = cache_.get();
    call.cache_layer = layer;
    call.pass = &pass;
    call.num_heads = kHeads;
    call.out = out;
    backend_.Attention(call);
  }

  void Run(int layer, int op, bool bias) {
    switch (op) {
      case 0:
        Linear(*qkv_weight_, hidden_.view(), qkv_.view(), true, false);
        if (bias) backend_.AddBias({{0, "bias"}, qkv_.view(), bias_.view()});
        return;
      case 1: return Attention(layer, *pass_, qkv_.view(), attended_.view());
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

  int64_t attended() const { return int64_t{kHeads} * head_dim_; }
  int64_t keys() const { return int64_t{kKvHeads} * head_dim_; }
  int64_t qkv_columns() const { return attended() + 2 * keys(); }

  Backend& backend_;
  const Device device_;
  const int layers_;
  const int head_dim_;
  const std::string name_;
  LinearSpec spec_;
  std::unique_ptr<LinearWeight> qkv_weight_, o_weight_, gate_up_weight_, down_weight_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Pass> pass_;
  std::vector<int32_t> pages_;
  DeviceTensor hidden_ = Zeros(kHidden);
  DeviceTensor qkv_ = Zeros(qkv_columns());
  DeviceTensor attended_ = Zeros(attended());
  DeviceTensor gate_up_ = Zeros(2 * kInner);
  DeviceTensor norm_{backend_, {kHidden}, RandomFloats(5, kHidden)};
  DeviceTensor bias_{backend_, {qkv_columns()}, RandomFloats(6, qkv_columns())};
  DeviceTensor rope_{backend_, {kPositions, head_dim_}, RandomFloats(7, kPositions* head_dim_)};
};

// Attention of more than 256 positions: blocks that own lanes, with thermometers or look-ups.
struct Deep {
  int head_dim;
  bool lookups;
};

class PostedRows : public BothBackends, public testing::WithParamInterface<Deep> {
 protected:
  Variables Limits() const override {
    return GetParam().lookups ? Variables{{"STOCH_TEST_LOOKUP_FROM", "257"}} : Variables{};
  }
  Layers Make(Backend& backend, int layers, const std::string& name = "") const {
    return {backend, layers, GetParam().head_dim, name};
  }
};
INSTANTIATE_TEST_SUITE_P(Depths, PostedRows, testing::Values(Deep{64, false}, Deep{128, false}, Deep{128, true}),
                         [](const testing::TestParamInfo<Deep>& deep) {
                           return std::to_string(deep.param.head_dim) + (deep.param.lookups ? "Lookups" : "");
                         });

// Beyond 256 positions attention is another kernel, which polls and posts too.
TEST_P(PostedRows, StepsOfSeveralLayersAsAttentionChangesItsKernel) {
  Layers reference = Make(*cpu_, 3), layers = Make(*cuda_, 3);
  for (int position = 0; position < 300; ++position) {
    ASSERT_TRUE(SameBits(layers.Step(position, layers.ops(), false), reference.Step(position, layers.ops(), false)))
        << "position " << position;
  }
}

// As few as one kernel that posts, and any number behind it, from graph to graph, in short contexts and in deep ones.
TEST_P(PostedRows, GraphsThatEndBehindAnyOp) {
  for (const int first : {0, 258}) {
    const std::string name = std::to_string(first) + " ";
    Layers reference = Make(*cpu_, 2, name), layers = Make(*cuda_, 2, name);
    int position = first;
    if (first > 0) {
      reference.Fill(first);
      layers.Fill(first);
    }
    for (int round = 0; round < 4; ++round) {  // a graph is recorded the second time
      for (int ops = layers.ops(); ops > 0; --ops, ++position) {
        ASSERT_TRUE(SameBits(layers.Step(position, ops, false), reference.Step(position, ops, false)))
            << ops << " ops, position " << position;
      }
    }
  }
}

TEST_P(PostedRows, RowsThatAnotherOpWroteSince) {
  for (const int first : {0, 258}) {
    const std::string name = std::to_string(first) + " ";
    Layers reference = Make(*cpu_, 2, name), layers = Make(*cuda_, 2, name);
    if (first > 0) {
      reference.Fill(first);
      layers.Fill(first);
    }
    for (int position = first; position < first + 4; ++position) {
      ASSERT_TRUE(SameBits(layers.Step(position, layers.ops(), true), reference.Step(position, layers.ops(), true)))
          << "position " << position;
    }
    const std::vector<float> values = RandomFloats(8, kHidden);
    EXPECT_TRUE(SameBits(layers.Replaced(values), reference.Replaced(values)));
  }
}

}  // namespace
}  // namespace stoch::test
