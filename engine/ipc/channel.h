// SPDX-License-Identifier: Apache-2.0
// Messages over one end of a pair of local sockets. Wraps Boost.Asio and protobuf's delimited streams.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>

namespace google::protobuf {
class MessageLite;
namespace io {
class ZeroCopyInputStream;
}
}  // namespace google::protobuf

namespace stoch::ipc {

// Threads: one runs the io_context, which must outlive this; Send may be called from any.
class Channel : public std::enable_shared_from_this<Channel> {
 public:
  // Takes one message from the stream (ParseDelimitedFromZeroCopyStream); false: it is none, and the channel ends.
  using Reader = std::function<bool(google::protobuf::io::ZeroCopyInputStream* message)>;

  // Owns the descriptor.
  Channel(boost::asio::io_context& io, int fd);

  // Reads until the other end is gone or sends nonsense; on_end is called once then, and nothing after it.
  void Start(Reader on_message, std::function<void()> on_end);
  // Returns at once; messages leave in order. Those to an end that is gone are dropped.
  void Send(const google::protobuf::MessageLite& message);
  // Drops what has not left.
  void Close();
  bool sent() const { return queue_.empty(); }  // io_context's thread only

 private:
  void Read();
  void Write();

  boost::asio::io_context& io_;
  boost::asio::local::stream_protocol::socket socket_;
  Reader on_message_;
  std::function<void()> on_end_;
  std::string received_;
  std::deque<std::string> queue_;
};

}  // namespace stoch::ipc
