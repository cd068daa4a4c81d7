// SPDX-License-Identifier: Apache-2.0
// A small HTTP client for tests of the server, over loopback.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace stoch::test {

struct Reply {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;

  nlohmann::json Json() const { return nlohmann::json::parse(body); }
  std::vector<std::string> Events() const;  // data of server-sent events
};

// One connection. Errors: std::runtime_error where the server is not there or does not answer within ten seconds.
class HttpClient {
 public:
  explicit HttpClient(uint16_t port);
  explicit HttpClient(const std::string& path);  // of a Unix socket
  ~HttpClient();

  Reply Call(const std::string& method, const std::string& path, const std::string& body = "",
             const std::map<std::string, std::string>& headers = {});
  void SendRaw(std::string_view bytes);
  Reply Receive(bool head = false);             // one response
  std::string ReadUntil(std::string_view end);  // raw bytes, up to where `end` was seen
  bool AtEnd();                                 // waits for the server to close; false if it sends something
  void EndSending();                            // the server reads an end of input
  std::string ReadToEnd();                      // raw bytes, until the server closes
  void Close();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The same on a connection of its own.
Reply Call(uint16_t port, const std::string& method, const std::string& path, const std::string& body = "",
           const std::map<std::string, std::string>& headers = {});

// The value of a series of /metrics, named with its labels but for model_name, which all have; -1 if it is not there.
double Metric(uint16_t port, const std::string& name);

}  // namespace stoch::test
