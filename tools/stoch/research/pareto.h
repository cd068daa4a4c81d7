// SPDX-License-Identifier: Apache-2.0
// Tables of mixed lengths for several average lengths, as stoch calibrate mp --pareto makes them, and the sweep that compares
// them with uniform lengths.
#pragma once

#include <string>
#include <vector>

#include "research/calibrate/exact_windows.h"
#include "research/sc_files.h"

namespace stoch::cli {

// The average lengths of LO:HI:STEP; none of "". Errors: InvalidInput.
std::vector<int> ParseAverages(const std::string& text);

struct ParetoPlan {
  std::string model, text;
  std::vector<std::string> sc;  // settings of every run
  ScFileOptions files;          // smooth and mask of every run
  CalibrationWindows windows;
  std::vector<int> averages;
  std::vector<std::string> tables;
};
// A plan of stoch sweep: uniform lengths, then the tables.
std::string ParetoPlanJson(const ParetoPlan& plan);

}  // namespace stoch::cli
