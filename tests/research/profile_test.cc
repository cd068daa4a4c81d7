// SPDX-License-Identifier: Apache-2.0
// Profiles of a tiny model against products made one by one from the definition, and what must hold between parts.
#include "research/profile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/registry.h"
#include "loader/config/decoder_tensors.h"
#include "models/sc_plan.h"
#include "research/product_parts.h"
#include "research/sc_files.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

constexpr int64_t kCtx = 12;

std::vector<int32_t> Ids(int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>((i * 37 + i * i * 11 + 5) % 96));
  return ids;
}

bool Same(const HostMatrix& a, const HostMatrix& b) {
  return a.values.size() == b.values.size() && !a.values.empty() &&
         std::memcmp(a.values.data(), b.values.data(), a.values.size() * sizeof(float)) == 0;
}

// Dot products as docs/numerics.md has them: 16 lanes of fused multiply-add, folded by halves.
HostMatrix Exact(const HostMatrix& a, const HostMatrix& b) {
  HostMatrix y{a.rows, b.rows, {}};
  for (int64_t n = 0; n < a.rows; ++n) {
    for (int64_t m = 0; m < b.rows; ++m) {
      float lanes[16] = {};
      for (int64_t d = 0; d < a.cols; ++d) lanes[d % 16] = std::fma(a.row(n)[d], b.row(m)[d], lanes[d % 16]);
      for (int s = 8; s > 0; s /= 2) {
        for (int j = 0; j < s; ++j) lanes[j] = lanes[j] + lanes[j + s];
      }
      y.values.push_back(lanes[0] + 0.0f);
    }
  }
  return y;
}

class Profile : public testing::Test {
 protected:
  void SetUp() override { WriteTinyModel(scratch_.path(), {}); }

  EngineOptions OptionsOf(const std::string& settings, const ScFileOptions& files = {}) const {
    EngineOptions options;
    options.sc = ParseScModelConfig(std::vector<std::string>{settings});
    ReadScFiles(files, &options.sc);
    options.context = 32;
    return options;
  }
  std::unique_ptr<Engine> Open(const EngineOptions& options) const {
    return Engine::Open(backend_, OpenModelFiles(scratch_.path().string()), options);
  }
  std::unique_ptr<Engine> OpenExact() const {
    EngineOptions options;
    options.precision = Precision::kFp32;
    options.context = 32;
    return Open(options);
  }
  ProfileResult Run(const std::string& settings, const ProfileOptions& options, const ScFileOptions& files = {}) const {
    const auto exact = OpenExact();
    const auto configured = Open(OptionsOf(settings, files));
    return ProfileModel(*exact, *configured, OpenModelFiles(scratch_.path().string()), Ids(3 * kCtx), options);
  }
  WindowOperands Capture(Engine& engine) const {
    OperandCapture capture(false, nullptr);
    EXPECT_TRUE(backend_->Observe(&capture));
    EvaluatePerplexity(engine, Ids(kCtx), {.ctx = kCtx, .max_windows = 1, .on_window = {}, .on_logits = {}});
    backend_->Observe(nullptr);
    return capture.Take();
  }
  HostMatrix Weight(const ModelFiles& files, int layer, const std::string& name, int64_t rows, int64_t cols) const {
    const WeightSource source = files.weights->Matrix(LayerTensorName(layer, name), rows, cols);
    HostMatrix w{rows, cols, std::vector<float>(static_cast<size_t>(rows * cols))};
    std::memcpy(w.values.data(), source.host, w.values.size() * sizeof(float));
    return w;
  }
  static const ProfileRow& Row(const ProfileResult& result, int layer, const std::string& op, int head = -1) {
    for (const ProfileRow& row : result.rows) {
      if (row.layer == layer && row.op == op && row.head == head) return row;
    }
    throw std::out_of_range(op);
  }
  std::string Table(const std::string& bucket) const {
    std::string defaults;
    for (const std::string op :
         {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qk", "av"}) {
      defaults += (defaults.empty() ? "\"" : ", \"") + op + "\": " + bucket;
    }
    const auto path = scratch_.path() / "mp.json";
    std::ofstream(path) << R"({"stoc_len_levels": [128, 24], "operator_defaults": {)" << defaults << "}}";
    return path.string();
  }

  const ProfileOptions one_window_{.ctx = kCtx};
  TempDir scratch_;
  std::shared_ptr<Backend> backend_ = OpenBackend("cpu", {.threads = 2, .cpu_variant = ""}, nullptr);
};

void ExpectNear(double got, double expected, const std::string& what) {
  EXPECT_NEAR(got, expected, 1e-12 * std::max(1e-9, std::abs(expected))) << what;
}

// mean (v - y)^2 and its parts, and the largest, as plainly as they can be said.
void ExpectErrors(const ErrorMetrics& got, const HostMatrix& y, const HostMatrix& z, const HostMatrix& v,
                  const std::function<int64_t(int64_t)>& columns) {
  double n = 0, mse = 0, quant = 0, stream = 0, cross = 0, bias = 0, most = 0, yy = 0, vy = 0, vv = 0;
  for (int64_t i = 0; i < y.rows; ++i) {
    for (int64_t j = 0; j < columns(i); ++j) {
      const double a = y.row(i)[j], b = z.row(i)[j], c = v.row(i)[j];
      n += 1;
      mse += (c - a) * (c - a);
      quant += (b - a) * (b - a);
      stream += (c - b) * (c - b);
      cross += 2 * (b - a) * (c - b);
      bias += c - a;
      most = std::max(most, std::abs(c - a));
      yy += a * a;
      vy += a * c;
      vv += c * c;
    }
  }
  ASSERT_GT(mse, 0);
  EXPECT_EQ(got.n, static_cast<int64_t>(n));
  ExpectNear(got.mse, mse / n, "mse");
  ExpectNear(*got.mse_quant, quant / n, "quant");
  ExpectNear(*got.mse_stream, stream / n, "stream");
  EXPECT_NEAR(*got.cross, cross / n, 1e-12 * (quant + stream) / n);
  EXPECT_NEAR(got.bias, bias / n, 1e-12 * most);
  EXPECT_EQ(got.max_abs, most);
  ExpectNear(*got.sqnr_db, 10 * std::log10(yy / mse), "sqnr");
  ExpectNear(*got.cosine, vy / std::sqrt(vv * yy), "cosine");
  ExpectNear(got.mse, *got.mse_quant + *got.mse_stream + *got.cross, "the sum of parts");
}

TEST_F(Profile, LocalErrorsAreThoseOfTheDefinition) {
  const auto exact = OpenExact();
  const WindowOperands operands = Capture(*exact);
  const ProfileResult result = Run("stoc_len=48", one_window_);
  ASSERT_EQ(result.rows.size(), 2u * 9);
  const ModelFiles files = OpenModelFiles(scratch_.path().string());
  const auto check = [&](int layer, const char* op, const char* tensor, const char* group, int64_t rows, int64_t cols) {
    const HostMatrix& x = operands.inputs.at({layer, group});
    const HostMatrix w = Weight(files, layer, tensor, rows, cols);
    const ScConfig config = OptionsOf("stoc_len=48").sc.at(ScOperatorId::kQProj);
    SCOPED_TRACE(op);
    ExpectErrors(Row(result, layer, op).error, Exact(x, w), MultiplyQuantized(x, w, config),
                 MultiplyReference(x, w, config, {}).y, [&](int64_t) { return rows; });
  };
  check(0, "q_proj", "self_attn.q_proj", "qkv_proj", 64, 64);
  check(0, "v_proj", "self_attn.v_proj", "qkv_proj", 32, 64);
  check(1, "o_proj", "self_attn.o_proj", "o_proj", 64, 64);
  check(1, "up_proj", "mlp.up_proj", "gate_up_proj", 172, 64);
  check(1, "down_proj", "mlp.down_proj", "down_proj", 64, 172);
}

TEST_F(Profile, ScoresAreComparedWhereARowSees) {
  const auto exact = OpenExact();
  const WindowOperands operands = Capture(*exact);
  ProfileOptions options = one_window_;
  options.heads = true;
  const ProfileResult result = Run("stoc_len=48", options);
  ASSERT_EQ(result.rows.size(), 2u * (9 + 2 * 4));
  EXPECT_EQ(Row(result, 1, "qk").error.n, 4 * kCtx * (kCtx + 1) / 2);
  EXPECT_EQ(Row(result, 1, "av", 3).error.n, kCtx * 16);
  const auto columns = [](const HostMatrix& x, int64_t first) {
    HostMatrix result_of{x.rows, 16, {}};
    for (int64_t i = 0; i < x.rows; ++i) {
      result_of.values.insert(result_of.values.end(), x.row(i) + first, x.row(i) + first + 16);
    }
    return result_of;
  };
  const AttentionOperands& attention = operands.attention.at(1);
  const HostMatrix q = columns(attention.q, 3 * 16), k = columns(attention.k, 16);
  const ScConfig config = OptionsOf("stoc_len=48").sc.at(ScOperatorId::kQk);
  ExpectErrors(Row(result, 1, "qk", 3).error, Exact(q, k), MultiplyQuantized(q, k, config),
               MultiplyReference(q, k, config, {}).y, [](int64_t row) { return row + 1; });
  double of_heads = 0;
  for (int head = 0; head < 4; ++head) of_heads += Row(result, 1, "av", head).error.mse / 4;
  ExpectNear(Row(result, 1, "av").error.mse, of_heads, "mean over heads");
}

// What the parts say of qk and av is what ran: outputs of attention are inputs of o_proj.
TEST_F(Profile, ConfiguredAttentionIsWhatRan) {
  const std::string mp = Table(R"({"thresholds": [0.5], "metric_lo": 0, "metric_hi": 2})");
  const ScFileOptions none, fixed{.mp = mp}, call{.mp = mp, .mp_normalise = "call"};
  const std::vector<std::pair<std::string, ScFileOptions>> cases = {
      {"attention=per_token,stoc_len=32", none},
      {"attention=per_row,stoc_len=32", none},
      {"attention=per_head,stoc_len=32", none},
      {"attention=exact", none},
      {"attention=per_token,qk.arith=int4,av.arith=int5", none},
      {"attention=per_row,qk.arith=int4,av.arith=int5", none},
      {"attention=per_token,qk.arith=mxint8,av.arith=fp8_e4m3", none},
      {"attention=per_row,qk.arith=fp8_e4m3,av.arith=fp8_e4m3", none},
      {"attention=per_token", fixed},
      {"attention=per_head", fixed},
      {"attention=per_token", call},
      {"attention=per_row", call}};
  for (const int64_t window : {0, 5}) {
    TinyModel model;
    if (window > 0) {
      model.config.architecture = FindArchitecture("mistral");
      model.config.windows = {window, window};
    }
    WriteTinyModel(scratch_.path(), model);
    for (const auto& [settings, files] : cases) {
      SCOPED_TRACE(settings + (files.mp.empty() ? "" : ", " + files.mp_normalise) + ", window " +
                   std::to_string(window));
      const EngineOptions options = OptionsOf(settings, files);
      const auto engine = Open(options);
      const WindowOperands operands = Capture(*engine);
      const ScPlan plan(options.sc, engine->config());
      KvCacheSpec::Products products;
      if (options.sc.attention != AttentionMode::kExact) products = ScPlan(plan).Attention(1);
      const ProductRunner runner(*backend_, backend_->devices().front());
      const AttentionParts parts(runner, engine->config(), options.sc, products);
      HostMatrix out{kCtx, 64, std::vector<float>(kCtx * 64)};
      const AttentionOperands& own = operands.attention.at(1);
      EXPECT_EQ(own.window, window);
      parts.Run(own, own, false, [&](ScOperatorId op, int64_t head, const ProductParts& one, const auto&) {
        if (op != ScOperatorId::kAv) return;
        for (int64_t row = 0; row < kCtx; ++row) {
          std::copy(one.v.row(row), one.v.row(row) + 16, out.row(row) + head * 16);
        }
      });
      EXPECT_TRUE(Same(out, operands.inputs.at({1, "o_proj"})));
    }
  }
}

TEST_F(Profile, QuantizedProductsAreThoseOfTheDefinition) {
  HostMatrix a{5, 200, {}}, b{7, 200, {}};
  for (int i = 0; i < 1000; ++i) a.values.push_back(static_cast<float>(i * 7919 % 997 - 400) / 97.0f);
  for (int i = 0; i < 1400; ++i) b.values.push_back(static_cast<float>(i * 104729 % 613 - 300) / 511.0f);
  std::fill(a.row(4), a.row(4) + 200, 1e-7f);  // below the least scale
  const ProductRunner runner(*backend_, backend_->devices().front());
  WeightSource source;
  source.name = "b";
  source.rows = b.rows;
  source.cols = b.cols;
  source.host = b.values.data();
  for (const char* settings : {"preset=halved", "preset=published", "sc_prec=5,stoc_len=9", "gate=xnor,halve=0",
                               "arith=int6", "arith=fp8_e4m3", "arith=mxint8", "mode=unipolar,halve=0,chunk_d=0",
                               "mode=unipolar,halve=0,chunk_d=0,sc_prec=4,stoc_len=11"}) {
    SCOPED_TRACE(settings);
    // Of a bare product: attention has rules of its own.
    const std::string own = settings;
    ScConfig config;
    config.halve = true;
    config.chunk_d = 128;
    for (size_t at = 0; at < own.size();) {
      const size_t end = std::min(own.find(',', at), own.size());
      const std::string setting = own.substr(at, end - at);
      const size_t is = setting.find('=');
      if (setting.substr(0, is) == "preset") {
        config = ParseScModelConfig(std::vector<std::string>{setting}).at(ScOperatorId::kQProj);
      } else {
        SetScParameter(config, setting.substr(0, is), setting.substr(is + 1));
      }
      at = end + 1;
    }
    const LinearSpec spec{Precision::kSc, MakeScOperator(config)};
    const HostMatrix z = MultiplyQuantized(a, b, config);
    EXPECT_TRUE(Same(runner.Linear(source, QuantizedSpec(spec), a), z));
    const bool has_streams = config.arith == ScArith::kSc;
    EXPECT_EQ(Same(runner.Linear(source, spec, a), z), !has_streams);
  }
}

TEST_F(Profile, PartsVanishWhereTheyAreNone) {
  const ProfileResult result =
      Run("arith=int8,0.o_proj.arith=fp,0.down_proj.arith=sc,1.q_proj.arith=mxint8,1.av.arith=fp8_e4m3", one_window_);
  for (const ProfileRow& row : result.rows) {
    SCOPED_TRACE(std::to_string(row.layer) + row.op);
    const bool streams = row.layer == 0 && row.op == "down_proj";
    const bool exact = row.layer == 0 && row.op == "o_proj";
    EXPECT_EQ(*row.error.mse_stream == 0.0, !streams);
    EXPECT_EQ(row.error.mse == 0.0, exact);
    EXPECT_EQ(row.error.sqnr_db.has_value(), !exact);
    EXPECT_EQ(row.error.mse == *row.error.mse_quant, !streams);
  }
  const std::vector<size_t> worst = result.Worst(10);
  ASSERT_EQ(worst.size(), 10u);
  double shares = 0;
  for (size_t i = 0; i < result.rows.size(); ++i) shares += result.MseShare(i);
  EXPECT_NEAR(shares, 1.0, 1e-12);
  for (size_t i = 1; i < 10; ++i) EXPECT_GE(result.rows[worst[i - 1]].error.mse, result.rows[worst[i]].error.mse);
}

TEST_F(Profile, PropagatedErrorsBeginAsLocalOnesAndGrow) {
  ProfileOptions options = one_window_;
  const ProfileResult local = Run("stoc_len=16,lm_head=1", options);
  options.propagated = true;
  const ProfileResult propagated = Run("stoc_len=16,lm_head=1", options);
  ASSERT_EQ(local.rows.size(), 2u * 9 + 1);
  EXPECT_EQ(Row(local, -1, "lm_head").error.n % 96, 0);
  EXPECT_GE(Row(local, -1, "lm_head").error.n, (kCtx - 1) * 96);
  EXPECT_LE(Row(local, -1, "lm_head").error.n, kCtx * 96);
  EXPECT_EQ(Row(local, 0, "k_proj").error.mse, Row(propagated, 0, "k_proj").error.mse);
  EXPECT_FALSE(Row(propagated, 0, "k_proj").error.mse_quant.has_value());
  EXPECT_GT(Row(propagated, 1, "k_proj").error.mse, 1.5 * Row(local, 1, "k_proj").error.mse);
  EXPECT_GT(Row(propagated, -1, "lm_head").error.mse, 1.5 * Row(local, -1, "lm_head").error.mse);
}

TEST_F(Profile, WindowsSumAndThreadsChangeNothing) {
  ProfileOptions options{.ctx = kCtx, .max_windows = 3};
  const auto text = [&] {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    const ProfileResult result = Run("stoc_len=32", options, {.mp = Table(R"({"thresholds": [0.5], "metric_lo": 0,
        "metric_hi": 2})")});
    for (const ProfileRow& row : result.rows) all.push_back(ProfileRowJson(row));
    all.push_back(result.cost.ToJson(true));
    all.push_back(result.kl.kld.mean);
    EXPECT_EQ(result.perplexity.windows, 3);
    EXPECT_EQ(result.kl.rows, 3 * (kCtx - 1));
    EXPECT_GT(result.kl.kld.mean, 0);
    EXPECT_EQ(result.cost.calls, 3);
    EXPECT_EQ(Row(result, 0, "down_proj").error.n, 3 * kCtx * 64);
    return all.dump();
  };
  const std::string expected = text();
  backend_ = OpenBackend("cpu", {.threads = 1, .cpu_variant = "scalar"}, nullptr);
  EXPECT_EQ(text(), expected);
}

TEST_F(Profile, RefusesWhatItCannotDo) {
  ExpectInvalid([&] { Run("stoc_len=32", {.ctx = kCtx, .max_windows = 4}); }, {"--max-windows 4", "3 windows of 12"});
  ExpectInvalid([&] { Run("stoc_len=32", {.ctx = 2}); }, {"--ctx"});
  backend_ = OpenBackend("cpu:2", {.threads = 1, .cpu_variant = ""}, nullptr);
  EngineOptions options = OptionsOf("stoc_len=32");
  options.placement = RowSplit(TinyLlamaConfig(), backend_->devices());
  const auto exact = OpenExact();
  const auto split = Open(options);
  ExpectInvalid([&] { ProfileModel(*exact, *split, OpenModelFiles(scratch_.path().string()), Ids(kCtx), one_window_); },
                {"one device"});
}

}  // namespace
}  // namespace stoch::test
