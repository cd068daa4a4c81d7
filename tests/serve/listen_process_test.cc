// SPDX-License-Identifier: Apache-2.0
// Where `stoch serve` listens, as a process.

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "tests/serve/http_client.h"
#include "tests/serve/serving.h"
#include "tests/support/temp_dir.h"

namespace stoch::test {
namespace {

using std::chrono::seconds;

TEST(ListenProcess, AnswersAtAnAdminAddressAndOnAUnixSocket) {
  const TempDir folder;
  const std::string path = (folder.path() / "stoch.sock").string();
  Serving server({"--host", "unix:" + path, "--admin-listen", "127.0.0.1:0"});
  ASSERT_TRUE(server.Logs("ready")) << server.Log();
  EXPECT_EQ(HttpClient(path).Call("POST", "/tokenize", R"({"prompt":"a"})").status, 200);
  const std::string log = server.Log();
  const std::string address = "admin_listening address=127.0.0.1:";
  ASSERT_NE(log.find(address), std::string::npos) << log;
  const auto port = static_cast<uint16_t>(std::stoi(log.substr(log.find(address) + address.size())));
  EXPECT_EQ(Call(port, "GET", "/health").status, 200);
  EXPECT_EQ(Call(port, "GET", "/version").status, 404);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(seconds(30)), 0);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(ListenProcess, PagesOfOtherNamesNeedAKeyOnLoopback) {
  const auto status = [](const Serving& server, const std::string& more) {
    HttpClient client(server.port());
    client.SendRaw("GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n" + more + "\r\n");
    return client.Receive().status;
  };
  Serving open;
  ASSERT_TRUE(open.Logs("ready")) << open.Log();
  EXPECT_EQ(status(open, ""), 403);
  Serving allowed({"--allowed-host", "evil.example"});
  ASSERT_TRUE(allowed.Logs("ready")) << allowed.Log();
  EXPECT_EQ(status(allowed, ""), 200);
  Serving keyed({"--api-key", "k"});
  ASSERT_TRUE(keyed.Logs("ready")) << keyed.Log();
  EXPECT_EQ(status(keyed, "Authorization: Bearer k\r\n"), 200);
}

TEST(ListenProcess, ABadAdminAddressIsAMistake) {
  for (const char* address : {"127.0.0.1", ":80", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000"}) {
    Serving server({"--admin-listen", address});
    EXPECT_EQ(server.Wait(seconds(20)), 2) << address << server.Log();
  }
}

}  // namespace
}  // namespace stoch::test
