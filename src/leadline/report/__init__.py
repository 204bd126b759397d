"""Records to what people read: terminal text, Markdown, JSON, HTML. The only input is what the journal says.

>>> report.text(knowledge)          # plain text
>>> Console().print(report.renderable(knowledge))   # the same in a terminal
>>> report.as_json(knowledge)       # builtins, ready for json.dumps
"""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType

from ..state import Knowledge
from . import compared as _compared
from . import html as _html
from . import markdown as _markdown
from . import text as _text
from .document import Document, builtins, document


def text(known: Knowledge, width: int = _text.WIDTH, colour: bool = False) -> str:
    """The verdict and what it rests on, as text; the colours only repeat what the words say."""
    return _text.render(document(known), width, colour)


def renderable(known: Knowledge) -> RenderableType:
    """The same for a rich console, which drops the colours where there is no terminal."""
    return _text.renderable(document(known))


def markdown(known: Knowledge) -> str:
    """The same as Markdown."""
    return _markdown.render(document(known))


def html(known: Knowledge, live: bool = False) -> str:
    """The same as one self-contained HTML page; ``live`` makes it follow the server that sent it."""
    return _html.render(document(known), live)


def diff(before: Knowledge, after: Knowledge) -> str:
    """Two campaigns compared, as Markdown."""
    return _compared.render(_compared.diff(document(before), document(after)))


def diff_json(before: Knowledge, after: Knowledge) -> dict[str, Any]:
    """Two campaigns compared, as JSON-ready builtins."""
    return _compared.as_json(_compared.diff(document(before), document(after)))


def as_json(known: Knowledge) -> dict[str, Any]:
    """The same as JSON-ready builtins; the format's name stands in ``format``."""
    return builtins(document(known))


__all__ = ["Document", "as_json", "diff", "diff_json", "document", "html", "markdown", "renderable", "text"]
