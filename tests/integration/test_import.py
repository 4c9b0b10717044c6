"""Importing minidbg changes nothing in torch, nor in the interpreter that a program would notice.

What torch's own modules do when somebody imports them first is torch's; so they are imported before the comparison, and the last test says
that ``torch.compile`` imports them all anyway.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import python

IMPORTS = (
    "import minidbg.wrapper, minidbg.wrapper.handle, minidbg.library, minidbg.report, minidbg.pytest_plugin"
)
LOADED = """
import json, sys
import torch
known = set(sys.modules)
{}
print(json.dumps([name for name in sys.modules if name not in known]))
"""
STATE = '''
import gc, logging, os, random, signal, sys, threading, types, warnings
import numpy, torch
from torch.utils._config_module import ConfigModule

TORCH = [name for name in sys.modules if name.partition(".")[0] in ("torch", "functorch")]
MODULES = {name: sys.modules[name] for name in TORCH if type(sys.modules[name]) is types.ModuleType}


def attributes():
    """What each name of torch's modules and classes is bound to, and how much torch's tables hold."""
    for name, module in MODULES.items():
        for key, value in list(vars(module).items()):
            if not isinstance(value, types.ModuleType):
                yield f"{name}.{key}", id(value)
            if type(value) in (dict, list, set) and key not in ("__builtins__", "_builtin_table"):  # of operators that were looked up
                yield f"len({name}.{key})", len(value)
            if isinstance(value, type) and value.__module__.startswith("torch"):
                yield from ((f"{name}.{key}.{one}", id(bound)) for one, bound in vars(value).items())


def settings():
    for name in TORCH:
        if isinstance(sys.modules[name], ConfigModule):
            for key, value in sys.modules[name].get_config_copy().items():
                yield f"{name}.{key}", repr(value)


def operators():
    yield "operators", sorted(torch._C._dispatch_get_all_op_names())
    for key in torch._C.DispatchKey.__members__:
        try:
            yield f"kernels for {key}", sorted(torch._C._dispatch_get_registrations_for_dispatch_key(key))
        except RuntimeError:  # no key of the dispatcher's table
            pass


def interpreter():
    yield "environment", dict(os.environ)
    yield "warnings", list(map(repr, warnings.filters))
    yield "threads", [sorted(map(repr, threading.enumerate())), len(os.listdir("/proc/self/task"))]
    yield "paths", [sys.path, list(map(repr, [*sys.meta_path, *sys.path_hooks]))]
    hooks = sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook, sys.gettrace(), sys.getprofile()
    yield "hooks", list(map(repr, [*hooks, *gc.callbacks]))
    yield "collector", [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()]
    yield "signals", [repr(signal.getsignal(number)) for number in signal.valid_signals()]
    numbers = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    yield "random numbers", [hash(repr(one)) for one in numbers]
    for name, logger in [("", logging.root), *logging.root.manager.loggerDict.items()]:
        if isinstance(logger, logging.Logger) and name.partition(".")[0] in ("", "torch", "py"):
            yield f"logger {name}", [logger.level, logger.propagate, list(map(repr, logger.handlers + logger.filters))]
    yield "recursion limit", sys.getrecursionlimit()


def of_torch():
    yield "hooks of all modules", [
        len(value) for name, value in vars(torch.nn.modules.module).items() if name.startswith("_global_") and hasattr(value, "__len__")
    ]
    yield "modes", [torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()]
    yield "saved-tensor hooks", repr(torch._C._autograd._top_saved_tensors_default_hooks(True))
    yield "defaults", list(map(repr, [torch.get_default_dtype(), torch.get_default_device(), torch.get_float32_matmul_precision()]))
    yield "threads of torch", [torch.get_num_threads(), torch.get_num_interop_threads()]
    yield "autograd", [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.are_deterministic_algorithms_enabled()]
    yield "accelerator in use", torch.cuda.is_initialized()
    yield "backends", repr(torch._dynamo.backends.registry._BACKENDS)
    yield "guards", repr(torch._dynamo.eval_frame.cached_backends)


def state():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated names of torch
        found = {}
        for part in (attributes, settings, operators, of_torch):
            found.update(part())
    return {**found, **dict(interpreter())}
'''
COMPARED = """
import importlib, json, sys
import torch, numpy
import torch._dynamo.backends.registry, torch._inductor.config  # looked at below, and not loaded with torch in each version
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
exec(open(sys.argv[2]).read())
before = state()
{}
after = state()
assert len(before) > 20_000
print(json.dumps([key for key in {{**before, **after}} if before.get(key) != after.get(key)]))
"""


def torch_modules_loaded(code: str) -> list[str]:
    """Modules beside minidbg's own that ``code`` has imported after ``import torch``."""
    ended = python("-c", LOADED.format(code))
    assert ended.returncode == 0, ended.stderr
    own = ("minidbg", "_")
    return [name for name in json.loads(ended.stdout.splitlines()[-1]) if not name.startswith(own)]


def changed_by(code: str, tmp_path: Path) -> list[str]:
    """Names of what is another after ``code``."""
    (tmp_path / "state.py").write_text(STATE)
    ahead = json.dumps([name for name in torch_modules_loaded(IMPORTS) if name.partition(".")[0] == "torch"])
    ended = python("-c", COMPARED.format(code), ahead, tmp_path / "state.py")
    assert ended.returncode == 0, ended.stderr
    return list(json.loads(ended.stdout.splitlines()[-1]))


@pytest.mark.slow
def test_importing_minidbg_changes_nothing_in_torch(tmp_path: Path) -> None:
    assert changed_by(IMPORTS, tmp_path) == []


def test_importing_minidbg_alone_imports_no_torch() -> None:
    ended = python("-c", "import sys, minidbg; print('torch' in sys.modules)")
    assert ended.stdout == "False\n"


NOTICED = {
    "torch._inductor.config.max_autotune = True": "torch._inductor.config.max_autotune",
    "torch.nn.Module.__init__ = lambda self: None": "torch.nn.Module.__init__",
    "torch.library.define('own_room::own', '() -> ()')": "operators",
    "torch._dynamo.register_backend(lambda gm, inputs: gm, name='own')": "backends",
    "torch.nn.modules.module.register_module_forward_hook(print)": "hooks of all modules",
    "torch.rand(1)": "random numbers",
    "warnings.simplefilter('error')": "warnings",
    "os.environ['OWN'] = '1'": "environment",
    "threading.Thread(target=threading.Event().wait, daemon=True).start()": "threads",
    "logging.getLogger('torch').addHandler(logging.NullHandler())": "logger torch",
    "signal.signal(signal.SIGUSR1, signal.SIG_IGN)": "signals",
}


@pytest.mark.slow
def test_the_comparison_notices_what_an_import_could_change(tmp_path: Path) -> None:
    assert set(NOTICED.values()) - set(changed_by("\n".join(NOTICED), tmp_path)) == set()


@pytest.mark.slow
def test_what_minidbg_imports_of_torch_is_what_a_compilation_imports() -> None:
    compiles = (
        "torch.compile(lambda x: x + 1, backend='eager')(torch.ones(1)); import torch._inductor.compile_fx"
    )
    beyond = set(torch_modules_loaded(IMPORTS)) - set(torch_modules_loaded(compiles))
    assert [name for name in sorted(beyond) if name.partition(".")[0] in ("torch", "triton", "numpy")] == []
