"""How the matrix is drawn on a terminal: all of it in the lines and columns that there are."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from minidbg.watch.events import names_of
from minidbg.watch.matrix import KEYS, STYLES, Cell, Matrix, clock
from minidbg.words.text import display_path, plural, printable

FLIP_STYLES: Mapping[str, str] = {"FIXED": "bold green", "REGRESSED": "bold red"}
SHOWN_DETAILS = 6
GAP = 2
"""Characters between two columns."""
NAME_LEAST, USUAL = 24, len("~reproduces")
"""Devices go, from the right, until a name and the verdicts have this much."""
MARK, OLD = "*", "~"
"""Beside a row that has just flipped, and before a verdict on other code than the present one."""
OLD_LEGEND = f"{OLD} old: not judged on the present code"
MARKS = {
    "> name": "selected",
    f"{MARK} name": "flipped since watch started",
    f"{OLD}verdict": "old: not judged on the present code, or not yet",
    "a -> b?": "a new verdict, which a fresh interpreter is confirming",
}


def render(matrix: Matrix, width: int, height: int) -> RenderableType:
    head: list[RenderableType] = [headline(matrix, width)]
    head += [line(text, "bold red") for text in wrapped(matrix.build_failure, width, SHOWN_DETAILS)]
    for (backend, device), why in matrix.broken.items():
        text = f"broken: {backend} on {device}: {why}"
        head += [line(part, "bold red") for part in wrapped(text, width, 2)]
    flips = list(matrix.flips)[: max(1, height // 6)]
    for one in flips:
        head.append(line(f"{clock(one.at)} {one.line()}", FLIP_STYLES.get(one.kind, "bold yellow")))
    if earlier := len(matrix.flips) - len(flips):
        head.append(line(f"... and {plural(earlier, 'earlier flip')}; all: minidbg history", "dim"))
    if matrix.help:
        keys = Table.grid(padding=(0, GAP))
        for key, sentence in {**{key: text for key, (_, text) in KEYS.items()}, **MARKS}.items():
            keys.add_row(f"  {key}", sentence)
        return Group(*head, keys)
    foot: list[RenderableType] = []
    for device, cell in matrix.cells_of(matrix.selected).items():
        text = f"{matrix.selected} [{device}]: {cell.note}" if cell.note else ""
        foot += [line(part, "") for part in wrapped(text, width, max(2, height // 4))]
    notices = (part for at, text in matrix.notices for part in wrapped(f"{clock(at)} {text}", width, 3))
    foot += [line(text, "dim") for text in list(notices)[-max(1, height // 6) :]]
    if any(matrix.is_old(cell) for cell in matrix.cells.values()):
        foot.append(line(OLD_LEGEND, "dim"))
    foot += [line(matrix.answer, "bold")] if matrix.answer else []
    foot.append(line("  ".join(f"{key} {word}" for key, (word, _) in KEYS.items()), "dim"))
    return Group(*head, *listed(matrix, width, height - len(head) - len(foot)), *foot)


def headline(matrix: Matrix, width: int) -> Text:
    """Where not all of it fits, the folder goes first: it does not change."""
    began = None if matrix.began is None else f"{matrix.clock() - matrix.began:.1f} s"
    progress = began and (f"{matrix.seen}/{matrix.total} in {began}" if matrix.total else began)
    changed = f"changed: {names_of(matrix.files, 2)}" if matrix.files else ""
    text = "  |  ".join(filter(None, [matrix.activity, progress, changed]))
    home = f" {display_path(matrix.home)}" if matrix.home else ""
    whole = f"minidbg watch{home}  |  {text}"
    return line(whole if cell_len(whole) <= width else text, "bold")


def listed(matrix: Matrix, width: int, height: int) -> list[RenderableType]:
    """The matrix in ``height`` lines. Rows and columns that do not fit are counted, and how to see them is said."""
    names, devices = matrix.names(), sorted({device for _, device in matrix.cells})
    most = max(1, (width - NAME_LEAST) // (GAP + max([USUAL, *map(cell_len, devices)])))
    columns = len(devices) - most
    most_rows = max(1, height - 1 - (columns > 0))
    room = most_rows if len(names) <= most_rows else max(1, most_rows - 1)
    first = max(0, names.index(matrix.selected) - room + 1) if matrix.selected in names else 0
    lines: list[RenderableType] = [table(matrix, names[first : first + room], devices[:most], width)]
    if len(names) > room:
        lines.append(line(f"  ... and {plural(len(names) - room, 'more repro')}; up/down scrolls", "dim"))
    if columns > 0:
        lines.append(line(f"  ... and {plural(columns, 'more column')}: 'minidbg list' has all", "dim"))
    return lines


def table(matrix: Matrix, names: list[str], devices: list[str], width: int) -> Table:
    """These rows. Where they are too wide the remarks go, then ``since`` and ``took``; a name is cut last of all."""
    rows: list[list[Text]] = [[Text(title) for title in ["  repro", *devices, "since", "took", ""]]]
    flipped = {flip.repro for flip in matrix.flips}
    for name in names:
        cells = [matrix.cells.get((name, device)) for device in devices]
        seen = [cell for cell in cells if cell is not None]
        since = max((cell.since for cell in seen if cell.since is not None), default=None)
        mark = f"{'>' if name == matrix.selected else ' '}{MARK if name in flipped else ' '}"
        took = max((cell.seconds for cell in seen), default=0.0)
        remark = printable(next((cell.note for cell in seen if cell.note), "")).partition("\n")[0]
        rows.append([
            Text(mark + printable(name), style="bold" if mark.strip() else ""),
            *(cell_text(matrix, cell) for cell in cells),
            Text(span(matrix.clock() - since) if since is not None else "", style="dim"),
            Text(f"{took:.1f} s" if took else "", style="dim"), Text(remark, style="dim"),
        ])  # fmt: skip
    widths = [max(row[at].cell_len for row in rows) for at in range(len(devices) + 4)]
    rest = width - sum(widths[:-1]) - GAP * (len(widths) - 2)
    if rest < 0:
        widths[-3:] = [0, 0, 0]
        most = max(USUAL, (width - min(widths[0], NAME_LEAST)) // len(devices or [""]) - GAP)
        widths[1:-3] = [min(one, most) for one in widths[1:-3]]
        widths[0] = max(1, min(widths[0], width - sum(GAP + one for one in widths[1:-3])))
    widths[-1] = max(0, min(widths[-1], rest - GAP))
    drawn = Table.grid(padding=(0, GAP, 0, 0))
    places = [at for at, one in enumerate(widths) if one]
    for at in places:
        is_time = at in (len(widths) - 3, len(widths) - 2)
        justify = "right" if is_time else "left"
        drawn.add_column(no_wrap=True, overflow="ellipsis", width=widths[at], justify=justify)  # type: ignore[arg-type]
    for row in rows:
        drawn.add_row(*(row[at] for at in places), style="bold" if row is rows[0] else "")
    return drawn


def cell_text(matrix: Matrix, cell: Cell | None) -> Text:
    """The verdict, and a new one that is being confirmed; dim where it is old."""
    if cell is None:
        return Text("-", style="dim")
    old = matrix.is_old(cell)
    text = Text((OLD if old else "") + (cell.verdict or "?"), style=STYLES.get(cell.verdict, ""))
    if cell.maybe:
        text.append(f" -> {cell.maybe}?", style=STYLES.get(cell.maybe, ""))
    if old:
        text.stylize("dim")
    return text


def line(text: str, style: str) -> Text:
    return Text(printable(text).replace("\n", " "), style=style, no_wrap=True, overflow="ellipsis", end="\n")


def wrapped(text: str, width: int, most: int) -> list[str]:
    lines = [part for one in text.splitlines() for part in textwrap.wrap(printable(one), max(20, width - 2))]
    return lines if len(lines) <= most else [*lines[: most - 1], lines[most - 1][: width - 6] + " ..."]


def span(seconds: float) -> str:
    """``5 s``, ``12 min``, ``3 h``, ``9 d``."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds / size)} {unit}"
    return f"{max(0, int(seconds))} s"
