// SPDX-License-Identifier: Apache-2.0
// A table of text cells, as Markdown that is aligned for the eye, or as CSV.
#pragma once

#include <string>
#include <vector>

namespace stoch::cli {

// Cells as a line of CSV (RFC 4180): those with commas, quotes or line breaks are quoted.
std::string CsvLine(const std::vector<std::string>& cells);

class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  // Requires: as many cells as the header.
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

  // First column left-aligned, the others right-aligned.
  std::string Markdown() const;
  std::string Csv() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace stoch::cli
