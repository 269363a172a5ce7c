# SPDX-License-Identifier: Apache-2.0
"""What `tf.train.Checkpoint` holds of a model with tables."""

import typing

from tf_ext._compat.checkpoints import (
    OwnChildren,
    children_being_restored,
    hidden_children,
    unbuilt_layers_being_restored,
)
from tf_ext._keras import IS_KERAS_3
from tf_ext.tables import shadow
from tf_ext.tables.find import tables_of

# The name of a table among a model's checkpoint children, with its index.
_TABLE_CHILD = "tf_ext_table_"
# The name of what Keras hides from them, with its place.
_HIDDEN_CHILD = "tf_ext_hidden"


class CheckpointedModel(OwnChildren):
    """A base before a Keras model whose checkpoints are complete.

    Keras 3 hides what is in lists and dicts of layers from them.
    """

    # Of the Keras model.
    name: str
    built: bool
    weights: list[typing.Any]

    def _saved_children(
        self, children: dict[str, typing.Any], kind: str
    ) -> dict[str, typing.Any]:
        return {**children, **self._own_children(kind)}

    def _own_child(self, name: str) -> typing.Any:
        if not name.startswith((_TABLE_CHILD, _HIDDEN_CHILD)):
            return None
        own = self._own_children("checkpoint")
        if own and name == max(own):  # Once is enough.
            self._check_restore(own)
        return own.get(name)

    def _own_children(self, kind: str) -> dict[str, typing.Any]:
        if not IS_KERAS_3:
            return {}
        tables = enumerate(tables_of(self))
        own = {f"{_TABLE_CHILD}{index}": table for index, table in tables}
        if kind == "checkpoint":
            for place, child in hidden_children(self).items():
                own[f"{_HIDDEN_CHILD}{place}"] = child
        return own

    def _check_restore(self, own: dict[str, typing.Any]) -> None:
        """Raises ValueError if variables would keep random values."""
        unbuilt = [one.name for one in unbuilt_layers_being_restored(self)]
        if not self.built and all(map(shadow.table_of, self.weights)):
            unbuilt = [self.name]
        if unbuilt:
            raise ValueError(
                f"These are not built: {', '.join(map(repr, unbuilt))}. In "
                "Keras 3, variables that are created after a checkpoint was "
                "restored would keep random values. Call model "
                f"{self.name!r}, and the layers that its call does not reach, "
                "on a batch first."
            )
        absent = own.keys() - children_being_restored()
        variables = [
            variable
            for name in absent
            for variable in getattr(own[name], "variables", [own[name]])
            if shadow.table_of(variable) is None
        ]
        # An optimizer's variables include those that it trains.
        optimizer: typing.Any = getattr(self, "optimizer", None)
        if getattr(optimizer, "built", False):
            variables = [v for v in variables if not v.trainable]
        if variables:
            raise ValueError(
                f"The checkpoint lacks {len(variables)} variables of model "
                f"{self.name!r}, which are in lists or dicts of layers, such "
                f"as {variables[0].path!r}. It belongs to another model, or "
                "was written by an earlier version, which saved them only "
                "with the optimizer: build the optimizer first, "
                "model.optimizer.build(model.trainable_variables)."
            )
