"""The variable that stands for a table in Keras.

Each table has a trainable `[1, dim]` variable. The gradient of a pull is an
`IndexedSlices` on it whose indices are the signs, so that gradients of tables
travel through Keras like any other until `tf_ext.optimizers.Optimizer` takes
them out. The variable's value is never used; an optimizer that does not know
of tables would train it silently, so it refuses to be assigned.
"""

import sys
import weakref

import tensorflow as tf

_TABLE = "_tf_ext_table"

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


def refusal(name):
    """What to do instead of assigning the shadow variable of a table."""
    return (
        f"The rows of table {name!r} are not in a variable: they live in the "
        "table, which is updated by tf_ext.optimizers.Optimizer. Compile the "
        "model with (or call apply_gradients of) "
        "tf_ext.optimizers.Optimizer(your_optimizer) instead of your_optimizer "
        "itself. To copy rows, use table.export_rows() and "
        "table.import_rows(); to stop early with the best weights, "
        "tf_ext.callbacks.EarlyStopping."
    )


def set_weights_refusal(name):
    """What to do instead of `set_weights` of something with a table."""
    return (
        f"set_weights cannot be used here: the rows of table {name!r} are not "
        "in a variable, and get_weights holds none of them. Copy a model by "
        "save_weights and load_weights, rows by table.export_rows() and "
        "table.import_rows(), and the weights of a layer without tables by its "
        "own set_weights."
    )


def mark(variable, table):
    """Makes `variable` the shadow of `table`.

    Args:
      variable: a Keras or TensorFlow variable that was just created.
      table: the SparseTable; kept as a weak reference.
    """
    layers = [variable]
    if isinstance(getattr(variable, "value", None), tf.Variable):
        layers.append(variable.value)  # Keras 3's holds TensorFlow's
    for layer in layers:
        setattr(layer, _TABLE, weakref.ref(table))
        _refuse_assignment(layer, table.name)
    # Keras 3 optimizers assign variables that say so at once, before they
    # make slots or touch the gradient: the refusal comes first.
    if hasattr(variable, "overwrite_with_gradient"):
        variable.overwrite_with_gradient = True


def table_of(variable):
    """The table `variable` is the shadow of, or None."""
    reference = getattr(variable, _TABLE, None)
    return None if reference is None else reference()


def _refuse_assignment(variable, name):
    """Gives this one object a class whose assignments raise."""
    message = refusal(name)

    def refuse(self, *args, **kwargs):
        if _called_by("set_weights"):
            raise RuntimeError(set_weights_refusal(name))
        raise RuntimeError(message)

    def unique_id(self):
        # Keras's optimizers look their slots up by this before they compute
        # anything. tf_ext's never hands them a shadow.
        if sys._getframe(1).f_code.co_name == "_var_key":
            raise RuntimeError(message)
        return self.__dict__["_unique_id"]

    def constraint(self):
        # Legacy optimizers of tf_keras look at it before they hand the
        # variable to an op that knows no refusal.
        caller = sys._getframe(1).f_code.co_name
        if caller.endswith("apply_grad_to_update_var"):
            raise RuntimeError(message)
        return None

    base = type(variable)
    members = {name: refuse for name in _ASSIGNMENTS if hasattr(base, name)}
    if isinstance(variable, tf.Variable):
        members["constraint"] = property(constraint)
    if "_unique_id" in variable.__dict__:
        members["_unique_id"] = property(
            unique_id,
            lambda self, value: self.__dict__.update(_unique_id=value),
        )
    members["__module__"] = base.__module__
    variable.__class__ = type(base.__name__, (base,), members)


def _called_by(name):
    """Whether one of the callers is a function of this name."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != name:
        frame = frame.f_back
    return frame is not None
