"""Draw lines and timelines as SVG, readable on a light page and on a dark one; no dependencies."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from xml.sax.saxutils import escape

# Mid-tones with about the same contrast against white and against near-black.
INK, GRID = "#7d8590", "#7d859040"
COLORS = ("#2f81f7", "#d4762c", "#2ea067", "#b65fd0", "#c9485b", "#8a8f2a")
WIDTH, PANEL, LEFT, RIGHT, TOP, BOTTOM = 860, 250, 70, 210, 34, 46


Point: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """One line: its points, and how it is drawn; where ``y`` is not a number none is."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: str
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes, both from 0; ``level`` is a horizontal line to compare with, and its name.

    ``most`` cuts the vertical axis: what is above, infinite too, is drawn along its top.
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    level: tuple[float, str] | None = None
    most: float = math.inf


@dataclass(frozen=True, slots=True)
class Bar:
    """One interval of a timeline."""

    row: str
    begin: float
    end: float
    color: str
    text: str = ""


def chart(panels: Sequence[Panel]) -> str:
    """Return one picture with ``panels`` below each other."""
    parts = [
        f'<g transform="translate(0 {number * PANEL})">{"".join(_panel(panel))}</g>'
        for number, panel in enumerate(panels)
    ]
    return _picture(PANEL * len(panels), parts)


def timeline(title: str, x_label: str, bars: Sequence[Bar], legend: dict[str, str]) -> str:
    """Return one picture with a row for each ``Bar.row``, in order of appearance.

    ``legend`` maps names to colours.
    """
    rows = list(dict.fromkeys(bar.row for bar in bars))
    first, last = min(bar.begin for bar in bars), max(bar.end for bar in bars)
    scale = (WIDTH - LEFT - 60 - 20) / (last - first)
    bottom = TOP + 30 * len(rows)

    def across(value: float) -> float:
        return LEFT + 60 + (value - first) * scale

    parts = [_text(LEFT, 18, title, "start", 13)]
    for name, color in legend.items():
        offset = 330 + 130 * list(legend).index(name)
        parts += [_box(offset, 8, 12, 12, color), _text(offset + 18, 18, name, "start")]
    parts += [_text(LEFT + 52, TOP + 30 * rows.index(row) + 17, row, "end") for row in rows]
    for bar in bars:
        top, width = TOP + 30 * rows.index(bar.row) + 2, (bar.end - bar.begin) * scale
        parts.append(_box(across(bar.begin), top, max(width, 0.6), 22, bar.color))
        if width > 8 * len(bar.text) > 0:
            middle = across(bar.begin) + width / 2
            parts.append(_text(middle, top + 15, bar.text, "middle", 10, "#ffffff"))
    for tick in _ticks(last - first):
        parts.append(_line((across(first + tick), TOP), (across(first + tick), bottom), GRID))
        parts.append(_text(across(first + tick), bottom + 16, f"{tick:g}", "middle"))
    parts.append(_text(WIDTH / 2, bottom + 34, x_label, "middle"))
    return _picture(bottom + 44, parts)


def _panel(panel: Panel) -> Iterator[str]:
    right, bottom = WIDTH - RIGHT, PANEL - BOTTOM
    most_x = max(_finite(value for line in panel.series for value in line.x)) * 1.03
    tops = [*_finite(value for line in panel.series for value in line.y)]
    tops += [panel.level[0]] if panel.level else []
    most_y = min(panel.most, 1.1 * max(tops, default=1.0)) or 1.0

    def place(x: float, y: float) -> Point:
        share = min(y, most_y) / most_y
        return LEFT + (right - LEFT) * x / most_x, bottom - (bottom - TOP) * share

    yield _text(LEFT, 18, panel.title, "start", 13)
    for tick in _ticks(most_y):
        _, y = place(0, tick)
        yield _line((LEFT, y), (right, y), GRID)
        yield _text(LEFT - 8, y + 4, f"{tick:g}", "end")
    for tick in _ticks(most_x):
        x, _ = place(tick, 0)
        yield _text(x, bottom + 16, f"{tick:g}", "middle")
    yield _line((LEFT, bottom), (right, bottom), INK)
    yield _text((LEFT + right) / 2, PANEL - 10, panel.x_label, "middle")
    middle = (TOP + bottom) / 2
    label = escape(panel.y_label)
    yield (
        f'<text x="16" y="{middle}" text-anchor="middle" fill="{INK}" font-size="11" '
        f'transform="rotate(-90 16 {middle})">{label}</text>'
    )
    if panel.level:
        _, y = place(0, panel.level[0])
        yield _line((LEFT, y), (right, y), INK, dash="2 4")
        yield _text(right + 8, y + 4, panel.level[1], "start")
    for number, line in enumerate(panel.series):
        yield from _curve(line, [place(x, y) for x, y in _points(line)])
        top = TOP + 4 + 17 * number
        yield _line(
            (right + 64, top), (right + 88, top), line.color, 2, "5 4" if line.dashed else ""
        )
        yield _text(right + 94, top + 4, line.name, "start")


def _curve(line: Series, places: Sequence[Point]) -> Iterator[str]:
    dash = ' stroke-dasharray="5 4"' if line.dashed else ""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield f'<polyline points="{path}" fill="none" stroke="{line.color}" stroke-width="2"{dash}/>'
    for x, y in places:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{line.color}"/>'


def _points(line: Series) -> list[Point]:
    return [(x, y) for x, y in zip(line.x, line.y, strict=True) if not math.isnan(y)]


def _finite(values: Iterable[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _ticks(most: float) -> list[float]:
    """Return round values from 0 up to ``most``, at most ten."""
    power = 10 ** math.floor(math.log10(most))
    step = next(power * part for part in (0.1, 0.2, 0.5, 1, 2) if most / (power * part) <= 9)
    return [round(step * number, 12) for number in range(math.floor(most / step) + 1)]


def _picture(height: float, parts: Iterable[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="system-ui, sans-serif">\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, anchor: str, size: int = 11, color: str = INK) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{color}">{escape(text)}</text>'
    )


def _line(start: Point, stop: Point, color: str, width: int = 1, dash: str = "") -> str:
    (x1, y1), (x2, y2) = start, stop
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" '
        f'stroke-width="{width}"' + (f' stroke-dasharray="{dash}"' if dash else "") + "/>"
    )


def _box(x: float, y: float, width: float, height: float, color: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{color}"/>'
    )
