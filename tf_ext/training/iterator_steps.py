# SPDX-License-Identifier: Apache-2.0
"""Steps of Keras's `fit` and `evaluate` whose calls take little time.

At each call of a function with an iterator, TensorFlow hashes and compares the
specs of all tensors of its elements, which takes as long as the step of a small
model. A concrete function of the iterator's resource, a single tensor, does
not.
"""

import typing
import weakref
from collections.abc import Callable

import tensorflow as tf

from tf_ext._keras import IS_KERAS_3, keras

Logs: typing.TypeAlias = typing.Any
Spec: typing.TypeAlias = typing.Any
Iterator: typing.TypeAlias = typing.Any


class StepsOfResources:
    """A base class of models whose `fit` and `evaluate` call steps faster."""

    def make_train_function(
        self, force: bool = False
    ) -> Callable[[typing.Any], Logs]:
        """As in Keras; the function takes less time to call."""
        make = super().make_train_function  # type: ignore[misc]
        return _made(self, "train", make, force)

    def make_test_function(
        self, force: bool = False
    ) -> Callable[[typing.Any], Logs]:
        """As in Keras; the function takes less time to call."""
        make = super().make_test_function  # type: ignore[misc]
        return _made(self, "test", make, force)


def _made(
    model: keras.Model, kind: str, make: Callable[[bool], object], force: bool
) -> Callable[[typing.Any], Logs]:
    """The function of a model that trains or tests, made if it is not yet."""
    name = f"{kind}_function"
    if force or getattr(model, name) is None:
        make(force)
        step = getattr(model, f"{kind}_step")
        setattr(model, name, _faster(model, getattr(model, name), step))
    return getattr(model, name)


def _faster(
    model: keras.Model,
    function: Callable[[typing.Any], Logs],
    step: Callable[[typing.Any], Logs],
) -> Callable[[typing.Any], Logs]:
    """What Keras made to train or test, with calls that take less time.

    Args:
      model: keras.Model, compiled.
      function: function of an iterator, or of batches, which Keras made.
      step: the method of the model that it calls with a batch.

    Returns:
      Function of the same; `function` where it would not do the same.
    """
    if model.run_eagerly:
        return function
    if not IS_KERAS_3:
        # A function of TensorFlow, of one step or more.
        return _Steps(function, function)
    if model.jit_compile or model.steps_per_execution > 1:
        return function
    return _Steps(function, lambda iterator: step(iterator.get_next()))


class _Steps:
    """A function of iterators.

    Args:
      function: function of what is no iterator of this process.
      traced: function of an iterator, which is traced.
    """

    def __init__(
        self,
        function: Callable[[Iterator], Logs],
        traced: Callable[[Iterator], Logs],
    ) -> None:
        self._function = function
        self._traced = traced
        self._of_specs: list[_StepsOfSpec] = []
        self._last: Callable[[], Iterator] = lambda: None
        self._of_last: typing.Any = None

    def __call__(self, iterator: Iterator) -> Logs:
        if self._last() is not iterator:
            if not _is_local(iterator):
                return self._function(iterator)
            self._of_last = self._of_spec(iterator.element_spec)
            self._last = weakref.ref(iterator)
        [resource] = tf.nest.flatten(iterator, expand_composites=True)
        return self._of_last(resource)

    def _of_spec(self, spec: Spec) -> "_StepsOfSpec":
        wanted = spec
        for steps in self._of_specs:
            common = _common(steps.spec, spec)
            if common == steps.spec:
                return steps
            if common is not None:
                # Of other sizes, of which there may be many: as in Keras.
                wanted = common
        self._of_specs.append(_StepsOfSpec(wanted, self._traced))
        return self._of_specs[-1]


def _common(one: Spec, other: Spec) -> Spec | None:
    """The most special spec of both; None if their ranks or types differ."""
    try:
        tf.nest.assert_same_structure(one, other)
    except (TypeError, ValueError):
        return None
    found = []
    for its, others in zip(
        tf.nest.flatten(one), tf.nest.flatten(other), strict=True
    ):
        if its != others:
            its = its.most_specific_common_supertype([others])
            shape = getattr(its, "shape", None)
            if shape is None or shape.rank is None:
                return None
        found.append(its)
    return tf.nest.pack_sequence_as(one, found)


class _StepsOfSpec:
    """A function of the resources of iterators.

    Args:
      spec: structure of `tf.TensorSpec`, of their elements.
      traced: function of an iterator, which is traced.
    """

    def __init__(self, spec: Spec, traced: Callable[[Iterator], Logs]) -> None:
        self.spec = spec
        self._was_called = False
        self._concrete: typing.Any = None

        @tf.function(
            input_signature=[tf.TensorSpec([], tf.resource)],
            autograph=False,  # As in Keras.
        )
        def run(resource: tf.Tensor) -> Logs:
            iterator = tf.nest.pack_sequence_as(
                tf.data.IteratorSpec(spec), [resource], expand_composites=True
            )
            return traced(iterator)

        self._run = run

    def __call__(self, resource: tf.Tensor) -> Logs:
        if self._concrete is not None:
            return self._concrete(resource)
        if not self._was_called:
            # The first call may make variables, which takes a trace of its own.
            logs = self._run(resource)
            self._was_called = True
            return logs
        self._concrete = self._run.get_concrete_function()
        return self._concrete(resource)


def _is_local(iterator: typing.Any) -> bool:
    """Whether it is an iterator of a tf.data.Dataset of this process."""
    return (
        not tf.config.functions_run_eagerly()
        and isinstance(iterator, tf.data.Iterator)
        and not isinstance(iterator, tf.distribute.DistributedIterator)
        # Keras makes None of these.
        and not any(
            isinstance(one, tf.OptionalSpec)
            for one in tf.nest.flatten(iterator.element_spec)
        )
    )
