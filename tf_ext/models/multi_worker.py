"""`fit`, `evaluate` and `predict` in Keras 3 on workers that train in step.

Every worker runs this loop on its share of the data. Before each step they
agree whether anybody has data left, and how many samples there are in all: one
that has run out goes on with empty batches. Metrics are those of all workers.
"""

import itertools
import tempfile

import tensorflow as tf

from tf_ext._keras import keras
from tf_ext.data import shares
from tf_ext.distribute.collectives import collectives_of
from tf_ext.distribute.errors import naming_lost_worker
from tf_ext.layers.batch_normalization import BatchNormalization
from tf_ext.models.building import build_optimizer
from tf_ext.models.feed import example_of, makes_dataset
from tf_ext.models.loop import Loop, dataset_of
from tf_ext.optimizers import Optimizer
from tf_ext.optimizers.share import sample_share

# What a worker's attempt to read a batch came to; the largest counts.
_FAILED, _HAS_BATCH, _ENDED = 2, 1, 0
_Policy = tf.data.experimental.AutoShardPolicy


# Reductions whose value is a mean over samples, whatever their weights.
_MEANS = ("sum_over_batch_size", "mean", "auto")


def check_losses(losses):
    """Raises ValueError for a loss that is no mean over the batch.

    Args:
      losses: what `compile` is given.
    """
    for loss in tf.nest.flatten(losses):
        reduction = getattr(loss, "reduction", "mean")
        if reduction not in _MEANS:
            raise ValueError(
                f"Loss {getattr(loss, 'name', loss)!r} has the reduction "
                f"{reduction!r}: under MultiWorkerMirroredStrategy a loss must "
                "be the sum over the global batch divided by its number of "
                "samples. Use reduction='sum_over_batch_size'."
            )


def check_optimizer(optimizer):
    """Raises ValueError for one that sums some gradients by itself.

    Args:
      optimizer: what `compile` is given.
    """
    for part in getattr(optimizer, "optimizers", ()):
        if not isinstance(part, Optimizer):
            raise ValueError(
                f"{type(part).__name__} of the composed optimizer gives the "
                "workers' gradients the same weight, whatever the sizes of "
                "their shares. Under MultiWorkerMirroredStrategy wrap each: "
                "tf_ext.optimizers.Optimizer(your_optimizer)."
            )


def check_layers(model):
    """Raises ValueError for layers that need the whole batch to be here.

    Args:
      model: keras.Model under a MultiWorkerMirroredStrategy.
    """
    for layer in model._flatten_layers():
        if (
            isinstance(layer, keras.layers.BatchNormalization)
            and not isinstance(layer, BatchNormalization)
            and not getattr(layer, "synchronized", False)
        ):
            raise ValueError(
                f"Layer {layer.name!r} normalises by the statistics of a "
                "worker's share of the batch, which may be empty. Use "
                "tf_ext.layers.BatchNormalization, which takes those of the "
                "global batch."
            )


class MultiWorkerLoop(Loop):
    """The loop of one compiled model; it keeps the traced steps.

    Args:
      model: keras.Model of Keras 3 that was made under a
        MultiWorkerMirroredStrategy of several workers.
    """

    def __init__(self, model):
        super().__init__(model)
        self._collectives = collectives_of(self._strategy)
        self._functions = {}

    def run(self, method, *arguments):
        """Calls `fit`, `evaluate` or `predict`.

        Raises:
          tf_ext.distribute.WorkerLostError: another worker died.
        """
        with naming_lost_worker(self._strategy):
            return super().run(method, *arguments)

    def _training_feed(self, arguments):
        return self._feed({**arguments, "steps": arguments["steps_per_epoch"]})

    def _feed(self, arguments):
        dataset = _share_of(arguments, self._collectives)
        return _Feed(dataset, arguments["steps"], self._collectives)

    def _build(self, feed):
        model = self._model
        check_layers(model)
        example = example_of(feed.element_spec)
        x, y, _ = keras.utils.unpack_x_y_sample_weight(example)
        if y is not None:
            model._maybe_symbolic_build(data_batch=example)
        elif not all(layer.built for layer in model._flatten_layers()):
            # Keras would build metrics, too, which takes labels.
            with self._strategy.scope():
                model(x)
        with self._strategy.scope():
            build_optimizer(model)

    def _begin_training(self, callbacks):
        callbacks.on_train_begin()
        if self._collectives.rank != 0:
            _detach_backups(callbacks)

    def _verbose(self, verbose):
        return verbose if self._collectives.rank == 0 else 0

    def _train_steps(self, feed, batches, limit):
        del limit
        return self._steps("train", feed, batches)

    def _test_steps(self, feed, batches):
        return self._steps("test", feed, batches)

    def _predict_steps(self, feed, batches):
        return self._steps("predict", feed, batches)

    def _steps(self, kind, feed, batches):
        key = (kind, repr(feed.element_spec))
        if key not in self._functions:
            self._functions[key] = self._make_step(kind, feed.element_spec)
        function = self._functions[key]
        for batch, share in batches:
            yield function(batch, share)

    def _make_step(self, kind, element_spec):
        call = getattr(self._model, f"{kind}_step")

        def replica_step(batch, share):
            with sample_share(share):
                result = call(batch)
            if kind == "predict":
                return _gather(result)
            return self._global_logs(result, share)

        return tf.function(
            lambda batch, share: self._strategy.run(
                replica_step, args=(batch, share)
            ),
            input_signature=[element_spec, tf.TensorSpec([], tf.float32)],
            autograph=False,  # As Keras has it.
        )

    def _global_logs(self, logs, share):
        """What a step returned, over all workers.

        Metrics are computed from the sums of their variables; anything else
        is the mean over all samples.
        """
        model = self._model
        variables = [v for m in model.metrics for v in m.variables]
        own = set(model.get_metrics_result())
        others = {
            name: tf.cast(value, tf.float32) * share / self._collectives.size
            for name, value in logs.items()
            if name not in own
        }
        states = [tf.convert_to_tensor(v) for v in variables]
        sums = self._collectives.sum([*states, *others.values()])
        with keras.StatelessScope(state_mapping=list(zip(variables, sums))):
            metrics = model.get_metrics_result()
        values = {**metrics, **dict(zip(others, sums[len(variables) :]))}
        return {name: values[name] for name in logs}


class _Feed:
    """A worker's batches, as long as any worker has some.

    Args:
      dataset: tf.data.Dataset, or another iterable with an `element_spec`, of
        this worker's batches.
      steps: int, the steps of an epoch; None to read the dataset to its end.
      collectives: Collectives.

    Attributes:
      element_spec: nested structure of `tf.TypeSpec`, a batch.
      num_batches: int, of an epoch; None if that is not known beforehand.
    """

    def __init__(self, dataset, steps, collectives):
        self.element_spec = shares.relaxed_spec(dataset.element_spec)
        self._collectives = collectives
        self._dataset = dataset
        self._steps = steps
        self._iterator = None
        self._next_step = None  # read already, of an epoch that goes on
        self.num_batches = steps or self._longest_share()

    def _longest_share(self):
        cardinality = getattr(self._dataset, "cardinality", None)
        count = int(cardinality()) if callable(cardinality) else -1
        counts = self._collectives.gather(tf.constant([count], tf.int64))
        counts = counts.numpy().ravel()
        return int(counts.max()) if counts.min() >= 0 else None

    def epoch(self, first_step=0):
        """Yields `(batch, share)` for each step of the next epoch.

        `share` is how much the batch counts: workers times samples here by
        samples of all, float32. With `steps`, an epoch goes on where the last
        one ended, and begins again at the end of the data of all.

        Args:
          first_step: int, steps of this epoch that were made before.
        """
        goes_on = self._steps is not None or self._next_step is not None
        if self._iterator is None or not goes_on:
            self._iterator = iter(self._dataset)
        steps = (
            itertools.count(first_step)
            if self._steps is None
            else range(first_step, self._steps)
        )
        for _ in steps:
            step, self._next_step = self._next_step or self._next(), None
            if step is None:
                self._iterator = None
                return
            yield step

    def go_on(self, epoch, first_step):
        """Passes over what was read before a restart.

        Args:
          epoch: int, the epoch that is under way.
          first_step: int, steps of it that were made.

        Returns:
          `(epoch, first_step)`; of the next epoch if no data is left in this.
        """
        self._iterator = iter(self._dataset)
        for _ in range((self._steps or 0) * epoch + first_step):
            next(self._iterator, None)
        if self._steps is None and first_step:
            self._next_step = self._next()
            if self._next_step is None:
                return epoch + 1, 0
        return epoch, first_step

    def _next(self):
        batch, error = None, None
        try:
            batch = next(self._iterator, None)
        except Exception as caught:  # Others have to hear of it first.
            error = caught
        size = 0 if batch is None else int(shares.batch_size_of(batch))
        state = _ENDED if batch is None else _HAS_BATCH
        mine = [_FAILED if error is not None else state, size]
        rows = self._collectives.gather(tf.constant(mine, tf.int64)).numpy()
        if rows[:, 0].max() == _FAILED:
            self._raise(error)
        if rows[:, 0].max() == _ENDED:
            return None
        if batch is None:
            batch = shares.empty_batch(self.element_spec)
        total = rows[:, 1].sum()
        share = len(rows) * size / total if total else 0.0
        return batch, tf.constant(share, tf.float32)

    def _raise(self, error):
        text = "" if error is None else f"{type(error).__name__}: {error}"
        first = self._collectives.first_error(tf.constant(text))
        raise RuntimeError(
            "The data of a worker cannot be read, which ends the training of "
            f"all. {first.numpy().decode(errors='replace')}"
        ) from error


def _share_of(arguments, collectives):
    """The dataset of this worker's batches."""
    workers, rank = collectives.size, collectives.rank
    x = arguments["x"]
    if isinstance(x, tf.distribute.DistributedDataset):
        return x
    if makes_dataset(x):
        context = tf.distribute.InputContext(workers, rank, workers)
        return shares.in_step(dataset_of(arguments, context=context))
    dataset = dataset_of(arguments, seed=_common_seed(collectives))
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy == _Policy.OFF:
        share = shares.cut_batches(dataset, workers)
    elif policy in (_Policy.AUTO, _Policy.DATA):
        share = shares.worker_share(dataset, workers, rank)
    else:
        share = _share_of_files(dataset, collectives, policy)
    return share.prefetch(tf.data.AUTOTUNE)


def _share_of_files(dataset, collectives, policy):
    """The share of this worker, if all workers have files to read."""
    share, error = None, ""
    try:
        share = shares.shard_files(dataset, collectives.size, collectives.rank)
    except tf.errors.OpError as caught:
        error = caught.message
    failed = tf.constant([share is None], tf.int64)
    if tf.reduce_max(collectives.gather(failed)) == 0:
        return shares.cut_batches(share, collectives.size)
    raise ValueError(
        f"The dataset's auto_shard_policy is {policy.name}, but it cannot be "
        f"shared by file over {collectives.size} workers. {error} Use "
        "AutoShardPolicy.DATA, or more files."
    )


def _common_seed(collectives):
    """A random number that all workers know."""
    mine = tf.random.uniform([1], maxval=tf.int32.max, dtype=tf.int64)
    return int(collectives.gather(mine)[0, 0])


def _gather(outputs):
    context = tf.distribute.get_replica_context()

    def gather(value):
        if not isinstance(value, tf.Tensor):
            raise ValueError(
                "predict() under MultiWorkerMirroredStrategy needs dense "
                f"outputs. Received: {value!r}"
            )
        return context.all_gather(value, axis=0)

    return tf.nest.map_structure(gather, outputs)


def _detach_backups(callbacks):
    """Keeps all workers but the first from writing into one backup.

    They have restored from it, and go on taking part in saving.
    """
    for callback in callbacks.callbacks:
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            model, params = callback.model, callback.params
            keras.callbacks.BackupAndRestore.__init__(
                callback,
                tempfile.mkdtemp(prefix="tf_ext_backup_"),
                save_freq=callback.save_freq,
                double_checkpoint=callback.double_checkpoint,
                delete_checkpoint=True,
            )
            callback.set_model(model)
            callback.set_params(params)
