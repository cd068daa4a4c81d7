// SPDX-License-Identifier: Apache-2.0
#include "tests/serve/http_client.h"

#include <poll.h>

#include <algorithm>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <cctype>
#include <regex>
#include <sstream>
#include <stdexcept>

namespace stoch::test {

namespace asio = boost::asio;
namespace http = boost::beast::http;

std::vector<std::string> Reply::Events() const {
  std::vector<std::string> events;
  std::istringstream stream(body);
  for (std::string line; std::getline(stream, line);) {
    if (line.rfind("data: ", 0) == 0) events.push_back(line.substr(6));
  }
  return events;
}

namespace {

constexpr int kLimitMs = 60000;  // sanitizers on a busy machine take their time

// A socket whose reads end in time: Asio's own blocking reads wait for ever, whatever SO_RCVTIMEO says.
struct TimedSocket : asio::generic::stream_protocol::socket {
  using asio::generic::stream_protocol::socket::socket;

  template <class Buffers>
  size_t read_some(const Buffers& buffers, boost::system::error_code& error) {
    pollfd readable{native_handle(), POLLIN, 0};
    if (poll(&readable, 1, kLimitMs) == 0) {
      error = asio::error::timed_out;
      return 0;
    }
    return asio::generic::stream_protocol::socket::read_some(buffers, error);
  }
  template <class Buffers>
  size_t read_some(const Buffers& buffers) {
    boost::system::error_code error;
    const size_t bytes = read_some(buffers, error);
    if (error) throw boost::system::system_error(error);
    return bytes;
  }
};

}  // namespace

struct HttpClient::State {
  asio::io_context io;
  TimedSocket socket{io};
  boost::beast::flat_buffer buffer;
};

HttpClient::HttpClient(uint16_t port) : state_(std::make_unique<State>()) {
  state_->socket.connect(asio::ip::tcp::endpoint(asio::ip::address_v4::loopback(), port));
}

HttpClient::HttpClient(const std::string& path) : state_(std::make_unique<State>()) {
  state_->socket.connect(asio::local::stream_protocol::endpoint(path));
}

HttpClient::~HttpClient() = default;

Reply HttpClient::Call(const std::string& method, const std::string& path, const std::string& body,
                       const std::map<std::string, std::string>& headers) {
  std::string text = method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n";
  for (const auto& [name, value] : headers) text += name + ": " + value + "\r\n";
  if (!body.empty()) text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  SendRaw(text + "\r\n" + body);
  return Receive(method == "HEAD");
}

void HttpClient::SendRaw(std::string_view bytes) { asio::write(state_->socket, asio::buffer(bytes)); }

Reply HttpClient::Receive(bool head) {
  http::response_parser<http::string_body> parser;
  parser.body_limit(boost::none);
  parser.skip(head);
  http::read(state_->socket, state_->buffer, parser);
  Reply reply;
  reply.status = parser.get().result_int();
  for (const auto& field : parser.get()) {
    std::string name(field.name_string().data(), field.name_string().size());
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    reply.headers[name] = std::string(field.value().data(), field.value().size());
  }
  reply.body = parser.get().body();
  return reply;
}

std::string HttpClient::ReadUntil(std::string_view end) {
  std::string text;
  while (text.find(end) == std::string::npos) {
    char chunk[4096];
    text.append(chunk, state_->socket.read_some(asio::buffer(chunk)));
  }
  return text;
}

bool HttpClient::AtEnd() {
  char byte = 0;
  boost::system::error_code error;
  state_->socket.read_some(asio::buffer(&byte, 1), error);
  return error == asio::error::eof || error == asio::error::connection_reset;
}

void HttpClient::EndSending() {
  boost::system::error_code gone;  // the server may have closed first
  state_->socket.shutdown(TimedSocket::shutdown_send, gone);
}

std::string HttpClient::ReadToEnd() {
  std::string text;
  for (;;) {
    char chunk[4096];
    boost::system::error_code error;
    text.append(chunk, state_->socket.read_some(asio::buffer(chunk), error));
    if (error == asio::error::timed_out) throw boost::system::system_error(error);
    if (error) return text;
  }
}

void HttpClient::Close() { state_->socket.close(); }

Reply Call(uint16_t port, const std::string& method, const std::string& path, const std::string& body,
           const std::map<std::string, std::string>& headers) {
  return HttpClient(port).Call(method, path, body, headers);
}

double Metric(uint16_t port, const std::string& name) {
  static const std::regex kModel(R"re(\{model_name="[^"]*"\}|,?model_name="[^"]*")re");
  const std::string text = "\n" + std::regex_replace(Call(port, "GET", "/metrics").body, kModel, "");
  const size_t at = text.find("\n" + name + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
}

}  // namespace stoch::test
