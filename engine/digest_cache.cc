// SPDX-License-Identifier: Apache-2.0
#include "engine/digest_cache.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <ostream>
#include <system_error>
#include <vector>

#include "engine/weights_digest.h"
#include "kernels/base/error.h"
#include "loader/bounded_json.h"
#include "loader/file.h"
#include "loader/json_text.h"
#include "loader/sha256.h"

namespace stoch {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSchema = "stoch-digest-v1";

// Paths are left out: a folder may be mounted elsewhere.
Json StampsJson(const ModelFiles& files) {
  Json list = Json::array();
  for (const FileStamp& stamp : files.weights->files()) {
    list.push_back({{"name", stamp.path.filename().string()},
                    {"device", stamp.device},
                    {"inode", stamp.inode},
                    {"size", stamp.size_bytes},
                    {"changed_ns", stamp.changed_ns}});
  }
  return list;
}

bool IsDigest(const std::string& text) {
  constexpr size_t kDigits = 64;
  return text.size() == kDigits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

std::filesystem::path DigestCachePath(const ModelFiles& files) {
  if (files.folder.empty()) return {};
  std::error_code ignored;
  std::filesystem::path model = std::filesystem::weakly_canonical(files.folder, ignored);
  if (model.empty()) model = files.folder;
  if (!model.has_filename()) model = model.parent_path();
  const char* folder = std::getenv("STOCH_CACHE");
  if (folder == nullptr || *folder == '\0') return model.string() + ".sha256";
  constexpr size_t kDigits = 16;
  return std::filesystem::path(folder) /
         (model.filename().string() + "-" + Sha256Hex(model.string()).substr(0, kDigits) + ".sha256");
}

void KeepDigest(const ModelFiles& files, const std::string& digest) {
  const std::filesystem::path path = DigestCachePath(files);
  if (path.empty()) return;
  const Json kept = {{"schema", kSchema}, {"digest", digest}, {"files", StampsJson(files)}};
  if (ReplaceFile(path, [&kept](std::ostream& file) { file << JsonText(kept, 1) << '\n'; })) return;
  throw InvalidInput(path.string() + ": cannot be written: STOCH_CACHE names another folder for it");
}

std::string KeptDigest(const ModelFiles& files) {
  const std::filesystem::path path = DigestCachePath(files);
  std::error_code ignored;
  if (path.empty() || !std::filesystem::is_regular_file(path, ignored)) return "";
  constexpr int64_t kMaxBytes = int64_t{16} << 20;
  try {
    const nlohmann::json kept = ParseBoundedJson(ReadSmallFile(path.string(), kMaxBytes), path.string());
    if (!kept.is_object() || kept.value("schema", "") != kSchema) return "";
    const std::string digest = kept.value("digest", "");
    const bool same = kept.contains("files") && kept["files"] == nlohmann::json(StampsJson(files));
    return same && IsDigest(digest) ? digest : "";
  } catch (const InvalidInput&) {
    return "";  // damaged: it is made again
  } catch (const nlohmann::json::exception&) {
    return "";
  }
}

std::string FindDigest(const ModelFiles& files, int threads, bool verify, const std::function<bool()>& stop) {
  std::string kept = KeptDigest(files);
  if (!kept.empty() && !verify) return kept;
  std::string digest = DigestWeights(files, threads, stop);
  if (!kept.empty() && !digest.empty() && digest != kept) {
    throw InvalidInput(DigestCachePath(files).string() + ": says " + kept + ", the weights have " + digest +
                       ": they were changed without a trace; stoch inspect --digest writes it again");
  }
  return digest;
}

}  // namespace stoch
