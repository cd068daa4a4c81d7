// SPDX-License-Identifier: Apache-2.0
// The digest of a served model's weights comes, though there is no memory to take it for a while.
#include "tools/stoch/serve/digest_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <new>
#include <string>
#include <thread>

#include "loader/checkpoint/weight_store.h"

namespace stoch::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr const char* kDemo = STOCH_SOURCE_DIR "/demo";

TEST(DigestThread, TellsAgainWhereThereWasNoMemory) {
  constexpr int kTimes = 3;
  std::atomic<int> told = 0;
  std::string digest, error;
  const auto take = [&](const std::string& heard, const std::string& why) {
    digest = heard;
    error = why;
    if (++told < kTimes) throw std::bad_alloc();
  };
  const cli::DigestThread thread(kDemo, OpenModelFiles(kDemo).weights->files(), take);
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  while (told < kTimes && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  ASSERT_EQ(told, kTimes);
  EXPECT_EQ(digest.size(), 64u);
  EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace stoch::test
