"""A report as one page."""

from __future__ import annotations

from importlib import metadata

from slurm_plugin.cli import output
from slurm_plugin.pages import page
from slurm_plugin.report import draw
from slurm_plugin.report.record import WORDS
from slurm_plugin.report.text import figures
from slurm_plugin.report.whole import COLUMNS, Whole

SIGNS = (("commit", "commit"), ("urgent", "urgent commit"), ("notice", "notice"), ("damaged", "damaged checkpoint"))


def render(told: Whole) -> str:
    """HTML that needs nothing else. Raises ``ConfigError`` where the templates are missing."""
    plots = [draw.steps_plot(told.steps, told.record.begin), *map(draw.curve_plot, told.curves)]
    used = {span.doing for row in told.record.rows for span in row.spans}
    marked = {mark.kind for row in told.record.rows for mark in row.marks}
    return page(
        "report.html.j2",
        told=told,
        figures=[(name, value) for name, value in figures(told) if value],
        line=draw.time_line(told.record) if told.record.rows else None,
        plots=[plot for plot in plots if plot is not None],
        legend=[(doing.value, words) for doing, words in WORDS.items() if doing in used],
        signs=[pair for pair in SIGNS if pair[0] in marked],
        columns=COLUMNS,
        rows=told.rows(),
        numbers=(0, 5, 6, 7, 8, 9, 10, 11, 12),
        row_height=draw.ROW,
        story=[(output.moment(when, tenths=True), text) for when, text in told.story],
        began=output.moment(told.record.begin),
        made_at=output.moment(told.made_at),
        version=metadata.version("spotburst"),
    )
