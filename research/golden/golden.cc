// SPDX-License-Identifier: Apache-2.0
#include "research/golden/golden.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "kernels/base/error.h"
#include "loader/sha256.h"
#include "research/calibrate/scales.h"
#include "research/calibrate/staircase.h"
#include "research/error_metrics.h"
#include "research/golden/backend_product.h"
#include "research/golden/golden_check.h"
#include "research/golden/golden_trace.h"
#include "research/reference.h"

namespace stoch {
namespace {

using Json = nlohmann::json;

// One case: its fields, its tensors by role, and the verdicts about it.
class Case {
 public:
  Case(Backend& backend, const SafetensorsFile& file, const Json& fields)
      : backend_(backend), file_(file), fields_(fields) {}

  GoldenResult Run();

 private:
  bool Has(const char* role) const { return fields_.at("tensors").contains(role); }
  const SafetensorsTensor& Tensor(const char* role) const {
    return file_.Require(fields_.at("tensors").at(role).get<std::string>());
  }
  HostMatrix Matrix(const char* role) const {
    const SafetensorsTensor& tensor = Tensor(role);
    if (tensor.shape.size() != 2) throw InvalidInput(tensor.name + ": expected a matrix");
    return {tensor.shape[0], tensor.shape[1], file_.CopyF32(tensor)};
  }
  std::vector<float> Floats(const char* role) const { return file_.CopyF32(Tensor(role)); }
  std::vector<int32_t> Ints(const char* role) const { return file_.CopyI32(Tensor(role)); }
  ScConfig Config() const;

  // Verdicts.
  void Same(const char* what, const std::vector<int32_t>& got, const std::vector<int32_t>& expected);
  void SameFloats(const char* what, const std::vector<float>& got, const std::vector<float>& expected);
  void Near(const char* what, double got, double expected, double tolerance);
  void Fail(const std::string& why) { problem_ += (problem_.empty() ? "" : "; ") + why; }

  std::vector<float> OnBackend(const HostMatrix& a, const HostMatrix& b, const ScConfig& config, const ScExtras* extras,
                               std::span<const int> lengths) {
    return ProductOnBackend(backend_, a, b, config, extras, lengths);
  }
  void Products();
  void Integers();
  void Table();
  void Metrics(const Json& expected, const MultiplierError& got);
  void PerTokenAv();
  void SmoothQuant();
  void Awq();
  void DispatchOfRows();
  void DispatchOfChunks();
  void Stairs();
  void Profile();

  Backend& backend_;
  const SafetensorsFile& file_;
  const Json& fields_;
  std::string problem_;
  int64_t compared_ = 0;
};

ScConfig Case::Config() const {
  ScConfig config;
  for (const auto& [key, value] : fields_.at("sc").items()) {
    const std::string text = value.is_string() ? value.get<std::string>()
                                               : (value.is_boolean() ? (value.get<bool>() ? "1" : "0") : value.dump());
    SetScParameter(config, key, text);
  }
  return config;
}

void Case::Same(const char* what, const std::vector<int32_t>& got, const std::vector<int32_t>& expected) {
  compared_ += static_cast<int64_t>(expected.size());
  if (got != expected) Fail(std::string(what) + " differs");
}

void Case::SameFloats(const char* what, const std::vector<float>& got, const std::vector<float>& expected) {
  compared_ += static_cast<int64_t>(expected.size());
  const double tolerance = fields_.value("relative_tolerance", 0.0);
  if (got.size() != expected.size()) return Fail(std::string(what) + " has another size");
  if (tolerance == 0.0) {
    if (std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) != 0) {
      Fail(std::string(what) + " differs in bits");
    }
    return;
  }
  for (size_t i = 0; i < got.size(); ++i) {
    if (!(std::abs(got[i] - expected[i]) <= tolerance * std::abs(expected[i]))) {
      return Fail(std::string(what) + "[" + std::to_string(i) + "] differs");
    }
  }
}

void Case::Near(const char* what, double got, double expected, double tolerance) {
  ++compared_;
  if (!(std::abs(got - expected) <= tolerance * std::abs(expected))) {
    Fail(std::string(what) + " is " + std::to_string(got) + ", expected " + std::to_string(expected));
  }
}

// rungs, lengths, protected: lengths of every (row, chunk), smoothing, protected channels.
void Case::Products() {
  const HostMatrix a = Matrix("a");
  const HostMatrix b = Matrix("b");
  const ScConfig config = Config();
  const bool is_protected = Has("protected");
  std::vector<int> lengths;
  if (Has("rung")) {
    const auto level_lens = fields_.at("level_lens").get<std::vector<int>>();
    for (const int32_t rung : Ints("rung")) lengths.push_back(level_lens.at(static_cast<size_t>(rung)));
  } else if (Has("lengths")) {
    lengths = Ints("lengths");
  }
  if (Has("row_rung")) {
    ScLengthRule rule;
    rule.chunk_bands = fields_.at("band_of_chunk").get<std::vector<int>>();
    rule.ladders = fields_.at("ladders").get<std::vector<std::vector<int>>>();
    std::vector<int> by_rule;
    for (const int32_t rung : Ints("row_rung")) {
      for (size_t c = 0; c < rule.chunk_bands.size(); ++c)
        by_rule.push_back(rule.Length(rung, static_cast<int64_t>(c)));
    }
    Same("lengths by bands", by_rule, lengths);
  }
  ScExtras extras;
  extras.op = "golden";
  std::vector<int> distinct = lengths;
  std::sort(distinct.begin(), distinct.end(), std::greater<>());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  if (!distinct.empty()) extras.by_length = MakeScOperators(config, distinct);
  if (Has("smooth")) extras.smooth = Floats("smooth");
  CheckGoldenOperands(a, b, extras.smooth);
  if (is_protected) extras.protected_channels = Ints("protected");
  CheckGoldenChannels(extras.protected_channels, a.cols);
  const int64_t rest_cols = a.cols - static_cast<int64_t>(extras.protected_channels.size());
  if (rest_cols > 0) CheckGoldenLengths(lengths, a.rows, rest_cols, config);
  HostMatrix smooth_a = a;
  HostMatrix smooth_b = b;
  if (!extras.smooth.empty()) {
    smooth_a = Smoothed(a, extras.smooth, false);
    smooth_b = Smoothed(b, extras.smooth, true);
  }
  if (!extras.protected_channels.empty()) {
    ScConfig own = config;
    own.stoc_len = fields_.at("protected_len").get<int>();
    extras.protected_op = MakeScOperator(own);
    std::vector<int32_t> rest;
    for (int32_t d = 0; d < a.cols; ++d) {
      if (!std::binary_search(extras.protected_channels.begin(), extras.protected_channels.end(), d)) rest.push_back(d);
    }
    const ReferenceProduct p = MultiplyReference(SelectChannels(smooth_a, extras.protected_channels),
                                                 SelectChannels(smooth_b, extras.protected_channels), own, {});
    Same("acc_protected", p.acc, Ints("acc_protected"));
    std::vector<float> y = p.y.values;
    if (!rest.empty()) {
      const ReferenceProduct r =
          MultiplyReference(SelectChannels(smooth_a, rest), SelectChannels(smooth_b, rest), config, lengths);
      Same("acc", r.acc, Ints("acc"));
      for (size_t i = 0; i < y.size(); ++i) y[i] = y[i] + r.y.values[i];
    }
    SameFloats("y of the reference", y, Floats("y"));
  } else {
    const ReferenceProduct product = MultiplyReference(smooth_a, smooth_b, config, lengths);
    Same("acc", product.acc, Ints("acc"));
    SameFloats("y of the reference", product.y.values, Floats("y"));
  }
  SameFloats("y of the backend", OnBackend(a, b, config, &extras, lengths), Floats("y"));
  if (fields_.contains("equals_uniform_stoc_len")) {
    ScConfig uniform = config;
    uniform.stoc_len = fields_.at("equals_uniform_stoc_len").get<int>();
    SameFloats("y of the uniform operator", OnBackend(a, b, uniform, nullptr, {}), Floats("y"));
  }
}

ScConfig IntConfig(const Json& fields) {
  ScConfig config;
  SetScParameter(config, "arith", "int" + fields.at("bits").dump());
  config.chunk_d = fields.at("chunk").get<int64_t>();
  return config;
}

void Case::Integers() {
  const HostMatrix a = Matrix("a");
  const HostMatrix b = Matrix("b");
  const ScConfig config = IntConfig(fields_);
  ScExtras extras;
  extras.op = "golden";
  if (Has("smooth")) extras.smooth = Floats("smooth");
  CheckGoldenOperands(a, b, extras.smooth);
  const bool smooth = !extras.smooth.empty();
  const ReferenceProduct product = MultiplyReference(smooth ? Smoothed(a, extras.smooth, false) : a,
                                                     smooth ? Smoothed(b, extras.smooth, true) : b, config, {});
  Same("acc", product.acc, Ints("acc"));
  SameFloats("y of the reference", product.y.values, Floats("y"));
  SameFloats("y of the backend", OnBackend(a, b, config, smooth ? &extras : nullptr, {}), Floats("y"));
}

void Case::Metrics(const Json& expected, const MultiplierError& got) {
  constexpr double kMreTolerance = 1e-12;  // a sum of fractions
  Near("mae", got.mae, expected.at("mae").get<double>(), 0);
  Near("wce", static_cast<double>(got.wce), expected.at("wce").get<double>(), 0);
  Near("mre", got.mre, expected.at("mre").get<double>(), kMreTolerance);
  Near("ep", got.ep, expected.at("ep").get<double>(), 0);
  Near("mse", got.mse, expected.at("mse").get<double>(), 0);
  Near("bias", got.bias, expected.at("bias").get<double>(), 0);
}

void Case::Table() {
  ScConfig config;
  SetScParameter(config, "gate", "table");
  SetScParameter(config, "table_code", fields_.at("code").get<std::string>());
  config.table = "golden";
  config.chunk_d = fields_.at("chunk_d").get<int64_t>();
  auto table = std::make_shared<MultiplierTable>();
  table->entries = Ints("table");
  table->is_signed = config.table_code == ScTableCode::kSigned;
  if (table->entries.size() != 65536) throw InvalidInput("table: expected 65536 entries");
  Sha256 sha;
  sha.Add(std::as_bytes(std::span(table->entries)));
  if (sha.Hex() != fields_.at("table_sha256").get<std::string>()) Fail("table_sha256 differs");
  config.multiplier = MultiplierTablePtr(table);
  Metrics(fields_.at("metrics").at("all"), MeasureMultiplier(*table));
  Metrics(fields_.at("metrics").at("used"), MeasureMultiplier(*table, config.table_code));
  const HostMatrix a = Matrix("a");
  const HostMatrix b = Matrix("b");
  CheckGoldenOperands(a, b, {});
  const ReferenceProduct product = MultiplyReference(a, b, config, {});
  Same("acc", product.acc, Ints("acc"));
  SameFloats("y of the reference", product.y.values, Floats("y"));
  SameFloats("y of the backend", OnBackend(a, b, config, nullptr, {}), Floats("y"));
}

void Case::PerTokenAv() {
  const bool is_int = fields_.contains("bits");
  const std::vector<int> lengths = is_int ? std::vector<int>() : Ints("lengths");
  const HostMatrix p = Matrix("p");
  const HostMatrix v = Matrix("v");
  const auto start = fields_.at("start_position").get<int64_t>();
  CheckGoldenAttention(p, v, lengths, is_int, start);
  const ReferenceProduct product = PerTokenReference(p, v, is_int ? IntConfig(fields_) : Config(), lengths, start);
  Same("acc", product.acc, Ints("acc"));
  SameFloats("y of the reference", product.y.values, Floats("y"));
}

void Case::SmoothQuant() {
  CheckGoldenOperands(Matrix("x"), Matrix("w"), {});
  SameFloats("smooth",
             SmoothQuantScales(LargestOfColumns(Matrix("x")), LargestOfColumns(Matrix("w")),
                               fields_.at("alpha").get<double>()),
             Floats("smooth"));
}

void Case::Awq() {
  const HostMatrix x = Matrix("x");
  const HostMatrix w = Matrix("w");
  CheckGoldenOperands(x, w, {});
  const int bits = fields_.at("bits").get<int>();
  constexpr int kMostBits = 16;
  if (bits < 2 || bits > kMostBits) throw InvalidInput("bits = " + std::to_string(bits) + ": allowed is 2..16");
  const AwqResult result = AwqScales(AwqMeans(x), x, w, bits);
  Near("ratio_index", result.ratio_index, fields_.at("ratio_index").get<double>(), 0);
  const auto losses = fields_.at("losses").get<std::vector<double>>();
  const double tolerance = fields_.value("relative_tolerance", 0.0);
  // A loss is a small difference of products: the tolerance is that of a scale, times what rounding steps amplify.
  constexpr double kLossFactor = 10;
  for (size_t i = 0; i < losses.size(); ++i) {
    Near("loss", result.losses.at(i), losses[i], kLossFactor * tolerance);
  }
  SameFloats("smooth", result.smooth, Floats("smooth"));
}

ScLengthRule RuleOf(const Json& fields) {
  ScLengthRule rule;
  for (const double threshold : fields.at("thresholds").get<std::vector<double>>()) {
    rule.thresholds.push_back(static_cast<float>(threshold));
  }
  rule.lo = static_cast<float>(fields.value("metric_lo", 0.0));
  rule.hi = static_cast<float>(fields.value("metric_hi", 1.0));
  return rule;
}

void Case::DispatchOfRows() {
  ScLengthRule rule = RuleOf(fields_);
  const std::string metric = fields_.at("metric").get<std::string>();
  rule.metric = metric == "amax" ? ScMetric::kAmax : (metric == "l2" ? ScMetric::kL2 : ScMetric::kCrest);
  rule.sign = static_cast<float>(fields_.at("sign").get<double>());
  const HostMatrix x = Matrix("x");
  std::vector<float> metrics;
  for (int64_t row = 0; row < x.rows; ++row) metrics.push_back(ScRowMetric(rule.metric, rule.sign, x.row(row), x.cols));
  SameFloats("metric", metrics, Floats("metric"));
  if (Has("level_fixed")) Same("level_fixed", ScRowLevels(rule, metrics), Ints("level_fixed"));
  rule.normalise = ScNormalise::kCall;
  rule.escapes = fields_.contains("escape_threshold");
  rule.escape_threshold = fields_.value("escape_threshold", 0.0);
  Same("level_call_escape", ScRowLevels(rule, metrics), Ints("level_call_escape"));
}

void Case::DispatchOfChunks() {
  ScLengthRule rule = RuleOf(fields_);
  rule.scope = ScLengthScope::kChunk;
  const HostMatrix x = Matrix("x");
  auto chunk = fields_.at("chunk_d").get<int64_t>();
  if (chunk < 0) throw InvalidInput("chunk_d = " + std::to_string(chunk) + ": allowed is 0 or more");
  if (chunk == 0) chunk = std::max<int64_t>(x.cols, 1);
  std::vector<float> metrics;
  for (int64_t row = 0; row < x.rows; ++row) {
    for (int64_t begin = 0; begin < x.cols; begin += chunk) {
      metrics.push_back(ScRowMetric(ScMetric::kAmax, 1.0f, x.row(row) + begin, std::min(chunk, x.cols - begin)));
    }
  }
  SameFloats("metric", metrics, Floats("metric"));
  Same("rung_fixed", ScChunkLevels(rule, metrics), Ints("rung_fixed"));
  rule.normalise = ScNormalise::kCall;
  Same("rung_call", ScChunkLevels(rule, metrics), Ints("rung_call"));
}

void Case::Stairs() {
  std::vector<StaircaseBucket> buckets;
  for (size_t i = 0; i < fields_.at("errors").size(); ++i) {
    StaircaseBucket& bucket = buckets.emplace_back();
    for (const float u : Floats(("u" + std::to_string(i)).c_str())) bucket.u_left.push_back(static_cast<double>(u));
    bucket.u_right = bucket.u_left;
    bucket.errors = fields_["errors"][i].get<std::vector<std::vector<double>>>();
    bucket.weights = fields_["weights"][i].get<std::vector<double>>();
  }
  const auto levels = fields_.at("levels").get<std::vector<int>>();
  CheckGoldenStairs(buckets, levels.size());
  const Staircase result = FitStaircase(buckets, levels, fields_.at("budget").get<double>());
  // The multiplier lies where two fits cost the same, so that its last bits are those of the order of sums.
  constexpr double kMultiplierTolerance = 1e-12;
  Near("multiplier", result.multiplier, fields_.at("multiplier").get<double>(), kMultiplierTolerance);
  Near("cost", result.cost, fields_.at("cost").get<double>(), 0);
  for (size_t i = 0; i < buckets.size(); ++i) {
    Same("rungs", result.rungs[i], Ints(("rung" + std::to_string(i)).c_str()));
    std::vector<float> expected;
    for (const double t : fields_.at("thresholds").at(i).get<std::vector<double>>()) {
      expected.push_back(static_cast<float>(t));
    }
    SameFloats("thresholds", result.thresholds[i], expected);
  }
}

void Case::Profile() {
  const HostMatrix a = Matrix("a");
  const HostMatrix b = Matrix("b");
  const ScConfig config = Config();
  CheckGoldenOperands(a, b, {});
  HostMatrix y{a.rows, b.rows, {}};
  for (int64_t n = 0; n < a.rows; ++n) {
    for (int64_t m = 0; m < b.rows; ++m) y.values.push_back(ExactDot(a.row(n), b.row(m), a.cols));
  }
  const HostMatrix z = MultiplyQuantized(a, b, config);
  const std::vector<float> v = OnBackend(a, b, config, nullptr, {});
  const double tolerance = fields_.at("relative_tolerance").get<double>();
  const Json& expected = fields_.at("metrics");
  const auto exact = [&](const char* what, const std::vector<float>& got, const std::vector<float>& wanted) {
    if (got.size() != wanted.size() || std::memcmp(got.data(), wanted.data(), got.size() * sizeof(float)) != 0) {
      Fail(std::string(what) + " differs in bits");
    }
  };
  exact("y", y.values, Floats("y"));
  exact("z", z.values, Floats("z"));
  exact("v", v, Floats("v"));
  ErrorSums sums;
  sums.Add(y.values.data(), z.values.data(), v.data(), y.rows, y.cols);
  const ErrorMetrics m = sums.Metrics();
  Near("n", static_cast<double>(m.n), expected.at("n").get<double>(), 0);
  const std::pair<const char*, std::optional<double>> values[] = {{"mse", m.mse},
                                                                  {"mse_quant", m.mse_quant},
                                                                  {"mse_stream", m.mse_stream},
                                                                  {"cross", m.cross},
                                                                  {"bias", m.bias},
                                                                  {"max_abs", m.max_abs},
                                                                  {"sqnr_db", m.sqnr_db},
                                                                  {"rel_frobenius", m.rel_frobenius},
                                                                  {"cosine", m.cosine},
                                                                  {"sigma_p50", m.sigma_p50},
                                                                  {"sigma_p90", m.sigma_p90},
                                                                  {"sigma_p99", m.sigma_p99}};
  for (const auto& [name, value] : values) {
    const Json& wanted = expected.at(name);
    if (wanted.is_null() != !value) {  // 0 / 0 is null
      Fail(std::string(name) + (value ? " is a number, expected null" : " is null, expected a number"));
    } else if (value) {
      Near(name, *value, wanted.get<double>(), tolerance);
    }
  }
}

GoldenResult Case::Run() {
  const std::string kind = fields_.at("kind").get<std::string>();
  struct Kind {
    const char* name;
    void (Case::*run)();
  };
  constexpr Kind kKinds[] = {{"rungs", &Case::Products},
                             {"lengths", &Case::Products},
                             {"protected", &Case::Products},
                             {"per_token_av", &Case::PerTokenAv},
                             {"per_token_av_int", &Case::PerTokenAv},
                             {"int", &Case::Integers},
                             {"table", &Case::Table},
                             {"smoothquant", &Case::SmoothQuant},
                             {"awq", &Case::Awq},
                             {"dispatch_rows", &Case::DispatchOfRows},
                             {"dispatch_chunks", &Case::DispatchOfChunks},
                             {"staircase", &Case::Stairs},
                             {"profile", &Case::Profile}};
  if (kind == "trace") {
    problem_ = CheckTraceGolden(fields_, &compared_);
  } else {
    const auto* found =
        std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& k) { return k.name == kind; });
    if (found == std::end(kKinds)) throw InvalidInput("a case of the unknown kind \"" + kind + "\"");
    (this->*found->run)();
  }
  if (compared_ == 0) Fail("nothing was compared");
  return {problem_.empty(), problem_.empty() ? std::to_string(compared_) + " values of kind " + kind : problem_};
}

}  // namespace

GoldenResult RunResearchGolden(Backend& backend, const SafetensorsFile& file, const nlohmann::json& fields) {
  try {
    return Case(backend, file, fields).Run();
  } catch (const nlohmann::json::exception& error) {
    throw InvalidInput(std::string("a case that is not of the schema: ") + error.what());
  } catch (const std::logic_error& error) {  // out_of_range, and numbers that are none
    throw InvalidInput(std::string("a case with an index or a number that is none: ") + error.what());
  }
}

}  // namespace stoch
