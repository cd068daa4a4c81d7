// SPDX-License-Identifier: Apache-2.0
// Elements of an SVG image: no scripts, no fonts and no files besides itself.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stoch::cli {

enum class SvgAnchor { kStart, kMiddle, kEnd };

struct SvgText {
  double x = 0, y = 0;  // of the baseline
  SvgAnchor anchor = SvgAnchor::kStart;
  double size = 12;  // pixels
  bool bold = false;
  double turn = 0;  // degrees around (x, y)
  std::string_view colour = "#222222";
};

// Units: pixels from the top left. Bits: numbers have two decimals, so the text depends on no locale and no machine.
class Svg {
 public:
  Svg(double width, double height);

  void Line(double x1, double y1, double x2, double y2, std::string_view colour, double width = 1,
            std::string_view dashes = "");
  void Path(const std::vector<std::pair<double, double>>& points, std::string_view colour, double width = 1.5,
            std::string_view dashes = "");
  void Rect(double x, double y, double width, double height, std::string_view fill, std::string_view title = "");
  // One of a few shapes by number, so that series differ without colour. `title` is what a browser shows on hovering.
  void Marker(int shape, double x, double y, std::string_view colour, std::string_view title = "");
  void Text(std::string_view text, const SvgText& at);

  // The whole image, ending with a line break.
  std::string Finish() const;

 private:
  std::string body_;
  double width_, height_;
};

// About as wide as text of that size is in a sans-serif font.
double SvgTextWidth(std::string_view text, double size);

}  // namespace stoch::cli
