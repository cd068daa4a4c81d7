// A running server with a random tiny model, and a second engine of the same model to compare with.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/generate.h"
#include "engine/serve/server.h"
#include "kernels/registry.h"
#include "tests/engine/letters_tokenizer.h"
#include "tests/serve/http_client.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace stoch::test {

using Json = nlohmann::json;

// What: `condition` comes true within five seconds.
inline bool Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 1000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return condition();
}

class ServerFixture : public testing::Test {
 protected:
  static constexpr int64_t kContext = 128;

  explicit ServerFixture(int64_t context = kContext) {
    TinyModel model;
    model.config.max_position_embeddings = context;
    WriteTinyModel(scratch_.path(), model);
    engine_options_.context = context;
    engine_options_.max_sequences = 4;
    engine_options_.max_pass_rows = 48;
    server_options_.http.port = 0;
    server_options_.model_id = "tiny";
  }

  std::unique_ptr<Engine> OpenEngine() const {
    return Engine::Open(OpenBackend("cpu", {.threads = 1, .cpu_variant = ""}, nullptr),
                        OpenModelFiles(scratch_.path().string()), engine_options_);
  }
  void Listen() {
    server_ = std::make_unique<serve::Server>(server_options_, [this](const serve::LogLine& line) {
      const std::lock_guard lock(log_mutex_);
      log_.push_back(serve::FormatLogLine(line));
    });
  }
  void StartServer() {
    Listen();
    engine_ = OpenEngine();
    server_->Attach(*engine_, &tokenizer_);
  }

  uint16_t port() const { return server_->port(); }
  Reply Post(const std::string& path, const Json& body) const { return Call(port(), "POST", path, body.dump()); }
  Json Complete(const Json& body) const {
    const Reply reply = Post("/v1/completions", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.Json();
  }
  // The value of a metric without labels, or with the labels as they are printed.
  double Metric(const std::string& name) const {
    const std::string text = "\n" + Call(port(), "GET", "/metrics").body;
    const size_t at = text.find("\n" + name + " ");
    if (at == std::string::npos) return -1;
    return std::stod(text.substr(at + name.size() + 2));
  }
  bool Logged(const std::string& part) {
    const std::lock_guard lock(log_mutex_);
    for (const std::string& line : log_) {
      if (line.find(part) != std::string::npos) return true;
    }
    return false;
  }

  TempDir scratch_;
  EngineOptions engine_options_;
  serve::ServerOptions server_options_;
  LettersTokenizer tokenizer_;
  std::mutex log_mutex_;
  std::vector<std::string> log_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<serve::Server> server_;
};

}  // namespace stoch::test
