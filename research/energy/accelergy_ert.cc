// SPDX-License-Identifier: Apache-2.0
#include "research/energy/accelergy_ert.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "loader/quote.h"
#include "loader/research/block_yaml.h"
#include "research/energy/cost_export.h"

namespace stoch {
namespace {

using Json = nlohmann::json;

// "system.chip.sng[0..3]" -> "sng"
std::string LastPart(std::string name) {
  name.resize(std::min(name.find('['), name.size()));
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? name : name.substr(dot + 1);
}

// `where` is a view: a reference to a temporary string would look as if the result could refer to it, too.
const Json& Member(const Json& object, const char* key, std::string_view where, const std::string& name) {
  if (!object.is_object() || !object.contains(key)) {
    throw InvalidInput(name + ": " + std::string(where) + " has no " + key);
  }
  return object[key];
}

std::string NameOf(const Json& object, const std::string& where, const std::string& name) {
  const Json& text = Member(object, "name", where, name);
  if (!text.is_string()) throw InvalidInput(name + ": " + where + ".name is no text");
  return text.get<std::string>();
}

const Json& List(const Json& object, const char* key, std::string_view where, const std::string& name) {
  const Json& list = Member(object, key, where, name);
  if (!list.is_array()) throw InvalidInput(name + ": " + std::string(where) + "." + key + " is no list");
  return list;
}

// Our name of an action of a component, "" where nothing counts it.
std::string ActionOf(const std::string& component, const std::string& action) {
  constexpr std::string_view kByLength = "sc_mac_by_stoc_len_";
  std::string ours = action;
  if (action.starts_with(kByLength)) ours[kByLength.size() - 1] = '.';
  return AccelergyComponent(ours) == component ? ours : "";
}

}  // namespace

EnergyTable ParseAccelergyErt(std::string_view text, const std::string& name) {
  const Json root = ParseBlockYaml(text, name);
  const Json& tables = List(Member(root, "ERT", "the file", name), "tables", "ERT", name);
  EnergyTable result;
  result.name = name;
  result.process = "Accelergy, ERT.yaml";
  for (const Json& table : tables) {
    const std::string component = LastPart(NameOf(table, "a table", name));
    for (const Json& action : List(table, "actions", component, name)) {
      const std::string called = NameOf(action, component, name);
      const std::string ours = ActionOf(component, called);
      if (ours.empty()) continue;
      const std::string key = component + "." + called;
      const Json& energy = Member(action, "energy", key, name);
      const bool good = energy.is_number() && std::isfinite(energy.get<double>()) && energy.get<double>() >= 0;
      if (!good) {
        throw InvalidInput(name + ": " + key +
                           ".energy = " + Quoted(energy.is_structured() ? energy.type_name() : JsonText(energy)) +
                           ": allowed is a number of pJ, 0 or more");
      }
      if (!result.actions.emplace(ours, energy.get<double>()).second) {
        throw InvalidInput(name + ": " + key + " has several prices: allowed is one, without arguments that differ");
      }
    }
  }
  return result;
}

}  // namespace stoch
