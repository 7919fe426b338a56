"""Figures that can be read on light and on dark pages: transparent, with mid-grey text."""

import contextlib
import statistics

import numpy as np

GREY = "#808488"
# Of each rule: the color and the marker of its curves, and its name.
RULES = {
    "mean": ("#e07b39", "s", "mean"),
    "adasum": ("#2a8fd0", "o", "Adasum"),
    "adasum of steps": ("#3aa675", "^", "DeltaAdasum"),
    "adacons": ("#9b6dd6", "v", "AdaCons"),
    "sum": ("#cf62a0", "x", "sum"),
    "one replica": (GREY, "D", "one replica"),
}
COLOURS = {rule: colour for rule, (colour, _, _) in RULES.items()}
NAMES = {rule: name for rule, (_, _, name) in RULES.items()}
STYLE = {
    "text.color": GREY,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.titlecolor": GREY,
    "axes.titlesize": 10,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "legend.frameon": False,
    "font.size": 10,
    "lines.markersize": 4,
    "svg.hashsalt": "tf_adasum",  # the same figure is the same file
}
# Of an entry of a legend, at the size of STYLE.
LINE_INCHES, LETTER_INCHES = 0.75, 0.08
COLUMNS = 2


def style_of(rule, **changes):
    """Return the style of a rule's curve, with changes."""
    return dict(zip(("color", "marker", "label"), RULES[rule], strict=True)) | changes


class Figures:
    """The pictures of a page.

    Args:
        folder: where they are saved.
        link: the path from the page to the folder.
        name: of the experiment, with which their names begin.
    """

    def __init__(self, folder, link, name):
        self.folder, self.link, self.name = folder, link, name

    @contextlib.contextmanager
    def drawn(self, name, panels=1, size=(2.7, 2.6), **options):
        """Give a figure and the axes of its panels, and save it afterwards.

        At most `COLUMNS` panels stand side by side, so that the text can be read on a phone.

        Args:
            name: of the file.
            panels: how many.
            size: of one panel, in inches.
            options: of `pyplot.subplots`.
        """
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        with matplotlib.rc_context(STYLE):
            columns = min(panels, COLUMNS)
            rows = -(-panels // columns)
            figure, grid = pyplot.subplots(
                rows,
                columns,
                figsize=(size[0] * columns, size[1] * rows),
                squeeze=False,
                layout="constrained",
                **options,
            )
            for unused in grid.flat[panels:]:
                unused.remove()
            yield figure, list(grid.flat[:panels])
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"{self.name}-{name}.svg"
            figure.savefig(path, transparent=True, metadata={"Date": None})
            pyplot.close(figure)

    def image(self, name, text):
        """Return a picture in Markdown, with what it shows in words."""
        return f"![{text}]({self.link}/{self.name}-{name}.svg)"


def median_and_range(axes, x, values, *, color, **style):
    """Draw the median over the seeds as a line, and from the lowest to the highest a band.

    Args:
        axes: one of matplotlib's.
        x: where.
        values: at each of them what the seeds have.
        color: of both.
        style: of the line.
    """
    axes.plot(x, [statistics.median(own) for own in values], color=color, **style)
    band = list(map(min, values)), list(map(max, values))
    axes.fill_between(x, *band, color=color, alpha=0.18, lw=0)


def curves(axes, x, runs, **style):
    """Draw the median and the range of the runs' losses, without the runs that diverged."""
    runs = [run for run in runs if None not in run["losses"]]
    if runs:
        losses = list(zip(*(run["losses"] for run in runs), strict=True))
        median_and_range(axes, x, losses, **style)


def rate_axis(axes, rates, title, **text):
    """Label an axis of learning rates, every second one."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(rates[::2], [f"{rate:g}" for rate in rates[::2]], **text)
    axes.set_title(title)
    axes.set_xlabel("learning rate")


def doubling_axis(axes, values, label):
    """Label an axis of numbers that double."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, list(map(str, values)))
    axes.set_xlabel(label)


def legend(figure, axes):
    """Put one legend of all axes above the figure."""
    entries = {}
    for own in axes:
        for handle, label in zip(*own.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    columns = fitting(list(entries), figure.get_figwidth())
    figure.legend(entries.values(), entries, loc="outside upper center", ncols=columns)


def fitting(labels, inches):
    """Return how many columns a legend can have; each is as wide as its longest label."""
    for columns in range(len(labels), 1, -1):
        longest = [max(map(len, own)) for own in np.array_split(labels, columns)]
        if sum(LINE_INCHES + LETTER_INCHES * length for length in longest) <= inches:
            return columns
    return 1
