# SPDX-License-Identifier: Apache-2.0
"""Training of models of TensorFlow Recommenders by synchronous workers."""

from clusters.case_workers import export
from models import recommenders_models as models

from tf_ext._keras import keras


def trained(worker):
    """Retrieval and ratings; negatives are those of a worker's share."""
    with worker.strategy.scope():
        model = models.make_model()
    model.fit(models.data(), epochs=models.EPOCHS, verbose=0)
    return models.evaluate_with_index(model, worker.strategy)


def sums(worker):
    """Losses that are sums, of shares of different sizes, one of them empty."""
    with worker.strategy.scope():
        model = models.make_model(False, keras.regularizers.L2(0.1))
    return _results(model, models.data(samples=406, batch=81))


def means(worker):
    """Losses that are means, of shares of different sizes."""
    with worker.strategy.scope():
        model = models.make_clicks(keras.regularizers.L2(0.1))
    return _results(model, models.clicks_data(samples=400, batch=81))


def _results(model, dataset):
    history = model.fit(dataset, epochs=2, verbose=0).history
    return {
        "history": history,
        "metrics": model.evaluate(dataset, return_dict=True, verbose=0),
        "variables": model.get_weights(),
        "tables": {table.name: export(table) for table in model.tables},
    }
