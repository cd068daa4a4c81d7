// stoch inspect: what would be loaded where, without loading it.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "loader/safetensors.h"
#include "models/memory_plan.h"
#include "tools/stoch/command.h"
#include "tools/stoch/common_options.h"
#include "tools/stoch/output.h"
#include "tools/stoch/placement.h"
#include "tools/stoch/table.h"
#include "tools/stoch/units.h"

namespace stoch::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  ModelOptions model;
  DeviceOptions device;
  ArithmeticOptions arithmetic;
  OutputOptions output;
};

Json MemoryJson(const MemoryBytes& bytes) {
  return {{"weights", bytes.weights},   {"scales", bytes.scales},       {"embedding", bytes.embedding},
          {"kv_cache", bytes.kv_cache}, {"workspace", bytes.workspace}, {"total", bytes.total()}};
}

Json ConfigJson(const LlamaConfig& config) {
  return {{"hidden_size", config.hidden_size},
          {"intermediate_size", config.intermediate_size},
          {"num_hidden_layers", config.num_hidden_layers},
          {"num_attention_heads", config.num_attention_heads},
          {"num_key_value_heads", config.num_key_value_heads},
          {"head_dim", config.head_dim},
          {"vocab_size", config.vocab_size},
          {"max_position_embeddings", config.max_position_embeddings},
          {"rms_norm_eps", config.rms_norm_eps},
          {"rope_theta", config.rope_theta},
          {"tie_word_embeddings", config.tie_word_embeddings},
          {"bos_token_id", config.bos_token_id},
          {"eos_token_ids", config.eos_token_ids}};
}

struct Report {
  const ModelFiles& files;
  const EngineOptions& engine;
  const PassShape& shape;
  const MemoryPlan& plan;
  const LlamaPlacement& placement;
  const Backend& backend;

  Device device() const { return backend.devices()[0]; }
};

std::string AsJson(const Report& report) {
  const DeviceInfo info = report.backend.info(report.device());
  Json map = Json::object();
  for (const auto& [module, device] : ModuleMap(report.files.config, report.placement))
    map[module] = DeviceName(device);
  Json tensors = Json::array();
  for (const TensorInfo& tensor : report.files.weights->tensors()) {
    tensors.push_back(
        {{"name", tensor.name}, {"dtype", DTypeName(tensor.dtype)}, {"shape", tensor.shape}, {"file", tensor.file}});
  }
  const bool sc = report.engine.precision == Precision::kSc;
  const Json document = {
      {"model", report.files.name},
      {"config", ConfigJson(report.files.config)},
      {"parameters",
       {{"total", TotalParameters(report.files.config)}, {"decoder_linears", LinearParameters(report.files.config)}}},
      {"precision", PrecisionName(report.engine.precision)},
      {"sc", sc ? Describe(report.engine.sc) : ""},
      {"context", report.shape.context},
      {"device", {{"name", info.name}, {"total_bytes", info.total_bytes}, {"free_bytes", info.free_bytes}}},
      {"memory", MemoryJson(report.plan.total)},
      {"decode_stream_bytes", report.plan.decode_stream_bytes},
      {"device_map", map},
      {"tensors", tensors}};
  return document.dump();
}

std::string AsText(const Report& report) {
  const LlamaConfig& config = report.files.config;
  const DeviceInfo info = report.backend.info(report.device());
  std::string text = fmt::format(
      "model        {}\n"
      "shape        {} layers, hidden {}, intermediate {}, {} heads, {} KV heads, head_dim {}, vocabulary {}\n"
      "context      {} positions (the model's limit: {})\n"
      "parameters   {}, {} of them in decoder linears\n"
      "precision    {}{}{}\n"
      "device       {}: {}, {} free of {}\n\n",
      report.files.name, config.num_hidden_layers, config.hidden_size, config.intermediate_size,
      config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.vocab_size, report.shape.context,
      config.max_position_embeddings, Count(TotalParameters(config)), Count(LinearParameters(config)),
      PrecisionName(report.engine.precision), report.engine.precision == Precision::kSc ? ", " : "",
      report.engine.precision == Precision::kSc ? Describe(report.engine.sc) : "", DeviceName(report.device()),
      info.name, Bytes(info.free_bytes), Bytes(info.total_bytes));

  const MemoryBytes& memory = report.plan.total;
  Table plan({"memory", "bytes"});
  plan.Add({"weights", Bytes(memory.weights)});
  plan.Add({"scales", Bytes(memory.scales)});
  plan.Add({"embedding and norms", Bytes(memory.embedding)});
  plan.Add({"KV cache", Bytes(memory.kv_cache)});
  plan.Add({"workspace", Bytes(memory.workspace)});
  plan.Add({"total", Bytes(memory.total())});
  plan.Add({"read per decoded token", Bytes(report.plan.decode_stream_bytes)});
  text += plan.Markdown() + '\n';

  Table map({"module", "device"});
  for (const auto& [module, device] : ModuleMap(config, report.placement)) map.Add({module, DeviceName(device)});
  text += map.Markdown() + '\n';

  Table tensors({"tensor", "dtype", "shape", "file"});
  for (const TensorInfo& tensor : report.files.weights->tensors()) {
    tensors.Add({tensor.name, std::string(DTypeName(tensor.dtype)), ShapeText(tensor.shape),
                 tensor.file.empty() ? "(random)" : tensor.file});
  }
  return text + tensors.Markdown();
}

ExitCode Run(const Options& options) {
  EngineOptions engine;
  Apply(options.arithmetic, &engine);
  engine.context = options.model.context;
  const ModelFiles files = OpenModelFiles(options.model.model);
  const std::shared_ptr<Backend> backend = Open(options.device);
  const PassShape shape = ShapeOf(files.config, engine);
  const MemoryPlan plan = PlanMemory(files, engine.precision, engine.sc, shape, *backend);
  const LlamaPlacement placement = Place(options.device, files, engine, *backend);
  const Report report{files, engine, shape, plan, placement, *backend};
  Print(options.output.json ? AsJson(report) + '\n' : AsText(report));
  return kDone;
}

}  // namespace

CommandBody AddInspect(CLI::App& command) {
  command.description("Model, tensors, memory plan and device map of what would be loaded; nothing is allocated");
  command.footer(
      "Examples:\n"
      "  stoch inspect --model models/demo\n"
      "  stoch inspect --model random:llama-3.1-8b --context 4096 --json");
  auto options = std::make_shared<Options>();
  AddModelOptions(command, &options->model)->required();
  AddArithmeticOptions(command, &options->arithmetic);
  AddDeviceOptions(command, &options->device);
  AddOutputOptions(command, &options->output);
  return [options] { return Run(*options); };
}

}  // namespace stoch::cli
