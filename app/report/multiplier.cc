// SPDX-License-Identifier: Apache-2.0
#include "app/report/multiplier.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "app/report/table.h"
#include "kernels/sc/sc_operator.h"
#include "loader/json_text.h"

namespace stoch::cli {
namespace {

using Json = nlohmann::ordered_json;

ScTableCode CodeOf(const MultiplierTable& table, ScTableCode code) {
  if (code != ScTableCode::kFile) return code;
  return table.is_signed ? ScTableCode::kSigned : ScTableCode::kUnsigned;
}

const char* CodeName(ScTableCode code) {
  switch (code) {
    case ScTableCode::kFile: return "file";
    case ScTableCode::kSigned: return "signed";
    case ScTableCode::kSignMagnitude: return "sign_magnitude";
    case ScTableCode::kUnsigned: return "unsigned";
  }
  return "?";
}

struct Facts {
  int64_t zero_row = 0, zero_column = 0;  // entries of T(0, b), T(a, 0) that are not 0
  int64_t asymmetric = 0;                 // pairs with T(-a, b) != -T(a, b) or T(a, -b) != -T(a, b)
};

Facts FactsOf(const MultiplierTable& table) {
  Facts facts;
  const int low = table.is_signed ? -128 : 0;
  const int high = table.is_signed ? 127 : 255;
  for (int x = low; x <= high; ++x) {
    facts.zero_row += table.at(0, x) != 0 ? 1 : 0;
    facts.zero_column += table.at(x, 0) != 0 ? 1 : 0;
  }
  for (int a = -127; table.is_signed && a <= 127; ++a) {
    for (int b = -127; b <= 127; ++b) {
      facts.asymmetric += table.at(-a, b) != -table.at(a, b) || table.at(a, -b) != -table.at(a, b) ? 1 : 0;
    }
  }
  return facts;
}

// Which inner loop runs the table, and why.
std::string KernelOf(const MultiplierTable& table, ScTableCode code) {
  ScConfig config;
  config.gate = ScGate::kTable;
  config.table = "inspected";
  config.table_code = code;
  config.multiplier = MultiplierTablePtr(std::make_shared<MultiplierTable>(table));
  const ScOperatorPtr op = MakeScOperator(config);
  if (op->is_int_product) return "multiplication: every entry is the exact product";
  if (!op->wide_counts.empty()) {
    return fmt::format("lookup of 32-bit entries: the largest is {}, beyond 16 bits", op->max_count);
  }
  return fmt::format("lookup of 16-bit entries: the largest is {}", op->max_count);
}

Json ErrorJson(const MultiplierError& error) {
  return {{"mae", error.mae}, {"wce", error.wce}, {"mre", error.mre},
          {"ep", error.ep},   {"mse", error.mse}, {"bias", error.bias}};
}

}  // namespace

std::string MultiplierText(const MultiplierTable& table, ScTableCode given) {
  const ScTableCode code = CodeOf(table, given);
  Table errors({"pairs", "MAE", "WCE", "MRE", "EP", "MSE", "bias"});
  const auto add = [&](const std::string& name, const MultiplierError& e) {
    errors.Add({name, fmt::format("{:.6g}", e.mae), std::to_string(e.wce), fmt::format("{:.6g}", e.mre),
                fmt::format("{:.6g}", e.ep), fmt::format("{:.6g}", e.mse), fmt::format("{:.6g}", e.bias)});
  };
  add("all", MeasureMultiplier(table));
  add(std::string("of table_code=") + CodeName(code), MeasureMultiplier(table, code));
  const Facts facts = FactsOf(table);
  std::string text = fmt::format("table {}, {} operands\n\n", table.sha256, table.is_signed ? "signed" : "unsigned");
  text += errors.Markdown();
  text +=
      fmt::format("\nT(0, b) is not 0 for {} of 256 b, T(a, 0) for {} of 256 a.\n", facts.zero_row, facts.zero_column);
  if (table.is_signed) {
    text += fmt::format("Signs are {} ({} of 65025 pairs -127..127 differ).\n",
                        facts.asymmetric == 0 ? "symmetric" : "not symmetric", facts.asymmetric);
  }
  return text + fmt::format("Kernel: {}.\n", KernelOf(table, code));
}

std::string MultiplierJson(const MultiplierTable& table, ScTableCode given) {
  const ScTableCode code = CodeOf(table, given);
  const Facts facts = FactsOf(table);
  const Json json = {{"sha256", table.sha256},
                     {"signed", table.is_signed},
                     {"table_code", CodeName(code)},
                     {"all", ErrorJson(MeasureMultiplier(table))},
                     {"used", ErrorJson(MeasureMultiplier(table, code))},
                     {"zero_row_entries", facts.zero_row},
                     {"zero_column_entries", facts.zero_column},
                     {"asymmetric_pairs", facts.asymmetric},
                     {"kernel", KernelOf(table, code)}};
  return JsonText(json);
}

}  // namespace stoch::cli
