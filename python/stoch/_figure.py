# SPDX-License-Identifier: Apache-2.0
"""A figure of the engine's in the formats of matplotlib: the same lines and words, drawn again."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from stoch import _stoch

_POINTS = 72  # of an inch, in which matplotlib has sizes; a unit of the figure is one
_ALIGN = {"start": "left", "middle": "center", "end": "right"}


def save(svg: str, path: str | os.PathLike[str]) -> None:
    """Writes the figure in the format that the suffix of `path` names. Raises InvalidInput without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise _stoch.InvalidInput(f"{path}: {Path(path).suffix} needs matplotlib (pip install matplotlib); .svg does not") from None
    root = ElementTree.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    figure = Figure(figsize=(width / _POINTS, height / _POINTS))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.axis("off")
    for order, element in enumerate(root):
        _draw(axes, element, order)
    formats = figure.canvas.get_supported_filetypes()
    kind = Path(path).suffix[1:].lower()
    if kind not in formats:
        raise _stoch.InvalidInput(f"{path}: .{kind}: allowed is .svg, .{', .'.join(sorted(formats))}")
    # Nothing of the day: the same figure is the same file.
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    figure.savefig(path, format=kind, metadata=metadata)


def _style(get: Any) -> dict[str, Any]:
    """What lines and areas have in common."""
    style: dict[str, Any] = {}
    if get("stroke"):
        style |= {"linewidth": float(get("stroke-width", "1"))}
    if get("stroke-dasharray"):
        style["linestyle"] = (0, [float(part) for part in re.split("[ ,]+", get("stroke-dasharray"))])
    return style


def _draw(axes: Any, element: ElementTree.Element, order: int) -> None:
    """One element, above those before it. `axes` is of matplotlib."""
    from matplotlib import patches as shapes

    patches: Any = shapes
    get = element.attrib.get

    def number(name: str) -> float:
        return float(get(name, "0"))

    points = [tuple(float(part) for part in pair.split(",")) for pair in get("points", "").split()]
    style = _style(get)
    area = {"facecolor": get("fill", "none"), "edgecolor": get("stroke", "none"), "zorder": order, **style}
    name = element.tag.rpartition("}")[2]
    if name == "line":
        axes.plot([number("x1"), number("x2")], [number("y1"), number("y2")], color=get("stroke"), zorder=order, **style)
    elif name == "polyline":
        axes.plot(*zip(*points, strict=True), color=get("stroke"), zorder=order, solid_joinstyle="round", **style)
    elif name == "polygon":
        axes.add_patch(patches.Polygon(points, **area))
    elif name == "circle":
        axes.add_patch(patches.Circle((number("cx"), number("cy")), number("r"), **area))
    elif name == "rect":
        axes.add_patch(patches.Rectangle((number("x"), number("y")), number("width"), number("height"), **area))
    elif name == "text":
        turn = re.match(r"rotate\((-?[0-9.]+)", get("transform", ""))
        axes.text(number("x"), number("y"), "".join(element.itertext()), fontsize=number("font-size"), color=get("fill"),
                  ha=_ALIGN[get("text-anchor", "start")], va="baseline", rotation=-float(turn[1]) if turn else 0,
                  rotation_mode="anchor", zorder=order, fontweight=get("font-weight", "normal"), parse_math=False)
    else:
        raise _stoch.InvalidInput(f"a figure has a {name}, which is not drawn")
