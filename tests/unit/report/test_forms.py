"""A repro in other forms fails as the repro does, or is the whole script; a report leaves private things out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import python
from support.lying_repro import lay

from minidbg import commands
from minidbg.report import forms, story_of
from minidbg.report.forms import Private, issue, last_lines
from minidbg.report.story import Story


@pytest.fixture
def repro(tmp_path: Path) -> Path:
    return lay(tmp_path / "minidbg_repros")


@pytest.fixture
def story(repro: Path) -> Story:
    return story_of(repro)


def edited(repro: Path, old: str, new: str) -> Story:
    text = repro.read_text()
    assert old in text
    repro.write_text(text.replace(old, new))
    return story_of(repro)


def test_an_old_repro_is_written_anew_short_and_runs(story: Story) -> None:
    form = forms.rewritten(story)
    assert form.complaint == ""
    assert "class Repro" in form.text
    assert len(form.text.splitlines()) < 80


@pytest.mark.slow
def test_the_repro_fails_in_pytest_while_the_bug_is_there(story: Story, tmp_path: Path) -> None:
    test = tmp_path / "test_it.py"
    test.write_text(forms.rewritten(story).text)
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", test, cwd=tmp_path, timeout=120)
    assert done.returncode == 1
    assert "ValueError: no kernel for relu" in done.stdout


def test_a_form_that_does_not_fail_is_never_handed_out_without_a_word(repro: Path) -> None:
    story = edited(repro, "if node.target is torch.relu:", "if node.target is torch.sigmoid:")
    assert "did not show its failure" in forms.rewritten(story).complaint


def test_modes_options_and_dynamic_shapes_are_in_the_short_form(repro: Path) -> None:
    modes = (
        '# dynamic = true\n# mode = "reduce-overhead"\n# [tool.minidbg.context]\n# grad = false\n'
        '# autocast = [["cpu", "torch.bfloat16", true]]\n# deterministic = true\n'
    )
    story = edited(repro, "# dynamic = false\n", modes)
    text = forms.rewritten(story, run=False).text
    assert 'dynamic=True, mode="reduce-overhead"' in text
    assert 'with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):' in text
    assert "torch.use_deterministic_algorithms(True)" in text
    compile(text, "form", "exec")


def test_a_report_has_the_sections_that_pytorch_asks_for(story: Story) -> None:
    found = issue(story, run=False, versions=False)
    sections = [line for line in found.body.splitlines() if line.startswith("### ")]
    assert sections == ["### 🐛 Describe the bug", "### Error logs", "### Versions"]
    assert found.title == "[no_relu] fails to compile relu: no kernel for relu"
    assert "-         relu = torch.relu(tanh)" in found.body
    assert "no single node, input or output can be left out" in found.body
    assert "train.py:21" in found.body


def test_a_report_tells_what_other_stages_do(repro: Path) -> None:
    stages = '# dynamic = false\n# [tool.minidbg.stages]\n# backend = "no_relu"\n# [tool.minidbg.stages.verdicts]\n# eager = "gone"\n# aot_eager = "reproduces"\n'
    found = issue(edited(repro, "# dynamic = false\n", stages), run=False, versions=False)
    assert "| `aot_eager` | reproduces |" in found.body


@pytest.mark.slow
def test_a_report_is_run_asks_other_backends_and_has_the_versions(
    repro: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repro.write_text(forms.rewritten(story_of(repro)).text)
    with pytest.raises(SystemExit):
        commands.main(["report", str(repro), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["ran"] is True
    assert "BackendCompilerFailed" in told["body"]
    assert "| `eager` | works |" in told["body"]
    assert "PyTorch version" in told["body"]


def test_private_paths_and_names_are_left_out() -> None:
    private = Private(
        {"/home/ann": "~", "/home/ann/secret": ".", "/venv/lib/site-packages": "site-packages"},
        {"ann": "<user>", "lab7": "<host>"},
    )
    text = (
        'File "/home/ann/secret/train.py", line 3\n'
        'File "/home/ann/x.py"\n'
        'File "/home/ann/customer/project/y.py"\n'
        'File "/venv/lib/site-packages/torch/_dynamo/a.py"\n'
        "loading /data/customer/model.pt on lab7 for ann, with /usr/bin/g++ from https://pytorch.org/docs/a.html\n"
        "an annotated a/b/c path, 1/2/3\n"
    )
    assert private.left_out(text) == (
        'File "./train.py", line 3\n'
        'File "~/x.py"\n'
        'File "~/.../y.py"\n'
        'File "site-packages/torch/_dynamo/a.py"\n'
        "loading .../model.pt on <host> for <user>, with /usr/bin/g++ from https://pytorch.org/docs/a.html\n"
        "an annotated a/b/c path, 1/2/3\n"
    )


def test_private_things_may_be_kept(story: Story, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    text = f"x = '{tmp_path}/a.py'"
    assert str(tmp_path) not in Private.of_this_process().left_out(text)


def test_long_logs_keep_their_end() -> None:
    found = last_lines("\n".join(map(str, range(100))), 5).splitlines()
    assert found == ["0", "1", "... 95 lines ...", "97", "98", "99"]
