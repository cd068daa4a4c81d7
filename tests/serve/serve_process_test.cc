// SPDX-License-Identifier: Apache-2.0
// `stoch serve` as a process: signals under load and exit codes.

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/serve/http_client.h"
#include "tests/serve/serving.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kStreams = 12;

// Whether connections are refused, within a moment: the line in the log comes before the socket is closed.
bool RefusesSoon(const Serving& server) {
  for (int i = 0; i < 500; ++i) {
    try {
      Call(server.port(), "GET", "/health");
    } catch (const std::exception&) {
      return true;
    }
    std::this_thread::sleep_for(milliseconds(10));
  }
  return false;
}

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
    clients.back()->SendRaw("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                            std::to_string(body.size()) + "\r\n\r\n" + body);
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
  const auto clients = StartStreams(server, 200);
  server.Signal(SIGTERM);
  ASSERT_TRUE(server.Logs("draining"));
  EXPECT_TRUE(RefusesSoon(server));
  EXPECT_EQ(server.Log().find("stopped"), std::string::npos);  // it refuses while it still answers
  for (const std::string& text : ReadAll(clients)) {
    EXPECT_NE(text.find("\"completion_tokens\":200"), std::string::npos) << text;
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
  EXPECT_EQ(server.Wait(seconds(20)), 128 + SIGTERM);  // not after 600
}

// Before there is anything to drain, too.
TEST(ServeProcess, SigtermWhileTheModelIsLoadedIsAnEnd) {
  bool was_loading = false;
  for (int attempt = 0; attempt < 20 && !was_loading; ++attempt) {
    Serving server;
    const std::string started = "worker_started pid=";
    while (server.Log().find(started) == std::string::npos) std::this_thread::sleep_for(milliseconds(1));
    const std::string log = server.Log();
    kill(std::stoi(log.substr(log.find(started) + started.size())), SIGSTOP);  // so that it stays so
    std::this_thread::sleep_for(milliseconds(20));
    was_loading = server.Log().find(" ready ") == std::string::npos;
    server.Signal(SIGTERM);
    if (was_loading) {
      EXPECT_EQ(server.Wait(seconds(5)), 0) << server.Log();
    }
  }
  EXPECT_TRUE(was_loading);
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
                                              {"--replicas", "0"},
                                              {"--in-process", "--replicas", "2"},
                                              {"--in-process", "--replica-devices", "0"},
                                              {"--replicas", "2", "--replica-devices", "0"},
                                              {"--replica-devices", "x"},
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

// A log driver that is stuck, a pager that nobody scrolls: 64 KB fit in a pipe.
TEST(ServeProcess, StandardErrorThatNobodyReadsHoldsNothingUp) {
  Serving server({}, kDemo, true);
  std::optional<HttpClient> client;
  const auto deadline = Clock::now() + seconds(20);
  while (!client) {
    try {
      client.emplace(server.port());
      if (client->Call("GET", "/health").status != 200) client.reset();
    } catch (const std::exception&) {  // not there yet
      client.reset();
    }
    ASSERT_LT(Clock::now(), deadline);
    std::this_thread::sleep_for(milliseconds(10));
  }
  constexpr int kRequests = 6000;  // more lines than the pipe and the queue hold together
  for (int i = 0; i < kRequests; ++i) ASSERT_EQ(client->Call("GET", "/nowhere").status, 404) << i;
  EXPECT_EQ(client->Call("GET", "/health").status, 200);
  const std::string metrics = client->Call("GET", "/metrics").body;
  const std::string name = "\nstoch_log_lines_dropped_total{model_name=\"demo\"} ";
  ASSERT_NE(metrics.find(name), std::string::npos) << metrics;
  EXPECT_GT(std::stod(metrics.substr(metrics.find(name) + name.size())), 0) << metrics;
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(seconds(8)), 0);
}

TEST(ServeProcess, AnEmptyKeyIsAMistake) {
  setenv("STOCH_API_KEY", "", 1);
  Serving from_environment;
  unsetenv("STOCH_API_KEY");
  EXPECT_EQ(from_environment.Wait(seconds(20)), 2);
  EXPECT_NE(from_environment.Log().find("STOCH_API_KEY is set and empty"), std::string::npos) << from_environment.Log();
  Serving given({"--api-key", ""});
  EXPECT_EQ(given.Wait(seconds(20)), 2);
  EXPECT_NE(given.Log().find("--api-key: expected a value, got an empty one"), std::string::npos) << given.Log();
}

// Open to everybody is allowed, and said.
TEST(ServeProcess, WarnsWhereOthersMayAskWithoutAKey) {
  const auto log_of = [](const std::vector<std::string>& options) {
    Serving server(options);
    EXPECT_TRUE(server.Logs("ready")) << server.Log();
    server.Signal(SIGTERM);
    EXPECT_EQ(server.Wait(seconds(20)), 0);
    return server.Log();
  };
  EXPECT_NE(log_of({"--host", "0.0.0.0"}).find(" no_api_key address=0.0.0.0:"), std::string::npos);
  EXPECT_EQ(log_of({"--host", "0.0.0.0", "--api-key", "k"}).find("no_api_key"), std::string::npos);
  EXPECT_EQ(log_of({}).find("no_api_key"), std::string::npos);
}

TEST(ServeProcess, ConnectionsFitInTheFilesItMayOpen) {
  Serving server({}, kDemo, false, 128);
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  EXPECT_NE(server.Log().find("max_connections=64"), std::string::npos) << server.Log();
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 150; ++i) clients.push_back(std::make_unique<HttpClient>(server.port()));
  // All of them say nothing, and make room for one that asks.
  EXPECT_EQ(Call(server.port(), "GET", "/health").status, 200);
  EXPECT_NE(server.Log().find("connections_full"), std::string::npos) << server.Log();
}

// The weights of a copy of the demo model.
std::filesystem::path CopyOfDemo(const std::filesystem::path& folder) {
  std::filesystem::copy(kDemo, folder, std::filesystem::copy_options::recursive);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") return entry.path();
  }
  return "";
}

// On CPUs some weights are read where the file is mapped.
TEST(ServeProcess, AModelThatChangesIsServedNoLonger) {
  const TempDir folder;
  const std::filesystem::path weights = CopyOfDemo(folder / "model");
  ASSERT_FALSE(weights.empty());
  Serving server({}, weights.parent_path().string());
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  std::fstream(weights, std::ios::in | std::ios::out | std::ios::binary).seekp(-8, std::ios::end).write("changed!", 8);
  EXPECT_EQ(server.Wait(seconds(10)), 3) << server.Log();
  EXPECT_NE(server.Log().find("model_changed"), std::string::npos) << server.Log();
  EXPECT_NE(server.Log().find("was changed while it was served"), std::string::npos) << server.Log();
}

// Pages that are gone are a signal for whoever reads them first: a worker, which the server outlives until it sees why,
// or the server itself, which says it with its last words.
TEST(ServeProcess, AModelThatIsCutOffEndsItInASentence) {
  for (const bool in_process : {false, true}) {
    SCOPED_TRACE(in_process);
    const TempDir folder;
    const std::filesystem::path weights = CopyOfDemo(folder / "model");
    ASSERT_FALSE(weights.empty());
    Serving server(in_process ? std::vector<std::string>{"--in-process"} : std::vector<std::string>{},
                   weights.parent_path().string());
    ASSERT_TRUE(server.Logs("ready")) << server.Log();
    std::filesystem::resize_file(weights, 4096);
    try {
      HttpClient client(server.port());
      client.Call("POST", "/v1/completions", R"({"prompt":"Once upon a time","max_tokens":400,"ignore_eos":true})");
    } catch (const std::runtime_error&) {  // it may end before it answers
    }
    EXPECT_EQ(server.Wait(seconds(20)), 3) << server.Log();
    const std::string log = server.Log();
    EXPECT_TRUE(log.find("a file of the model became shorter while it was served") != std::string::npos ||
                log.find("was changed while it was served") != std::string::npos)
        << log;
  }
}

TEST(ServeProcess, EveryServerOfAModelHasTheSameFingerprint) {
  const TempDir folder;
  const std::filesystem::path copy = folder / "another-name";
  std::filesystem::copy(kDemo, copy, std::filesystem::copy_options::recursive);
  std::vector<std::string> fingerprints;
  for (const std::string& model : {kDemo, copy.string()}) {
    Serving server({"--max-sequences", model == kDemo ? "4" : "8"}, model);
    ASSERT_TRUE(server.Logs("weights_digest")) << server.Log();
    const Json answer = Call(server.port(), "POST", "/v1/completions", R"({"prompt": "a", "max_tokens": 1})").Json();
    fingerprints.push_back(answer["system_fingerprint"]);
  }
  EXPECT_EQ(fingerprints[0], fingerprints[1]);
  EXPECT_EQ(fingerprints[0].rfind("stoch-", 0), 0u);
}

#ifdef STOCH_HAVE_SYSTEMD
// A stand-in for a service manager: it listens for the server, hears that it is ready and alive, and starts another one
// on the same socket.
TEST(ServeProcess, TellsAServiceManagerAndTakesItsSocket) {
  const TempDir folder;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string path = (folder / "notify").string();
  ASSERT_LT(path.size(), sizeof(name.sun_path));
  path.copy(name.sun_path, path.size());
  const int notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(bind(notify, reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  const timeval patience = {20, 0};
  setsockopt(notify, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  const auto hear = [&] {
    std::array<char, 256> text{};
    const ssize_t bytes = recv(notify, text.data(), text.size(), 0);
    return std::string(text.data(), bytes < 0 ? 0 : static_cast<size_t>(bytes));
  };
  const int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(listening, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listening, 64), 0);
  ASSERT_EQ(getsockname(listening, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const auto in_child = [&] {
    dup2(listening, 3);
    const std::string pid = std::to_string(getpid());
    setenv("LISTEN_FDS", "1", 1);
    setenv("LISTEN_PID", pid.c_str(), 1);
    setenv("NOTIFY_SOCKET", path.c_str(), 1);
    setenv("WATCHDOG_USEC", "300000", 1);
    setenv("WATCHDOG_PID", pid.c_str(), 1);
  };
  const uint16_t port = ntohs(address.sin_port);
  {
    Serving server({}, kDemo, false, 0, in_child);
    EXPECT_EQ(hear(), "READY=1") << server.Log();
    EXPECT_EQ(hear(), "WATCHDOG=1");
    EXPECT_EQ(hear(), "WATCHDOG=1");
    EXPECT_EQ(server.port(), port);
    EXPECT_EQ(Call(port, "GET", "/health").status, 200);
    server.Signal(SIGKILL);
    EXPECT_EQ(server.Wait(seconds(5)), 128 + SIGKILL);
  }
  HttpClient early(port);  // there is no server, and nobody is refused
  early.SendRaw("GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n");
  Serving server({}, kDemo, false, 0, in_child);
  EXPECT_EQ(early.Receive().status, 200);
  std::string word = hear();
  while (word == "WATCHDOG=1") word = hear();
  EXPECT_EQ(word, "READY=1");
  server.Signal(SIGTERM);
  do word = hear();
  while (word == "WATCHDOG=1");
  EXPECT_EQ(word, "STOPPING=1");
  EXPECT_EQ(server.Wait(seconds(10)), 0);
  close(listening);
  close(notify);
}
#endif

// The unit that people copy: its options are this program's, and what it asks of systemd is what the server needs.
TEST(ServeProcess, ItsUnitStartsIt) {
  const TempDir folder;
  std::ifstream file(std::string(STOCH_SOURCE_DIR) + "/tools/serve/stoch.service");
  std::map<std::string, std::string> settings;
  for (std::string line, more; std::getline(file, line);) {
    while (line.ends_with('\\') && std::getline(file, more)) line = line.substr(0, line.size() - 1) + more;
    const size_t equals = line.find('=');
    if (line.starts_with('#') || equals == std::string::npos) continue;
    std::string& setting = settings[line.substr(0, equals)];
    setting = setting.empty() ? line.substr(equals + 1) : setting + " " + line.substr(equals + 1);
  }
  EXPECT_EQ(settings["Type"], "notify");
  EXPECT_GT(std::stoi(settings["WatchdogSec"]), 0);
  // Otherwise systemd ends the gateway with a worker that was killed for want of memory.
  EXPECT_EQ(settings["OOMPolicy"], "continue");
  EXPECT_EQ(settings["RestartPreventExitStatus"], "2");
  // Without it the renderer of chat templates is killed as it locks itself, and every chat is refused.
  EXPECT_NE(settings["SystemCallFilter"].find(" seccomp"), std::string::npos);
  std::istringstream command(settings["ExecStart"]);
  std::vector<std::string> words;
  for (std::string word; command >> word;) words.push_back(word);
  ASSERT_GT(words.size(), 2u);
  EXPECT_EQ(words[1], "serve");
  std::vector<std::string> options;
  for (size_t i = 2; i + 1 < words.size(); i += 2) {
    const std::string& name = words[i];
    if (name == "--model" || name == "--port") continue;  // of this test
    options.insert(options.end(), {name, name == "--journal" ? (folder / "journal").string() : words[i + 1]});
    if (name != "--shutdown-timeout") continue;
    EXPECT_LT(std::stoi(words[i + 1]) + 5, std::stoi(settings["TimeoutStopSec"]));
  }
  Serving server(options);
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  EXPECT_EQ(Call(server.port(), "GET", "/health").status, 200);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(seconds(10)), 0);
}

// A line of the process's status in KiB, -1 where there is none.
int64_t MemoryKib(pid_t pid, const std::string& key) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1));
  }
  return -1;
}

// As many values as one answer may have: 16 MiB and 24 bytes each, however long their JSON is.
TEST(ServeProcess, AnAnswerTakesBoundedMemory) {
  Serving server({"--no-prefix-reuse"});
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  HttpClient client(server.port());
  Json body = {{"prompt", std::vector<int>(200, 50)},
               {"max_tokens", 1},
               {"n", 8},
               {"logprobs", 2},
               {"echo", true},
               {"temperature", 0}};
  ASSERT_EQ(client.Call("POST", "/v1/completions", body.dump()).status, 200);
  const int64_t before = MemoryKib(server.pid(), "VmHWM");
  body["n"] = 49;
  body["logprobs"] = 100;
  constexpr double kValues = 49 * 201 * 101.0;
  const Reply reply = client.Call("POST", "/v1/completions", body.dump());
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.Json()["choices"].size(), 49u);
  const double taken_bytes = 1024.0 * static_cast<double>(MemoryKib(server.pid(), "VmHWM") - before);
  EXPECT_LT(taken_bytes, (16 << 20) + 24 * kValues) << reply.body.size() << " bytes of answer";
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which keep what is freed
// Bodies of 5 MB in what a request may take, their text included, and less where a list is refused; the system has it
// back soon.
TEST(ServeProcess, LargeBodiesTakeBoundedMemoryAndGiveItBack) {
  std::string strings = R"("x")";
  for (int i = 0; i < 280'000; ++i) strings += ",\"xxxxxx" + std::to_string(i) + '"';
  std::string numbers = "1";
  for (int i = 0; i < 2'300'000; ++i) numbers += ",1";
  const std::string text(5'000'000, 'a');
  struct Case {
    const char* path;
    std::string body;
    int status;
    int64_t most_kib;
  };
  const Case cases[] = {
      {"/v1/completions", R"({"prompt":[5],"stop":[)" + strings + "]}", 400, 8 << 10},
      {"/v1/completions", R"({"prompt":[)" + numbers + "]}", 400, 8 << 10},
      {"/v1/completions", R"({"prompt":[5],"other":[)" + strings + "]}", 400, 15 << 10},
      {"/v1/completions", R"({"prompt":[5],"other":[)" + numbers + "]}", 400, 15 << 10},
      {"/v1/completions", R"({"prompt":[5],"max_tokens":1,"user":")" + text + "\"}", 200, 15 << 10},
      {"/tokenize", R"({"prompt":")" + text + "\"}", 400, 16 << 10},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.body.substr(0, 40));
    Serving server({"--no-prefix-reuse"});
    ASSERT_TRUE(server.Logs("ready")) << server.Log();
    HttpClient client(server.port());
    const std::string small = R"({"prompt":[5,6],"max_tokens":1,"stop":["a"]})";
    ASSERT_EQ(client.Call("POST", "/v1/completions", small).status, 200);
    std::ofstream forget("/proc/" + std::to_string(server.pid()) + "/clear_refs");
    forget << "5" << std::flush;  // the peak becomes what it has now
    if (!forget.good()) GTEST_SKIP() << "no clear_refs";
    const int64_t before = MemoryKib(server.pid(), "VmHWM");
    EXPECT_EQ(client.Call("POST", one.path, one.body).status, one.status);
    const int64_t taken_kib = MemoryKib(server.pid(), "VmHWM") - before;
    EXPECT_LT(taken_kib, one.most_kib);
    const auto deadline = Clock::now() + seconds(10);
    while (MemoryKib(server.pid(), "VmRSS") > before + 2048 && Clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(20));
    }
    EXPECT_LE(MemoryKib(server.pid(), "VmRSS"), before + 2048);
  }
}
#endif

}  // namespace
}  // namespace stoch::test
