// SPDX-License-Identifier: Apache-2.0
#include "research/golden/golden2.h"

#include <algorithm>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

#include "kernels/math/random.h"
#include "kernels/sc/number_source.h"
#include "loader/sha256.h"
#include "research/golden/backend_product.h"
#include "research/golden/golden2_case.h"
#include "research/golden/golden_check.h"
#include "research/products/product_report.h"
#include "research/statistics.h"
#include "research/trace.h"

namespace stoch::golden2 {

namespace {

std::string SettingText(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "1" : "0";
  if (!value.is_array()) return value.dump();
  std::string joined;
  for (const Json& one : value) joined += (joined.empty() ? "" : ":") + one.dump();
  return joined;
}

}  // namespace

ScConfig ConfigOf(const Json& settings) {
  ScConfig config;
  for (const auto& [key, value] : settings.items()) {
    if (key != "fault_acc_bit") SetScParameter(config, key, SettingText(value));
  }
  if (settings.contains("fault_acc_bit")) config.fault_acc_bit = settings.at("fault_acc_bit").get<int>();
  return config;
}

void Case::RandomNumbers() {
  for (const Json& row : fields_.at("rows")) {
    ++compared_;
    const uint64_t bits =
        RandomBits(Number64(row.at("seed")), row.at("stream").get<uint64_t>(), Number64(row.at("position")));
    if (bits != Number64(row.at("bits"))) Fail("bits of seed " + row.at("seed").get<std::string>() + " differ");
  }
}

void Case::Correlation(const std::string& name, const StreamCorrelation& got) {
  const auto value = [&](double mean) { return got.pairs > 0 ? std::optional(mean) : std::nullopt; };
  Near(name, value(got.mean), fields_.at("report").at(name));
  Near("abs_" + name, value(got.mean_abs), fields_.at("report").at("abs_" + name));
}

void Case::Report() {
  const ProductReport report = ReportProduct(*MakeScOperator(ConfigOf(fields_.at("sc"))));
  const Json& expected = fields_.at("report");
  const ProductErrors& e = report.errors;
  Near("mae", e.mae, expected.at("mae"));
  Near("bias", e.bias, expected.at("bias"));
  Near("rmse", e.rmse, expected.at("rmse"));
  Near("max", e.max, expected.at("max"));
  Near("worst_mask_mae", e.worst_mask_mae, expected.at("worst_mask_mae"));
  Same("worst_mask", {e.worst_mask}, {expected.at("worst_mask").get<int32_t>()});
  Same("pairs", {static_cast<int32_t>(e.pairs)}, {expected.at("pairs").get<int32_t>()});
  if (!report.correlation || !report.progress) return Fail("no streams");
  Correlation("scc", report.correlation->sides);
  Same("scc_pairs", {static_cast<int32_t>(report.correlation->sides.pairs)}, {expected.at("scc_pairs").get<int32_t>()});
  Correlation("scc_dims_a", report.correlation->dims_a);
  Correlation("scc_dims_b", report.correlation->dims_b);
  const Json& cycles = expected.at("mae_of_cycles");
  if (cycles.size() != report.progress->mae_of_cycles.size()) return Fail("mae_of_cycles has another size");
  for (size_t t = 0; t < cycles.size(); ++t) {
    Near("mae_of_cycles[" + std::to_string(t) + "]", report.progress->mae_of_cycles[t], cycles[t]);
  }
  constexpr const char* kBounds[] = {"cycles_within_0.05", "cycles_within_0.02", "cycles_within_0.01"};
  for (size_t i = 0; i < std::size(kBounds); ++i) {
    const std::optional<int>& got = report.progress->cycles_within[i];
    Near(kBounds[i], got ? std::optional<double>(*got) : std::nullopt, expected.at(kBounds[i]));
  }
}

// The tensor [masks][levels][levels], hashed as users see it.
std::shared_ptr<CountTable> Case::Table() const {
  const SafetensorsTensor& tensor = Tensor("counts");
  if (tensor.shape.size() != 3 || tensor.shape[1] != tensor.shape[2])
    throw InvalidInput("counts: expected three sides");
  auto table = std::make_shared<CountTable>();
  table->masks = static_cast<int>(tensor.shape[0]);
  table->levels = static_cast<int>(tensor.shape[1]);
  table->entries = file_.CopyI32(tensor);
  table->sha256 = Sha256Hex({reinterpret_cast<const char*>(table->entries.data()), table->entries.size() * 4});
  return table;
}

void Case::Counts() {
  const HostMatrix a = Matrix("a");
  const HostMatrix b = Matrix("b");
  CheckGoldenOperands(a, b, {});
  const std::shared_ptr<CountTable> table = Table();
  if (table->sha256 != fields_.at("counts_sha256").get<std::string>()) Fail("counts_sha256 differs");
  ScConfig config = ConfigOf(fields_.at("sc"));
  config.counts = table->sha256.substr(0, 16);
  config.count_table = CountTablePtr(table);
  std::vector<ScConfig> configs = {config};
  if (fields_.contains("equals")) configs.push_back(ConfigOf(fields_.at("equals")));
  for (const ScConfig& one : configs) {
    const ReferenceProduct product = MultiplyReference(a, b, one, {});
    Same("acc", product.acc, Ints("acc"));
    SameBits("y of the reference", product.y.values, Matrix("y").values);
    SameBits("y", ProductOnBackend(backend_, a, b, one, nullptr, {}), Matrix("y").values);
  }
}

void Case::Source() {
  const ScConfig config = Resolve(ConfigOf(fields_.at("sc")));
  for (const auto& [role, side] : {std::pair("a", ScSide::kA), std::pair("b", ScSide::kB)}) {
    const std::vector<int32_t> expected = Ints(role);
    const std::vector<int> got = SourceValues(config, side, static_cast<int>(expected.size()), 0);
    Same(std::string("side ") + role, {got.begin(), got.end()}, expected);
  }
}

void Case::Usystolic() {
  TraceGroup group;
  group.op = fields_.at("op").get<std::string>();
  group.rows = fields_.at("rows").get<int64_t>();
  group.macs = fields_.at("macs").get<int64_t>();
  const auto head_dim = fields_.at("head_dim").get<int64_t>();
  group.dims_vary = true;
  group.d_in = group.op == "qk" ? head_dim : group.rows;
  group.d_out = group.op == "qk" ? group.rows : head_dim;
  const Json& lines = fields_.at("lines");
  const std::vector<DenseProduct> products = DenseProductsOf(group);
  if (products.size() != lines.size()) return Fail("another number of lines");
  for (size_t i = 0; i < products.size(); ++i) {
    const DenseProduct& p = products[i];
    Same("line " + std::to_string(i),
         {static_cast<int32_t>(p.rows), static_cast<int32_t>(p.d_in), static_cast<int32_t>(p.d_out)},
         lines[i].get<std::vector<int32_t>>());
  }
}

void Case::Statistics() {
  const Summary got = Summarise(fields_.at("values").get<std::vector<double>>());
  const Json& expected = fields_.at("result");
  Near("n", static_cast<double>(got.n), expected.at("n"));
  Near("mean", got.mean, expected.at("mean"));
  Near("sd", got.sd, expected.at("sd"));
  Near("se", got.se, expected.at("se"));
  Near("min", got.min, expected.at("min"));
  Near("max", got.max, expected.at("max"));
  Near("ci95_low", got.ci95_low, expected.at("ci95_low"));
  Near("ci95_high", got.ci95_high, expected.at("ci95_high"));
  const Json& many = fields_.at("long");
  Near("t", StudentT95(many.at("n").get<int64_t>() - 1), many.at("t"));
}

void Case::Paired() {
  const Json& nll = fields_.at("nll_by_window");
  const auto run = nll.at("run").get<std::vector<double>>();
  const auto reference = nll.at("reference").get<std::vector<double>>();
  if (run.empty() || run.size() != reference.size()) throw InvalidInput("windows of run and reference do not fit");
  const PairedDifference got = ComparePairs(run, reference);
  const Json& expected = fields_.at("result");
  Near("mean", got.mean, expected.at("mean"));
  Near("se", got.se, expected.at("se"));
  Near("z", got.z, expected.at("z"));
  Near("ci95_low", got.ci95_low, expected.at("ci95_low"));
  Near("ci95_high", got.ci95_high, expected.at("ci95_high"));
  Near("ratio", got.ratio, expected.at("ratio"));
}

namespace {

struct Kind {
  const char* name;
  void (Case::*run)();
};
constexpr Kind kKinds[] = {{"random_bits", &Case::RandomNumbers},
                           {"row_key", &Case::RowKeys},
                           {"binomial_table", &Case::Binomials},
                           {"fault", &Case::Products},
                           {"register", &Case::Products},
                           {"adder", &Case::Products},
                           {"lengths", &Case::Products},
                           {"smoothquant_qk", &Case::SmoothQuantQk},
                           {"attention", &Case::Attention},
                           {"product_report", &Case::Report},
                           {"counts", &Case::Counts},
                           {"source", &Case::Source},
                           {"usystolic", &Case::Usystolic},
                           {"hw", &Case::Hardware},
                           {"fp8", &Case::Fp8},
                           {"mx", &Case::Mx},
                           {"silu_table", &Case::SiluTable},
                           {"softmax_table", &Case::SoftmaxTable},
                           {"rms_norm_table", &Case::RmsNormTable},
                           {"statistics", &Case::Statistics},
                           {"paired", &Case::Paired}};

const Kind* FindKind(const Json& fields) {
  const auto name = fields.value("kind", std::string());
  const auto* found = std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& k) { return k.name == name; });
  return found == std::end(kKinds) ? nullptr : found;
}

}  // namespace

GoldenResult Case::Run() {
  const Kind* kind = FindKind(fields_);
  if (kind == nullptr) throw InvalidInput("a case of the unknown kind " + fields_.at("kind").dump());
  (this->*kind->run)();
  if (compared_ == 0) Fail("nothing was compared");
  return {problem_.empty(), problem_.empty()
                                ? std::to_string(compared_) + " values of kind " + std::string(kind->name) + note_
                                : problem_};
}

bool IsKind(const Json& fields) { return FindKind(fields) != nullptr; }

}  // namespace stoch::golden2

namespace stoch {

bool IsResearch2Kind(const nlohmann::json& fields) { return golden2::IsKind(fields); }

GoldenResult RunResearch2Golden(Backend& backend, const SafetensorsFile& file, const nlohmann::json& fields) {
  try {
    return golden2::Case(backend, file, fields).Run();
  } catch (const nlohmann::json::exception& error) {
    throw InvalidInput(std::string("a case that is not of the schema: ") + error.what());
  } catch (const std::logic_error& error) {  // out_of_range, and numbers that are none
    throw InvalidInput(std::string("a case with an index or a number that is none: ") + error.what());
  }
}

}  // namespace stoch
