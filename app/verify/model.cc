// SPDX-License-Identifier: Apache-2.0
// Logits of a model, run in every way that must not change them.

#include <fmt/format.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "app/cpu_variants.h"
#include "app/verify/logits.h"
#include "app/verify/rank_checks.h"
#include "app/verify/verify.h"
#include "kernels/base/error.h"
#include "kernels/registry.h"
#include "loader/bounded_json.h"
#include "loader/file.h"
#include "loader/json_text.h"

namespace stoch::cli {
namespace {

constexpr int64_t kPromptTokens = 24;
constexpr int64_t kMaxHashFileBytes = 1 << 20;

struct NamedConfig {
  const char* name;
  const char* settings;
};

constexpr NamedConfig kConfigs[] = {
    {"fp32", "fp32"},
    {"halved", "preset=halved"},
    {"halved_64", "preset=halved,stoc_len=64"},
    {"exact_attention", "preset=halved,attention=exact"},
    {"per_row", "preset=halved,attention=per_row"},
    {"lm_head", "preset=halved,lm_head=1"},
    {"published", "preset=published"},
    {"unipolar", "preset=published,attention=per_token,mode=unipolar,chunk_d=0"},
};

using Named = std::vector<std::pair<std::string, std::string>>;  // how it was run, sha256

// All hashes are one, or the sentence says which are not.
CheckResult AllEqual(const Named& hashes) {
  std::vector<std::string> equal;
  std::vector<std::string> different;
  for (const auto& [how, hash] : hashes) {
    if (hash == hashes[0].second) {
      equal.push_back(how);
    } else {
      different.push_back(fmt::format("{} {:.12}", how, hash));
    }
  }
  std::string detail = fmt::format("sha256 {:.12} on {}", hashes[0].second, fmt::join(equal, ", "));
  if (!different.empty()) detail += fmt::format("; but {}", fmt::join(different, ", "));
  return {different.empty() && hashes.size() > 1, detail};
}

LogitsRun DefaultRun(const std::string& model) {
  LogitsRun run;
  run.prompt = VerifyPrompt(OpenModelFiles(model).config.vocab_size, kPromptTokens);
  return run;
}

std::string HashOn(const std::shared_ptr<Backend>& backend, const VerifyContext& context, const std::string& config,
                   const LogitsRun& run) {
  return LogitsSha256(*OpenForVerify(backend, ModelOf(context), config, run), run);
}

// On the chosen device, divided as the options say.
std::string HashAsChosen(const VerifyContext& context, const std::string& config, const LogitsRun& run) {
  return LogitsSha256(*OpenForVerify(context.backend, ModelOf(context), config, run, context.device), run);
}

std::string ChosenName(const VerifyContext& context) {
  const std::string given = GivenPlacement(context.device);
  return DeviceName(context.backend->devices()[0]) + (given.empty() ? "" : " with " + given);
}

// Scalar CPU code on one thread, every other CPU kernel, other thread counts, and the chosen device.
CheckResult CompareMachines(const VerifyContext& context, const std::string& config) {
  const LogitsRun run = DefaultRun(ModelOf(context));
  Named hashes;
  for (const std::string& variant : UsableCpuVariants()) {
    hashes.emplace_back(
        variant, HashOn(OpenBackend("cpu", {.threads = 1, .cpu_variant = variant}, nullptr), context, config, run));
  }
  for (const int threads : {2, 3}) {
    hashes.emplace_back(
        fmt::format("{} threads", threads),
        HashOn(OpenBackend("cpu", {.threads = threads, .cpu_variant = ""}, nullptr), context, config, run));
  }
  if (context.backend->name() != "cpu" || !GivenPlacement(context.device).empty()) {
    hashes.emplace_back(ChosenName(context), HashAsChosen(context, config, run));
  }
  return AllEqual(hashes);
}

// The prompt in one pass, in pieces, and token by token; alone and next to other sequences.
CheckResult ComparePasses(const VerifyContext& context, const std::string& config) {
  LogitsRun run = DefaultRun(ModelOf(context));
  run.neighbours = 3;
  const std::unique_ptr<Engine> engine = OpenForVerify(context.backend, ModelOf(context), config, run, context.device);
  Named hashes;
  for (const auto& [how, piece, neighbours] : {std::tuple{"whole", 0, 0},
                                               {"pieces of 7", 7, 0},
                                               {"single tokens", 1, 0},
                                               {"next to 3 others", 0, 3},
                                               {"pieces of 5 next to 3 others", 5, 3}}) {
    run.piece = piece;
    run.neighbours = neighbours;
    hashes.emplace_back(how, LogitsSha256(*engine, run));
  }
  return AllEqual(hashes);
}

CheckResult CompareRecorded(const VerifyContext& context, const std::string& config, const LogitsRun& run,
                            const std::string& recorded) {
  const std::string hash = HashAsChosen(context, config, run);
  const std::string device = ChosenName(context);
  if (hash == recorded) return {true, fmt::format("sha256 {:.12} on {}", hash, device)};
  return {false, fmt::format("expected sha256 {}, got {} on {}", recorded, hash, device)};
}

// One process on the device of rank 0, and all ranks: the prompt at once, and in pieces; next to other sequences where
// passes may be cut, as the rows of a pass are limited where they may not.
CheckResult CompareRanks(const VerifyContext& context, const std::string& config) {
  const bool may_be_cut = config == "fp32" || IsChunkInvariant(ParseScModelConfig(std::vector{config}));
  LogitsRun run = DefaultRun(ModelOf(context));
  run.neighbours = may_be_cut ? 3 : 0;
  Named hashes = {{"one process", HashOn(context.backend, context, config, run)}};
  const std::string ranks = fmt::format("{} ranks", context.device.ranks.count);
  const auto engine = OpenForVerify(context.backend, ModelOf(context), config, run, context.device);
  hashes.emplace_back(ranks, LogitsSha256(*engine, run));
  if (may_be_cut) {
    run.piece = 7;
    hashes.emplace_back(ranks + ", pieces of 7", LogitsSha256(*engine, run));
  }
  return AllEqual(hashes);
}

}  // namespace

std::vector<Check> ModelChecks(const VerifyContext& context) {
  std::vector<Check> checks;
  for (const NamedConfig& config : kConfigs) {
    const std::string settings = config.settings;
    checks.push_back({std::string("logits.") + config.name, "CPU kernels, thread counts and the device agree in bits",
                      [context, settings] { return CompareMachines(context, settings); }});
    // Window attention sees the whole prompt: it has no other way to be run.
    if (settings != "fp32" && !IsChunkInvariant(ParseScModelConfig(std::vector{settings}))) continue;
    checks.push_back({std::string("passes.") + config.name, "however the prompt is cut, whoever runs next to it",
                      [context, settings] { return ComparePasses(context, settings); }});
  }
  return checks;
}

std::vector<Check> RankChecks(const VerifyContext& context) {
  std::vector<Check> checks;
  for (const NamedConfig& config : kConfigs) {
    const std::string settings = config.settings;
    checks.push_back({std::string("ranks.logits.") + config.name, "one process and all ranks agree in bits",
                      [context, settings] { return CompareRanks(context, settings); }});
  }
  return checks;
}

std::vector<Check> HashChecks(const VerifyContext& context, const std::string& path) {
  const nlohmann::json file = ParseBoundedJson(ReadSmallFile(path, kMaxHashFileBytes), path);
  LogitsRun run;
  std::map<std::string, std::string> recorded;
  try {
    run.prompt = file.at("prompt_ids").get<std::vector<int32_t>>();
    run.new_tokens = file.at("new_tokens").get<int64_t>();
    recorded = file.at("sha256").get<std::map<std::string, std::string>>();
  } catch (const nlohmann::json::exception&) {
    throw InvalidInput(path + ": expected prompt_ids, new_tokens and sha256 {CONFIG: HEX}");
  }
  if (run.prompt.empty() || run.new_tokens < 1 || recorded.empty()) {
    throw InvalidInput(path + ": expected a prompt, at least one new token and at least one hash");
  }
  std::vector<Check> checks;
  for (const auto& [config, hash] : recorded) {
    checks.push_back(
        {"hash." + config, "the recorded sha256 of logits",
         [context, settings = config, wanted = hash, run] { return CompareRecorded(context, settings, run, wanted); }});
  }
  return checks;
}

void RecordHashes(const VerifyContext& context, const std::string& path) {
  const LogitsRun run = DefaultRun(ModelOf(context));
  nlohmann::ordered_json hashes = nlohmann::ordered_json::object();
  for (const NamedConfig& config : kConfigs) hashes[config.settings] = HashAsChosen(context, config.settings, run);
  std::ofstream file(path);
  file << JsonText(
              nlohmann::ordered_json{{"prompt_ids", run.prompt}, {"new_tokens", run.new_tokens}, {"sha256", hashes}}, 1)
       << '\n';
  file.close();
  if (!file) throw InvalidInput(path + ": cannot be written");
}

}  // namespace stoch::cli
