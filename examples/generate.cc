// SPDX-License-Identifier: Apache-2.0
// The smallest program on stoch::engine: opens a model, steps it, reads tokens. Usage: generate MODEL_DIR PROMPT
#include <exception>
#include <iostream>
#include <memory>

#include "engine/engine.h"
#include "kernels/registry.h"
#include "loader/tokenizer/tokenizer.h"

int main(int argc, char** argv) try {
  if (argc != 3) return std::cerr << "usage: generate MODEL_DIR PROMPT\n", 2;
  std::shared_ptr<stoch::Backend> backend = stoch::OpenBackend("auto", {}, nullptr);
  auto engine = stoch::Engine::Open(backend, stoch::OpenModelFiles(argv[1]), {});
  const auto tokenizer = stoch::LoadTokenizer(argv[1]);

  constexpr int kNewTokens = 32;
  std::vector<int32_t> ids = tokenizer->Encode(argv[2], {});
  auto sequence = engine->NewSequence(static_cast<int64_t>(ids.size()) + kNewTokens);
  sequence->Append(ids);
  for (int i = 0; i < kNewTokens; ++i) {
    while (sequence->pending() > 0) {  // the prompt, as much in a pass as fits; then one token
      const stoch::StepItem item{sequence.get(), engine->NextTokens(*sequence, engine->shape().max_rows)};
      engine->Step({&item, 1});
    }
    int32_t next = 0;
    engine->Argmax(0, {&next, 1});
    ids.push_back(next);
    if (i + 1 < kNewTokens) sequence->Append({&next, 1});
  }
  std::cout << tokenizer->Decode(ids) << '\n';
} catch (const std::exception& error) {
  return std::cerr << "error: " << error.what() << '\n', 1;
}
