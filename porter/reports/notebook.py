"""A DiffReport in a notebook: its verdict as text, and the page in a frame, which has its own style and script."""

from html import escape

from porter.comparison.report import DiffReport
from porter.reports.html import to_html
from porter.reports.markup import join, table, tag

HEIGHT = 900  # pixels of the frame


def to_frame(report: DiffReport) -> str:
    """HTML for an output cell; where frames are not shown (GitHub), the verdict and the stages are."""
    stages = [(stage.name, stage.dtype, stage.status, stage.first or stage.detail) for stage in report.stages]
    said = tag("p", tag("b", report.verdict), " ", report.sentence.removeprefix(report.verdict).lstrip(": "))
    plain = join([said, table(("stage", "dtype", "verdict", ""), stages)])
    page = escape(to_html(report), quote=True)
    return f'{plain}<iframe srcdoc="{page}" style="width:100%;height:{HEIGHT}px;border:0" title="porter diff"></iframe>'
