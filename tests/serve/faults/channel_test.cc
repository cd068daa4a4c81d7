// SPDX-License-Identifier: Apache-2.0
// Messages of many threads over one channel, more of them than its socket has room for.
#include "engine/ipc/channel.h"

#include <google/protobuf/util/delimited_message_util.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/asio/executor_work_guard.hpp>
#include <chrono>
#include <fstream>
#include <future>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/ipc/convert.h"
#include "engine/ipc/messages.pb.h"
#include "kernels/base/error.h"

namespace stoch::test {
namespace {

constexpr int kThreads = 3;
constexpr int kMessages = 200;
constexpr int kMostBytes = 300'000;  // of a message: more than a socket takes at once

// Of one thread's message.
std::string TextOf(int thread, int number) {
  return std::string(static_cast<size_t>((number * 7919 + thread) % (number % 10 == 0 ? kMostBytes : 100)),
                     static_cast<char>('a' + (number + thread) % 26));
}

TEST(Channel, ManyThreadsSendMoreThanTheSocketTakesAndEachKeepsItsOrder) {
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  boost::asio::io_context in, out, unused;
  const auto guard = boost::asio::make_work_guard(out);
  const auto sender = std::make_shared<ipc::Channel>(unused, out, ends[0]);
  const auto receiver = std::make_shared<ipc::Channel>(in, unused, ends[1]);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([thread, &sender] {
      for (int number = 0; number < kMessages; ++number) {
        ipc::FromWorker message;
        message.set_running(thread);
        message.set_waiting(number);
        message.mutable_failure()->set_message(TextOf(thread, number));
        sender->Send(message);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(sender->sent());  // nobody reads yet
  std::thread writer([&out] { out.run(); });
  std::array<int, kThreads> next{};
  int heard = 0;
  bool has_ended = false;
  receiver->Start(
      [&](google::protobuf::io::ZeroCopyInputStream* stream) {
        ipc::FromWorker message;
        if (!google::protobuf::util::ParseDelimitedFromZeroCopyStream(&message, stream, nullptr)) return false;
        const auto thread = static_cast<size_t>(message.running());
        EXPECT_EQ(message.waiting(), next.at(thread)++);
        EXPECT_EQ(message.failure().message(), TextOf(static_cast<int>(thread), static_cast<int>(message.waiting())));
        if (++heard == kThreads * kMessages) sender->Close();
        return true;
      },
      [&] { has_ended = true; });
  in.run();
  EXPECT_EQ(heard, kThreads * kMessages);
  EXPECT_TRUE(has_ended);
  sender->Send(ipc::FromWorker());  // to nobody
  out.stop();
  writer.join();
}

// How often a thread of this process has given its core up.
int64_t Switches(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/status");
  const std::string name = "voluntary_ctxt_switches:";
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name)) return std::stoll(line.substr(name.size()));
  }
  return -1;
}

TEST(Channel, MessagesThatArriveWakeTheThreadThatReadsAndNoOther) {
  constexpr int kCount = 100;
  constexpr int64_t kAFew = kCount / 10;  // that the system makes of its own
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  boost::asio::io_context in, out, unused;
  const auto guard = boost::asio::make_work_guard(out);
  const auto sender = std::make_shared<ipc::Channel>(unused, unused, ends[0]);
  const auto receiver = std::make_shared<ipc::Channel>(in, out, ends[1]);
  std::promise<pid_t> writes;
  std::thread writer([&] {
    writes.set_value(gettid());
    out.run();
  });
  const pid_t thread = writes.get_future().get();
  int heard = 0;
  receiver->Start(
      [&](google::protobuf::io::ZeroCopyInputStream* stream) {
        ipc::FromWorker message;
        if (!google::protobuf::util::ParseDelimitedFromZeroCopyStream(&message, stream, nullptr)) return false;
        receiver->Send(message);  // what leaves wakes nobody here either
        return ++heard < kCount;
      },
      [] {});
  in.poll();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the other one sleeps by now
  const int64_t before = Switches(thread);
  ASSERT_GE(before, 0);
  while (heard < kCount) {
    sender->Send(ipc::FromWorker());
    const int now = heard;
    while (heard == now) in.run_one();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_LE(Switches(thread) - before, kAFew);
  out.stop();
  writer.join();
}

// What a worker that has lost its mind might say.
TEST(Channel, MessagesThatNoWorkerWritesAreRefused) {
  ipc::FromWorker good;
  ipc::Hello& hello = *good.mutable_hello();
  hello.set_vocab_size(10);
  hello.set_context(20);
  hello.set_max_sequences(2);
  ipc::SetParts({{"a", "1"}, {"b", "2"}}, &hello);
  ipc::Update& update = *good.add_updates();
  update.add_ids(3);
  update.add_logprobs()->add_top_ids(4);
  update.mutable_logprobs(0)->add_top_logprobs(-1);
  EXPECT_NO_THROW(ipc::Check(good));
  EXPECT_EQ(ipc::PartsOf(hello).at("b"), "2");
  using Edit = void (*)(ipc::FromWorker&);
  const Edit edits[] = {
      [](ipc::FromWorker& m) { m.mutable_updates(0)->set_ids(0, -1); },
      [](ipc::FromWorker& m) { m.mutable_updates(0)->set_finish(9); },
      [](ipc::FromWorker& m) { m.mutable_updates(0)->set_error_status(200); },
      [](ipc::FromWorker& m) { m.mutable_updates(0)->set_queue_seconds(-1); },
      [](ipc::FromWorker& m) { m.mutable_updates(0)->mutable_logprobs(0)->clear_top_logprobs(); },
      [](ipc::FromWorker& m) { m.mutable_updates(0)->mutable_logprobs(0)->set_top_ids(0, -5); },
      [](ipc::FromWorker& m) { m.mutable_hello()->set_vocab_size(0); },
      [](ipc::FromWorker& m) { m.mutable_hello()->set_context(-1); },
      [](ipc::FromWorker& m) { m.mutable_hello()->set_max_sequences(-1); },
      [](ipc::FromWorker& m) { m.mutable_hello()->add_parts()->set_name("a"); },
      [](ipc::FromWorker& m) { m.set_running(-1); },
      [](ipc::FromWorker& m) { m.set_kv_usage(std::numeric_limits<double>::quiet_NaN()); },
      [](ipc::FromWorker& m) { m.set_preemptions(-1); },
  };
  for (size_t i = 0; i < std::size(edits); ++i) {
    ipc::FromWorker bad = good;
    edits[i](bad);
    EXPECT_THROW(ipc::Check(bad), InvalidInput) << i;
  }
}

// Names of files are not always UTF-8.
TEST(Channel, TextMayHoldAnyBytes) {
  ipc::FromWorker message;
  message.mutable_hello()->set_name("\xff");
  ipc::SetParts({{"/model/\xfe", "1"}}, message.mutable_hello());
  message.mutable_failure()->set_message("/model/\xfe: cannot open");
  ipc::FromWorker again;
  ASSERT_TRUE(again.ParseFromString(message.SerializeAsString()));
  EXPECT_TRUE(ipc::PartsOf(again.hello()).contains("/model/\xfe"));
}

}  // namespace
}  // namespace stoch::test
