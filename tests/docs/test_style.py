"""The documents use the common vocabulary, not the words that `tools.house` counts."""

import re
from pathlib import Path

import pytest

from tests.docs.documents import CHECKOUT, documents
from tools.house import DIALECT


@pytest.mark.parametrize("file", documents(), ids=lambda f: str(f.relative_to(CHECKOUT)))
def test_documents_have_no_dialect_words(file: Path) -> None:
    text = re.sub(r"`[^`\n]+`", "", file.read_text("utf-8"))
    assert DIALECT.findall(text) == []
