"""HTML that cannot be broken by what it shows: every string is escaped unless it is Html already."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: str | Html) -> Html:
    return value if isinstance(value, Html) else Html(escape(value))


def tag(name: str, *content: str | Html, **attributes: str) -> Html:
    """An element; an attribute's underscores become dashes, and a trailing one is dropped (class_)."""
    pairs = (f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return Html(f"<{name}{''.join(pairs)}>{''.join(map(text, content))}</{name}>")


def join(parts: Iterable[str | Html]) -> Html:
    return Html("".join(map(text, parts)))


def table(head: Sequence[str], rows: Iterable[Sequence[str | Html | None]], *, numbers: Sequence[str] = ()) -> Html:
    """A table that scrolls inside itself where the page is narrow; the columns named in `numbers` align right.

    A cell that is None belongs to the one before it.
    """
    classes = ["number" if name in numbers else "word" for name in head]
    titles = (tag("th", name, class_=kind, scope="col") for name, kind in zip(head, classes, strict=True))
    lines = (tag("tr", *_cells(row, classes)) for row in rows)
    body = tag("table", tag("thead", tag("tr", *titles)), tag("tbody", *lines))
    return tag(
        "div", body, class_="scroll", tabindex="0", role="region", aria_label=f"Table: {', '.join(filter(None, head))}"
    )


def _cells(row: Sequence[str | Html | None], classes: Sequence[str]) -> Iterator[Html]:
    for index, (cell, kind) in enumerate(zip(row, classes, strict=True)):
        if cell is not None:
            wide = {"colspan": "2"} if row[index + 1 : index + 2] == (None,) else {}
            yield tag("td", cell, class_=kind, **wide)


def definitions(pairs: Iterable[tuple[str, str | Html]]) -> Html:
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs))
