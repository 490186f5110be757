"""Writes docs/reference: `python -m scripts.generate_reference`.

Names, types, defaults and commands come from the code. What a column or a gap cause means is said
in `scripts.reference`, once for each; a column without a text, or a text without a column, is an
error.
"""

import sys

import click

from scripts.reference.pages import FOLDER, pages, stale_pages


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; fail when a page is stale.")
def main(check: bool) -> None:
    """Write docs/reference from the code and from the results of benchmarks."""
    stale = stale_pages()
    if check:
        if stale:
            click.echo(f"Stale: {', '.join(stale)}. Run this without --check.")
            sys.exit(1)
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    click.echo(f"Written: {', '.join(stale) or 'nothing, all is up to date'}.")


if __name__ == "__main__":
    main()
