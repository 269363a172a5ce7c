# SPDX-License-Identifier: Apache-2.0
"""Chooses the regime of a strategy, a model or tables."""

import typing
from collections.abc import Sequence

import tensorflow as tf

from tf_ext._batch_source import batch_source
from tf_ext._keras import keras
from tf_ext.distribute.cluster import is_parameter_server
from tf_ext.distribute.collectives import collectives_of
from tf_ext.regimes.local import local_regime
from tf_ext.regimes.parameter_servers import server_regime
from tf_ext.regimes.regime import Regime
from tf_ext.regimes.stock import stock_regime
from tf_ext.regimes.synchronous import synchronous_regime
from tf_ext.regimes.table_interface import Rows, Table


class _RowsUnderRegime(Rows, typing.Protocol):
    @property
    def regime(self) -> Regime:
        """The regime that the table was made under."""


class TableUnderRegime(Table, typing.Protocol):
    """A table that knows the regime it was made under."""

    @property
    def rows(self) -> _RowsUnderRegime:
        """Its rows."""


def regime_of(strategy: tf.distribute.Strategy | None) -> Regime:
    """The regime of a strategy.

    Args:
      strategy: a tf.distribute strategy, or None.

    Returns:
      Regime.

    Raises:
      NotImplementedError: workers with several replicas.
    """
    if is_parameter_server(strategy):
        return server_regime(strategy)
    workers = collectives_of(strategy)
    if workers is not None:
        return synchronous_regime(strategy, workers)
    return local_regime(strategy)


def regime_in_scope() -> Regime:
    """The regime of the strategy in whose scope, or step, the caller is."""
    if not tf.distribute.has_strategy():
        return local_regime()
    return regime_of(tf.distribute.get_strategy())


def regime_of_model(model: keras.Model) -> Regime:
    """The regime of the strategy that a Keras model was made under."""
    return regime_of(getattr(model, "distribute_strategy", None))


def regime_of_tables(tables: Sequence[TableUnderRegime]) -> Regime:
    """The regime that some tables were made under.

    Args:
      tables: list of tables that are used together. An empty list gives the
        regime of one process.

    Raises:
      ValueError: a table was made outside of the scope of the strategy that it
        is used under, or under another strategy than the others.
    """
    lookup = batch_source().lookup
    if lookup is not None:
        return stock_regime(lookup)
    if not tables:
        return local_regime()
    here = regime_in_scope()
    regime = tables[0].rows.regime
    workers = regime.processes.workers
    for table in tables:
        its_workers = table.rows.regime.processes.workers
        here.placement.check_table(table, its_workers)
        if its_workers is not workers:
            raise ValueError(
                "The tables of a model must be made under one strategy. "
                f"Received: {tables[0].name!r} and {table.name!r}, made under "
                "different ones"
            )
    return regime
