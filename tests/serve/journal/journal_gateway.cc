// SPDX-License-Identifier: Apache-2.0
// A server of a model folder with a journal on a file system that fails, and one worker: --model DIR --worker PROGRAM
// --journal FILE --kill-at N --kill-part P --full-from N. Prints its port, and ends when standard input does.

#include <unistd.h>

#include <chrono>
#include <iostream>
#include <map>
#include <string>
#include <thread>

#include "engine/gateway/journal.h"
#include "engine/gateway/worker_pool.h"
#include "engine/serve/server.h"
#include "tests/serve/journal/faulty_vfs.h"
#include "tests/support/letters_tokenizer.h"

int main(int argc, char** argv) {
  using namespace stoch;  // NOLINT(google-build-using-namespace): the whole program is this function
  std::map<std::string, std::string> given;
  for (int i = 1; i + 1 < argc; i += 2) given[argv[i]] = argv[i + 1];
  const auto number = [&](const char* name) { return given[name].empty() ? 0 : std::stoi(given[name]); };
  test::RegisterFaultyVfs({number("--kill-at"), number("--kill-part"), number("--full-from")});
  const serve::LogSink log = [](const serve::LogLine& line) { std::cerr << serve::FormatLogLine(line) << std::endl; };
  serve::Journal::Options kept;
  kept.file = given["--journal"];
  kept.model = given["--model"];
  kept.vfs = test::kFaultyVfs;
  serve::Journal journal(kept, log);
  serve::WorkerPool::Options workers;
  workers.commands = {{given["--worker"], "--model", given["--model"], "--poison", "-1"}};
  workers.answers = &journal;
  auto pool = std::make_unique<serve::WorkerPool>(workers, log);
  while (!pool->model()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const test::LettersTokenizer tokenizer;
  serve::ServerOptions options;
  options.http.port = 0;
  options.model_id = "tiny";
  options.api.default_seed = 0;
  options.api.answers = &journal;
  serve::Server server(options, log);
  const serve::ServedModel model = *pool->model();
  server.Attach(model, {&tokenizer, nullptr, ""}, std::move(pool));
  std::cout << server.port() << std::endl;
  for (char byte = 0; read(STDIN_FILENO, &byte, 1) == 1;) {
  }
  server.Drain(std::chrono::seconds(5));
  return 0;
}
