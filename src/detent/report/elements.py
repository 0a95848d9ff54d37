"""HTML of the parts of a page: paragraphs, lists, figures, tabs and tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from detent.report.spec import Figure
from detent.report.table import Table

TAB_NAMES = {
    "gradient-variance": "trace",
    "gradient-variance-normalized": "normalized",
    "gradient-variance-authors": "authors' definition",
}


def paragraph(text: str, kind: str = "soft") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if text else ""


def details(name: str, title: str, sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    opened = " open" if len(sentences) <= 6 else ""
    count = f"{len(sentences)} run{'s' * (len(sentences) > 1)}" if name == "missing" else str(len(sentences))
    return f'<details id="{name}"{opened}><summary>{title.format(count)}</summary><ul>{items}</ul></details>'


def figure_html(figure: Figure, titled: bool = False) -> str:
    heading = f"<h3>{escape(figure.title)}</h3>" if titled else ""
    source = f"figures/{figure.name}"
    return (
        f"<figure>{heading}<figcaption>{escape(figure.caption)} "
        f'<a href="{source}.png">PNG</a> <a href="{source}.svg">SVG</a> '
        f'<a href="figures/print/{figure.name}.pdf">PDF</a></figcaption>'
        f'<div class="panels" data-figure="{figure.name}"></div>'
        f'<noscript><img src="{source}.svg" alt="{escape(figure.title)}" style="max-width:100%"></noscript></figure>'
    )


def tabs_html(figures: Sequence[Figure]) -> str:
    """Return figures as tabs, one shown at a time."""
    buttons = "".join(
        f'<button role="tab" type="button" id="tab-{figure.name}" aria-controls="panel-{figure.name}" '
        f'aria-selected="{str(not number).lower()}" tabindex="{-1 if number else 0}">{TAB_NAMES[figure.name]}</button>'
        for number, figure in enumerate(figures)
    )
    panels = "".join(
        f'<div role="tabpanel" id="panel-{figure.name}" aria-labelledby="tab-{figure.name}"'
        f"{' hidden' if number else ''}>{figure_html(figure)}</div>"
        for number, figure in enumerate(figures)
    )
    label = "Definition of the gradient variance"
    return f'<h3>Gradient variance</h3><div class="tabs" role="tablist" aria-label="{label}">{buttons}</div>{panels}'


def table_html(title: str, table: Table, opened: bool) -> str:
    head, *rows = table.shown()
    numeric = [
        all(isinstance(value, int | float | None) for value in table[name])
        for name in table.columns
        if name.replace("_", " ") in head
    ]

    def line(cells: Sequence[str], tag: str) -> str:
        scope = ' scope="col"' if tag == "th" else ""
        marked = zip(cells, numeric, strict=True)
        return "".join(f"<{tag}{scope}{' class=number' * right}>{escape(cell)}</{tag}>" for cell, right in marked)

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    content = (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}">'
        f"<table><thead><tr>{line(head, 'th')}</tr></thead><tbody>{body}</tbody></table></div>"
    )
    if opened:
        return f"<h3>{escape(title)}</h3>{content}"
    return f'<details class="table"><summary>{escape(title)}</summary>{content}</details>'
