"""The Keras model that knows of tables."""

import contextlib
import functools
import inspect

import tensorflow as tf

from tf_ext._keras import IS_KERAS_3, keras
from tf_ext._op_errors import in_own_words
from tf_ext.callbacks.early_stopping import EarlyStopping
from tf_ext.data import shares
from tf_ext.distribute.collectives import collectives_of
from tf_ext.distribute.errors import naming_lost_worker
from tf_ext.models import loops, multi_worker, resume
from tf_ext.models.arrays import to_arrays
from tf_ext.models.building import build_optimizer, wrapped_optimizers
from tf_ext.models.saving import file_of_all_workers, replaced_when_whole
from tf_ext.optimizers.share import current_share, sample_share
from tf_ext.optimizers.updates import after
from tf_ext.tables import keras_store
from tf_ext.tables.find import tables_of
from tf_ext.tables.rule import SparseOptimizer
from tf_ext.tables.shadow import refusal, set_weights_refusal

# Keras's own functional model, by its public API. (tf_keras cannot make one
# without fixing TensorFlow's devices and threads.)
if IS_KERAS_3:
    _Functional = type(keras.Model(*([keras.Input((1,), name="tf_ext")] * 2)))
else:
    _Functional = keras.Sequential.__base__

# The name of a table among what a checkpoint holds of a model, with its index.
_TABLE_CHILD = "tf_ext_table_"

# What names of files of Keras's formats end in.
_MODEL = ".keras"
_WEIGHTS = ".weights.h5"


class _ModelWithTables:
    """What `Model` adds to a Keras model: it refuses what would go wrong."""

    tf_ext_tables = True

    def compile(self, optimizer="rmsprop", *args, **kwargs):
        """As `keras.Model.compile`; `optimizer` must be tf_ext's.

        Args:
          optimizer: a `tf_ext.optimizers.Optimizer`, one that is composed of
            several of which such a one updates the tables (as TensorFlow
            Recommenders' CompositeOptimizer), or None for a model that is only
            evaluated.
          *args: the same as in Keras.
          **kwargs: the same as in Keras; `jit_compile=True` is refused.

        Raises:
          ValueError: another optimizer, or an option that tables cannot
            follow; the message says what to do.
        """
        given = inspect.signature(super().compile).bind(
            optimizer, *args, **kwargs
        )
        options = given.arguments
        if options.get("jit_compile") is True:
            raise ValueError(
                "jit_compile=True: XLA cannot compile the ops of tables. Use "
                "jit_compile='auto' or False."
            )
        steps = options.get("steps_per_execution") or 1
        if IS_KERAS_3 and steps > 1 and _replicas(self) > 1:
            raise ValueError(
                f"steps_per_execution={steps} fails in Keras 3 under a "
                "strategy of several replicas, with any model. Use 1, or "
                "tf_keras (TF_USE_LEGACY_KERAS=1)."
            )
        if optimizer is not None:
            optimizer = self._check_optimizer(optimizer, options)
        loops.check_compiled(self, optimizer, options, steps)
        super().compile(optimizer, *args, **kwargs)
        self._tf_ext_loop = None
        if not IS_KERAS_3 and collectives_of(self.distribute_strategy):
            # tf_keras would add up what already is of all workers.
            self.distribute_reduction_method = "first"

    def _check_optimizer(self, optimizer, options):
        if isinstance(optimizer, dict):  # Of a saved model.
            optimizer = keras.optimizers.deserialize(optimizer)
        ours = wrapped_optimizers(optimizer)
        if isinstance(optimizer, SparseOptimizer):
            rule = type(optimizer).__name__
            raise ValueError(
                f"tf_ext.optimizers.{rule} is an optimizer of tables: give it "
                f"to a table, SparseTable(..., optimizer={rule}(...)). A model "
                "is compiled with the optimizer of everything else, such as "
                'tf_ext.optimizers.Optimizer("adam"). Received: '
                f"optimizer={optimizer!r}"
            )
        if not ours:
            names = [table.name for table in tables_of(self)]
            raise ValueError(
                f"{refusal(names[0] if names else '?')} Received: "
                f"optimizer={optimizer!r}"
            )
        scaled = options.get("auto_scale_loss", True)
        if IS_KERAS_3 and scaled and self.dtype_policy.name == "mixed_float16":
            ours[0].enable_dynamic_loss_scale()
        return optimizer

    def compile_from_config(self, config):
        """Compiles a loaded model as the saved one was; called by Keras."""
        self.compile(**keras.utils.deserialize_keras_object(config))
        self._build_optimizer()

    def _build_optimizer(self):
        if self.built:
            build_optimizer(self)

    def fit(self, *args, max_inflight_steps=None, **kwargs):
        """As `keras.Model.fit`, under several workers' strategies too.

        Under MultiWorkerMirroredStrategy every worker calls it and trains on
        its share of each batch; one whose share is used up goes on with empty
        batches. Under ParameterServerStrategy, the logs hold `staleness` too:
        how many steps of others were applied between the reads of a step and
        its update, on average.

        Args:
          *args: the same as in Keras.
          max_inflight_steps: int, how many steps may be under way at a time
            under ParameterServerStrategy, which bounds the staleness; by
            default two a worker. Otherwise there is never more than one.
          **kwargs: the same as in Keras. Under ParameterServerStrategy, and
            in Keras 3 under MultiWorkerMirroredStrategy, `x` may be a function
            from `tf.distribute.InputContext` to a dataset.

        Raises:
          ValueError: a callback that would restore or average the variables
            but not the rows, or an argument that a strategy cannot follow.
        """
        given = _bind(super().fit, args, kwargs)
        _check_callbacks(given.arguments.get("callbacks"))
        loops.check_max_inflight_steps(max_inflight_steps)
        keras_fit = functools.partial(self._call_keras, super().fit)
        with self._explaining_errors():
            if not loops.needed(self):
                return resume.fit(self, keras_fit, given)
            given.apply_defaults()
            return self._loop().run("fit", given.arguments, max_inflight_steps)

    def evaluate(self, *args, **kwargs):
        """As `keras.Model.evaluate`, under all strategies of `fit`."""
        return self._run("evaluate", super().evaluate, args, kwargs)

    def predict(self, *args, **kwargs):
        """As `keras.Model.predict`, under all strategies of `fit`."""
        return self._run("predict", super().predict, args, kwargs)

    def _run(self, name, method, args, kwargs):
        """Calls `evaluate` or `predict`."""
        given = _bind(method, args, kwargs)
        with self._explaining_errors():
            if not loops.needed(self):
                return self._call_keras(method, *given.args, **given.kwargs)
            given.apply_defaults()
            return self._loop().run(name, given.arguments)

    def _run_batch(self, method, args, kwargs):
        """Calls `train_on_batch` or its like."""
        loops.refuse_batches(self, method.__name__)
        given = _bind(method, args, kwargs)
        with self._explaining_errors():
            return method(*given.args, **given.kwargs)

    def _explaining_errors(self):
        return in_own_words(self._naming_columns)

    def _naming_columns(self, text):
        """Adds whose rows they are to what is wrong with a table's gradients.

        Their values say nothing to a user, whose features they belong to do.
        """
        for table in self.tables:
            if (
                f'Table "{table.name}" was not changed' in text
                or f"Gradients of table {table.name!r}" in text
            ):
                names = ", ".join(map(repr, table.column_record.names))
                return f"{text} Columns of table {table.name!r}: {names}."
        return text

    def _call_keras(self, method, *args, **kwargs):
        """Calls Keras's own `fit`, `evaluate` or `predict`."""
        if collectives_of(self.distribute_strategy) is None:
            return method(*args, **kwargs)
        given = inspect.signature(method).bind(*args, **kwargs)
        multi_worker.check_layers(self)
        for name in ("x", "validation_data"):
            data = given.arguments.get(name)
            if isinstance(data, tf.data.Dataset):
                data = shares.shared_by_data(shares.in_step(data))
                given.arguments[name] = data
        with naming_lost_worker(self.distribute_strategy):
            return method(*given.args, **given.kwargs)

    def train_on_batch(self, *args, **kwargs):
        """As `keras.Model.train_on_batch`, where `fit` is Keras's own."""
        return self._run_batch(super().train_on_batch, args, kwargs)

    def test_on_batch(self, *args, **kwargs):
        """As `keras.Model.test_on_batch`, where `fit` is Keras's own."""
        return self._run_batch(super().test_on_batch, args, kwargs)

    def predict_on_batch(self, *args, **kwargs):
        """As `keras.Model.predict_on_batch`, where `fit` is Keras's own."""
        return self._run_batch(super().predict_on_batch, args, kwargs)

    def train_step(self, data):
        """As in Keras, with the loss of the global batch.

        Workers of a MultiWorkerMirroredStrategy whose shares of a batch
        differ in size count by their samples, and not alike.
        """
        with after(data), self._sample_share(data):
            return super().train_step(data)

    def test_step(self, data):
        """As in Keras."""
        with after(data):
            return super().test_step(data)

    def _sample_share(self, data):
        """A context in which a worker's batch counts by its samples."""
        collectives = collectives_of(self.distribute_strategy)
        if collectives is None or current_share() is not None:
            return contextlib.nullcontext()
        size = shares.batch_size_of(data)
        sizes = collectives.gather(size[tf.newaxis])
        share = tf.math.divide_no_nan(
            tf.cast(collectives.size * size, tf.float32),
            tf.cast(tf.reduce_sum(sizes), tf.float32),
        )
        return sample_share(share)

    def _loop(self):
        if getattr(self, "_tf_ext_loop", None) is None:
            self._tf_ext_loop = loops.make(self)
        return self._tf_ext_loop

    def save(self, filepath, *args, **kwargs):
        """As `keras.Model.save`, into a `.keras` file (or a SavedModel).

        A `.keras` file takes the place of one that is there only once it is
        whole and durable.

        Raises:
          ValueError: an HDF5 file, which holds variables alone.
        """
        _refuse_hdf5(filepath, _MODEL)
        save = super().save
        given = inspect.signature(save).bind(filepath, *args, **kwargs)
        # A SavedModel and an archive that is not zipped are directories.
        is_file = given.arguments.get("zipped") is not False and (
            given.arguments.get("save_format") in (None, "keras")
        )
        with file_of_all_workers(self, str(filepath)) as path:
            if not is_file:
                return save(path, *args, **kwargs)
            return _save_whole(save, path, _MODEL, given)

    def save_weights(self, filepath, *args, **kwargs):
        """As `keras.Model.save_weights`, rows included.

        A `.weights.h5` file takes the place of one that is there only once it
        is whole and durable: a backup outlives a kill, and a parameter server
        lost in between. Under
        MultiWorkerMirroredStrategy all workers have to call it, and the first
        writes the file.

        Raises:
          ValueError: an HDF5 file of the old format, which holds variables
            alone.
        """
        _refuse_hdf5(filepath, _WEIGHTS)
        save = super().save_weights
        given = inspect.signature(save).bind(filepath, *args, **kwargs)
        with file_of_all_workers(self, str(filepath)) as path:
            return _save_whole(save, path, _WEIGHTS, given)

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # Under a strategy Keras 3 builds a model for the mean of the replicas'
        # batches: a mean of ids is not an id, and strings have no mean.
        if iterator is not None and _replicas(self) > 1:
            local = self.distribute_strategy.experimental_local_results
            _, _, batches = next(iter(iterator))
            data_batch = tf.nest.map_structure(
                lambda value: local(value)[0], next(batches)
            )
            iterator = None
        super()._maybe_symbolic_build(iterator, data_batch)

    def set_weights(self, weights):
        """As `keras.Model.set_weights`, of a model without tables.

        Raises:
          RuntimeError: the model has tables, whose rows are in no weights; no
            weight is changed.
        """
        if self.tables:
            raise RuntimeError(set_weights_refusal(self.tables[0].name))
        super().set_weights(weights)

    def load_weights(self, filepath, *args, **kwargs):
        """As `keras.Model.load_weights`, rows included.

        A compiled model's optimizer gets its slots first: Keras would leave
        out the saved state of one that has not yet made a step. All rows of a
        file are checked before one table is changed: after an error, all
        tables are as they were. With `skip_mismatch` each table is checked by
        itself.
        """
        self._build_optimizer()
        load = super().load_weights
        given = inspect.signature(load).bind(filepath, *args, **kwargs)
        if given.arguments.get("skip_mismatch") or not str(filepath).endswith(
            (_MODEL, _WEIGHTS)
        ):
            return load(filepath, *args, **kwargs)
        with keras_store.only("check"):
            load(filepath, *args, **kwargs)
        with keras_store.only("import"):
            return load(filepath, *args, **kwargs)

    def export(self, filepath, *args, **kwargs):
        """As `keras.Model.export`: a SavedModel that serves, rows included."""
        if IS_KERAS_3:
            super().export(filepath, *args, **kwargs)
            return
        # tf_keras exports no resources but TensorFlow's own lookup tables.
        archive = keras.export.ExportArchive()
        archive.track(self)
        archive.tf_ext_rows = [table.rows.served for table in self.tables]
        archive.add_endpoint("serve", self.__call__, self.save_spec()[0])
        archive.write_out(filepath, *args, **kwargs)

    # Keras 3 hides lists and dicts of layers from tf.train.Checkpoint and
    # SavedModel, which would leave out their tables without a word.

    def _trackable_children(self, save_type="checkpoint", **kwargs):
        children = super()._trackable_children(save_type, **kwargs)
        return {**children, **self._table_children()}

    def _lookup_dependency(self, name, cached_dependencies=None):
        if name.startswith(_TABLE_CHILD):
            return self._table_children().get(name)
        return super()._lookup_dependency(name, cached_dependencies)

    def _table_children(self):
        if not IS_KERAS_3:
            return {}
        tables = enumerate(tables_of(self))
        return {f"{_TABLE_CHILD}{index}": table for index, table in tables}

    @property
    def tables(self):
        """The distinct tables of the model, a list of `tf_ext.SparseTable`."""
        return tables_of(self)


@keras.utils.register_keras_serializable(package="tf_ext", name="Model")
class FunctionalModel(_ModelWithTables, _Functional):
    """What `Model(inputs, outputs)` makes."""


class _ModelType(type(keras.Model)):
    """Makes functional models instances of `Model`, as Keras does."""

    def __instancecheck__(cls, instance):
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
    Keras would do wrong without a word (train without tables' rows, restore or
    average the variables alone) is refused with a sentence.

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

    def __new__(cls, *args, **kwargs):
        # Keras would turn this very class into a functional model's, after
        # which it could not be subclassed; so functional models have their
        # own.
        if cls is Model and ("inputs" in kwargs or len(args) >= 2):
            return FunctionalModel(*args, **kwargs)
        return super().__new__(cls, *args, **kwargs)


def _bind(method, args, kwargs):
    """The arguments of one of Keras's methods, with data that it takes."""
    given = inspect.signature(method).bind(*args, **kwargs)
    for name in ("x", "y", "sample_weight", "validation_data"):
        if name in given.arguments:
            given.arguments[name] = to_arrays(given.arguments[name])
    return given


def _replicas(model):
    strategy = getattr(model, "distribute_strategy", None)
    strategy = strategy or tf.distribute.get_strategy()
    return strategy.num_replicas_in_sync


def _check_callbacks(callbacks):
    if callbacks is None:
        return
    if not isinstance(callbacks, (list, tuple)):
        callbacks = getattr(callbacks, "callbacks", [callbacks])
    averaging = getattr(keras.callbacks, "SwapEMAWeights", ())
    for callback in callbacks:
        if (
            isinstance(callback, keras.callbacks.EarlyStopping)
            and callback.restore_best_weights
            and not isinstance(callback, EarlyStopping)
        ):
            raise ValueError(
                "keras.callbacks.EarlyStopping(restore_best_weights=True) "
                "restores variables but no rows. Use "
                "tf_ext.callbacks.EarlyStopping, with the same arguments."
            )
        if isinstance(callback, averaging):
            raise ValueError(
                "SwapEMAWeights swaps variables but no rows: averages of rows "
                "are not kept. Leave it out."
            )


def _save_whole(save, path, suffix, given):
    """Calls Keras's `save`, whose file is then there whole or not at all.

    Args:
      save: Keras's method.
      path: string, where to.
      suffix: string, what names of this format end in.
      given: inspect.BoundArguments of the user's call.
    """
    # Keras asks before it overwrites, if it is told to.
    if not path.endswith(suffix) or not given.arguments.get("overwrite", True):
        given.arguments["filepath"] = path
        return save(*given.args, **given.kwargs)
    with replaced_when_whole(path, suffix) as part:
        given.arguments["filepath"] = part
        return save(*given.args, **given.kwargs)


def _refuse_hdf5(filepath, instead):
    path = str(filepath)
    if path.endswith((".h5", ".hdf5")) and not path.endswith(".weights.h5"):
        raise ValueError(
            "Argument `filepath` names an HDF5 file of Keras's old format, "
            f"which holds variables but no rows. Received: {path!r}. Use a "
            f"name that ends in {instead!r}."
        )
