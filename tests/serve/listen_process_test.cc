// SPDX-License-Identifier: Apache-2.0
// Where `stoch serve` listens, as a process.

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/serve/http_client.h"
#include "tests/serve/serving.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

using std::chrono::seconds;

// The port of an address that a server says it listens on.
uint16_t PortAfter(const std::string& words, const std::string& log) {
  const size_t at = log.find(words);
  EXPECT_NE(at, std::string::npos) << log;
  return at == std::string::npos ? 0 : static_cast<uint16_t>(std::stoi(log.substr(at + words.size())));
}

// The status of a request for `path` by a page that calls this machine evil.example; more: headers.
int StatusOfPage(uint16_t port, const std::string& path, const std::string& more) {
  HttpClient client(port);
  client.SendRaw("GET " + path + " HTTP/1.1\r\nHost: evil.example\r\n" + more + "\r\n");
  return client.Receive().status;
}

TEST(ListenProcess, AnswersAtAnAdminAddressAndOnAUnixSocket) {
  const TempDir folder;
  const std::string path = (folder.path() / "stoch.sock").string();
  Serving server({"--host", "unix:" + path, "--admin-listen", "127.0.0.1:0"});
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  EXPECT_EQ(HttpClient(path).Call("POST", "/tokenize", R"({"prompt":"a"})").status, 200);
  const uint16_t port = PortAfter("admin_listening address=127.0.0.1:", server.Log());
  EXPECT_EQ(Call(port, "GET", "/health").status, 200);
  EXPECT_EQ(Call(port, "GET", "/version").status, 404);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(seconds(30)), 0);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(ListenProcess, PagesOfOtherNamesNeedAKeyOnLoopback) {
  Serving open;
  ASSERT_TRUE(open.Logs("ready")) << open.Log();
  EXPECT_EQ(StatusOfPage(open.port(), "/v1/models", ""), 403);
  Serving allowed({"--allowed-host", "evil.example"});
  ASSERT_TRUE(allowed.Logs("ready")) << allowed.Log();
  EXPECT_EQ(StatusOfPage(allowed.port(), "/v1/models", ""), 200);
}

// A proxy passes the public name on, and its clients have keys; the admin address asks for none of them.
TEST(ListenProcess, PagesOfOtherNamesMayComeWithAKeyButNotToTheAdminAddress) {
  const TempDir folder;
  const std::string file = (folder.path() / "keys").string();
  WriteFile(file, "k\n");
  for (const std::vector<std::string>& key : {std::vector<std::string>{"--api-key", "k"}, {"--api-key-file", file}}) {
    std::vector<std::string> words = key;
    words.insert(words.end(), {"--admin-listen", "127.0.0.1:0"});
    Serving keyed(words);
    ASSERT_TRUE(keyed.Logs("ready")) << keyed.Log();
    EXPECT_EQ(StatusOfPage(keyed.port(), "/v1/models", "Authorization: Bearer k\r\n"), 200) << key.front();
    EXPECT_EQ(StatusOfPage(keyed.port(), "/v1/models", ""), 401) << key.front();
    const uint16_t admin = PortAfter("admin_listening address=127.0.0.1:", keyed.Log());
    EXPECT_EQ(StatusOfPage(admin, "/health", ""), 403) << key.front();
  }
}

TEST(ListenProcess, AKeyThatNoRequestCanBringIsAMistake) {
  for (const char* key : {"k ", " k", "k\r", "k\n"}) {
    Serving server({"--api-key", key});
    EXPECT_EQ(server.Wait(seconds(20)), 2) << key << server.Log();
  }
}

TEST(ListenProcess, WhatNoBrowserSaysAndBodiesThatNeverFitAreMistakes) {
  const std::vector<std::vector<std::string>> mistakes = {
      {"--allowed-host", ""},           {"--allowed-host", "http://app.example"},
      {"--cors-origin", "app.example"}, {"--cors-origin", "https://app.example/"},
      {"--cors-origin", "https://"},    {"--max-body", "6", "--max-bodies", "5"},
  };
  for (const std::vector<std::string>& words : mistakes) {
    Serving server(words);
    EXPECT_EQ(server.Wait(seconds(20)), 2) << words[0] << " " << words[1] << server.Log();
    EXPECT_NE(server.Log().find(words[0]), std::string::npos) << server.Log();
  }
}

// Another try would not help: that is said.
TEST(ListenProcess, MoreSequencesThanAKeyMayHaveWaitingAreAMistake) {
  Serving server({"--max-queue-per-key", "2"});
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  const auto status = [&](const char* n) {
    return Call(server.port(), "POST", "/v1/completions", std::string(R"({"prompt":"a","max_tokens":1,"n":)") + n + "}")
        .status;
  };
  EXPECT_EQ(status("2"), 200);
  EXPECT_EQ(status("3"), 400);
}

TEST(ListenProcess, ABadAdminAddressIsAMistake) {
  for (const char* address : {"127.0.0.1", ":80", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000"}) {
    Serving server({"--admin-listen", address});
    EXPECT_EQ(server.Wait(seconds(20)), 2) << address << server.Log();
  }
}

}  // namespace
}  // namespace stoch::test
