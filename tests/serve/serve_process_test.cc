// `stoch serve` as a process: signals under load and exit codes.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/serve/http_client.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kStreams = 12;

// A server of the demo model. Killed where a test leaves it running.
class Serving {
 public:
  explicit Serving(const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {STOCH_BINARY, "serve", "--model",   std::string(STOCH_SOURCE_DIR) + "/demo",
                                      "--device",   "cpu",   "--threads", "1",
                                      "--port",     "0"};
    words.insert(words.end(), more.begin(), more.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    WriteFile(folder_ / "out", "");
    WriteFile(folder_ / "err", "");
    child_ = fork();
    if (child_ < 0) throw std::runtime_error("fork failed");
    if (child_ == 0) {
      dup2(open((folder_ / "out").c_str(), O_WRONLY), STDOUT_FILENO);
      dup2(open((folder_ / "err").c_str(), O_WRONLY), STDERR_FILENO);
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  ~Serving() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }

  // What: waits until the log says `event`.
  bool Logs(const std::string& event) const {
    const auto deadline = Clock::now() + seconds(20);
    while (Log().find(" " + event + " ") == std::string::npos) {
      if (Clock::now() > deadline) return false;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return true;
  }
  std::string Log() const { return ReadFile(folder_ / "err"); }
  uint16_t port() const {
    const std::string out = ReadFile(folder_ / "out");
    return static_cast<uint16_t>(std::stoi(out.substr(out.rfind(':') + 1)));
  }
  void Signal(int number) const { kill(child_, number); }
  // What: the exit code, 128 + N where signal N ended it; nothing where it does not end in time.
  std::optional<int> Wait(milliseconds limit) {
    const auto deadline = Clock::now() + limit;
    int status = 0;
    while (waitpid(child_, &status, WNOHANG) == 0) {
      if (Clock::now() > deadline) return std::nullopt;
      std::this_thread::sleep_for(milliseconds(2));
    }
    child_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  TempDir folder_;
  pid_t child_ = 0;
};

// Streams in flight, the first event of each read.
std::vector<std::unique_ptr<HttpClient>> StartStreams(const Serving& server, int max_tokens) {
  const std::string body = Json({{"prompt", "Once upon a time"},
                                 {"max_tokens", max_tokens},
                                 {"ignore_eos", true},
                                 {"stream", true},
                                 {"stream_options", {{"include_usage", true}}}})
                               .dump();
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server.port()));
    clients.back()->SendRaw("POST /v1/completions HTTP/1.1\r\nContent-Length: " + std::to_string(body.size()) +
                            "\r\n\r\n" + body);
  }
  for (const auto& client : clients) client->ReadUntil("data: ");
  return clients;
}

// What comes until the end, read by all of them at once.
std::vector<std::string> ReadAll(const std::vector<std::unique_ptr<HttpClient>>& clients) {
  std::vector<std::future<std::string>> reads;
  for (const auto& client : clients) {
    reads.push_back(std::async(std::launch::async, [&client] { return client->ReadToEnd(); }));
  }
  std::vector<std::string> texts;
  for (auto& read : reads) texts.push_back(read.get());
  return texts;
}

TEST(ServeProcess, SigtermLetsRunningRequestsFinish) {
  Serving server({"--shutdown-timeout", "60"});
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  const auto clients = StartStreams(server, 60);
  server.Signal(SIGTERM);
  ASSERT_TRUE(server.Logs("draining"));
  EXPECT_ANY_THROW(Call(server.port(), "GET", "/health"));
  for (const std::string& text : ReadAll(clients)) {
    EXPECT_NE(text.find("\"completion_tokens\":60"), std::string::npos) << text;
    EXPECT_NE(text.find("[DONE]"), std::string::npos);
    EXPECT_EQ(text.find("\"error\""), std::string::npos) << text;
  }
  EXPECT_EQ(server.Wait(seconds(10)), 0);
  EXPECT_NE(server.Log().find("stopped all_answered=1"), std::string::npos) << server.Log();
}

TEST(ServeProcess, SigtermEndsInTimeWithAClearError) {
  Serving server({"--shutdown-timeout", "1"});
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  const auto clients = StartStreams(server, 500);
  const auto start = Clock::now();
  server.Signal(SIGTERM);
  const std::vector<std::string> texts = ReadAll(clients);
  EXPECT_EQ(server.Wait(seconds(10)), 0);
  const auto elapsed = Clock::now() - start;
  EXPECT_LT(elapsed, seconds(4));
  if (server.Log().find("all_answered=1") != std::string::npos) GTEST_SKIP() << "this machine is too fast";
  EXPECT_GE(elapsed, seconds(1));
  for (const std::string& text : texts) {
    EXPECT_NE(text.find("shutting down"), std::string::npos) << text;
    EXPECT_NE(text.find("[DONE]"), std::string::npos);
  }
}

TEST(ServeProcess, ASecondSigtermEndsItAtOnce) {
  Serving server({"--shutdown-timeout", "600"});
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  const auto clients = StartStreams(server, 500);
  server.Signal(SIGTERM);
  ASSERT_TRUE(server.Logs("draining"));
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(seconds(1)), 128 + SIGTERM);
}

TEST(ServeProcess, ExitCodesAreExact) {
  for (const int signal_number : {SIGTERM, SIGINT}) {
    Serving idle;
    ASSERT_TRUE(idle.Logs("ready")) << idle.Log();
    idle.Signal(signal_number);
    EXPECT_EQ(idle.Wait(seconds(5)), 0);
  }
  Serving first;
  ASSERT_TRUE(first.Logs("ready")) << first.Log();
  const std::vector<std::string> refused[] = {{"--port", std::to_string(first.port())},
                                              {"--host", "nowhere.invalid"},
                                              {"--device", "cuda:99"},
                                              {"--max-sequences", "0"},
                                              {"--kv-tokens", "-1"},
                                              {"--stall-limit", "0"},
                                              {"--context", "100000"}};
  for (const std::vector<std::string>& arguments : refused) {
    Serving server(arguments);
    EXPECT_EQ(server.Wait(seconds(20)), 2) << arguments[0] << server.Log();
    EXPECT_NE(server.Log().find("error: "), std::string::npos) << arguments[0] << server.Log();
  }
}

TEST(ServeProcess, TakesItsKeyFromTheEnvironment) {
  setenv("STOCH_API_KEY", "secret", 1);
  Serving server;
  unsetenv("STOCH_API_KEY");
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  EXPECT_EQ(Call(server.port(), "GET", "/health").status, 200);
  EXPECT_EQ(Call(server.port(), "GET", "/v1/models").status, 401);
  EXPECT_EQ(Call(server.port(), "GET", "/v1/models", "", {{"Authorization", "Bearer secret"}}).status, 200);
  EXPECT_EQ(server.Log().find("secret"), std::string::npos);
}

}  // namespace
}  // namespace stoch::test
