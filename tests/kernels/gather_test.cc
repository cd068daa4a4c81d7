// SPDX-License-Identifier: Apache-2.0
// Exchanges between devices: every value where it belongs, on every route, and operands that cannot be are refused.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/math/elementary.h"
#include "kernels/math/nonlinear_table.h"
#include "kernels/math/random.h"
#include "tests/support/backends_under_test.h"
#include "tests/support/expect_invalid.h"

namespace stoch::test {
namespace {

constexpr DType kF32 = DType::kF32;

class GatherTest : public testing::TestWithParam<BackendUnderTest> {};

// A matrix on a device, wider than what is used of it.
class Matrix {
 public:
  Matrix(Backend& backend, Device device, int64_t rows, int64_t cols, int64_t stride, uint64_t stream)
      : backend_(backend),
        buffer_(backend.Allocate(device, std::max<int64_t>(1, rows * stride) * 4)),
        whole_(MakeView(buffer_.data(), kF32, device, rows, stride)),
        view_(Slice(whole_, 1, 0, cols)),
        values_(static_cast<size_t>(rows * stride)) {
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = RandomWeight(3, stream, i, 2.0f);
    if (!values_.empty()) backend.CopyFromHost(whole_, values_.data());
  }
  const TensorView& view() const { return view_; }
  float at(int64_t row, int64_t col) const { return values_[static_cast<size_t>(row * whole_.dim(1) + col)]; }
  std::vector<float> Read() const {
    std::vector<float> now(values_.size());
    backend_.CopyToHost(now.data(), whole_);
    return now;
  }

 private:
  Backend& backend_;
  Buffer buffer_;
  TensorView whole_, view_;
  std::vector<float> values_;
};

struct Shape {
  int64_t rows;
  std::vector<int64_t> cols;  // of each device, repeated as needed
  int64_t slack;              // of row strides
};

// Columns of `to` are those of every from, in order; bytes next to them are as before.
void ExpectGathered(Backend& backend, const Shape& shape, bool silu, AllGatherRoute route,
                    const NonlinearTable* table = nullptr) {
  const std::span<const Device> devices = backend.devices();
  AllGatherCall call;
  call.site = {4, "o_proj"};
  call.route = route;
  if (silu) call.prologue = Prologue::kSiluMul;
  call.table = table;
  std::vector<Matrix> from, from2, to;
  int64_t total = 0;
  for (size_t i = 0; i < devices.size(); ++i) {
    const int64_t cols = shape.cols[i % shape.cols.size()];
    from.emplace_back(backend, devices[i], shape.rows, cols, cols + shape.slack, i);
    from2.emplace_back(backend, devices[i], shape.rows, cols, cols + shape.slack, 100 + i);
    total += cols;
  }
  for (size_t i = 0; i < devices.size(); ++i) {
    to.emplace_back(backend, devices[i], shape.rows, total, total + shape.slack, 200 + i);
  }
  for (size_t i = 0; i < devices.size(); ++i) {
    call.from.push_back(from[i].view());
    if (silu) call.from2.push_back(from2[i].view());
    call.to.push_back(to[i].view());
  }
  backend.AllGather(call);
  for (const Matrix& receiver : to) {
    const std::vector<float> now = receiver.Read();
    for (int64_t row = 0; row < shape.rows; ++row) {
      int64_t col = 0;
      for (size_t i = 0; i < devices.size(); ++i) {
        for (int64_t k = 0; k < call.from[i].dim(1); ++k, ++col) {
          const float x = from[i].at(row, k);
          const float y = table == nullptr ? Silu(x) : table->At(x);
          const float expected = silu ? y * from2[i].at(row, k) : x;
          ASSERT_EQ(now[static_cast<size_t>(row * (total + shape.slack) + col)], expected) << row << ", " << col;
        }
      }
      for (; col < total + shape.slack; ++col) {
        ASSERT_EQ(now[static_cast<size_t>(row * (total + shape.slack) + col)], receiver.at(row, col));
      }
    }
  }
}

std::vector<AllGatherRoute> Routes(const Backend& backend) {
  std::vector<AllGatherRoute> routes = {AllGatherRoute::kAuto};
  if (backend.name() == "cpu") return routes;
  routes.push_back(AllGatherRoute::kNccl);
  const char* off = std::getenv("NCCL_P2P_DISABLE");
  const bool is_off = off != nullptr && std::string_view(off) == "1";
  if (backend.links().front().direct && !is_off) routes.push_back(AllGatherRoute::kDirect);
  return routes;
}

TEST_P(GatherTest, EveryDeviceHasAllColumns) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const Shape shapes[] = {{1, {16}, 0},         {1, {4096}, 0},        {5, {16, 48}, 16},
                          {3, {7, 0, 5, 1}, 3}, {2, {0, 64}, 4},       {64, {1024, 512}, 0},
                          {1, {1}, 0},          {513, {28672 / 8}, 8}, {1, {128256}, 0}};
  for (const AllGatherRoute route : Routes(*backend)) {
    for (const Shape& shape : shapes) {
      for (const bool silu : {false, true}) {
        SCOPED_TRACE(std::to_string(shape.rows) + " rows of " + std::to_string(shape.cols[0]) +
                     (silu ? " silu, route " : ", route ") + std::to_string(static_cast<int>(route)));
        ExpectGathered(*backend, shape, silu, route);
      }
    }
  }
}

TEST_P(GatherTest, ATableOfSiluIsReadBeforeTheExchange) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  NonlinearTable table;
  table.cuts = {-4.0f, -1.0f, 0.5f, 3.0f};
  table.values = {0.125f, -0.25f, 0.375f, 2.75f};
  table.slopes = {0.0f, 0.5f, 0.75f, 1.0f};
  table.in_bits = 5;
  for (const AllGatherRoute route : Routes(*backend)) {
    for (const Shape& shape : {Shape{1, {64}, 0}, Shape{5, {16, 48}, 16}, Shape{3, {7, 0, 5, 1}, 3}}) {
      SCOPED_TRACE(std::to_string(shape.rows) + " rows, route " + std::to_string(static_cast<int>(route)));
      ExpectGathered(*backend, shape, true, route, &table);
    }
  }
}

// Results of one layer feed the next without the host: each device adds its columns, all exchange, a hundred times,
// eagerly and replayed.
TEST_P(GatherTest, ChainsInPlaceStayInOrder) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const std::span<const Device> devices = backend->devices();
  const auto count = static_cast<int64_t>(devices.size());
  constexpr int64_t kCols = 32;
  constexpr int kSteps = 50;
  // x <- x W with a permutation W that moves every column to another device.
  std::vector<float> permutation(static_cast<size_t>(kCols * count * kCols * count));
  const int64_t total = kCols * count;
  for (int64_t out = 0; out < total; ++out)
    permutation[static_cast<size_t>(out * total + (out + kCols + 1) % total)] = 1;
  std::vector<Matrix> a, b;
  std::vector<std::unique_ptr<LinearWeight>> weights;
  std::vector<float> x(static_cast<size_t>(total));
  for (int64_t i = 0; i < total; ++i) x[static_cast<size_t>(i)] = static_cast<float>(i);
  for (int64_t i = 0; i < count; ++i) {
    const Device device = devices[static_cast<size_t>(i)];
    a.emplace_back(*backend, device, 1, total, total, 1);
    b.emplace_back(*backend, device, 1, total, total, 2);
    WeightSource source;
    source.name = "permutation";
    source.rows = kCols;
    source.cols = total;
    source.host = permutation.data() + i * kCols * total;
    weights.push_back(backend->MakeLinear(device, {&source, 1}, {Precision::kFp32, nullptr}));
  }
  const auto hop = [&](const std::vector<Matrix>& from, const std::vector<Matrix>& to) {
    AllGatherCall gather;
    gather.site = {-1, "hop"};
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<size_t>(i);
      LinearCall linear;
      linear.site = gather.site;
      linear.x = from[at].view();
      linear.weights = {weights[at].get()};
      gather.to.push_back(to[at].view());
      gather.from.push_back(Slice(to[at].view(), 1, i * kCols, kCols));
      linear.outs = {gather.from.back()};
      backend->Linear(linear);
    }
    backend->AllGather(gather);
  };
  for (int round = 0; round < 4; ++round) {
    for (const Matrix& matrix : a) backend->CopyFromHost(matrix.view(), x.data());
    for (const Device& device : devices) backend->Synchronize(device);
    backend->RunGraph(devices, "chain", [&] {
      for (int step = 0; step < kSteps; ++step) {
        hop(a, b);
        hop(b, a);
      }
    });
    for (const Device& device : devices) backend->CheckFinite(device);  // first: it says so where one waited in vain
    for (const Matrix& matrix : a) {
      const std::vector<float> now = matrix.Read();
      for (int64_t i = 0; i < total; ++i) {
        ASSERT_EQ(now[static_cast<size_t>(i)], static_cast<float>((i + 2 * kSteps * (kCols + 1)) % total)) << round;
      }
    }
  }
}

// More columns than packets take, recorded, into outputs that the exchange before wrote: all devices meet first.
TEST_P(GatherTest, RecordedExchangesOfManyColumnsMayWriteTheSameOutputs) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const std::span<const Device> devices = backend->devices();
  const auto count = static_cast<int64_t>(devices.size());
  constexpr int64_t kRows = 8, kCols = 16384;
  std::vector<Matrix> first, second, to;
  for (size_t i = 0; i < devices.size(); ++i) {
    first.emplace_back(*backend, devices[i], kRows, kCols, kCols, i);
    second.emplace_back(*backend, devices[i], kRows, kCols, kCols, 100 + i);
    to.emplace_back(*backend, devices[i], kRows, count * kCols, count * kCols, 200 + i);
  }
  const auto gather = [&](const std::vector<Matrix>& from) {
    AllGatherCall call;
    call.site = {1, "gate_proj"};
    for (size_t i = 0; i < devices.size(); ++i) {
      call.from.push_back(from[i].view());
      call.to.push_back(to[i].view());
    }
    backend->AllGather(call);
  };
  for (int round = 0; round < 3; ++round) {
    backend->RunGraph(devices, "wide", [&] {
      gather(first);
      gather(second);
    });
    for (const Device& device : devices) backend->CheckFinite(device);
    for (const Matrix& receiver : to) {
      const std::vector<float> now = receiver.Read();
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t col = 0; col < count * kCols; ++col) {
          ASSERT_EQ(now[static_cast<size_t>(row * count * kCols + col)],
                    second[static_cast<size_t>(col / kCols)].at(row, col % kCols))
              << row << ", " << col;
        }
      }
    }
  }
}

TEST_P(GatherTest, OperandsThatCannotBeAreRefused) {
  STOCH_OPEN_OR_SKIP(backend, GetParam());
  const std::span<const Device> devices = backend->devices();
  const Matrix a(*backend, devices[0], 2, 8, 8, 1);
  const Matrix b(*backend, devices[1], 2, 8, 8, 2);
  const Matrix to(*backend, devices[0], 2, 16, 16, 3);
  const auto gather = [&](std::vector<TensorView> from, std::vector<TensorView> receivers,
                          std::vector<TensorView> from2 = {}) {
    AllGatherCall call;
    call.site = {2, "o_proj"};
    call.from = std::move(from);
    call.to = std::move(receivers);
    if (!from2.empty()) call.prologue = Prologue::kSiluMul;
    call.from2 = std::move(from2);
    backend->AllGather(call);
  };
  gather({a.view(), b.view()}, {to.view()});
  const std::string first = DeviceName(devices[0]);
  ExpectInvalid([&] { gather({}, {to.view()}); }, {"layer 2", "o_proj"});
  ExpectInvalid([&] { gather({a.view(), a.view()}, {to.view()}); }, {"o_proj", first, "twice"});
  ExpectInvalid([&] { gather({b.view()}, {a.view()}); }, {first, "no part"});
  ExpectInvalid([&] { gather({a.view(), b.view()}, {to.view(), to.view()}); }, {first, "twice"});
  ExpectInvalid([&] { gather({a.view(), b.view()}, {Slice(to.view(), 1, 0, 15)}); }, {"to is", "16"});
  ExpectInvalid([&] { gather({a.view(), Slice(b.view(), 0, 0, 1)}, {to.view()}); }, {"from is", "F32[2"});
  ExpectInvalid([&] { gather({Slice(to.view(), 1, 4, 8), b.view()}, {to.view()}); }, {"overlaps"});
  ExpectInvalid([&] { gather({a.view(), b.view()}, {to.view()}, {b.view(), b.view()}); }, {"from2", first});
  TensorView elsewhere = b.view();
  elsewhere.device.index = 99;
  ExpectInvalid([&] { gather({a.view(), elsewhere}, {to.view()}); }, {":99"});
}

INSTANTIATE_TEST_SUITE_P(Backends, GatherTest,
                         testing::Values(BackendUnderTest{"cpu:2", "", 1}, BackendUnderTest{"cpu:3", "", 2},
                                         BackendUnderTest{"cuda:0,1", "", 0}, BackendUnderTest{"cuda:0,1,2,3", "", 0}),
                         [](const auto& param) { return param.param.Name(); });

}  // namespace
}  // namespace stoch::test
