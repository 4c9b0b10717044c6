"""What makes two failures the same: told from live exceptions and from texts that torch has really written."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from minidbg.core.outcome import Kind, Signature
from minidbg.judge.signature import also_imported, function_name, phase_of, signature_of, stable_message


def raised(function: Callable[[], Any]) -> BaseException:
    try:
        function()
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is what the test is about
        return error
    raise AssertionError("nothing was raised")


def in_module(name: str, source: str) -> types.ModuleType:
    """A module of that name with that source, so that frames come from it."""
    module = types.ModuleType(name)
    exec(compile(source, f"/site-packages/{name.replace('.', '/')}.py", "exec"), module.__dict__)
    return module


def message_of(text: str) -> str:
    return stable_message([ValueError(text)])


@pytest.mark.parametrize(
    ("large", "small"),
    [
        ("'buf74'", "'buf1'"),
        ("cannot lower %relu_17 : f32[4, 8]", "cannot lower %y : f32[8]"),
        ("no kernel for relu_17", "no kernel for relu"),
        ("input arg31_1 of shape [2, 3, 4] at 0x7ffab3", "input arg0_1 of shape [7] at 0x11"),
        ("size mismatch: torch.Size([]) and torch.Size([3, 5])", "size mismatch: torch.Size([2]) and torch.Size([5])"),
        (
            "kernel, /tmp/torchinductor_me/th/cthj5ddfffariuf63aeaa4pr5n5iyu7cnpd4k634ot3uetse3nrk.main.cpp:182, "
            "index out of bounds: 0 <= tmp56 < 16L",
            "kernel, /var/cache/aa/c3fdkmlxbz7bwtxx4e7cyvbdcwzmqwhv4hktt2v5xxpmlpr62pmo.main.cpp:9, "
            "index out of bounds: 0 <= tmp3 < 4L",
        ),
        (
            "expected size 4==4, stride 1==5 at dim=0; expected size 5==5, stride 4==1 at dim=1\nError in op: x.y",
            "expected size 7==7, stride 2==3 at dim=0\nError in op: x.y",
        ),
        ("cpp_fused_add_relu_sin_12 failed", "cpp_fused_relu_0 failed"),
        ("missing L_self_modules_h_modules_3_parameters_weight_", "missing L_x_"),
        ("took 3.5e-07 s of -12 s", "took 1 s of 4 s"),
        ("\x1b[31mbad\x1b[0m   dim\n\n  3", "bad dim\n 17"),
        ("relu failed\nWhile executing %relu : [num_users=1]", "relu failed\n\nWhile executing %y"),
        (
            "boom\nSet TORCHDYNAMO_VERBOSE=1 for the internal stack trace",
            "boom",
        ),
        (
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 7.12 MiB is free. "
            "Process 9 has 540.00 MiB memory in use. Process 12 has 1.50 GiB memory in use. Of the allocated memory 3 KiB is allocated",
            "CUDA out of memory. Tried to allocate 4.00 GiB. GPU 1 has a total capacity of 79.10 GiB of which 1.00 GiB is free. "
            "Including non-PyTorch memory, this process has 77.00 GiB memory in use.",
        ),
    ],
)  # fmt: skip
def test_message_is_the_same_in_a_large_and_a_small_graph(large: str, small: str) -> None:
    assert message_of(large) == message_of(small)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no kernel for relu", "no kernel for gelu"),
        ("expected scalar type Float but found Half", "expected scalar type Half but found Float"),
        ("conv2d failed", "conv3d failed"),
        ("", "x"),
        ("missing aten.cumsum.default", "missing aten.cumprod.default"),
    ],
)
def test_message_keeps_what_tells_failures_apart(one: str, other: str) -> None:
    assert message_of(one) != message_of(other)


def test_compiler_errors_are_told_by_their_error_lines_not_by_the_command() -> None:
    text = (
        "C++ compile error\n\nCommand:\ng++ /tmp/a/cab.main.cpp -D TORCH_X=1 -o /tmp/a/cab.so\n\nOutput:\n"
        "/tmp/a/cab.main.cpp: In function 'void kernel(const float*, float*)':\n"
        "/tmp/a/cab.main.cpp:14:29: error: 'tmp12' was not declared in this scope\n"
        "   14 |   auto tmp13 = tmp12 + 1;\n"
    )
    assert message_of(text) == "'tmp#' was not declared in this scope"
    assert message_of(text.replace("'tmp12'", "\u2018tmp12\u2019")) == message_of(
        text
    )  # gcc in a UTF-8 locale


def test_message_is_at_most_400_characters_and_quick_for_a_megabyte() -> None:
    assert len(message_of("word " * 200_000)) <= 400
    assert len(message_of("0x1f [1, 2] /a/b/c; " * 50_000)) <= 400


def test_lowering_errors_keep_the_target_and_lose_the_arguments() -> None:
    inductor = in_module(
        "torch._inductor.exc",
        "class LoweringException(RuntimeError): pass\n"
        "def lower(buffer):\n"
        "    try:\n"
        "        assert False, 'max not supported'\n"
        "    except AssertionError as e:\n"
        "        raise LoweringException(f'AssertionError: {e}\\n  target: aten.cumsum.default\\n"
        "  args[0]: TensorBox({buffer})') from None\n",
    )
    one, two = (
        signature_of(raised(lambda name=name: inductor.lower(name)), "compile") for name in ("buf2", "buf95")
    )
    assert one == two
    assert one.types == ("torch._inductor.exc.LoweringException", "AssertionError")
    assert one.message == "max not supported target: aten.cumsum.default"
    assert one.frames == ("torch._inductor.exc:lower",)


def test_chain_follows_causes_and_leaves_dynamo_out() -> None:
    dynamo = in_module(
        "torch._dynamo.exc",
        "class BackendCompilerFailed(RuntimeError):\n"
        "    def __init__(self, inner): self.inner_exception = inner; super().__init__(str(inner))\n",
    )
    inner = ValueError("lowering failed")
    inner.__cause__ = KeyError("buf1")
    table = signature_of(dynamo.BackendCompilerFailed(inner))
    assert table.types == ("ValueError", "KeyError")
    assert table.message == "lowering failed"
    assert table.kind == "compile"


def test_chain_that_bites_its_tail_ends() -> None:
    one, two = ValueError("a"), ValueError("b")
    one.__cause__, two.__cause__ = two, one
    assert signature_of(one, "runtime").types == ("ValueError", "ValueError")


def test_frames_are_the_backends_and_not_the_carriers() -> None:
    backend = in_module("acme.lowering", "def lower(raise_it): return [raise_it() for _ in 'x']\n")
    fx = in_module("torch.fx.interpreter", "def run(lower, fail): lower(fail)\n")
    outer = in_module("minidbg.wrapper", "def call(run, lower, fail): run(lower, fail)\n")
    deep = in_module("acme.ops", "def fail(): raise ValueError('x')\n")
    table = signature_of(raised(lambda: outer.call(fx.run, backend.lower, deep.fail)), "compile")
    assert table.frames == ("acme.ops:fail", "acme.lowering:lower")


def test_frames_of_torchs_dispatch_modes_do_not_count() -> None:
    """AOTAutograd's mode is around the first call of a compiled function only: both calls show one failure."""
    ops = in_module(
        "torch._ops", "class OpOverload:\n    def __call__(self): raise RuntimeError('one dtype')\n"
    )
    mode = in_module(
        "torch._functorch._aot_autograd.runtime_wrappers",
        "class _AnalyzeCustomOpInputOutputMode:\n    def __torch_dispatch__(self, func): func()\n",
    )
    kernel = in_module("acme.kernel", "def mm(call, op): call(op)\n")
    within = mode._AnalyzeCustomOpInputOutputMode().__torch_dispatch__
    first, second = (
        signature_of(raised(lambda call=call: kernel.mm(call, ops.OpOverload())), "runtime")
        for call in (within, operator.call)
    )
    assert first == second
    assert first.frames[0] == "acme.kernel:mm"


def test_what_makes_another_failure_is_told_by_its_fields() -> None:
    expected = Signature(Kind.RUNTIME, types=("RuntimeError",), frames=("a:f", "a:g"), message="no mm")
    same_words = replace(expected, frames=("b:h", "a:g"))
    assert expected.unlike(same_words) == "the same message; frames: expected a:f, got b:h"
    other = replace(expected, kind=Kind.COMPILE, types=(), message="no add")
    assert expected.unlike(other) == (
        "message: expected no mm, got no add; kind: expected runtime, got compile; types: expected RuntimeError, got none"
    )


def test_frames_above_the_call_of_the_backend_do_not_count() -> None:
    dynamo = in_module("torch._dynamo.output_graph", "def call_user_compiler(backend): backend()\n")
    backend = in_module("acme.lowering", "def lower(): raise ValueError('x')\n")
    user = in_module("train", "def step(call, backend): call(backend)\n")
    table = signature_of(raised(lambda: user.step(dynamo.call_user_compiler, backend.lower)))
    assert (table.kind, table.frames) == ("compile", ("acme.lowering:lower",))


def test_generated_code_and_scripts_loaded_by_path_have_one_name() -> None:
    kernel = in_module(
        "torch._inductor.runtime.compile_tasks.cabc", "class Runner:\n    def call(self): boom()\n"
    )
    script = in_module("minidbg_backend_0a1b2c3d", "class Odd(Exception): pass\ndef boom(): raise Odd('x')\n")
    script.Odd.__module__ = "minidbg_backend_0a1b2c3d"
    kernel.boom = script.boom
    table = signature_of(raised(kernel.Runner().call), "runtime")
    assert table.frames[:2] == ("<script>:boom", "<generated>:call")
    assert table.types == ("<script>.Odd",)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("no truth value of 8*((s58//4)) < 8", "no truth value of 1 < s72", True),
        ("no truth value of Max(1, s72) >= u0", "no truth value of (((s6 - 1)//4) + 1)*(s5 + 8) < 8", True),
        ("size s3 but got 4*s3 in dim 1", "size 12 but got 4 in dim 0", True),
        ("no truth value of 1 < s72", "no value of 1 < s72", False),
        ("float32 + 1", "int64 + s1", False),
        ("size s3 in dim 1", "size of dim 1", False),
    ],
)
def test_a_message_is_the_same_whatever_its_symbolic_sizes_are(one: str, other: str, same: bool) -> None:
    tables = [signature_of(TypeError(text), "compile") for text in (one, other)]
    first, second = tables
    assert first.matches(second) is second.matches(first) is same


def test_a_device_in_error_tells_no_frames_since_whichever_call_came_next_raises() -> None:
    def one_call() -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    def another() -> None:
        one_call()

    first, second = (signature_of(raised(call)) for call in (one_call, another))
    assert first == second
    assert first.types == ("torch.AcceleratorError",)


def test_recursion_has_no_frames_since_its_end_is_chance() -> None:
    def forever() -> None:
        forever()

    assert signature_of(raised(forever), "compile").frames == ()


@pytest.mark.parametrize(
    ("qualified", "expected"),
    [
        ("lower.<locals>.<listcomp>", "lower"),
        ("lower.<locals>.inner.<locals>.<lambda>", "lower.inner"),
        ("Lowering.run.<locals>.<genexpr>", "Lowering.run"),
        ("<lambda>", "<lambda>"),
        ("<module>", "<module>"),
    ],
)
def test_function_names_are_the_same_in_every_python(qualified: str, expected: str) -> None:
    assert function_name(qualified) == expected


def test_exceptions_with_hostile_text_are_only_text() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            return "\x00\x1b]0;title\x07 \ud800 '''\n# ///"

    table = signature_of(raised(lambda: (_ for _ in ()).throw(Odd())), "compile")
    assert "\x1b" not in table.message
    assert "\x00" not in table.message
    table.message.encode()


def test_exception_whose_text_cannot_be_had_still_has_a_signature() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    table = signature_of(raised(lambda: (_ for _ in ()).throw(Broken())), "compile")
    assert table.types[0].endswith("Broken")
    assert table.message == ""


def test_a_compiler_that_says_the_same_of_each_loop_has_said_it_once() -> None:
    said = "k.cpp:4:1: error: 'foo' was not declared\n"
    one, two = (signature_of(RuntimeError(text), "compile").message for text in (said, said * 2))
    assert one == two


CONVERT = in_module("torch._dynamo.convert_frame", "def passes(on): on()\n")
OUTPUT = in_module("torch._dynamo.output_graph", "def call_user_compiler(on): on()\n")
EVAL = in_module(
    "torch._dynamo.eval_frame",
    "class DisableContext:\n    @staticmethod\n    def passes(on): on()\n"
    "class _TorchDynamoContext:\n    @staticmethod\n    def passes(on): on()\n"
    "    @staticmethod\n    def stops(): raise KeyError\n",
)
AUTOGRAD = in_module(
    "torch._functorch.runtime",
    "def get_or_compile(on): on()\ndef call_func_at_runtime_with_args(on): on()\n",
)


def boom() -> None:
    raise KeyError


@pytest.mark.parametrize(
    ("stack", "direction", "phase"),
    [
        ([boom], "forward", "runtime"),
        ([CONVERT.passes, OUTPUT.call_user_compiler, boom], "forward", "compile"),
        ([EVAL.DisableContext.passes, boom], "forward", "runtime"),
        ([EVAL.DisableContext.passes, OUTPUT.call_user_compiler, boom], "forward", "runtime"),
        ([CONVERT.passes, EVAL.DisableContext.passes, boom], "forward", "tracing"),
        ([CONVERT.passes, boom], "forward", "tracing"),
        ([EVAL._TorchDynamoContext.passes, EVAL._TorchDynamoContext.stops], "forward", "tracing"),
        ([EVAL._TorchDynamoContext.passes, boom], "forward", "runtime"),
        ([AUTOGRAD.get_or_compile, boom], "backward", "compile"),
        ([AUTOGRAD.get_or_compile, AUTOGRAD.call_func_at_runtime_with_args, boom], "backward", "runtime"),
        ([boom], "backward", "runtime"),
    ],
)
def test_the_stack_tells_what_was_under_way(stack: list[Any], direction: str, phase: str) -> None:
    """What dynamo runs with itself disabled while it traces is no code that a backend has made."""

    def called(place: int) -> None:
        if place + 1 == len(stack):
            stack[place]()
        else:
            stack[place](lambda: called(place + 1))

    assert phase_of(raised(lambda: called(0)), direction) == phase


def test_what_fails_in_the_program_s_script_fails_so_where_that_script_is_imported() -> None:
    source = "class NoKernel(Exception): pass\ndef make():\n    def backend():\n        raise NoKernel('for sin')\n    return backend"

    def seen_in(name: str) -> Signature:
        return signature_of(raised(in_module(name, source).make()), "compile")

    here, imported, elsewhere = map(seen_in, ("__main__", "train", "other"))
    assert not here.matches(imported)
    both = also_imported(here, "train")
    assert both.matches(here)
    assert both.matches(imported)
    assert not both.matches(elsewhere)
    assert also_imported(elsewhere, "train") is elsewhere
