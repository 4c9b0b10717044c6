"""What a script says about itself, read without running it."""

import pytest
import torch

from minidbg.core.errors import UnreadableRepro
from minidbg.core.run_spec import Provenance
from minidbg.repro import Exactness, Form, load, read_header, write
from minidbg.repro.header import torch_requirement


def test_a_published_header_holds_of_a_long_message_what_the_failure_is_recognised_by(make_case, tmp_path):
    said = "ValueError: no relu here, in any of the tiles\n  of the first kernel\n" + "    ops.load\n" * 50
    path = write(make_case(provenance=Provenance(message=said)), tmp_path / "r.py")
    lines = read_header(path).provenance.message.splitlines()
    assert lines[:2] == said.splitlines()[:2]
    assert lines[3:] == ["    ops.load ... (and 48 more lines)"]
    case = load(path)
    assert case.provenance.message.splitlines() == lines
    assert write(case, tmp_path / "again.py").read_text() == path.read_text()
    assert (
        read_header(
            write(make_case(provenance=Provenance(message=said)), path, Form.CAPTURE)
        ).provenance.message
        == said
    )


EDITS = {
    "line ends of Windows": lambda text: text.replace("\n", "\r\n"),
    "byte order mark": lambda text: "\ufeff" + text,
    "a comment above": lambda text: "# my notes\n\n" + text,
    "code that no longer parses": lambda text: text.replace("def inputs", "def broken syntax ("),
    "a value of one's own": lambda text: text.replace("# schema", "# attempts = 3\n# schema"),
    "more tables": lambda text: (
        text.removesuffix("# ///\n") + "#\n# [tool.minidbg.mine]\n# x = 1\n#\n# ///\n"
    ),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edited_script_is_still_read(make_case, tmp_path, edit):
    path = write(make_case(), tmp_path / "r.py")
    path.write_bytes(edit(path.read_text()).encode())
    assert read_header(path).spec.signature.message == "no relu here"


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda text: "print(1)\n", "no '# /// script' block"),
        (lambda text: text[: text.index("# schema")], "no '# /// script' block"),
        (lambda text: text.replace("expect =", "expect"), "not valid TOML"),
        (
            lambda text: text.replace('kind = "compile"', 'kind = "mystery"'),
            "signature.kind = 'mystery': must be one of 'compile', ",
        ),
        (
            lambda text: text.replace("nodes = 1", "nodes = true", 1),
            "nodes = True: expected `int`, got `bool`",
        ),
        (
            lambda text: text.replace("# schema", "# tolerances = {float32 = [1, 'x']}\n# schema"),
            "tolerances = .*expected `float`",
        ),
        (lambda text: text.replace("name =", "nom ="), "missing required field `name`"),
        (lambda text: text.replace("tool.minidbg", "tool.other"), r"no \[tool.minidbg\]"),
        (lambda text: text.replace("schema = 1", "schema = 9"), "schema 9"),
        (lambda text: text.replace("# schema = 1\n", ""), "schema None"),
        (lambda text: text.replace('expect = "reproduces"', 'expect = "perhaps"'), "perhaps"),
        (lambda text: text + text, "2 '# /// script' blocks"),
        (lambda text: text.replace("types = [", "types = 3, x = ["), "signature.types = 3: expected `array`"),
        (lambda text: "", "no '# /// script' block"),
    ],
)
def test_a_damaged_file_is_named_with_the_reason(make_case, tmp_path, damage, why):
    path = write(make_case(), tmp_path / "r.py")
    path.write_text(damage(path.read_text()))
    with pytest.raises(UnreadableRepro, match=why) as caught:
        read_header(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("version", "requirement"),
    [
        ("2.13.0+cpu", "torch==2.13.0"),
        ("2.12.1", "torch==2.12.1"),
        ("2.14.0.dev20261120+cu130", "torch"),
        ("2.14.0a0+git1a2b3c", "torch"),
        ("built by hand", "torch"),
        ("", "torch"),
    ],
)
def test_only_versions_that_an_index_has_are_required(version, requirement):
    assert torch_requirement(version) == requirement


def test_an_unpublished_torch_is_said_in_a_comment(make_case, tmp_path):
    case = make_case(provenance=Provenance(torch_version="2.14.0.dev20261120+cu130"))
    text = write(case, tmp_path / "r.py").read_text()
    assert "# # torch was 2.14.0.dev20261120+cu130" in text
    assert read_header(tmp_path / "r.py").dependencies == ("torch",)


def test_stored_tensors_bring_their_readers(make_case, tmp_path):
    case = make_case(inputs=(torch.randn(30, 30),))
    path = write(case, tmp_path / "r.py", exactness=Exactness.EXACT)
    assert read_header(path).dependencies == ("torch==2.13.0", "safetensors", "numpy")
