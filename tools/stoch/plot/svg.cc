// SPDX-License-Identifier: Apache-2.0
#include "tools/stoch/plot/svg.h"

#include <fmt/format.h>

namespace stoch::cli {
namespace {

std::string Escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return result;
}

std::string Dashes(std::string_view dashes) {
  return dashes.empty() ? "" : fmt::format(" stroke-dasharray=\"{}\"", dashes);
}

// An element, with a title where there is one.
std::string Element(const std::string& open, std::string_view name, std::string_view title) {
  if (title.empty()) return open + "/>\n";
  return fmt::format("{}><title>{}</title></{}>\n", open, Escaped(title), name);
}

}  // namespace

double SvgTextWidth(std::string_view text, double size) {
  constexpr double kMeanWidth = 0.56;  // of the height of Helvetica
  return kMeanWidth * size * static_cast<double>(text.size());
}

Svg::Svg(double width, double height) : width_(width), height_(height) { Rect(0, 0, width, height, "#ffffff"); }

void Svg::Line(double x1, double y1, double x2, double y2, std::string_view colour, double width,
               std::string_view dashes) {
  body_ += fmt::format(
      "<line x1=\"{:.2f}\" y1=\"{:.2f}\" x2=\"{:.2f}\" y2=\"{:.2f}\" stroke=\"{}\" stroke-width=\"{:.2f}\"{}/>\n", x1,
      y1, x2, y2, colour, width, Dashes(dashes));
}

void Svg::Path(const std::vector<std::pair<double, double>>& points, std::string_view colour, double width,
               std::string_view dashes) {
  std::string text;
  for (const auto& [x, y] : points) text += fmt::format("{}{:.2f},{:.2f}", text.empty() ? "" : " ", x, y);
  body_ += fmt::format(
      "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{:.2f}\" stroke-linejoin=\"round\"{}/>\n",
      text, colour, width, Dashes(dashes));
}

void Svg::Rect(double x, double y, double width, double height, std::string_view fill, std::string_view title) {
  body_ += Element(fmt::format("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"", x, y,
                               width, height, fill),
                   "rect", title);
}

void Svg::Marker(int shape, double x, double y, std::string_view colour, std::string_view title) {
  constexpr double kRadius = 4;
  const auto polygon = [&](std::initializer_list<std::pair<double, double>> points) {
    std::string text;
    for (const auto& [dx, dy] : points) {
      text += fmt::format("{}{:.2f},{:.2f}", text.empty() ? "" : " ", x + dx * kRadius, y + dy * kRadius);
    }
    body_ += Element(fmt::format("<polygon points=\"{}\" fill=\"{}\"", text, colour), "polygon", title);
  };
  constexpr int kShapes = 5;
  switch (shape % kShapes) {
    case 0:
      body_ +=
          Element(fmt::format("<circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"{:.2f}\" fill=\"{}\"", x, y, kRadius, colour),
                  "circle", title);
      break;
    case 1: polygon({{-0.9, -0.9}, {0.9, -0.9}, {0.9, 0.9}, {-0.9, 0.9}}); break;
    case 2: polygon({{0, -1.2}, {1.1, 0.8}, {-1.1, 0.8}}); break;
    case 3: polygon({{0, -1.3}, {1.3, 0}, {0, 1.3}, {-1.3, 0}}); break;
    default: polygon({{-1.1, -0.8}, {1.1, -0.8}, {0, 1.2}}); break;
  }
}

void Svg::Text(std::string_view text, const SvgText& at) {
  const char* anchor = at.anchor == SvgAnchor::kStart ? "start" : (at.anchor == SvgAnchor::kMiddle ? "middle" : "end");
  body_ +=
      fmt::format("<text x=\"{:.2f}\" y=\"{:.2f}\" font-size=\"{:.2f}\" text-anchor=\"{}\" fill=\"{}\"{}{}>{}</text>\n",
                  at.x, at.y, at.size, anchor, at.colour, at.bold ? " font-weight=\"bold\"" : "",
                  at.turn == 0 ? "" : fmt::format(" transform=\"rotate({:.2f} {:.2f} {:.2f})\"", at.turn, at.x, at.y),
                  Escaped(text));
}

std::string Svg::Finish() const {
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
             "{1:.0f}\" "
             "font-family=\"Helvetica, Arial, sans-serif\">\n",
             width_, height_) +
         body_ + "</svg>\n";
}

}  // namespace stoch::cli
