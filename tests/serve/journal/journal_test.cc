// SPDX-License-Identifier: Apache-2.0
// The journal by itself: killed at every write, torn, on a full disk, and in the wrong hands.
#include "engine/gateway/journal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "kernels/base/error.h"
#include "tests/serve/journal/faulty_vfs.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

using serve::AnswerKey;
using serve::AnswerLog;
using serve::JobUpdate;
using serve::Journal;

constexpr int kPasses = 12;

// What pass number `pass` brings for a choice: everything that an update can have.
JobUpdate UpdateOf(int pass, size_t choice) {
  JobUpdate update;
  update.ids = {static_cast<int32_t>(100 * pass + static_cast<int>(choice))};
  update.logprobs = {{-0.1 * pass, {{7, -0.1 * pass}, {8, -3.0}}}};
  if (pass == 0) update.prompt_logprobs = {std::nullopt, TokenLogprob{-1.5, {}}};
  update.logits_sha256 = "hash" + std::to_string(pass);
  if (pass + 1 == kPasses) update.finish = FinishReason::kLength;
  return update;
}

void ExpectUpdate(const AnswerLog::Update& kept, int pass, size_t choice) {
  const JobUpdate expected = UpdateOf(pass, choice);
  EXPECT_EQ(kept.choice, choice);
  EXPECT_EQ(kept.update.ids, expected.ids);
  ASSERT_EQ(kept.update.logprobs.size(), 1u);
  EXPECT_EQ(kept.update.logprobs[0].logprob, expected.logprobs[0].logprob);
  EXPECT_EQ(kept.update.logprobs[0].top, expected.logprobs[0].top);
  EXPECT_EQ(kept.update.prompt_logprobs.size(), expected.prompt_logprobs.size());
  EXPECT_EQ(kept.update.logits_sha256, expected.logits_sha256);
  EXPECT_EQ(kept.update.finish, expected.finish);
}

class JournalTest : public testing::Test {
 protected:
  Journal::Options Options(const std::string& vfs = "") const {
    Journal::Options options;
    options.file = (folder_ / "journal").string();
    options.model = "a model";
    options.vfs = vfs;
    return options;
  }
  serve::LogSink Sink() {
    return [this](const serve::LogLine& line) { log_ += serve::FormatLogLine(line) + "\n"; };
  }
  void Remove() const {
    for (const char* more : {"", "-wal", "-shm"}) std::filesystem::remove(Options().file + more);
  }

  // Answers "a" (of two choices) and "b", side by side, pass by pass. step() is called after every call that returned.
  template <class Step>
  static void Play(Journal& journal, const Step& step) {
    const AnswerKey a = journal.Begin({"a", ""});
    journal.Commit(a, std::string("request\0a", 9));
    step();
    const AnswerKey b = journal.Begin({"b", ""});
    journal.Commit(b, "request b");
    step();
    for (int pass = 0; pass < kPasses; ++pass) {
      const JobUpdate updates[] = {UpdateOf(pass, 0), UpdateOf(pass, 1), UpdateOf(pass, 0)};
      const AnswerLog::Entry entries[] = {{{a, 0}, &updates[0]}, {{a, 1}, &updates[1]}, {{b, 0}, &updates[2]}};
      journal.Write(entries);
      step();
    }
    journal.End(a);
    step();
    journal.Leave(b);
    step();
  }

  static AnswerKey Committed(Journal& journal, const std::string& id, const std::string& request = "") {
    const AnswerKey key = journal.Begin({id, ""});
    journal.Commit(key, request);
    return key;
  }

  // How many passes there are of both answers; as many of each, without a gap, in order.
  static int Passes(Journal& journal) {
    const std::optional<AnswerLog::Kept> a = journal.TakeOver({"a", ""});
    const std::optional<AnswerLog::Kept> b = journal.TakeOver({"b", ""});
    if (!a || !b) return 0;
    EXPECT_EQ(a->request, std::string("request\0a", 9));
    EXPECT_EQ(a->updates.size(), 2 * b->updates.size());
    const size_t passes = b->updates.size();
    for (size_t pass = 0; pass < passes; ++pass) {
      ExpectUpdate(a->updates.at(2 * pass), static_cast<int>(pass), 0);
      ExpectUpdate(a->updates.at(2 * pass + 1), static_cast<int>(pass), 1);
      ExpectUpdate(b->updates.at(pass), static_cast<int>(pass), 0);
    }
    return static_cast<int>(passes);
  }

  // Plays in a process of its own, which the faults may kill. Returns: the calls that returned there.
  int PlayInChild(const Faults& faults, bool* was_killed, bool full_sync = false) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      RegisterFaultyVfs(faults);
      try {
        Journal::Options options = Options(kFaultyVfs);
        options.full_sync = full_sync;
        Journal journal(options, [](const serve::LogLine&) {});
        Play(journal, [&] { (void)!write(ends[1], "x", 1); });
        raise(SIGKILL);  // no goodbye: the log stays as it is
      } catch (...) {
        _exit(1);
      }
    }
    close(ends[1]);
    int returned = 0;
    for (char byte = 0; read(ends[0], &byte, 1) == 1;) ++returned;
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    *was_killed = returned < kPasses + 4;
    return returned;
  }

  TempDir folder_;
  std::string log_;
};

TEST_F(JournalTest, KilledAtEveryWriteItLosesAndDoublesNothing) {
  for (const bool full_sync : {false, true}) {
    int points = 0;
    bool was_killed = true;
    for (int64_t write = 1; was_killed; ++write) {
      for (int part = full_sync ? static_cast<int>(write % 3) : 0; part < 3; part += full_sync ? 3 : 1) {
        Remove();
        const int returned = PlayInChild({write, part, 0}, &was_killed, full_sync);
        Journal journal(Options(), Sink());
        const int passes = Passes(journal);
        // The one in flight may be there, and nothing else that was not told.
        EXPECT_GE(passes, std::min(kPasses, returned - 2)) << write;
        EXPECT_LE(passes, std::max(0, returned - 1)) << write;
        points += was_killed ? 1 : 0;
      }
    }
    EXPECT_GT(points, 30);
    std::cout << points << " points" << std::endl;
  }
}

TEST_F(JournalTest, ATornTailIsNoPartOfIt) {
  bool was_killed = false;
  PlayInChild({}, &was_killed);
  ASSERT_FALSE(was_killed);
  const std::string wal = ReadFile(Options().file + "-wal");
  const std::string main = ReadFile(Options().file);
  ASSERT_GT(wal.size(), 40000u);
  const auto passes_of = [&](const std::string& torn) {
    Remove();
    WriteFile(Options().file, main);
    WriteFile(Options().file + "-wal", torn);
    Journal journal(Options(), Sink());
    return Passes(journal);
  };
  int last = 0;
  for (size_t bytes = 0; bytes < wal.size(); bytes += 1009) {
    const int passes = passes_of(wal.substr(0, bytes));
    EXPECT_GE(passes, last) << bytes;
    last = passes;
    std::string flipped = wal;
    flipped[bytes] = static_cast<char>(flipped[bytes] ^ 4);
    EXPECT_LE(passes_of(flipped), kPasses) << bytes;
  }
  last = passes_of(wal);
  EXPECT_EQ(last, kPasses);
}

TEST_F(JournalTest, AFullDiskEndsTheJournalAndNothingElse) {
  int lost = 0;
  for (int64_t write = 1;; ++write) {
    Remove();
    log_.clear();
    RegisterFaultyVfs({0, 0, write});
    std::unique_ptr<Journal> journal;
    try {
      journal = std::make_unique<Journal>(Options(kFaultyVfs), Sink());
    } catch (const InvalidInput& error) {
      EXPECT_NE(std::string(error.what()).find("full"), std::string::npos) << error.what();
      continue;  // at start it is a mistake
    }
    Play(*journal, [] {});
    if (!journal->lost()) break;
    ++lost;
    const std::string line = "journal_lost";
    EXPECT_NE(log_.find(line), std::string::npos);
    EXPECT_EQ(log_.find(line, log_.find(line) + 1), std::string::npos) << log_;
    EXPECT_EQ(journal->Begin({"c", ""}).number, 0);
    EXPECT_FALSE(journal->TakeOver({"a", ""}));
    EXPECT_TRUE(journal->Unfinished().empty());
  }
  EXPECT_GT(lost, 20);
}

TEST_F(JournalTest, WhoeverTakesAnAnswerOverIsAlone) {
  Journal journal(Options(), Sink());
  const AnswerKey first = Committed(journal, "a");
  const JobUpdate updates[] = {UpdateOf(0, 0), UpdateOf(1, 0), UpdateOf(2, 0)};
  const auto write = [&](const AnswerKey& key, int i) {
    const AnswerLog::Entry entry = {{key, 0}, &updates[i]};
    journal.Write({&entry, 1});
  };
  write(first, 0);
  const std::optional<AnswerLog::Kept> second = journal.TakeOver({"a", ""});
  ASSERT_TRUE(second);
  EXPECT_EQ(second->updates.size(), 1u);
  write(first, 1);  // too late
  journal.End(first);
  write(second->key, 1);
  EXPECT_EQ(journal.Unfinished(), (std::vector<AnswerLog::Name>{{"a", ""}}));
  const std::optional<AnswerLog::Kept> third = journal.TakeOver({"a", ""});
  ASSERT_EQ(third->updates.size(), 2u);
  ExpectUpdate(third->updates[1], 1, 0);
  // An id is of one answer: the one that has it keeps it.
  EXPECT_EQ(journal.Begin({"a", ""}).number, 0);
  write(third->key, 2);
  EXPECT_EQ(journal.TakeOver({"a", ""})->updates.size(), 3u);
  journal.Forget(third->key);  // of an earlier run: nothing happens
  EXPECT_TRUE(journal.TakeOver({"a", ""}));
}

TEST_F(JournalTest, AnAnswerIsItsOwnersAlone) {
  {
    Journal journal(Options(), Sink());
    const AnswerKey key = journal.Begin({"a", "owner"});
    journal.Commit(key, "request");
    for (const char* other : {"", "owne", "ownes", "owner2"}) {
      EXPECT_FALSE(journal.RequestOf({"a", other})) << other;
      EXPECT_FALSE(journal.TakeOver({"a", other})) << other;
    }
    EXPECT_EQ(journal.RequestOf({"a", "owner"}), "request");
    const JobUpdate update = UpdateOf(0, 0);
    const AnswerLog::Entry entry = {{key, 0}, &update};
    journal.Write({&entry, 1});  // it still has its run
    EXPECT_EQ(journal.TakeOver({"a", "owner"})->updates.size(), 1u);
  }
  Journal journal(Options(), Sink());
  EXPECT_EQ(journal.Unfinished(), (std::vector<AnswerLog::Name>{{"a", "owner"}}));
  EXPECT_FALSE(journal.TakeOver({"a", ""}));
  EXPECT_EQ(journal.TakeOver({"a", "owner"})->updates.size(), 1u);
}

// A request leaves for its worker before it is in the file, and its first tokens may be there before it.
TEST_F(JournalTest, AnAnswerIsThereFromCommitOnWithAllOfItsTokens) {
  {
    Journal journal(Options(), Sink());
    const AnswerKey unheard_of = journal.Begin({"unheard of", ""});
    Committed(journal, "committed", "request c");
    const AnswerKey early = journal.Begin({"early", ""});
    const JobUpdate update = UpdateOf(1, 0);
    const AnswerKey last = journal.Begin({"last", ""});
    const AnswerLog::Entry entries[] = {{{early, 0}, &update}, {{unheard_of, 0}, &update}, {{last, 0}, &update}};
    journal.Write(entries);
    EXPECT_FALSE(journal.TakeOver({"early", ""}));
    journal.Commit(early, "request e");
  }
  {
    Journal journal(Options(), Sink());
    EXPECT_FALSE(journal.TakeOver({"unheard of", ""}));
    EXPECT_FALSE(journal.TakeOver({"last", ""}));
    Committed(journal, "next");
    EXPECT_EQ(journal.TakeOver({"committed", ""})->request, "request c");
    const std::optional<AnswerLog::Kept> early = journal.TakeOver({"early", ""});
    ASSERT_TRUE(early);
    EXPECT_EQ(early->request, "request e");
    ASSERT_EQ(early->updates.size(), 1u);
    ExpectUpdate(early->updates[0], 1, 0);
    journal.Forget(early->key);
  }
  Journal journal(Options(), Sink());
  EXPECT_FALSE(journal.TakeOver({"early", ""}));
  EXPECT_TRUE(journal.TakeOver({"next", ""})->updates.empty());
}

TEST_F(JournalTest, AnswersAreKeptForAWhile) {
  Journal::Options options = Options();
  options.keep = std::chrono::seconds(1);
  Journal journal(options, Sink());
  const AnswerKey ended = Committed(journal, "ended");
  const AnswerKey left = Committed(journal, "left");
  Committed(journal, "running");
  const JobUpdate update = UpdateOf(0, 0);
  const AnswerLog::Entry entries[] = {{{ended, 0}, &update}, {{left, 0}, &update}};
  journal.Write(entries);
  journal.End(ended);
  journal.Leave(left);
  EXPECT_TRUE(journal.TakeOver({"ended", ""}));
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  EXPECT_FALSE(journal.TakeOver({"ended", ""}));
  EXPECT_FALSE(journal.TakeOver({"left", ""}));
  EXPECT_TRUE(journal.TakeOver({"running", ""}));
}

TEST_F(JournalTest, WhatEndedOrWasLeftIsSoInTheNextProcess) {
  {
    Journal journal(Options(), Sink());
    journal.End(Committed(journal, "ended"));
    const AnswerKey left = journal.Begin({"left", ""});
    journal.Leave(left);  // before it is there
    journal.Commit(left, "");
    Committed(journal, "running");
    journal.Forget(Committed(journal, "refused"));
  }
  {
    Journal journal(Options(), Sink());
    EXPECT_EQ(journal.Unfinished(), (std::vector<AnswerLog::Name>{{"running", ""}}));
    EXPECT_TRUE(journal.TakeOver({"ended", ""}));
    EXPECT_FALSE(journal.TakeOver({"refused", ""}));
    EXPECT_TRUE(journal.TakeOver({"left", ""}));
    EXPECT_EQ(journal.Unfinished().size(), 2u);
  }
  Journal::Options other = Options();
  other.model = "another model";
  Journal journal(other, Sink());
  EXPECT_TRUE(journal.Unfinished().empty());
  EXPECT_FALSE(journal.TakeOver({"ended", ""}));
}

TEST_F(JournalTest, WhatIsNoJournalIsAClearError) {
  const auto open = [this](const std::string& file) {
    Journal::Options options = Options();
    options.file = file;
    const Journal journal(options, Sink());
  };
  const std::string file = (folder_ / "other").string();
  ExpectInvalid([&] { open((folder_ / "no/folder").string()); }, {"--journal", "no/folder", "No such file"});
  ExpectInvalid([&] { open(folder_.path().string()); }, {"--journal"});
  WriteFile(file, std::string(10000, 'x'));
  ExpectInvalid([&] { open(file); }, {"--journal", file, "not a database"});
  std::filesystem::remove(file);
  { serve::Database(file, "").Run("CREATE TABLE t(x)"); }
  ExpectInvalid([&] { open(file); }, {"is something else"});
  // Of one server at a time.
  {
    const Journal one(Options(), Sink());
    ExpectInvalid([&] { open(Options().file); }, {"locked"});
  }
  EXPECT_EQ(std::filesystem::status(Options().file).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

}  // namespace
}  // namespace stoch::test
