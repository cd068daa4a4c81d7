// SPDX-License-Identifier: Apache-2.0
// stoch generate: text from a prompt, streamed, or a chat. stoch chat: the same chat by a name of its own.

#include "engine/generate.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "app/common_options.h"
#include "app/demo_model.h"
#include "app/draft.h"
#include "app/host/standard_error.h"
#include "app/interrupt.h"
#include "app/options/chat_options.h"
#include "app/options/cost_options.h"
#include "app/options/grammar_options.h"
#include "app/options/seed.h"
#include "app/options/speculation_options.h"
#include "app/output.h"
#include "app/progress.h"
#include "app/report/cost.h"
#include "app/report/generate.h"
#include "app/report/operators.h"
#include "app/run_on_ranks.h"
#include "app/version.h"
#include "kernels/base/error.h"
#include "loader/json_text.h"
#include "tools/stoch/chat.h"
#include "tools/stoch/commands.h"

namespace stoch::cli {
namespace {

struct Options {
  ModelOptions model;
  DeviceOptions device;
  ArithmeticOptions arithmetic;
  OutputOptions output;
  std::optional<std::string> prompt;
  std::string file;
  bool chat = false;
  std::string system;
  bool no_thinking = false;
  ChatSettings chat_settings;
  bool echo = false;
  int64_t max_tokens = -1;
  SamplingOptions sampling;
  std::vector<std::string> stop;
  bool ignore_eos = false;
  uint32_t sequence = 0;
  bool verbose = false;
  int top_logprobs = 0;
  CostFlags cost;
  SpeculationOptions speculation{.speculate = "auto"};
  GrammarOptions grammar;
};

GenerateRequest RequestFrom(const Options& options, const GrammarSpec& grammar) {
  GenerateRequest request;
  request.grammar = grammar;
  request.max_tokens = options.max_tokens;
  request.sampling = options.sampling;
  request.stop = options.stop;
  request.ignore_eos = options.ignore_eos;
  request.sequence_number = options.sequence;
  return request;
}

// `echo prompt | stoch generate` means the prompt, not the prompt and a line break.
std::string PromptText(const Options& options) {
  std::string text = ReadText(options.prompt, options.file);
  if (!options.prompt && !text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// What --array, --energy and --trace ask for.
struct Extra {
  CostOptions cost;
  std::optional<EnergyTable> energy;
  std::unique_ptr<TraceWriter> trace;  // may be null
};

ExitCode RunOnce(const Options& options, const Extra& extra, Engine& engine, const Tokenizer& tokenizer,
                 const GrammarSpec& grammar, const std::string& prompt) {
  GenerateRequest request = RequestFrom(options, grammar);
  request.prompt = tokenizer.Encode(prompt, {});
  if (options.output.json) {
    request.top_logprobs = options.top_logprobs;
    request.hash_logits = true;
  }
  GenerateCallbacks callbacks;
  callbacks.cancel = &InterruptFlag();
  ProgressBar bar("prompt", options.output.quiet);
  callbacks.on_prompt = [&bar](int64_t done, int64_t total) { bar.Update(done, total); };
  callbacks.on_text = [&](std::string_view text) {
    bar.Clear();
    if (!options.output.json) Print(text);
  };
  if (options.echo) Print(prompt);
  if (options.verbose && engine.options().precision == Precision::kSc) {
    const DecoderPlacement& placement = *engine.options().placement;
    const DecoderShard shard = ShardsOf(engine.config(), placement, engine.backend().devices().front()).front();
    PrintError("slowest kernel: " + SlowestKernelText(engine.options().sc, engine.config(), engine.backend(), shard) +
               '\n');
  }
  const std::unique_ptr<ScCostCollector> collector = CollectCost(engine, extra.cost, extra.trace.get());
  const GenerateResult result = Generate(engine, &tokenizer, request, callbacks);
  bar.Clear();
  std::optional<ScCost> counted;
  if (collector != nullptr) {
    counted = collector->Cost();
    FinishTrace(extra.trace.get(), *collector, engine, OpenModelFiles(options.model.model), prompt, VersionLine());
  }
  std::optional<EnergyReport> priced;
  if (counted && extra.energy) priced = PriceCost(*counted, *extra.energy);
  if (options.output.json) {
    nlohmann::ordered_json report = GenerateJson(engine, request, result, counted);
    if (priced) report["energy"] = EnergyJson(*priced, *extra.energy);
    PrintLine(JsonText(report));
  } else {
    PrintLine("");
  }
  if (options.output.quiet) return kDone;
  PrintSummary(engine, request, result, counted);
  if (priced) PrintError(EnergyText(*priced));
  return kDone;
}

// Errors: InvalidInput where the template refuses it.
ChatRequest BeginChat(const Options& options, const Chat& chat) {
  ChatRequest conversation;
  if (options.no_thinking && !chat.Mentions("enable_thinking")) {
    throw InvalidInput("--no-thinking: the chat template does not read enable_thinking");
  }
  if (options.no_thinking) conversation.kwargs["enable_thinking"] = false;
  if (options.system.empty()) return conversation;
  conversation.messages.push_back(Message("system", options.system, chat));
  ChatRequest first = conversation;
  first.messages.push_back(Message("user", "a", chat));
  (void)chat.Encode(std::move(first));
  return conversation;
}

ExitCode Run(const Options& options) {
  EngineOptions engine_options;
  Apply(options.arithmetic, &engine_options);
  Extra extra;
  extra.cost = ParseCostOptions(options.cost, engine_options.precision == Precision::kSc);
  extra.energy = ReadEnergy(options.cost, engine_options.precision == Precision::kSc);
  engine_options.context = options.model.context;
  Apply(options.speculation, &engine_options);
  ModelFiles files = OpenModelFiles(options.model.model);
  const std::unique_ptr<Tokenizer> tokenizer = OpenTokenizer(options.model, files);
  if (tokenizer == nullptr) {
    throw InvalidInput(files.name + ": has no tokenizer; give --tokenizer DIR");
  }
  Validate(options.sampling, files.config.vocab_size);
  const auto compiler = std::make_shared<GrammarCompiler>(*tokenizer, files.config.vocab_size);
  const GrammarSpec grammar = ReadGrammar(options.grammar, *compiler);
  engine_options.make_guide = MakerOf(compiler);
  const std::shared_ptr<DraftFiles> draft =
      OpenDraft(options.speculation, files, engine_options, options.arithmetic.sc);
  if (draft != nullptr) RequireSameTokens(files, tokenizer.get(), *draft);
  // Everything that can be wrong is found before the weights are loaded.
  if (options.chat) {
    const Chat chat(*tokenizer, options.chat_settings);
    ChatRequest conversation = BeginChat(options, chat);
    const std::unique_ptr<Engine> engine = OpenWithDraft(Open(options.device), std::move(files), engine_options,
                                                         options.device, options.output, draft.get());
    return RunChat(*engine, *tokenizer, chat, std::move(conversation), RequestFrom(options, grammar), options.output);
  }
  const std::string prompt = PromptText(options);
  extra.trace = OpenTrace(options.cost, 1);
  const std::unique_ptr<Engine> engine = OpenWithDraft(Open(options.device), std::move(files), engine_options,
                                                       options.device, options.output, draft.get());
  return RunOnce(options, extra, *engine, *tokenizer, grammar, prompt);
}

// chat: the flag that they need; null: every run of the command is a chat.
void AddConversation(CLI::App& command, Options* options, CLI::Option* chat) {
  CLI::Option* const system = command.add_option("--system", options->system, "System message of the chat");
  CLI::Option* const no_thinking = command.add_flag("--no-thinking", options->no_thinking,
                                                    "Answers without reasoning, where the chat template can say so");
  for (CLI::Option* option : {system, no_thinking}) {
    if (chat != nullptr) option->needs(chat);
  }
  AddChatOptions(command, &options->chat_settings, chat);
}

void AddLength(CLI::App& command, Options* options) {
  command.add_option("--max-tokens", options->max_tokens, "At most so many; default: up to the context")
      ->check(CLI::Range(int64_t{0}, kMostTokens));
}

void AddSampling(CLI::App& command, Options* options) {
  SamplingOptions& sampling = options->sampling;
  command.add_option("--temperature", sampling.temperature, "0 = greedy")->capture_default_str();
  command.add_option("--top-p", sampling.top_p, "Smallest set of likely tokens with this probability")
      ->capture_default_str();
  command.add_option("--top-k", sampling.top_k, "The k most likely tokens; 0 = all")->capture_default_str();
  command.add_option("--min-p", sampling.min_p, "Tokens at least this times as likely as the likeliest")
      ->capture_default_str();
  command
      .add_option("--repetition-penalty,--repeat-penalty", sampling.repeat_penalty,
                  "Above 1: tokens seen before become less likely; either name is the same")
      ->capture_default_str();
  command
      .add_option("--seed", sampling.seed,
                  "Of sampling: the same seed gives the same text; any number of 64 bits, signed or not")
      ->transform(SignedSeed())
      ->capture_default_str();
}

}  // namespace

CommandBody AddGenerate(CLI::App& command) {
  command.description("Text from a prompt");
  command.footer(
      "Examples:\n"
      "  stoch generate --model demo --prompt 'Once upon a time' --max-tokens 100\n"
      "  stoch generate --model DIR --file story.txt --sc preset=published --temperature 0.8 --seed 7\n"
      "  echo 'Hello' | stoch generate --model DIR --precision fp32 --json\n"
      "  stoch generate --model DIR --prompt 'A cat as JSON: ' --json-schema cat.json\n"
      "  stoch generate --model DIR --chat");
  auto options = std::make_shared<Options>();
  AddModelOptions(command, &options->model)->required();
  auto* prompt = command.add_option("--prompt", options->prompt, "The prompt");
  auto* file = command.add_option("--file", options->file, "A file with it; - or nothing: standard input");
  auto* chat = command.add_flag("--chat", options->chat, "Talk with the model, as its chat template says");
  auto* echo = command.add_flag("--echo", options->echo, "Print the prompt in front of the text");
  AddConversation(command, options.get(), chat);
  AddLength(command, options.get());
  AddSampling(command, options.get());
  command.add_option("--stop", options->stop, "End before this text; may be repeated")->allow_extra_args(false);
  command.add_flag("--ignore-eos", options->ignore_eos, "Go on past end-of-sequence tokens");
  command
      .add_option("--sequence", options->sequence,
                  "Which faults the text meets, as a window of perplexity of that index does (`stoch help sc`)")
      ->check(CLI::Range(int64_t{0}, kMaxSequenceNumber))
      ->capture_default_str();
  command.add_flag("--verbose", options->verbose, "Tell which operator has the slowest kernel, and why");
  AddGrammarOptions(command, &options->grammar);
  AddArithmeticOptions(command, &options->arithmetic);
  AddCostOptions(command, &options->cost);
  AddSpeculationOptions(command, &options->speculation);
  AddDeviceOptions(command, &options->device);
  AddRankOptions(command, &options->device.ranks);
  AddOutputOptions(command, &options->output);
  auto* top = command.add_option("--top-logprobs", options->top_logprobs, "Alternatives listed per token with --json")
                  ->check(CLI::Range(0, 1000));
  top->needs(command.get_option("--json"));
  prompt->excludes(file);
  for (CLI::Option* other : {prompt, file, echo, command.get_option("--json"), command.get_option("--array"),
                             command.get_option("--energy"), command.get_option("--trace")}) {
    chat->excludes(other);
  }
  echo->excludes(command.get_option("--json"));
  return [options] { return RunOnRanks(&options->device, options->model.model, [options] { return Run(*options); }); };
}

CommandBody AddChat(CLI::App& command) {
  command.description("A conversation with a model, a line each; the demo that comes with stoch where none is named");
  command.footer(
      "Examples:\n"
      "  stoch chat\n"
      "  echo 'Tell me a story about a dog who lost his ball.' | stoch chat --seed 7\n"
      "  stoch chat DIR --system 'Be brief.' --temperature 0");
  auto options = std::make_shared<Options>();
  options->chat = true;
  options->sampling.temperature = 0.6;
  options->sampling.top_p = 0.9;
  options->sampling.repeat_penalty = 1.1;
  AddModelOptions(command, &options->model);
  AddConversation(command, options.get(), nullptr);
  AddLength(command, options.get());
  AddSampling(command, options.get());
  AddArithmeticOptions(command, &options->arithmetic);
  AddSpeculationOptions(command, &options->speculation);
  AddDeviceOptions(command, &options->device);
  AddRankOptions(command, &options->device.ranks);
  AddQuietOption(command, &options->output.quiet);
  return [options] {
    if (options->model.model.empty()) options->model.model = ModelPath("demo");
    return RunOnRanks(&options->device, options->model.model, [options] { return Run(*options); });
  };
}

}  // namespace stoch::cli
