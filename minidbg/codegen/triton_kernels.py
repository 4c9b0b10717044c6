"""A user's Triton kernel as source text: an import where it is installed, else its definition and
all that this looks up."""

from __future__ import annotations

import ast
import builtins
import inspect
import os
import sys
from collections.abc import Callable
from textwrap import dedent
from types import ModuleType
from typing import Any

from minidbg import torch_internals
from minidbg.backends.definitions import OF_SCRIPTS
from minidbg.backends.locations import is_installed
from minidbg.backends.statements import read_statements
from minidbg.codegen.names import is_plain_identifier, numbered
from minidbg.core.errors import CannotWrite
from minidbg.fx.effects import walk

USUAL_IMPORTS = {"triton": "triton", "tl": "triton.language"}
"""Custom names of modules: functions keep no local name only decorators and annotations use."""

OF_TEXTS = {*OF_SCRIPTS, "backend", "constants", "graph_module"}
"""Names that the texts of a graph use themselves."""


class Definitions:
    """Statements of kernels and what these look up, by the names that they bind, in order.
    ``write`` gives another value's expression; ``imports`` collects those of installed kernels."""

    def __init__(self, write: Callable[[Any], str], imports: set[str]) -> None:
        self.texts: dict[str, str] = {}
        self._write, self._imports = write, imports

    def name_of(self, kernel: Any) -> str:
        function = kernel
        while not inspect.isfunction(function):
            if not torch_internals.is_kernel(function):
                part = f"a kernel of type {type(function).__module__}.{type(function).__qualname__}"
                raise CannotWrite(part, "only triton.jit and triton.autotune are known")
            function = function.fn
        try:
            module = sys.modules.get(function.__module__)
            place = os.path.dirname(str(getattr(module, "__file__", None) or ""))
            if place and is_installed(place) and walk(module, function.__qualname__) is kernel:
                self._imports.add(f"import {function.__module__}")
                return f"{function.__module__}.{function.__qualname__}"
            return self._tuned(kernel) if hasattr(kernel, "configs") else self._defined(kernel)
        except CannotWrite as refusal:
            refusal.add_note(f"in the Triton kernel {function.__qualname__}")
            raise

    def _defined(self, kernel: Any) -> str:
        name, text = str(kernel.fn.__name__), _kernel_text(kernel)
        if self.texts.get(name) == text:
            return name
        self._bind(name, text)
        scope = {used: sys.modules[module] for used, module in USUAL_IMPORTS.items()}
        scope |= kernel.fn.__globals__ | inspect.getclosurevars(kernel.fn).nonlocals
        (statement,) = read_statements(text, "<kernel>")
        for used in sorted(statement.needs - {name}):
            if used in scope:
                self._look_up(used, scope[used])
            elif not hasattr(builtins, used):
                why = "it was local where the kernel was defined, and is gone"
                raise CannotWrite(f"the name {used}", why)
        self.texts[name] = self.texts.pop(name)  # it comes after what it looks up
        return name

    def _look_up(self, name: str, value: Any) -> None:
        home = getattr(value, "__module__", None)
        if isinstance(value, ModuleType):
            text = f"import {value.__name__}" + (f" as {name}" if name != value.__name__ else "")
        elif home in sys.stdlib_module_names and getattr(sys.modules[home], name, None) is value:
            text = f"from {home} import {name}"
        elif torch_internals.is_kernel(value):
            text = f"{name} = {self.name_of(value)}"
        elif type(value).__qualname__ == "constexpr":
            self._bind("triton", "import triton")
            text = f"{name} = triton.language.constexpr({self._write(value.value)})"
        else:
            text = f"{name} = {self._write(value)}"
        if text != f"{name} = {name}":
            self._bind(name, text)

    def _tuned(self, tuner: Any) -> str:
        """An autotuned kernel from its tuner: dynamo makes some for ``num_warps=`` at a launch."""
        hooks = ("user_defined_pre_hook", "user_defined_post_hook")
        for part in (*hooks, "perf_model", "early_config_prune"):
            if getattr(tuner, part, None):
                raise CannotWrite("its autotuner", f"it has a function of its own, {part}")
        arguments = [f"configs=[{', '.join(map(self._config, tuner.configs))}]"]
        for name, part in (("key", "keys"), ("reset_to_zero",) * 2, ("restore_value",) * 2):
            if (value := getattr(tuner, part, None)) or name == "key":
                arguments.append(f"{name}={self._write(list(value or ()))}")
        self._bind("triton", "import triton")
        inner = self._defined(tuner.fn)
        made = f"triton.autotune({', '.join(arguments)})({inner})"
        others = {name for name, text in self.texts.items() if text != f"{name} = {made}"}
        name = numbered(f"{inner}_tuned", others)
        self._bind(name, f"{name} = {made}")
        return name

    def _config(self, config: Any) -> str:
        arguments = [self._write(dict(config.kwargs))]
        for name, parameter in inspect.signature(type(config)).parameters.items():
            value = getattr(config, name, parameter.default)
            if name != "kwargs" and value != parameter.default:
                if callable(value):
                    why = f"it has a function of its own, {name}"
                    raise CannotWrite("a config of its autotuner", why)
                arguments.append(f"{name}={self._write(value)}")
        return f"triton.Config({', '.join(arguments)})"

    def _bind(self, name: str, text: str) -> None:
        if not is_plain_identifier(name):
            raise CannotWrite(f"the name {name}", "it is no plain identifier")
        if name in OF_TEXTS:
            why = "the script uses that name itself"
            raise CannotWrite(f"the Triton kernel or global {name}", why)
        if self.texts.setdefault(name, text) != text:
            why = "the kernels of the graph use it for two different things"
            raise CannotWrite(f"the name {name}", why)


def _kernel_text(kernel: Any) -> str:
    """Its definition without other decorators. Triton keeps the source of what it compiles."""
    text = dedent("".join(getattr(kernel, "raw_src", None) or inspect.getsource(kernel.fn)))
    (node,) = ast.parse(text).body
    assert isinstance(node, ast.FunctionDef)
    parts = [ast.get_source_segment(text, part) or "" for part in node.decorator_list]
    jit = [part for part in parts if part.partition("(")[0].rpartition(".")[2] == "jit"]
    lines = [f"@{(jit or ['triton.jit'])[0]}", *text.split("\n")[node.lineno - 1 :]]
    return "\n".join(lines).rstrip()
