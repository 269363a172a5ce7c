# SPDX-License-Identifier: Apache-2.0
"""The Keras model of tables."""

import contextlib
import inspect
import os
import typing
from collections.abc import Callable, Iterator

import tensorflow as tf

from tf_ext._checks import check_count
from tf_ext._compat.models import (
    BuiltForOneReplica,
    Functional,
    SavedAsCalled,
    is_functional_call,
    replace_base,
    without_input_casts,
)
from tf_ext._compat.op_errors import in_own_words
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.data.errors import naming_read_errors
from tf_ext.layers import adapted
from tf_ext.layers.hashed_inputs import replaced_in
from tf_ext.layers.replaced_inputs import replaced_inputs
from tf_ext.models import exporting
from tf_ext.models.arrays import bind_data
from tf_ext.models.checkpoints import CheckpointedModel
from tf_ext.models.input_casting import cast_inputs
from tf_ext.models.rebuilding import build_config_of, rebuild
from tf_ext.models.recorded_call import export_signature, record_call
from tf_ext.models.saving import refuse_hdf5, save_whole, variables_put_back
from tf_ext.models.summary import print_summary
from tf_ext.regimes import regime_of_model
from tf_ext.regimes.step_context import after
from tf_ext.tables.find import tables_of
from tf_ext.tables.saving import keras_files
from tf_ext.tables.shadow import count_without, refusal, setter_refusal
from tf_ext.tables.sparse_optimizers import SparseOptimizer
from tf_ext.tables.sparse_table import SparseTable
from tf_ext.training import weighting
from tf_ext.training.building import (
    build_optimizer,
    check_composed_optimizer,
    check_jit,
    wrapped_optimizers,
)
from tf_ext.training.callback_protocols import check_callbacks, in_order
from tf_ext.training.dispatch import training_of
from tf_ext.training.fit_arguments import FitOptions
from tf_ext.training.iterator_steps import StepsOfResources
from tf_ext.training.resume import during_fit
from tf_ext.training.stream_steps import check_validation

# Suffixes of the file names of Keras's formats.
_MODEL = ".keras"
_WEIGHTS = ".weights.h5"

_KerasModelType: typing.Any = type(keras.Model)


class _ModelWithTables(
    SavedAsCalled, CheckpointedModel, BuiltForOneReplica, StepsOfResources
):
    """What `Model` adds to a Keras model, with checks of unsupported uses."""

    tf_ext_tables = True

    # Of the first call, or of the first one with raw features.
    tf_ext_call: str | None = None
    _tf_ext_called_raw = False

    def __call__(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """As `keras.Model.__call__`."""
        with replaced_inputs(self, args) as given:
            given, kwargs = cast_inputs(self, (given, kwargs))
            outputs = super().__call__(*given, **kwargs)
        if not self._tf_ext_called_raw:
            self._record_call(args, kwargs)
        return outputs

    def _record_call(
        self, args: tuple[typing.Any, ...], kwargs: dict[str, typing.Any]
    ) -> None:
        is_raw = not args or replaced_in(args[0]) is None
        if is_raw or self.tf_ext_call is None:
            record = record_call(args, kwargs)
            if record is not None:
                self.tf_ext_call, self._tf_ext_called_raw = record, is_raw

    def compile(
        self,
        optimizer: typing.Any = "rmsprop",
        *args: typing.Any,
        **kwargs: typing.Any,
    ) -> None:
        """As `keras.Model.compile`; `optimizer` must be one of tf_ext.

        Args:
          optimizer: a `tf_ext.optimizers.Optimizer`, a composed optimizer (such
            as TensorFlow Recommenders' CompositeOptimizer) in which such an
            optimizer updates the tables, or None for a model that is only
            evaluated, which tf_keras does not accept.
          *args: the same as in Keras.
          **kwargs: the same as in Keras; `jit_compile=True` is refused.

        Raises:
          ValueError: another optimizer, or an option that tables do not
            support; the message says what to do.
        """
        bind = inspect.signature(super().compile).bind
        options = bind(optimizer, *args, **kwargs).arguments
        check_jit(options.get("jit_compile"))
        steps = options.get("steps_per_execution") or 1
        if IS_KERAS_3:  # "auto" is legal in tf_keras alone.
            check_count("compile", "steps_per_execution", steps, 1)
        if IS_KERAS_3 and steps > 1 and regime_of_model(self).num_replicas > 1:
            raise ValueError(
                "Argument `steps_per_execution` of compile must be 1 under a "
                "strategy with several replicas, where Keras 3 supports "
                f"nothing else. Received: steps_per_execution={steps}. Use 1, "
                "or tf_keras (TF_USE_LEGACY_KERAS=1)."
            )
        if optimizer is not None:
            optimizer = self._check_optimizer(optimizer, options)
        training = training_of(self)
        training.check_compile(optimizer, options)
        super().compile(optimizer, *args, **kwargs)
        self._tf_ext_loop = None
        if regime_of_model(self).num_replicas > 1:
            weighting.install(self)
        training.after_compile()

    def _check_optimizer(
        self, optimizer: typing.Any, options: dict[str, typing.Any]
    ) -> typing.Any:
        if isinstance(optimizer, dict):  # Of a saved model.
            optimizer = keras.optimizers.deserialize(optimizer)
        ours = wrapped_optimizers(optimizer)
        if isinstance(optimizer, SparseOptimizer):
            rule = type(optimizer).__name__
            raise ValueError(
                "Argument `optimizer` of compile must be the optimizer of the "
                "variables outside of tables, such as "
                'tf_ext.optimizers.Optimizer("adam"). Received: '
                f"optimizer={optimizer!r}, an optimizer of tables. Pass it to "
                f"the table: SparseTable(..., optimizer={rule}(...))"
            )
        if not ours:
            names = [table.name for table in tables_of(self)]
            raise ValueError(
                f"{refusal(names[0] if names else None)} Received: "
                f"optimizer={optimizer!r}"
            )
        scaled = options.get("auto_scale_loss", True)
        if IS_KERAS_3 and scaled and self.dtype_policy.name == "mixed_float16":
            ours[0].enable_dynamic_loss_scale()
        return optimizer

    def compile_from_config(self, config: dict[str, typing.Any]) -> None:
        """Compiles a loaded model as the saved one was; called by Keras."""
        self.compile(**keras.utils.deserialize_keras_object(config))
        self._build_optimizer()

    def _build_optimizer(self) -> None:
        if self.built:
            with regime_of_model(self).scope():
                build_optimizer(self)

    def fit(
        self,
        *args: typing.Any,
        max_inflight_steps: int | None = None,
        overlap_steps: bool = False,
        retry_steps: bool = True,
        **kwargs: typing.Any,
    ) -> keras.callbacks.History:
        """As `keras.Model.fit`, also under strategies of several workers.

        Under MultiWorkerMirroredStrategy every worker calls it and trains on
        its share of each batch; a worker whose share has ended continues with
        empty batches. Under ParameterServerStrategy, the logs also have
        `staleness`: the mean number of other steps applied between the reads of
        a step and its update.

        Args:
          *args: the same as in Keras.
          max_inflight_steps: int, the most steps in flight under
            ParameterServerStrategy, which bounds the staleness; by default two
            per worker. Under other strategies it has no effect.
          overlap_steps: bool, whether each step computes while the updates of
            the step before it are on their way, which it then does not read.
            It takes ParameterServerStrategy, and `compile` with
            `steps_per_execution` of 2 to 16. The staleness grows by almost 1.
          retry_steps: bool, whether steps that are lost with a worker under
            ParameterServerStrategy run again, on another one: rows get their
            updates once, dense weights may get some of them twice. False: they
            raise `tf_ext.distribute.StepLostError`, after which
            `tf_ext.distribute.run_with_recovery` goes back to the last
            recovery point. Under other strategies it has no effect.
          **kwargs: the same as in Keras. `x` and `validation_data` may also be
            functions from `tf.distribute.InputContext` to a dataset, which each
            worker calls for its part; without several workers, it is called
            once for all of it.

        Raises:
          ValueError: a callback that would restore or average the variables but
            not the rows, a table that not exactly one part of a composed
            optimizer trains, `validation_data` of the stream that is trained
            on, or an argument that the strategy does not support.
          tf_ext.distribute.ServerLostError: a parameter server was lost.
          tf_ext.distribute.WorkerLostError: a synchronous worker was lost, or
            any with `retry_steps=False`, of which the error is a subclass.
        """
        given = bind_data(self, super().fit, args, kwargs)
        callbacks = given.arguments.get("callbacks")
        check_callbacks(callbacks)
        given.arguments["callbacks"] = in_order(callbacks)
        check_validation(
            given.arguments.get("x"), given.arguments.get("validation_data")
        )
        options = FitOptions(max_inflight_steps, overlap_steps, retry_steps)
        options.check()
        check_composed_optimizer(self)
        with self._explaining_errors(), during_fit(given):
            return training_of(self).fit(super().fit, given, options)

    def evaluate(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """As `keras.Model.evaluate`, under all strategies of `fit`."""
        given = bind_data(self, super().evaluate, args, kwargs)
        with self._explaining_errors():
            return training_of(self).run(super().evaluate, given)

    def predict(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        """As `keras.Model.predict`, under all strategies of `fit`."""
        given = bind_data(self, super().predict, args, kwargs)
        with self._explaining_errors():
            return training_of(self).run(super().predict, given)

    def _run_batch(
        self,
        method: Callable[..., typing.Any],
        args: tuple[typing.Any, ...],
        kwargs: dict[str, typing.Any],
    ) -> typing.Any:
        training_of(self).check_one_batch(method.__name__)
        given = bind_data(self, method, args, kwargs)
        with self._explaining_errors():
            return method(*given.args, **given.kwargs)

    @contextlib.contextmanager
    def _explaining_errors(self) -> Iterator[None]:
        with in_own_words(self._naming_columns), naming_read_errors():
            yield

    def _naming_columns(self, text: str) -> str:
        """Adds the columns to an error of a table's gradients.

        Signs tell a user nothing, the names of features do.
        """
        for table in self.tables:
            if (
                f'Table "{table.name}" was not changed' in text
                or f"Gradients of table {table.name!r}" in text
            ):
                names = ", ".join(map(repr, table.column_record.names))
                return f"{text} Columns of table {table.name!r}: {names}."
        return text

    def train_on_batch(
        self, *args: typing.Any, **kwargs: typing.Any
    ) -> typing.Any:
        """As `keras.Model.train_on_batch`, where `fit` is Keras's own."""
        return self._run_batch(super().train_on_batch, args, kwargs)

    def test_on_batch(
        self, *args: typing.Any, **kwargs: typing.Any
    ) -> typing.Any:
        """As `keras.Model.test_on_batch`, where `fit` is Keras's own."""
        return self._run_batch(super().test_on_batch, args, kwargs)

    def predict_on_batch(
        self, *args: typing.Any, **kwargs: typing.Any
    ) -> typing.Any:
        """As `keras.Model.predict_on_batch`, where `fit` is Keras's own."""
        return self._run_batch(super().predict_on_batch, args, kwargs)

    def train_step(self, data: typing.Any) -> dict[str, typing.Any]:
        """As in Keras, with the loss of the global batch.

        Replicas are weighted by the number of samples in their shares of a
        batch, unless the losses add up.
        """
        with after(data):
            return weighting.step_of_class(self, super().train_step, data)

    def test_step(self, data: typing.Any) -> dict[str, typing.Any]:
        """As in Keras."""
        with after(data):
            return weighting.step_of_class(self, super().test_step, data)

    @property
    def losses(self) -> list[tf.Tensor]:
        """As in Keras; 0 on replicas without samples."""
        return weighting.added_losses(self, super().losses)

    def save(
        self,
        filepath: str | os.PathLike[str],
        *args: typing.Any,
        **kwargs: typing.Any,
    ) -> None:
        """As `keras.Model.save`, into a `.keras` file (or a SavedModel).

        A `.keras` file replaces an existing one only when it is complete and
        durable.

        Raises:
          ValueError: an HDF5 file, which holds variables only.
        """
        refuse_hdf5(filepath, _MODEL)
        save = super().save
        given = inspect.signature(save).bind(filepath, *args, **kwargs)
        # A SavedModel and an unzipped archive are directories.
        is_file = given.arguments.get("zipped") is not False and (
            given.arguments.get("save_format") in (None, "keras")
        )
        with regime_of_model(self).processes.file_of_all(str(filepath)) as path:
            if not is_file:
                return save(path, *args, **kwargs)
            return save_whole(save, path, _MODEL, given)

    def save_weights(
        self,
        filepath: str | os.PathLike[str],
        *args: typing.Any,
        **kwargs: typing.Any,
    ) -> None:
        """As `keras.Model.save_weights`, including rows.

        A `.weights.h5` file replaces an existing one only when it is complete
        and durable: a backup survives a kill, and the loss of a parameter
        server, during the save. Under MultiWorkerMirroredStrategy all workers
        have to call it, and the first one writes the file.

        Raises:
          ValueError: an HDF5 file of the old format, which holds variables
            only.
        """
        refuse_hdf5(filepath, _WEIGHTS)
        save = super().save_weights
        given = inspect.signature(save).bind(filepath, *args, **kwargs)
        with regime_of_model(self).processes.file_of_all(str(filepath)) as path:
            return save_whole(save, path, _WEIGHTS, given)

    def load_own_variables(self, store: typing.Any) -> None:
        """Loads variables of the model itself; called by Keras's loaders.

        Raises:
          ValueError: variables of its layers have no place in the model.
        """
        keras_files.refuse_skipped_layers()
        super().load_own_variables(store)

    def set_weights(self, weights: typing.Any) -> None:
        """As `keras.Model.set_weights`, for models without tables.

        Raises:
          RuntimeError: the model has tables, whose rows are not weights; no
            weight is changed.
        """
        if self.tables:
            name = self.tables[0].name
            raise RuntimeError(setter_refusal("set_weights", name))
        super().set_weights(weights)

    def load_weights(
        self,
        filepath: str | os.PathLike[str],
        *args: typing.Any,
        **kwargs: typing.Any,
    ) -> typing.Any:
        """As `keras.Model.load_weights`, including rows.

        The optimizer of a compiled model is built first: Keras would skip its
        saved state before the first step. All of a file is checked before any
        table is changed: after an error, the model is unchanged. With
        `skip_mismatch` each table is checked separately, and variables that
        were read before an error stay changed.

        Raises:
          ValueError: the model is not built, the file is damaged, or it is that
            of another model.
        """
        is_kerass = str(filepath).endswith((_MODEL, _WEIGHTS))
        if IS_KERAS_3 and is_kerass and not self.built:
            raise ValueError(
                f"Model {self.name!r} is not built: it has no variables yet "
                f"to load from {str(filepath)!r}. Call it on a batch first."
            )
        self._build_optimizer()
        load = super().load_weights
        given = inspect.signature(load).bind(filepath, *args, **kwargs)
        if given.arguments.get("skip_mismatch") or not is_kerass:
            return load(filepath, *args, **kwargs)
        with variables_put_back(self), keras_files.only("check"):
            load(filepath, *args, **kwargs)
        with keras_files.only("import"):
            loaded = load(filepath, *args, **kwargs)
        adapted.finalize(self)
        return loaded

    def export(
        self,
        filepath: str | os.PathLike[str],
        *args: typing.Any,
        **kwargs: typing.Any,
    ) -> None:
        """As `keras.Model.export`: a SavedModel that serves, rows included.

        Features that only the `click` of layers reads are no inputs of it.
        """
        exporting.export(self, super().export, filepath, *args, **kwargs)

    def _saved_inputs(self) -> typing.Any:
        return export_signature(self.tf_ext_call)

    def _strategy_of_replicas(self) -> tf.distribute.Strategy | None:
        regime = regime_of_model(self)
        return regime.strategy if regime.num_replicas > 1 else None

    def count_params(self) -> int:
        """As `keras.Model.count_params`, without tables."""
        return count_without(super().count_params(), self.tables)

    def summary(self, *args: typing.Any, **kwargs: typing.Any) -> None:
        """As `keras.Model.summary`, with a line for each table.

        Tables have no parameters in it, but for those that are not trained.
        """
        given = inspect.signature(super().summary).bind(*args, **kwargs)
        print_summary(self, super().summary, given)

    @property
    def tables(self) -> list[SparseTable]:
        """The distinct tables of the model, a list of `tf_ext.SparseTable`."""
        return tables_of(self)


@keras.utils.register_keras_serializable(package="tf_ext", name="Model")
class FunctionalModel(_ModelWithTables, Functional):
    """What `Model(inputs, outputs)` makes."""


class _ModelType(_KerasModelType):
    """Makes functional models instances of `Model`, as Keras does."""

    def __instancecheck__(cls, instance: object) -> bool:
        return super().__instancecheck__(instance) or (
            cls is Model and isinstance(instance, FunctionalModel)
        )


class Model(_ModelWithTables, keras.Model, metaclass=_ModelType):
    """A `keras.Model` whose layers may hold tables.

    Use it as `keras.Model`: `Model(inputs, outputs)`, or as a base class with
    `call`. `compile` takes a `tf_ext.optimizers.Optimizer`; `fit`, `evaluate`,
    `predict`, `save` and the rest are Keras's own, rows included. Besides what
    Keras takes, data may be NumPy's strings, arrays of objects, and lists of
    numbers or strings; lists of different lengths become ragged tensors. What
    Keras would silently do wrong (train without tables' rows, restore or
    average only the variables) is refused with an error.

    Args:
      *args: those of `keras.Model`.
      **kwargs: those of `keras.Model`.

    Example:
    >>> import tf_ext
    >>> from tf_ext._keras import keras
    >>> inputs = {"user": keras.Input((), dtype="int64", name="user")}
    >>> table = tf_ext.SparseTable("user", dim=1, optimizer="ftrl")
    >>> user = tf_ext.feature_column.category_column("user")
    >>> logits = tf_ext.layers.EmbeddingFeatures([user], table)(inputs)
    >>> model = tf_ext.Model(inputs, logits)
    >>> model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
    >>> [table.name for table in model.tables]
    ['user']
    """

    def __new__(cls, *args: typing.Any, **kwargs: typing.Any) -> typing.Self:
        # Keras would make this very class functional, also for a subclass.
        if cls is Model and ("inputs" in kwargs or len(args) >= 2):
            return FunctionalModel(*args, **kwargs)
        return super().__new__(cls, *args, **kwargs)

    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None:
        if is_functional_call(args, kwargs):
            replace_base(type(self), Model, FunctionalModel)
            FunctionalModel.__init__(self, *args, **kwargs)
        else:
            without_input_casts(self, super().__init__, args, kwargs)

    def get_build_config(self) -> dict[str, typing.Any] | None:
        """What `build_from_config` needs, for Keras's savers."""
        # Keras's own shapes, too: a `build_from_config` of a user reads them.
        own = super().get_build_config() or {}
        return (own | build_config_of(self)) or None

    def build_from_config(self, config: dict[str, typing.Any]) -> None:
        """Builds a loaded model as the saved one was built; called by Keras.

        Raises:
          ValueError: the model cannot be called as the saved one was; the
            message says what to do.
        """
        if not rebuild(self, config):  # Of an earlier version: shapes alone.
            super().build_from_config(config)
