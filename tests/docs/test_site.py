"""The docs site: every page is reachable, links hold, and nothing is loaded from other servers."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from scripts.docs_site import TOP_PAGES, navigation, with_site_links
from tests.docs.documents import CHECKOUT

DOCS = CHECKOUT / "docs"
_TAGS = re.compile(r"<(li|h1|h2|h3|tr|td|pre|img)\b")
_LOADED = re.compile(
    r"<(?:script|link|img|iframe)[^>]*(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)"
)
_CODE_BLOCK = re.compile(r'<div class="highlight.*?<pre>.*?</pre></div>', re.DOTALL)


def _build(docs: Path, site: Path) -> Path:
    config = load_config(
        str(CHECKOUT / "mkdocs.yml"), docs_dir=str(docs), site_dir=str(site), strict=True
    )
    build(config)
    return site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(DOCS, tmp_path_factory.mktemp("site"))


def test_every_page_is_in_the_navigation() -> None:
    sections = navigation((DOCS / "index.md").read_text("utf-8"))
    listed = Counter(page for pages in sections.values() for page in pages)
    pages = {str(file.relative_to(DOCS)) for file in DOCS.rglob("*.md")}
    assert {"index.md", *listed} == pages | set(TOP_PAGES)
    assert set(listed.values()) == {1}


def test_the_site_shows_what_the_documents_contain(site: Path) -> None:
    """Python-Markdown reads some lists and tables in another way than GitHub does."""
    as_github = MarkdownIt("commonmark").enable("table")
    for source in [*DOCS.rglob("*.md"), *(CHECKOUT / name for name in TOP_PAGES)]:
        name = source.relative_to(DOCS if source.is_relative_to(DOCS) else CHECKOUT)
        page = (site / name).with_suffix(".html").read_text("utf-8")
        article = page[page.index("<article") : page.index("</article>")]
        shown = Counter(_TAGS.findall(_CODE_BLOCK.sub("<pre>", article)))
        assert shown == Counter(_TAGS.findall(as_github.render(source.read_text("utf-8")))), name


def test_nothing_is_loaded_from_other_servers(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        assert _LOADED.findall(text) == [], page
        # The theme would load the program that draws them.
        assert 'class="mermaid"' not in text, page


def test_pages_are_found_by_search(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"how-to/restore-an-application.html", "CHANGELOG.html"} <= found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[here](missing.md)", "missing.md"),
        ("[here](index.md#missing)", "#missing"),
        ("[here](/index.md)", "/index.md"),
    ],
)
def test_a_broken_link_fails_the_build(
    text: str, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    docs = _small(tmp_path)
    (docs / "page.md").write_text(f"# Page\n\n{text}\n", encoding="utf-8")
    with pytest.raises(Abort):
        _build(docs, tmp_path / "site")
    assert said in caplog.text


def test_a_page_that_the_index_does_not_list_fails_the_build(tmp_path: Path) -> None:
    docs = _small(tmp_path)
    _build(docs, tmp_path / "site")
    (docs / "other.md").write_text("# Other\n", encoding="utf-8")
    with pytest.raises(Abort):
        _build(docs, tmp_path / "site")


def _small(folder: Path) -> Path:
    """The docs of a repository with one page beside the index."""
    docs = folder / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("# Index\n\n## All\n- [Page](page.md)\n", encoding="utf-8")
    (docs / "page.md").write_text("# Page\n", encoding="utf-8")
    for name in TOP_PAGES:
        (folder / name).write_text(f"# {name}\n", encoding="utf-8")
        with (docs / "index.md").open("a", encoding="utf-8") as index:
            index.write(f"- [{name}](../{name})\n")
    return docs


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("how-to/a.md", "[x](../concepts.md#point)", "[x](../concepts.md#point)"),
        ("how-to/a.md", "[x](../../SECURITY.md)", "[x](../SECURITY.md)"),
        ("CHANGELOG.md", "[x](docs/how-to/a.md)", "[x](how-to/a.md)"),
        ("how-to/a.md", "[x](../../Makefile)", "[x](https://git.example/r/blob/main/Makefile)"),
        ("how-to/a.md", "[x](https://example.com)", "[x](https://example.com)"),
        ("how-to/a.md", "```\n[x](../../Makefile)\n```", "```\n[x](../../Makefile)\n```"),
    ],
)
def test_links_out_of_the_docs_lead_to_the_site_or_to_the_repository(
    page: str, link: str, expected: str
) -> None:
    assert with_site_links(link, page, "https://git.example/r") == expected


def test_links_to_files_are_text_without_an_address() -> None:
    assert with_site_links("see [x](../Makefile).", "concepts.md", "") == "see x."
