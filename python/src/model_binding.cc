// SPDX-License-Identifier: Apache-2.0
// Model, its streams and its sequences by hand, as Python classes.

#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "engine/placement.h"
#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "loader/config/config_json.h"
#include "loader/json_text.h"
#include "python/src/base/arrays.h"
#include "python/src/base/bind.h"
#include "python/src/base/devices.h"
#include "python/src/model.h"

namespace nb = nanobind;

namespace stoch::python {
namespace {

using NoGil = nb::call_guard<nb::gil_scoped_release>;

std::string ConfigJson(const DecoderConfig& config) {
  nlohmann::ordered_json json = ConfigNumbers(config);
  json["bos_token_id"] = config.bos_token_id;
  json["eos_token_ids"] = config.eos_token_ids;
  return JsonText(json);
}

// What a model is and takes, for the properties of Model.
std::string FactsJson(const LoadedModel& model) {
  Engine& engine = *model.engine;
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  for (const auto& [module, device] : ModuleMap(engine.config(), *engine.options().placement)) {
    map[module] = DeviceName(device);
  }
  const std::string config = ConfigJson(engine.config());
  const nlohmann::ordered_json facts = {{"name", engine.model_name()},
                                        {"precision", PrecisionName(engine.options().precision)},
                                        {"sc", engine.sc_description()},
                                        {"context", engine.options().context},
                                        {"batch_invariant", engine.batch_invariant()},
                                        {"chunk_invariant", engine.chunk_invariant()},
                                        {"has_tokenizer", model.tokenizer != nullptr},
                                        {"config", nlohmann::ordered_json::parse(config)},
                                        {"device_map", map},
                                        {"memory",
                                         {{"decoder_bytes", engine.model().weights().decoder_bytes},
                                          {"kv_bytes", engine.model().kv_cache_bytes()},
                                          {"workspace_bytes", engine.model().workspace_bytes()}}},
                                        {"load_ms", engine.load_ms()},
                                        {"notices", model.notices}};
  return JsonText(facts);
}

// conversation: the members of ChatRequest as JSON.
RenderedChat RenderConversation(LoadedModel& model, const std::string& conversation) {
  constexpr int kDepth = 64;
  OrderedJson json = ConsumeOrderedJson(conversation, "the conversation", kDepth, kMaxJsonFileValues, INT64_MAX);
  ChatRequest request;
  request.messages = std::move(json.at("messages"));
  request.tools = std::move(json.at("tools"));
  request.documents = std::move(json.at("documents"));
  request.kwargs = std::move(json.at("kwargs"));
  request.add_generation_prompt = json.at("add_generation_prompt").get<bool>();
  request.continue_final_message = json.at("continue_final_message").get<bool>();
  return model.RequireChat().Render(std::move(request));
}

// One of them at most is given: Python has seen to that.
GrammarSpec GrammarOf(const std::string& json_schema, const std::string& regex, const std::vector<std::string>& choices,
                      const std::string& grammar) {
  if (!json_schema.empty()) return {GrammarSpec::Kind::kJsonSchema, json_schema};
  if (!regex.empty()) return {GrammarSpec::Kind::kRegex, regex};
  if (!choices.empty()) return ChoiceGrammar(choices);
  if (!grammar.empty()) return {GrammarSpec::Kind::kEbnf, grammar};
  return {};
}

void BindRequest(nb::module_& m) {
  nb::class_<GenerateRequest>(m, "Request", "What to generate, but for the prompt.")
      .def(
          "__init__",
          [](GenerateRequest* self, int64_t max_tokens, double temperature, double top_p, int64_t top_k, double min_p,
             double repeat_penalty, double presence_penalty, double frequency_penalty,
             const std::vector<std::pair<int32_t, float>>& logit_bias, uint64_t seed,
             const std::vector<std::string>& stop, const Ids& stop_ids, bool ignore_eos, int top_logprobs,
             bool hash_logits, const std::string& json_schema, const std::string& regex,
             const std::vector<std::string>& choices, const std::string& grammar) {
            GenerateRequest request;
            request.grammar = GrammarOf(json_schema, regex, choices, grammar);
            request.max_tokens = max_tokens;
            request.sampling.temperature = temperature;
            request.sampling.top_p = top_p;
            request.sampling.top_k = top_k;
            request.sampling.min_p = min_p;
            request.sampling.repeat_penalty = repeat_penalty;
            request.sampling.presence_penalty = presence_penalty;
            request.sampling.frequency_penalty = frequency_penalty;
            for (const auto& [id, bias] : logit_bias) request.sampling.logit_bias.push_back({id, bias});
            request.sampling.seed = seed;
            request.stop = stop;
            request.stop_ids = stop_ids;
            request.ignore_eos = ignore_eos;
            request.top_logprobs = top_logprobs;
            request.hash_logits = hash_logits;
            new (self) GenerateRequest(std::move(request));
          },
          nb::arg("max_tokens"), nb::arg("temperature"), nb::arg("top_p"), nb::arg("top_k"), nb::arg("min_p"),
          nb::arg("repeat_penalty"), nb::arg("presence_penalty"), nb::arg("frequency_penalty"), nb::arg("logit_bias"),
          nb::arg("seed"), nb::arg("stop"), nb::arg("stop_ids"), nb::arg("ignore_eos"), nb::arg("top_logprobs"),
          nb::arg("hash_logits"), nb::arg("json_schema"), nb::arg("regex"), nb::arg("choices"), nb::arg("grammar"));
}

void BindStream(nb::module_& m) {
  nb::class_<TextStream>(m, "TextStream", "One request, piece by piece.")
      .def("next", &TextStream::Next, NoGil())
      .def("report", &TextStream::Report);
}

}  // namespace

void BindModel(nb::module_& m) {
  BindRequest(m);
  BindStream(m);
  nb::class_<LoadedModel>(m, "LoadedModel", "Engine and tokenizer of one model.")
      .def("facts", [](const ModelPtr& self) { return FactsJson(*self); })
      .def(
          "encode",
          [](const ModelPtr& self, const std::string& text, bool add_bos, bool parse_special) {
            return self->RequireTokenizer().Encode(text, {.add_bos = add_bos, .parse_special = parse_special});
          },
          nb::arg("text"), nb::arg("add_bos"), nb::arg("parse_special"), NoGil())
      .def(
          "decode", [](const ModelPtr& self, const Ids& ids) { return self->RequireTokenizer().Decode(ids); },
          nb::arg("ids"), NoGil())
      .def("eos_ids",
           [](const ModelPtr& self) {
             Ids ids = self->engine->config().eos_token_ids;
             if (self->tokenizer != nullptr) {
               for (const int32_t id : self->tokenizer->eos_ids()) {
                 if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
               }
             }
             return ids;
           })
      .def(
          "use_chat",
          [](const ModelPtr& self, const std::string& chat_template, const std::string& python, bool unsafe) {
            self->chat_settings = {.chat_template = chat_template, .unsafe = unsafe, .pythons = {python}, .date = ""};
            if (!chat_template.empty()) (void)self->RequireChat();
          },
          nb::arg("chat_template"), nb::arg("python"), nb::arg("unsafe"), NoGil())
      .def(
          "encode_chat",
          [](const ModelPtr& self, const std::string& conversation) {
            return self->RequireChat().Encode(RenderConversation(*self, conversation));
          },
          nb::arg("conversation"), NoGil())
      .def(
          "render_chat",
          [](const ModelPtr& self, const std::string& conversation) {
            return Chat::Text(RenderConversation(*self, conversation));
          },
          nb::arg("conversation"), NoGil())
      .def(
          "chat_stop_ids", [](const ModelPtr& self) { return self->RequireChat().stop_ids(); }, NoGil())
      .def(
          "chat_template", [](const ModelPtr& self) { return self->RequireChat().source(); }, NoGil())
      .def(
          "generate",
          [](const ModelPtr& self, const GenerateRequest& request, const std::vector<Ids>& prompts,
             const Progress& progress) {
            std::vector<GenerateRequest> requests(prompts.size(), request);
            for (size_t i = 0; i < prompts.size(); ++i) requests[i].prompt = prompts[i];
            return Alone(self, [&](LoadedModel& model) { return GenerateAll(model, requests, progress); });
          },
          nb::arg("request"), nb::arg("prompts"), nb::arg("progress").none(), NoGil())
      .def(
          "stream",
          [](const ModelPtr& self, GenerateRequest request, const Ids& prompt) {
            RequireNotForked();
            request.prompt = prompt;
            return std::make_unique<TextStream>(self, std::move(request));
          },
          nb::arg("request"), nb::arg("prompt"), NoGil())
      .def(
          "logits",
          [](const ModelPtr& self, const Ids& ids, nb::handle out, const Progress& progress) {
            const Array array = Array::Import(out, "out", true);
            const nb::gil_scoped_release release;
            Alone(self, [&](LoadedModel& model) { ReadAllLogits(model, ids, array.floats(), progress); });
          },
          nb::arg("ids"), nb::arg("out"), nb::arg("progress").none())
      .def(
          "hidden",
          [](const ModelPtr& self, const Ids& ids, int layers, nb::handle out, const Progress& progress) {
            const Array array = Array::Import(out, "out", true);
            const nb::gil_scoped_release release;
            Alone(self, [&](LoadedModel& model) { ReadHidden(model, ids, layers, array.floats(), progress); });
          },
          nb::arg("ids"), nb::arg("layers"), nb::arg("out"), nb::arg("progress").none())
      .def(
          "logits_sha256",
          [](const ModelPtr& self, const Ids& ids, int64_t new_tokens) {
            return Alone(self, [&](LoadedModel& model) { return HashLogits(model, ids, new_tokens); });
          },
          nb::arg("ids"), nb::arg("new_tokens"), NoGil())
      .def(
          "score",
          [](const ModelPtr& self, const std::vector<std::pair<Ids, Ids>>& pairs, const Progress& progress) {
            std::vector<ScoreRequest> requests;
            for (const auto& [context, continuation] : pairs) requests.push_back({context, continuation});
            std::vector<std::pair<double, bool>> scores;
            for (const Score& score :
                 Alone(self, [&](LoadedModel& model) { return ScoreAll(model, requests, progress); })) {
              scores.emplace_back(score.logprob, score.is_greedy);
            }
            return scores;
          },
          nb::arg("requests"), nb::arg("progress").none(), NoGil())
      .def(
          "perplexity",
          [](const ModelPtr& self, const Ids& ids, int64_t ctx, int64_t max_windows, const Progress& progress) {
            const PerplexityResult result =
                Alone(self, [&](LoadedModel& model) { return Perplexity(model, ids, ctx, max_windows, progress); });
            return std::tuple(result.windows, result.predictions, result.mean_nll, result.ppl, result.ppl_error,
                              result.elapsed_ms);
          },
          nb::arg("ids"), nb::arg("ctx"), nb::arg("max_windows"), nb::arg("progress").none(), NoGil());
  m.def(
      "load",
      [](const std::string& model, const std::string& tokenizer, const std::vector<std::string>& sc,
         const ScFileOptions& files, const std::string& precision, const std::string& device,
         const std::string& device_map, const std::string& device_map_json, const std::string& max_memory,
         const std::string& split, int64_t context, int64_t batch, int64_t pass_rows, const std::string& speculate,
         int64_t draft_tokens, int threads, const std::string& cpu_variant, const Progress& progress) {
        return LoadModel({.model = model,
                          .tokenizer = tokenizer,
                          .sc = sc,
                          .files = files,
                          .precision = precision,
                          .device = device,
                          .device_map = device_map,
                          .device_map_json = device_map_json,
                          .max_memory = max_memory,
                          .split = split,
                          .context = context,
                          .batch = batch,
                          .pass_rows = pass_rows,
                          .speculation = {speculate, draft_tokens},
                          .threads = threads,
                          .cpu_variant = cpu_variant},
                         progress);
      },
      nb::arg("model"), nb::arg("tokenizer"), nb::arg("sc"), nb::arg("files"), nb::arg("precision"), nb::arg("device"),
      nb::arg("device_map"), nb::arg("device_map_json"), nb::arg("max_memory"), nb::arg("split"), nb::arg("context"),
      nb::arg("batch"), nb::arg("pass_rows"), nb::arg("speculate"), nb::arg("draft_tokens"), nb::arg("threads"),
      nb::arg("cpu_variant"), nb::arg("progress").none(), NoGil());
}

}  // namespace stoch::python
