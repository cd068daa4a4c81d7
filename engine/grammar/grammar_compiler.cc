// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/grammar_compiler.h"

#include <time.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <list>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>
#include <variant>
#include <vector>

#include "engine/grammar/dead_ends.h"
#include "engine/grammar/json_text.h"
#include "engine/grammar/long_strings.h"
#include "engine/grammar/notation.h"
#include "engine/grammar/reason.h"
#include "engine/grammar/schema_check.h"
#include "engine/request/grammar_failure.h"
#include "kernels/base/error.h"
#include "kernels/logit_queries.h"

namespace {

// What xgrammar warns of is something that it leaves out: a grammar with that is refused.
thread_local std::string ignored;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

}  // namespace

// What xgrammar calls instead of printing, built with XGRAMMAR_LOG_CUSTOMIZE.
namespace xgrammar {
[[noreturn]] void LogFatalImpl(const std::string& file, int lineno, const std::string& message);
void LogMessageImpl(const std::string& file, int lineno, int level, const std::string& message);

void LogFatalImpl(const std::string& /*file*/, int /*lineno*/, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string& /*file*/, int /*lineno*/, int /*level*/, const std::string& message) {
  if (ignored.empty()) ignored = message;
}
}  // namespace xgrammar

namespace stoch {
namespace {

constexpr size_t kMostCompiled = 64;
constexpr size_t kMostCompiledBytes = size_t{256} << 20;
// Between tokens of JSON: a small model that may write more of it writes nothing else.
constexpr int kMaxWhitespace = 1;

// The text of a grammar that an answer can complete. Errors: InvalidInput for one that leads where no text is.
std::string CompletableText(const xgrammar::Grammar& grammar) {
  std::string text = grammar.ToString();
  if (const std::string why = WhyNoText(text); !why.empty()) throw InvalidInput(why);
  return text;
}

xgrammar::CompiledGrammar CompileCompletable(xgrammar::GrammarCompiler& compiler, const xgrammar::Grammar& grammar) {
  CompletableText(grammar);
  return compiler.CompileGrammar(grammar);
}

// Errors: InvalidInput.
void CheckNotation(const std::string& text, Notation notation) {
  if (const std::string why = WhyMisread(text, notation); !why.empty()) throw InvalidInput(why);
}

xgrammar::CompiledGrammar CompileSchema(xgrammar::GrammarCompiler& compiler, const std::string& schema) {
  CheckSchema(schema);
  const auto grammar = xgrammar::Grammar::FromJSONSchema(schema, /*any_whitespace=*/true, std::nullopt, std::nullopt,
                                                         /*strict_mode=*/true, kMaxWhitespace);
  const std::string counted = WithCountedStrings(CompletableText(grammar));
  return counted.empty() ? compiler.CompileGrammar(grammar) : compiler.CompileGrammar(counted, "root");
}

xgrammar::CompiledGrammar CompileTag(xgrammar::GrammarCompiler& compiler, const std::string& tag) {
  CheckSchemasOfTag(tag);
  const auto grammar = xgrammar::Grammar::FromStructuralTag(tag);
  if (!std::holds_alternative<xgrammar::Grammar>(grammar)) return compiler.CompileStructuralTag(tag);  // says why not
  const std::string counted = WithCountedStrings(CompletableText(std::get<xgrammar::Grammar>(grammar)));
  return counted.empty() ? compiler.CompileStructuralTag(tag) : compiler.CompileGrammar(counted, "root");
}

xgrammar::CompiledGrammar CompileWith(xgrammar::GrammarCompiler& compiler, const GrammarSpec& grammar) {
  switch (grammar.kind) {
    case GrammarSpec::Kind::kJson: return CompileSchema(compiler, R"({"type":"object","additionalProperties":true})");
    case GrammarSpec::Kind::kJsonSchema: return CompileSchema(compiler, grammar.text);
    case GrammarSpec::Kind::kRegex:
      CheckNotation(grammar.text, Notation::kRegex);
      return CompileCompletable(compiler, xgrammar::Grammar::FromRegex(grammar.text));
    case GrammarSpec::Kind::kEbnf:
      CheckNotation(grammar.text, Notation::kEbnf);
      return CompileCompletable(compiler, xgrammar::Grammar::FromEBNF(grammar.text));
    case GrammarSpec::Kind::kStructuralTag: return CompileTag(compiler, grammar.text);
    case GrammarSpec::Kind::kNone: break;
  }
  throw InvalidInput("there is no grammar");
}

double ThreadSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

class Guide final : public TokenGuide {
 public:
  // json: of a text that is JSON; null: of another one.
  Guide(const xgrammar::CompiledGrammar& compiled, std::vector<int> stop_ids, const Tokenizer& tokenizer,
        int64_t vocab_size, std::shared_ptr<const JsonTextMasks> json)
      : tokenizer_(tokenizer),
        vocab_size_(vocab_size),
        json_(std::move(json)),
        matcher_(compiled, std::move(stop_ids)) {}

  void Fill(std::span<uint32_t> mask) override {
    Timed([&] {
      int64_t words = TokenMaskWords(vocab_size_);
      DLTensor tensor{};
      tensor.data = mask.data();
      tensor.device = {kDLCPU, 0};
      tensor.ndim = 1;
      tensor.dtype = xgrammar::GetBitmaskDLType();
      tensor.shape = &words;
      matcher_.FillNextTokenBitmask(&tensor);
    });
    if (json_ != nullptr) json_->Restrict(text_.at(), mask);
    const uint32_t last = mask.back() << (31 - (vocab_size_ - 1) % 32);
    if (last != 0 || std::any_of(mask.begin(), mask.end() - 1, [](uint32_t word) { return word != 0; })) return;
    throw GrammarFailure("the grammar goes on with what no token of the vocabulary is");
  }

  void Accept(int32_t id) override {
    bool good = false;
    ++tokens_;
    Timed([&] { good = matcher_.AcceptToken(id); });
    if (good && json_ != nullptr) good = text_.Push(tokenizer_.TokenBytes(id));
    if (!good) throw InvalidInput("the grammar does not allow token " + std::to_string(id) + " of the answer");
  }

 private:
  // An ambiguous grammar takes longer for each token than for the one before.
  template <class Body>
  void Timed(const Body& body) {
    constexpr double kMostAtOnce = 0.5, kFirst = 1, kEachToken = 0.02;
    const double start = ThreadSeconds();
    try {
      body();
    } catch (const InvalidInput&) {
      throw;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      throw InvalidInput("the grammar fails: " + ReasonOf(GrammarSpec::Kind::kNone, error.what()));
    }
    const double took = ThreadSeconds() - start;
    seconds_ += took;
    if (took <= kMostAtOnce && seconds_ <= kFirst + kEachToken * static_cast<double>(tokens_)) return;
    throw GrammarFailure("the grammar takes too long for each token");
  }

  const Tokenizer& tokenizer_;
  const int64_t vocab_size_;
  const std::shared_ptr<const JsonTextMasks> json_;
  JsonText text_;
  xgrammar::GrammarMatcher matcher_;
  double seconds_ = 0;
  int64_t tokens_ = 0;
};

}  // namespace

struct GrammarCompiler::State {
  struct Compiled {
    std::string digest;
    xgrammar::CompiledGrammar grammar;
    size_t bytes;
  };

  xgrammar::GrammarCompiler& Compiler();
  xgrammar::CompiledGrammar Get(const GrammarSpec& grammar);
  std::shared_ptr<const JsonTextMasks> Json(const GrammarSpec& grammar);

  const Tokenizer& tokenizer;
  const int64_t vocab_size;
  std::mutex mutex;  // of what follows
  std::optional<xgrammar::GrammarCompiler> compiler;
  std::list<Compiled> compiled;  // used last in front
  std::shared_ptr<const JsonTextMasks> json;
};

xgrammar::GrammarCompiler& GrammarCompiler::State::Compiler() {
  if (compiler) return *compiler;
  std::vector<std::string> bytes(static_cast<size_t>(std::min<int64_t>(vocab_size, tokenizer.vocab_size())));
  for (size_t id = 0; id < bytes.size(); ++id) bytes[id] = tokenizer.TokenBytes(static_cast<int32_t>(id));
  // Where an answer ends says each guide; xgrammar would guess from names of tokens.
  const xgrammar::TokenizerInfo info(bytes, xgrammar::VocabType::RAW, static_cast<int>(vocab_size), std::vector<int>());
  return compiler.emplace(info, /*max_threads=*/1, /*cache_enabled=*/false);
}

xgrammar::CompiledGrammar GrammarCompiler::State::Get(const GrammarSpec& grammar) {
  Validate(grammar);
  const std::string digest = DigestOf(grammar);
  const std::lock_guard lock(mutex);
  const auto found =
      std::find_if(compiled.begin(), compiled.end(), [&](const auto& one) { return one.digest == digest; });
  if (found != compiled.end()) {
    compiled.splice(compiled.begin(), compiled, found);
    return found->grammar;
  }
  ignored.clear();
  try {
    xgrammar::CompiledGrammar result = CompileWith(Compiler(), grammar);
    if (!ignored.empty()) throw InvalidInput(ReasonOf(grammar.kind, std::exchange(ignored, {})));
    compiled.push_front({digest, result, result.MemorySizeBytes()});
  } catch (const InvalidInput&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw InvalidInput(ReasonOf(grammar.kind, error.what()));
  }
  size_t bytes = 0;
  for (const Compiled& one : compiled) bytes += one.bytes;
  while (compiled.size() > 1 && (compiled.size() > kMostCompiled || bytes > kMostCompiledBytes)) {
    bytes -= compiled.back().bytes;
    compiled.pop_back();
  }
  return compiled.front().grammar;
}

// The texts around the schemas of calls are JSON, too, as far as strings go.
std::shared_ptr<const JsonTextMasks> GrammarCompiler::State::Json(const GrammarSpec& grammar) {
  if (grammar.kind == GrammarSpec::Kind::kRegex || grammar.kind == GrammarSpec::Kind::kEbnf) return nullptr;
  const std::lock_guard lock(mutex);
  if (json == nullptr) json = std::make_shared<JsonTextMasks>(tokenizer, vocab_size);
  return json;
}

std::string WhyNoGrammars() { return ""; }

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, int64_t vocab_size)
    : state_(new State{tokenizer, vocab_size, {}, {}, {}, {}}) {}
GrammarCompiler::~GrammarCompiler() = default;

void GrammarCompiler::Prepare() {
  const std::lock_guard lock(state_->mutex);
  (void)state_->Compiler();
}

void GrammarCompiler::Compile(const GrammarSpec& grammar) { (void)state_->Get(grammar); }

std::unique_ptr<TokenGuide> GrammarCompiler::Guide(const GrammarSpec& grammar, std::span<const int32_t> stop_ids) {
  // A stop id that is text may stand anywhere in the answer, and ends it there.
  const Tokenizer& tokenizer = state_->tokenizer;
  std::vector<int> stops;
  for (const int32_t id : stop_ids) {
    if (id < 0 || id >= state_->vocab_size) continue;
    if (id >= tokenizer.vocab_size() || tokenizer.TokenBytes(id).empty()) stops.push_back(id);
  }
  if (stops.empty()) {
    throw InvalidInput(
        "a grammar needs an end-of-sequence token, which says that the answer is complete (and no ignore_eos)");
  }
  return std::make_unique<stoch::Guide>(state_->Get(grammar), std::move(stops), tokenizer, state_->vocab_size,
                                        state_->Json(grammar));
}

}  // namespace stoch
