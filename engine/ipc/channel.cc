// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/channel.h"

#include <fcntl.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/message_lite.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <cstring>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>

#include "kernels/base/error.h"

namespace stoch::ipc {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;  // of a message; both ends are ours

// For read_until: as many bytes as the length in front says are there.
struct WholeMessage {
  template <class Iterator>
  std::pair<Iterator, bool> operator()(Iterator begin, Iterator end) const {
    std::array<uint8_t, 5> front{};  // of a 32 bit varint
    const auto there = end - begin;
    const int bytes = static_cast<int>(std::min<std::ptrdiff_t>(there, front.size()));
    std::copy_n(begin, bytes, front.begin());
    google::protobuf::io::CodedInputStream stream(front.data(), bytes);
    uint32_t size = 0;
    if (!stream.ReadVarint32(&size)) return {begin, false};
    const std::ptrdiff_t all = stream.CurrentPosition() + static_cast<std::ptrdiff_t>(size);
    return there < all ? std::pair(begin, false) : std::pair(begin + all, true);
  }
};

int SecondOf(int fd) {
  const int second = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (second >= 0) return second;
  const int error = errno;
  close(fd);
  throw DeviceError(std::string("no channel: fcntl: ") + std::strerror(error));
}

// As much of it as there is room for; none where the other end is gone.
std::optional<size_t> SendSome(int fd, const std::string& bytes) {
  for (;;) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EAGAIN) return 0;
    if (errno != EINTR) return std::nullopt;
  }
}

// The length and the message, as ParseDelimitedFromZeroCopyStream takes them. Streams of protobuf over a string write their
// rest when they are destroyed, which ends the process where there is no memory: the string is made first.
std::string Delimited(const google::protobuf::MessageLite& message) {
  using google::protobuf::io::CodedOutputStream;
  const size_t size = message.ByteSizeLong();
  const auto front = static_cast<uint32_t>(size);
  std::string bytes(CodedOutputStream::VarintSize32(front) + size, 0);
  auto* const begin = reinterpret_cast<uint8_t*>(bytes.data());
  message.SerializeWithCachedSizesToArray(CodedOutputStream::WriteVarint32ToArray(front, begin));
  return bytes;
}

}  // namespace
}  // namespace stoch::ipc

template <>
struct boost::asio::is_match_condition<stoch::ipc::WholeMessage> : std::true_type {};

namespace stoch::ipc {

namespace asio = boost::asio;

Channel::Channel(asio::io_context& in, asio::io_context& out, int fd)
    : in_(in), out_(out), reader_(in), write_fd_(SecondOf(fd)), writer_(out) {
  reader_.assign(asio::local::stream_protocol(), fd);
}

Channel::~Channel() {
  if (!closed_ && !writer_.is_open()) close(write_fd_);
}

void Channel::Start(Reader on_message, std::function<void()> on_end) {
  on_message_ = std::move(on_message);
  on_end_ = std::move(on_end);
  asio::post(in_, [self = shared_from_this()] { self->Read(); });
}

void Channel::Read() {
  asio::async_read_until(reader_, asio::dynamic_buffer(received_, kMaxBytes), WholeMessage(),
                         [self = shared_from_this()](const boost::system::error_code& error, size_t bytes) {
                           bool good = !error;
                           if (good) {
                             google::protobuf::io::ArrayInputStream stream(self->received_.data(),
                                                                           static_cast<int>(bytes));
                             good = self->on_message_(&stream);
                             self->received_.erase(0, bytes);
                           }
                           if (good) return self->Read();
                           if (self->on_end_) std::exchange(self->on_end_, nullptr)();
                         });
}

void Channel::Send(const google::protobuf::MessageLite& message) {
  std::string bytes = Delimited(message);
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  if (!queue_.empty()) {
    queue_.push_back(std::move(bytes));
    return;
  }
  const std::optional<size_t> sent = SendSome(write_fd_, bytes);
  if (!sent || *sent == bytes.size()) return;
  try {
    bytes.erase(0, *sent);
    queue_.push_back(std::move(bytes));
    asio::post(out_, [self = shared_from_this()] {
      const std::lock_guard rest(self->mutex_);
      if (self->closed_) return;
      self->writer_.assign(asio::local::stream_protocol(), self->write_fd_);
      self->WriteRest();
    });
  } catch (const std::bad_alloc&) {
    queue_.clear();
    if (*sent > 0) shutdown(write_fd_, SHUT_RDWR);  // half a message: nobody reads another one behind it
    throw;
  }
}

void Channel::WriteRest() {
  asio::async_write(writer_, asio::buffer(queue_.front()),
                    [self = shared_from_this()](const boost::system::error_code& error, size_t) {
                      const std::lock_guard rest(self->mutex_);
                      self->OnWritten(static_cast<bool>(error));
                    });
}

void Channel::OnWritten(bool failed) {
  if (failed) {
    queue_.clear();
  } else {
    queue_.pop_front();
  }
  if (!queue_.empty()) return WriteRest();
  if (!closed_) writer_.release();
}

bool Channel::sent() const {
  const std::lock_guard lock(mutex_);
  return queue_.empty();
}

void Channel::Close() {
  boost::system::error_code ignored;
  reader_.close(ignored);
  const std::lock_guard lock(mutex_);
  if (std::exchange(closed_, true)) return;
  if (writer_.is_open()) {
    writer_.close(ignored);
  } else {
    close(write_fd_);
  }
}

}  // namespace stoch::ipc
