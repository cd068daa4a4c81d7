// SPDX-License-Identifier: Apache-2.0
// Linears that are told of the exchange behind them give the bits of those that are not: in graphs that end behind any
// exchange, from replay to replay, wherever the next op can read what other devices make, and wherever it cannot.
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/kernels/device_tensor.h"
#include "tests/kernels/random_floats.h"
#include "tests/support/backends_under_test.h"

namespace stoch::test {
namespace {

constexpr int64_t kHidden = 640;
constexpr int64_t kInner = 1536;
constexpr int kOps = 4;  // of a layer

// What reads the exchange of `op` otherwise than the next linear does.
enum class Reader : uint8_t { kLinear, kFloats, kHalves, kBias };

struct Case {
  bool even = true;
  Reader reader = Reader::kLinear;
  int reader_op = 0;
};

// Layers of linears alone that several devices divide by rows: mix (in the place of attention), o, gate and up, down.
class Layers {
 public:
  Layers(Backend& backend, const Case& of, bool announces, std::string name)
      : backend_(backend), of_(of), announces_(announces), name_(std::move(name)) {
    ScConfig config;
    config.halve = true;
    config.granularity = ScGranularity::kPerRow;
    config.chunk_d = 128;
    LinearSpec sc{Precision::kSc, MakeScOperator(config)};
    const size_t count = backend.devices().size();
    for (size_t i = 0; i < count; ++i) {
      hidden_parts_.push_back(PartOf(kHidden, i, count));
      inner_parts_.push_back(PartOf(kInner, i, count));
    }
    for (size_t i = 0; i < count; ++i) {
      Device device = backend.devices()[i];
      One one;
      one.device = device;
      const auto [inner, inner_count] = inner_parts_[i];
      const auto [hidden, hidden_count] = hidden_parts_[i];
      for (int op = 0; op < kOps; ++op) {
        const bool is_other = of.reader != Reader::kLinear && of.reader != Reader::kBias && of.reader_op == op;
        LinearSpec spec = sc;
        if (is_other) spec = {of.reader == Reader::kFloats ? Precision::kFp32 : Precision::kFp16, nullptr};
        const uint64_t seed = static_cast<uint64_t>(op) + 1;
        std::vector<float>& values = numbers_.emplace_back();
        if (op == 2) {
          const std::vector<float> gate = RandomFloats(seed, kInner * kHidden), up = RandomFloats(9, kInner * kHidden);
          values.assign(gate.begin() + inner * kHidden, gate.begin() + (inner + inner_count) * kHidden);
          values.insert(values.end(), up.begin() + inner * kHidden, up.begin() + (inner + inner_count) * kHidden);
        } else {
          const int64_t cols = op == 3 ? kInner : kHidden;
          const std::vector<float> all = RandomFloats(seed, kHidden * cols);
          values.assign(all.begin() + hidden * cols, all.begin() + (hidden + hidden_count) * cols);
        }
        for (float& value : values) value = value * 0.03f;  // fp16 has no room for more
        WeightSource source;
        source.name = "w";
        source.cols = op == 3 ? kInner : kHidden;
        source.rows = static_cast<int64_t>(values.size()) / source.cols;
        source.host = values.data();
        one.weights.push_back(backend.MakeLinear(device, {&source, 1}, spec));
      }
      const auto make = [&](const std::vector<int64_t>& shape, const std::vector<float>& values) {
        return std::make_unique<DeviceTensor>(backend, shape, values, static_cast<int>(i));
      };
      const auto zeros = [&](int64_t cols) { return make({1, cols}, std::vector<float>(static_cast<size_t>(cols))); };
      one.hidden = zeros(kHidden);
      one.mixed = zeros(kHidden);
      one.gate_up = zeros(2 * inner_count);
      one.activation = zeros(kInner);
      one.norm = make({kHidden}, RandomFloats(11, kHidden));
      one.bias = make({kHidden}, RandomFloats(12, kHidden));
      devices_.push_back(std::move(one));
    }
  }

  // The result of the last exchange on every device, and of hidden a device's own columns, after `ops` ops.
  std::vector<float> Step(uint64_t seed, int ops, std::string_view key) {
    for (One& one : devices_) backend_.CopyFromHost(one.hidden->view(), RandomFloats(seed, kHidden).data());
    for (const One& one : devices_) backend_.Synchronize(one.device);
    backend_.RunGraph(backend_.devices(), key.empty() ? "" : name_ + std::string(key), [&] {
      for (int op = 0; op < ops; ++op) Run(op % kOps);
    });
    for (const One& one : devices_) backend_.CheckFinite(one.device);
    std::vector<float> all;
    for (size_t i = 0; i < devices_.size(); ++i) {
      const One& one = devices_[i];
      const std::vector<float> hidden = one.hidden->Read();
      const auto [begin, count] = hidden_parts_[i];
      all.insert(all.end(), hidden.begin() + begin, hidden.begin() + begin + count);
      const int last = (ops - 1) % kOps;
      const DeviceTensor& result = last == 0 ? *one.mixed : (last == 2 ? *one.activation : *one.hidden);
      const std::vector<float> values = result.Read();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

 private:
  struct One {
    Device device;
    std::vector<std::unique_ptr<LinearWeight>> weights;
    std::unique_ptr<DeviceTensor> hidden, mixed, gate_up, activation, norm, bias;
  };

  std::pair<int64_t, int64_t> PartOf(int64_t size, size_t i, size_t count) const {
    const auto parts = static_cast<int64_t>(count);
    const auto at = static_cast<int64_t>(i);
    const int64_t first = of_.even ? size / parts : size / parts / 2 + 1;  // what the first device has
    const int64_t each = parts == 1 ? 0 : (size - first) / (parts - 1);
    const int64_t begin = i == 0 ? 0 : first + (at - 1) * each;
    const int64_t end = i + 1 == count ? size : (i == 0 ? first : begin + each);
    return {begin, end - begin};
  }

  void Run(int op) {
    AllGatherCall gather;
    gather.site = {0, "test_proj"};
    if (op == 2) gather.prologue = Prologue::kSiluMul;
    for (size_t i = 0; i < devices_.size(); ++i) {
      const One& one = devices_[i];
      const auto [begin, count] = hidden_parts_[i];
      if (op == 2) {
        const int64_t inner = inner_parts_[i].second;
        gather.from.push_back(Slice(one.gate_up->view(), 1, 0, inner));
        gather.from2.push_back(Slice(one.gate_up->view(), 1, inner, inner));
        gather.to.push_back(one.activation->view());
      } else {
        gather.to.push_back(op == 0 ? one.mixed->view() : one.hidden->view());
        gather.from.push_back(Slice(gather.to.back(), 1, begin, count));
      }
    }
    for (size_t i = 0; i < devices_.size(); ++i) {
      const One& one = devices_[i];
      LinearCall call;
      call.site = gather.site;
      call.x = op == 1 ? one.mixed->view() : (op == 3 ? one.activation->view() : one.hidden->view());
      if (op % 2 == 0) {
        call.prologue = Prologue::kRmsNorm;
        call.norm_weight = one.norm->view();
        call.norm_eps = 1e-5f;
      }
      call.weights = {one.weights[static_cast<size_t>(op)].get()};
      call.outs = {op == 2 ? one.gate_up->view() : gather.from[i]};
      call.add_to_out = op % 2 == 1;
      if (announces_) call.gather = &gather;
      backend_.Linear(call);
    }
    backend_.AllGather(gather);
    if (of_.reader != Reader::kBias || of_.reader_op != op || op == 2) return;
    for (size_t i = 0; i < devices_.size(); ++i)
      backend_.AddBias({gather.site, gather.to[i], devices_[i].bias->view()});
  }

  Backend& backend_;
  Case of_;
  bool announces_;
  std::string name_;
  std::vector<std::pair<int64_t, int64_t>> hidden_parts_, inner_parts_;
  std::vector<One> devices_;
  std::deque<std::vector<float>> numbers_;  // weights that are floats may stay where they are
};

class AnnouncedGather : public testing::TestWithParam<BackendUnderTest> {
 protected:
  // Of a few inputs, with graphs of `ops` ops: eager, recorded, replayed.
  static void ExpectSame(Backend& backend, const Case& of, int ops) {
    static int cases = 0;
    const std::string name = "case " + std::to_string(cases++) + " ";
    Layers plain(backend, of, false, name);
    Layers announced(backend, of, true, name);
    for (uint64_t seed = 100; seed < 105; ++seed) {
      ASSERT_EQ(announced.Step(seed, ops, "announced"), plain.Step(seed, ops, "")) << "round " << seed - 100;
    }
  }
};

TEST_P(AnnouncedGather, GraphsMayEndBehindAnyExchange) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const bool even : {true, false}) {
    for (const int ops : {1, 2, 3, 4, 5, 6, 7, 12, 40}) {
      SCOPED_TRACE(std::to_string(ops) + (even ? " ops, even" : " ops, uneven"));
      ExpectSame(*backend, {even}, ops);
    }
  }
}

TEST_P(AnnouncedGather, OtherReadersFindTheRowInMemory) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  for (const Reader reader : {Reader::kFloats, Reader::kHalves, Reader::kBias}) {
    if (reader == Reader::kHalves && backend->name() == "cpu") continue;  // fp16 is CUDA's
    for (int op = 0; op < kOps; ++op) {
      SCOPED_TRACE("reader " + std::to_string(static_cast<int>(reader)) + " at " + std::to_string(op));
      ExpectSame(*backend, {true, reader, op}, 2 * kOps);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, AnnouncedGather,
                         testing::Values(BackendUnderTest{"cpu:2", "", 1}, BackendUnderTest{"cpu:3", "", 2},
                                         BackendUnderTest{"cuda:0,1", "", 0}, BackendUnderTest{"cuda:0,1,2,3", "", 0}),
                         [](const auto& param) { return param.param.Name(); });

}  // namespace
}  // namespace stoch::test
