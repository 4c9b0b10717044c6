"""Cases that others wrote: programs of ``torch.export``, repros of torch's minifier or tlparse.

Which of several forms of a program fails is found by running each once, in a child process.

The files of torch's minifier are ``minifier_launcher.py``, ``repro.py`` and ``fx_graph_runnable``.
Such a file sets options, defines a module and ``load_args``, and ends with a call of ``run_repro``
of ``torch._dynamo.repro.after_dynamo`` or ``after_aot``. A child executes it with a ``run_repro``
that writes what it gets as captures. Storages that are not there have values that torch makes up.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import logging
import re
import sys
import tempfile
import traceback
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn
from torch.export import ExportedProgram

from minidbg import oracle, repro, torch_internals, workers
from minidbg.backends import run_as_module
from minidbg.core import errors
from minidbg.core.outcome import Outcome, Verdict
from minidbg.core.run_spec import BackendRef, CallPath, CompilerFn, Context, Level
from minidbg.core.text import abridged
from minidbg.fx.case import Case
from minidbg.fx.context import CONFIG_MODULES, current_context, literal_config
from minidbg.fx.copying import capture_by_dynamo
from minidbg.judge.death import died_by
from minidbg.repro.cases import ChosenBackend, backend_named, case_of, need_grad
from minidbg.torch_internals.devices import devices_of

SECONDS = 120.0
"""Time limit of each run of the whole program."""


def forms_of(what: Path | ExportedProgram, backend: str | CompilerFn | None) -> Iterator[Case] | None:
    """The cases in what minidbg did not write; None for a script of its own."""
    if isinstance(what, Path) and what.suffix == ".pt2":
        what = read_exported(what)
    if isinstance(what, ExportedProgram):
        return cases_of_exported(what, backend_named("inductor" if backend is None else backend))
    return cases_of_torch_repro(what, backend) if is_torch_repro(what) else None


def first_that_fails(forms: Iterable[Case], what: str) -> Case:
    """The first failing form, expecting that failure. Raises NotReproduced with what each did."""
    outcomes: list[Outcome] = []
    name = ""
    for case in forms:
        name = case.backend.name
        outcome = oracle.ask(case, seconds=SECONDS)
        if outcome.verdict is Verdict.REPRODUCES:
            provenance = replace(case.provenance, message=outcome.message)
            return replace(case.with_spec(signature=outcome.signature), provenance=provenance)
        outcomes.append(outcome)
    why = "; ".join(dict.fromkeys(outcome.in_words for outcome in outcomes))
    last = outcomes[-1] if outcomes else None
    name = name or "the backend"
    raise errors.NotReproduced(f"{what} does not fail with {name} here ({why})", last)


def failure_head(error: object) -> str:
    return abridged(str(error), 200)


# --- programs of torch.export ---


RESULT_CLASS = re.compile(r'\\"type\\": \\"([\w.]+)\.\w+\\"')
"""In JSON that is a text in JSON."""
SAVE_IT = "save it with torch.export.save(exported_program, path), by this version of torch"


def read_exported(path: Path) -> ExportedProgram:
    """Its tensors and JSON; pickled objects are refused. Raises UnreadableRepro."""
    if not zipfile.is_zipfile(path):
        raise errors.UnreadableRepro(f"{path}: not an archive of torch.export; {SAVE_IT}")
    try:
        import_result_classes(path)
        return torch_internals.load_exported(path)
    except errors.MinidbgError:
        raise
    except Exception as error:  # a damaged or foreign archive fails anywhere in torch's reader
        what = f"torch.export cannot load it ({type(error).__name__}: {failure_head(error)})"
        what = getattr(error, "strerror", None) or what
        raise errors.UnreadableRepro(f"{path}: {what}; {SAVE_IT}") from error


def import_result_classes(path: Path) -> None:
    """Import the modules of classes that the program returns (transformers has many): torch reads
    those that their module has registered."""
    with zipfile.ZipFile(path) as archive:
        models = [name for name in archive.namelist() if name.endswith("models/model.json")]
        text = "".join(archive.read(name).decode(errors="replace") for name in models)
    for module in sorted(set(RESULT_CLASS.findall(text))):
        with contextlib.suppress(Exception):  # then torch says what it lacks
            importlib.import_module(module)


def cases_of_exported(program: ExportedProgram, backend: ChosenBackend) -> Iterator[Case]:
    """The graph in inference, then in training. Raises UnreadableRepro, and what dynamo raises on
    a program that it cannot capture."""
    if program.example_inputs is None:
        advice = "set its example_inputs = (args, kwargs), and save it again"
        raise errors.UnreadableRepro(f"the program of torch.export has no example inputs; {advice}")
    args, kwargs = program.example_inputs
    placeholders = program.graph.find_nodes(op="placeholder")
    symbolic = any(torch_internals.symbols_in(node.meta.get("val")) for node in placeholders)
    module = program.module(check_guards=False)
    graph_module, inputs = capture_by_dynamo(
        lambda args, kwargs: module(*args, **kwargs), (args, kwargs), dynamic=symbolic or None
    )
    notes = ["from a program of torch.export"]
    case = case_of(graph_module, inputs, backend, context=Context(), notes=notes, dynamic=symbolic)
    yield case.with_spec(context=Context(grad=False))
    if need_grad(inputs):
        yield case.with_spec(backward=True)


# --- repros of torch's minifier ---

MARK = "torch._dynamo.repro.after_"
INNER = "torch._inductor.compile_fx:compile_fx_inner"
"""What a graph of AOTAutograd is compiled with."""
OPTION = re.compile(r"\s*torch\.[\w.]*config\.[\w.]+ = ")
"""A line that sets an option of torch, as torch writes it."""
NOT_THE_FILES = frozenset({"compile_threads", "fake_tensor_allow_unsafe_data_ptr_access"})
"""Options that our children have, and that torch's minifier sets itself."""

log = logging.getLogger("minidbg")


class UnreadableTorchRepro(errors.UnreadableRepro):
    """A repro of torch's minifier that becomes no case; the message says why, with the line."""

    advice = "mend that by hand"


def is_torch_repro(path: Path) -> bool:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return MARK in text and "load_args" in text and "# [tool.minidbg]" not in text


def cases_of_torch_repro(
    path: Path, backend: str | CompilerFn | None, *, seconds: float = SECONDS
) -> Iterator[Case]:
    """Forms in which the file's failure may show, the most readable first; ``backend`` replaces its
    own. Raises UnreadableTorchRepro, UnknownBackend, BackendUnreachable."""
    wanted = asdict(backend_named(backend).ref) if backend is not None else None
    with tempfile.TemporaryDirectory(prefix="minidbg-") as folder:
        request = workers.Request(
            call=f"{__name__}:list_forms",
            argument={"path": str(path.absolute()), "folder": folder, "backend": repr(wanted)},
            seconds=seconds,
            fork=workers.Warmup(warm="imports"),
        )
        done = workers.submit(request).result()
        if not done.answered:
            late = f"ran for more than {seconds:g} s"
            how = late if done.timed_out else f"ended by {died_by(done)}"
            raise UnreadableTorchRepro(f"{path}: the process that executed it {how}")
        for said in done.value["skipped"]:
            log.warning("minidbg: %s: left out: %s", path.name, said)
        if done.value["refused"]:
            raise UnreadableTorchRepro(f"{path}: {done.value['refused']}")
        for form in map(Path, done.value["forms"]):
            case = repro.load(form)
            yield case
            if case.spec.context.grad and need_grad(case.inputs):
                yield case.with_spec(backward=True)


# --- in the child ---


def list_forms(argument: Mapping[str, Any], note: object) -> dict[str, Any]:
    """The files of the cases made from the file at ``path``, or why none; and what was left out."""
    ref = ast.literal_eval(argument["backend"])
    replacing = ChosenBackend(BackendRef(**ref), "") if ref is not None else None
    execution = Execution(Path(argument["path"]), Path(argument["folder"]), replacing)
    return {"refused": execution.run(), "forms": execution.forms, "skipped": execution.skipped}


@dataclass
class Execution:
    """A file of torch's minifier, in a process that is the file's from now on."""

    path: Path
    folder: Path
    replacing: ChosenBackend | None
    forms: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def run(self) -> str:
        sys.argv[:], sys.path[:0] = [str(self.path)], [str(self.path.parent)]
        torch_internals.replace_run_repro(self.record)
        lines = self.path.read_text(encoding="utf-8").splitlines()
        while True:
            try:
                run_as_module("__main__", "\n".join(lines), __file__=str(self.path))
            except errors.MinidbgError as error:
                return str(error)
            except SystemExit as error:
                if self.forms:
                    return ""
                return f"line {line_of(error)} ends it, with status {error.code!r}"
            except Exception as error:  # noqa: BLE001 - somebody's code
                number = line_of(error)
                line = lines[number - 1]
                if not OPTION.match(line):
                    # msg: the text of a SyntaxError has a line of its own
                    said = failure_head(getattr(error, "msg", error))
                    return f"line {number}, {line.strip()[:80]}: {type(error).__name__}: {said}"
                lines[number - 1] = ""
                self.skipped.append(f"line {number}: {failure_head(error)}")
            else:
                return "it never calls run_repro"

    def record(
        self,
        level: Level,
        mod: nn.Module,
        load_args: Callable[[Any], object],
        *,
        save_dir: str | None = None,
        autocast: bool = False,
        backend: Any = "inductor",
        **_: Any,
    ) -> NoReturn:
        """Replaces ``run_repro``: writes its cases, in the modes that are on, and ends the file."""
        # the folder that the file names, or one beside a moved file
        folders = [self.path.parent / "checkpoints", self.path.parent]
        folders[:0] = [Path(save_dir)] if save_dir else []
        stored = next((folder for folder in folders if (folder / "storages").is_dir()), None)
        reader = torch_internals.input_reader(str(stored) if stored else None)
        torch.manual_seed(0)
        load_args(reader)
        device = next(iter(devices_of(reader.args)), torch.device("cpu"))
        with torch.autocast(device.type, enabled=autocast):
            context = replace(current_context(), threads=None, config=config_of_the_file())
        symbolic = any(type(value) is int for value in reader.args)
        graph_module, values = capture_by_dynamo(mod, reader.args, dynamic=symbolic or None)
        notes = [f"left out: {one}" for one in self.skipped]
        notes += [] if stored else ["its storages are not there, so torch's random values stand in"]
        notes += [f"from {self.path.name}, which torch's minifier wrote"]
        form = partial(case_of, graph_module, values, notes=notes, dynamic=symbolic)
        used = self.replacing or own_backend(backend if level is Level.DYNAMO else "inductor")
        forms = [form(used, context=context)]
        if level is Level.ATEN and self.replacing is None:
            inner = form(backend_named(INNER), context=replace(context, grad=False))
            forms.append(inner.with_spec(level=Level.ATEN, call=CallPath.DIRECT))
        for number, one in enumerate(forms):
            path = self.folder / f"form_{number}.py"
            exact = partial(repro.write, form=repro.Form.CAPTURE, exactness=repro.Exactness.EXACT)
            self.forms.append(str(exact(one, path, value_limit_bytes=sys.maxsize)))
        raise SystemExit


def config_of_the_file() -> dict[str, dict[str, Any]]:
    """Options of torch that differ from their defaults because the file has set them."""
    config: dict[str, dict[str, Any]] = {}
    for module in (*CONFIG_MODULES, "torch.fx.experimental._config"):
        for name, value in literal_config(module).items():
            if name not in NOT_THE_FILES:
                config.setdefault(module, {})[name] = value
    return config


def line_of(error: BaseException) -> int:
    """The file's line that raised ``error``, or that is no Python."""
    frames = traceback.extract_tb(error.__traceback__)
    numbers = [frame.lineno for frame in frames if frame.filename == "<__main__>"]
    return next(iter(numbers[::-1]), getattr(error, "lineno", None)) or 1


def own_backend(named: Any) -> ChosenBackend:
    """Raises UnreadableTorchRepro where no fresh process can have it."""
    try:
        if not isinstance(named, str) and not callable(named):
            raise errors.BackendUnreachable("torch had no name for it")
        return backend_named(named)
    except (errors.UnknownBackend, errors.BackendUnreachable) as error:
        why = str(error).partition(". ")[0].partition("; ")[0]
        advice = "name it, or another one: --backend NAME, or module:attribute"
        raise UnreadableTorchRepro(f"its backend is {named!r}: {why}; {advice}") from error
