// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/serve/served_files.h"

#include <sys/resource.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <stop_token>
#include <utility>

#include "engine/weights_digest.h"
#include "kernels/base/error.h"
#include "kernels/base/usable_threads.h"
#include "loader/checkpoint/gguf/header.h"
#include "loader/sha256.h"

namespace stoch::cli {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{64} << 20;
constexpr int kNiceness = 10;
constexpr int kMaxThreads = 4;

// Of everything in front of a GGUF file's data: config and tokenizer are in there.
std::string DigestHeader(const std::filesystem::path& path) {
  const MappedFile file(path);
  size_t end = file.bytes().size();
  for (const gguf::Tensor& tensor : gguf::ParseHeader(file.bytes(), path.string()).tensors) {
    end = std::min(end, static_cast<size_t>(tensor.begin_bytes));
  }
  Sha256 hash;
  hash.Add(file.bytes().first(end));
  return hash.Hex();
}

std::string DigestFiles(const std::filesystem::path& folder, std::initializer_list<const char*> names) {
  Sha256 all;
  if (!std::filesystem::is_directory(folder)) return DigestHeader(folder);
  for (const char* name : names) {
    if (!std::filesystem::exists(folder / name)) continue;
    all.Add(std::string(name) + " " + Sha256Hex(ReadSmallFile(folder / name, kMaxFileBytes)) + "\n");
  }
  return all.Hex();
}

}  // namespace

serve::IdentityParts DigestSmallFiles(const ModelFiles& files, const std::string& tokenizer) {
  serve::IdentityParts parts;
  if (!files.folder.empty()) parts.config = DigestFiles(files.folder, {"config.json", "generation_config.json"});
  const std::filesystem::path folder = tokenizer.empty() ? files.folder : std::filesystem::path(tokenizer);
  if (folder.empty()) return parts;
  parts.tokenizer =
      DigestFiles(folder, {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
                           "added_tokens.json", "generation_config.json", "chat_template.jinja"});
  return parts;
}

DigestThread::DigestThread(std::string model, std::vector<FileStamp> stamps,
                           std::function<void(const std::string&, const std::string&)> on_done)
    : thread_([model = std::move(model), stamps = std::move(stamps),
               on_done = std::move(on_done)](const std::stop_token& stop) {
        setpriority(PRIO_PROCESS, 0, kNiceness);  // of this thread alone, and of those it starts
        try {
          // Mapped a second time, with its own hints on what is read next.
          const ModelFiles files = OpenModelFiles(model);
          const std::vector<FileStamp> now = files.weights->files();
          const bool same = std::equal(now.begin(), now.end(), stamps.begin(), stamps.end(),
                                       [](const FileStamp& a, const FileStamp& b) { return a == b; });
          if (!same) throw InvalidInput(model + ": files were changed since they were loaded");
          const int threads = std::clamp(UsableThreads() / 2, 1, kMaxThreads);
          const std::string digest = DigestWeights(files, threads, [&stop] { return stop.stop_requested(); });
          if (!digest.empty()) on_done(digest, "");
        } catch (const std::exception& error) {
          on_done("", error.what());
        }
      }) {}

}  // namespace stoch::cli
