// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/reference_cache.h"

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

namespace stoch::test {
namespace {

template <typename T>
void Write(std::ofstream& out, const T* data, size_t count) {
  out.write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(count * sizeof(T)));
}
template <typename T>
std::vector<T> Read(std::ifstream& in) {
  uint64_t count = 0;
  in.read(reinterpret_cast<char*>(&count), sizeof(count));
  std::vector<T> data(in ? count : 0);
  in.read(reinterpret_cast<char*>(data.data()), static_cast<std::streamsize>(data.size() * sizeof(T)));
  return data;
}
template <typename T>
void WriteCounted(std::ofstream& out, const T* data, uint64_t count) {
  Write(out, &count, 1);
  Write(out, data, count);
}

// Of another description with the same hash: nothing.
std::optional<AttentionRows> Load(const std::filesystem::path& file, const std::string& description) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return std::nullopt;
  const std::vector<char> text = Read<char>(in);
  if (std::string(text.begin(), text.end()) != description) return std::nullopt;
  const std::vector<int32_t> names = Read<int32_t>(in);
  AttentionRows rows;
  for (size_t i = 0; i + 1 < names.size(); i += 2) rows[{names[i], names[i + 1]}] = Read<float>(in);
  if (!in) return std::nullopt;
  return rows;
}

void Keep(const std::filesystem::path& file, const std::string& description, const AttentionRows& rows) {
  const std::filesystem::path own = file.string() + "." + std::to_string(getpid());
  std::ofstream out(own, std::ios::binary);
  WriteCounted(out, description.data(), description.size());
  std::vector<int32_t> names;
  for (const auto& [name, row] : rows) names.insert(names.end(), {name.first, name.second});
  WriteCounted(out, names.data(), names.size());
  for (const auto& [name, row] : rows) WriteCounted(out, row.data(), row.size());
  out.close();
  std::error_code ignored;
  if (out) {
    std::filesystem::rename(own, file, ignored);
  } else {
    std::filesystem::remove(own, ignored);
  }
}

}  // namespace

AttentionRows Reference(const std::string& description, const std::function<AttentionRows()>& compute) {
  const char* folder = std::getenv("STOCH_TEST_REFERENCES");
  if (folder == nullptr) return compute();
  const std::filesystem::path file =
      std::filesystem::path(folder) / std::to_string(std::hash<std::string>()(description));
  if (std::optional<AttentionRows> kept = Load(file, description)) return std::move(*kept);
  AttentionRows rows = compute();
  Keep(file, description, rows);
  return rows;
}

}  // namespace stoch::test
