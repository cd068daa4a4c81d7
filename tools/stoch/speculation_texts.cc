// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/speculation_texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <utility>

#include "engine/generate.h"
#include "kernels/base/error.h"

namespace stoch::cli {
namespace {

using Ids = std::vector<int32_t>;

constexpr std::array<const char*, 8> kNames = {"Lily", "Tom", "Anna", "Ben", "Mia", "Sam", "Sara", "Max"};
constexpr std::array<double, 4> kShares = {0.95, 0.8, 0.6, 0};  // of a draft model's guesses that are right

const char* NameOf(size_t number) { return kNames[number % kNames.size()]; }

std::string Telling(const char* who) {
  return fmt::format(
      "Once upon a time there was a child named {}. {} liked to play in the big park near the house. One day, {} saw "
      "a red bird in a tall tree. The bird was sad, because it could not find its nest. {} wanted to help the bird. "
      "They looked under the tree and behind the bench, and then they found the nest in the grass. The bird was very "
      "happy and sang a song.\n",
      who, who, who, who);
}

std::string EditsPrompt(size_t sequence) {
  const std::string told = Telling(NameOf(sequence));
  const std::string begun = Telling(NameOf(sequence + 1));
  return told + told + begun.substr(0, begun.find(". ") + 2);
}

std::string StoryPrompt(size_t sequence) {
  const char* const name = NameOf(sequence);
  return fmt::format("Once upon a time there was a child named {}. One day, {}", name, name);
}

// The prompt, and the first `tokens` tokens of what it asks for.
std::pair<Ids, Ids> ToldEdits(const Tokenizer& tokenizer, size_t sequence, int64_t tokens) {
  const auto prompt = static_cast<std::ptrdiff_t>(tokenizer.Encode(EditsPrompt(sequence), {}).size());
  const std::string told = Telling(NameOf(sequence));
  std::string whole = told + told;
  Ids ids;
  for (size_t next = 1; static_cast<int64_t>(ids.size()) < prompt + tokens; ++next) {
    whole += Telling(NameOf(sequence + next));
    ids = tokenizer.Encode(whole, {});
  }
  return {Ids(ids.begin(), ids.begin() + prompt), Ids(ids.begin() + prompt, ids.begin() + prompt + tokens)};
}

Ids ToldStory(Engine& demo, const Ids& prompt, size_t sequence, int64_t tokens) {
  GenerateRequest request;
  request.prompt = prompt;
  request.max_tokens = tokens;
  request.ignore_eos = true;
  request.sampling.temperature = 0.8;
  request.sampling.seed = sequence;
  Ids ids = Generate(demo, nullptr, request).ids;
  if (static_cast<int64_t>(ids.size()) < tokens) {
    throw InvalidInput(fmt::format("-n {}: the demo model tells stories of up to {} tokens", tokens, ids.size()));
  }
  return ids;
}

// Ids that a tokenizer is not needed for.
Ids AnyPrompt(size_t sequence, int64_t vocab_size) {
  Ids ids;
  for (size_t i = 0; i < static_cast<size_t>(kGuessedPromptTokens); ++i) {
    ids.push_back(static_cast<int32_t>((i * 7919 + sequence * 104729 + 11) % static_cast<size_t>(vocab_size)));
  }
  return ids;
}

BenchText GuessedText(Engine& draft, double share, int64_t count, int64_t tokens) {
  BenchText text{fmt::format("right {}", share), {}, std::vector<Ids>(static_cast<size_t>(count))};
  const int64_t vocab_size = draft.config().vocab_size;
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    text.prompts.push_back(AnyPrompt(i, vocab_size));
    sequences.push_back(draft.NewSequence(kGuessedPromptTokens + tokens, text.prompts.back(), {}));
    if (sequences.back() == nullptr) throw InvalidInput("the draft model's cache has no room for its texts");
  }
  std::mt19937 random(1);
  for (int64_t token = 0; token < tokens; ++token) {
    std::vector<StepItem> items;
    for (const auto& sequence : sequences) items.push_back({sequence.get(), sequence->pending()});
    draft.Step(items);
    for (size_t i = 0; i < sequences.size(); ++i) {
      const int32_t guess = draft.PickedToken(static_cast<int64_t>(i));
      const bool is_right = static_cast<double>(random()) < share * static_cast<double>(std::mt19937::max());
      const int32_t next = is_right ? guess : static_cast<int32_t>((guess + 1) % vocab_size);
      text.answers[i].push_back(next);
      sequences[i]->Append({&next, 1});
    }
  }
  return text;
}

}  // namespace

int64_t BenchText::longest_prompt() const {
  size_t longest = 0;
  for (const Ids& prompt : prompts) longest = std::max(longest, prompt.size());
  return static_cast<int64_t>(longest);
}

std::vector<BenchText> PromptTexts(const Tokenizer& tokenizer, int64_t sequences) {
  BenchText edits{"edits", {}, {}};
  BenchText story{"story", {}, {}};
  for (size_t i = 0; i < static_cast<size_t>(sequences); ++i) {
    edits.prompts.push_back(tokenizer.Encode(EditsPrompt(i), {}));
    story.prompts.push_back(tokenizer.Encode(StoryPrompt(i), {}));
  }
  return {edits, story};
}

std::vector<BenchText> ToldTexts(Engine& demo, const Tokenizer& tokenizer, int64_t vocab_size, int64_t sequences,
                                 int64_t tokens) {
  std::vector<BenchText> texts = PromptTexts(tokenizer, sequences);
  BenchText& edits = texts[0];
  BenchText& story = texts[1];
  for (size_t i = 0; i < static_cast<size_t>(sequences); ++i) {
    std::pair<Ids, Ids> told = ToldEdits(tokenizer, i, tokens);
    edits.prompts[i] = std::move(told.first);
    edits.answers.push_back(std::move(told.second));
    story.answers.push_back(ToldStory(demo, story.prompts[i], i, tokens));
  }
  for (BenchText& text : texts) {
    for (std::vector<Ids>* lists : {&text.prompts, &text.answers}) {
      for (Ids& ids : *lists) {
        for (int32_t& id : ids) id = static_cast<int32_t>(id % vocab_size);
      }
    }
  }
  return texts;
}

std::vector<BenchText> GuessedTexts(Engine& draft, int64_t sequences, int64_t tokens) {
  std::vector<BenchText> texts;
  for (const double share : kShares) texts.push_back(GuessedText(draft, share, sequences, tokens));
  return texts;
}

}  // namespace stoch::cli
