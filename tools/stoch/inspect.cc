// SPDX-License-Identifier: Apache-2.0
// stoch inspect: what would be loaded where, without loading it.

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/common_options.h"
#include "app/draft.h"
#include "app/interrupt.h"
#include "app/options/product_options.h"
#include "app/options/speculation_options.h"
#include "app/output.h"
#include "app/report/multiplier.h"
#include "app/report/operators.h"
#include "app/report/product.h"
#include "app/report/ranks.h"
#include "app/report/table.h"
#include "app/run_on_ranks.h"
#include "engine/digest_cache.h"
#include "engine/engine.h"
#include "engine/local_plan.h"
#include "engine/placement.h"
#include "engine/units.h"
#include "engine/weights_digest.h"
#include "kernels/base/error.h"
#include "kernels/base/usable_threads.h"
#include "loader/checkpoint/safetensors.h"
#include "loader/config/config_json.h"
#include "loader/json_text.h"
#include "models/decoder/memory_plan.h"
#include "models/hardware_plan.h"
#include "research/sc_files.h"
#include "tools/stoch/commands.h"
#include "tools/stoch/family_text.h"

namespace stoch::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  ModelOptions model;
  DeviceOptions device;
  ArithmeticOptions arithmetic;
  int64_t batch = 1;
  SpeculationOptions speculation{.speculate = "auto"};
  OutputOptions output;
  bool digest = false;
  std::string table, table_code = "file", table_order = "file";
  ProductOptions product;
};

// Products of a configuration: no model is opened.
ExitCode RunProduct(const Options& options) {
  const ProductOptions& product = options.product;
  if (!product.report) throw InvalidInput("--op, --csv, --counts: have no meaning without --product");
  if (!options.arithmetic.files.mp.empty()) {
    throw InvalidInput("--mp: has no meaning with --product, which reports the stoc_len of --sc");
  }
  EngineOptions engine;
  Apply(options.arithmetic, &engine);
  if (engine.precision != Precision::kSc) {
    throw InvalidInput("--product: has no meaning with --precision " + options.arithmetic.precision);
  }
  const std::vector<DistinctProduct> products = DistinctProducts(engine.sc, product.op);
  if (products.empty()) {
    throw InvalidInput("--product: no operator that runs multiplies streams or counts");
  }
  if (!product.csv.empty()) WriteWholeFile(product.csv, ProductCsv(OnlyProduct(products, "--csv")));
  if (!product.counts.empty()) WriteWholeFile(product.counts, ProductCounts(OnlyProduct(products, "--counts")));
  if (!product.csv.empty() || !product.counts.empty()) return kDone;
  Print(options.output.json ? ProductsJson(products) + '\n' : ProductsText(products));
  return kDone;
}

// A multiplier table alone: no model is opened.
ExitCode RunTable(const Options& options) {
  ScConfig reading;
  SetScParameter(reading, "table_code", options.table_code);
  SetScParameter(reading, "table_order", options.table_order);
  const auto table = ReadMultiplierTable(options.table, reading.table_code, reading.table_order);
  Print(options.output.json ? MultiplierJson(*table, reading.table_code) + '\n'
                            : MultiplierText(*table, reading.table_code));
  return kDone;
}

Json ConfigJson(const DecoderConfig& config) {
  Json biases = Json::array();
  for (const BlockGroup group : kBlockGroups) {
    if (config.HasBias(group)) biases.push_back(GroupName(group));
  }
  Json sparse_layers = Json::array();
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    if (config.HasExperts(i)) sparse_layers.push_back(i);
  }
  Json json = {{"model_type", config.architecture->model_type},
               {"biases", biases},
               {"sliding_windows", config.windows},
               {"num_experts", config.num_experts},
               {"num_experts_per_tok", config.num_experts_per_tok},
               {"moe_intermediate_size", config.moe_intermediate_size},
               {"sparse_layers", sparse_layers}};
  json.update(ConfigNumbers(config));
  json["bos_token_id"] = config.bos_token_id;
  json["eos_token_ids"] = config.eos_token_ids;
  return json;
}

struct Report {
  const ModelFiles& files;
  const EngineOptions& engine;
  const PassShape& shape;
  const MemoryPlan& plan;
  const DecoderPlacement& placement;
  const Backend& backend;
  const std::vector<MemoryBytes>& by_device;  // in the order of backend.devices()
  const std::vector<OperatorRow>& operators;  // empty without SC
  const DraftFiles* draft;                    // null: none
  const MemoryBytes& draft_bytes;             // of the first device, next to the others

  Device device() const { return backend.devices()[0]; }
};

// Of the workspace, tables of hardware that is not ideal.
int64_t HardwareBytes(const Report& report) {
  if (report.engine.precision != Precision::kSc) return 0;
  return HardwareTableBytes(report.files.config, report.engine.sc, NumPages(report.shape) * kKvPageTokens);
}

bool IsDealt(const Report& report) { return !report.placement.stripes.empty(); }
bool IsDivided(const Report& report) { return !report.placement.rows.empty(); }

// "positions t with t mod 16 in 0..7", of a device whose positions are dealt.
std::string StripeText(const Stripe& stripe) {
  const int64_t first = stripe.index * stripe.width();
  return fmt::format("t mod {} in {}..{}", kStripePeriod, first, first + stripe.width() - 1);
}

// Of every device, in the order of backend.devices().
std::vector<DecoderShard> DealtShards(const Report& report) {
  return IsDealt(report) ? DealPositions(report.files.config, report.placement.stripes) : std::vector<DecoderShard>{};
}

std::string SplitName(const Report& report) {
  if (!IsDealt(report)) return IsDivided(report) ? "row" : "layer";
  const auto& stripes = report.placement.stripes;
  return stripes.front().size() == 1 ? "sequence"
                                     : fmt::format("sequence:{},row:{}", stripes.size(), stripes.front().size());
}

// Whether every device has a part of the module, or all of it.
bool IsShared(const Report& report, const std::string& module) {
  if (IsDealt(report)) return module != "model.norm" && module != "lm_head";
  return IsDivided(report) && module != "model.embed_tokens";
}

Json DevicesJson(const Report& report) {
  const std::vector<DecoderShard> dealt = DealtShards(report);
  Json devices = Json::array();
  for (size_t i = 0; i < report.by_device.size(); ++i) {
    const Device device = report.backend.devices()[i];
    const DeviceInfo info = report.backend.info(device);
    devices.push_back({{"device", DeviceName(device)},
                       {"name", info.name},
                       {"detail", info.detail},
                       {"total_bytes", info.total_bytes},
                       {"free_bytes", info.free_bytes},
                       {"memory", MemoryJson(report.by_device[i])}});
    if (dealt.empty()) continue;
    const Stripe& stripe = dealt[i].stripe;
    devices.back()["stripe"] = {{"index", stripe.index},
                                {"count", stripe.count},
                                {"period", kStripePeriod},
                                {"first", stripe.index * stripe.width()},
                                {"positions", stripe.width()}};
  }
  return devices;
}

Json LinksJson(const Report& report) {
  Json links = Json::array();
  for (const DeviceLink& link : report.backend.links()) {
    links.push_back({{"from", DeviceName(link.from)},
                     {"to", DeviceName(link.to)},
                     {"peer_access", link.direct},
                     {"detail", link.detail}});
  }
  return links;
}

constexpr std::array<int64_t, 4> kShownTokens = {1, 8, 32, 512};

// Of what one device holds, the first one's share where rows are divided.
std::vector<OperatorKernels> KernelsShown(const Report& report) {
  const std::vector<DecoderShard> shards = ShardsOf(report.files.config, report.placement, report.device());
  std::vector<OperatorKernels> all = KernelsOf(report.files.config, report.engine.precision, report.engine.sc,
                                               report.backend, shards.front(), kShownTokens);
  std::erase_if(all, [](const OperatorKernels& row) { return row.kernels.front().empty(); });
  return all;
}

Json KernelsJson(const Report& report) {
  Json kernels = Json::object();
  for (const OperatorKernels& row : KernelsShown(report)) {
    for (size_t i = 0; i < kShownTokens.size(); ++i) {
      kernels[row.op][std::to_string(kShownTokens[i])] = row.kernels[i];
    }
  }
  return kernels;
}

std::string StoredType(const TensorInfo& tensor) {
  return tensor.stored.empty() ? std::string(DTypeName(tensor.dtype)) : tensor.stored;
}

std::string AsJson(const Report& report) {
  const DeviceInfo info = report.backend.info(report.device());
  Json map = Json::object();
  std::vector<std::string> every;
  for (const DecoderShard& shard : ShardsOf(report.files.config, report.placement, report.device())) {
    every.push_back(DeviceName(shard.device));
  }
  for (const auto& [module, device] : ModuleMap(report.files.config, report.placement)) {
    map[module] = IsShared(report, module) ? Json(every) : Json(DeviceName(device));
  }
  Json tensors = Json::array();
  for (const TensorInfo& tensor : report.files.weights->tensors()) {
    tensors.push_back(
        {{"name", tensor.name}, {"dtype", StoredType(tensor)}, {"shape", tensor.shape}, {"file", tensor.file}});
  }
  const bool sc = report.engine.precision == Precision::kSc;
  Json document = {
      {"model", report.files.name},
      {"config", ConfigJson(report.files.config)},
      {"parameters",
       {{"total", TotalParameters(report.files.config)}, {"decoder_linears", LinearParameters(report.files.config)}}},
      {"precision", PrecisionName(report.engine.precision)},
      {"sc", sc ? Describe(report.engine.sc) : ""},
      {"context", report.shape.context},
      {"batch", report.engine.max_sequences},
      {"pass_rows", report.shape.max_rows},
      {"device", {{"name", info.name}, {"total_bytes", info.total_bytes}, {"free_bytes", info.free_bytes}}},
      {"memory", MemoryJson(report.plan.total)},
      {"hardware_table_bytes", HardwareBytes(report)},
      {"decode_stream_bytes", report.plan.decode_stream_bytes},
      {"split", SplitName(report)},
      {"devices", DevicesJson(report)},
      {"links", LinksJson(report)},
      {"exchange", report.backend.collectives()},
      {"device_map", map},
      {"operators", sc ? OperatorsJson(report.operators) : Json::array()},
      {"kernels", KernelsJson(report)},
      {"notices", report.engine.notices},
      {"tensors", tensors}};
  if (report.draft != nullptr) {
    document["draft_model"] = {{"model", report.draft->files.name},
                               {"precision", PrecisionName(report.draft->precision)},
                               {"device", DeviceName(report.device())},
                               {"memory", MemoryJson(report.draft_bytes)}};
  }
  return JsonText(document);
}

// What several devices would hold, and how they reach each other.
std::string DevicesText(const Report& report) {
  if (report.by_device.size() < 2) return "";
  const std::vector<DecoderShard> dealt = DealtShards(report);
  std::vector<std::string> columns = {"device", "weights and scales", "embedding", "KV cache", "workspace", "total",
                                      "free"};
  if (!dealt.empty()) columns.insert(columns.begin() + 1, "positions");
  Table memory(columns);
  for (size_t i = 0; i < report.by_device.size(); ++i) {
    const MemoryBytes& bytes = report.by_device[i];
    const Device device = report.backend.devices()[i];
    std::vector<std::string> cells = {DeviceName(device),
                                      Bytes(bytes.weights + bytes.scales),
                                      Bytes(bytes.embedding),
                                      Bytes(bytes.kv_cache),
                                      Bytes(bytes.workspace),
                                      Bytes(bytes.total()),
                                      Bytes(report.backend.info(device).free_bytes)};
    if (!dealt.empty()) cells.insert(cells.begin() + 1, StripeText(dealt[i].stripe));
    memory.Add(cells);
  }
  Table links({"from", "to", "peer access", "link"});
  for (const DeviceLink& link : report.backend.links()) {
    links.Add({DeviceName(link.from), DeviceName(link.to), link.direct ? "yes" : "no", link.detail});
  }
  return memory.Markdown() + '\n' + links.Markdown() + "\nexchange     " + report.backend.collectives() + "\n\n";
}

std::string AsText(const Report& report) {
  const DecoderConfig& config = report.files.config;
  const DeviceInfo info = report.backend.info(report.device());
  std::string text = fmt::format(
      "model        {}\n"
      "family       {}\n"
      "shape        {} layers, hidden {}, intermediate {}, {} heads, {} KV heads, head_dim {}, vocabulary {}\n"
      "context      {} positions (the model's limit: {})\n"
      "parameters   {}, {} of them in decoder linears\n"
      "precision    {}{}{}\n"
      "device       {}: {}, {} free of {}\n\n",
      report.files.name, FamilyText(config), config.num_hidden_layers, config.hidden_size, config.intermediate_size,
      config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.vocab_size, report.shape.context,
      config.max_position_embeddings, Count(TotalParameters(config)), Count(LinearParameters(config)),
      PrecisionName(report.engine.precision), report.engine.precision == Precision::kSc ? ", " : "",
      report.engine.precision == Precision::kSc ? Describe(report.engine.sc) : "", DeviceName(report.device()),
      info.name, Bytes(info.free_bytes), Bytes(info.total_bytes));

  const MemoryBytes& memory = report.plan.total;
  Table plan({"memory", "bytes"});
  plan.Add({"weights", Bytes(memory.weights)});
  plan.Add({"scales", Bytes(memory.scales)});
  plan.Add({"embedding", Bytes(memory.embedding)});
  plan.Add({"KV cache", Bytes(memory.kv_cache)});
  plan.Add({fmt::format("workspace, of passes of {} rows", report.shape.max_rows), Bytes(memory.workspace)});
  if (const int64_t hardware = HardwareBytes(report); hardware > 0) {
    plan.Add({"of it, tables of faults, registers, adders", Bytes(hardware)});
  }
  if (memory.runtime > 0) plan.Add({"context, code, graphs", Bytes(memory.runtime)});
  plan.Add({"total", Bytes(memory.total())});
  if (memory.host > 0) plan.Add({"embedding, on the host", Bytes(memory.host)});
  if (report.draft != nullptr) {
    const MemoryBytes& draft = report.draft_bytes;
    const std::string name = "draft model " + report.draft->files.name;
    plan.Add({name + ", weights", Bytes(draft.weights + draft.scales + draft.embedding)});
    plan.Add({name + ", KV cache", Bytes(draft.kv_cache)});
    plan.Add({name + ", workspace", Bytes(draft.workspace)});
    plan.Add({fmt::format("total with it, on {}", DeviceName(report.device())),
              Bytes(report.by_device.front().total() + draft.total())});
  }
  plan.Add({"read per decoded token", Bytes(report.plan.decode_stream_bytes)});
  text += plan.Markdown() + '\n';

  if (!report.operators.empty()) text += OperatorsText(report.operators) + '\n';
  text += DevicesText(report);
  if (const std::vector<OperatorKernels> shown = KernelsShown(report); !shown.empty()) {
    std::vector<std::string> head = {"kernels of so many tokens"};
    for (const int64_t tokens : kShownTokens) head.push_back(std::to_string(tokens));
    Table kernels(head);
    for (const OperatorKernels& row : shown) {
      std::vector<std::string> cells = {row.op};
      cells.insert(cells.end(), row.kernels.begin(), row.kernels.end());
      kernels.Add(cells);
    }
    text += kernels.Markdown() + '\n';
  }

  Table map({"module", "device"});
  for (const auto& [module, device] : ModuleMap(config, report.placement)) {
    const std::string shared = IsDealt(report) ? "every device, for its positions" : "every device, by rows";
    map.Add({module, IsShared(report, module) ? shared : DeviceName(device)});
  }
  text += map.Markdown() + '\n';

  Table tensors({"tensor", "dtype", "shape", "file"});
  for (const TensorInfo& tensor : report.files.weights->tensors()) {
    tensors.Add(
        {tensor.name, StoredType(tensor), ShapeText(tensor.shape), tensor.file.empty() ? "(random)" : tensor.file});
  }
  return text + tensors.Markdown();
}

// --digest: made once, for all tasks that would read the same weights.
ExitCode RunDigest(const Options& options) {
  const ModelFiles files = OpenModelFiles(options.model.model);
  const int threads = options.device.threads > 0 ? options.device.threads : UsableThreads();
  const std::string digest = DigestWeights(files, threads, [] { return InterruptFlag().load(); });
  ThrowIfInterrupted();
  KeepDigest(files, digest);
  const std::string path = DigestCachePath(files).string();
  if (options.output.json) {
    PrintLine(JsonText(Json{{"model", files.name}, {"sha256", digest}, {"kept_in", path}}));
  } else {
    PrintLine(digest + "  " + files.name + (path.empty() ? "" : ", kept in " + path));
  }
  return kDone;
}

// --ranks: what each rank would hold, and whether they agree.
ExitCode RunRanks(const Options& options, const ModelFiles& files, const Backend& backend,
                  const EngineOptions& engine) {
  const std::vector<RankPlan> plans = PlanRanks(backend, files, engine, options.device);
  if (options.output.json) {
    PrintLine(JsonText(Json{{"model", files.name}, {"ranks", RanksJson(plans)}}));
  } else {
    Print(RanksText(plans, files.config.hidden_size * int64_t{sizeof(float)}));
  }
  return kDone;
}

// Errors: InvalidInput where the options describe no model that could be divided.
void RequireModel(const Options& options) {
  if (options.device.ranks.kind.empty()) return;
  if (options.table.empty() && !options.product.given() && !options.digest) return;
  throw InvalidInput("--ranks: has no meaning with --table, --product and --digest");
}

ExitCode Run(const Options& options) {
  RequireModel(options);
  if (!options.table.empty()) return RunTable(options);
  if (options.product.given()) return RunProduct(options);
  if (options.model.model.empty()) throw InvalidInput("--model, --table or --product is required");
  if (options.digest) return RunDigest(options);
  EngineOptions engine;
  Apply(options.arithmetic, &engine);
  engine.context = options.model.context;
  engine.max_sequences = options.batch;
  Apply(options.speculation, &engine);
  const ModelFiles files = OpenModelFiles(options.model.model);
  const std::shared_ptr<DraftFiles> draft = OpenDraft(options.speculation, files, engine, options.arithmetic.sc);
  if (draft != nullptr) RequireSameTokens(files, OpenTokenizer(options.model, files).get(), *draft);
  const std::shared_ptr<Backend> backend = Open(options.device);
  if (options.device.ranks.job != nullptr) return RunRanks(options, files, *backend, engine);
  const DecoderPlacement placement = PlaceWithDraft(options.device, files, *backend, &engine, draft.get());
  engine.placement = placement;
  const PassShape shape = ShapeOf(files.config, engine);
  const MemoryPlan plan = PlanMemory(files, engine.precision, engine.sc, shape, *backend);
  const std::vector<MemoryBytes> by_device = BytesOfPlacement(files, engine, *backend);
  if (!options.output.quiet) {
    for (const std::string& notice : engine.notices) spdlog::info(notice);
  }
  std::vector<OperatorRow> operators;
  if (engine.precision == Precision::kSc) operators = OperatorRows(engine.sc, files.config, *backend);
  const MemoryBytes draft_bytes = draft == nullptr ? MemoryBytes() : PlanDraft(*draft, engine, *backend);
  const Report report{files, engine, shape, plan, placement, *backend, by_device, operators, draft.get(), draft_bytes};
  Print(options.output.json ? AsJson(report) + '\n' : AsText(report));
  return kDone;
}

}  // namespace

CommandBody AddInspect(CLI::App& command) {
  command.description("Model, tensors, memory plan and device map of what would be loaded; nothing is allocated");
  command.footer(
      "Examples:\n"
      "  stoch inspect --model demo\n"
      "  stoch inspect --model random:llama-3.1-8b --context 4096 --json\n"
      "  stoch inspect --model random:llama-3.1-8b --speculate random:llama-3.2-1b\n"
      "  stoch inspect --product --sc gate=and,source=sobol\n"
      "  mpirun -n 2 stoch inspect --ranks mpi --model DIR");
  auto options = std::make_shared<Options>();
  AddModelOptions(command, &options->model);
  AddArithmeticOptions(command, &options->arithmetic);
  command.add_option("--table", options->table, "A multiplier table (.h, .bin, .txt, .npy) in place of a model");
  command.add_flag(
      "--digest", options->digest,
      "The sha256 of all weights, kept in MODEL.sha256 or in the folder STOCH_CACHE for the tasks of a sweep");
  command.add_option("--table-code", options->table_code, "file, signed, sign_magnitude or unsigned")
      ->capture_default_str();
  command.add_option("--table-order", options->table_order, "file, byte or numeric")->capture_default_str();
  AddProductOptions(command, &options->product);
  command.add_option("--batch", options->batch, "Sequences of a whole context to plan the KV cache for")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  AddSpeculationOptions(command, &options->speculation);
  AddDeviceOptions(command, &options->device);
  AddRankOptions(command, &options->device.ranks);
  AddOutputOptions(command, &options->output);
  return [options] { return RunOnRanks(&options->device, options->model.model, [options] { return Run(*options); }); };
}

}  // namespace stoch::cli
