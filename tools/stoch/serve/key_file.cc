// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/serve/key_file.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>

#include "kernels/base/error.h"

namespace stoch::cli {
namespace {

constexpr size_t kMostKeys = 10000;
constexpr size_t kMostKeyBytes = 512;

std::string_view Trimmed(std::string_view line) {
  constexpr std::string_view kSpaces = " \t\r";
  line.remove_prefix(std::min(line.find_first_not_of(kSpaces), line.size()));
  return line.substr(0, line.find_last_not_of(kSpaces) + 1);
}

}  // namespace

KeyFile ReadKeyFile(const std::string& file) {
  const auto refuse = [&](const std::string& why) { throw InvalidInput("--api-key-file " + file + ": " + why); };
  struct stat status {};
  if (stat(file.c_str(), &status) != 0) refuse(std::strerror(errno));
  if (S_ISDIR(status.st_mode)) refuse("is a folder");
  std::ifstream in(file);
  if (!in) refuse(std::strerror(errno));
  KeyFile result;
  result.readable_by_others = (status.st_mode & (S_IRGRP | S_IROTH)) != 0;
  // No line is read beyond what a key may have.
  std::string buffer(2 * kMostKeyBytes, '\0');
  for (size_t number = 1; in.getline(buffer.data(), static_cast<std::streamsize>(buffer.size())) || in.gcount() > 0;
       ++number) {
    const std::string_view line = Trimmed(buffer.c_str());
    const bool is_long = in.fail() && !in.eof();
    if (!is_long && (line.empty() || line.front() == '#')) continue;
    if (is_long || line.size() > kMostKeyBytes)
      refuse(fmt::format("line {} has more than {} bytes", number, kMostKeyBytes));
    if (std::any_of(line.begin(), line.end(), [](char c) { return c <= ' ' || c > '~'; })) {
      refuse(fmt::format("line {} has a character that no key may have (a space, or none of ASCII)", number));
    }
    result.keys.emplace_back(line);
    if (result.keys.size() > kMostKeys) refuse(fmt::format("has more than {} keys", kMostKeys));
  }
  if (in.bad()) refuse("cannot be read");
  if (result.keys.empty()) refuse("has no key");
  return result;
}

}  // namespace stoch::cli
