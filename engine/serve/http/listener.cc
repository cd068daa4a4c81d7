// SPDX-License-Identifier: Apache-2.0
#include "engine/serve/http/listener.h"

#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "engine/serve/http/server.h"

namespace stoch::serve {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using asio::local::stream_protocol;
using boost::system::error_code;

constexpr std::string_view kUnix = "unix:";
constexpr mode_t kMode = 0660;  // the server's user and group

std::string Message(const std::string& where, const std::string& why) {
  return "cannot listen on " + where + ": " + why;
}

[[noreturn]] void ThrowErrno() { throw boost::system::system_error(errno, boost::system::system_category()); }

std::string Written(const tcp::endpoint& endpoint) {
  const std::string address = endpoint.address().to_string();
  return (endpoint.address().is_v6() ? "[" + address + "]" : address) + ":" + std::to_string(endpoint.port());
}

// A server that was killed leaves its socket behind.
void RemoveStale(asio::io_context& io, const std::string& path) {
  struct stat file {};
  if (lstat(path.c_str(), &file) != 0) return;
  const std::string where = std::string(kUnix) + path;
  if (!S_ISSOCK(file.st_mode)) throw InvalidInput(Message(where, "it is there, and no socket"));
  stream_protocol::socket probe(io);
  error_code error;
  probe.connect(stream_protocol::endpoint(path), error);
  if (!error) throw AddressInUse(Message(where, "another server listens there"));
  if (error != asio::error::connection_refused) throw InvalidInput(Message(where, error.message()));
  unlink(path.c_str());
}

}  // namespace

HttpListener::HttpListener(asio::io_context& io, const HttpOptions& options) : acceptor_(io.get_executor()) {
  const bool is_path = options.host.starts_with(kUnix);
  try {
    if (options.listening_fd >= 0) {
      Adopt(options.listening_fd);
    } else if (is_path) {
      ListenOnPath(io, options.host.substr(kUnix.size()));
    } else {
      ListenOnTcp(io, options);
    }
  } catch (const boost::system::system_error& error) {
    const std::string message = Message(
        is_path ? options.host : options.host + ", port " + std::to_string(options.port), error.code().message());
    if (error.code() == boost::system::errc::address_in_use) throw AddressInUse(message);
    throw InvalidInput(message);
  }
}

HttpListener::~HttpListener() {
  struct stat now {};
  const bool is_ours =
      !path_.empty() && lstat(path_.c_str(), &now) == 0 && now.st_dev == file_.st_dev && now.st_ino == file_.st_ino;
  if (is_ours) unlink(path_.c_str());
}

void HttpListener::Adopt(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) ThrowErrno();
  acceptor_.assign(asio::generic::stream_protocol(address.ss_family, 0), fd);
  SetAddress();
}

void HttpListener::ListenOnTcp(asio::io_context& io, const HttpOptions& options) {
  tcp::resolver resolver(io);
  const auto flags = tcp::resolver::passive | tcp::resolver::numeric_service;
  const tcp::endpoint endpoint =
      resolver.resolve(options.host, std::to_string(options.port), flags).begin()->endpoint();
  acceptor_.open(asio::generic::stream_protocol(endpoint.protocol()));
  acceptor_.set_option(Acceptor::reuse_address(true));
  acceptor_.bind(endpoint);
  acceptor_.listen();
  SetAddress();
}

void HttpListener::ListenOnPath(asio::io_context& io, const std::string& path) {
  if (path.empty()) throw InvalidInput(Message(std::string(kUnix), "expected the path of a socket"));
  const stream_protocol::endpoint endpoint(path);
  RemoveStale(io, path);
  acceptor_.open(asio::generic::stream_protocol(endpoint.protocol()));
  acceptor_.bind(endpoint);
  path_ = path;
  lstat(path.c_str(), &file_);
  // Nobody can connect before it listens.
  if (chmod(path.c_str(), kMode) != 0) ThrowErrno();
  acceptor_.listen();
  SetAddress();
}

void HttpListener::SetAddress() {
  const asio::generic::stream_protocol::endpoint local = acceptor_.local_endpoint();
  if (local.protocol().family() == AF_UNIX) {
    stream_protocol::endpoint endpoint;
    endpoint.resize(local.size());
    std::memcpy(endpoint.data(), local.data(), local.size());
    address_ = std::string(kUnix) + endpoint.path();
    return;
  }
  tcp::endpoint endpoint;
  std::memcpy(endpoint.data(), local.data(), std::min(local.size(), endpoint.capacity()));
  address_ = Written(endpoint);
  port_ = endpoint.port();
  on_loopback_ = endpoint.address().is_loopback();
}

}  // namespace stoch::serve
