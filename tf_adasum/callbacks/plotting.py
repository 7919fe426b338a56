"""Plotting: draw the measurements of a callback."""

import typing

if typing.TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure


class Plotting:
    """Base class of callbacks that draw their `values`.

    Attributes:
        values: list of the measurements.
    """

    values: list[typing.Any]

    def draw(self, axes: "Axes") -> None:
        """Draw the measurements on `matplotlib.axes.Axes`."""
        raise NotImplementedError

    @property
    def figure_inches(self) -> tuple[float, float]:
        """The size of the figure that `plot` makes."""
        return 8, 4

    def plot(self, axes: "Axes | None" = None) -> "Figure | SubFigure":
        """Draw the measurements.

        Args:
            axes: `matplotlib.axes.Axes` to draw on. Defaults to `None`, which makes a figure.

        Returns:
            The `matplotlib.figure.Figure`.

        Raises:
            ImportError: if matplotlib is not installed (``pip install matplotlib``).
            RuntimeError: if there is no measurement yet.
        """
        if not self.values:
            raise RuntimeError("Nothing was measured yet: call plot() after fit().")
        from matplotlib import figure

        if axes is None:
            axes = figure.Figure(figsize=self.figure_inches).subplots()
        whole = axes.figure.figure  # also of a subfigure
        if whole.get_layout_engine() is None:
            whole.set_layout_engine("constrained")  # which leaves room for labels
        self.draw(axes)
        return axes.figure
