// SPDX-License-Identifier: Apache-2.0
// Where the server listens, and which pages of browsers it answers.

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/serve/http/server.h"
#include "kernels/base/error.h"
#include "tests/serve/server_fixture.h"

namespace stoch::test {
namespace {

using HostCheck = serve::BrowserOptions::HostCheck;
using Headers = std::map<std::string, std::string>;

class Listening : public ServerFixture {
 protected:
  std::string Path() const { return (scratch_.path() / "stoch.sock").string(); }
  // What a start with these options says is wrong; "" for nothing.
  std::string Refusal() {
    try {
      server_.reset();
      Listen();
      server_.reset();
      return "";
    } catch (const InvalidInput& error) {
      return error.what();
    }
  }
  // A socket file at which nobody listens, as a server that was killed leaves it.
  void LeaveSocket() const {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    Path().copy(address.sun_path, sizeof(address.sun_path) - 1);
    ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    close(fd);
  }
};

TEST_F(Listening, OnAUnixSocket) {
  server_options_.http.host = "unix:" + Path();
  StartServer();
  EXPECT_EQ(server_->address(), "unix:" + Path());
  EXPECT_EQ(server_->port(), 0);
  struct stat file {};
  ASSERT_EQ(stat(Path().c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0660u);
  HttpClient client(Path());
  EXPECT_EQ(client.Call("GET", "/health").status, 200);
  const std::string body = R"({"prompt": "a", "max_tokens": 3, "ignore_eos": true})";
  EXPECT_EQ(client.Call("POST", "/v1/completions", body).Json()["usage"]["completion_tokens"], 3);
  server_.reset();
  EXPECT_NE(stat(Path().c_str(), &file), 0);
}

TEST_F(Listening, OnASocketThatIsLeftBehind) {
  LeaveSocket();
  server_options_.http.host = "unix:" + Path();
  StartServer();
  EXPECT_EQ(HttpClient(Path()).Call("GET", "/health").status, 200);
}

TEST_F(Listening, NotWhereAnotherListensOrNoSocketIs) {
  const std::string file = (scratch_.path() / "file").string();
  WriteFile(file, "mine");
  server_options_.http.host = "unix:" + file;
  EXPECT_EQ(Refusal(), "cannot listen on unix:" + file + ": it is there, and no socket");
  EXPECT_EQ(ReadFile(file), "mine");
  server_options_.http.host = "unix:";
  EXPECT_EQ(Refusal(), "cannot listen on unix:: expected the path of a socket");
  server_options_.http.host = "unix:" + std::string(200, 'x');
  EXPECT_NE(Refusal(), "");
  server_options_.http.host = "unix:" + Path();
  StartServer();
  EXPECT_THROW(serve::Server(server_options_, [](const serve::LogLine&) {}), serve::AddressInUse);
  EXPECT_EQ(HttpClient(Path()).Call("GET", "/health").status, 200);
  // Another one that took the path in the meantime keeps it.
  ASSERT_EQ(unlink(Path().c_str()), 0);
  WriteFile(Path(), "another");
  server_.reset();
  EXPECT_EQ(ReadFile(Path()), "another");
}

// Whoever holds every connection of the main door, /health is answered at the other, which has no other use.
TEST_F(Listening, AnAdminDoorOfItsOwn) {
  server_options_.api.api_keys = {"secret"};
  server_options_.http.max_connections = 2;
  server_options_.admin.emplace();
  server_options_.admin->host = "unix:" + Path();
  server_options_.admin->max_connections = 2;
  StartServer();
  std::vector<std::unique_ptr<HttpClient>> idle;
  for (int i = 0; i < 40; ++i) idle.push_back(std::make_unique<HttpClient>(port()));
  std::vector<std::unique_ptr<HttpClient>> idle_there;
  for (int i = 0; i < 40; ++i) idle_there.push_back(std::make_unique<HttpClient>(Path()));
  HttpClient client(Path());
  EXPECT_EQ(client.Call("GET", "/health").status, 200);
  EXPECT_NE(client.Call("GET", "/metrics").body.find("stoch_requests_running"), std::string::npos);
  for (const char* path : {"/", "/version", "/v1/models", "/v1/completions", "/tokenize"}) {
    EXPECT_EQ(client.Call("GET", path).status, 404) << path;
  }
  HttpClient other(Path());
  EXPECT_EQ(other.Call("POST", "/v1/completions", "{}").status, 404);
  EXPECT_TRUE(other.AtEnd());  // its body was not read
  EXPECT_EQ(Call(port(), "GET", "/metrics").status, 401);
}

class Browsers : public ServerFixture {
 protected:
  int Status(const std::string& method, const std::string& path, const Headers& headers) const {
    return Call(port(), method, path, method == "POST" ? R"({"prompt":"a"})" : "", headers).status;
  }
  int StatusOfHost(const std::string& host) const {
    HttpClient client(port());
    client.SendRaw("GET /version HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
    return client.Receive().status;
  }
};

// DNS rebinding: evil.example leads to 127.0.0.1, and a page of evil.example asks, as it thinks, its own server.
TEST_F(Browsers, ServersOnLoopbackKnowTheirNames) {
  server_options_.http.browsers.check_host = HostCheck::kOnLoopback;
  server_options_.http.browsers.allowed_hosts = {"stoch.example"};
  StartServer();
  for (const char* host : {"localhost", "LOCALHOST:8080", "a.localhost", "127.0.0.1", "127.0.0.1:80", "[::1]:80",
                           "192.168.0.7", "stoch.example", "Stoch.Example:443", "stoch.example.", ""}) {
    EXPECT_EQ(StatusOfHost(host), 200) << host;
  }
  for (const char* host : {"evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example",
                           "xlocalhost", "stoch.example.evil.example", "[evil]"}) {
    EXPECT_EQ(StatusOfHost(host), 403) << host;
  }
  // The name that counts is that of the target, where it has one.
  HttpClient client(port());
  client.SendRaw("GET http://evil.example/version HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(client.Receive().status, 403);
}

TEST_F(Browsers, OtherServersAnswerToAnyName) {
  server_options_.http.browsers.check_host = HostCheck::kOnLoopback;
  server_options_.http.host = "0.0.0.0";
  StartServer();
  EXPECT_EQ(StatusOfHost("evil.example"), 200);
  server_options_.http.browsers.check_host = HostCheck::kAlways;
  server_.reset();
  StartServer();
  EXPECT_EQ(StatusOfHost("evil.example"), 403);
}

// A browser sends text/plain from any page without asking, and application/json never.
TEST_F(Browsers, BodiesOfPagesAreDeclaredAsJson) {
  StartServer();
  const std::string origin = "https://evil.example";
  for (const char* type : {"text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded", "",
                           "text/plain; a=application/json", "application/jsonx"}) {
    EXPECT_EQ(Status("POST", "/tokenize", {{"Origin", origin}, {"Content-Type", type}}), 415) << type;
    EXPECT_EQ(Status("POST", "/tokenize", {{"Origin", "null"}, {"Content-Type", type}}), 415) << type;
    EXPECT_EQ(Status("POST", "/tokenize", {{"Content-Type", type}}), 200) << type;
  }
  for (const char* type : {"application/json", "Application/JSON; charset=utf-8", "application/json ;x"}) {
    EXPECT_EQ(Status("POST", "/tokenize", {{"Origin", origin}, {"Content-Type", type}}), 200) << type;
  }
  EXPECT_EQ(Status("POST", "/tokenize", {{"Origin", origin}}), 415);
  EXPECT_EQ(Status("GET", "/version", {{"Origin", origin}}), 200);
}

TEST_F(Browsers, PagesOfOthersReadNothing) {
  StartServer();
  const Headers asks = {{"Origin", "https://app.example"}, {"Access-Control-Request-Method", "POST"}};
  const Reply reply = Call(port(), "GET", "/version", "", asks);
  EXPECT_EQ(reply.headers.count("access-control-allow-origin"), 0u);
  const Reply preflight = Call(port(), "OPTIONS", "/v1/completions", "", asks);
  EXPECT_EQ(preflight.status, 405);
  EXPECT_EQ(preflight.headers.count("access-control-allow-origin"), 0u);
}

TEST_F(Browsers, PagesOfAllowedOriginsDo) {
  server_options_.api.api_keys = {"secret"};
  server_options_.http.browsers.cors_origins = {"https://app.example", "http://localhost:3000"};
  StartServer();
  for (const std::string origin : {"https://app.example", "http://localhost:3000"}) {
    HttpClient client(port());
    const Reply preflight =
        client.Call("OPTIONS", "/v1/completions", "", {{"Origin", origin}, {"Access-Control-Request-Method", "POST"}});
    EXPECT_EQ(preflight.status, 204);
    EXPECT_EQ(preflight.headers.at("access-control-allow-origin"), origin);
    EXPECT_EQ(preflight.headers.at("access-control-allow-headers"), "*, Authorization");
    EXPECT_EQ(preflight.headers.at("vary"), "Origin");
    EXPECT_EQ(preflight.headers.count("content-type"), 0u);
    EXPECT_EQ(preflight.body, "");
    // Also what is wrong is for the page to read, and a stream.
    const Headers from = {{"Origin", origin}, {"Content-Type", "application/json"}};
    const Reply refused = client.Call("POST", "/v1/completions", "{}", from);
    EXPECT_EQ(refused.status, 401);
    EXPECT_EQ(refused.headers.at("access-control-allow-origin"), origin);
    Headers with_key = from;
    with_key["Authorization"] = "Bearer secret";
    const std::string body = R"({"prompt": "a", "max_tokens": 2, "stream": true})";
    const Reply stream = Call(port(), "POST", "/v1/completions", body, with_key);
    EXPECT_EQ(stream.status, 200);
    EXPECT_EQ(stream.headers.at("access-control-allow-origin"), origin);
  }
  for (const std::string origin : {"https://evil.example", "null", "https://app.example.evil.example"}) {
    const Reply reply = Call(port(), "GET", "/health", "", {{"Origin", origin}});
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.headers.count("access-control-allow-origin"), 0u) << origin;
    EXPECT_EQ(reply.headers.at("vary"), "Origin");
  }
  server_.reset();
  server_options_.http.browsers.cors_origins = {"*"};
  StartServer();
  const Reply any = Call(port(), "GET", "/health", "", {{"Origin", "https://evil.example"}});
  EXPECT_EQ(any.headers.at("access-control-allow-origin"), "*");
}

}  // namespace
}  // namespace stoch::test
