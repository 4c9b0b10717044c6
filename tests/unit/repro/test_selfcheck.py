"""The few lines by which a repro judges itself: what they let pass, and what they do not."""

import re
import sys
import traceback
from dataclasses import replace

import pytest
import torch
from compiler_says import COMPILER_SAYS, CppCompileError, compile_error
from support.command_line import python
from torch import fx

from minidbg.core.outcome import Direction, Kind, Signature
from minidbg.core.run_spec import BackendRef, CallPath, Level, Provenance, RunSpec
from minidbg.fx.case import Case
from minidbg.fx.copying import capture_by_dynamo
from minidbg.judge.run import first_lines
from minidbg.judge.signature import NO_GUARDS, meaningful_lines, signature_of
from minidbg.repro import NoShortForm, load, render, write
from minidbg.repro.selfcheck import text_pattern, written_pattern


@pytest.mark.parametrize(
    ("message", "same", "others"),
    [
        ("IndexError: tuple index out of range", [], ["KeyError: tuple index out of range"]),
        (
            "RuntimeError: kernel /tmp/a/b1/cx.cpp:12 of buf12 at 0x7f00 got 3 of [4, 5]",
            ["RuntimeError: kernel /home/u/xy/z.cpp:9 of buf3 at 0x1 got 17 of [4, 5, 6]"],
            ["RuntimeError: kernel /tmp/a/b.cpp of buf1 at 0x1 lost 3 of [4]", "RuntimeError: kernel"],
        ),
        (
            "TypeError: no truth value of Relational: 8*((s58//4)) < 8",
            ["TypeError: no truth value of Relational: 1 < s72"],
            ["TypeError: no value of Relational: 8*((s58//4)) < 8"],
        ),
        (
            "AssertionError: expected size 2==2, stride 1==640 at dim=0; expected size 20==20, stride 2==32 at dim=1;"
            " expected size 32==32, stride 40==1 at dim=2\nError in op: scale",
            [
                "AssertionError: expected size 2==2, stride 1==2 at dim=0; expected size 4==4, stride 2==1 at dim=1"
            ],
            ["AssertionError: expected size 2==2 at dim=0"],
        ),
        ("KeyError: 'buf1'", ["KeyError: 'buf74'"], ["KeyError: 'x'"]),
        ("ValueError: a.b (c)* [d]?", [], ["ValueError: axb (c)* [d]?"]),
        (
            "CppCompileError: C++ compile error\nOutput:\n/tmp/x/y.cpp:3: error: 'tmp5' was not declared\nmore",
            ["CppCompileError: C++ compile error\nOutput:\n/q/z/r.cpp:8: error: 'tmp7' was not declared"],
            ["CppCompileError: C++ compile error\nOutput:\n/q/z/r.cpp:8: error: expected ';'"],
        ),
    ],
)
def test_the_pattern_is_wild_where_runs_differ_and_nowhere_else(message, same, others):
    pattern = eval(written_pattern(text_pattern(message)))
    assert all(re.search(pattern, text) for text in (message, *same))
    assert not any(re.search(pattern, text) for text in others)


def lines_that_search(script):
    """The lines of a script by which it says that an ``error`` is the ``same``."""
    lines = [line.strip() for line in script.splitlines()]
    return compile("\n".join(lines[lines.index("traceback.print_exc()") + 1 :][:3]), "<lines>", "exec")


def script_recognises(script, error):
    names = {"re": re, "traceback": traceback, "_error": error}
    exec(lines_that_search(script), names)
    return names["_same"] is not None


@pytest.mark.parametrize("locale", COMPILER_SAYS)
def test_a_compiler_s_error_is_told_in_every_locale(locale, make_case):
    """g++ quotes names otherwise in each locale, and colours what it says."""
    error, same = compile_error(locale, "tmp5"), compile_error(locale, "tmp71", "b.cpp")
    others = [compile_error(locale, "kernel"), compile_error("C", "tmp5"), CppCompileError("no g++ here")]
    signature = signature_of(error, "compile")
    said = first_lines(error)
    (line,) = meaningful_lines(said)
    assert "tmp5" in line
    text = render(make_case(signature=signature, provenance=Provenance(message=said))).text
    assert script_recognises(text, error)
    assert script_recognises(text, same)
    assert signature_of(same, "compile") == signature_of(error, "compile")
    for other in others:
        is_same = str(other) == str(compile_error("C", "tmp5"))
        assert script_recognises(text, other) is is_same
        found = [signature_of(one, "compile") for one in (error, other)]
        assert found[0].matches(found[1]) is is_same


def test_another_face_of_a_failure_is_recognised_by_what_its_signature_kept(make_case):
    first, second = ValueError("no relu"), compile_error("C.UTF-8", "/a/b/tmp5")
    signature = signature_of(first, "compile")
    both = replace(signature, others=(signature_of(second, "compile"),))
    text = render(make_case(signature=both, provenance=Provenance(message="ValueError: no relu"))).text
    assert script_recognises(text, first)
    assert script_recognises(text, second)
    assert not script_recognises(text, CppCompileError("no g++ here"))


RESULTS = "def b(gm, inputs):\n    return lambda *a: tuple({wrong} for v in gm(*a))"
MUTATES = "def b(gm, inputs):\n    def f(*a):\n        results = gm(*a)\n        {wrong}\n        return results\n\n    return f"
GRADIENTS = """\
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd


def backward(gm, inputs):
    return make_boxed_func(lambda *a: [{wrong} for v in gm(*a)])


b = aot_autograd(fw_compiler=lambda gm, inputs: make_boxed_func(gm.forward), bw_compiler=backward)"""


def twice(x):
    return x * 2


def in_place(x):
    x.mul_(2)
    return x.sin()


WRONG = {
    "float": (twice, torch.randn(4, 8), RESULTS, "v + 1", "v * (1 + 1e-7)", "output: float"),
    "bfloat16": (twice, torch.randn(4, 8).bfloat16(), RESULTS, "v + 1", "v", "output: float"),
    "tiny": (lambda x: x * 1e-9, torch.randn(99), RESULTS, "v * 1.01", "v", "output: float"),
    "complex": (twice, torch.randn(9, dtype=torch.complex64), RESULTS, "v + 1", "v", "output: float"),
    "nan": (twice, torch.randn(9), RESULTS, "v * float('nan')", "v", "output: nan"),
    "integer": (twice, torch.arange(6), RESULTS, "v + 1", "v", "output: integer"),
    "dtype": (twice, torch.randn(4), RESULTS, "v.double()", "v", "output: dtype float64 for float32"),
    "shape": (twice, torch.randn(4), RESULTS, "v[None]", "v", "output: shape"),
    "aliasing": (lambda x: x.view(-1), torch.randn(4, 8), RESULTS, "v.clone()", "v", "output: aliasing"),
    "input": (in_place, torch.randn(4), MUTATES, "a[0].add_(1)", "pass", "input: float"),
    "gradient": (torch.sin, torch.randn(4, requires_grad=True), GRADIENTS, "v * 2", "v", "gradient: float"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_results_are_seen_and_right_ones_pass(name, tmp_path):
    function, value, source, wrong, right, message = WRONG[name]
    graph_module, inputs = capture_by_dynamo(function, (value,))
    backend = BackendRef("b", "b", embedded=source.format(wrong=wrong))
    direction = Direction.BACKWARD if name == "gradient" else Direction.FORWARD
    signature = Signature(Kind.ACCURACY, direction, message=message)
    case = Case(graph_module, inputs, RunSpec(backend, signature=signature, backward=name == "gradient"))
    text = render(case).text
    broken, mended = (namespace_of(one, tmp_path) for one in (text, text.replace(wrong, right)))
    broken["_check"](broken["Repro"]())
    with pytest.raises(AssertionError) as caught:
        broken["test_repro"]()
    assert script_recognises(text, caught.value)
    torch.compiler.reset()
    mended["test_repro"]()


def namespace_of(text, tmp_path):
    namespace = {"__name__": "r", "__file__": str(tmp_path / "r.py")}
    exec(compile(text, str(tmp_path / "r.py"), "exec"), namespace)
    return namespace


def test_tolerances_of_the_case_are_those_of_the_script(make_case):
    signature = Signature(Kind.ACCURACY, message="output: float")
    text = render(make_case(signature=signature, tolerances={"any": (0.5, 0.25)})).text
    assert "torch.float32: (0.5, 0.25)" in text


def test_another_structure_has_no_short_form(make_case):
    with pytest.raises(NoShortForm, match="structure"):
        render(make_case(signature=Signature(Kind.ACCURACY, message="output: structure")))


def aten_relu():
    return fx.symbolic_trace(lambda x: (torch.ops.aten.relu.default(x),)), (torch.randn(4, 8),)


SEES = "def b(gm, inputs):\n    (x,) = inputs\n    raise ValueError(f'saw {type(x).__name__} {type(x.shape[0]).__name__}')"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "saw Tensor int"),
        ({"level": Level.ATEN}, "saw FakeTensor int"),
        ({"level": Level.ATEN, "dynamic": True, "dynamic_dims": ((0,),)}, "saw FakeTensor SymInt"),
        ({"dynamic": True, "dynamic_dims": ((0,),)}, "saw FakeTensor SymInt"),
    ],
    ids=["dynamo", "aten", "aten dynamic", "dynamo dynamic"],
)
def test_a_direct_call_hands_over_what_dynamo_or_aot_autograd_would(fields, said, tmp_path):
    backend = BackendRef("b", "b", embedded=SEES)
    signature = Signature(Kind.COMPILE, types=("ValueError",), message=said)
    case = Case(*aten_relu(), RunSpec(backend, signature=signature, call=CallPath.DIRECT, **fields))
    with pytest.raises(ValueError, match=said):
        namespace_of(render(case).text, tmp_path)["test_repro"]()


def test_folders_of_the_backend_are_tried_after_all_others(make_case, tmp_path):
    backend = BackendRef("b", "b_mod.b", setup=("import b_mod",), paths=("/nowhere/at/all",))
    path = write(make_case(backend=backend), tmp_path / "r.py")
    assert "\nsys.path += ['/nowhere/at/all']  # " in path.read_text()
    (tmp_path / "b_mod.py").write_text("def b(gm, inputs):\n    return gm.forward\n")
    sys.path.insert(0, str(tmp_path))
    try:
        assert load(path).backend.embedded == ""
        assert load(path).backend.paths == ("/nowhere/at/all",)
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("b_mod", None)


DIES = "import os\n\n\ndef b(gm, inputs):\n    os.kill(os.getpid(), 11)"
HANGS = "import time\n\n\ndef b(gm, inputs):\n    time.sleep(600)"
LUCK = "from itertools import count\n\ncalls = count()\n\n\ndef b(gm, inputs):\n    if next(calls) == 3:\n        raise ValueError('bad luck')\n    return gm.forward"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "source", "status"),
    [
        (Kind.CRASH, DIES, 1),
        (Kind.CRASH, "import os\n\n\ndef b(gm, inputs):\n    os._exit(0)", 1),
        (Kind.CRASH, "def b(gm, inputs):\n    return gm.forward", 0),
        (Kind.CRASH, "def b(gm, inputs):\n    raise ValueError", 3),
        (Kind.HANG, HANGS, 1),
        (Kind.HANG, DIES, 3),
        (Kind.COMPILE, LUCK, 1),
    ],
)
def test_a_dangerous_or_flaky_repro_lives_to_tell(kind, source, status, make_case, tmp_path):
    attempts = 5 if kind is Kind.COMPILE else 1
    signature = Signature(kind, types=("ValueError",), message="bad luck")
    case = make_case(backend=BackendRef("b", "b", embedded=source), signature=signature, attempts=attempts)
    path = write(case, tmp_path / "r.py")
    text = path.read_text().replace("no relu here", "bad luck")
    path.write_text(text.replace("timeout=30", "timeout=3") if source is HANGS else text)
    done = python(path, timeout=100)
    assert done.returncode == status, done.stderr


def test_any_error_of_dynamos_guards_is_the_same_failure(make_case):
    """Which of three dynamo raises hangs on the order of hashes, which differs from process to process."""
    signature = Signature(Kind.COMPILE, message=NO_GUARDS)
    case = make_case(signature=signature, provenance=Provenance(message="IndexError: x"))
    judge = lines_that_search(render(case).text)

    def produce_guards_verbose():
        raise AssertionError("sources must not be empty for symbol s9")

    def other():
        raise AssertionError("sources must not be empty for symbol s9")

    for raises, same in ((produce_guards_verbose, True), (other, False)):
        names = {"re": re, "traceback": traceback}
        try:
            raises()
        except AssertionError as error:
            names["_error"] = error
            exec(judge, names)
        assert bool(names["_same"]) is same


def test_gradients_of_a_nested_result_are_asked_for(tmp_path):
    """A reduced graph may return what ``torch.linalg.lu`` gives as it is: a tuple in a tuple."""
    graph_module = fx.symbolic_trace(lambda x: (torch.linalg.lu(x),))
    backend = BackendRef("b", "b", embedded=GRADIENTS.format(wrong="1 / 0"))
    types = ("ZeroDivisionError",)
    signature = Signature(Kind.RUNTIME, Direction.BACKWARD, types, message="division by zero")
    inputs = (torch.randn(2, 2, requires_grad=True),)
    case = Case(graph_module, inputs, RunSpec(backend, signature=signature, backward=True))
    with pytest.raises(ZeroDivisionError):
        namespace_of(render(case).text, tmp_path)["test_repro"]()
