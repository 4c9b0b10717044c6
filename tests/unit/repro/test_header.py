"""What a script says about itself, read without running it; what is written as TOML is read back, whatever it holds."""

import tomllib
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minidbg.repro import Exactness, Form, load, read_header, write
from minidbg.repro.header import torch_requirement, write_lines, write_value, write_wrapped
from minidbg.words.errors import UnreadableRepro
from minidbg.words.outcome import Direction, Kind, Signature
from minidbg.words.run_spec import BackendRef, CallPath, Context, Provenance
from minidbg.words.script_header import metadata_of, table_in, whole

CONTEXT = Context(
    grad=False,
    inference=True,
    autocast=(("cpu", "torch.bfloat16", False), ("cuda", "torch.float16", True)),
    deterministic=True,
    deterministic_warn_only=True,
    default_dtype="torch.float64",
    default_device="cpu",
    matmul_precision="medium",
    threads=3,
    config={"torch._inductor.config": {"max_autotune": True, "cpp.threads": None, "x": ("a", 1.5)}},
    env={"TORCH_LOGS": 'a"b'},
    env_matters=True,
)


def test_everything_written_is_read_back(make_case, tmp_path):
    signature = Signature(
        Kind.RUNTIME, Direction.BACKWARD, ("a.B", "C"), ("m:f", "n:g"), 'said "hi" \\ \n # /// \x1b'
    )
    backend = BackendRef("inductor", '"inductor"', requirements=("my-backend==0.3",), modules=("torch", "my"))
    case = make_case(signature=signature, context=CONTEXT, backend=backend)
    header = read_header(write(case, tmp_path / "r.py"))
    assert header.spec.signature == signature
    assert header.spec.context == CONTEXT
    assert header.provenance == replace(case.provenance, oracle_calls=0, seconds=0.0)
    assert (header.spec.kind, header.spec.backend.name, header.spec.call) == (
        Kind.RUNTIME,
        "inductor",
        CallPath.TORCH_COMPILE,
    )
    assert header.spec.backend.modules == ("torch", "my")
    assert header.dependencies == ("torch==2.13.0", "my-backend==0.3")
    assert header.expect == "reproduces"
    assert header.nodes == 1


def test_no_line_of_a_header_is_longer_than_200_characters(make_case, tmp_path):
    dump = "\n".join(f"  buf{number}: " + "SchedulerNode " * 30 for number in range(40))
    other = Signature(Kind.COMPILE, types=("a" * 60, "b" * 60), message="m" * 300)
    signature = Signature(
        Kind.COMPILE, types=("t" * 90,) * 3, frames=("f" * 120,) * 4, message="w " * 200, others=(other,) * 2
    )
    backend = BackendRef("inductor", '"inductor"', options={"a": "o" * 400}, requirements=("r" * 60,) * 4)
    story = Provenance(message=dump, notes=("note " * 60,), torch_version="2.13.0", suspects=("add",) * 99)
    case = make_case(signature=signature, context=CONTEXT, backend=backend, provenance=story)
    for form in (Form.SHORT, Form.CAPTURE):
        path = write(case, tmp_path / "r.py", form)
        assert max(map(len, path.read_text().partition("# /// script")[2].splitlines())) <= 200
        header = read_header(path)
        assert header.spec.signature == signature
        assert header.spec.backend.options == backend.options
        assert header.provenance.notes == story.notes
        assert (header.provenance.message == dump) is (form is Form.CAPTURE)


def test_the_message_of_a_failure_stands_once_in_its_script(make_case, tmp_path):
    said = "ValueError: no relu here, in any of the tiles\n  of the first kernel\n" + "    ops.load\n" * 50
    path = write(make_case(provenance=Provenance(message=said)), tmp_path / "r.py")
    text = path.read_text()
    assert text.count("in any of the tiles") == 2, "in the docstring, and in the pattern of the judge"
    assert text.count("of the first kernel") == 1
    lines = read_header(path).provenance.message.splitlines()
    assert lines[:2] == said.splitlines()[:2]
    assert lines[3:] == ["    ops.load ... (and 48 more lines)"]
    case = load(path)
    assert case.provenance.message.splitlines() == lines
    assert write(case, tmp_path / "again.py").read_text() == text


def test_what_the_docstring_does_not_tell_well_enough_stays_in_the_header(make_case, tmp_path):
    """The docstring leaves out addresses, around which the message is recognised."""
    said = "ValueError: the kernel at 0x7f6be17ec590 has no relu"
    text = write(make_case(provenance=Provenance(message=said)), tmp_path / "r.py").read_text()
    assert read_header(tmp_path / "r.py").provenance.message == said
    assert '"ValueError: the kernel at .* has no relu"' in text


def test_remarks_stand_once(make_case, tmp_path):
    remarks = ("my_pkg is an editable install of my-pkg", "b.py is loaded by its path")
    path = write(make_case(backend=BackendRef("b", '"b"', remarks=remarks)), tmp_path / "r.py")
    assert [path.read_text().count(remark) for remark in remarks] == [1, 1]
    assert read_header(path).spec.backend.remarks == remarks


def test_reading_executes_nothing(make_case, tmp_path):
    path = write(make_case(), tmp_path / "r.py")
    path.write_text(f"open({str(tmp_path / 'touched')!r}, 'w')\n" + path.read_text())
    assert read_header(path).spec.expected.kind is Kind.COMPILE
    assert not (tmp_path / "touched").exists()


EDITS = {
    "line ends of Windows": lambda text: text.replace("\n", "\r\n"),
    "byte order mark": lambda text: "\ufeff" + text,
    "a comment above": lambda text: "# my notes\n\n" + text,
    "code that no longer parses": lambda text: text.replace("def inputs", "def broken syntax ("),
    "a value of one's own": lambda text: text.replace("# details", "# attempts = 3\n# details"),
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
        (lambda text: text[: text.index("# details")], "no '# /// script' block"),
        (lambda text: text.replace('kind = "compile"', "kind = compile"), "no TOML"),
        (lambda text: text.replace('kind = "compile"', 'kind = "mystery"', 1), "mystery"),
        (lambda text: text.replace("tool.minidbg", "tool.other"), r"no \[tool.minidbg\]"),
        (lambda text: text.replace("schema = 1", "schema = 9"), "schema 9"),
        (lambda text: text.replace("schema = 1, ", ""), "schema"),
        (lambda text: text.replace('expect = "reproduces"', 'expect = "perhaps"'), "perhaps"),
        (lambda text: text + text, "2 '# /// script' blocks"),
        (lambda text: text.replace("types = [", "types = 3 # ["), "damaged"),
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


def test_suspects_of_a_capture_reach_the_process_that_reduces_it(make_case, tmp_path):
    case = make_case(provenance=Provenance(suspects=("add_2 linear", "relu")))
    assert read_header(write(case, tmp_path / "r.py")).provenance.suspects == ("add_2 linear", "relu")


def test_remarks_on_the_backend_are_comments(make_case, tmp_path):
    backend = BackendRef("b", '"b"', remarks=("b is an editable install of /src/b\n# ///",))
    text = write(make_case(backend=backend), tmp_path / "r.py").read_text()
    assert "# # b is an editable install of /src/b # ///" in text
    read_header(tmp_path / "r.py")


def test_stored_tensors_bring_their_readers(make_case, tmp_path):
    case = make_case(inputs=(torch.randn(30, 30),))
    path = write(case, tmp_path / "r.py", exactness=Exactness.EXACT)
    assert read_header(path).dependencies == ("torch==2.13.0", "safetensors", "numpy")


def test_what_a_person_adds_on_a_line_of_its_own_counts(make_case, tmp_path):
    path = write(make_case(), tmp_path / "r.py")
    path.write_text(path.read_text().replace("# details", '# device = "cuda:1"\n# details'))
    header = read_header(path)
    assert (header.spec.device, header.nodes) == ("cuda:1", 1)


def test_a_header_with_a_line_for_each_value_is_read_as_before(make_case, tmp_path):
    path = write(make_case(), tmp_path / "r.py")
    now = read_header(path)
    text = path.read_text()
    table = table_in(metadata_of(text))
    start, end = text.index("# details"), text.index("# ///\n", text.index("# details"))
    lines = "".join(f"# {key} = {write_value(value)}\n" for key, value in table.items() if key != "expect")
    path.write_text(text[:start] + lines + text[end:])
    assert read_header(path) == now


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(TEXT, VALUES, max_size=5))
def test_every_table_is_read_back(table):
    lines = "\n".join(write_lines({"x": table, "signature": table}))
    assert tomllib.loads(lines).get("x") == tomllib.loads(lines).get("signature") == table


@given(st.dictionaries(TEXT, VALUES, max_size=5))
def test_every_table_is_read_back_from_its_pieces(table):
    read = tomllib.loads("\n".join(write_wrapped("details", table)))["details"]
    assert (whole(read) if isinstance(read, list) else read) == table


@given(st.text())
def test_a_string_stays_on_one_line_for_every_reader(text):
    written = write_value(text)
    assert written.splitlines() == [written]
    written.encode()


@pytest.mark.parametrize(
    "hostile", ['"""', "\\", "\\u0041", "'''", "\x00\x1b\x7f\x85\u2028\r\n", "# ///", "\ud800"]
)
def test_hostile_strings_are_read_back(hostile):
    read = tomllib.loads(f"message = {write_value(hostile)}")["message"]
    assert read == hostile.replace("\ud800", "\ufffd")


def test_a_value_without_a_form_is_an_error():
    with pytest.raises(TypeError, match="NoneType"):
        write_value(None)
