// SPDX-License-Identifier: Apache-2.0
// Costs of features of research: each a ratio to the readable product without the feature, next to its bound.
//
//     research_bench [--device cpu|cuda:0] [--check]
//
// A line of JSON for each feature and number of rows: medians of 5, in turns, in one process; of one thread of a CPU its
// own time, whatever else runs, of a GPU time as it passes. Readable products are the scalar variant of the CPU and the
// plain kernel of a GPU; features that leave the fast kernels in use are compared with those. --check: exit code 1 where
// a ratio is above 1.5 times its bound, for a quiet machine (ctest -C perf -L perf).
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/kernels/research_operands.h"
#include "kernels/registry.h"
#include "kernels/sc/sc_parameters.h"
#include "research/calibrate/nonlinear_table.h"
#include "research/products/product_report.h"

namespace stoch {
namespace {

constexpr double kSlack = 1.5;
constexpr int kRounds = 5;

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

std::shared_ptr<Backend> Open(const std::string& device, Against against) {
  BackendOptions options;
  options.threads = 1;
  options.cpu_variant = against == Against::kFast || device != "cpu" ? "" : "scalar";
  return OpenBackend(device, options, nullptr);
}

// Medians of a step without and with a feature, in turns.
struct Times {
  double plain_ms = 0, ms = 0;
};
Times InTurns(const std::function<void()>& plain, const std::function<void()>& with, const Clock& clock) {
  constexpr double kLeastMs = 10;
  with();
  const int times = std::max(1, static_cast<int>(kLeastMs / std::max(clock.Ms(plain), 1e-3)));
  const auto ms = [&](const std::function<void()>& step) {
    return clock.Ms([&] {
      for (int i = 0; i < times; ++i) step();
    }) / times;
  };
  std::vector<double> of_plain, of_feature;
  for (int round = 0; round < kRounds; ++round) {
    of_plain.push_back(ms(plain));
    of_feature.push_back(ms(with));
  }
  return {Median(of_plain), Median(of_feature)};
}

bool Compare(const std::string& device, const Feature& feature, int64_t rows) {
  const bool is_gpu = device != "cpu";
  const bool takes_plain = is_gpu && feature.against == Against::kPlain;
  const auto backend = Open(device, feature.against);
  Product plain(*backend, Base(feature.base), rows, takes_plain);
  Product with(*backend, With(feature), rows, takes_plain);
  const Clock clock(*backend);
  const Times times = InTurns([&] { plain.Run(); }, [&] { with.Run(); }, clock);
  const double bound = is_gpu && feature.gpu_bound > 0 ? feature.gpu_bound : feature.bound;
  return Tell(feature.settings, feature.base, rows, times.ms, times.plain_ms, bound);
}

// Loading a matrix, whose bits may flip as it is loaded.
bool Load(const std::string& device) {
  const auto backend = Open(device, Against::kFast);
  const Clock clock(*backend);
  bool within = true;
  for (const Feature& feature : kFeatures) {
    if (feature.against != Against::kFast) continue;
    const ScOperatorPtr plain = MakeScOperator(Base("")), with = MakeScOperator(With(feature));
    const Times times = InTurns([&] { Product::Load(*backend, plain, ExtrasOf(plain->config)); },
                                [&] { Product::Load(*backend, with, ExtrasOf(with->config)); }, clock);
    constexpr double kBound = 1.03;
    within = Tell(std::string("load, ") + feature.settings, "", 0, times.ms, times.plain_ms, kBound) && within;
  }
  return within;
}

// Factors of q and k, and a table in place of e^x, in attention.
bool CompareAttention(const std::string& device, bool has_factors, int64_t rows) {
  const auto backend = Open(device, has_factors ? Against::kFast : Against::kPlain);
  const NonlinearTable table = MakeNonlinearTable({"exp", 64, -16, 0, 8, 12});
  const ScOperatorPtr op = MakeScOperator(Base("chunk_d=0"));
  AttentionStep plain(*backend, op, rows, {}), with(*backend, op, rows, {has_factors, has_factors ? nullptr : &table});
  const Clock clock(*backend);
  const Times times = InTurns([&] { plain.Run(); }, [&] { with.Run(); }, clock);
  return Tell(has_factors ? "--smooth of qk, attention" : "softmax=FILE, attention", "", rows, times.ms, times.plain_ms,
              has_factors ? 1.01 : 1.3);
}

// Tables in place of the functions in front of a linear that is little besides.
bool CompareFunction(const std::string& device, Prologue prologue, int64_t rows) {
  const auto backend = Open(device, Against::kPlain);
  const bool is_norm = prologue == Prologue::kRmsNorm;
  const NonlinearTable table =
      is_norm ? MakeNonlinearTable({"rsqrt", 64, 1, 4, 12, 12}) : MakeNonlinearTable({"silu", 64, -8, 8, 8, 12});
  FunctionStep plain(*backend, prologue, nullptr, rows), with(*backend, prologue, &table, rows);
  const Clock clock(*backend);
  const Times times = InTurns([&] { plain.Run(); }, [&] { with.Run(); }, clock);
  return Tell(is_norm ? "rms_norm=FILE" : "silu=FILE", "in front of 1 output", rows, times.ms, times.plain_ms, 1.3);
}

// Experts at the one length of a table, next to experts without one.
bool CompareExperts(const std::string& device, int64_t rows) {
  const auto backend = Open(device, Against::kPlain);
  const ScOperatorPtr op = MakeScOperator(Base(""));
  ExpertStep plain(*backend, op, rows, false), with(*backend, op, rows, true);
  const Clock clock(*backend);
  const Times times = InTurns([&] { plain.Run(); }, [&] { with.Run(); }, clock);
  return Tell("--mp of one length, experts", "", rows, times.ms, times.plain_ms, 1.3);
}

// Reports of one product, all masks: seconds in place of a ratio.
bool Report() {
  const auto backend = Open("cpu", Against::kPlain);
  const Clock clock(*backend);
  std::vector<double> ms;
  const ScOperatorPtr op = MakeScOperator(Base(""));
  for (int round = 0; round < kRounds; ++round) ms.push_back(clock.Ms([&] { ReportProduct(*op); }));
  constexpr double kBound = 2;
  return Tell("inspect --product (seconds)", "", 1, Median(ms), 1e3, kBound);
}

int Run(const std::string& device, bool check) {
  bool within = true;
  for (const Feature& feature : kFeatures) {
    for (const int64_t rows : {1, 256}) within = Compare(device, feature, rows) && within;
  }
  for (const int64_t rows : {1, 256}) {
    within = CompareAttention(device, true, rows) && within;
    within = CompareAttention(device, false, rows) && within;
    within = CompareFunction(device, Prologue::kSiluMul, rows) && within;
    within = CompareFunction(device, Prologue::kRmsNorm, rows) && within;
    within = CompareExperts(device, rows) && within;
  }
  within = Load(device) && within;
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
