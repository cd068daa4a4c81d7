// SPDX-License-Identifier: Apache-2.0
// Host time of guided answers: compiling a grammar, and the mask of each token of an answer that a person would expect.
//
// The tokenizer is that of the folder STOCH_BENCH_TOKENIZER, else the demo's. Counters: tokens of the answer, largest_ms of one
// mask. Every answer is first checked to be one that its grammar allows.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/grammar/grammar_compiler.h"
#include "kernels/logit_queries.h"
#include "loader/tokenizer/tokenizer.h"

namespace stoch {
namespace {

struct Case {
  const char* name;
  GrammarSpec grammar;
  std::string answer;
};

std::vector<Case> Cases() {
  using Kind = GrammarSpec::Kind;
  const std::string words = "a short note on what she did that summer in London, and of whom she wrote to";
  const std::string note = R"("note": ")" + words + "\"}";
  std::vector<Case> cases;
  const auto add = [&](const char* name, Kind kind, const std::string& grammar, const std::string& answer) {
    cases.push_back({name, {kind, grammar}, answer});
  };
  const auto schema = [&](const char* name, const std::string& properties, const std::string& answer) {
    add(name, Kind::kJsonSchema,
        R"({"type":"object","properties":{)" + properties + R"(},"additionalProperties":false})", answer);
  };
  add("json", Kind::kJson, "", R"({"name": "Ada", "tags": ["x", 12.5, null], )" + note);
  schema(
      "schema",
      R"("name":{"type":"string"},"age":{"type":"integer"},"city":{"enum":["London","Paris"]},"note":{"type":"string"})",
      R"({"name": "Ada Lovelace", "age": 36, "city": "London", )" + note);
  schema("max_length", R"("note":{"type":"string","maxLength":100})", "{" + note);
  schema("min_length", R"("note":{"type":"string","minLength":64})", "{" + note);
  schema("min_max_length", R"("note":{"type":"string","minLength":64,"maxLength":100})", "{" + note);
  schema("min_items", R"("list":{"type":"array","items":{"type":"integer"},"minItems":20})",
         R"({"list": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]})");
  add("regex", Kind::kRegex, R"([a-z]+(\.[a-z]+)*@[a-z]+\.(com|org))", "ada.lovelace@example.org");
  cases.push_back({"choice", ChoiceGrammar({"London", "Paris", "New York"}), "New York"});
  return cases;
}

const Tokenizer& TheTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    const char* folder = std::getenv("STOCH_BENCH_TOKENIZER");
    return LoadTokenizer(folder != nullptr ? folder : STOCH_SOURCE_DIR "/demo");
  }();
  return *tokenizer;
}

GrammarCompiler& TheCompiler() {
  static GrammarCompiler compiler(TheTokenizer(), TheTokenizer().vocab_size());
  return compiler;
}

// Follows the answer to its end, and tells how long the longest mask took.
double Follow(const Case& one, const std::vector<int32_t>& ids, std::vector<uint32_t>& mask) {
  const auto guide = TheCompiler().Guide(one.grammar, TheTokenizer().eos_ids());
  double largest = 0;
  guide->Fill(mask);
  for (const int32_t id : ids) {
    const auto start = std::chrono::steady_clock::now();
    guide->Accept(id);
    guide->Fill(mask);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    largest = std::max(largest, took.count());
  }
  return largest;
}

void Compile(benchmark::State& state, const Case& one) {
  for (auto step : state) {
    GrammarCompiler compiler(TheTokenizer(), TheTokenizer().vocab_size());
    state.PauseTiming();
    compiler.Prepare();
    state.ResumeTiming();
    compiler.Compile(one.grammar);
  }
}

void Answer(benchmark::State& state, const Case& one) {
  const std::vector<int32_t> ids = TheTokenizer().Encode(one.answer, {.add_bos = false});
  std::vector<uint32_t> mask(static_cast<size_t>(TokenMaskWords(TheTokenizer().vocab_size())));
  double largest = Follow(one, ids, mask);
  for (auto step : state) largest = std::max(largest, Follow(one, ids, mask));
  const auto tokens = static_cast<double>(ids.size());
  state.counters["tokens"] = tokens;
  state.counters["largest_ms"] = largest;
  state.counters["token_s"] = benchmark::Counter(tokens * static_cast<double>(state.iterations()),
                                                 benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

// Like an untrained model: each token is drawn uniformly among those that the mask allows.
void Random(benchmark::State& state, const Case& one) {
  std::vector<uint32_t> mask(static_cast<size_t>(TokenMaskWords(TheTokenizer().vocab_size())));
  double largest = 0, sum = 0;
  int64_t tokens = 0;
  for (auto step : state) {
    const auto guide = TheCompiler().Guide(one.grammar, TheTokenizer().eos_ids());
    std::mt19937_64 random(1);
    for (int i = 0; i < 128; ++i) {
      const auto start = std::chrono::steady_clock::now();
      guide->Fill(mask);
      const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
      largest = std::max(largest, took.count());
      sum += took.count();
      ++tokens;
      std::vector<int32_t> ids;
      for (int32_t id = 0; id < TheTokenizer().vocab_size(); ++id) {
        if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) ids.push_back(id);
      }
      const int32_t id = ids[random() % ids.size()];
      const std::vector<int32_t> eos = TheTokenizer().eos_ids();
      if (std::find(eos.begin(), eos.end(), id) != eos.end()) break;
      guide->Accept(id);
    }
  }
  state.counters["tokens"] = static_cast<double>(tokens) / static_cast<double>(state.iterations());
  state.counters["largest_ms"] = largest;
  state.counters["token_ms"] = sum / static_cast<double>(tokens);
}

}  // namespace
}  // namespace stoch

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (!stoch::WhyNoGrammars().empty()) {
    std::cerr << stoch::WhyNoGrammars() << "\n";
    return 1;
  }
  for (const stoch::Case& one : stoch::Cases()) {
    const std::string name = one.name;
    benchmark::RegisterBenchmark(("compile/" + name).c_str(), stoch::Compile, one)->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(("answer/" + name).c_str(), stoch::Answer, one)->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(("random/" + name).c_str(), stoch::Random, one)->Unit(benchmark::kMillisecond);
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
