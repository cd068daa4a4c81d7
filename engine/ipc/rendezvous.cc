// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/rendezvous.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "engine/ipc/crash_page.h"
#include "kernels/base/error.h"

namespace stoch::ipc {
namespace {

using Local = boost::asio::local::stream_protocol;

[[noreturn]] void Throw(const std::string& what, int error) {
  throw DeviceError("cannot start a worker: " + what + ": " + std::strerror(error));
}

std::string SocketOf(const std::string& folder) { return folder + "/socket"; }
std::string PageOf(const std::string& folder) { return folder + "/page"; }

}  // namespace

PrivateFolder::PrivateFolder() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  std::error_code error;
  const bool is_there = runtime != nullptr && std::filesystem::is_directory(runtime, error);
  path_ = std::string(is_there ? runtime : "/tmp") + "/stoch-XXXXXX";
  if (mkdtemp(path_.data()) == nullptr) Throw(path_, errno);
}

PrivateFolder::~PrivateFolder() {
  constexpr int kTries = 20;
  for (int i = 0; i < kTries; ++i) {  // a process that is about to end may still make files there
    std::error_code error;
    std::filesystem::remove_all(path_, error);
    if (!error) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

Rendezvous::Rendezvous(boost::asio::io_context& io) : acceptor_(io) {
  page_fd_ = open(PageOf(folder()).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
  const int error = page_fd_ < 0 || ftruncate(page_fd_, CrashPage::kBytes) != 0 ? errno : 0;
  try {
    if (error != 0) Throw(PageOf(folder()), error);
    const Local::endpoint endpoint(SocketOf(folder()));
    acceptor_.open(endpoint.protocol());
    acceptor_.bind(endpoint);
    acceptor_.listen(1);
  } catch (const std::exception& failure) {
    if (page_fd_ >= 0) close(page_fd_);
    throw DeviceError("cannot start a worker: " + SocketOf(folder()) + ": " + failure.what());
  }
}

Rendezvous::~Rendezvous() {
  if (page_fd_ >= 0) close(page_fd_);
}

int Rendezvous::TakePage() { return std::exchange(page_fd_, -1); }

void Rendezvous::Accept(std::function<void(int, pid_t)> on_met) {
  acceptor_.async_accept(
      [this, on_met = std::move(on_met)](const boost::system::error_code& error, Local::socket socket) mutable {
        if (error) return;  // closed
        ucred peer{};
        socklen_t size = sizeof(peer);
        const bool is_known = getsockopt(socket.native_handle(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
        if (!is_known || peer.uid != geteuid()) return Accept(std::move(on_met));
        on_met(socket.release(), peer.pid);  // nothing of this may be used after it
      });
}

GatewayFds ConnectToGateway(const std::string& folder) {
  const auto refuse = [&folder](const std::string& what, int error) {
    return InvalidInput("--gateway " + folder + ": " + what + ": " + std::strerror(error));
  };
  GatewayFds fds;
  fds.page_fd = open(PageOf(folder).c_str(), O_RDWR | O_CLOEXEC);
  if (fds.page_fd < 0) throw refuse("has no crash page", errno);
  fds.socket_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = SocketOf(folder);
  bool is_met = fds.socket_fd >= 0 && path.size() < sizeof(address.sun_path);
  if (is_met) {
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    is_met = connect(fds.socket_fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  if (is_met) return fds;
  const int error = errno;
  close(fds.page_fd);
  if (fds.socket_fd >= 0) close(fds.socket_fd);
  throw refuse("nobody listens", error);
}

}  // namespace stoch::ipc
