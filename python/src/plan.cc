// SPDX-License-Identifier: Apache-2.0
// What every operator of a model of another framework runs: settings and files, by layer.

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "app/common_options.h"
#include "kernels/sc/sc_lengths.h"
#include "kernels/sc/sc_parameters.h"
#include "models/sc_plan.h"
#include "models/sc_settings.h"
#include "python/src/attention.h"
#include "python/src/base/arrays.h"
#include "python/src/base/bind.h"
#include "python/src/base/errors.h"
#include "python/src/packed.h"
#include "research/sc_files.h"

namespace nb = nanobind;

namespace stoch::python {
namespace {

ScOperatorId OperatorNamed(const std::string& name) {
  std::string allowed;
  for (int i = 0; i < kNumScOperators; ++i) {
    const auto id = static_cast<ScOperatorId>(i);
    if (ScOperatorName(id) == name) return id;
    allowed += (allowed.empty() ? "" : ", ") + std::string(ScOperatorName(id));
  }
  throw InvalidInput("operator " + name + ": allowed is " + allowed);
}

// Keeps what ScPlan refers to. Threads: under the GIL.
class ModelPlan {
 public:
  // sizes: hidden, intermediate and attention width (all heads).
  ModelPlan(const std::vector<std::string>& settings, const ScFileOptions& files, int layers,
            const std::tuple<int64_t, int64_t, int64_t>& sizes) {
    EngineOptions engine;
    cli::Apply({.precision = "sc", .sc = settings, .files = files}, &engine);
    sc_ = engine.sc;
    for (const TableEntry& entry : TableFunctions()) {
      if ((sc_.tables.*entry.table).name.empty()) continue;
      throw InvalidInput("SC setting " + std::string(entry.name) +
                         ": a table of a function is one of a whole model, as stoch.load runs it, not of products");
    }
    config_.num_hidden_layers = layers;
    config_.hidden_size = std::get<0>(sizes);
    config_.intermediate_size = std::get<1>(sizes);
    config_.head_dim = std::get<2>(sizes);
    config_.num_attention_heads = config_.num_key_value_heads = 1;
    plan_ = std::make_unique<ScPlan>(sc_, config_);
  }
  ModelPlan(const ModelPlan&) = delete;
  ModelPlan& operator=(const ModelPlan&) = delete;

  std::string Config(int layer, const std::string& op) const {
    return stoch::Describe(plan_->Config(layer, OperatorNamed(op)));
  }
  std::string Arith(int layer, const std::string& op) const {
    const ScConfig config = plan_->Config(layer, OperatorNamed(op));
    const ScParameter& parameter = FindScParameter("arith");
    return parameter.get(config, parameter);
  }
  std::string Describe() const { return stoch::Describe(sc_); }
  bool PerCall() const { return sc_.files.mp != nullptr && sc_.files.normalise == ScNormalise::kCall; }
  bool HasFiles() const {
    return sc_.files.mp != nullptr || sc_.files.smooth != nullptr || !sc_.files.mask_sha.empty();
  }
  bool HasLengths() const { return sc_.files.mp != nullptr; }

  std::unique_ptr<Packed> Pack(int layer, const std::string& op, nb::handle b, int cuda, uintptr_t stream) {
    const ScOperatorId id = OperatorNamed(op);
    const LinearSpec spec = plan_->Linear(layer, id);
    if (spec.precision != Precision::kSc) throw InvalidInput(op + " of layer " + std::to_string(layer) + " is not SC");
    return MakePacked(b, spec, plan_->Config(layer, id), cuda, stream);
  }

  // Requires: attention in SC.
  std::unique_ptr<PromptAttention> Attention(int layer, int kv_heads, int head_dim, int64_t sequences,
                                             int64_t positions, int cuda) {
    const nb::gil_scoped_release release;
    OpenDevice& open = DeviceOf(cuda < 0 ? Device{DeviceKind::kCpu, 0} : Device{DeviceKind::kCuda, cuda});
    return std::make_unique<PromptAttention>(open, sc_.attention, plan_->Attention(layer), kv_heads, head_dim,
                                             sequences, positions);
  }

  // Stream lengths of the rows of one call of qk or av; x is [rows, channels] on the host.
  std::vector<int> RowLengths(int layer, const std::string& op, nb::handle x) {
    const Array array = Array::Import(x, "x", false);
    if (!array.on_cpu() || array.view().rank != 2) throw InvalidInput("x: expected rows on the host");
    std::vector<float> storage;
    const TensorView view = WidenHost(array.view(), &storage);
    const KvCacheSpec::Products products = plan_->Attention(layer);
    const ScExtrasPtr& extras = OperatorNamed(op) == ScOperatorId::kQk ? products.qk_extras : products.av_extras;
    if (extras == nullptr || extras->lengths == nullptr) throw InvalidInput(op + " has no mixed lengths");
    const ScLengthRule& rule = *extras->lengths;
    std::vector<float> metrics(static_cast<size_t>(view.dim(0)));
    for (size_t n = 0; n < metrics.size(); ++n) {
      const float* row = view.ptr<const float>() + static_cast<int64_t>(n) * view.dim(1);
      metrics[n] = ScRowMetric(rule.metric, rule.sign, row, view.dim(1));
    }
    std::vector<int> lengths = ScRowLevels(rule, metrics);
    for (int& level : lengths) level = rule.Length(level, 0);
    return lengths;
  }

 private:
  ScModelConfig sc_;
  DecoderConfig config_;
  std::unique_ptr<ScPlan> plan_;
};

}  // namespace

void BindPlan(nb::module_& m) {
  nb::class_<PromptAttention>(m, "PromptAttention", "Causal attention of whole prompts.")
      .def("run", &PromptAttention::Run, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("unit"), nb::arg("out"),
           nb::arg("sequences"), nb::arg("stream"));
  nb::class_<ModelPlan>(m, "ModelPlan", "What every operator of every layer of a model runs.")
      .def(nb::init<const std::vector<std::string>&, const ScFileOptions&, int,
                    const std::tuple<int64_t, int64_t, int64_t>&>(),
           nb::arg("settings"), nb::arg("files"), nb::arg("layers"), nb::arg("sizes"))
      .def("config", &ModelPlan::Config, nb::arg("layer"), nb::arg("operator"), "Its configuration as text.")
      .def("arith", &ModelPlan::Arith, nb::arg("layer"), nb::arg("operator"), "sc, fp, int2, ...")
      .def("describe", &ModelPlan::Describe)
      .def_prop_ro("per_call", &ModelPlan::PerCall)
      .def_prop_ro("has_files", &ModelPlan::HasFiles)
      .def_prop_ro("has_lengths", &ModelPlan::HasLengths)
      .def("pack", &ModelPlan::Pack, nb::arg("layer"), nb::arg("operator"), nb::arg("b"), nb::arg("cuda"),
           nb::arg("stream"))
      .def("attention", &ModelPlan::Attention, nb::arg("layer"), nb::arg("kv_heads"), nb::arg("head_dim"),
           nb::arg("sequences"), nb::arg("positions"), nb::arg("cuda"))
      .def("row_lengths", &ModelPlan::RowLengths, nb::arg("layer"), nb::arg("operator"), nb::arg("x"));
}

}  // namespace stoch::python
