"""Two runs side by side: the rows that both have, what changed, and whether it is clear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ui.benchmarks.facts import ALL, load_label
from ui.benchmarks.tables import interval, lines, times
from ui.shaping import MISSING, escape, number

Json = Mapping[str, Any]

FASTER, SLOWER, UNCLEAR = "faster", "slower", "no clear difference"


class Pair(NamedTuple):
    """The same load, category and arm in the run that is open and in the other one."""

    load: str
    category: str
    arm: str
    one: Json
    other: Json


def pairs(rows: Sequence[Json], others: Sequence[Json]) -> list[Pair]:
    """In the order of the open run's rows."""
    there = {key_of(row): row for row in others}
    return [Pair(*key, row, there[key]) for row in rows if (key := key_of(row)) in there]


def key_of(row: Json) -> tuple[str, str, str]:
    return load_label(row), str(row.get("category")), str(row.get("mode"))


def verdict(pair: Pair) -> str:
    """Whether the speed-up over the base arm differs clearly: the two intervals do not meet. A dash
    without intervals. Speeds themselves depend on what else the machine did, speed-ups hardly."""
    one, other = (row.get("speedup") or {} for row in (pair.one, pair.other))
    edges = [ratio.get(edge) for ratio in (one, other) for edge in ("low", "high")]
    if not all(isinstance(edge, int | float) for edge in edges):
        return MISSING
    if one["low"] > other["high"]:
        return FASTER
    return SLOWER if one["high"] < other["low"] else UNCLEAR


def change(one: Any, other: Any) -> str:
    """How much more the open run has, `+4 %`."""
    if not isinstance(one, int | float) or not isinstance(other, int | float) or not other:
        return MISSING
    return f"{100 * (one / other - 1):+.0f} %"


def table(found: Sequence[Pair], base: str, colours: Mapping[str, str]) -> str:
    """HTML: what the open run has, in brackets what the other one had."""
    several = len({pair.load for pair in found}) > 1
    heads = (
        *(("Load",) if several else ()),
        "Category",
        "Arm",
        "Tokens/s",
        "Change",
        f"Speed-up over {base}\n95 % interval",
        "Against the other run",
        "TPOT p50\n(ms)",
        "Acceptance length\n(tokens)",
    )
    left = {"Load", "Category", "Arm", "Against the other run"}
    head = "".join(
        f'<th scope="col"{"" if name in left else " class=num"}>{escape(name)}</th>'
        for name in heads
    )
    body = [line(pair, base, colours, several) for pair in found]
    return (
        '<div class="pl-wide"><table class="pl-table pl-groups"><thead><tr>'
        f"{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def line(pair: Pair, base: str, colours: Mapping[str, str], several: bool) -> str:
    """One row of the table."""
    one, other = pair.one, pair.other
    speeds = one.get("tokens_per_s"), other.get("tokens_per_s")
    tpot = [(row.get("tpot_ms") or {}).get("p50") for row in (one, other)]
    gains = [times(row.get("speedup")) for row in (one, other)]
    ranges = [interval(row.get("speedup"), "{:.2f}") for row in (one, other)]
    is_base = pair.arm == base
    category = "all together" if pair.category == ALL else pair.category
    numbers = (
        both(number(speeds[0], 1), number(speeds[1], 1)),
        change(*speeds),
        MISSING if is_base else lines(both(*gains), both(*ranges)),
    )
    after = (
        both(number(tpot[0], 1), number(tpot[1], 1)),
        both(number(one.get("acceptance_length"), 2), number(other.get("acceptance_length"), 2)),
    )
    cells = [f"<td>{escape(text)}</td>" for text in ((pair.load,) if several else ())]
    cells.append(f"<td>{escape(category)}</td>")
    colour = colours.get(pair.arm, "inherit")
    cells.append(
        f'<td class="nowrap"><span class="pl-pill" style="--c:{colour}">{escape(pair.arm)}</span>'
        "</td>"
    )
    cells += [f'<td class="num">{escape(text)}</td>' for text in numbers]
    cells.append(f"<td>{escape(MISSING if is_base else verdict(pair))}</td>")
    cells += [f'<td class="num">{escape(text)}</td>' for text in after]
    return f"<tr>{''.join(cells)}</tr>"


def both(one: str, other: str) -> str:
    """`38.1 (35.0)`."""
    return MISSING if one == other == MISSING else f"{one} ({other})"
