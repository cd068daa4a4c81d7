// SPDX-License-Identifier: Apache-2.0
// Rows of a journal as a foe writes them. Bytes of the file that are changed anywhere never stop a start, and what it
// tells then is what was written. An answer that fits its checksums is either refused with one sentence or goes on like any
// other, whatever its request and its updates say.
//
// Input: a byte, then: if it is even, (offset, byte) pairs for the file, 3 bytes each; if it is odd, pieces of a request and
// of updates, each with its length in 2 bytes in front, an update with its choice in the next one.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/gateway/journal.h"
#include "engine/ipc/convert.h"
#include "engine/serve/completion_exchange.h"
#include "engine/serve/detached_connection.h"
#include "engine/serve/format/stored_request.h"
#include "tests/fuzz/try.h"
#include "tests/loader/tokenizer_samples.h"
#include "tests/support/temp_dir.h"

namespace {

using namespace stoch;
using serve::AnswerLog;
using test::Check;
using test::Try;

constexpr int kAnswers = 6;
constexpr int kUpdates = 8;

std::string NameOf(int answer) { return "answer" + std::to_string(answer); }

serve::JobUpdate UpdateOf(int answer, int place) {
  serve::JobUpdate update;
  update.ids = {100 * answer + place};
  return update;
}

serve::Journal::Options OptionsOf(const std::string& file) {
  serve::Journal::Options options;
  options.file = file;
  options.model = "a model";
  return options;
}

std::string MakeJournal(const std::string& file) {
  {
    serve::Journal journal(OptionsOf(file), [](const serve::LogLine&) {});
    for (int answer = 0; answer < kAnswers; ++answer) {
      const serve::AnswerKey key = journal.Begin({NameOf(answer), "owner"});
      journal.Commit(key, std::string(900, static_cast<char>('a' + answer)));
      for (int place = 0; place < kUpdates; ++place) {
        const serve::JobUpdate update = UpdateOf(answer, place);
        const AnswerLog::Entry entry = {{key, 0}, &update};
        journal.Write({&entry, 1});
      }
      if (answer % 2 == 1) journal.End(key);
    }
  }
  return test::ReadFile(file);
}

void ChangeFile(std::string_view changes) {
  static const test::TempDir kFolder;
  static const std::string kFile = (kFolder / "journal").string();
  static const std::string kWhole = MakeJournal(kFile);
  std::string bytes = kWhole;
  for (size_t i = 0; i + 3 <= changes.size(); i += 3) {
    const size_t at = static_cast<uint8_t>(changes[i]) << 8 | static_cast<uint8_t>(changes[i + 1]);
    bytes[at % bytes.size()] = changes[i + 2];
  }
  for (const char* more : {"-wal", "-shm", "-journal"}) std::filesystem::remove(kFile + more);
  test::WriteFile(kFile, bytes);
  Try([&] {
    serve::Journal journal(OptionsOf(kFile), [](const serve::LogLine&) {});
    for (int answer = 0; answer < kAnswers; ++answer) {
      const auto kept = journal.TakeOver({NameOf(answer), "owner"});
      if (!kept) continue;
      Check(kept->request == std::string(900, static_cast<char>('a' + answer)));
      Check(kept->updates.size() == kUpdates || (kept->torn && answer % 2 == 0));
      for (size_t i = 0; i < kept->updates.size(); ++i) {
        Check(kept->updates[i].update.ids == UpdateOf(answer, static_cast<int>(i)).ids);
      }
    }
  });
}

// Takes no job, so that what is kept is all that there is.
class Nobody final : public serve::JobRunner {
 public:
  Submission Submit(std::vector<serve::Job> jobs) override {
    for (const serve::Job& job : jobs) Check(!job.request().prompt.empty());
    return {serve::Refusal::kClosed, 0};
  }
  void Cancel(uint64_t) override {}
  void Close() override {}
  void Abort() override {}
  bool Idle() const override { return true; }
  Health health() const override { return Health::kOk; }
  Load load() const override { return {}; }
  std::exception_ptr failure() const override { return nullptr; }
};

std::string_view Piece(std::string_view* rest) {
  if (rest->size() < 2) return std::exchange(*rest, {});
  const size_t length = static_cast<uint8_t>((*rest)[0]) << 8 | static_cast<uint8_t>((*rest)[1]);
  const std::string_view piece = rest->substr(2, length);
  rest->remove_prefix(2 + piece.size());
  return piece;
}

serve::ModelFacts FactsOf(const Tokenizer* tokenizer) {
  serve::ModelFacts facts;
  facts.id = "fuzz";
  facts.vocab_size = 300;
  facts.context = 64;
  facts.max_choices = 8;
  serve::SetTokenizer(tokenizer, &facts);
  return facts;
}

void TakeUp(std::string_view rest) {
  static const auto kTokenizer = test::FromJson(test::ByteLevelJson(), TokenizerSettings());
  static const serve::ModelFacts kFacts = FactsOf(kTokenizer.get());
  static serve::Metrics metrics;
  static Nobody nobody;
  static const serve::LogSink kLog = [](const serve::LogLine&) {};
  AnswerLog::Kept kept;
  kept.request = Piece(&rest);
  Try([&] {
    while (!rest.empty()) {
      const size_t choice = static_cast<uint8_t>(rest.front());
      rest.remove_prefix(1);
      ipc::Update update;
      if (!update.ParseFromString(std::string(Piece(&rest)))) return;
      kept.updates.push_back({choice, ipc::FromMessage(update)});
    }
    serve::StoredRequest stored = serve::Restore(kept.request);
    serve::CheckKept(stored, kept, kFacts);
    const auto connection = std::make_shared<serve::DetachedConnection>();
    const serve::Answering answering = {kFacts, nobody, metrics, kLog, nullptr};
    const auto exchange = std::make_shared<serve::CompletionExchange>(answering, std::move(stored),
                                                                      serve::Client{connection, "", "", ""});
    exchange->Resume(std::move(kept), -1);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    ChangeFile(rest);
  } else {
    TakeUp(rest);
  }
  return 0;
}
