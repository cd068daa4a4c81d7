// SPDX-License-Identifier: Apache-2.0
// Messages over one end of a pair of local sockets. Wraps Boost.Asio and protobuf's delimited streams.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

namespace google::protobuf {
class MessageLite;
namespace io {
class ZeroCopyInputStream;
}
}  // namespace google::protobuf

namespace stoch::ipc {

// Threads: one runs `in`, where messages are taken, and one runs `out`, where what the socket had no room for leaves; it
// may be the same context. Both outlive this. Send may be called from any thread, and writes there.
class Channel : public std::enable_shared_from_this<Channel> {
 public:
  // Takes one message from the stream (ParseDelimitedFromZeroCopyStream); false: it is none, and the channel ends.
  using Reader = std::function<bool(google::protobuf::io::ZeroCopyInputStream* message)>;

  // Owns the descriptor. Errors: DeviceError where the system gives no second one of it.
  Channel(boost::asio::io_context& in, boost::asio::io_context& out, int fd);
  ~Channel();

  // Reads until the other end is gone or sends nonsense; on_end is called once then, and nothing after it.
  void Start(Reader on_message, std::function<void()> on_end);
  // Returns at once; messages leave in order. Those to an end that is gone are dropped.
  // Errors: bad_alloc, and then the message does not arrive; where a part of it has left, the channel has ended.
  void Send(const google::protobuf::MessageLite& message);
  // Drops what has not left. On the thread of `in`.
  void Close();
  bool sent() const;  // everything has left

 private:
  using Socket = boost::asio::local::stream_protocol::socket;

  void Read();
  // Requires: the lock of what is below, and something in queue_.
  void WriteRest();
  void OnWritten(bool failed);

  boost::asio::io_context& in_;
  boost::asio::io_context& out_;
  Socket reader_;
  Reader on_message_;
  std::function<void()> on_end_;
  std::string received_;

  mutable std::mutex mutex_;  // of what follows
  // The same open file. A reactor reports whatever happens to a socket that it knows, and `out` would wake for every
  // message that arrives: it knows this one while something waits for room, and not otherwise.
  const int write_fd_;
  Socket writer_;                  // write_fd_, where something waits
  std::deque<std::string> queue_;  // what the socket had no room for
  bool closed_ = false;
};

}  // namespace stoch::ipc
