"""A repro script as a command and as a pytest module: finds the backend, asks the judge, prints the verdict.

``judge/command.py`` runs it on any repro; standalone scripts embed it after the judge. ``script`` is the script's ``globals()``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from minidbg.judge.harness import attempt, brief, outcome
from minidbg.words.outcome import EXIT_STATUS, Verdict
from minidbg.words.run_spec import Level, RunSpec
from minidbg.words.script_header import read_table

# --- embedded from here ---


class Unavailable(Exception):
    """What the case needs is not here: a module, a device, the backend."""


def judge_script(
    script: dict[str, Any], spec: RunSpec, device: str | None, backend: str | None, note: Any
) -> dict[str, Any]:
    """Run the script's case on ``device`` with ``backend``, each as the script has it unless given."""
    moved = device is not None
    device = device or spec.device
    try:
        own = script.get("backend") or (lambda: spec.backend.name)
        compiler = find_backend(own, spec.backend.paths, backend)
        need_device(device)
    except Unavailable as missing:
        return outcome("skipped", str(missing), device=device)
    if spec.level is Level.ATEN and isinstance(compiler, str):
        reason = f"a compiler for aot_autograd is needed (module:attribute), and {compiler!r} is a backend"
        return outcome("skipped", reason, device=device)
    make = script.get("graph") or script["Repro"]
    result = attempt(
        lambda: make().to(device) if moved else make(),
        lambda: tuple(script["inputs"](device)),
        compiler,
        spec,
        note,
        script.get("differ"),
    )
    return {**result, "device": device}


def find_backend(own: Callable[[], Any], paths: tuple[str, ...], wanted: str | None) -> Any:
    """What ``own()`` gives, the script's ``backend()``, or ``--backend``: a registered name or ``module:attribute``."""
    found = None
    for folders in ((), paths) if paths else ((),):
        sys.path += folders
        try:
            found = own()
            break
        except ImportError as error:
            missing = Unavailable(f"the backend's modules are not all here: {brief(error)}")
        except Exception as error:  # noqa: BLE001 - a broken backend module cannot be judged
            missing = Unavailable(f"the backend cannot be loaded: {brief(error)}")
    else:
        if wanted is None:
            raise missing
    try:
        if wanted and ":" in wanted:
            module, _, attribute = wanted.partition(":")
            return getattr(importlib.import_module(module), attribute)
        if wanted and wanted not in torch.compiler.list_backends(()):
            importlib.import_module(wanted)  # a package often registers a backend of its name
    except (ImportError, AttributeError) as error:
        raise Unavailable(f"no backend {wanted!r} here: {brief(error)}") from None
    compiler = wanted or found
    if compiler is ...:
        raise Unavailable("its backend() is to be filled in, with what torch.compile gets as its backend")
    if isinstance(compiler, str) and compiler not in torch.compiler.list_backends(()):
        raise Unavailable(f"no backend named {compiler!r} is registered here")
    return compiler


def need_device(device: str) -> None:
    try:
        torch.empty(1, device=device)
    except Exception as error:  # noqa: BLE001 - a plugin's own error types, all mean: not here
        raise Unavailable(f"no device {device!r} here: {brief(error)}") from None


def outcome_of(
    script: dict[str, Any],
    device: str | None = None,
    backend: str | None = None,
    tell: Callable[[str], object] | None = None,
    tolerances: Any = None,
) -> dict[str, Any]:
    """Judge the script here, or in a child process (crash, hang; ``tell`` is the child's way to say what it does).

    ``tolerances`` stand for the header's. A flaky failure gets the header's number of attempts. A fault of the script
    itself is ``invalid``.
    """
    try:
        spec = spec_of(script)
        if tolerances:
            spec = replace(spec, tolerances=tolerances)
        if tell is not None:
            return judge_script(script, spec, device, backend, lambda phase: tell("phase " + phase))
        return shown_in(spec.attempts, lambda: one_outcome(script, spec, device, backend))
    except Exception as error:  # noqa: BLE001 - else Python would exit with 1, which means "reproduces"
        traceback.print_exc()
        return outcome("invalid", f"the script itself failed: {brief(error)}")


def spec_of(script: dict[str, Any]) -> RunSpec:
    """How the script is run: what its caller made of its header, or what that says. Raises OSError and DAMAGE."""
    spec: RunSpec = script.get("spec") or RunSpec.from_table(read_table(script["__file__"]))
    return spec


def one_outcome(
    script: dict[str, Any], spec: RunSpec, device: str | None, backend: str | None
) -> dict[str, Any]:
    if "judge_in_child" in script:
        command = script.get("judge_command") or [sys.executable, "-X", "faulthandler", script["__file__"]]
        return dict(script["judge_in_child"](command, spec, device, backend))
    return judge_script(script, spec, device, backend, lambda phase: None)


def shown_in(attempts: int, judge: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The outcome of the first of at most ``attempts`` runs that does not pass."""
    for run in range(1, attempts + 1):
        found = judge()
        if found["verdict"] == "reproduces" and run > 1:
            return {**found, "verdict": "flaky", "reproduced": 1, "runs": run}
        if found["verdict"] != "gone":
            break
    return {**found, "runs": run, "reproduced": 0} if attempts > 1 and found["verdict"] == "gone" else found


def sentence(found: dict[str, Any], backend: str) -> str:
    verdict, signature = found["verdict"], found["signature"]
    if signature is None or found["reason"]:
        return f"{verdict}: {found['reason'] or f'{backend} handles this model'}"
    what = {
        "compile": f"{backend} fails to compile",
        "runtime": f"the code that {backend} made fails",
        "accuracy": f"the code that {backend} made gives wrong results",
        "crash": f"the process dies in {backend}",
        "hang": f"{backend} does not come back",
    }[signature["kind"]]
    if signature["message"] == "output: stride":
        what = f"the code that {backend} made gives another layout than eager"
    where = " in backward" if signature["direction"] == "backward" else ""
    said = " ".join(found["message"].split())[:200]
    if verdict == "flaky":
        where += f" ({found['reproduced']} of {found['runs']} runs)"
    return f"{verdict}: {what}{where}" + (f": {said}" if said else "")


def main(script: dict[str, Any], argv: list[str] | None = None) -> int:
    """Judge the script whose globals are ``script``, print the verdict, return the exit status."""
    options = parse_arguments(argv)
    try:
        with clean_stdout() as say:
            tell = say if options.child else None
            found = outcome_of(script, options.device, options.backend, tell, options.tolerances)
            for line in report(found, script, options):
                say(printable(line))
    except Exception:  # noqa: BLE001 - as in outcome_of
        traceback.print_exc()
        return 125
    status = exit_status(found)
    return 125 if options.bisect and status == 3 else status


def exit_status(found: dict[str, Any]) -> int:
    return EXIT_STATUS[Verdict(found["verdict"])]


def printable(line: str) -> str:
    """``line`` with what a terminal would obey shown as escapes: it may quote an exception."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in line)


def report(found: dict[str, Any], script: dict[str, Any], options: argparse.Namespace) -> Iterator[str]:
    """The lines to print: the verdict first, or one JSON object."""
    try:
        spec = spec_of(script)
        name, expected = spec.backend.name, spec.signature and spec.signature.to_table()
    except Exception:  # noqa: BLE001 - the outcome says so already
        name, expected = "the backend", None
    backend = options.backend or name
    if options.json or options.child:
        about = {"repro": script["__file__"], "backend": backend, "torch": torch.__version__}
        yield json.dumps({**found, **about}, default=str)
        return
    yield sentence(found, backend)
    yield from figures(found["figures"])
    if exit_status(found) == 3:
        yield f"  expected: {expected}"
        yield f"  got:      {found['signature']}"


def figures(found: dict[str, Any]) -> Iterator[str]:
    """The error figures of wrong results, a line for each run that they come from."""
    if "expected" in found:
        at = f" at {found['index']}" if found.get("index") else ""
        yield f"  {found['where']}{at}: eager gives {found['expected']}, the backend {found['actual']}"
    if "wrong" in found:
        worst = f", at worst by {short(found['max_abs'])}" if "max_abs" in found else ""
        yield f"  {found['wrong']} of {found['elements']} elements are off by more than allowed{worst}"
    if "rmse_eager" in found:
        compiled, eager, allowed = (short(found[f"rmse_{name}"]) for name in ("compiled", "eager", "allowed"))
        whose = f"eager's in {found['precision']}" if "precision" in found else "eager's own"
        yield f"  rmse against eager in float64: the backend's {compiled}, {whose} {eager}, allowed {allowed}"
    if "excess" in found:
        yield f"  that is {short(found['excess'])} times what is allowed"


def short(number: Any) -> str:
    return f"{number:.3g}" if isinstance(number, float) else str(number)


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> Any:
            self.exit(125, f"{self.prog}: {message}\n")  # argparse's own status is 2

    parser = Parser(
        description="Exit status: 0 gone, 1 reproduces, 3 fails differently, 125 cannot be judged here."
    )
    parser.add_argument("--device", help="run on this device instead: cpu, cuda, cuda:1")
    parser.add_argument(
        "--backend", help="run with this backend instead: a registered name, or module:attribute"
    )
    parser.add_argument(
        "--tolerances",
        nargs="+",
        metavar="NUMBER",
        help="what floats may be off eager's: relative and absolute; or bfloat16, float16 or tf32, by design",
    )
    parser.add_argument("--json", action="store_true", help="print the outcome as one JSON object")
    parser.add_argument(
        "--bisect", action="store_true", help="for git bisect run: exit with 125 where it would be 3"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.tolerances and options.tolerances[0] in ("bfloat16", "float16", "tf32"):
        options.tolerances = options.tolerances[0]
    elif options.tolerances:
        try:
            relative, absolute = map(float, options.tolerances)
        except ValueError:
            parser.error("--tolerances takes two numbers, or one of bfloat16, float16 and tf32")
        options.tolerances = {"any": (relative, absolute)}
    return options


@contextlib.contextmanager
def clean_stdout() -> Iterator[Callable[[str], object]]:
    """Give a ``print`` to the real stdout, while all that backends and compilers print goes to stderr."""
    sys.stdout.flush()
    real = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield lambda text: os.write(real, (text + "\n").encode(errors="backslashreplace"))
    finally:
        sys.stdout.flush()
        os.dup2(real, 1)
        os.close(real)


def check_with_pytest(script: dict[str, Any]) -> None:
    """Pass when the failure is gone, fail while it is there, skip where it cannot be judged."""
    import pytest

    found = outcome_of(script)
    text = sentence(found, "the backend")
    if exit_status(found) == 125:
        pytest.skip(text)
    if found["verdict"] != "gone":
        pytest.fail(text, pytrace=False)
