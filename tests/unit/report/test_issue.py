"""A bug report has what PyTorch asks for, and leaves private things out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.lying_repro import GUARD, lay

from minidbg import commands
from minidbg.report import repro_details
from minidbg.report.details import ReproDetails
from minidbg.report.issue import issue, last_lines, private_words, without_private


@pytest.fixture
def repro(tmp_path: Path) -> Path:
    return lay(tmp_path / "minidbg_repros")


@pytest.fixture
def details(repro: Path) -> ReproDetails:
    return repro_details(repro)


def edited(repro: Path, old: str, new: str) -> ReproDetails:
    text = repro.read_text()
    assert old in text
    repro.write_text(text.replace(old, new))
    return repro_details(repro)


def test_a_report_has_the_sections_that_pytorch_asks_for(details: ReproDetails) -> None:
    title, body, _ = issue(details, run=False, versions=False)
    sections = [line for line in body.splitlines() if line.startswith("### ")]
    assert sections == ["### 🐛 Describe the bug", "### Error logs", "### Versions"]
    assert title == "[no_relu] fails to compile relu: no kernel for relu"
    assert "no single node, input or output can be left out" in body
    assert "train.py:21" in body


SECRETS = {
    "HF_TOKEN": "hf_abcdefgh", "MY_SECRET": "back\\slash \"\u00e9", "API_KEY": "12", "DB_PASSWORD_OLD": "x y z!", "SIZE": "relu",
    "TOKENIZERS_PARALLELISM": "true",
}  # fmt: skip


def test_values_of_variables_whose_names_say_that_they_are_secret_are_left_out(
    repro: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    named = f"API_KEY=12 API_KEY: 12 {' '.join(SECRETS.values())}"
    details = edited(repro, "no kernel for relu", f"no kernel for relu {json.dumps(named)[1:-1]}")
    _, body, _ = issue(details, run=False, versions=False, keep_private=True)
    assert [
        value for value in ("abcdefgh", "slash", "x y z", "API_KEY=12", "API_KEY: 12") if value in body
    ] == []
    assert "<HF_TOKEN>" in body
    assert "relu" in body
    assert "true" in body


@pytest.mark.slow
def test_a_report_is_run_asks_other_backends_and_has_the_versions(
    repro: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edited(repro, GUARD, "torch.compile(Repro(), backend=backend, fullgraph=True)(*inputs())")
    with pytest.raises(SystemExit):
        commands.main(["report", str(repro), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["ran"] is True
    assert "BackendCompilerFailed" in told["body"]
    assert "| `eager` | works |" in told["body"]
    assert "| Subsystem | Bug fixed when disabled? |\n|---|---|\n" in told["body"]
    assert "PyTorch version" in told["body"]


def test_private_paths_and_names_are_left_out() -> None:
    private = (
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
    assert without_private(text, *private) == (
        'File "./train.py", line 3\n'
        'File "~/x.py"\n'
        'File "~/.../y.py"\n'
        'File "site-packages/torch/_dynamo/a.py"\n'
        "loading .../model.pt on <host> for <user>, with /usr/bin/g++ from https://pytorch.org/docs/a.html\n"
        "an annotated a/b/c path, 1/2/3\n"
    )


def test_private_things_may_be_kept(
    details: ReproDetails, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    text = f"x = '{tmp_path}/a.py'"
    assert str(tmp_path) not in without_private(text, *private_words())


def test_long_logs_keep_their_end() -> None:
    found = last_lines("\n".join(map(str, range(100))), 5).splitlines()
    assert found == ["0", "1", "... 95 lines ...", "97", "98", "99"]
