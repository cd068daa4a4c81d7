// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "tests/policy/rules.h"

namespace stoch::test {
namespace {

const SourceFile* FileAt(const std::vector<SourceFile>& files, std::string_view path) {
  for (const SourceFile& file : files) {
    if (file.path == path) return &file;
  }
  return nullptr;
}

// The names of the functions that are declared `virtual`.
std::vector<std::string> VirtualFunctions(const std::string& text) {
  constexpr std::string_view kVirtual = "\n  virtual ";
  std::vector<std::string> names;
  for (size_t at = text.find(kVirtual); at != std::string::npos; at = text.find(kVirtual, at + 1)) {
    const size_t end = text.find('(', at);
    if (end == std::string::npos) break;
    const size_t begin = text.find_last_of(" &*~", end - 1) + 1;
    if (text[begin - 1] != '~') names.push_back(text.substr(begin, end - begin));
  }
  return names;
}

}  // namespace

std::vector<std::string> CheckForwarding(const std::vector<SourceFile>& files) {
  const SourceFile* backend = FileAt(files, "kernels/backend.h");
  const SourceFile* forwarding = FileAt(files, "kernels/wrappers/forwarding_backend.h");
  if (backend == nullptr || forwarding == nullptr) return {};
  std::vector<std::string> findings;
  for (const std::string& name : VirtualFunctions(backend->text)) {
    if (forwarding->text.find("inner_->" + name + "(") != std::string::npos) continue;
    findings.push_back(forwarding->path + ":1: does not hand " + name + " on, which Backend declares");
  }
  return findings;
}

}  // namespace stoch::test
