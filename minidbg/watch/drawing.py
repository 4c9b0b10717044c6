"""How the matrix is drawn on a terminal: all of it in the lines and columns that there are."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from minidbg.watch.events import Flipped, names_of
from minidbg.watch.matrix import STYLES, Cell, Matrix, clock
from minidbg.words.text import display_path, plural, printable

FLIP_STYLES: Mapping[str, str] = {"FIXED": "bold green", "REGRESSED": "bold red"}
SHOWN_DETAILS = 6
GAP = 2
"""Characters between two columns."""
REMARK_LEAST = 24
"""A remark that has less room than this takes that of ``since``, then that of ``took``."""
NAME_LEAST = 24
"""Where a name and all columns do not fit, columns go until the name has this much."""
USUAL = len("~reproduces")
"""Characters of a verdict."""
MARK = "*"
"""Beside a row that has just flipped."""
OLD = "~"
"""Before a verdict on other code than the present one."""
OLD_LEGEND = f"{OLD} old: not judged on the present code"
KEYS = {
    "Enter": ("rerun", "run all repros again, and sort them: what fails comes first"),
    "f": ("failing only", "show only what fails, and run it again; f again shows all"),
    "up/down": ("select", "select a repro, and show its error; also j and k, page up and down"),
    "o": ("open", "open the selected repro, else the last that flipped, in $EDITOR"),
    "q": ("quit", "end watching"),
    "?": ("help", "show this list; any key closes it"),
}
"""What each key does, in a word and in a sentence."""
FIRST_TO_GO = ("o", "up/down", "f", "Enter", "q")
"""The keys that the last line leaves out, in this order, until it fits."""
MARKS = (
    ("> name", "selected"),
    (f"{MARK} name", "flipped since watch started"),
    (f"{OLD}verdict", "old: not judged on the present code, or not yet"),
    ("a -> b?", "a new verdict, which a fresh interpreter is confirming"),
)  # fmt: skip


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
        return Group(*head, *help_lines(width))
    names, devices = matrix.names(), shown_devices(matrix, width)
    foot: list[RenderableType] = [line(text, "") for text in details(matrix, width)[: max(2, height // 4)]]
    foot += [line(text, "dim") for text in notices(matrix, width, max(1, height // 6))]
    shown = (matrix.cells.get((name, device)) for name in names for device in devices)
    if any(cell is not None and matrix.is_old(cell) for cell in shown):
        foot.append(line(OLD_LEGEND, "dim"))
    foot += [line(matrix.answer, "bold")] if matrix.answer else []
    foot.append(line(footer(width), "dim"))
    return Group(*head, *listed(matrix, names, devices, width, height - len(head) - len(foot)), *foot)


def headline(matrix: Matrix, width: int) -> Text:
    home = f"minidbg watch {display_path(matrix.home)}" if matrix.home else "minidbg watch"
    activity = matrix.activity
    began = None if matrix.began is None else f"{matrix.clock() - matrix.began:.1f} s"
    progress = began and (f"{matrix.seen}/{matrix.total} in {began}" if matrix.total else began)
    only = matrix.failing_only and "only what fails is shown"
    names = names_of(matrix.files, 1)
    text = ""
    for begin, more, files in (
        (home, matrix.first_verdict, matrix.cause), (home, "", matrix.cause), (home, "", names_of(matrix.files, 4)),
        (home, "", names), ("minidbg watch", "", names), ("", "", names),
    ):  # fmt: skip
        parts = [begin, only, activity + more, progress, files and f"changed: {files}"]
        text = "  |  ".join(part for part in parts if part)
        if cell_len(text) <= width:
            break
    return line(text, "bold")


def details(matrix: Matrix, width: int) -> list[str]:
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


def shown_devices(matrix: Matrix, width: int) -> list[str]:
    devices = matrix.devices()
    while len(devices) > 1 and NAME_LEAST + sum(GAP + max(USUAL, cell_len(one)) for one in devices) > width:
        devices.pop()
    return devices


def listed(
    matrix: Matrix, names: list[str], devices: list[str], width: int, height: int
) -> Iterator[RenderableType]:
    """The matrix in ``height`` lines. Rows and columns that do not fit are counted, and how to see them is said."""
    columns = len(matrix.devices()) - len(devices)
    most = max(1, height - 1 - (columns > 0))
    room = most if len(names) <= most else max(1, most - 1)
    first = max(0, names.index(matrix.selected) - room + 1) if matrix.selected in names else 0
    yield table(matrix, names[first : first + room], devices, width)
    if len(names) > room:
        how = "up/down scrolls" + ("" if matrix.failing_only else ", f shows only what fails")
        yield line(f"  ... and {plural(len(names) - room, 'more repro')}; {how}", "dim")
    if columns > 0:
        yield line(f"  ... and {plural(columns, 'more column')}: 'minidbg list' has all", "dim")
    if matrix.failing_only and not names:
        yield line("  nothing fails; f shows all repros", "dim")


def table(matrix: Matrix, names: list[str], devices: list[str], width: int) -> Table:
    """These rows. Where they are too wide, remarks are cut short, then ``since`` goes, then ``took``; a name last of all."""
    flipped = {name for (name, _), cell in matrix.cells.items() if cell.flip}
    head = ["  repro", *devices, "since", "took", ""]
    rows: list[list[Text]] = []
    for name in names:
        cells = [matrix.cells.get((name, device)) for device in devices]
        seen = [cell for cell in cells if cell is not None]
        since = max((cell.since for cell in seen if cell.since is not None), default=None)
        mark = f"{'>' if name == matrix.selected else ' '}{MARK if name in flipped else ' '}"
        took = max((cell.seconds for cell in seen if cell.fresh), default=0.0)
        rows.append([
            Text(mark + printable(name), style="bold" if mark.strip() else ""),
            *(cell_text(matrix, cell) for cell in cells),
            Text(span(matrix.clock() - since) if since is not None else "", style="dim"),
            Text(f"{took:.1f} s" if took else "", style="dim"),
            Text(remark(seen), style="dim"),
        ])  # fmt: skip
    widths = [
        max(map(cell_len, (title, *(row[place].plain for row in rows)))) for place, title in enumerate(head)
    ]
    shown = fitting(widths, width)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for place in shown:
        side: JustifyMethod = "right" if head[place] in ("since", "took") else "left"
        table.add_column(head[place], no_wrap=True, overflow="ellipsis", width=shown[place], justify=side)
    for row in rows:
        table.add_row(*(row[place] for place in shown))
    return table


def remark(cells: Sequence[Cell]) -> str:
    return printable(next((cell.note for cell in cells if cell.note), "")).partition("\n")[0]


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


def fitting(widths: Sequence[int], width: int) -> dict[int, int]:
    """The columns of the table that are shown in ``width`` characters, by their place, and how wide each is.

    The last three are ``since``, ``took`` and remarks.
    """
    name, *devices, since, took, remark = widths
    least = min(name, NAME_LEAST)
    if devices and least + sum(GAP + one for one in devices) > width:  # new verdicts beside the old ones
        most = (width - least) // len(devices) - GAP
        devices = [max(1, min(one, most)) for one in devices]
    fixed = name + sum(GAP + one for one in devices)
    extra: dict[int, int] = {}
    for extra in ({len(widths) - 3: since, len(widths) - 2: took}, {len(widths) - 2: took}, {}):
        left = width - fixed - sum(GAP + one for one in extra.values()) - (GAP if remark else 0)
        if left >= min(remark, REMARK_LEAST):
            break
    shown = dict(enumerate((max(1, min(name, width - fixed + name)), *devices))) | extra
    return shown | ({len(widths) - 1: min(remark, left)} if left > 0 and remark else {})


def flip_text(flip: Flipped, width: int) -> str:
    text = f"{clock(flip.at)} {flip.line()}"
    return text if cell_len(text) <= width else text.removesuffix(f"; {printable(flip.between)}")


def earlier_flips(matrix: Matrix, shown: int) -> str:
    left = matrix.flipped - shown
    return f"... and {plural(left, 'earlier flip')}; all: minidbg history" if left > 0 else ""


def footer(width: int) -> str:
    """As many keys as fit, each with its word; ``?`` lists all."""
    shown = dict(KEYS)
    for key in ("", *FIRST_TO_GO):
        shown.pop(key, None)
        text = "  ".join(f"{one} {word}" for one, (word, _) in shown.items())
        if len(text) <= width:
            break
    return text


def help_lines(width: int) -> Iterator[Text]:
    for one, sentence in (*((key, sentence) for key, (_, sentence) in KEYS.items()), *MARKS):
        for number, text in enumerate(textwrap.wrap(sentence, max(20, width - 12))):
            yield line(f"  {'' if number else one:<10}{text}", "")


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
