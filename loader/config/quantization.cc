// SPDX-License-Identifier: Apache-2.0
#include "loader/config/quantization.h"

#include <nlohmann/json.hpp>
#include <set>

#include "loader/bounded_json.h"
#include "loader/config/config_keys.h"
#include "loader/quote.h"

namespace stoch {
namespace {

using Json = nlohmann::json;
using Method = Quantization::Method;

constexpr int64_t kMaxBlock = int64_t{1} << 22;
constexpr size_t kMaxGroups = 64;  // config_groups of compressed-tensors

// Keys that change no weight: how the numbers were found, what activations and caches would be rounded to, which
// kernels would run, and which modules are left as they are (their tensors say so too).
// clang-format off
constexpr std::string_view kMeaningless[] = {
    "activation_scheme", "scale_fmt", "activation_scale_ub", "kv_cache_scheme", "kv_cache_quant_method",
    "modules_to_not_convert", "ignored_layers", "ignore", "exclude", "exclude_modules", "modules_in_block_to_quantize",
    "quantization_status", "global_compression_ratio", "version", "quant_method", "sym", "true_sequential",
    "static_groups", "damp_percent", "damp_auto_increment", "model_name_or_path", "model_file_base_name", "model_seqlen",
    "block_name_to_quantize", "module_name_preceding_first_block", "batch_size", "pad_token_id", "dataset", "tokenizer",
    "use_cuda_fp16", "use_exllama", "disable_exllama", "exllama_config", "cache_block_outputs", "max_input_length",
    "lm_head", "meta", "quantizer", "pack_dtype", "dynamic", "mse", "act_group_aware", "hyb_act", "backend", "do_fuse",
    "modules_to_fuse", "fuse_max_seq_len", "is_marlin_format", "packing", "dequantize", "run_compressed",
};
// clang-format on

constexpr std::string_view kReadable =
    "\"fp8\", \"compressed-tensors\" of FP8, or \"gptq\" and \"awq\" of 4 bits; to run, the checkpoint would have to "
    "be "
    "converted to one of them, to GGUF, or to F32, F16 or BF16, and stoch.torch.patch takes a model that transformers "
    "has dequantized";

[[noreturn]] void Refuse(const ConfigKeys& keys, const char* key, const std::string& got) {
  keys.Fail(std::string(key) + ": expected " + std::string(kReadable) + ", got " + got);
}

// The first of the names that is there.
int64_t IntegerOf(const ConfigKeys& keys, std::initializer_list<const char*> names, int64_t min, int64_t max) {
  for (const char* name : names) {
    if (keys.Find(name) != nullptr) return keys.Integer(name, min, max);
  }
  return keys.Integer(*names.begin(), min, max);
}

void ParsePacked(const ConfigKeys& keys, Quantization* result) {
  const char* method = result->method == Method::kGptq ? "gptq" : "awq";
  const int64_t bits = IntegerOf(keys, {"bits", "w_bit"}, 1, 64);
  if (bits != 4) Refuse(keys, "bits", std::string("\"") + method + "\" of " + std::to_string(bits));
  const int64_t group = IntegerOf(keys, {"group_size", "q_group_size"}, -1, kMaxBlock);
  result->group_size = group <= 0 ? 0 : group;
}

void ParseGptq(const ConfigKeys& keys, Quantization* result) {
  ParsePacked(keys, result);
  const std::string format = keys.String("checkpoint_format").value_or("gptq");
  if (format != "gptq" && format != "gptq_v2") {
    Refuse(keys, "checkpoint_format", "\"gptq\" in the format " + Quoted(format));
  }
  if (keys.Boolean("is_marlin_format", false)) Refuse(keys, "is_marlin_format", "\"gptq\" in the format of marlin");
  result->zeros_minus_one = format == "gptq";
  result->needs_g_idx = keys.Boolean("desc_act", false);
}

void ParseAwq(const ConfigKeys& keys, Quantization* result) {
  ParsePacked(keys, result);
  const std::string version = keys.String("version").value_or("gemm");
  if (version != "gemm" && version != "GEMM") Refuse(keys, "version", "\"awq\" in the layout " + Quoted(version));
  if (!keys.Boolean("zero_point", true)) Refuse(keys, "zero_point", "\"awq\" without zero points");
}

std::array<int64_t, 2> ParseBlock(const ConfigKeys& keys, const char* key) {
  const std::vector<int64_t> sides = keys.Integers(key, 1, kMaxBlock, 2);
  if (sides.empty()) return {};
  if (sides.size() != 2) keys.Fail(std::string(key) + ": expected two numbers, got one");
  return {sides[0], sides[1]};
}

void ParseFp8(const ConfigKeys& keys, Quantization* result) {
  const std::string format = keys.String("fmt").value_or("e4m3");
  if (format != "e4m3" && format != "float8_e4m3fn") Refuse(keys, "fmt", "\"fp8\" in the format " + Quoted(format));
  result->block = ParseBlock(keys, "weight_block_size");
}

// One of config_groups: the modules that it is for are seen from their tensors.
void ParseCompressedGroup(const ConfigKeys& group, Quantization* result) {
  if (group.Find("weights") == nullptr) return;
  const ConfigKeys weights = group.Object("weights");
  const std::string type = weights.String("type").value_or("int");
  const int64_t bits = weights.Integer("num_bits", 1, 64, 8);
  if (type != "float" || bits != 8) {
    Refuse(weights, "type", "\"compressed-tensors\" of " + Quoted(type) + " with " + std::to_string(bits) + " bits");
  }
  const std::string strategy = weights.String("strategy").value_or("tensor");
  if (strategy != "tensor" && strategy != "channel" && strategy != "block") {
    Refuse(weights, "strategy", "\"compressed-tensors\" with scales by " + Quoted(strategy));
  }
  if (!weights.Boolean("symmetric", true)) Refuse(weights, "symmetric", "\"compressed-tensors\" with zero points");
  const std::array<int64_t, 2> block = ParseBlock(weights, "block_structure");
  if (block[0] == 0) return;
  if (result->block[0] != 0 && result->block != block) weights.Fail("block_structure: expected that of other groups");
  result->block = block;
}

void ParseCompressed(const ConfigKeys& keys, Quantization* result) {
  const std::string format = keys.String("format").value_or("float-quantized");
  if (format != "float-quantized" && format != "naive-quantized") {
    Refuse(keys, "format", "\"compressed-tensors\" in the format " + Quoted(format));
  }
  for (const char* key : {"sparsity_config", "transform_config"}) {
    const Json* value = keys.Find(key);
    if (value == nullptr || value->empty()) continue;
    const auto found = value->is_object() ? value->find("format") : value->end();
    if (found == value->end() || *found != "dense") Refuse(keys, key, "\"compressed-tensors\" with one");
  }
  const Json* groups = keys.Find("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->empty() || groups->size() > kMaxGroups) {
    keys.Fail("config_groups: expected an object of 1 to " + std::to_string(kMaxGroups) + " groups, got another value");
  }
  const ConfigKeys all = keys.Object("config_groups");
  for (const auto& [name, group] : groups->items()) {
    const char* key = name.c_str();  // a name with a zero byte in it is another one here
    if (all.Find(key) == nullptr) all.Fail(Quoted(name) + ": expected an object, got nothing");
    ParseCompressedGroup(all.Object(key), result);
  }
}

Method MethodOf(const ConfigKeys& keys, const std::string& name) {
  for (const Method method : {Method::kFp8, Method::kCompressedFp8, Method::kGptq, Method::kAwq}) {
    if (name == MethodName(method)) return method;
  }
  Refuse(keys, "quant_method", Quoted(name));
}

Quantization Parse(const ConfigKeys& keys, std::optional<Method> fallback) {
  const std::optional<std::string> name = keys.String("quant_method");
  if (!name && !fallback) Refuse(keys, "quant_method", "nothing");
  Quantization result;
  result.method = name ? MethodOf(keys, *name) : *fallback;
  switch (result.method) {
    case Method::kFp8: ParseFp8(keys, &result); break;
    case Method::kCompressedFp8: ParseCompressed(keys, &result); break;
    case Method::kGptq: ParseGptq(keys, &result); break;
    case Method::kAwq: ParseAwq(keys, &result); break;
  }
  keys.RefuseOthers(kMeaningless);
  return result;
}

}  // namespace

std::string_view MethodName(Method method) {
  switch (method) {
    case Method::kFp8: return "fp8";
    case Method::kCompressedFp8: return "compressed-tensors";
    case Method::kGptq: return "gptq";
    case Method::kAwq: return "awq";
  }
  return "?";
}

std::optional<Quantization> FindQuantization(const ConfigKeys& config) {
  std::optional<Quantization> found;
  for (const char* key : {"compression_config", "quantization_config"}) {
    if (config.Find(key) != nullptr) found = Parse(config.Object(key), std::nullopt);
  }
  return found;
}

std::optional<Quantization> ParseQuantization(std::string_view text, const std::string& file) {
  const Json json = ParseBoundedJson(text, file);
  return FindQuantization(ConfigKeys(json, file));
}

Quantization ParseQuantizationFile(std::string_view text, const std::string& file, Method method) {
  const Json json = ParseBoundedJson(text, file);
  return Parse(ConfigKeys(json, file), method);
}

}  // namespace stoch
