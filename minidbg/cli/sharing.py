"""``minidbg report`` and ``minidbg export``: a repro in the form that somebody else needs."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from minidbg.cli.output import JSON, note, print_json
from minidbg.printable import printable

REPRO = click.argument("repro", type=click.Path(path_type=Path))
OUTPUT = click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write it here, not to stdout."
)
RUN = click.option("--run/--no-run", default=True, help="Run it first, to be sure that it fails (default).")


@click.command()
@REPRO
@OUTPUT
@RUN
@click.option("--keep-private", is_flag=True, help="Leave paths, user and host names as they are.")
@click.option("--versions/--no-versions", default=True, help="With torch.utils.collect_env (default).")
@JSON
def report(
    repro: Path, output: Path | None, run: bool, keep_private: bool, versions: bool, as_json: bool
) -> None:
    """Write a bug report for REPRO, as PyTorch's issue template asks for it, in Markdown.

    Home and working folder, other private paths, user and host name are left out. Read it before you post it.
    """
    from minidbg.report import story_of
    from minidbg.report.issue import issue

    story = story_of(found(repro))
    written = issue(story, run=run, keep_private=keep_private, versions=versions)
    if run and not written.ran:
        note("the failure did not show when it was run just now; the report has what was captured")
    if as_json:
        print_json(
            {"repro": str(story.path), "title": written.title, "body": written.body, "ran": written.ran}
        )
    put(written.body, output, quiet=as_json)


@click.command()
@REPRO
@click.option("--standalone", is_flag=True, help="With the whole judge in it, for where no minidbg is.")
@click.option("-t", "--template", help="issue, or one of yours.")
@OUTPUT
@RUN
@JSON
def export(
    repro: Path, standalone: bool, template: str | None, output: Path | None, run: bool, as_json: bool
) -> None:
    """Write REPRO anew: as a short script, standalone, as a bug report, or by a template of yours."""
    from minidbg.report import forms, story_of

    if standalone and template is not None:
        raise click.UsageError("--standalone and --template exclude each other")
    story = story_of(found(repro))
    if template is None:
        form = forms.rewritten(story, standalone=standalone, run=run)
    else:
        form = forms.export(story, template, run=run)
    for remark in (form.complaint, *form.remarks):
        if remark:
            note(remark)
    tensors = story.path.with_suffix(".safetensors")
    if story.parts.stored and output is not None:
        shutil.copyfile(tensors, output.with_suffix(".safetensors"))
    elif story.parts.stored:
        note(f"it reads {tensors}: keep a copy beside it, under its own name")
    if as_json:
        print_json(
            {"repro": str(story.path), "name": form.name, "text": form.text, "complaint": form.complaint}
        )
    put(form.text, output, quiet=as_json)


def found(repro: Path) -> Path:
    """The script that a person means."""
    from minidbg import settings
    from minidbg.report import find_script

    return find_script(repro, settings.load().repro_dir)


def put(text: str, output: Path | None, *, quiet: bool) -> None:
    """``text`` in the file, or on stdout unless ``quiet``."""
    if output is not None:
        output.write_text(text, encoding="utf-8")
        note(f"written: {output}")
    elif not quiet:
        click.echo(printable(text.rstrip("\n")))
