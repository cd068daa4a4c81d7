// SPDX-License-Identifier: Apache-2.0
// The socket that the HTTP front listens on: TCP, Unix, or one that listens already. Internal to the HTTP front.
#pragma once

#include <sys/stat.h>

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <string>

#include "engine/serve/http/options.h"

namespace stoch::serve {

class HttpListener {
 public:
  using Acceptor =
      boost::asio::basic_socket_acceptor<boost::asio::generic::stream_protocol, boost::asio::io_context::executor_type>;

  // A socket file at which nobody listens any more is replaced. Errors: InvalidInput where it cannot listen, AddressInUse
  // where another server does.
  HttpListener(boost::asio::io_context& io, const HttpOptions& options);
  // Removes its socket from the file system.
  ~HttpListener();

  Acceptor& acceptor() { return acceptor_; }
  std::string address() const { return address_; }  // "127.0.0.1:8080", "[::1]:8080", "unix:PATH"
  uint16_t port() const { return port_; }           // 0 for a Unix socket
  bool on_loopback() const { return on_loopback_; }

 private:
  void Adopt(int fd);
  void ListenOnTcp(boost::asio::io_context& io, const HttpOptions& options);
  void ListenOnPath(boost::asio::io_context& io, const std::string& path);
  void SetAddress();

  Acceptor acceptor_;
  std::string address_;
  uint16_t port_ = 0;
  bool on_loopback_ = false;
  std::string path_;  // of the socket file that is ours, "" for none
  struct stat file_ {};
};

}  // namespace stoch::serve
