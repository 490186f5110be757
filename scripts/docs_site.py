"""Hooks of mkdocs for the docs site: navigation, pages of the top folder, links out of docs/."""

import posixpath
import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

TOP_PAGES: Final = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Documents of the repository's top folder that are pages of the site, too."""

_FENCE = re.compile(r"^( *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the navigation from the sections and links of docs/index.md."""
    index = (Path(config.docs_dir) / "index.md").read_text("utf-8")
    config.nav = ["index.md", *({title: pages} for title, pages in navigation(index).items())]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the repository's top folder."""
    for name in TOP_PAGES:
        source = Path(config.docs_dir).parent / name
        files.append(File.generated(config, name, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links of a page at pages of the site or at files of the repository."""
    return with_site_links(markdown, page.file.src_uri, config.repo_url or "")


def navigation(index: str) -> dict[str, list[str]]:
    """The pages that each section of an index page links.

    A page that several sections link belongs to the last of them.
    """
    sections: dict[str, list[str]] = {}
    for part in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        heading, _, text = part.partition("\n")
        pages = [_site_path("index.md", target) or "" for _, target in _LINK.findall(text)]
        for earlier in sections.values():
            earlier[:] = [page for page in earlier if page not in pages]
        sections[heading.strip()] = [page for page in dict.fromkeys(pages) if page]
    return sections


def with_site_links(markdown: str, page: str, repository: str) -> str:
    """A page with links that hold on the site.

    Args:
        markdown: Text of the page.
        page: Path of the page on the site, such as `how-to/run-from-cron.md`.
        repository: Address of the repository. If it is empty, links to its files become text.
    """
    parts = _FENCE.split(markdown)
    parts[::2] = [_LINK.sub(lambda link: _link(link, page, repository), p) for p in parts[::2]]
    return "".join(parts)


def _link(link: re.Match[str], page: str, repository: str) -> str:
    text, target = link.groups()
    if re.match(r"[a-z]+:|[#/]", target):
        return link[0]
    path, hash_sign, anchor = target.partition("#")
    site_path = _site_path(page, path)
    if site_path is not None:
        relative = posixpath.relpath(site_path, posixpath.dirname(page) or ".")
        return f"[{text}]({relative}{hash_sign}{anchor})"
    if repository:
        return f"[{text}]({repository}/blob/main/{_repository_path(page, path)}{hash_sign}{anchor})"
    return text


def _site_path(page: str, target: str) -> str | None:
    """Where the site has the file that a page links, or None if it has not."""
    path = _repository_path(page, target.partition("#")[0])
    if path in TOP_PAGES:
        return path
    return path.removeprefix("docs/") if path.startswith("docs/") else None


def _repository_path(page: str, target: str) -> str:
    own = page if page in TOP_PAGES else f"docs/{page}"
    return posixpath.normpath(posixpath.join(posixpath.dirname(own), target))
