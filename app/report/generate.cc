// SPDX-License-Identifier: Apache-2.0
#include "app/report/generate.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "app/host/standard_error.h"
#include "app/report/cost.h"
#include "loader/json_text.h"

namespace stoch::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string DeviceNames(Engine& engine) {
  std::vector<std::string> names;
  for (const Device& device : engine.backend().devices()) names.push_back(DeviceName(device));
  return fmt::format("{}", fmt::join(names, ","));
}

}  // namespace

Json GenerateJson(Engine& engine, const GenerateRequest& request, const GenerateResult& result,
                  const std::optional<ScCost>& cost) {
  Json logprobs = Json::array();
  Json top_logprobs = Json::array();
  for (const TokenLogprob& token : result.logprobs) {
    logprobs.push_back(token.logprob);
    top_logprobs.push_back(token.top);
  }
  const Timings& timings = result.timings;
  Json report = {
      {"model", engine.model_name()},
      {"precision", PrecisionName(engine.options().precision)},
      {"sc", engine.sc_description()},
      {"device", DeviceNames(engine)},
      {"prompt_ids", request.prompt},
      {"ids", result.ids},
      {"text", result.text},
      {"logprobs", logprobs},
      {"logits_sha256", result.logits_sha256},
      {"finish_reason", FinishReasonName(result.finish_reason)},
      {"timings",
       {{"load_ms", engine.load_ms()},
        {"prompt_ms", timings.prompt_ms},
        {"ttft_ms", timings.ttft_ms},
        {"ms_per_token", timings.ms_per_token}}},
  };
  if (request.top_logprobs > 0) report["top_logprobs"] = top_logprobs;
  if (engine.options().draft_tokens > 0) {
    const DraftCounts& drafts = result.drafts;
    report["drafts"] = {{"passes", drafts.passes}, {"drafted", drafts.drafted}, {"accepted", drafts.accepted}};
    report["timings"]["draft_n"] = drafts.drafted;  // llama.cpp's names
    report["timings"]["draft_n_accepted"] = drafts.accepted;
  }
  if (cost) report["sc_cost"] = cost->ToJson();
  return report;
}

std::string ReportJson(Engine& engine, const GenerateRequest& request, const GenerateResult& result) {
  return JsonText(GenerateJson(engine, request, result, {}));
}

void PrintSummary(Engine& engine, const GenerateRequest& request, const GenerateResult& result,
                  const std::optional<ScCost>& cost) {
  const Timings& timings = result.timings;
  std::string speed;
  if (timings.ms_per_token > 0) {
    speed = fmt::format(", {:.3g} ms/token ({:.4g} tokens/s)", timings.ms_per_token, 1000 / timings.ms_per_token);
  }
  const std::string sc = engine.sc_description();
  PrintError(
      fmt::format("{} tokens{}, first token after {:.3g} ms ({} prompt tokens), {}, loaded in {:.3g} s, {} on {}{}{}\n",
                  result.ids.size(), speed, timings.ttft_ms, request.prompt.size(),
                  FinishReasonName(result.finish_reason), engine.load_ms() / 1000,
                  PrecisionName(engine.options().precision), DeviceNames(engine), sc.empty() ? "" : ", ", sc));
  if (result.drafts.passes > 0) {
    const DraftCounts& drafts = result.drafts;
    PrintError(fmt::format("{} of {} guessed tokens were right, in {} passes\n", drafts.accepted, drafts.drafted,
                           drafts.passes));
  }
  if (!cost) return;
  if (cost->array_shape) {
    PrintError(CostText(*cost));
  } else {
    PrintError(fmt::format("average stream length {} by macs (linears {}, attention {})\n",
                           LengthText(cost->mac_average()), LengthText(cost->linears_average()),
                           LengthText(cost->attention_average())));
  }
}

}  // namespace stoch::cli
