// SPDX-License-Identifier: Apache-2.0
// Where a worker that inherits no descriptors meets its gateway: a folder with a local socket and the crash page, which is
// gone once they have met.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <functional>
#include <string>

namespace stoch::ipc {

// A folder of mode 0700 in $XDG_RUNTIME_DIR or /tmp, which is gone with this, and all that is in it.
class PrivateFolder {
 public:
  PrivateFolder();  // Errors: DeviceError where the system refuses.
  ~PrivateFolder();
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The gateway's side. Threads: that of the io_context.
class Rendezvous {
 public:
  // Errors: DeviceError where the system refuses.
  explicit Rendezvous(boost::asio::io_context& io);
  // Removes the folder. What was met stays.
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  const std::string& folder() const { return folder_.path(); }
  // The descriptor of the crash page, once: who takes it owns it.
  int TakePage();
  // Hands over the socket of the first process of this user that connects, and which process that is.
  void Accept(std::function<void(int socket_fd, pid_t peer)> on_met);

 private:
  PrivateFolder folder_;
  int page_fd_ = -1;
  boost::asio::local::stream_protocol::acceptor acceptor_;
};

// The worker's side. Owned by who calls.
struct GatewayFds {
  int socket_fd = -1, page_fd = -1;
};
// Errors: InvalidInput where there is no such folder, or nobody listens there.
GatewayFds ConnectToGateway(const std::string& folder);

}  // namespace stoch::ipc
