"""What the docstring tells a reader."""

import pytest
import torch
from torch import fx

from minidbg.core.outcome import Kind, Signature
from minidbg.core.run_spec import BackendRef, Context, Provenance
from minidbg.repro.render import render
from minidbg.repro.wording import docstring, message_lines, op_names, ops_phrase, title


def graph_of(*calls):
    graph = fx.Graph()
    value = graph.placeholder("x")
    for op, target in calls:
        value = graph.create_node(op, target, (value,))
    graph.output((value,))
    return fx.GraphModule(torch.nn.Module(), graph)


def test_ops_have_short_names(make_case):
    graph_module = graph_of(
        ("call_function", torch.ops.aten.cumsum.default),
        ("call_function", torch.nn.functional.gelu),
        ("call_method", "add_"),
        ("call_function", torch.flatten),
    )
    assert op_names(graph_module) == ("cumsum", "gelu", "add", "flatten")
    assert ops_phrase(make_case(graph_module=graph_module)) == "cumsum, gelu, add and flatten"


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("", "relu, sin, cos and 3 other operators"),
        ("cannot lower log", "log, relu, sin and 3 other operators"),
    ],
)
def test_a_large_graph_goes_by_operators_the_one_that_the_error_names_first(make_case, said, text):
    names = ("relu", "sin", "cos", "tan", "exp", "log")
    graph_module = graph_of(*(("call_method", name) for name in names))
    case = make_case(graph_module=graph_module, signature=Signature(Kind.COMPILE, message=said))
    assert ops_phrase(case) == text


def test_an_operator_that_runs_nested_graphs_is_named_before_those_in_it(make_case):
    branches = [graph_of(("call_method", "relu"), ("call_method", name)) for name in ("sin", "cos")]
    graph = fx.Graph()
    x = graph.placeholder("x")
    one, other = graph.get_attr("one"), graph.get_attr("other")
    chosen = graph.call_function(
        torch.ops.higher_order.cond, (graph.call_method("any", (x,)), one, other, (x,))
    )
    graph.output((chosen,))
    graph_module = fx.GraphModule(dict(zip(("one", "other"), branches, strict=True)), graph)
    case = make_case(graph_module=graph_module, signature=Signature(Kind.COMPILE))
    assert ops_phrase(case) == "cond, relu, sin and 2 other operators"


def test_the_message_is_cut_to_its_first_lines(make_case):
    message = "\n".join(f"line {number} " + "x" * 300 for number in range(40))
    lines = docstring(make_case(provenance=Provenance(message=message)), values="").splitlines()
    told = [line for line in lines if "x" * 100 in line]
    assert len(told) == 4
    assert told[0].endswith("xxx ... (and 172 more characters)")
    assert told[3].endswith("xxx ... (and 172 more characters) ... (and 36 more lines)")
    assert max(map(len, lines)) <= 200


def test_no_line_of_the_docstring_is_longer_than_200_characters(make_case):
    long = "word " * 60
    context = Context(env={"CXX": long})
    backend = BackendRef("aot_autograd(fw_compiler=" + "x" * 80 + ")", '"eager"')
    story = Provenance(
        message="m" * 110, notes=(long,), captured_from="a.py:3", line="y = " + "x" * 300, reduced=True
    )
    case = make_case(backend=backend, context=context, provenance=story)
    assert max(map(len, docstring(case, values=long, remark=long).splitlines())) <= 200


def test_notes_are_sentences(make_case):
    case = make_case(provenance=Provenance(notes=("the other call path was needed", "")))
    assert "The other call path was needed." in docstring(case, values="")


def test_getitem_is_named_where_it_is_all_there_is():
    assert op_names(fx.symbolic_trace(lambda x: x[0])) == ("getitem",)
    assert op_names(fx.symbolic_trace(lambda x: torch.topk(x, 2)[0])) == ("topk",)


@pytest.mark.parametrize(
    ("message", "first"),
    [
        (
            "eager gives wrong results: output 0 has shape [2]",
            "eager gives wrong results for relu: output 0 has shape [2]",
        ),
        ("eager lowers relu", "eager gives wrong results for relu: eager lowers relu"),
        ("other gives wrong results: x", "eager gives wrong results for relu: other gives wrong results: x"),
    ],
)
def test_the_title_and_the_message_do_not_say_the_same(make_case, message, first):
    case = make_case(signature=Signature(Kind.ACCURACY), provenance=Provenance(message=message))
    assert docstring(case, values="").splitlines()[0] == first


def provenance_lines_of(case, values=""):
    """The sentences between the headline and the line of exit statuses."""
    _, last = docstring(case, values=values, usage="Exit status: 125.").split("\n\n")
    *told, usage = last.splitlines()
    assert usage == "Exit status: 125."
    return told


@pytest.mark.parametrize(
    ("story", "sentence"),
    [
        ({}, None),
        ({"nodes": 40, "inputs": 3}, None),
        ({"reduced": True, "nodes": 40, "inputs": 3}, "1 of 40 nodes, 1 of 3 inputs, perhaps not minimal."),
        (
            {"reduced": True, "nodes": 40, "inputs": 1, "certified": True},
            "1 of 40 nodes, 1 of 1 inputs, 1-minimal.",
        ),
        ({"reduced": True, "nodes": 40, "inputs": 0}, "1 of 40 nodes, perhaps not minimal."),
        ({"torch_version": "2.14"}, "Seen with torch 2.14."),
        ({"captured_from": "a.py:3", "torch_version": "2.14"}, "From a.py:3, torch 2.14."),
        (
            {"captured_from": "a.py:3", "line": "y = x", "torch_version": "2.14"},
            "From a.py:3 `y = x`, torch 2.14.",
        ),
        ({"neighbour": "passes without relu"}, "It passes without relu."),
    ],
)
def test_the_docstring_tells_how_far_it_was_reduced_and_where_it_was_seen(make_case, story, sentence):
    assert provenance_lines_of(make_case(provenance=Provenance(**story))) == ([sentence] if sentence else [])


def test_the_docstring_tells_what_lies_beside_the_script_and_no_variable_that_is_not_needed(make_case):
    unneeded = make_case(context=Context(env={"OMP_NUM_THREADS": "1"}), provenance=Provenance())
    assert provenance_lines_of(unneeded, values="A file.") == ["A file."]
    assert "OMP_NUM_THREADS" not in render(unneeded).text


def test_addresses_and_files_of_one_process_are_left_out_of_the_message(make_case):
    message = "<Graph object at 0x7f6be17ec590> of minidbg_source_3, page 0x7f6be17ec590, flags 0x1f"
    frame = '\n\nfrom user code:\n   File "<minidbg_source_3>", line 12, in forward\n    y = torch.mm(x, w)\n\nsee above'
    said = docstring(make_case(provenance=Provenance(message=message + frame)), values="")
    assert said.splitlines()[0].endswith("<Graph object> of this script, page 0x..., flags 0x1f")
    assert "see above" in said
    assert len(message_lines(make_case(provenance=Provenance(message="\tno kernel")))) == 1
    assert not any(one in said for one in ("line 12", "user code", "y = torch"))


def test_a_long_first_line_of_the_message_stands_below_the_title(make_case):
    for length, beside in ((110, True), (111, False)):
        case = make_case(provenance=Provenance(message="x" * length))
        assert ("x" in docstring(case, values="").splitlines()[0].removeprefix(title(case)[:-1])) is beside


@pytest.mark.parametrize(
    "traceback",
    ["None", '  File "<minidbg_source_2>", line 6, in forward\n    y = torch.lerp(x)\n        ^^^^^^', "  File \"a.py\", line 6\n    y = 1"],
)  # fmt: skip
@pytest.mark.parametrize("beside", [True, False], ids=["in the docstring", "in the header"])
def test_a_message_ends_before_what_torch_tells_who_has_no_script(make_case, traceback, beside):
    """``None ... (and 1 more line)`` was the last line of a docstring."""
    advice = f"Original traceback:\n{traceback}\nUse tlparse to see full graph. (https://x)\n"
    message = f"no kernel\n\nWhile executing %x : call\n{advice}Set TORCHDYNAMO_VERBOSE=1 for the stack\n"
    case = make_case(provenance=Provenance(message=message))
    if beside:
        headline, told, *_ = docstring(case, values="").split("\n\n")
        assert headline.endswith("no kernel")
        assert told.strip() == "While executing %x : call"
    else:
        assert message_lines(case, unchanged=True) == ["no kernel", "While executing %x : call"]
