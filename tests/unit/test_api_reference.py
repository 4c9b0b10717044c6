"""Every public name says what it is; every public function says what it raises, and takes no argument unmentioned.

``minidbg help python`` lists them all, as they are.
"""

from __future__ import annotations

import inspect
import re
import typing
from pathlib import Path

import pytest
from click.testing import CliRunner

import minidbg
from minidbg.commands import cli
from minidbg.commands.about import topics
from minidbg.core.settings import WrapSettings

TABLE = topics()["python"].partition("## Public names")[2].split("```text\n")[1].split("```")[0]
LISTED = re.sub(r"\n +", " ", TABLE).splitlines()
NAMES = re.compile(r"\w+")


@pytest.mark.parametrize("name", minidbg.__all__)
def test_every_public_name_has_a_docstring_of_its_own(name: str) -> None:
    found = getattr(minidbg, name)
    text = found.__doc__ or ""
    assert len(text.split()) >= 6
    assert text.strip().split("\n")[0].endswith((".", ";"))


@pytest.mark.parametrize(
    "name", ["wrap", "wrap_compiler", "minimize", "load", "check", "reduce", "save_repro"]
)
def test_every_public_function_says_what_it_raises(name: str) -> None:
    assert "Raises" in (inspect.getdoc(getattr(minidbg, name)) or "")


def test_wrap_mentions_each_of_its_arguments() -> None:
    text = inspect.getdoc(minidbg.wrap) or ""
    names = ("backend", "options", "mode", *typing.get_type_hints(WrapSettings))
    assert [name for name in names if f"``{name}``" not in text] == []


def test_every_public_name_is_listed_once_and_no_other() -> None:
    assert [NAMES.match(line)[0] for line in LISTED] == minidbg.__all__  # type: ignore[index]


@pytest.mark.parametrize("line", [line for line in LISTED if "(" in line])
def test_a_public_function_takes_what_the_list_says(line: str) -> None:
    assert line == as_listed(line.partition("(")[0])


def as_listed(name: str) -> str:
    """A function's name and arguments, without their types. A setting that is not given is None, and comes from elsewhere."""
    function = getattr(minidbg, name)
    words: list[str] = []
    for one in inspect.signature(function).parameters.values():
        if one.kind in (one.KEYWORD_ONLY, one.VAR_KEYWORD) and "*" not in words:
            words.append("*")
        if one.kind is one.VAR_KEYWORD:
            settings = typing.get_args(typing.get_type_hints(function)[one.name])[0]
            words += [f"{setting}=None" for setting in typing.get_type_hints(settings)]
        else:
            words.append(str(one.replace(annotation=one.empty)))
    return f"{name}({', '.join(words)})"


@pytest.mark.parametrize("line", [line for line in LISTED if "(" not in line])
def test_a_public_class_has_what_the_list_says(line: str) -> None:
    name, *attributes = NAMES.findall(line)
    found = an_accuracy_error() if name == "AccuracyError" else getattr(minidbg, name)
    assert attributes
    assert [one for one in attributes if not hasattr(found, one)] == []


def an_accuracy_error() -> minidbg.AccuracyError:
    return minidbg.AccuracyError("differs", {"signature": {}, "where": "output 0", "category": "nan"})


def test_the_manual_names_no_other_name_as_public() -> None:
    manual = "\n".join([(Path(minidbg.__file__).parents[1] / "README.md").read_text(), *topics().values()])
    named = set(re.findall(r"(?<!tool\.)\bminidbg\.([a-zA-Z_]\w*)(?!\.)\b", manual))
    assert named - {*minidbg.__all__, "__version__"} == set()


def test_the_command_line_has_the_version_of_the_module() -> None:
    assert (
        CliRunner().invoke(cli, ["--version"], prog_name="minidbg").output
        == f"minidbg, version {minidbg.__version__}\n"
    )


def test_the_newest_changes_are_those_of_the_present_version() -> None:
    newest, *earlier = re.findall(r"(?m)^## ([\w.]+)", topics()["changes"])
    assert newest == minidbg.__version__
    assert newest not in earlier
