"""The pictures of a classification."""

import statistics

from experiments.figures import (
    COLOURS,
    COLUMNS,
    NAMES,
    doubling_axis,
    legend,
    median_and_range,
    rate_axis,
    style_of,
)

APART = 0.08  # doublings of N between rules that take as many steps


def rates(found, pictures):
    """Draw the accuracy over the learning rate: a panel for each N, a curve for each rule."""
    panels = [1, *found.grids]
    with pictures.drawn(f"{found.problem.slug}-rates", len(panels), sharey=True) as (figure, axes):
        for own, n in zip(axes, panels, strict=True):
            grid = found.alone if n == 1 else found.grids[n]
            for setting in grid.settings:
                curve(own, found, grid, setting)
            own.axvline(
                found.rate(found.k_alone),
                color=COLOURS["one replica"],
                lw=1,
                ls=":",
                label="best learning rate of one replica",
            )
            tried = list(map(found.rate, grid.exponents))
            rate_axis(own, tried, f"N = {n}", rotation=60, fontsize=8)
        for own in axes[::COLUMNS]:
            own.set_ylabel(f"validation {found.problem.measure.name}\n(higher is better)")
        axes[0].set_ylim(*found.problem.measure.axis)
        legend(figure, axes)


def curve(axes, found, grid, setting):
    """Draw the median of a rule over the rates, and the range of the seeds."""
    x = [found.rate(k) for k in grid.exponents]
    values = [
        [found.results[case]["accuracy"] for case in grid.runs(setting, k, "validation")]
        for k in grid.exponents
    ]
    median_and_range(axes, x, values, **style_of(setting["rule"]))


def replicas(found, pictures):
    """Draw accuracies at one replica's rate and at the best, and the steps to a target, over N."""
    n_all = list(found.grids)
    with pictures.drawn(f"{found.problem.slug}-replicas", 3) as (figure, axes):
        same, tuned, steps = axes
        for place, rule in enumerate(found.problem.rules):
            style = style_of(rule)
            for own, exponent in ((same, None), (tuned, found.best)):
                values = [
                    found.accuracies(n, rule, exponent(n, rule) if exponent else found.k_alone)
                    for n in n_all
                ]
                median_and_range(own, n_all, values, **style)
            counts = [found.steps_to_target(n, rule, found.best(n, rule)) for n in n_all]
            beside = 2 ** (APART * (place - (len(found.problem.rules) - 1) / 2))
            there = [(n * beside, count) for n, count in zip(n_all, counts, strict=True) if count]
            if there:
                steps.plot(*zip(*there, strict=True), **style)
        if found.problem.has_sum:
            values = list(map(found.accuracies_of_sum, n_all))
            median_and_range(same, n_all, values, **style_of("sum"))
        if not steps.lines:
            steps.text(0.5, 0.5, "no rule reaches it", ha="center", transform=steps.transAxes)
            steps.set_yticks([])
        steps.margins(y=0.1)
        steps.set_ylim(0, max(steps.get_ylim()[1], 1.1 * steps.dataLim.y1))
        alone = statistics.median(found.alone_accuracies)
        for own in (same, tuned):
            own.axhline(alone, color=COLOURS["one replica"], ls="--", label=NAMES["one replica"])
            own.set_ylabel(f"test {found.problem.measure.name}\n(higher is better)")
        same.set_title("learning rate of one replica")
        tuned.set_title("tuned learning rates")
        steps.set_title(f"steps to {found.target:.{found.problem.measure.digits}f}, tuned")
        steps.set_ylabel("steps (lower is better)")
        for own in axes:
            doubling_axis(own, n_all, "replicas N")
        steps.set_xlim(same.get_xlim())
        legend(figure, axes)
