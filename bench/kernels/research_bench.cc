// SPDX-License-Identifier: Apache-2.0
// Costs of features of research: each a ratio to the readable product without the feature, next to its bound.
//
//     research_bench [--device cpu|cuda:0] [--check]
//
// A line of JSON for each feature and number of rows: medians of 5, in turns, in one process. Readable products are the
// scalar variant of the CPU and the plain kernel of a GPU; features that leave the fast kernels in use are compared with
// those. --check: exit code 1 where a ratio is above 1.5 times its bound, for a quiet machine (ctest -C perf -L perf).
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/math/nonlinear_table.h"
#include "kernels/math/random.h"
#include "kernels/registry.h"
#include "kernels/sc/sc_parameters.h"
#include "research/products/product_report.h"

namespace stoch {
namespace {

constexpr double kSlack = 1.5;
constexpr int kRounds = 5;
constexpr int64_t kInFeatures = 512, kOutFeatures = 256;

enum class Against { kPlain, kFast };
struct Feature {
  const char* settings;
  double bound;
  double gpu_bound = 0;  // 0: the same
  Against against = Against::kPlain;
  const char* base = "";  // settings of both
};

// D L of a chunk is 16384.
constexpr Feature kFeatures[] = {
    {"fault_weight=0.001", 1.01, 0, Against::kFast},
    {"gate=counts", 1.01, 0, Against::kFast},  // of one's own, with streams
    {"gate=counts/odd", 1.0},                  // without them
    {"rng_grid=pow2,stoc_len=96", 1.0, 0, Against::kPlain, "stoc_len=96"},
    {"lfsr_taps=8:6:5:4", 1.0, 0, Against::kPlain, "source=lfsr"},
    {"acc_bits=14", 1.1},
    {"acc_bits=14,acc_group=8", 2},
    {"fault_product=0.001", 2, 2.5},
    {"fault_product=0.1", 2, 2.5},
    {"fault_activation=0.01", 1.3},
    {"acc_bits=14,fault_acc=0.01", 1.3},
    {"adder=or,adder_group=2", 5, 0, Against::kPlain, "gate=and"},
    {"adder=or,adder_group=8", 5, 0, Against::kPlain, "gate=and"},
    {"adder=mux,adder_group=8", 5, 0, Against::kPlain, "gate=and"},
    {"adder=apc,adder_group=8", 5, 0, Against::kPlain, "gate=and"},
    {"adder=mux,adder_group=8", 5, 0, Against::kPlain, "gate=xnor,halve=0"},
    {"adder=apc,adder_group=8", 5, 0, Against::kPlain, "gate=xnor,halve=0"},
    {"adder=or,adder_group=8", 8},
    {"adder=mux,adder_group=8", 8},
    {"adder=apc,adder_group=8", 8},
    {"arith=fp8_e4m3", 3, 0, Against::kPlain, "arith=int8"},
    {"arith=mxint8", 3, 0, Against::kPlain, "arith=int8"},
};

void Set(ScConfig* config, const std::string& settings) {
  for (size_t begin = 0; begin < settings.size();) {
    const size_t end = std::min(settings.find(',', begin), settings.size());
    const std::string one = settings.substr(begin, end - begin);
    const size_t equals = one.find('=');
    SetScParameter(*config, one.substr(0, equals), one.substr(equals + 1));
    begin = end + 1;
  }
}

ScConfig Base(const char* settings) {
  ScConfig config;
  config.halve = true;
  config.chunk_d = 128;
  config.stoc_len = 128;
  Set(&config, settings);
  return config;
}

// The counts of the default operator as a table of one's own; odd ones are those of no streams.
ScConfig OwnCounts(bool has_streams) {
  const ScOperatorPtr op = MakeScOperator(Base(""));
  auto table = std::make_shared<CountTable>();
  table->masks = op->masks;
  table->levels = op->levels;
  for (size_t i = 0; i < op->counts.size(); ++i) {
    const bool is_odd = !has_streams && i % 7 == 0 && op->counts[i] > 0;
    table->entries.push_back(op->counts[i] - (is_odd ? 1 : 0));
  }
  ScConfig config = Base("");
  config.halve = false;
  config.gate = ScGate::kCounts;
  config.counts = has_streams ? "own" : "odd";
  config.count_table = CountTablePtr(table);
  return config;
}

ScConfig With(const Feature& feature) {
  if (std::strncmp(feature.settings, "gate=counts", 11) == 0) return OwnCounts(std::strlen(feature.settings) == 11);
  ScConfig config = Base(feature.base);
  Set(&config, feature.settings);
  return config;
}

// A linear on a device, and its operands.
class Product {
 public:
  // `plain`: without a fast kernel on a GPU, as lengths by call have none.
  Product(Backend& backend, const ScConfig& config, int64_t rows, bool plain) : backend_(backend) {
    const Device device = backend.devices().front();
    std::vector<float> w(static_cast<size_t>(kOutFeatures * kInFeatures)), x(static_cast<size_t>(rows * kInFeatures));
    for (size_t i = 0; i < w.size(); ++i) w[i] = RandomWeight(1, 0, i, 0.02f);
    for (size_t i = 0; i < x.size(); ++i) x[i] = RandomWeight(2, 0, i, 1.0f);
    WeightSource source;
    source.name = "w";
    source.rows = kOutFeatures;
    source.cols = kInFeatures;
    source.host = w.data();
    auto extras = std::make_shared<ScExtras>();
    extras->op = "bench";
    const bool by_call =
        plain && config.arith == ScArith::kSc && HasSource(config.gate) && HasPlainSums(config) && !HasFaults(config);
    if (by_call) {
      auto rule = std::make_shared<ScLengthRule>();
      rule->normalise = ScNormalise::kCall;
      rule->levels = {Resolve(config).stoc_len};
      extras->lengths = rule;
      extras->by_length = MakeScOperators(config, rule->Lengths());
    }
    const bool wants = by_call || HasFaults(config) || !HasPlainSums(config);
    weight_ =
        backend.MakeLinear(device, {&source, 1}, {Precision::kSc, MakeScOperator(config), wants ? extras : nullptr});
    x_ = backend.Allocate(device, static_cast<int64_t>(x.size() * sizeof(float)));
    y_ = backend.Allocate(device, rows * kOutFeatures * 4);
    call_.site = {0, "bench"};
    call_.x = MakeView(x_.data(), DType::kF32, device, rows, kInFeatures);
    call_.outs = {MakeView(y_.data(), DType::kF32, device, rows, kOutFeatures)};
    call_.weights = {weight_.get()};
    for (int64_t row = 0; row < rows; ++row) fault_rows_.push_back(static_cast<uint64_t>(row));
    if (DrawsFaultsByRow(config)) call_.fault_rows = fault_rows_;
    backend.CopyFromHost(call_.x, x.data());
  }
  double Ms(int times) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) backend_.Linear(call_);
    backend_.Synchronize(call_.x.device);
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count() / times;
  }

 private:
  Backend& backend_;
  std::unique_ptr<LinearWeight> weight_;
  Buffer x_, y_;
  LinearCall call_;
  std::vector<uint64_t> fault_rows_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Prints a ratio. Returns whether it is within the bound and its slack.
bool Tell(const std::string& feature, const std::string& base, int64_t rows, double ms, double plain_ms, double bound) {
  const double ratio = ms / plain_ms;
  fmt::print(R"({{"feature": "{}", "with": "{}", "rows": {}, "ms": {:.4f}, "plain_ms": {:.4f}, "ratio": {:.3f}, )"
             R"("bound": {}, "within": {}}})"
             "\n",
             feature, base, rows, ms, plain_ms, ratio, bound, ratio <= bound);
  std::fflush(stdout);
  return ratio <= kSlack * bound;
}

bool Compare(const std::string& device, const Feature& feature, int64_t rows) {
  const bool is_gpu = device != "cpu";
  const bool fast = feature.against == Against::kFast;
  BackendOptions options;
  options.threads = 1;
  options.cpu_variant = fast || is_gpu ? "" : "scalar";
  const auto backend = OpenBackend(device, options, nullptr);
  Product plain(*backend, Base(feature.base), rows, is_gpu && !fast);
  Product with(*backend, With(feature), rows, is_gpu && !fast);
  constexpr double kLeastMs = 10;
  with.Ms(1);
  const int times = std::max(1, static_cast<int>(kLeastMs / std::max(plain.Ms(1), 1e-3)));
  std::vector<double> of_plain, of_feature;
  for (int round = 0; round < kRounds; ++round) {
    of_plain.push_back(plain.Ms(times));
    of_feature.push_back(with.Ms(times));
  }
  const double bound = is_gpu && feature.gpu_bound > 0 ? feature.gpu_bound : feature.bound;
  return Tell(feature.settings, feature.base, rows, Median(of_feature), Median(of_plain), bound);
}

// Reports of one product, all masks: seconds in place of a ratio.
bool Report() {
  std::vector<double> seconds;
  const ScOperatorPtr op = MakeScOperator(Base(""));
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    ReportProduct(*op);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  constexpr double kBound = 2;
  return Tell("inspect --product (seconds)", "", 1, Median(seconds) * 1e3, 1e3, kBound);
}

int Run(const std::string& device, bool check) {
  bool within = true;
  for (const Feature& feature : kFeatures) {
    for (const int64_t rows : {1, 256}) within = Compare(device, feature, rows) && within;
  }
  within = Report() && within;
  return check && !within ? 1 : 0;
}

}  // namespace
}  // namespace stoch

int main(int argc, char** argv) {
  std::string device = "cpu";
  bool check = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--check") == 0) {
      check = true;
    } else if (std::strcmp(argv[i], "--device") == 0 && i + 1 < argc) {
      device = argv[++i];
    } else {
      std::fprintf(stderr, "research_bench [--device cpu|cuda:0] [--check]\n");
      return 2;
    }
  }
  return stoch::Run(device, check);
}
