// SPDX-License-Identifier: Apache-2.0
// A gateway that is killed at every write of its journal, or finds the disk full: no client loses an event.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <thread>

#include "tests/serve/journal/kept_streams.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {
namespace {

using Json = nlohmann::json;

// The program as a child; killed where a test leaves it running.
class Gateway {
 public:
  explicit Gateway(std::vector<std::string> words) {
    words.insert(words.begin(), STOCH_JOURNAL_GATEWAY);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    std::array<int, 2> in{}, out{}, err{};
    if (pipe2(in.data(), O_CLOEXEC) + pipe2(out.data(), O_CLOEXEC) + pipe2(err.data(), O_CLOEXEC) != 0) abort();
    child_ = fork();
    if (child_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      dup2(err[1], STDERR_FILENO);
      execv(argv[0], argv.data());
      _exit(127);
    }
    for (const int end : {in[0], out[1], err[1]}) close(end);
    in_ = in[1];
    std::string line;
    for (char byte = 0; read(out[0], &byte, 1) == 1 && byte != '\n';) line += byte;
    if (!line.empty()) port_ = static_cast<uint16_t>(std::stoi(line));
    close(out[0]);
    log_reader_ = std::thread([this, fd = err[0]] {
      std::array<char, 4096> chunk{};
      for (ssize_t bytes = 0; (bytes = read(fd, chunk.data(), chunk.size())) > 0;) {
        log_.append(chunk.data(), static_cast<size_t>(bytes));
      }
      close(fd);
    });
  }
  ~Gateway() { End(); }

  std::optional<uint16_t> port() const { return port_; }  // none: it died before it listened
  // Asks it to end. Returns: what it logged.
  const std::string& End() {
    if (child_ == 0) return log_;
    close(in_);
    waitpid(child_, nullptr, 0);
    child_ = 0;
    log_reader_.join();
    return log_;
  }

 private:
  pid_t child_ = 0;
  int in_ = -1;
  std::optional<uint16_t> port_;
  std::string log_;
  std::thread log_reader_;
};

class JournalGateway : public testing::Test {
 protected:
  void SetUp() override {
    TinyModel model;
    model.config.max_position_embeddings = 128;
    WriteTinyModel(folder_ / "model", model);
  }
  std::vector<std::string> Words(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"--model",   (folder_ / "model").string(),  "--worker", STOCH_POISON_WORKER,
                                      "--journal", (folder_ / "journal").string()};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  void RemoveJournal() const {
    for (const char* more : {"", "-wal"}) std::filesystem::remove((folder_ / "journal").string() + more);
  }
  // With everything that an event can hold.
  static std::vector<KeptStream> Streams(const std::string& prefix) {
    std::vector<KeptStream> streams;
    streams.emplace_back(prefix + "0", Json{{"prompt", {5, 6, 7}}, {"max_tokens", 5}, {"ignore_eos", true}});
    streams.emplace_back(prefix + "1", Json{{"prompt", {9, 8}},
                                            {"max_tokens", 4},
                                            {"n", 2},
                                            {"logprobs", 2},
                                            {"echo", true},
                                            {"ignore_eos", true},
                                            {"stream_options", {{"include_usage", true}}}});
    streams.emplace_back(prefix + "2", Json{{"prompt", {30}},
                                            {"max_tokens", 6},
                                            {"return_logits_sha256", true},
                                            {"frequency_penalty", 0.5},
                                            {"ignore_eos", true}});
    return streams;
  }
  static void ReadAll(std::vector<KeptStream>& streams, uint16_t port) {
    std::vector<std::thread> clients;
    for (KeptStream& stream : streams) clients.emplace_back([&stream, port] { stream.Read(port); });
    for (std::thread& client : clients) client.join();
  }
  // Each read alone, by a gateway without faults.
  std::vector<std::vector<std::string>> Alone() {
    Gateway gateway(Words());
    std::vector<std::vector<std::string>> alone;
    for (KeptStream& stream : Streams("c")) {
      EXPECT_EQ(stream.Read(gateway.port().value()), 200);
      EXPECT_TRUE(stream.done());
      alone.push_back(stream.Events());
    }
    gateway.End();
    RemoveJournal();
    return alone;
  }
  static void ExpectWhole(const std::vector<KeptStream>& streams, const std::vector<std::vector<std::string>>& alone,
                          const std::string& where) {
    for (size_t i = 0; i < streams.size(); ++i) {
      EXPECT_TRUE(streams[i].done()) << where << ", stream " << i;
      EXPECT_EQ(streams[i].disorder(), "") << where << ", stream " << i;
      // Choices of one request come in turn, whoever is first.
      std::vector<std::string> events = streams[i].Events(), expected = alone[i];
      std::stable_sort(events.begin(), events.end());
      std::stable_sort(expected.begin(), expected.end());
      EXPECT_EQ(events, expected) << where << ", stream " << i;
    }
  }

  TempDir folder_;
};

TEST_F(JournalGateway, KilledAtAnyWriteNoEventIsLostOrDoubled) {
  const std::vector<std::vector<std::string>> alone = Alone();
  int points = 0;
  int taken_up = 0;
  bool was_killed = true;
  for (int write = 1; was_killed; ++write) {
    RemoveJournal();
    std::vector<KeptStream> streams = Streams("c");
    const std::string where = "write " + std::to_string(write);
    {
      Gateway doomed(Words({"--kill-at", std::to_string(write), "--kill-part", std::to_string(write % 3)}));
      if (doomed.port()) ReadAll(streams, *doomed.port());
    }
    was_killed = !std::all_of(streams.begin(), streams.end(), [](const KeptStream& stream) { return stream.done(); });
    points += was_killed ? 1 : 0;
    Gateway gateway(Words());
    ASSERT_TRUE(gateway.port()) << where << gateway.End();
    // A second time in the same words: what was read to its end is there again.
    for (int again = 0; again < 2; ++again) ReadAll(streams, *gateway.port());
    ExpectWhole(streams, alone, where + gateway.End());
    for (const KeptStream& stream : streams) taken_up += stream.taken_up();
    if (HasFailure()) break;
  }
  EXPECT_GT(points, 30);
  EXPECT_GT(taken_up, 10);
  std::cout << points << " points, " << taken_up << " streams taken up" << std::endl;
}

TEST_F(JournalGateway, AFullDiskIsOneErrorAndServingGoesOn) {
  const std::vector<std::vector<std::string>> alone = Alone();
  int lost = 0;
  for (int write = 1;; write += 3) {
    RemoveJournal();
    std::vector<KeptStream> streams = Streams("c");
    Gateway gateway(Words({"--full-from", std::to_string(write)}));
    if (!gateway.port()) continue;  // at start it is a mistake
    ReadAll(streams, *gateway.port());
    // The last rows of a stream are written when its client has all of it.
    std::string journal;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    do {
      journal = Call(*gateway.port(), "GET", "/health").Json()["journal"];
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    } while (journal == "ok" && std::chrono::steady_clock::now() < deadline);
    const std::string log = gateway.End();
    ExpectWhole(streams, alone, "full from write " + std::to_string(write) + log);
    const size_t first = log.find("journal_lost");
    EXPECT_EQ(journal, first == std::string::npos ? "ok" : "lost") << log;
    if (journal == "ok") break;
    ++lost;
    EXPECT_EQ(log.find("journal_lost", first + 1), std::string::npos) << log;
    EXPECT_NE(log.find("full", first), std::string::npos) << log;
    if (HasFailure()) break;
  }
  EXPECT_GT(lost, 5);
}

}  // namespace
}  // namespace stoch::test
