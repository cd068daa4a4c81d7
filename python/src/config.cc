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

#include "app/common_options.h"
#include "app/report/multiplier.h"
#include "kernels/base/error.h"
#include "kernels/sc/sc_parameters.h"
#include "models/sc_model_config.h"
#include "python/src/base/bind.h"
#include "python/src/multiplier.h"
#include "research/vectors/stream_vectors.h"

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
  ResolveTables(&config);
  return config;
}

// Whether each cycle of one side's stream is on, where it runs freely.
std::vector<int> StreamOf(const Config& config, int level, const std::string& side, int mask) {
  const ScConfig& resolved = config.resolved();
  if (resolved.arith != ScArith::kSc || !HasSource(resolved.gate)) {
    throw InvalidInput("streams: allowed is arith = sc and a gate of streams, not " + Describe(config.config()));
  }
  const ScOperator& op = *config.op();
  const int low = op.code == ScCode::kAsymmetric ? 0 : -op.q_max;
  if (level < low || level > op.q_max) {
    throw InvalidInput("level = " + std::to_string(level) + ": allowed is " + std::to_string(low) + ".." +
                       std::to_string(op.q_max));
  }
  if (side != "a" && side != "b") throw InvalidInput("side = '" + side + "': allowed is 'a' or 'b'");
  if (mask < 0 || mask >= op.masks) {
    throw InvalidInput("mask = " + std::to_string(mask) + ": allowed is 0.." + std::to_string(op.masks - 1));
  }
  const std::vector<bool> bits = GateStreams(op).Side(side == "a" ? ScSide::kA : ScSide::kB, mask, level);
  return {bits.begin(), bits.end()};
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
  return {operators, std::string(AttentionName(config))};
}

void BindMultiplier(nb::module_& m) {
  nb::class_<MultiplierTablePtr>(m, "Multiplier", "A binary multiplier as all of its products.")
      .def_prop_ro("sha256", [](const MultiplierTablePtr& self) { return self->sha256; })
      .def(
          "json",
          [](const MultiplierTablePtr& self, const std::string& code) {
            ScConfig reading;
            if (!code.empty()) SetScParameter(reading, "table_code", code);
            return cli::MultiplierJson(*self, reading.table_code);
          },
          nb::arg("code"), "What `stoch inspect --table --json` prints.");
  m.def("open_multiplier", &OpenMultiplier, nb::arg("path"), nb::arg("code"), nb::arg("order"));
  m.def(
      "keep_counts", [](const nb::bytes& npy) { return KeepCounts(std::string(npy.c_str(), npy.size())); },
      nb::arg("npy"));
  m.def(
      "parse_multiplier",
      [](const nb::bytes& npy, const std::string& code, const std::string& order) {
        return ParseMultiplier(std::string(npy.c_str(), npy.size()), code, order);
      },
      nb::arg("npy"), nb::arg("code"), nb::arg("order"));
}

// Settings and files as commands take them; notices about files go to the log.
ScModelConfig ModelConfigOf(const std::vector<std::string>& settings, const ScFileOptions& files) {
  EngineOptions engine;
  cli::Apply({.precision = "sc", .sc = settings, .files = files}, &engine);
  return engine.sc;
}

}  // namespace

void BindConfig(nb::module_& m) {
  BindMultiplier(m);
  nb::class_<ScFileOptions>(m, "ScFiles", "The files that a model's configuration refers to; \"\": none.")
      .def(
          "__init__",
          [](ScFileOptions* self, const std::string& mp, const std::string& mp_normalise, const std::string& smooth,
             const std::string& mask, int mask_bits) {
            new (self) ScFileOptions{
                .mp = mp, .mp_normalise = mp_normalise, .smooth = smooth, .mask = mask, .mask_bits = mask_bits};
          },
          nb::arg("mp"), nb::arg("mp_normalise"), nb::arg("smooth"), nb::arg("mask"), nb::arg("mask_bits"));
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
  m.def("streams", &StreamOf, nb::arg("config"), nb::arg("level"), nb::arg("side"), nb::arg("mask"),
        "0 or 1 for each cycle of one side of a product.");
  m.def("operator_configs", &OperatorConfigs, nb::arg("settings"),
        "([(operator, its configuration as text)], attention) of a model.");
  m.def(
      "describe_model_config",
      [](const std::vector<std::string>& settings, const ScFileOptions& files) {
        const ScModelConfig config = ModelConfigOf(settings, files);
        return std::tuple(Describe(config), IsBatchInvariant(config), IsChunkInvariant(config));
      },
      nb::arg("settings"), nb::arg("files"), "(description, is_batch_invariant, is_chunk_invariant)");
}

}  // namespace stoch::python
