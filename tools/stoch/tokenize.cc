// SPDX-License-Identifier: Apache-2.0
// stoch tokenize: text to ids, and back.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/common_options.h"
#include "app/output.h"
#include "kernels/base/error.h"
#include "loader/json_text.h"
#include "loader/tokenizer/tokenizer.h"
#include "tools/stoch/commands.h"

namespace stoch::cli {
namespace {

struct Options {
  std::string model;
  std::optional<std::string> prompt;
  std::string file;
  bool no_bos = false;
  bool special = false;
  bool decode = false;
  DeviceOptions device;  // a tokenizer runs on the host
  OutputOptions output;
};

// Ids between white space or commas, with or without brackets: what this command itself prints.
std::vector<int32_t> ParseIds(std::string_view text) {
  constexpr std::string_view kSeparators = " \t\r\n,[]";
  std::vector<int32_t> ids;
  size_t at = text.find_first_not_of(kSeparators);
  while (at != std::string_view::npos) {
    const size_t end = std::min(text.find_first_of(kSeparators, at), text.size());
    const std::string_view word = text.substr(at, end - at);
    int32_t id = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || stop != word.data() + word.size()) {
      throw InvalidInput(fmt::format("--decode: expected token ids, got '{}' at byte {}", word.substr(0, 40), at));
    }
    ids.push_back(id);
    at = text.find_first_not_of(kSeparators, end);
  }
  return ids;
}

ExitCode Run(const Options& options) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadTokenizer(options.model);
  const std::string input = ReadText(options.prompt, options.file);
  if (options.decode) {
    const std::vector<int32_t> ids = ParseIds(input);
    const std::string text = tokenizer->Decode(ids);
    if (!options.output.json) {
      PrintLine(text);
      return kDone;
    }
    // Ids may end in the middle of a character; JSON text cannot.
    PrintLine(JsonText(nlohmann::ordered_json{{"ids", ids}, {"text", text}}));
    return kDone;
  }
  const std::vector<int32_t> ids =
      tokenizer->Encode(input, {.add_bos = !options.no_bos, .parse_special = options.special});
  if (options.output.json) {
    PrintLine(JsonText(nlohmann::ordered_json{{"ids", ids}, {"tokenizer", tokenizer->kind()}}));
  } else {
    PrintLine(fmt::format("{}", fmt::join(ids, " ")));
  }
  return kDone;
}

}  // namespace

CommandBody AddTokenize(CLI::App& command) {
  command.description("Token ids of a text, or the text of ids");
  command.footer(
      "Examples:\n"
      "  stoch tokenize demo --prompt 'Once upon a time'\n"
      "  stoch tokenize --model DIR --file book.txt --json\n"
      "  echo 1 403 407 | stoch tokenize --model DIR --decode");
  auto options = std::make_shared<Options>();
  AddModelOption(
      command, &options->model,
      "Model folder, one that holds only a tokenizer, GGUF file, org/name in the local Hugging Face cache, or demo")
      ->required();
  command.add_option("--prompt", options->prompt, "The text (with --decode: the ids)");
  command.add_option("--file", options->file, "A file with it; - or nothing: standard input");
  auto* no_bos = command.add_flag("--no-bos", options->no_bos, "No begin-of-sequence token in front");
  auto* special = command.add_flag("--special", options->special, "Recognise special tokens written in the text");
  command.add_flag("--decode", options->decode, "Ids to text")->excludes(no_bos)->excludes(special);
  AddDeviceOptions(command, &options->device);
  AddOutputOptions(command, &options->output);
  return [options] { return Run(*options); };
}

}  // namespace stoch::cli
