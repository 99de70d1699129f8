"""Charts as SVG text: lines over numbers, and bars with intervals; nothing but what is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 150, 14, 44
INK, FAINT = "#5b6475", "#dfe4ec"
ROW = 20
LABELS = 210


class Line(NamedTuple):
    name: str
    colour: str
    dash: str
    points: Sequence[tuple[float, float]]


class Bar(NamedTuple):
    """low and high: its interval, both or neither."""

    name: str
    colour: str
    value: float
    low: float | None = None
    high: float | None = None
    shown: str = ""


def lines(series: Sequence[Line], x_title: str, y_title: str) -> str:
    """Lines with a point at every value; the y axis begins at 0."""
    xs = [x for line in series for x, _ in line.points]
    ys = [y for line in series for _, y in line.points]
    x_ticks, y_ticks = sorted(set(xs)), ticks(max(ys))
    low, span = min(xs), (max(xs) - min(xs)) or 1.0
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x_of(value: float) -> float:
        return LEFT + wide * (value - low) / span

    def y_of(value: float) -> float:
        return TOP + tall * (1 - value / y_ticks[-1])

    parts = [f'<line x1="{LEFT}" y1="{y_of(0):.1f}" x2="{LEFT + wide}" y2="{y_of(0):.1f}"/>']
    for tick in y_ticks:
        y = y_of(tick)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + wide}" y2="{y:.1f}"/>')
        parts.append(text(LEFT - 6, y + 4, f"{tick:g}", "end"))
    shown = x_ticks[:: max(1, math.ceil(len(x_ticks) / 12))]
    parts += [text(x_of(tick), HEIGHT - BOTTOM + 16, f"{tick:g}", "middle") for tick in shown]
    for number, line in enumerate(series):
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in line.points)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="2" '
            f'stroke-dasharray="{line.dash}"/>'
        )
        for x, y in line.points:
            tip = f"{line.name}: {y:.4g} at {x:g}"
            parts.append(
                f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3" fill="{line.colour}">'
                f"<title>{escape(tip)}</title></circle>"
            )
        at = TOP + 10 + 16 * number
        begin = WIDTH - RIGHT + 14
        parts.append(
            f'<line x1="{begin}" y1="{at - 4}" x2="{begin + 22}" y2="{at - 4}" '
            f'style="stroke:{line.colour};stroke-width:2" stroke-dasharray="{line.dash}"/>'
        )
        parts.append(text(begin + 28, at, line.name, "start"))
    parts.append(text(LEFT + wide / 2, HEIGHT - 8, x_title, "middle"))
    parts.append(
        f'<text transform="translate(14 {TOP + tall / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_title)}</text>"
    )
    return svg(WIDTH, max(HEIGHT, TOP + 16 * len(series) + 20), parts)


def bars(entries: Sequence[Bar], title: str, mark: float | None = None) -> str:
    """Horizontal bars with their intervals; mark: a value to draw a line at."""
    highest = max([bar.high or bar.value for bar in entries] + [mark or 0.0, 0.0])
    steps = ticks(highest)
    wide = WIDTH - LABELS - 70
    height = TOP + ROW * len(entries) + BOTTOM

    def x_of(value: float) -> float:
        return LABELS + wide * max(0.0, value) / steps[-1]

    bottom = TOP + ROW * len(entries)
    parts: list[str] = []
    for tick in steps:
        x = x_of(tick)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}"/>')
        parts.append(text(x, bottom + 16, f"{tick:g}", "middle"))
    for number, bar in enumerate(entries):
        top = TOP + ROW * number
        parts.append(text(LABELS - 6, top + 14, bar.name, "end"))
        parts.append(
            f'<rect x="{LABELS}" y="{top + 3}" width="{x_of(bar.value) - LABELS:.1f}" '
            f'height="{ROW - 6}" fill="{bar.colour}"/>'
        )
        end = bar.value
        if bar.low is not None and bar.high is not None:
            low, high, y = x_of(bar.low), x_of(bar.high), top + ROW / 2
            parts.append(
                f'<path d="M{low:.1f} {y - 4}v8M{high:.1f} {y - 4}v8M{low:.1f} {y}H{high:.1f}" '
                'fill="none" stroke="#1b2333" stroke-width="1.5"/>'
            )
            end = max(end, bar.high)
        parts.append(text(x_of(end) + 6, top + 14, bar.shown or f"{bar.value:.3g}", "start"))
    if mark is not None:
        parts.append(
            f'<line x1="{x_of(mark):.1f}" y1="{TOP}" x2="{x_of(mark):.1f}" y2="{bottom}" '
            'style="stroke:#1b2333" stroke-dasharray="3 3"/>'
        )
    parts.append(text(LABELS + wide / 2, height - 8, title, "middle"))
    return svg(WIDTH, height, parts)


def stacked(entries: Sequence[tuple[str, Sequence[Bar]]], title: str) -> str:
    """Rows of shares that add up to one."""
    wide = WIDTH - LABELS - 20
    height = TOP + ROW * len(entries) + BOTTOM
    parts: list[str] = []
    for number, (name, shares) in enumerate(entries):
        top = TOP + ROW * number
        parts.append(text(LABELS - 6, top + 14, name, "end"))
        begin = 0.0
        for share in shares:
            tip = f"{share.name}: {share.value:.1%}"
            parts.append(
                f'<rect x="{LABELS + wide * begin:.1f}" y="{top + 3}" '
                f'width="{wide * share.value:.1f}" height="{ROW - 6}" fill="{share.colour}">'
                f"<title>{escape(tip)}</title></rect>"
            )
            begin += share.value
    parts.append(text(LABELS + wide / 2, height - 8, title, "middle"))
    return svg(WIDTH, height, parts)


def text(x: float, y: float, content: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(content)}</text>'


def svg(width: int, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'stroke="none" fill="{INK}" font-size="12">'
        f"<style>line{{stroke:{FAINT}}}</style>{''.join(parts)}</svg>"
    )


def ticks(highest: float) -> list[float]:
    """From 0 in at most five round steps to at least `highest`."""
    if not (highest > 0 and math.isfinite(highest)):
        return [0.0, 1.0]
    rough = highest / 5
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    return [step * n for n in range(math.ceil(highest / step - 1e-9) + 1)]
