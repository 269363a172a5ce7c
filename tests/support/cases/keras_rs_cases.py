# SPDX-License-Identifier: Apache-2.0
"""Training of keras-rs's parts by synchronous workers."""

from clusters.case_workers import export
from models import keras_rs_models as models


def list_mle(worker):
    return _trained(worker, "list_mle")


def pairwise_hinge(worker):
    return _trained(worker, "pairwise_hinge")


def _trained(worker, loss):
    with worker.strategy.scope():
        model = models.make_model(loss)
    # The workers' shares of the last batch differ in size.
    data = models.data(samples=403)
    history = model.fit(data, epochs=2, verbose=0).history
    return {
        "history": history,
        "metrics": model.evaluate(data, return_dict=True, verbose=0),
        "variables": model.get_weights(),
        "tables": {table.name: export(table) for table in model.tables},
    }
