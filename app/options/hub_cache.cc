// SPDX-License-Identifier: Apache-2.0
#include "app/options/hub_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "kernels/base/error.h"
#include "loader/file.h"

namespace stoch::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxName = 96;  // of either part, as on the hub

bool IsPart(std::string_view text) {
  const auto is_plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
  };
  return !text.empty() && text.size() <= kMaxName && text[0] != '.' && text[0] != '-' &&
         text.find("..") == std::string_view::npos && text.find("--") == std::string_view::npos &&
         std::all_of(text.begin(), text.end(), is_plain);
}

// Branches have slashes, too. "..": none.
bool IsRevision(std::string_view text) {
  for (std::string_view rest = text;;) {
    const size_t end = std::min(rest.find('/'), rest.size());
    if (!IsPart(rest.substr(0, end))) return false;
    if (end == rest.size()) return true;
    rest.remove_prefix(end + 1);
  }
}

struct HubName {
  std::string repository, revision;
};

HubName Split(const std::string& text) {
  const size_t at = text.find('@');
  return {text.substr(0, at), at == std::string::npos ? "main" : text.substr(at + 1)};
}

fs::path Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

fs::path CacheFolder() {
  for (const char* whole : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (fs::path folder = Variable(whole); !folder.empty()) return folder;
  }
  if (const fs::path home = Variable("HF_HOME"); !home.empty()) return home / "hub";
  fs::path cache = Variable("XDG_CACHE_HOME");
  if (cache.empty()) cache = Variable("HOME") / ".cache";
  return cache / "huggingface" / "hub";
}

}  // namespace

bool IsHubName(const std::string& text) {
  const HubName name = Split(text);
  const std::string_view repository = name.repository;
  const size_t slash = repository.find('/');
  std::error_code error;
  return slash != std::string::npos && IsPart(repository.substr(0, slash)) && IsPart(repository.substr(slash + 1)) &&
         IsRevision(name.revision) && !fs::exists(text, error);
}

std::string HubCacheFolder(const std::string& name) {
  constexpr int64_t kMaxReference = 256;
  const HubName asked = Split(name);
  std::string folder = "models--" + asked.repository;
  folder.replace(folder.find('/'), 1, "--");
  const fs::path cache = CacheFolder();
  const fs::path repository = cache / folder;
  std::error_code error;
  std::string commit = asked.revision;
  if (const fs::path reference = repository / "refs" / asked.revision; fs::is_regular_file(reference, error)) {
    commit = ReadSmallFile(reference, kMaxReference);
    while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back())) != 0) commit.pop_back();
  }
  const fs::path snapshot = repository / "snapshots" / commit;
  if (IsPart(commit) && fs::is_directory(snapshot, error)) return snapshot.string();
  const std::string revision = asked.revision == "main" ? "" : " --revision " + asked.revision;
  throw InvalidInput(fmt::format("{} is no folder, and not in the Hugging Face cache {}; hf download {}{}", name,
                                 cache.string(), asked.repository, revision));
}

}  // namespace stoch::cli
