"""A user's Triton kernel as source text: an import where it is installed, else its definition and all that this looks up."""

from __future__ import annotations

import ast
import builtins
import inspect
import os
import sys
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

from minidbg import torch_internals
from minidbg.backends.modules import is_installed
from minidbg.backends.statements import read_statements
from minidbg.fx.effects import walk
from minidbg.source.names import is_plain_identifier
from minidbg.words.errors import CannotWrite

USUAL = {"triton": "triton", "tl": "triton.language"}
"""What modules are called by custom: a function keeps no local name that only its decorators and annotations look up."""


class Definitions:
    """The statements that define kernels, by the names that they bind, in order; ``imports`` collects what they need.

    ``write`` gives the expression for a value that is no kernel.
    """

    def __init__(self, write: Callable[[Any], str], imports: set[str]) -> None:
        self.texts: dict[str, str] = {}
        self._write = write
        self._imports = imports
        self._modules: dict[str, ModuleType] = {}

    def name_of(self, kernel: Any) -> str:
        function = kernel
        while not inspect.isfunction(function):
            function = getattr(function, "fn", None)
            if function is None:
                raise CannotWrite(f"a kernel of type {type(kernel).__qualname__}", "it has no function")
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
        if not torch_internals.is_kernel(kernel):
            kind = f"{type(kernel).__module__}.{type(kernel).__qualname__}"
            raise CannotWrite(f"a kernel of type {kind}", "only triton.jit and triton.autotune are known")
        text = _text_of(kernel)
        name = kernel.fn.__name__
        if self._bind(name, text):
            scope = kernel.fn.__globals__ | inspect.getclosurevars(kernel.fn).nonlocals
            (statement,) = read_statements(text, "<kernel>")
            for used in sorted(statement.needs - {name}):
                if used in scope:
                    self._look_up(used, scope[used])
                elif used in USUAL:
                    self._look_up(used, sys.modules[USUAL[used]])
                elif not hasattr(builtins, used):
                    why = "it was local where the kernel was defined, and is gone"
                    raise CannotWrite(f"the name {used}", why)
            self.texts[name] = self.texts.pop(name)  # it comes after what it looks up
        return str(name)

    def _look_up(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType):
            self._imports.add(f"import {value.__name__}" + (f" as {name}" if name != value.__name__ else ""))
            if self._modules.setdefault(name, value) is not value:
                raise CannotWrite(f"the name {name}", "it stands for different modules in two kernels")
            return
        home = getattr(value, "__module__", None)
        if home in sys.stdlib_module_names and getattr(sys.modules[home], name, None) is value:
            self._imports.add(f"from {home} import {name}")
            return
        if torch_internals.is_kernel(value):
            text = self.name_of(value)
        elif type(value).__qualname__ == "constexpr":
            self._imports.add("import triton")
            text = f"triton.language.constexpr({self._write(value.value)})"
        else:
            text = self._write(value)
        if text != name:
            self._bind(name, f"{name} = {text}")

    def _tuned(self, tuner: Any) -> str:
        """An autotuned kernel, from the tuner as it is: dynamo makes some of its own, for ``num_warps=`` at a launch."""
        configs = ", ".join(map(self._config, tuner.configs))
        arguments = [f"configs=[{configs}]", f"key={self._write(list(getattr(tuner, 'keys', ())))}"]
        for part in ("reset_to_zero", "restore_value"):
            if getattr(tuner, part, None):
                arguments.append(f"{part}={self._write(list(getattr(tuner, part)))}")
        for part in ("user_defined_pre_hook", "user_defined_post_hook", "perf_model", "early_config_prune"):
            if getattr(tuner, part, None):
                raise CannotWrite("its autotuner", f"it has a function of its own, {part}")
        inner = self._defined(tuner.fn)
        self._imports.add("import triton")
        made = f"triton.autotune({', '.join(arguments)})({inner})"
        name, number = f"{inner}_tuned", 1
        while not self._bind_if_free(name, f"{name} = {made}"):
            name, number = f"{inner}_tuned_{number}", number + 1
        return name

    def _config(self, config: Any) -> str:
        arguments = [self._write(dict(config.kwargs))]
        for name, parameter in inspect.signature(type(config)).parameters.items():
            value = getattr(config, name, parameter.default)
            if name != "kwargs" and value != parameter.default:
                if callable(value):
                    raise CannotWrite("a config of its autotuner", f"it has a function of its own, {name}")
                arguments.append(f"{name}={self._write(value)}")
        return f"triton.Config({', '.join(arguments)})"

    def _bind(self, name: str, text: str) -> bool:
        is_new = name not in self.texts
        if not self._bind_if_free(name, text):
            raise CannotWrite(f"the name {name}", "the kernels of the graph use it for two different things")
        return is_new

    def _bind_if_free(self, name: str, text: str) -> bool:
        if not is_plain_identifier(name):
            raise CannotWrite(f"the name {name}", "it is no plain identifier")
        return self.texts.setdefault(name, text) == text


def _text_of(kernel: Any) -> str:
    """The definition of a kernel without its other decorators. Triton keeps the source of each function that it compiles."""
    source = getattr(kernel, "raw_src", None) or inspect.getsource(kernel.fn)
    text = textwrap.dedent("".join(source))
    (node,) = ast.parse(text).body
    assert isinstance(node, ast.FunctionDef)
    parts = [ast.get_source_segment(text, part) or "" for part in node.decorator_list]
    jit = [part for part in parts if part.partition("(")[0].rpartition(".")[2] == "jit"]
    return "\n".join([f"@{(jit or ['triton.jit'])[0]}", *text.split("\n")[node.lineno - 1 :]]).rstrip()
