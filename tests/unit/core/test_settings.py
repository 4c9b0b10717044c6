"""Where a setting may be written, which place wins, and what a mistake is told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from minidbg.core import settings
from minidbg.core.errors import BadSetting
from minidbg.core.run_spec import PRECISIONS
from minidbg.core.settings import OnFailure, Reduce, Settings, Verify


def load(
    tmp_path: Path, *, user: str = "", project: str = "", environ: Any = None, **given: object
) -> Settings:
    (tmp_path / "minidbg").mkdir(exist_ok=True)
    (tmp_path / "minidbg" / "minidbg.toml").write_text(user)
    folder = tmp_path / "project" / "deep"
    folder.mkdir(parents=True, exist_ok=True)
    (tmp_path / "project" / "pyproject.toml").write_text(project)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(os, "environ", {"XDG_CONFIG_HOME": str(tmp_path), **(environ or {})})
        return settings.load(given)


def test_without_any_source_the_defaults_hold(tmp_path: Path) -> None:
    assert load(tmp_path) == Settings()
    assert Settings().seconds == 300
    assert Settings().reduce is None


def test_each_source_wins_over_the_one_before(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        user="seconds = 1\nmax_calls = 1\nverify = 'never'\non_failure = 'fallback'\n",
        project="[tool.minidbg]\nseconds = 2\nmax_calls = 2\nverify = 'always'\n",
        environ={"MINIDBG_SECONDS": "3", "MINIDBG_MAX_CALLS": "3", "UNRELATED": "x"},
        seconds=4,
        verify=None,
    )
    assert (found.seconds, found.max_calls) == (4.0, 3)
    assert (found.verify, found.on_failure) == (Verify.ALWAYS, OnFailure.FALLBACK)


def test_a_relative_folder_in_pyproject_is_relative_to_it(tmp_path: Path) -> None:
    found = load(tmp_path, project="[tool.minidbg]\nrepro_dir = 'bugs'\n")
    assert found.repro_dir == tmp_path / "project" / "bugs"


def test_minidbg_dir_is_the_repro_folder(tmp_path: Path) -> None:
    assert load(tmp_path, environ={"MINIDBG_DIR": "/bugs"}).repro_dir == Path("/bugs")


IN_PYPROJECT = r"(?s)'on_failur' \(in \[tool\.minidbg\] of .*pyproject\.toml\); did you mean 'on_failure'"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ({"project": "[tool.minidbg]\non_failur = 'raise'\n"}, IN_PYPROJECT),
        ({"environ": {"MINIDBG_SECNDS": "3"}}, r"'secnds' \(in the environment\).*'seconds'"),
        ({"user": "seconds 3"}, r"minidbg\.toml is not valid TOML"),
    ],
    ids=["pyproject.toml", "the environment", "not valid TOML"],
)
def test_a_mistake_is_told_the_nearest_and_its_source(tmp_path: Path, source: Any, told: str) -> None:
    with pytest.raises(BadSetting, match=told):
        load(tmp_path, **source)


def test_two_underscores_mark_a_variable_that_is_no_setting(tmp_path: Path) -> None:
    assert load(tmp_path, environ={"MINIDBG__ANYTHING": "3"}) == Settings()


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("on_failure", "fall_back", r"on_failure='fall_back'.*'raise', 'fallback'; did you mean 'fallback'"),
        ("reduce", "sometimes", r"reduce='sometimes'.*'now', 'later'"),
        ("verify", "twice", r"verify='twice'.*'first', 'always', 'never'"),
        ("verify", 0, r"verify=0.*>= 1"),
        ("verify", True, r"verify=True"),
        ("seconds", -1, r"seconds=-1.*>= 0"),
        ("seconds", float("nan"), r"seconds=nan"),
        ("seconds", "soon", r"seconds='soon'.*expected `float`"),
        ("max_calls", 1.5, r"max_calls=1\.5.*expected `int"),
        ("crash_records", "perhaps", r"crash_records='perhaps'.*expected `bool`"),
        ("match", "(", r"match='\('.*unterminated subpattern"),
        ("setup", [1], r"setup=\[1\].*expected `str`"),
        ("repro_dir", 3, r"repro_dir=3.*PathLike"),
    ],
)
def test_a_value_that_cannot_be_is_told_with_its_choices(
    tmp_path: Path, name: str, value: object, told: str
) -> None:
    with pytest.raises(BadSetting, match=told):
        load(tmp_path, **{name: value})


def test_values_arrive_in_their_own_types(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        environ={
            "MINIDBG_CRASH_RECORDS": "false",
            "MINIDBG_SETUP": "import a\nimport b",
            "MINIDBG_VERIFY": "3",
        },
        reduce="later",
        env=["MY_FLAG"],
    )
    assert found.crash_records is False
    assert found.setup == ("import a", "import b")
    assert found.verify == 3
    assert found.reduce is Reduce.LATER
    assert found.env == ("MY_FLAG",)
    assert hash(found) == hash(found)


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "tf32"])
def test_tolerances_may_name_the_precision_that_a_backend_computes_in(tmp_path: Path, precision: str) -> None:
    found = load(tmp_path, project="[tool.minidbg]\ntolerances = 'tf32'\n")
    assert found.allowed == PRECISIONS["tf32"]
    assert load(tmp_path, environ={"MINIDBG_TOLERANCES": precision}).allowed == PRECISIONS[precision]


def test_an_unknown_precision_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(BadSetting) as caught:
        load(tmp_path, tolerances="bfloat15")
    said = str(caught.value)
    assert "tolerances='bfloat15' (in the arguments): no such precision; did you mean 'bfloat16'" in said
    assert "'bfloat16', 'float16', 'tf32', or a mapping by dtype" in said


WRONG_KINDS = [
    ("tool = 3", "tool = 3"),
    ("[tool]\nminidbg = 3", "minidbg = 3"),
    ("[tool.minidbg]\nwatch = 3", "watch = 3"),
    ("[tool.minidbg.watch]\non_flip = {a = 1}", "on_flip={'a': 1}"),
    ("[tool.minidbg.watch]\non_flip = [1]", "on_flip=[1]"),
    ("[tool.minidbg.watch]\ndevices = 3", "devices=3"),
    ("[tool.minidbg.watch]\ndevices = [1]", "devices=[1]"),
    ("[tool.minidbg.watch]\nsources = 3", "sources=3"),
    ("[tool.minidbg.watch]\nsources = [3]", "sources=[3]"),
    ("[tool.minidbg.watch]\nignore = 3", "ignore=3"),
    ("[tool.minidbg.watch]\nbiuld = 'ninja'", "did you mean 'build'"),
    ("[tool.minidbg.watch]\nworkers = 'frok'", "one of 'auto', 'fork', 'spawn'; did you mean 'fork'"),
    ("[tool.minidbg.watch]\njobs = 0", "expected `int` >= 1"),
    ("[tool.minidbg.watch]\njobs = inf", "jobs=inf"),
    ("[tool.minidbg.watch]\njobs = [1]", "jobs=[1]"),
    ("[tool.minidbg.watch]\npoll_s = 'soon'", "poll_s='soon'"),
    ("[tool.minidbg]\ntolerances = 3", "tolerances=3"),
    ("[tool.minidbg]\ntolerances = {float16 = 3}", "tolerances={'float16': 3}"),
    ("[tool.minidbg]\nenv = {a = 1}", "env={'a': 1}"),
    ("[tool.minidbg]\nmax_calls = nan", "max_calls=nan"),
    ("[tool.minidbg]\nrepro_dir = 'a\\u0000b'", "repro_dir="),
    ("[tool.minidbg]\nrepro_dir = '~nobody-of-that-name/x'", "repro_dir='~nobody-of-that-name/x'"),
    ("[tool.minidbg]\nrepro_dir = 3", "repro_dir=3"),
    ("a = " + "[" * 20_000, "nested too deeply"),
    ("a." * 20_000 + "a = 1", "more than 100 parts"),
    ("\x00", "not valid TOML"),
]


@pytest.mark.parametrize(("text", "told"), WRONG_KINDS, ids=[told for _, told in WRONG_KINDS])
def test_a_value_of_a_wrong_kind_is_told_with_file_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    from minidbg.watch import settings as watching

    project = tmp_path / "pyproject.toml"
    project.write_text(text.replace("'a\\u0000b'", '"a\\u0000b"'))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadSetting) as refused:
        settings.load(), watching.load_watch_settings({})
    assert told in str(refused.value)
    assert str(project) in str(refused.value)


def test_settings_are_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "pyproject.toml"
    project.touch()
    os.truncate(project, 1 << 40)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadSetting, match="more than 1 MiB"):
        settings.load()
