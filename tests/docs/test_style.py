"""The documents use the common vocabulary, not the words that `tools.house` counts."""

import re
from pathlib import Path

import pytest

from tests.docs.documents import CHECKOUT, documents
from tools.house import DIALECT

_WRITTEN = [file for file in documents() if file.parent.name != "reference"]
"""Pages of the reference are generated from the packages, whose words `tools.house` counts."""


@pytest.mark.parametrize("file", _WRITTEN, ids=lambda f: str(f.relative_to(CHECKOUT)))
def test_documents_have_no_dialect_words(file: Path) -> None:
    text = re.sub(r"`[^`\n]+`", "", file.read_text("utf-8"))
    assert DIALECT.findall(text) == []
