"""How the matrix is drawn on a terminal: all of it in the lines and columns that there are."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from minidbg.watch.events import Flipped, names_of
from minidbg.watch.matrix import STYLES, Cell, Matrix, clock
from minidbg.words.text import display_path, plural, printable

FLIP_STYLES: Mapping[str, str] = {"FIXED": "bold green", "REGRESSED": "bold red"}
SHOWN_DETAILS = 6
GAP = 2
"""Characters between two columns."""
NAME_LEAST = 24
"""Columns go, from the right, until a name has this much."""
USUAL = len("~reproduces")
"""Characters of a verdict."""
MARK, OLD = "*", "~"
"""Beside a row that has just flipped, and before a verdict on other code than the present one."""
OLD_LEGEND = f"{OLD} old: not judged on the present code"
KEYS = {
    "Enter": ("rerun", "run all repros again, and sort them: what fails comes first"),
    "up/down": ("select", "select a repro, and show its error; also j and k, page up and down"),
    "o": ("open", "open the selected repro, else the last that flipped, in $EDITOR"),
    "q": ("quit", "end watching"),
    "?": ("help", "show this list; any key closes it"),
}
"""What each key does, in a word and in a sentence."""
MARKS = {
    "> name": "selected",
    f"{MARK} name": "flipped since watch started",
    f"{OLD}verdict": "old: not judged on the present code, or not yet",
    "a -> b?": "a new verdict, which a fresh interpreter is confirming",
}


def render(matrix: Matrix, width: int, height: int) -> RenderableType:
    head: list[RenderableType] = [headline(matrix, width)]
    if matrix.build_failure:
        head += [line(text, "bold red") for text in wrapped(matrix.build_failure, width, SHOWN_DETAILS)]
    for (backend, device), why in matrix.broken.items():
        text = f"broken: {backend} on {device}: {why}"
        head += [line(part, "bold red") for part in wrapped(text, width, 2)]
    flips = list(matrix.flips)[: max(1, height // 6)]
    head += [line(flip_text(one, width), FLIP_STYLES.get(one.kind, "bold yellow")) for one in flips]
    if earlier := earlier_flips(matrix, len(flips)):
        head.append(line(earlier, "dim"))
    if matrix.help:
        keys = Table.grid(padding=(0, GAP))
        for key, sentence in {**{key: text for key, (_, text) in KEYS.items()}, **MARKS}.items():
            keys.add_row(f"  {key}", sentence)
        return Group(*head, keys)
    foot: list[RenderableType] = [line(text, "") for text in details(matrix, width)[: max(2, height // 4)]]
    foot += [line(text, "dim") for text in notices(matrix, width, max(1, height // 6))]
    if any(matrix.is_old(cell) for cell in matrix.cells.values()):
        foot.append(line(OLD_LEGEND, "dim"))
    foot += [line(matrix.answer, "bold")] if matrix.answer else []
    foot.append(line("  ".join(f"{key} {word}" for key, (word, _) in KEYS.items()), "dim"))
    return Group(*head, *listed(matrix, width, height - len(head) - len(foot)), *foot)


def headline(matrix: Matrix, width: int) -> Text:
    """Where not all of it fits, the folder goes first: it does not change."""
    began = None if matrix.began is None else f"{matrix.clock() - matrix.began:.1f} s"
    progress = began and (f"{matrix.seen}/{matrix.total} in {began}" if matrix.total else began)
    text, home = "", f"minidbg watch {display_path(matrix.home)}" if matrix.home else "minidbg watch"
    for parts in (
        [home, matrix.activity + matrix.first_verdict, progress, ", ".join(matrix.files[:4])],
        [home, matrix.activity, progress, names_of(matrix.files, 4)],
        ["", matrix.activity, progress, names_of(matrix.files, 1)],
    ):
        if parts[-1]:
            parts[-1] = f"changed: {parts[-1]}"
        text = "  |  ".join(part for part in parts if part)
        if cell_len(text) <= width:
            break
    return line(text, "bold")


def details(matrix: Matrix, width: int) -> list[str]:
    """The error of the selected repro."""
    cells = matrix.cells_of(matrix.selected)
    lines = []
    for device, cell in cells.items():
        if cell.note:
            where = f" [{device}]" if len(cells) > 1 else ""
            lines += wrapped(f"{matrix.selected}{where}: {cell.note}", width, SHOWN_DETAILS)
    return lines


def notices(matrix: Matrix, width: int, most: int) -> list[str]:
    lines: list[str] = []
    for at, text in reversed(matrix.notices):
        first, *more = wrapped(text, width - len("12:00:00 "), min(most, 3))
        if len(lines) + len(more) >= most:
            break
        lines = [f"{clock(at)} {first}", *(f"{'':9}{one}" for one in more), *lines]
    return lines


def listed(matrix: Matrix, width: int, height: int) -> list[RenderableType]:
    """The matrix in ``height`` lines. Rows and columns that do not fit are counted, and how to see them is said."""
    names, devices = matrix.names(), matrix.devices()
    while len(devices) > 1 and NAME_LEAST + sum(GAP + max(USUAL, cell_len(one)) for one in devices) > width:
        devices.pop()
    columns = len(matrix.devices()) - len(devices)
    most = max(1, height - 1 - (columns > 0))
    room = most if len(names) <= most else max(1, most - 1)
    first = max(0, names.index(matrix.selected) - room + 1) if matrix.selected in names else 0
    lines: list[RenderableType] = [table(matrix, names[first : first + room], devices, width)]
    if len(names) > room:
        lines.append(line(f"  ... and {plural(len(names) - room, 'more repro')}; up/down scrolls", "dim"))
    if columns > 0:
        lines.append(line(f"  ... and {plural(columns, 'more column')}: 'minidbg list' has all", "dim"))
    return lines


def table(matrix: Matrix, names: list[str], devices: list[str], width: int) -> Table:
    """These rows. Where they are too wide the remarks go, then ``since`` and ``took``; a name is cut last of all."""
    head = ["  repro", *devices, "since", "took", ""]
    rows: list[list[Text]] = []
    for name in names:
        cells = [matrix.cells.get((name, device)) for device in devices]
        seen = [cell for cell in cells if cell is not None]
        since = max((cell.since for cell in seen if cell.since is not None), default=None)
        has_flipped = any(cell.flip for cell in matrix.cells_of(name).values())
        mark = f"{'>' if name == matrix.selected else ' '}{MARK if has_flipped else ' '}"
        took = max((cell.seconds for cell in seen if cell.fresh), default=0.0)
        remark = printable(next((cell.note for cell in seen if cell.note), "")).partition("\n")[0]
        rows.append([
            Text(mark + printable(name), style="bold" if mark.strip() else ""),
            *(cell_text(matrix, cell) for cell in cells),
            Text(span(matrix.clock() - since) if since is not None else "", style="dim"),
            Text(f"{took:.1f} s" if took else "", style="dim"), Text(remark, style="dim"),
        ])  # fmt: skip
    widths = [max(cell_len(title), *(row[at].cell_len for row in rows), 0) for at, title in enumerate(head)]
    verdicts, times = sum(GAP + one for one in widths[1:-3]), sum(GAP + one for one in widths[-3:-1])
    if widths[0] + verdicts + times > width:
        widths[-3:] = [0, 0, 0]
        if min(widths[0], NAME_LEAST) + verdicts > width:  # new verdicts beside the old ones
            most = max(1, (width - NAME_LEAST) // len(devices) - GAP)
            widths[1:-3] = [min(one, most) for one in widths[1:-3]]
        widths[0] = max(1, min(widths[0], width - sum(GAP + one for one in widths[1:-3])))
    widths[-1] = min(widths[-1], max(0, width - GAP - widths[0] - verdicts - times))
    drawn = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    places = [at for at, one in enumerate(widths) if one]
    for at in places:
        side = "right" if head[at] in ("since", "took") else "left"
        drawn.add_column(head[at], no_wrap=True, overflow="ellipsis", width=widths[at], justify=side)  # type: ignore[arg-type]
    for row in rows:
        drawn.add_row(*(row[at] for at in places))
    return drawn


def cell_text(matrix: Matrix, cell: Cell | None) -> Text:
    """The verdict, and a new one that is being confirmed; dim until the running sweep has seen it."""
    if cell is None:
        return Text("-", style="dim")
    old = matrix.is_old(cell)
    text = Text((OLD if old else "") + (cell.verdict or "?"), style=STYLES.get(cell.verdict, ""))
    if cell.maybe:
        text.append(f" -> {cell.maybe}?", style=STYLES.get(cell.maybe, ""))
    if old or (matrix.began is not None and matrix.total and not cell.fresh):
        text.stylize("dim")
    return text


def flip_text(flip: Flipped, width: int) -> str:
    text = f"{clock(flip.at)} {flip.line()}"
    return text if cell_len(text) <= width else text.removesuffix(f"; {printable(flip.between)}")


def earlier_flips(matrix: Matrix, shown: int) -> str:
    earlier = matrix.flipped - shown
    return f"... and {plural(earlier, 'earlier flip')}; all: minidbg history" if earlier > 0 else ""


def line(text: str, style: str) -> Text:
    return Text(printable(text).replace("\n", " "), style=style, no_wrap=True, overflow="ellipsis", end="\n")


def wrapped(text: str, width: int, most: int) -> list[str]:
    lines = [
        part
        for one in text.splitlines()
        for part in textwrap.wrap(printable(one), max(20, width - 2)) or [""]
    ]
    return lines if len(lines) <= most else [*lines[: most - 1], lines[most - 1][: width - 6] + " ..."]


def span(seconds: float) -> str:
    """``5 s``, ``12 min``, ``3 h``, ``9 d``."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds / size)} {unit}"
    return f"{max(0, int(seconds))} s"
