// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/serve/digest_thread.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <optional>
#include <stop_token>
#include <utility>

#include "engine/weights_digest.h"
#include "kernels/base/error.h"
#include "kernels/base/usable_threads.h"

namespace stoch::cli {
namespace {

constexpr int kNiceness = 10;
constexpr int kMaxThreads = 4;
constexpr std::chrono::milliseconds kMemoryPause{100};  // for some to be there again

// The digest, or why there is none; nothing where `stop` asks for the end.
std::optional<std::pair<std::string, std::string>> Digest(const std::string& model,
                                                          const std::vector<FileStamp>& stamps,
                                                          const std::stop_token& stop) {
  try {
    // Mapped a second time, with its own hints on what is read next.
    const ModelFiles files = OpenModelFiles(model);
    const std::vector<FileStamp> now = files.weights->files();
    const bool same = std::equal(now.begin(), now.end(), stamps.begin(), stamps.end(),
                                 [](const FileStamp& a, const FileStamp& b) { return a == b; });
    if (!same) throw InvalidInput(model + ": files were changed since they were loaded");
    const int threads = std::clamp(UsableThreads() / 2, 1, kMaxThreads);
    std::string digest = DigestWeights(files, threads, [&stop] { return stop.stop_requested(); });
    if (digest.empty()) return std::nullopt;
    return std::pair(std::move(digest), std::string());
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return std::pair(std::string(), std::string(error.what()));
  }
}

}  // namespace

// Without memory it begins again: nobody waits for it.
DigestThread::DigestThread(std::string model, std::vector<FileStamp> stamps,
                           std::function<void(const std::string&, const std::string&)> on_done)
    : thread_([model = std::move(model), stamps = std::move(stamps),
               on_done = std::move(on_done)](const std::stop_token& stop) {
        setpriority(PRIO_PROCESS, 0, kNiceness);  // of this thread alone, and of those it starts
        while (!stop.stop_requested()) {
          try {
            if (const auto done = Digest(model, stamps, stop)) on_done(done->first, done->second);
            return;
          } catch (const std::bad_alloc&) {
            std::this_thread::sleep_for(kMemoryPause);
          }
        }
      }) {}

}  // namespace stoch::cli
