# SPDX-License-Identifier: Apache-2.0
"""The results of `column_importance`, as text and as a plot."""

import dataclasses
import os
import typing


class ColumnLoss(typing.NamedTuple):
    """What a metric loses without the information of a column.

    Attributes:
      name: string, the column.
      loss: float, the loss of the metric: the mean over the repeats if the
        column is shuffled; that of all samples if it is left out.
      low: float, the lower end of the interval of 95 %.
      high: float, its upper end.
      losses: tuple of floats, the loss in each repeat.
    """

    name: str
    loss: float
    low: float
    high: float
    losses: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Importance:
    """The losses of all columns.

    `str(importance)` is a table of them.

    Attributes:
      metric: string, the name of the metric.
      baseline: float, the metric on the data as they are.
      method: string, "shuffle" or "leave_out".
      columns: tuple of `ColumnLoss`, from the largest loss to the smallest.
    """

    metric: str
    baseline: float
    method: str
    columns: tuple[ColumnLoss, ...]

    def __str__(self) -> str:
        width = max(len(column.name) for column in self.columns)
        return "\n".join(
            [
                f"{self.metric} {self.baseline:.4f}; its loss {self._how()}:",
                *(
                    f"{column.name.ljust(width)}  {column.loss:7.4f}  "
                    f"[{column.low:.4f}, {column.high:.4f}]"
                    for column in self.columns
                ),
            ]
        )

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws the losses with their intervals.

        Args:
          path: path-like, the image; its suffix tells the format: `.png`,
            `.svg`, `.pdf`.

        Raises:
          ModuleNotFoundError: if matplotlib is not installed.
        """
        figure = _figure_class()(
            figsize=(7, 1.2 + 0.3 * len(self.columns)), layout="constrained"
        )
        axes = figure.subplots()
        rows = range(len(self.columns))
        losses = [column.loss for column in self.columns]
        axes.barh(rows, losses, color="#9ecae1")
        axes.errorbar(
            losses,
            rows,
            xerr=[
                [column.loss - column.low for column in self.columns],
                [column.high - column.loss for column in self.columns],
            ],
            fmt="none",
            ecolor="#08519c",
            capsize=4,  # Narrow intervals are seen by their ends.
        )
        axes.axvline(0.0, color="black", linewidth=0.8)
        axes.set_yticks(rows, [column.name for column in self.columns])
        axes.invert_yaxis()  # The first one at the top.
        axes.grid(axis="x", alpha=0.3)
        axes.set_xlabel(
            f"loss of {self.metric} {self._how()}, from {self.baseline:.4f}"
        )
        figure.savefig(path, dpi=100)

    def _how(self) -> str:
        return {
            "shuffle": "if a column is shuffled",
            "leave_out": "if a column is left out",
        }[self.method]


def _figure_class() -> typing.Any:
    try:
        # Without pyplot, which would choose a backend for the whole process.
        from matplotlib import figure
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "matplotlib":
            raise
        raise ModuleNotFoundError(
            "Plots are drawn by matplotlib, which is not installed: "
            "pip install 'tf_ext[plot]'",
            name="matplotlib",
        ) from None
    return figure.Figure
