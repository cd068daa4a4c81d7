// SPDX-License-Identifier: Apache-2.0
// Writes first corpora for journal_fuzz: write_journal_seeds FOLDER.
#include <filesystem>
#include <iostream>
#include <string>

#include "engine/ipc/convert.h"
#include "engine/serve/format/stored_request.h"
#include "tests/support/temp_dir.h"

namespace {

using namespace stoch;

std::string Piece(const std::string& bytes) {
  return {std::string{static_cast<char>(bytes.size() >> 8), static_cast<char>(bytes.size())} + bytes};
}

serve::JobUpdate UpdateOf(int32_t id, bool logprobs) {
  serve::JobUpdate update;
  update.ids = {id};
  if (logprobs) update.logprobs = {{-0.5, {{id, -0.5}, {7, -1.0}}}};
  return update;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: write_journal_seeds FOLDER\n";
    return 2;
  }
  const std::filesystem::path folder = std::filesystem::path(argv[1]) / "journal";
  std::filesystem::create_directories(folder);
  serve::StoredRequest stored;
  stored.frame.id = "cmpl-0";
  stored.request.stream = true;
  stored.request.prompts = {{{5, 6, 7}, "abc"}};
  stored.request.generate.max_tokens = 8;
  std::string plain = "\x01" + Piece(serve::Store(stored));
  for (int32_t id = 70; id < 75; ++id)
    plain += std::string(1, '\0') + Piece(ipc::ToMessage(1, UpdateOf(id, false)).SerializeAsString());
  test::WriteFile(folder / "plain", plain);
  stored.request.chat = true;
  stored.frame.chat = true;
  stored.request.n = 2;
  stored.request.echo = true;
  stored.request.include_usage = true;
  stored.request.generate.top_logprobs = 2;
  stored.request.generate.prompt_logprobs = true;
  stored.request.generate.stop = {"ab"};
  std::string full = "\x01" + Piece(serve::Store(stored));
  serve::JobUpdate first = UpdateOf(70, true);
  first.prompt_logprobs = {std::nullopt, TokenLogprob{-1, {{5, -1}}}, TokenLogprob{-2, {{6, -1}}}};
  full += std::string(1, '\0') + Piece(ipc::ToMessage(1, first).SerializeAsString());
  serve::JobUpdate last = UpdateOf(71, true);
  last.finish = FinishReason::kStop;
  full += std::string(1, '\1') + Piece(ipc::ToMessage(1, first).SerializeAsString());
  full += std::string(1, '\1') + Piece(ipc::ToMessage(1, last).SerializeAsString());
  test::WriteFile(folder / "full", full);
  // Bytes of the file: its header, its tables, rows.
  for (const int at : {0, 18, 28, 70, 110, 4096, 8192, 8200, 12000, 16384, 20000}) {
    const std::string change = {'\0', static_cast<char>(at >> 8), static_cast<char>(at), '\x5a'};
    test::WriteFile(folder / ("byte" + std::to_string(at)), change);
  }
  return 0;
}
