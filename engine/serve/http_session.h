// One client's connection. Internal to the HTTP front (http_server.cc, http_session.cc): the only header that
// shows Boost.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>

#include "engine/serve/connection.h"
#include "engine/serve/http_options.h"

namespace stoch::serve {

class HttpSession;

// What the sessions of one server share.
struct HttpShared {
  HttpOptions options;
  HttpHandler handler;
  std::function<void(int status)> on_response;
  std::atomic<bool> closing{false};
  std::atomic<int64_t> exchanges{0};
  std::mutex mutex;
  std::unordered_set<HttpSession*> sessions;
};

// Everything runs on the strand of the socket. Reading never stops for long, also while an answer is being made: that
// is how a client that left is noticed.
class HttpSession final : public Connection, public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(boost::asio::ip::tcp::socket socket, HttpShared& shared);
  ~HttpSession() override;

  void Start();
  // What: any thread: closes the connection once no exchange is under way.
  void CloseWhenIdle();
  // What: drops what it holds. Requires: no thread runs it any more.
  void Abandon();

  void Post(std::function<void()> body) override;
  void Send(HttpResponse response) override;
  void StartEvents(HttpHeaders headers) override;
  void SendEvent(std::string_view data) override;
  void EndEvents() override;

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  void Read();
  void OnRead(boost::system::error_code error, size_t bytes);
  void OnEndOfInput();
  void Parse();
  void ContinueIfExpected();
  void Reject(boost::system::error_code error);
  void Dispatch();
  void Write(std::string_view bytes);
  void WriteSome();
  void OnWritten(boost::system::error_code error, size_t bytes);
  void NextRequest();
  void Linger();
  void Close();
  void ArmReadTimer(std::chrono::milliseconds timeout);
  void OnReadTimer();

  boost::asio::ip::tcp::socket socket_;
  HttpShared& shared_;
  boost::asio::steady_timer read_timer_;
  boost::asio::steady_timer write_timer_;

  std::array<char, 16384> chunk_{};  // of the read under way
  bool reading_ = false;
  std::string input_;  // read and not parsed
  std::optional<Parser> parser_;
  bool continue_sent_ = false;

  std::shared_ptr<Exchange> exchange_;
  bool busy_ = false;        // an exchange is under way
  bool answered_ = false;    // all of its bytes are in output_
  bool keep_alive_ = false;  // of the current request
  bool chunked_ = false;
  bool head_ = false;
  unsigned version_ = 11;

  std::string in_flight_;  // being written, from written_ on
  size_t written_ = 0;
  std::string output_;  // to be written next
  bool writing_ = false;

  bool lingering_ = false;  // sent everything; reads on so that the client gets to read it
  bool closed_ = false;
};

}  // namespace stoch::serve
