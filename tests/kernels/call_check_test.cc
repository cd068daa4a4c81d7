// SPDX-License-Identifier: Apache-2.0
// What a call refuses, word for word, on every backend: kernels/call_check.h is the one place of these sentences.
#include "kernels/call_check.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/device_tensor.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/expect_invalid.h"

namespace stoch {
namespace {

using test::DeviceTensor;
using test::InvalidMessage;

class CallCheck : public testing::TestWithParam<test::BackendUnderTest> {};

DeviceTensor Zeros(Backend& backend, int64_t rows, int64_t cols) {
  return {backend, {rows, cols}, std::vector<float>(static_cast<size_t>(rows * cols))};
}

std::unique_ptr<LinearWeight> Ones(Backend& backend, int64_t rows, int64_t cols) {
  WeightSource source{"w", rows, cols};
  source.constant = 1.0f;
  return backend.MakeLinear(backend.devices().front(), {&source, 1}, {Precision::kFp32, nullptr});
}

TEST_P(CallCheck, LinearNamesLayerOperatorAndOperand) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const std::string on = " on " + DeviceName(backend->devices().front());
  const auto weight = Ones(*backend, 8, 16);
  const auto narrow = Ones(*backend, 8, 12);
  const DeviceTensor x = Zeros(*backend, 2, 16), out = Zeros(*backend, 2, 8), small = Zeros(*backend, 2, 7);
  LinearCall call;
  call.site = {3, "q_proj"};
  call.x = x.view();
  call.weights = {weight.get()};
  call.outs = {out.view()};
  const auto message = [&](const LinearCall& bad) { return InvalidMessage([&] { backend->Linear(bad); }); };
  backend->Linear(call);

  LinearCall bad = call;
  bad.x = small.view();
  EXPECT_EQ(message(bad), "layer 3 q_proj: x is F32[2, 7]" + on + ", expected F32[any, 16] with dense rows" + on);
  bad = call;
  bad.outs = {small.view()};
  EXPECT_EQ(message(bad), "layer 3 q_proj: out is F32[2, 7]" + on + ", expected F32[2, 8] with dense rows" + on);
  bad = call;
  bad.outs = {};
  EXPECT_EQ(message(bad), "layer 3 q_proj: got 1 weights and 0 outputs, expected as many and at least one");
  bad = call;
  bad.outs = {out.view(), out.view()};
  bad.weights = {weight.get(), weight.get()};
  EXPECT_EQ(message(bad), "layer 3 q_proj: the output F32[2, 8]" + on + " overlaps the operand F32[2, 8]" + on);
  bad.weights = {weight.get(), narrow.get()};
  EXPECT_EQ(message(bad), "layer 3 q_proj: weight 1 has 12 columns" + on + ", expected 16" + on);
  bad = call;
  bad.prologue = Prologue::kSiluMul;
  bad.x2 = small.view();
  EXPECT_EQ(message(bad), "layer 3 q_proj: x2 is F32[2, 7]" + on + ", expected F32[2, 16] with dense rows" + on);
  bad.prologue = Prologue::kRmsNorm;
  bad.norm_weight = x.view();
  EXPECT_EQ(message(bad), "layer 3 q_proj: norm_weight is F32[2, 16]" + on + ", expected F32[16] with dense rows" + on);
  bad = call;
  bad.outs[0].stride = {0, 1};
  bad.site.layer = -1;
  EXPECT_EQ(message(bad), "q_proj: the output F32[2, 8]" + on + " overlaps itself");
}

TEST_P(CallCheck, AttentionNamesLayerAndWhatDoesNotFit) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  const std::string on = " on " + DeviceName(device);
  constexpr int kHeadDim = 64;
  KvCacheSpec spec;
  spec.num_layers = 2;
  spec.num_kv_heads = 1;
  spec.head_dim = kHeadDim;
  spec.num_pages = 4;
  const auto cache = backend->MakeKvCache(device, spec);
  const auto pass = backend->MakePass(device, {4, 2, 2});
  const auto upload = [&](int32_t start, const std::vector<int32_t>& pages) {
    backend->UploadPass(*pass, {{0, 0}, {{0, 2, start, pages}}, {}});
  };
  const std::vector<int32_t> first_page = {0};
  const DeviceTensor q = Zeros(*backend, 2, 2 * kHeadDim), k = Zeros(*backend, 2, kHeadDim),
                     v = Zeros(*backend, 2, kHeadDim), out = Zeros(*backend, 2, 2 * kHeadDim),
                     rope = Zeros(*backend, 70, kHeadDim);
  AttentionCall call;
  call.site = {5, "attention"};
  call.q = q.view();
  call.k = k.view();
  call.v = v.view();
  call.rope = rope.view();
  call.cache = cache.get();
  call.pass = pass.get();
  call.num_heads = 2;
  call.out = out.view();
  upload(0, first_page);
  backend->Attention(call);

  const auto message = [&](const AttentionCall& bad) { return InvalidMessage([&] { backend->Attention(bad); }); };
  AttentionCall bad = call;
  bad.cache = nullptr;
  EXPECT_EQ(message(bad), "layer 5 attention: needs a cache and a pass");
  bad = call;
  bad.cache_layer = 2;
  EXPECT_EQ(message(bad), "layer 5 attention: cache layer 2, expected below 2");
  bad = call;
  bad.num_heads = 0;
  EXPECT_EQ(message(bad), "layer 5 attention: 0 heads, expected a multiple of 1");
  bad = call;
  bad.k = q.view();
  EXPECT_EQ(message(bad), "layer 5 attention: k is F32[2, 128]" + on + ", expected F32[2, 64] with dense rows" + on);
  bad = call;
  bad.out = q.view();
  EXPECT_EQ(message(bad), "layer 5 attention: the output F32[2, 128]" + on + " overlaps the operand F32[2, 128]" + on);
  upload(63, first_page);
  EXPECT_EQ(message(call), "layer 5 attention: a sequence ends at position 65, its pages hold 64");
  const std::vector<int32_t> two_pages = {0, 3};
  upload(69, two_pages);
  EXPECT_EQ(message(call), "layer 5 attention: a sequence ends at position 71, the rope table has 70");
  const std::vector<int32_t> no_page = {4};
  upload(0, no_page);
  EXPECT_EQ(message(call), "layer 5 attention: page 4, expected below 4");
}

TEST_P(CallCheck, PassesSayWhatIsWrong) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  EXPECT_EQ(InvalidMessage([&] {
              (void)backend->MakePass(device, {4, 0, 1});
            }),
            "pass: limits of 4 rows, 0 sequences and 1 pages a sequence, expected at least 1 of each");
  const auto pass = backend->MakePass(device, {4, 2, 1});
  const auto message = [&](const PassLayout& layout) {
    return InvalidMessage([&] { backend->UploadPass(*pass, layout); });
  };
  const std::vector<int32_t> below = {-1}, two = {0, 1};
  EXPECT_EQ(message({}), "pass: no rows, expected at least one");
  EXPECT_EQ(message({{1, 2, 3, 4, 5}, {{0, 5, 0, {}}}, {}}), "pass: 5 rows, expected at most 4");
  EXPECT_EQ(message({{1, 2}, {{0, 1, 0, {}}}, {}}), "pass: sequences cover 1 rows of 2");
  EXPECT_EQ(message({{1, 2}, {{1, 1, 0, {}}}, {}}),
            "pass: a sequence of 1 rows starts at row 1 and position 0, expected at least one row from row 0 and "
            "position 0 on");
  EXPECT_EQ(message({{1}, {{0, 1, 0, below}}, {}}), "pass: page -1, expected 0 or more");
  EXPECT_EQ(message({{1}, {{0, 1, 0, two}}, {}}), "pass: 2 pages in a sequence, expected at most 1");
  EXPECT_EQ(message({{1}, {{0, 1, 0, {}}}, {1}}), "pass: output row 1 is not a row of the pass");
}

TEST_P(CallCheck, SmallOpsNameThemselves) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Device device = backend->devices().front();
  const std::string on = " on " + DeviceName(device);
  const DeviceTensor a = Zeros(*backend, 2, 16), b = Zeros(*backend, 3, 8);
  EXPECT_EQ(InvalidMessage([&] { backend->Copy(a.view(), b.view()); }),
            "copy: F32[3, 8]" + on + " does not fit F32[2, 16]" + on);
  EXPECT_EQ(InvalidMessage([&] { backend->Copy(Slice(a.view(), 1, 0, 12), b.view()); }),
            "copy: F32[2, 12]" + on + " is not dense");
  EXPECT_EQ(InvalidMessage([&] { backend->Argmax(a.view(), b.view()); }),
            "argmax: ids is F32[3, 8]" + on + ", expected I32[2] with dense rows" + on);
  const auto pass = backend->MakePass(device, {4, 2, 1});
  backend->UploadPass(*pass, {{0, 0}, {{0, 2, 0, {}}}, {1}});
  EXPECT_EQ(InvalidMessage([&] { backend->SelectRows(*pass, a.view(), b.view()); }),
            "select_rows: out is F32[3, 8]" + on + ", expected F32[1, 16] with dense rows" + on);
  WeightSource source{"embed", 30, 16};
  const auto table = backend->MakeEmbedding(device, source, nullptr);
  EXPECT_EQ(InvalidMessage([&] { backend->Embed(*table, *pass, b.view()); }),
            "embed: out is F32[3, 8]" + on + ", expected F32[2, 16] with dense rows" + on);
  const auto queries = backend->MakeLogitQueries(device, {16, 4, 4, 4});
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(InvalidMessage([&] {
              backend->LogProbs({b.view(), 0}, *queries, {0, 0});
            }),
            "logprobs: logits is F32[3, 8]" + on + ", expected F32[any, 16] with dense rows" + on);
  EXPECT_NE(InvalidMessage([&] {
              backend->PickTokens({a.view(), 0}, *queries, {kHuge, 2});
            }).find("pick: 2 queries"),
            std::string::npos);
  const ScOperatorPtr op = MakeScOperator({});
  EXPECT_EQ(InvalidMessage([&] { backend->ScMatmul(a.view(), b.view(), *op, b.view()); }),
            "sc_matmul: a F32[2, 16]" + on + ", b F32[3, 8]" + on + " and out F32[3, 8]" + on + " do not fit a @ b^T");
}

TEST_P(CallCheck, MixedProductsNameWhatDoesNotFit) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const std::string on = " on " + DeviceName(backend->devices().front());
  const DeviceTensor a = Zeros(*backend, 2, 16), b = Zeros(*backend, 3, 16), out = Zeros(*backend, 2, 3),
                     narrow = Zeros(*backend, 3, 8), none = Zeros(*backend, 0, 16), no_out = Zeros(*backend, 0, 3);
  ScConfig config;
  const auto message = [&](const TensorView& left, const TensorView& right, const TensorView& to, int64_t chunk,
                           const std::vector<int>& lengths) {
    config.chunk_d = chunk;
    const ScOperatorPtr op = MakeScOperator(config);
    ScExtras extras;
    extras.by_length.assign(257, nullptr);
    extras.by_length[256] = op;
    return InvalidMessage([&] { backend->ScMixedMatmul(left, right, op, extras, lengths, to); });
  };
  EXPECT_EQ(message(a.view(), narrow.view(), out.view(), 0, {}),
            "sc_mixed_matmul: b is F32[3, 8]" + on + ", expected F32[any, 16] with dense rows" + on);
  EXPECT_EQ(message(a.view(), b.view(), b.view(), 0, {}),
            "sc_mixed_matmul: out is F32[3, 16]" + on + ", expected F32[2, 3] with dense rows" + on);
  TensorView apart = out.view();
  apart.stride[1] = 2;
  EXPECT_EQ(message(a.view(), b.view(), apart, 0, {}),
            "sc_mixed_matmul: out is F32[2, 3]" + on + ", expected F32[2, 3] with dense rows" + on);
  EXPECT_EQ(message(none.view(), b.view(), no_out.view(), 0, {}), "sc_mixed_matmul: empty operands");
  EXPECT_EQ(message(a.view(), b.view(), out.view(), 0, {256, 256, 256}),
            "sc_mixed_matmul: 3 lengths for 2 rows, expected 2");
  EXPECT_EQ(message(a.view(), b.view(), out.view(), 5, {256, 256, 256}),
            "sc_mixed_matmul: 3 lengths for 2 rows, expected 2 or 8");
}

TEST(TensorView, IsDenseWithoutGapsAndReversals) {
  float data[24] = {};
  const TensorView whole = MakeView(data, DType::kF32, Device(), 4, 6);
  EXPECT_TRUE(whole.is_dense());
  EXPECT_EQ(whole.bytes(), 96);
  EXPECT_TRUE(Slice(whole, 0, 1, 2).is_dense());
  EXPECT_TRUE(Slice(Slice(whole, 0, 2, 1), 1, 1, 4).is_dense());  // one row
  EXPECT_FALSE(Slice(whole, 1, 0, 5).is_dense());
  TensorView other = whole;
  other.stride = {0, 1};
  EXPECT_FALSE(other.is_dense());
  other.stride = {6, -1};
  EXPECT_FALSE(other.is_dense());
}

INSTANTIATE_TEST_SUITE_P(Backends, CallCheck, testing::ValuesIn(test::OneOfEachBackend()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace stoch
