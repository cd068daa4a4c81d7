// SPDX-License-Identifier: Apache-2.0
// Commands inside of another program: what they print and where they are goes to their host.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "app/interrupt.h"
#include "app/progress.h"
#include "kernels/base/error.h"
#include "tests/support/expect_invalid.h"
#include "tools/stoch/commands.h"

namespace stoch::cli {
namespace {

using test::ExpectInvalid;

struct Asked {};

TEST(InProcess, PrintsToItsHost) {
  std::string printed;
  Host host;
  host.print = [&](std::string_view text) { printed += text; };
  testing::internal::CaptureStdout();
  EXPECT_EQ(RunInProcess({"verify", "--device", "cpu", "--only", "product.halved", "--json"}, host), kDone);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_NE(printed.find("\"name\":\"product.halved\",\"passed\":true"), std::string::npos) << printed;
  EXPECT_EQ(CurrentHost(), nullptr);
}

TEST(InProcess, AsksItsHostBetweenSteps) {
  Host host;
  int asked = 0;
  host.print = [](std::string_view) { ADD_FAILURE() << "it ended before it printed"; };
  host.check = [&] {
    if (++asked == 2) throw Asked{};
  };
  const std::vector<std::string> two = {"verify", "--device",          "cpu",   "--only", "product.halved",
                                        "--only", "product.published", "--json"};
  EXPECT_THROW(RunInProcess(two, host), Asked);
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(CurrentHost(), nullptr);
  ThrowIfInterrupted();  // asks nobody now
}

TEST(InProcess, TellsItsHostHowFarItIs) {
  std::vector<std::string> seen;
  Host host;
  host.progress = [&](int64_t done, int64_t total, const std::string& label) {
    seen.push_back(label + " " + std::to_string(done) + "/" + std::to_string(total));
  };
  {
    const HostScope scope(&host);
    ProgressBar bar("loading", true);
    bar.Update(1, 2);
    bar.Update(2, 2);  // nothing is left out, however soon it comes
    const HostScope inner(nullptr);
    ProgressBar("alone", true).Update(1, 1);
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"loading 1/2", "loading 2/2"}));
}

TEST(InProcess, RefusesWhatIsNoCommandOfIts) {
  Host host;
  ExpectInvalid([&] { RunInProcess({}, host); }, {"command ''"});
  ExpectInvalid([&] { RunInProcess({"serve"}, host); }, {"command 'serve'"});
  ExpectInvalid([&] { RunInProcess({"verify", "--never"}, host); }, {"--never"});
  ExpectInvalid([&] { RunInProcess({"bench", "--repetitions", "0"}, host); }, {"--repetitions", "0"});
}

}  // namespace
}  // namespace stoch::cli
