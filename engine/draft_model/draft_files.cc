// SPDX-License-Identifier: Apache-2.0
#include "engine/draft_model/draft_files.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/base/error.h"

namespace stoch {
namespace {

// Rows of one pass over what the draft model has yet to see. Larger passes would keep the target waiting.
constexpr int64_t kMaxPassRows = 512;

std::string Shown(const Tokenizer& tokenizer, int32_t id) {
  return fmt::format("'{}'{}", tokenizer.TokenText(id), tokenizer.IsSpecial(id) ? " (special)" : "");
}

}  // namespace

void CheckSameTokens(const ModelFiles& target, const Tokenizer* target_tokenizer, const ModelFiles& draft,
                     const Tokenizer* draft_tokenizer) {
  const auto refuse = [&](const std::string& difference) {
    throw InvalidInput(fmt::format("draft model {}: {}; a draft model needs the tokenizer of {}", draft.name,
                                   difference, target.name));
  };
  if (target_tokenizer == nullptr && draft_tokenizer == nullptr) {
    if (target.config.vocab_size == draft.config.vocab_size) return;
    refuse(fmt::format("has {} tokens, {} has {}", draft.config.vocab_size, target.name, target.config.vocab_size));
  }
  if (draft_tokenizer == nullptr) refuse("has no tokenizer");
  if (target_tokenizer == nullptr) refuse(fmt::format("has a tokenizer, {} has none", target.name));
  if (draft_tokenizer->vocab_size() != target_tokenizer->vocab_size()) {
    refuse(fmt::format("has {} tokens, {} has {}", draft_tokenizer->vocab_size(), target.name,
                       target_tokenizer->vocab_size()));
  }
  for (int32_t id = 0; id < target_tokenizer->vocab_size(); ++id) {
    if (draft_tokenizer->TokenBytes(id) == target_tokenizer->TokenBytes(id) &&
        draft_tokenizer->IsSpecial(id) == target_tokenizer->IsSpecial(id) &&
        draft_tokenizer->TokenText(id) == target_tokenizer->TokenText(id)) {
      continue;
    }
    refuse(fmt::format("token {} is {}, in {} it is {}", id, Shown(*draft_tokenizer, id), target.name,
                       Shown(*target_tokenizer, id)));
  }
}

EngineOptions DraftEngineOptions(const DraftFiles& draft, const EngineOptions& target) {
  EngineOptions options;
  options.precision = draft.precision;
  options.sc = draft.sc;
  const int64_t most = draft.files.config.max_position_embeddings;
  options.context = target.context == 0 ? most : std::min(target.context, most);
  // A pass of one sequence may pick as many tokens as a pass of so many sequences: a look at those guesses that would have
  // been made.
  options.max_sequences = std::max(target.max_sequences, kMaxDraftTokens + 1);
  options.kv_tokens = target.kv_tokens == 0 ? RoundUpToPages(options.context) * target.max_sequences : target.kv_tokens;
  options.max_pass_rows = kMaxPassRows;
  return options;
}

MemoryBytes PlanDraft(const DraftFiles& draft, const EngineOptions& target, const Backend& backend) {
  EngineOptions options = DraftEngineOptions(draft, target);
  options.placement = SingleDevice(draft.files.config, backend.devices().front());
  const PassShape shape = ShapeOf(draft.files.config, options);
  MemoryBytes bytes = PlanMemory(draft.files, options.precision, options.sc, shape, backend).total;
  bytes.runtime = 0;  // the target's, which is on the device too
  return bytes;
}

}  // namespace stoch
