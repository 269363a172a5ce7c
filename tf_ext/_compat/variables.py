# SPDX-License-Identifier: Apache-2.0
"""Variables that optimizers of Keras must not train."""

import tensorflow as tf

from tf_ext._compat.calls import caller_of_caller

_ASSIGNMENTS = (
    "assign",
    "assign_add",
    "assign_sub",
    "scatter_add",
    "scatter_div",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_nd_add",
    "scatter_nd_sub",
    "scatter_nd_update",
    "scatter_sub",
    "scatter_update",
    "batch_scatter_update",
)


def give_own_class(instance, members, mixins=()):
    """Gives one object a class of its own, which derives from its class.

    Keras and TensorFlow create their variables, always of their own classes.

    Seen in: TensorFlow 2.18 to 2.21, Keras 3.15.

    Args:
      instance: the object.
      members: dict of the members of the class.
      mixins: tuple of classes that come before the object's.
    """
    base = type(instance)
    members = {**members, "__module__": base.__module__}
    instance.__class__ = type(base.__name__, (*mixins, base), members)


def refuse_updates(variable, refuse):
    """Makes an optimizer that would train a variable raise before it does.

    Optimizers of Keras look a variable's slots up by `_unique_id` before they
    compute anything; legacy ones of tf_keras read its `constraint` before they
    pass it to an op that cannot refuse. All others assign it.

    Seen in: TensorFlow 2.18 to 2.21, Keras 3.15, tf_keras 2.18 to 2.21.

    Args:
      variable: a Keras or a TensorFlow variable.
      refuse: function without arguments that raises.
    """

    def refused(self, *args, **kwargs):
        refuse()

    def unique_id(self):
        if caller_of_caller() == "_var_key":
            refuse()
        return self.__dict__["_unique_id"]

    def constraint(self):
        if caller_of_caller().endswith("apply_grad_to_update_var"):
            refuse()
        return None

    base = type(variable)
    members = {name: refused for name in _ASSIGNMENTS if hasattr(base, name)}
    if isinstance(variable, tf.Variable):
        members["constraint"] = property(constraint)
    if "_unique_id" in variable.__dict__:
        members["_unique_id"] = property(
            unique_id,
            lambda self, value: self.__dict__.update(_unique_id=value),
        )
    give_own_class(variable, members)
    # Distributed variables of TensorFlow have no `_unique_id` of their own, but
    # Keras 3 assigns variables with this flag before it trains any other.
    if hasattr(variable, "overwrite_with_gradient"):
        variable.overwrite_with_gradient = True
