// SPDX-License-Identifier: Apache-2.0
// A journal of which rows, bytes or pages are not what was written: it opens, tells nothing that is wrong, and has every
// answer that the damage is not of.

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>

#include "engine/gateway/journal.h"
#include "kernels/base/error.h"
#include "loader/crc32c.h"
#include "tests/support/expect_invalid.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

using serve::AnswerKey;
using serve::AnswerLog;
using serve::Database;
using serve::JobUpdate;
using serve::Journal;

constexpr int kAnswers = 9;
constexpr int kUpdates = 25;  // of each

TEST(Crc32c, IsThatOfTheStandard) {
  EXPECT_EQ(Crc32c().AddRaw("123456789").value(), 0xe3069283u);
  EXPECT_EQ(Crc32c().AddRaw(std::string(32, '\0')).value(), 0x8a9136aau);
  EXPECT_EQ(Crc32c().AddRaw(std::string(32, '\xff')).value(), 0x62a8ab43u);
  EXPECT_EQ(Crc32c().AddRaw("1234").AddRaw("56789").value(), 0xe3069283u);
  EXPECT_NE(Crc32c().Add("ab").Add("c").value(), Crc32c().Add("a").Add("bc").value());
}

std::string NameOf(int answer) { return "answer-" + std::to_string(answer); }
std::string RequestOf(int answer) { return "request " + std::string(static_cast<size_t>(40 * answer), 'r'); }
JobUpdate UpdateOf(int answer, int place) {
  JobUpdate update;
  update.ids = {1000 * answer + place};
  update.logprobs = {{-0.25 * place, {{answer, -1.0}, {place, -2.0}, {7, -3.0}}}};
  return update;
}

class JournalDamage : public testing::Test {
 protected:
  void SetUp() override {
    Make();
    whole_ = ReadFile(File());
    EXPECT_FALSE(std::filesystem::exists(File() + "-wal"));
  }
  std::string File() const { return (folder_ / "journal").string(); }
  Journal::Options Options() const {
    Journal::Options options;
    options.file = File();
    options.model = "a model";
    return options;
  }
  std::unique_ptr<Journal> Open() {
    log_.clear();
    return std::make_unique<Journal>(Options(),
                                     [this](const serve::LogLine& line) { log_ += FormatLogLine(line) + "\n"; });
  }

  // Answers side by side: of every three, one runs, one was left and one has ended.
  void Make() {
    const auto journal = Open();
    std::vector<AnswerKey> keys;
    for (int answer = 0; answer < kAnswers; ++answer) {
      keys.push_back(journal->Begin({NameOf(answer), "owner"}));
      journal->Commit(keys.back(), RequestOf(answer));
    }
    for (int place = 0; place < kUpdates; ++place) {
      std::vector<JobUpdate> updates;
      for (int answer = 0; answer < kAnswers; ++answer) updates.push_back(UpdateOf(answer, place));
      std::vector<AnswerLog::Entry> entries;
      for (int answer = 0; answer < kAnswers; ++answer) {
        entries.push_back({{keys[static_cast<size_t>(answer)], 0}, &updates[static_cast<size_t>(answer)]});
      }
      journal->Write(entries);
    }
    for (int answer = 0; answer < kAnswers; ++answer) {
      if (answer % 3 == 1) journal->Leave(keys[static_cast<size_t>(answer)]);
      if (answer % 3 == 2) journal->End(keys[static_cast<size_t>(answer)]);
    }
  }

  // Opens it and looks at every answer. Returns those that are there: as it was written, but that one that runs may lack
  // its last updates, which come again.
  std::set<int> Intact(const std::string& what) {
    std::set<int> intact;
    std::unique_ptr<Journal> journal;
    try {
      journal = Open();
    } catch (const std::exception& error) {
      ADD_FAILURE() << what << ": " << error.what();
      return intact;
    }
    for (int answer = 0; answer < kAnswers; ++answer) {
      const auto kept = journal->TakeOver({NameOf(answer), "owner"});
      if (!kept) continue;
      intact.insert(answer);
      EXPECT_EQ(kept->request, RequestOf(answer)) << what;
      EXPECT_LE(kept->updates.size(), static_cast<size_t>(kUpdates)) << what << ", answer " << answer;
      EXPECT_TRUE((kept->torn && answer % 3 == 0) || kept->updates.size() == kUpdates) << what << ", answer " << answer;
      for (size_t place = 0; place < kept->updates.size(); ++place) {
        const JobUpdate expected = UpdateOf(answer, static_cast<int>(place));
        EXPECT_EQ(kept->updates[place].choice, 0u) << what;
        EXPECT_EQ(kept->updates[place].update.ids, expected.ids) << what;
        EXPECT_EQ(kept->updates[place].update.logprobs.at(0).top, expected.logprobs[0].top) << what;
      }
    }
    EXPECT_FALSE(journal->lost()) << what;
    // It goes on as one that was never damaged.
    const AnswerKey key = journal->Begin({"new", ""});
    journal->Commit(key, "request");
    EXPECT_TRUE(journal->TakeOver({"new", ""})) << what;
    return intact;
  }
  void Restore(const std::string& bytes) const {
    for (const char* more : {"-wal", "-shm", "-journal"}) std::filesystem::remove(File() + more);
    WriteFile(File(), bytes);
  }
  void ExpectLogged(const std::string& what, const std::string& event) const {
    const size_t at = log_.find(event);
    ASSERT_NE(at, std::string::npos) << what << "\n" << log_;
    EXPECT_NE(log_.substr(at, log_.find('\n', at) - at).find(File()), std::string::npos) << log_;
  }

  TempDir folder_;
  std::string whole_;
  std::string log_;
};

std::set<int> AllBut(int answer) {
  std::set<int> all;
  for (int i = 0; i < kAnswers; ++i) {
    if (i != answer) all.insert(i);
  }
  return all;
}

TEST_F(JournalDamage, NothingIsDroppedWhereNothingIsDamaged) {
  EXPECT_EQ(Intact("whole"), AllBut(-1));
  EXPECT_EQ(log_.find("dropped"), std::string::npos) << log_;
}

TEST_F(JournalDamage, ARowThatIsNotWhatWasWrittenIsOneAnswerLess) {
  const char* const changes[] = {
      "UPDATE answers SET request = x'00'",
      "UPDATE answers SET request = x''",
      "UPDATE answers SET request = substr(request, 1, length(request) - 1)",
      "UPDATE answers SET request = CAST(request || x'00' AS BLOB)",
      "UPDATE answers SET id = 'other'",
      "UPDATE answers SET owner = 'another'",
      "UPDATE answers SET owner = ''",
      "UPDATE answers SET served = served || '0'",
      "UPDATE answers SET state = (state + 1) % 3",
      "UPDATE answers SET state = 3",
      "UPDATE answers SET state = -1",
      "UPDATE answers SET since = since + 1",
      "UPDATE answers SET updates = updates + 1",
      "UPDATE answers SET crc = crc + 1",
      "UPDATE answers SET number = number + 1000",
      "DELETE FROM answers",
      "UPDATE updates SET body = substr(body, 1, length(body) / 2)",
      "UPDATE updates SET body = x''",
      "UPDATE updates SET body = zeroblob(length(body))",
      "UPDATE updates SET choice = choice + 1",
      "UPDATE updates SET choice = -1",
      "UPDATE updates SET place = place + 1",
      "UPDATE updates SET answer = answer % 9 + 1",
      "UPDATE updates SET answer = 1000",
      "UPDATE updates SET place_crc = place_crc - 1",
      "UPDATE updates SET crc = crc - 1",
      "UPDATE updates SET number = number + 100000",
      "DELETE FROM updates",
  };
  int cases = 0;
  for (const std::string change : changes) {
    for (const int answer : {3, 4, 5}) {  // runs, was left, has ended
      const bool of_update = change.starts_with("UPDATE updates") || change == "DELETE FROM updates";
      for (const int place : {0, 11, kUpdates - 2}) {
        if (!of_update && place != 0) continue;
        const std::string number = std::to_string(answer + 1);
        const std::string where = of_update ? " WHERE answer = " + number + " AND place = " + std::to_string(place)
                                            : " WHERE number = " + number;
        Restore(whole_);
        { Database(File(), "").Run(change + where); }
        EXPECT_EQ(Intact(change + where), AllBut(answer)) << change + where << "\n" << log_;
        if (change != "DELETE FROM answers") ExpectLogged(change + where, "journal_answer_dropped");
        // It is gone for good.
        EXPECT_EQ(Intact(change + where + ", again"), AllBut(answer));
        EXPECT_EQ(log_.find("journal_answer_dropped"), std::string::npos) << log_;
        ++cases;
      }
    }
  }
  std::cout << cases << " cases" << std::endl;
}

// Of rows that fit their checksums, too: the file may be of anybody.
TEST_F(JournalDamage, AValueOfAnotherTypeIsDamage) {
  const char* const values[] = {"NULL", "'12'", "1.5", "x'00'", "9223372036854775807", "-9223372036854775808"};
  const std::string columns[] = {"answer", "place", "body", "place_crc", "crc"};
  for (const char* value : values) {
    for (const std::string& column : columns) {
      Restore(whole_);
      {
        // Tables that are not strict take anything; the checks are not SQLite's.
        Database database(File(), "");
        database.Run("PRAGMA writable_schema = ON");
        database.Run("UPDATE sqlite_master SET sql = replace(replace(sql, ') STRICT', ')'), ' NOT NULL', '')");
      }
      {
        Database database(File(), "");
        database.Run("UPDATE updates SET " + column + " = " + value + " WHERE answer = 5 AND place = 7");
        database.Run("PRAGMA writable_schema = ON");
        database.Run("UPDATE sqlite_master SET sql = '" + std::string(serve::kJournalUpdates) +
                     "' WHERE name = 'updates'");
        database.Run("UPDATE sqlite_master SET sql = '" + std::string(serve::kJournalAnswers) +
                     "' WHERE name = 'answers'");
      }
      EXPECT_EQ(Intact(column + " = " + value), AllBut(4)) << log_;
      EXPECT_TRUE(log_.find("journal_answer_dropped") != std::string::npos) << log_;
    }
  }
}

TEST_F(JournalDamage, AFlippedBitAnywhereIsNoWrongTokenAndNoFailedStart) {
  const char* every = std::getenv("STOCH_JOURNAL_STRIDE");
  const size_t stride = every == nullptr ? 127 : static_cast<size_t>(std::atoi(every));
  int64_t flips = 0, lost = 0, worst = 0, harmless = 0;
  for (size_t at = 0; at < whole_.size() && !HasFailure(); at += stride) {
    std::string bytes = whole_;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << (at % 8)));
    Restore(bytes);
    const auto intact = static_cast<int64_t>(Intact("byte " + std::to_string(at)).size());
    ++flips;
    lost += kAnswers - intact;
    harmless += intact == kAnswers ? 1 : 0;
    worst += intact == 0 ? 1 : 0;
    EXPECT_TRUE(intact == kAnswers || log_.find("file=" + File()) != std::string::npos) << at << log_;
  }
  std::cout << flips << " flips in " << whole_.size() << " bytes, " << harmless << " without a loss, "
            << static_cast<double>(lost) / static_cast<double>(flips) << " of " << kAnswers
            << " answers lost on average, all of them in " << worst << std::endl;
  EXPECT_LT(lost, flips * 3 / 2);
}

TEST_F(JournalDamage, APageThatIsGoneIsNoFailedStart) {
  constexpr size_t kPage = 4096;
  const size_t pages = whole_.size() / kPage;
  ASSERT_GT(pages, 7u);
  for (size_t page = 0; page < pages; ++page) {
    for (const char fill : {'\0', '\x55', '\xff'}) {
      std::string bytes = whole_;
      // Of the first one, all but what says whose the file is.
      const size_t from = page == 0 ? 100 : 0;
      std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(page * kPage + from),
                bytes.begin() + static_cast<std::ptrdiff_t>((page + 1) * kPage), fill);
      Restore(bytes);
      const std::set<int> intact = Intact("page " + std::to_string(page));
      EXPECT_TRUE(page != 0 || intact.size() == kAnswers) << log_;
      ExpectLogged("page", "journal_damaged");
      EXPECT_FALSE(std::filesystem::exists(File() + "-new"));
    }
  }
  for (const size_t size : {whole_.size() / 2, whole_.size() - 1, size_t{5000}, size_t{4096}}) {
    Restore(whole_.substr(0, size));
    Intact("the first " + std::to_string(size));
  }
  EXPECT_EQ(std::filesystem::status(File()).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST_F(JournalDamage, OtherFormatsAreToldApart) {
  const auto open = [this] { Open(); };
  // The first one, which had no checksums.
  std::filesystem::remove(File());
  {
    Database old(File(), "");
    old.Run(
        "CREATE TABLE model(text TEXT NOT NULL);"
        "CREATE TABLE answers(number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, request BLOB NOT NULL,"
        " state INTEGER NOT NULL, since INTEGER NOT NULL);"
        "CREATE TABLE updates(number INTEGER PRIMARY KEY, answer INTEGER NOT NULL, choice INTEGER NOT NULL,"
        " body BLOB NOT NULL);"
        "PRAGMA application_id = 0x73746f63; PRAGMA user_version = 1; PRAGMA journal_mode = WAL;"
        "INSERT INTO model VALUES('a model'); INSERT INTO answers VALUES(1, 'a', x'00', 0, 0);"
        "INSERT INTO updates VALUES(1, 1, 0, x'00')");
  }
  Intact("format 1");
  ExpectLogged("format 1", "journal_older");
  EXPECT_EQ(Database(File(), "").Integer("PRAGMA auto_vacuum"), 2);
  EXPECT_EQ(Database(File(), "").Integer("PRAGMA user_version"), 2);
  EXPECT_NE(Intact("again"), AllBut(-1));
  EXPECT_EQ(log_.find("journal_older"), std::string::npos) << log_;
  // One to come.
  std::filesystem::remove(File());
  { Database(File(), "").Run("CREATE TABLE t(x); PRAGMA application_id = 0x73746f63; PRAGMA user_version = 3"); }
  const std::string newer = ReadFile(File());
  ExpectInvalid(open, {"--journal", File(), "format 3", "newer version"});
  EXPECT_EQ(ReadFile(File()), newer);
  // The text of one is none.
  WriteFile(File(), "SQLite format 3 " + std::string(serve::kJournalUpdates) + std::string(5000, '\n'));
  ExpectInvalid(open, {"--journal", File(), "not a database"});
}

TEST_F(JournalDamage, AnUpdateThatCannotBeWrittenEndsItsAnswerAlone) {
  Journal::Options options = Options();
  options.max_row_bytes = 20000;
  Journal journal(options, [this](const serve::LogLine& line) { log_ += FormatLogLine(line) + "\n"; });
  const AnswerKey good = journal.Begin({"good", ""}), large = journal.Begin({"large", ""}),
                  request = journal.Begin({"request", ""});
  journal.Commit(good, "request");
  journal.Commit(large, "request");
  journal.Commit(request, std::string(30000, 'r'));
  const JobUpdate update = UpdateOf(1, 0);
  JobUpdate too_large = update;
  too_large.error = std::string(30000, 'e');
  const JobUpdate* updates[] = {&update, &too_large, &update, &update};
  for (const JobUpdate* each : updates) {
    const AnswerLog::Entry entries[] = {{{good, 0}, &update}, {{large, 0}, each}, {{good, 1}, &update}};
    journal.Write(entries);
  }
  EXPECT_FALSE(journal.lost()) << log_;
  EXPECT_FALSE(journal.TakeOver({"large", ""}));
  EXPECT_FALSE(journal.TakeOver({"request", ""}));
  for (const char* dropped : {"answer=large", "answer=request"}) {
    const size_t at = log_.find(dropped);
    ASSERT_NE(at, std::string::npos) << log_;
    EXPECT_EQ(log_.find(dropped, at + 1), std::string::npos) << log_;
  }
  const auto kept = journal.TakeOver({"good", ""});
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->updates.size(), 8u);
}

TEST_F(JournalDamage, TheFileShrinksWithWhatIsForgotten) {
  Journal::Options options = Options();
  options.keep = std::chrono::seconds(0);
  std::filesystem::remove(File());
  const auto size = [this] {
    const std::string wal = File() + "-wal";
    return std::filesystem::file_size(File()) + (std::filesystem::exists(wal) ? std::filesystem::file_size(wal) : 0);
  };
  Journal journal(options, [this](const serve::LogLine& line) { log_ += FormatLogLine(line) + "\n"; });
  // One that stays, and so many others that it is long.
  const AnswerKey stays = journal.Begin({"stays", ""});
  journal.Commit(stays, "request");
  JobUpdate update = UpdateOf(1, 0);
  update.error = std::string(500, 'e');
  constexpr int kMany = 40, kEach = 400;
  for (int i = 0; i < kMany; ++i) {
    const AnswerKey key = journal.Begin({"a" + std::to_string(i), ""});
    journal.Commit(key, "request");
    for (int n = 0; n < kEach; ++n) {
      const AnswerLog::Entry entries[] = {{{key, 0}, &update}, {{stays, 0}, &update}};
      journal.Write(std::span(entries).first(n % 40 == 0 ? 2 : 1));
    }
    journal.End(key);
  }
  const auto large = size();
  EXPECT_GT(large, size_t{kMany} * kEach * 500);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  for (int i = 0; i < 5; ++i) journal.Tidy();
  const auto small = size();
  EXPECT_LT(small, large / 4);
  EXPECT_EQ(journal.TakeOver({"stays", ""})->updates.size(), size_t{kMany} * kEach / 40);
  journal.Forget(journal.TakeOver({"stays", ""})->key);
  for (int i = 0; i < 5; ++i) journal.Tidy();
  EXPECT_LT(size(), 50000u);
  std::cout << large << " bytes, " << small << " with one answer, " << size() << " with none" << std::endl;
}

}  // namespace
}  // namespace stoch::test
