"""The model and the step of the training benchmarks, for both Kerases."""

import tensorflow as tf


def probability(bags):
    """Sums what the model looked up: `[batch, n]` to `[batch, 1]`."""
    return tf.sigmoid(tf.reduce_sum(bags, axis=1, keepdims=True))


def summed_probability(rows):
    """The same from rows that are not summed: `[batch, ids, dim]`."""
    return probability(tf.reduce_sum(rows, axis=1))


def stepper(model, features, labels):
    """One step of a compiled model's train function on ready tensors."""
    model.make_train_function()
    data = tf.data.Dataset.from_tensors((features, labels)).repeat()
    iterator = iter(data)

    def step():
        logs = model.train_function(iterator)
        tf.nest.map_structure(lambda value: value.numpy(), logs)

    return step
