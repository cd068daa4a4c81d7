// SPDX-License-Identifier: Apache-2.0
// Recorded cases of hardware that is not ideal: draws, tables, and products whose bits flip, whose registers clamp and
// whose adders are gates.
#include <algorithm>
#include <string>

#include "kernels/sc/hardware/binomial.h"
#include "loader/sha256.h"
#include "research/energy/hardware_report.h"
#include "research/golden/backend_product.h"
#include "research/golden/golden2_case.h"
#include "research/golden/golden_check.h"

namespace stoch::golden2 {
namespace {

int OperatorNumber(const std::string& name) {
  constexpr const char* kNames[] = {"q_proj",  "k_proj",    "v_proj",  "o_proj", "gate_proj",
                                    "up_proj", "down_proj", "lm_head", "qk",     "av"};
  const auto* found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found != std::end(kNames)) return static_cast<int>(found - std::begin(kNames));
  throw InvalidInput("op \"" + name + "\" is no operator");
}

FaultKind KindOfDraw(const std::string& name) {
  if (name == "product") return FaultKind::kProduct;
  if (name == "acc") return FaultKind::kAcc;
  if (name == "weight") return FaultKind::kWeight;
  if (name == "activation") return FaultKind::kActivation;
  throw InvalidInput("kind \"" + name + "\" is no kind of faults");
}

ScSite SiteOf(const Json& fields) {
  ScSite site;
  site.layer = fields.value("layer", int64_t{0});
  site.op = fields.contains("op") ? OperatorNumber(fields.at("op").get<std::string>()) : 0;
  site.unit = fields.value("unit", int64_t{0});
  site.first_row = FaultRow(fields.value("sequence", uint32_t{0}), fields.value("start", int64_t{0}));
  return site;
}

}  // namespace

void Case::RowKeys() {
  for (const Json& row : fields_.at("rows")) {
    ++compared_;
    const uint64_t token = FaultRow(row.at("sequence").get<uint32_t>(), row.at("position").get<int64_t>());
    const uint64_t key = FaultKey(row.at("fault_seed").get<uint64_t>(), KindOfDraw(row.at("kind").get<std::string>()),
                                  SiteOf(row), token);
    if (key != Number64(row.at("key"))) Fail("key " + std::to_string(compared_ - 1) + " differs");
  }
}

void Case::Binomials() {
  const auto n = fields_.at("n").get<int64_t>();
  const auto rate = fields_.at("rate").get<double>();
  if (n < 1 || n >= int64_t{1} << 32 || !(rate > 0 && rate <= 1)) throw InvalidInput("n or rate of a table");
  const BinomialLine line = MakeBinomialLine(n, rate);
  compared_ += 3;
  if (line.first != fields_.at("first").get<int64_t>()) Fail("first is " + std::to_string(line.first));
  if (line.entries.size() != fields_.at("entries").get<size_t>()) {
    Fail(std::to_string(line.entries.size()) + " entries");
  }
  const std::string sha = Sha256Hex(
      {reinterpret_cast<const char*>(line.entries.data()), line.entries.size() * sizeof(line.entries.front())});
  if (sha != fields_.at("sha256").get<std::string>()) Fail("entries differ");
}

void Case::Products() {
  const HostMatrix a = Matrix("a");
  const HostMatrix b = Matrix("b");
  CheckGoldenOperands(a, b, {});
  const ScConfig config = ConfigOf(fields_.at("sc"));
  ScExtras extras;
  extras.op = "golden";
  extras.site = SiteOf(fields_);
  std::vector<int> lengths;
  if (fields_.at("tensors").contains("lengths")) {
    const std::vector<int32_t> given = Ints("lengths");
    lengths.assign(given.begin(), given.end());
    CheckGoldenLengths(lengths, a.rows, a.cols, config);
    std::vector<int> distinct = lengths;
    std::sort(distinct.begin(), distinct.end(), std::greater<>());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    auto rule = std::make_shared<ScLengthRule>();
    rule->levels = distinct;
    rule->thresholds.assign(distinct.size() - 1, 0.0f);
    extras.lengths = rule;
    extras.by_length = MakeScOperators(config, distinct);
  }
  const ReferenceProduct product = MultiplyReference(a, b, config, lengths, extras.site);
  if (fields_.at("tensors").contains("codes_a")) {
    Same("codes_a", product.codes_a, Ints("codes_a"));
    Same("codes_b", product.codes_b, Ints("codes_b"));
  }
  Same("acc", product.acc, Ints("acc"));
  SameBits("y of the reference", product.y.values, Matrix("y").values);
  SameBits("y", ProductOnBackend(backend_, a, b, config, &extras, lengths), Matrix("y").values);
}

void Case::Hardware() {
  const Json& input = fields_.at("input");
  HardwareCounts counts;
  counts.cycles = input.at("cycles").get<int64_t>();
  counts.mac_cycles = input.at("mac_cycles").get<int64_t>();
  counts.macs = input.at("macs").get<int64_t>();
  counts.tokens = input.at("tokens").get<int64_t>();
  const auto array = input.at("array").get<std::vector<int64_t>>();
  counts.array = {array.at(0), array.at(1), array.at(2)};
  counts.energy_pj = input.at("energy_pj").get<double>();
  HardwareFile file;
  file.clock_mhz = input.at("clock_mhz").get<double>();
  file.area_um2 = input.at("area_mm2").get<double>() * 1e6;
  file.leakage_mw = input.at("leakage_mw").get<double>();
  const HardwareFigures f = FiguresOf(counts, file);
  const std::pair<const char*, std::optional<double>> figures[] = {{"seconds", f.seconds},
                                                                   {"tokens_per_s", f.tokens_per_s},
                                                                   {"joules", f.joules},
                                                                   {"joules_per_token", f.joules_per_token},
                                                                   {"watts", f.watts},
                                                                   {"utilisation", f.utilisation},
                                                                   {"tops", f.tops},
                                                                   {"tops_per_watt", f.tops_per_watt},
                                                                   {"tops_per_mm2", f.tops_per_mm2},
                                                                   {"edp_js", f.edp_js}};
  for (const auto& [name, value] : figures) Near(name, value, fields_.at("result").at(name));
}

}  // namespace stoch::golden2
