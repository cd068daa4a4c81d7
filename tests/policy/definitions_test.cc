// SPDX-License-Identifier: Apache-2.0
// Red cases of the rule of definitions.cc.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/policy/rules.h"

namespace stoch::test {
namespace {

// What the rule says of a source that includes a header of app.
size_t Findings(const std::string& header, const std::string& path, const std::string& source) {
  return CheckDefinitions(
             {{"app/a.h", "#pragma once\n\nnamespace stoch {\n\n" + header + "\n\n}  // namespace stoch\n"},
              {"tools/stoch/b.h", "int Own(int x);\n"},
              {path, "#include \"app/a.h\"\n#include \"tools/stoch/b.h\"\n\nnamespace stoch {\n" + source +
                         "\n}  // namespace stoch\n"}})
      .size();
}

TEST(DefinitionsRule, InThePartThatDeclares) {
  const std::string open =
      "std::unique_ptr<Engine> OpenOnRanks(std::shared_ptr<Backend> backend,\n"
      "                                    const Devices& devices);";
  const std::string body =
      "std::unique_ptr<Engine> OpenOnRanks(std::shared_ptr<Backend> backend,\n"
      "                                    const Devices& devices) {\n  return nullptr;\n}";
  EXPECT_EQ(Findings(open, "app/a.cc", body), 0u);
  EXPECT_EQ(Findings(open, "app/ranks/a.cc", body), 0u);
  EXPECT_EQ(Findings(open, "tools/stoch/a.cc", body), 1u);
  EXPECT_EQ(Findings(open, "engine/a.cc", body), 1u);
  EXPECT_EQ(Findings(open, "tests/app/a.cc", body), 0u);
  // Neither what only this file can call, nor a call, nor a member of a class in it, nor another one's overload.
  EXPECT_EQ(Findings(open, "tools/stoch/a.cc", "namespace {\n\n" + body + "\n\n}  // namespace"), 0u);
  EXPECT_EQ(Findings(open, "tools/stoch/a.cc", "void Run() {\n  OpenOnRanks(nullptr, {});\n}"), 0u);
  EXPECT_EQ(Findings(open, "tools/stoch/a.cc", "class A {\n  void OpenOnRanks() {}\n};"), 0u);
  EXPECT_EQ(Findings("int Own(Engine* x);", "tools/stoch/a.cc", "int Own(int x) { return x; }"), 0u);
  EXPECT_EQ(Findings("// int Own2(int x);", "tools/stoch/a.cc", "int Own2(int x) { return x; }"), 0u);
}

TEST(DefinitionsRule, OfMembersToo) {
  const std::string job = "class RankJob {\n public:\n  void Open();\n};";
  EXPECT_EQ(Findings(job, "app/a.cc", "void RankJob::Open() {}"), 0u);
  EXPECT_EQ(Findings(job, "tools/stoch/a.cc", "void RankJob::Open() {}"), 1u);
  EXPECT_EQ(Findings("class RankJob;", "tools/stoch/a.cc", "void RankJob::Open() {}"), 0u);
}

}  // namespace
}  // namespace stoch::test
