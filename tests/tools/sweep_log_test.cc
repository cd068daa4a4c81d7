// SPDX-License-Identifier: Apache-2.0
// The file of a sweep: torn lines, failed rows that are redone, and shards.

#include "tools/stoch/research/sweep_log.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/expect_invalid.h"
#include "tests/support/temp_dir.h"
#include "tools/stoch/research/sweep_merge.h"

namespace stoch::cli {
namespace {

using test::ExpectInvalid;
using test::ReadFile;
using test::WriteFile;

std::string Row(const std::string& key, const std::string& rest = "") {
  return R"({"key":")" + key + "\"" + rest + "}";
}

class SweepLogTest : public testing::Test {
 protected:
  SweepLog Open(bool resume = true, std::vector<std::string> keys = {"a", "b", "c", "d"}) {
    return SweepLog(path_, std::move(keys), resume);
  }
  test::TempDir folder_;
  std::string path_ = folder_ / "rows.jsonl";
};

TEST_F(SweepLogTest, ExistingFilesAreContinuedOnlyOnRequest) {
  {
    SweepLog log = Open(false);
    log.Put(0, Row("a"), false);
    EXPECT_TRUE(log.Done(0));
    EXPECT_FALSE(log.Done(1));
    ExpectInvalid([&] { Open(); }, {"another sweep"});
  }
  ExpectInvalid([&] { Open(false); }, {"rows.jsonl exists: --resume continues it"});
  EXPECT_EQ(ReadFile(path_), Row("a") + "\n");
  EXPECT_TRUE(Open().Done(0));
}

TEST_F(SweepLogTest, TornLinesAreDroppedAndFailedRowsRedoneInPlace) {
  const std::string all = Row("a") + "\n" + Row("b") + "\n" + Row("c") + "\n" + Row("d") + "\n";
  for (size_t cut = 0; cut <= all.size(); ++cut) {
    WriteFile(path_, all.substr(0, cut));
    SweepLog log = Open();
    for (size_t i = 0; i < 4; ++i) {
      if (!log.Done(i)) log.Put(i, Row(std::string(1, static_cast<char>('a' + i))), false);
    }
    EXPECT_EQ(ReadFile(path_), all) << cut;
  }
  WriteFile(path_, Row("a", R"(,"error":"x")") + "\n" + Row("b") + "\n" + Row("c", R"(,"error":"y")") + "\n" +
                       Row("d").substr(3));
  SweepLog log = Open();
  EXPECT_TRUE(log.AnyFailed());
  EXPECT_FALSE(log.Done(0));
  EXPECT_TRUE(log.Done(1));
  log.Put(0, Row("a"), false);
  EXPECT_EQ(ReadFile(path_), Row("a") + "\n" + Row("b") + "\n" + Row("c", R"(,"error":"y")") + "\n");
  log.Put(2, Row("c"), false);
  EXPECT_FALSE(log.AnyFailed());
  log.Put(3, Row("d"), false);
  EXPECT_EQ(ReadFile(path_), all);
  EXPECT_EQ(log.Rows().size(), 4u);
}

TEST_F(SweepLogTest, ForeignRowsAreRefused) {
  WriteFile(path_, Row("a") + "\n" + Row("z") + "\n");
  ExpectInvalid([&] { Open(); }, {"line 2", "another sweep"});
  WriteFile(path_, Row("a") + "\n" + Row("a") + "\n");
  ExpectInvalid([&] { Open(); }, {"line 2", "twice"});
  WriteFile(path_, Row("a") + "\nnonsense\n");
  ExpectInvalid([&] { Open(); }, {"line 2"});
  WriteFile(path_, "{}\n");
  ExpectInvalid([&] { Open(); }, {"line 1", "not a row"});
  EXPECT_EQ(ReadFile(path_), "{}\n");
  WriteFile(path_, Row("c") + "\n" + Row("a") + "\n");
  EXPECT_TRUE(Open().Done(2));
  EXPECT_EQ(ReadFile(path_), Row("a") + "\n" + Row("c") + "\n");
}

TEST_F(SweepLogTest, ShardsAreInterleaved) {
  const auto text = [](const std::string& keys) {
    std::string rows;
    for (const char key : keys) rows += Row(std::string(1, key)) + "\n";
    return rows;
  };
  const std::vector<std::string> names = {"0", "1", "2"};
  EXPECT_EQ(MergeShards(names, {text("ad"), text("be"), text("c")}), text("abcde"));
  EXPECT_EQ(MergeShards(names, {text("a"), text(""), text("")}), text("a"));
  ExpectInvalid([&] { MergeShards(names, {text("c"), text("ad"), text("be")}); }, {"0: has 1 rows of 5"});
  ExpectInvalid([&] { MergeShards(names, {text("ad"), text("be"), text("b")}); }, {"2: key \"b\"", "two shards"});
  ExpectInvalid([&] { MergeShards(names, {text("ad"), text("be") + "{", text("c")}); }, {"1: ends in a torn line"});
}

}  // namespace
}  // namespace stoch::cli
