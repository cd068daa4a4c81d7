// SPDX-License-Identifier: Apache-2.0
#include "app/report/table.h"

#include <fmt/format.h>

#include <algorithm>

namespace stoch::cli {
namespace {

// Columns a terminal needs for UTF-8 text of narrow characters.
size_t Width(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80; }));
}

std::string Quote(const std::string& cell) {
  if (cell.find_first_of(",\"\n") == std::string::npos) return cell;
  std::string quoted = "\"";
  for (const char c : cell) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

}  // namespace

std::string CsvLine(const std::vector<std::string>& cells) {
  std::string text;
  for (size_t i = 0; i < cells.size(); ++i) text += (i > 0 ? "," : "") + Quote(cells[i]);
  return text + '\n';
}

std::string Table::Markdown() const {
  std::vector<size_t> widths(rows_[0].size(), 3);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  }
  std::string text;
  for (size_t r = 0; r < rows_.size(); ++r) {
    for (size_t i = 0; i < widths.size(); ++i) {
      const std::string padding(widths[i] - Width(rows_[r][i]), ' ');
      text += i == 0 ? "| " + rows_[r][i] + padding : " | " + padding + rows_[r][i];
    }
    text += " |\n";
    if (r > 0) continue;
    for (size_t i = 0; i < widths.size(); ++i) {
      text += (i == 0 ? "| " : " | ") + std::string(widths[i] - 1, '-') + (i == 0 ? "-" : ":");
    }
    text += " |\n";
  }
  return text;
}

std::string Table::Csv() const {
  std::string text;
  for (const auto& row : rows_) text += CsvLine(row);
  return text;
}

}  // namespace stoch::cli
