// SPDX-License-Identifier: Apache-2.0
// Rows of a sweep as a table and as a figure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/stoch/research/sweep_plan.h"

namespace stoch::cli {

// --plot x=NAME,y=NAME[,by=NAME+NAME][,log=x+y][,error=ci|sd|minmax][,kind=box][,baseline=VALUE|SERIES|CONFIG|KEY]
// [,front=0][,size=WxH][,font=PT][,file=FILE]. A name is a metric (ppl, kl.kld.mean), a value of sc_cost
// (mac_avg_stoc_len) or a parameter of the grid; rows of equal `by` are joined by a line. A baseline, of which there may
// be several, is a number or the y of a run by its series, its config or the first digits of its key. x=layer,y=stoc_len
// has a line for each operator.
struct SweepPlot {
  std::string x, y, file;
  std::vector<std::string> by;
  bool x_logarithmic = false, y_logarithmic = false;
  std::vector<std::string> baselines;
  bool front = true;
  double width = 640, height = 420, font = 12;
  // Of a sweep with seeds: a point for each configuration at its means, with what is drawn around them.
  enum class Spread { kNone, kInterval, kDeviation, kExtremes, kBox } spread = Spread::kNone;
};
// Errors: InvalidInput naming what is missing or not known.
SweepPlot ParseSweepPlot(const std::string& text);

// Errors: InvalidInput: bars without seeds, names that no row will have, a baseline that is no number and no run.
void CheckPlot(const SweepPlan& plan, const SweepPlot& plot);

// The figure, with the Pareto front; runs over seeds that are drawn one by one have none. Rows that lack a value are
// left out. Requires: seeds if there is a spread. Errors: InvalidInput if all rows lack one.
std::string SweepSvg(const SweepPlan& plan, const SweepPlot& plot, const std::vector<std::string>& rows);

// Columns model, config, metric, value; a line for every number of metrics and of sc_cost.
std::string SweepTsv(const SweepPlan& plan, const std::vector<std::string>& rows);

}  // namespace stoch::cli
