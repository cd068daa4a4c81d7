// SPDX-License-Identifier: Apache-2.0
// Writes the random models of all families but Llama (tests/engine/logits_cases.h) to a folder, with a vocabulary as large
// as that of a tokenizer that they are used with, and prints their names:
//     write_family_models FOLDER TOKENS

#include <charconv>
#include <cstdio>
#include <exception>
#include <string_view>

#include "tests/engine/logits_cases.h"

int main(int argc, char** argv) {
  int64_t tokens = 0;
  const std::string_view number = argc == 3 ? argv[2] : "";
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), tokens);
  if (error != std::errc() || end != number.data() + number.size() || tokens < 3 || tokens > 1 << 20) {
    std::fputs("usage: write_family_models FOLDER TOKENS, with 3 to 1048576 tokens\n", stderr);
    return 2;
  }
  try {
    for (const stoch::test::LogitsModel& model : stoch::test::RandomFamilyModels(argv[1], tokens)) {
      std::printf("%s\n", model.name.c_str());
    }
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "write_family_models: %s\n", failure.what());
    return 1;
  }
  return 0;
}
