// SPDX-License-Identifier: Apache-2.0
// Red cases of the rules of results.cc.
#include <gtest/gtest.h>

#include <string>

#include "tests/policy/rules.h"

namespace stoch::test {
namespace {

TEST(LogRule, HasEightColumns) {
  const auto findings = [](const std::string& path, const std::string& rows) {
    return CheckLog({{path, "date\tcommit\tgpu\twhat\tbefore\tafter\tverdict\tresult\n" + rows}}).size();
  };
  const std::string log = "bench/log/decode.tsv";
  EXPECT_EQ(findings(log, "2026-11-22\tbc38035\tH200\tmore\t1 ms\t2 ms\tlost\tlost: it waits\n"), 0u);
  EXPECT_EQ(findings(log, "2026-11-22\t-\tH200\tmore\t\t\tno difference\tnone\n"), 0u);
  EXPECT_EQ(findings(log, "2026-11-22\tbc38035\tH200\tmore\t1 ms\tlost\tlost: it waits\n"), 1u);
  EXPECT_EQ(findings(log, "22.11.2026\tbc38035\tH200\tmore\t\t\tlost\tlost: it waits\n"), 1u);
  EXPECT_EQ(findings(log, "2026-11-22\tbc38035\tH200\tmore\t\t\tso so\tit waits\n"), 1u);
  EXPECT_EQ(findings(log, "2026-11-22\tan edited tree\tH200\tmore\t\t\tlost\tit waits\n"), 1u);
  EXPECT_EQ(findings("bench/log/commits.tsv", "bc38035\t2026-11-22\n"), 0u);
  EXPECT_EQ(CheckLog({{log, "date\tcommit\n"}}).size(), 1u);
  // A walk that sees no log would pass.
  EXPECT_EQ(CheckLog({{"bench/log/README.md", "# bench/log\n"}}).size(), 1u);
}

}  // namespace
}  // namespace stoch::test
