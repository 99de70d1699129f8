"""Plots as self-contained SVG: lines over an axis, and bars; no library, no script, no font."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 760, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 40, 50
COLOURS = (
    "#2a78d6", "#e07b39", "#2f9e6e", "#8a5cc4", "#c23b53", "#5f6b7a", "#b08900", "#1aa3b8",
    "#d36ba6", "#7a9a01", "#444444", "#a05a2c",
)  # fmt: skip
OF_DRAFTER = {"none": "#5f6b7a", "ngram": "#e07b39", "eagle": "#8a5cc4"}

Points = Sequence[tuple[float, float]]


def lines(
    title: str, x_title: str, y_title: str, series: Mapping[str, Points], *, log_x: bool = False
) -> str:
    """A line for each series; the y axis begins at 0. A sentence where there is nothing to draw."""
    points = [point for some in series.values() for point in some]
    if not points:
        return _page(title, [_text(WIDTH / 2, HEIGHT / 2, "There is nothing to draw yet.")])
    xs = [math.log2(x) if log_x else x for x, _ in points]
    low, high = min(xs), max(xs)
    if low == high:
        low, high = low - 0.5, high + 0.5
    top = _ceiling(max(y for _, y in points))

    def place(x: float, y: float) -> tuple[float, float]:
        at = math.log2(x) if log_x else x
        across = LEFT + (at - low) / (high - low) * (WIDTH - LEFT - RIGHT)
        return across, HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM)

    parts = _axes(x_title, y_title, top)
    for x in sorted({x for x, _ in points}) if log_x else _steps(low, high):
        across, _ = place(x, 0.0)
        parts.append(_text(across, HEIGHT - BOTTOM + 18, f"{x:g}"))
    for number, (name, some) in enumerate(series.items()):
        colour = OF_DRAFTER.get(name, COLOURS[number % len(COLOURS)])
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in some))
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>')
        parts += _legend(number, name, colour)
    return _page(title, parts)


def bars(title: str, y_title: str, values: Mapping[str, float]) -> str:
    """A bar for each value, named in the legend, its value above it."""
    if not values:
        return _page(title, [_text(WIDTH / 2, HEIGHT / 2, "There is nothing to draw yet.")])
    top = _ceiling(max(values.values()))
    parts = _axes("", y_title, top)
    room = (WIDTH - LEFT - RIGHT) / len(values)
    for number, (name, value) in enumerate(values.items()):
        colour = OF_DRAFTER.get(name, COLOURS[number % len(COLOURS)])
        tall = max(value, 0.0) / top * (HEIGHT - TOP - BOTTOM)
        left, above = LEFT + (number + 0.15) * room, HEIGHT - BOTTOM - tall
        parts.append(
            f'<rect x="{left:.1f}" y="{above:.1f}" width="{0.7 * room:.1f}" height="{tall:.1f}" '
            f'fill="{colour}"><title>{escape(name)}: {value:g}</title></rect>'
        )
        parts.append(_text(left + 0.35 * room, above - 5, f"{value:.3g}", size=10))
        parts += _legend(number, name, colour)
    return _page(title, parts)


def stack(plots: Sequence[str]) -> str:
    """Plots one below the other in one file."""
    inner = [
        f'<svg y="{number * HEIGHT}" width="{WIDTH}" height="{HEIGHT}">{plot}</svg>'
        for number, plot in enumerate(plots)
    ]
    tall = HEIGHT * len(plots)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{tall}" '
        f'viewBox="0 0 {WIDTH} {tall}">{"".join(inner)}</svg>\n'
    )


def _page(title: str, parts: Sequence[str]) -> str:
    heading = _text(LEFT, 22, title, size=15, anchor="start")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>{heading}{"".join(parts)}</svg>'
    )


def _axes(x_title: str, y_title: str, top: float) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts: list[str] = []
    for value in _steps(0.0, top):
        y = bottom - value / top * (bottom - TOP)
        parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{value:g}", anchor="end"))
    parts.append(_text((LEFT + right) / 2, HEIGHT - 10, x_title))
    middle = (TOP + bottom) / 2
    parts.append(
        f'<text x="16" y="{middle}" font-size="12" text-anchor="middle" '
        f'transform="rotate(-90 16 {middle})">{escape(y_title)}</text>'
    )
    return parts


def _legend(number: int, name: str, colour: str) -> list[str]:
    left, y = WIDTH - RIGHT + 14, TOP + 12 + 18 * number
    return [
        f'<rect x="{left}" y="{y - 9}" width="10" height="10" fill="{colour}"/>',
        _text(left + 15, y, name[:28], anchor="start"),
    ]


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "middle") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


def _ceiling(value: float) -> float:
    """A round number at or above the value."""
    if value <= 0.0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(unit * step for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if unit * step >= value)


def _steps(low: float, high: float) -> list[float]:
    """About five round places from low to high."""
    raw = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * part for part in (1, 2, 5, 10) if unit * part >= raw)
    first = math.ceil(low / step)
    count = math.floor(high / step + 1e-9) - first + 1
    return [round((first + i) * step, 10) for i in range(count)]
