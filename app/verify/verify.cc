// SPDX-License-Identifier: Apache-2.0
// stoch verify: named checks, one line each.

#include "app/verify/verify.h"

#include <fmt/format.h>
#include <fnmatch.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "app/command.h"
#include "app/demo_model.h"
#include "app/interrupt.h"
#include "app/output.h"
#include "app/run_on_ranks.h"
#include "app/verify/rank_checks.h"
#include "kernels/base/error.h"
#include "loader/json_text.h"
#include "models/decoder/rank_link.h"

namespace stoch::cli {
namespace {

constexpr int64_t kRanksContext = 64;  // of the plans that ranks compare before any check

struct Options {
  VerifyContext context;
  bool list = false;
  std::vector<std::string> only;
  std::string goldens;
  std::string hashes;
  std::string record;
  OutputOptions output;
};

void Append(std::vector<Check> more, std::vector<Check>* checks) {
  std::move(more.begin(), more.end(), std::back_inserter(*checks));
}

}  // namespace

std::string ModelOf(const VerifyContext& context) {
  return context.model.model.empty() ? DemoModelFolder() : context.model.model;
}

namespace {

// With a golden or hash file, only what the file holds; otherwise everything that needs no file.
std::vector<Check> Collect(const Options& options) {
  std::vector<Check> checks;
  if (!options.goldens.empty()) Append(GoldenChecks(options.context, options.goldens), &checks);
  if (!options.hashes.empty()) Append(HashChecks(options.context, options.hashes), &checks);
  if (options.context.device.ranks.job != nullptr) Append(RankChecks(options.context), &checks);
  if (!checks.empty()) return checks;
  Append(ProductChecks(options.context), &checks);
  Append(ModelChecks(options.context), &checks);
  Append(DepthChecks(options.context), &checks);
  Append(DeviceChecks(options.context), &checks);
  Append(RingChecks(options.context), &checks);
  Append(ViewChecks(options.context), &checks);
  return checks;
}

bool Matches(const Check& check, const std::string& pattern) {
  return check.name == pattern || fnmatch(pattern.c_str(), check.name.c_str(), 0) == 0;
}

// The checks that any of the patterns names, each once.
std::vector<Check> Select(const std::vector<Check>& checks, const std::vector<std::string>& only, bool quiet) {
  if (only.empty()) return checks;
  std::vector<std::string> notices;
  for (const std::string& pattern : only) {
    const auto count =
        std::count_if(checks.begin(), checks.end(), [&](const Check& check) { return Matches(check, pattern); });
    if (count == 0) {
      throw InvalidInput(
          fmt::format("--only {}: names none of {} checks (stoch verify --list shows them)", pattern, checks.size()));
    }
    notices.push_back(fmt::format("--only {}: {} of {} checks", pattern, count, checks.size()));
  }
  for (const std::string& notice : notices) {
    if (!quiet) spdlog::info(notice);
  }
  std::vector<Check> selected;
  std::copy_if(checks.begin(), checks.end(), std::back_inserter(selected), [&](const Check& check) {
    return std::any_of(only.begin(), only.end(), [&](const std::string& pattern) { return Matches(check, pattern); });
  });
  return selected;
}

// Options that cannot be, and a model that is none, before any check runs.
void CheckPlacement(const VerifyContext& context) {
  if (context.device.pass_rows != 0) {
    throw InvalidInput(fmt::format("--pass-rows {}: has no meaning in stoch verify, whose checks choose their passes",
                                   context.device.pass_rows));
  }
  if (context.device.ranks.job != nullptr) {
    EngineOptions engine;
    const ModelFiles files = OpenModelFiles(ModelOf(context));
    engine.context = std::min<int64_t>(files.config.max_position_embeddings, kRanksContext);
    (void)PlanRanks(*context.backend, files, engine, context.device);
    return;
  }
  const bool is_placed = !GivenPlacement(context.device).empty();
  if (!is_placed && context.model.model.empty()) return;
  const ModelFiles files = OpenModelFiles(ModelOf(context));
  EngineOptions unused;
  if (is_placed) (void)PlaceOn(context.device, files, *context.backend, &unused);
}

CheckResult RunCheck(const Check& check) {
  try {
    return check.run();
  } catch (const LostRank&) {
    throw;
  } catch (const InvalidInput& error) {
    return {false, error.what()};
  } catch (const OutOfMemory& error) {
    return {false, error.what()};
  } catch (const DeviceError& error) {
    return {false, error.what()};
  }
}

ExitCode Run(Options options) {
  if (!options.record.empty()) {
    options.context.backend = Open(options.context.device);
    CheckPlacement(options.context);
    RecordHashes(options.context, options.record);
    return kDone;
  }
  if (!options.list) {
    options.context.backend = Open(options.context.device);
    CheckPlacement(options.context);
  }
  const std::vector<Check> checks = Select(Collect(options), options.only, options.output.quiet || options.output.json);
  if (options.list) {
    for (const Check& check : checks) PrintLine(fmt::format("{:<24} {}", check.name, check.description));
    return kDone;
  }
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  size_t failed = 0;
  for (const Check& check : checks) {
    ThrowIfInterrupted();
    const CheckResult result = RunCheck(check);
    if (!result.passed) ++failed;
    if (options.output.json) {
      results.push_back({{"name", check.name}, {"passed", result.passed}, {"detail", result.detail}});
    } else {
      PrintLine(fmt::format("{} {}: {}", result.passed ? "ok    " : "FAILED", check.name, result.detail));
    }
  }
  if (options.output.json) {
    PrintLine(JsonText(nlohmann::ordered_json{{"checks", results}, {"failed", failed}}));
  } else {
    PrintLine(fmt::format("{} of {} checks passed", checks.size() - failed, checks.size()));
  }
  return failed == 0 ? kDone : kCheckFailed;
}

}  // namespace

CommandBody AddVerify(CLI::App& command) {
  command.description("Checks that the bits are right; exit code 1 if one is not");
  command.footer(
      "Examples:\n"
      "  stoch verify\n"
      "  stoch verify --device cuda:0 --model DIR\n"
      "  stoch verify --device cuda:0,1 --split row --model DIR --only 'logits.*'\n"
      "  stoch verify --goldens sc_matmul_golden.safetensors\n"
      "  stoch verify --list\n"
      "  mpirun -n 2 stoch verify --ranks mpi --model DIR");
  auto options = std::make_shared<Options>();
  AddModelOptions(command, &options->context.model)->description("Model of the logits checks; default demo");
  // Checks choose lengths of their own, and make their prompts of ids.
  for (const char* option : {"--context", "--tokenizer"}) command.remove_option(command.get_option(option));
  AddDeviceOptions(command, &options->context.device);
  auto* list = command.add_flag("--list", options->list, "Name the checks and run none");
  auto* only =
      command
          .add_option("--only", options->only, "Run the checks of this name, or pattern: 'product.*'; may be repeated")
          ->allow_extra_args(false)
          ->excludes(list);
  auto* goldens =
      command.add_option("--goldens", options->goldens, "Run every case of this golden file (.safetensors)");
  auto* hashes =
      command.add_option("--hashes", options->hashes, "Compare the logits hashes recorded in this file (.json)");
  auto* record = command.add_option("--record", options->record, "Write such a file, and check nothing");
  for (CLI::Option* other : {list, only, goldens, hashes}) record->excludes(other);
  AddRankOptions(command, &options->context.device.ranks);
  for (CLI::Option* other : {list, goldens, record}) other->excludes(command.get_option("--ranks"));
  AddOutputOptions(command, &options->output);
  return [options] {
    return RunOnRanks(&options->context.device, options->context.model.model, [options] { return Run(*options); });
  };
}

}  // namespace stoch::cli
