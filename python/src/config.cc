// SPDX-License-Identifier: Apache-2.0
#include "python/src/config.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/sc/sc_parameters.h"
#include "models/sc_model_config.h"
#include "python/src/bind.h"

namespace nb = nanobind;

namespace stoch::python {
namespace {

using Settings = std::vector<std::pair<std::string, std::string>>;

// The settings of Describe, "NAME=VALUE,NAME=VALUE".
Settings Split(std::string_view text) {
  Settings settings;
  while (!text.empty()) {
    const std::string_view entry = text.substr(0, text.find(','));
    text = entry.size() < text.size() ? text.substr(entry.size() + 1) : std::string_view();
    const size_t equals = entry.find('=');
    if (equals == std::string_view::npos) {
      throw InvalidInput("SC setting '" + std::string(entry) + "': expected NAME=VALUE");
    }
    settings.emplace_back(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return settings;
}

ScConfig FromSettings(const Settings& settings) {
  ScConfig config;
  for (const auto& [name, value] : settings) SetScParameter(config, name, value);
  return config;
}

// (name, alias, kind, default as text); kind is integer, flag, choice, list or text.
using ParameterRow = std::tuple<std::string, std::string, std::string, std::string>;

std::string KindName(ScParameterKind kind) {
  switch (kind) {
    case ScParameterKind::kInteger: return "integer";
    case ScParameterKind::kFlag: return "flag";
    case ScParameterKind::kChoice: return "choice";
    case ScParameterKind::kList: return "list";
    case ScParameterKind::kText: return "text";
  }
  return "";
}

std::vector<ParameterRow> Parameters() {
  std::vector<ParameterRow> rows;
  const ScConfig defaults;
  for (const ScParameter& parameter : ScParameters()) {
    rows.emplace_back(parameter.name, parameter.alias, KindName(parameter.kind), parameter.get(defaults, parameter));
  }
  return rows;
}

// The configurations of all operators of a model, by name, and how attention is done.
std::tuple<std::vector<std::pair<std::string, std::string>>, std::string> OperatorConfigs(
    const std::vector<std::string>& settings) {
  const ScModelConfig config = ParseScModelConfig(settings);
  std::vector<std::pair<std::string, std::string>> operators;
  for (int i = 0; i < kNumScOperators; ++i) {
    const auto id = static_cast<ScOperatorId>(i);
    operators.emplace_back(ScOperatorName(id), Describe(config.at(id)));
  }
  return {operators, std::string(AttentionModeName(config.attention))};
}

}  // namespace

void BindConfig(nb::module_& m) {
  nb::class_<Config>(m, "Config", "One SC configuration, checked.")
      .def(
          "__init__", [](Config* self, const Settings& settings) { new (self) Config(FromSettings(settings)); },
          nb::arg("settings"))
      .def(
          "get",
          [](const Config& self, const std::string& name) {
            const ScParameter& parameter = FindScParameter(name);
            return parameter.get(self.config(), parameter);
          },
          nb::arg("name"), "The parameter as text.")
      .def(
          "resolved",
          [](const Config& self) {
            Settings settings;
            for (const ScParameter& parameter : ScParameters()) {
              settings.emplace_back(parameter.name, parameter.get(self.resolved(), parameter));
            }
            return settings;
          },
          "Every parameter with its default filled in.")
      .def("describe", [](const Config& self) { return Describe(self.config()); });
  m.def(
      "parse_config", [](const std::string& text) { return Split(text); }, nb::arg("text"));
  m.def("parameters", &Parameters, "(name, alias, kind, default as text) of every parameter.");
  m.def("operator_configs", &OperatorConfigs, nb::arg("settings"),
        "([(operator, its configuration as text)], attention) of a model.");
  m.def(
      "describe_model_config",
      [](const std::vector<std::string>& settings) {
        const ScModelConfig config = ParseScModelConfig(settings);
        return std::tuple(Describe(config), IsBatchInvariant(config), IsChunkInvariant(config));
      },
      nb::arg("settings"), "(description, is_batch_invariant, is_chunk_invariant)");
}

}  // namespace stoch::python
