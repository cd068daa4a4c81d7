// SPDX-License-Identifier: Apache-2.0
// Attention by hardware that is not ideal, and in formats of numbers, against the reference: many positions, so that
// pages, groups of adders and ranges of threads begin at different places.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/math/random.h"
#include "kernels/registry.h"
#include "models/sc_model_config.h"
#include "research/reference.h"

namespace stoch::test {
namespace {

constexpr int64_t kHeads = 2, kHeadDim = 72, kRows = 3;

struct Shape {
  const char* settings;
  int64_t positions;
  int threads;
};

class HardwareAttention : public testing::TestWithParam<Shape> {
 protected:
  void SetUp() override { backend_ = OpenBackend("cpu", {.threads = GetParam().threads, .cpu_variant = ""}, nullptr); }

  TensorView View(int64_t rows, const std::vector<float>& values) {
    Buffer& buffer = buffers_.emplace_back(backend_->Allocate(device(), static_cast<int64_t>(values.size()) * 4));
    const auto cols = static_cast<int64_t>(values.size()) / rows;
    const TensorView view = MakeView(buffer.data(), DType::kF32, device(), rows, cols);
    backend_->CopyFromHost(view, values.data());
    return view;
  }
  Device device() const { return backend_->devices()[0]; }

  // Of all positions: q [positions][kHeads][kHeadDim], k and v of one KV head.
  struct Operands {
    std::vector<float> q, k, v;
  };

  // The last kRows of `positions` rows. RoPE is by angles of 0.
  std::vector<float> Attend(const ScConfig& qk, const ScConfig& av, const Operands& x) {
    const int64_t positions = GetParam().positions;
    KvCacheSpec spec;
    spec.num_layers = spec.num_kv_heads = 1;
    spec.head_dim = kHeadDim;
    spec.num_pages = (positions + 63) / 64;
    spec.mode = AttentionMode::kPerToken;
    spec.qk = MakeScOperator(qk);
    spec.av = MakeScOperator(av);
    if (qk.arith == ScArith::kMxInt8) spec.key_scales = 3;
    const auto cache = backend_->MakeKvCache(device(), spec);
    const auto pass = backend_->MakePass(device(), {positions, 1, spec.num_pages});
    std::vector<int32_t> pages(static_cast<size_t>(spec.num_pages));
    std::iota(pages.begin(), pages.end(), 0);
    std::vector<float> angles;
    for (int64_t t = 0; t < positions; ++t) {
      angles.insert(angles.end(), kHeadDim / 2, 1.0f);
      angles.insert(angles.end(), kHeadDim / 2, 0.0f);
    }
    AttentionCall call;
    call.site = {3, "attention"};
    call.rope = View(positions, angles);
    call.cache = cache.get();
    call.pass = pass.get();
    call.num_heads = kHeads;
    std::vector<float> out;
    for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, positions - kRows}, {positions - kRows, kRows}}) {
      PassLayout layout;
      layout.ids.assign(static_cast<size_t>(rows), 0);
      layout.sequences.push_back({0, static_cast<int32_t>(rows), static_cast<int32_t>(first), pages, 5});
      backend_->UploadPass(*pass, layout);
      const auto count = static_cast<size_t>(rows);
      const auto part = [&, from = first, n = rows](const std::vector<float>& values, int64_t width) {
        const auto begin = values.begin() + from * width;
        return View(n, std::vector<float>(begin, begin + n * width));
      };
      call.q = part(x.q, kHeads * kHeadDim);
      call.k = part(x.k, kHeadDim);
      call.v = part(x.v, kHeadDim);
      out.assign(count * kHeads * kHeadDim, -1.0f);
      call.out = View(rows, out);
      backend_->Attention(call);
      backend_->CopyToHost(out.data(), call.out);
      backend_->CheckFinite(device());
    }
    return out;
  }

  std::shared_ptr<Backend> backend_;
  std::vector<Buffer> buffers_;
};

// Rows of different scales.
std::vector<float> Values(uint64_t seed, int64_t rows, float most) {
  std::vector<float> values;
  for (int64_t t = 0; t < rows; ++t) {
    const float scale = most * (0.1f + static_cast<float>(RandomBits(seed, 0, static_cast<uint64_t>(t)) % 64));
    for (int64_t d = 0; d < kHeadDim; ++d) {
      const auto at = static_cast<uint64_t>(t * kHeadDim + d);
      values.push_back(scale * (static_cast<float>(RandomBits(seed, 1, at) % 2001) - 1000.0f) / 1000.0f);
    }
  }
  return values;
}

// Every score is 0, so that p is one number.
TEST_P(HardwareAttention, IsThatOfTheReference) {
  const int64_t positions = GetParam().positions;
  const ScConfig config = ParseScModelConfig(std::vector<std::string>{GetParam().settings}).at(ScOperatorId::kAv);
  const std::vector<float> values = Values(3, positions, 1.0f);  // so that codes of p differ
  const auto size = static_cast<size_t>(positions * kHeadDim);
  const std::vector<float> out =
      Attend({}, config, {std::vector<float>(size * kHeads, 0.0f), std::vector<float>(size, 1.0f), values});
  HostMatrix p{kRows, positions, std::vector<float>(static_cast<size_t>(kRows * positions), 0.0f)};
  for (int64_t n = 0; n < kRows; ++n) {
    const int64_t visible = positions - kRows + n + 1;
    std::fill_n(p.row(n), visible, 1.0f / static_cast<float>(visible));
  }
  const HostMatrix v{positions, kHeadDim, values};
  for (int64_t h = 0; h < kHeads; ++h) {
    ScSite site{.layer = 3, .op = static_cast<int>(ScOperatorId::kAv), .unit = h};
    ScSite cached{.layer = 3, .op = static_cast<int>(ScOperatorId::kAv), .unit = 0};
    site.first_row = cached.first_row = FaultRow(5, 0);
    const ReferenceProduct expected = PerTokenReference(p, v, config, {}, positions - kRows, site, cached);
    for (int64_t n = 0; n < kRows; ++n) {
      const float* got = out.data() + (n * kHeads + h) * kHeadDim;
      EXPECT_EQ(std::memcmp(got, expected.y.row(n), kHeadDim * sizeof(float)), 0) << "head " << h << ", row " << n;
    }
  }
}

// 600 positions are shared by threads, 100 are not.
INSTANTIATE_TEST_SUITE_P(
    Settings, HardwareAttention,
    testing::Values(Shape{"av.adder=or,av.adder_group=6", 100, 2}, Shape{"av.adder=or,av.adder_group=6", 600, 3},
                    Shape{"av.adder=mux,av.adder_group=100,av.acc_bits=10", 600, 3},
                    Shape{"halve=1,av.adder=apc,av.adder_group=8", 600, 3},
                    Shape{"halve=1,av.fault_product=0.01,av.fault_weight=0.01", 600, 3},
                    Shape{"halve=1,av.acc_bits=12,av.fault_acc=0.02,av.fault_activation=0.02", 100, 1},
                    Shape{"halve=1,av.acc_bits=9,av.acc_group=7", 600, 3},
                    Shape{"av.arith=int8,av.acc_bits=17,av.fault_acc=0.1", 600, 3}));

using FormatAttention = HardwareAttention;

TEST_P(FormatAttention, IsThatOfTheReference) {
  const int64_t positions = GetParam().positions;
  const ScModelConfig settings = ParseScModelConfig(std::vector<std::string>{GetParam().settings});
  const ScConfig qk = settings.at(ScOperatorId::kQk);
  const ScConfig av = settings.at(ScOperatorId::kAv);
  const HostMatrix k{positions, kHeadDim, Values(5, positions, 0.1f)};
  const HostMatrix v{positions, kHeadDim, Values(6, positions, 1.0f)};
  const std::vector<float> q = Values(7, positions * kHeads, 0.02f);
  const std::vector<float> out = Attend(qk, av, {q, k.values, v.values});
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(kHeadDim)));
  for (int64_t n = 0; n < kRows; ++n) {
    for (int64_t h = 0; h < kHeads; ++h) {
      const int64_t row = positions - kRows + n;
      const auto begin = q.begin() + (row * kHeads + h) * kHeadDim;
      const HostMatrix one{1, kHeadDim, std::vector<float>(begin, begin + kHeadDim)};
      HostMatrix p = MultiplyReference(one, k, qk, {}).y;
      for (float& score : p.values) score = score * scale;
      SoftmaxReference(p.row(0), row + 1);
      const ReferenceProduct expected = PerTokenReference(p, v, av, {}, row);
      const float* got = out.data() + (n * kHeads + h) * kHeadDim;
      EXPECT_EQ(std::memcmp(got, expected.y.row(0), kHeadDim * sizeof(float)), 0) << "head " << h << ", row " << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, FormatAttention,
                         testing::Values(Shape{"qk.arith=fp8_e4m3", 100, 2}, Shape{"qk.arith=mxint8", 600, 3},
                                         Shape{"av.arith=fp8_e4m3", 600, 3}, Shape{"av.arith=fp8_e4m3", 100, 1},
                                         Shape{"qk.arith=mxint8,av.arith=fp8_e4m3", 600, 3},
                                         Shape{"qk.arith=fp8_e4m3,av.arith=int8", 130, 2}));

}  // namespace
}  // namespace stoch::test
