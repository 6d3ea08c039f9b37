"""What the port would say next: KL, the margin of each word over rounding, and the most likely words of both sides."""

from collections.abc import Iterable, Mapping, Sequence

import plotly.graph_objects as go  # type: ignore[import-untyped]

from porter.comparison.logits_record import Logits, LogitsAt
from porter.comparison.report import DiffReport
from porter.reports import sections
from porter.reports.markup import Html, join, table, tag
from porter.reports.page import button, pinned, place
from porter.reports.plots import margin_scatter
from porter.reports.summary import format_error, vocabulary, word_of

HEAD = (
    "stage",
    "KL(ref‖port)",
    "KL(golden‖ref)",
    "worst KL",
    "at token",
    "NMSE",
    "same word",
    "safe, and another word",
)
WORDS_SHOWN = 12  # tokens whose most likely words are listed


def logits_panel(report: DiffReport, figures: dict[str, go.Figure]) -> Html:
    """The table of each stage, a picture of margins for each, and the words at the tokens that matter most."""
    if not report.logits:
        return sections.nothing("The logits were not compared.")
    numbers = [name for name in HEAD if name not in ("stage", "at token")]
    rows = table(HEAD, (_row(report, each) for each in report.logits), numbers=numbers)
    drawn = [each for each in report.logits if each.at]
    if not drawn:
        return rows
    words = vocabulary(report)
    buttons, places = [], []
    for index, each in enumerate(drawn):
        name, last = f"margins-{index}", index == len(drawn) - 1
        figures[name] = margin_scatter(each, words)
        label = f"{each.stage} {each.dtype}{_prompt_number(report, each)}"
        buttons.append(button(name, label, selected=last))
        places.append(place(name, figures[name], hidden=not last, label=f"Margins of {label}"))
    tabs = tag("div", *buttons, class_="tabs", role="tablist")
    return join([rows, tag("h3", "Margin over rounding"), tabs, *places, pinned(), *_top_words(drawn[-1], words)])


def _prompt_number(report: DiffReport, logits: Logits) -> str:
    """Which prompt it is, where there are several: logits come in the order of the prompts."""
    same = [each for each in report.logits if (each.stage, each.dtype) == (logits.stage, logits.dtype)]
    return f", prompt {same.index(logits) + 1}" if len(same) > 1 else ""


def _row(report: DiffReport, each: Logits) -> Sequence[str]:
    unsafe = str(sum(one.flipped and one.safe for one in each.at)) + f" of {sum(one.safe for one in each.at)}"
    return (
        f"{each.stage} {each.dtype}{_prompt_number(report, each)}",
        format_error(each.kl),
        format_error(each.kl_ref),
        format_error(each.worst_kl),
        _token(report, each.worst_token),
        format_error(each.nmse),
        f"{each.agreement:.1%}",
        unsafe if each.at else "",
    )


def _token(report: DiffReport, index: int) -> str:
    """The index, with the token where one prompt makes it plain which."""
    tokens = report.prompts[0].tokens if len(report.prompts) == 1 else ()
    return f"{index} {tokens[index]!r}" if 0 <= index < len(tokens) else str(index)


def _top_words(logits: Logits, words: Mapping[int, str]) -> Iterable[Html]:
    """The five most likely words: tokens where the port says another one first, then the largest KL."""
    ranked = sorted(logits.at, key=lambda each: (not (each.flipped and each.safe), not each.flipped, -each.kl))
    head = ("after token", "", "KL", "margin", "floor", "reference", "port")
    rows = (_words_row(each, words) for each in ranked[:WORDS_SHOWN])
    yield tag("h3", f"Most likely words, {logits.stage} {logits.dtype}")
    yield tag(
        "p",
        "Tokens at which the port says another word come first, then those of the largest KL. #n is the id of a word "
        "that is in no prompt.",
        class_="caption",
    )
    yield table(head, rows, numbers=("after token", "KL", "margin", "floor"))


def _words_row(each: LogitsAt, words: Mapping[int, str]) -> Sequence[str | Html]:
    sides = [" ".join(word_of(i, words) for i, _ in side) for side in (each.reference, each.port)]
    sign = ""
    if each.flipped:
        status, why = (
            ("fail", "another word, and the margin is wide")
            if each.safe
            else ("warn", "another word, on a thin margin")
        )
        sign = tag("span", "✕" if each.safe else "▲", class_=f"badge small {status}", title=why)
    return str(each.token), sign, format_error(each.kl), f"{each.margin:.3g}", f"{each.floor:.2g}", *sides
