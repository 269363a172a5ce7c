"""The update rules of tables.

Each has the formula, the hyperparameters, the defaults and the slot start
values of the Keras optimizer of the same name (`keras.optimizers`), applied
lazily: gradients of a sign are summed first, then its row is updated once a
step; rows that are not pushed do not change, and weight decay acts on pushed
rows only.

A rule given by its name has the hyperparameters that `get` lists instead.
"""

import math

import tensorflow as tf

from tf_ext._keras import keras
from tf_ext.tables.rule import SparseOptimizer

__all__ = [
    "SparseAdagrad",
    "SparseAdam",
    "SparseFtrl",
    "SparseOptimizer",
    "SparseRMSprop",
    "SparseRowWiseAdagrad",
    "SparseSGD",
    "get",
]


@keras.utils.register_keras_serializable(package="tf_ext")
class SparseSGD(SparseOptimizer):
    """Gradient descent, with momentum on request: `keras.optimizers.SGD`.

    Args:
      learning_rate: see `SparseOptimizer`.
      momentum: float in [0, 1). Above 0 each row keeps a momentum slot.
      nesterov: bool, whether momentum is Nesterov's.
      weight_decay: see `SparseOptimizer`.

    Example:
    >>> import tf_ext
    >>> tf_ext.optimizers.SparseSGD(0.1).slots(dim=4)
    []
    """

    def __init__(
        self,
        learning_rate=None,
        momentum=0.0,
        nesterov=False,
        weight_decay=None,
    ):
        super().__init__(learning_rate, weight_decay)
        self.momentum = self._check("momentum", momentum, below=1.0)
        self.nesterov = bool(nesterov)

    @property
    def _rule(self):
        return "momentum" if self.momentum else "sgd"

    def slots(self, dim):
        return [("momentum", tf.float32, dim)] if self.momentum else []

    def _rest(self):
        return [self.momentum, float(self.nesterov)] if self.momentum else []

    def get_config(self):
        return super().get_config() | {
            "momentum": self.momentum,
            "nesterov": self.nesterov,
        }


@keras.utils.register_keras_serializable(package="tf_ext")
class SparseAdagrad(SparseOptimizer):
    """Adagrad: `keras.optimizers.Adagrad` (Duchi et al., 2011).

    Args:
      learning_rate: see `SparseOptimizer`.
      initial_accumulator_value: float >= 0, where accumulators start.
      epsilon: float >= 0, added under the square root.
      weight_decay: see `SparseOptimizer`.

    Example:
    >>> import tf_ext
    >>> tf_ext.optimizers.SparseAdagrad(0.05).slots(dim=4)
    [('accumulator', tf.float32, 4)]
    """

    _rule = "adagrad"

    def __init__(
        self,
        learning_rate=None,
        initial_accumulator_value=0.1,
        epsilon=1e-7,
        weight_decay=None,
    ):
        super().__init__(learning_rate, weight_decay)
        self.initial_accumulator_value = self._check(
            "initial_accumulator_value", initial_accumulator_value
        )
        self.epsilon = self._check("epsilon", epsilon)

    def table_config(self):
        return super().table_config() | {
            "optimizer.initial_accumulator_value": repr(
                self.initial_accumulator_value
            )
        }

    def slots(self, dim):
        return [("accumulator", tf.float32, dim)]

    def _rest(self):
        return [self.epsilon]

    def get_config(self):
        return super().get_config() | {
            "initial_accumulator_value": self.initial_accumulator_value,
            "epsilon": self.epsilon,
        }


@keras.utils.register_keras_serializable(package="tf_ext")
class SparseRowWiseAdagrad(SparseAdagrad):
    """Adagrad with one accumulator a row: the mean of the squared gradient.

    It needs `4 * (dim - 1)` bytes a row less than Adagrad. The rule is that
    of TorchRec and FBGEMM ("rowwise adagrad"), with Keras's epsilon.

    Args:
      learning_rate: see `SparseOptimizer`.
      initial_accumulator_value: float >= 0, where accumulators start.
      epsilon: float >= 0, added under the square root.
      weight_decay: see `SparseOptimizer`.

    Example:
    >>> import tf_ext
    >>> tf_ext.optimizers.SparseRowWiseAdagrad(0.05).slots(dim=4)
    [('accumulator', tf.float32, 1)]
    """

    _rule = "row_wise_adagrad"

    def slots(self, dim):
        return [("accumulator", tf.float32, 1)]


@keras.utils.register_keras_serializable(package="tf_ext")
class SparseAdam(SparseOptimizer):
    """Lazy Adam: `keras.optimizers.Adam` (Kingma and Ba, 2014).

    Args:
      learning_rate: see `SparseOptimizer`.
      beta_1: float in [0, 1), decay of the first moment.
      beta_2: float in [0, 1), decay of the second moment.
      epsilon: float >= 0, added to the square root.
      bias_correction: "row" counts the updates of each row, so that rare
        signs are corrected as a dense variable would be; "global" uses the
        model optimizer's iterations, as Keras does.
      weight_decay: see `SparseOptimizer`.

    Example:
    >>> import tf_ext
    >>> tf_ext.optimizers.SparseAdam().slots(dim=4)
    [('m', tf.float32, 4), ('v', tf.float32, 4), ('step', tf.int32, 1)]
    """

    _rule = "adam"

    def __init__(
        self,
        learning_rate=None,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-7,
        bias_correction="row",
        weight_decay=None,
    ):
        super().__init__(learning_rate, weight_decay)
        self.beta_1 = self._check("beta_1", beta_1, below=1.0)
        self.beta_2 = self._check("beta_2", beta_2, below=1.0)
        self.epsilon = self._check("epsilon", epsilon)
        if bias_correction not in ("row", "global"):
            raise ValueError(
                "Argument `bias_correction` of SparseAdam must be 'row' or "
                f"'global'. Received: bias_correction={bias_correction!r}"
            )
        self.bias_correction = bias_correction

    def table_config(self):
        return super().table_config() | {
            "optimizer.bias_correction": self.bias_correction
        }

    def slots(self, dim):
        fields = [("m", tf.float32, dim), ("v", tf.float32, dim)]
        if self.bias_correction == "row":
            fields.append(("step", tf.int32, 1))
        return fields

    def _rest(self):
        return [self.beta_1, self.beta_2, self.epsilon]

    def get_config(self):
        return super().get_config() | {
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "bias_correction": self.bias_correction,
        }


@keras.utils.register_keras_serializable(package="tf_ext")
class SparseFtrl(SparseOptimizer):
    """FTRL-Proximal: `keras.optimizers.Ftrl` (McMahan et al., 2013).

    Args:
      learning_rate: see `SparseOptimizer`; greater than 0 (it divides).
      learning_rate_power: float <= 0; -0.5 is the paper's square root.
      initial_accumulator_value: float >= 0, where accumulators start.
      l1_regularization_strength: float >= 0; above 0 gives exact zeros.
      l2_regularization_strength: float >= 0.
      l2_shrinkage_regularization_strength: float >= 0, a penalty on the
        magnitude of pushed rows' weights.
      beta: float >= 0, the paper's beta.
      weight_decay: see `SparseOptimizer`.

    Example:
    >>> import tf_ext
    >>> tf_ext.optimizers.SparseFtrl(0.05).slots(dim=1)
    [('accumulator', tf.float32, 1), ('linear', tf.float32, 1)]
    """

    _rule = "ftrl"
    _positive_learning_rate = True
    _STRENGTHS = (
        "l1_regularization_strength",
        "l2_regularization_strength",
        "l2_shrinkage_regularization_strength",
        "beta",
    )

    def __init__(
        self,
        learning_rate=None,
        learning_rate_power=-0.5,
        initial_accumulator_value=0.1,
        l1_regularization_strength=0.0,
        l2_regularization_strength=0.0,
        l2_shrinkage_regularization_strength=0.0,
        beta=0.0,
        weight_decay=None,
    ):
        super().__init__(learning_rate, weight_decay)
        if not (
            isinstance(learning_rate_power, (int, float))
            and -math.inf < learning_rate_power <= 0
        ):
            raise ValueError(
                "Argument `learning_rate_power` of SparseFtrl must be a finite "
                "number <= 0. Received: "
                f"learning_rate_power={learning_rate_power!r}"
            )
        self.learning_rate_power = float(learning_rate_power)
        self.initial_accumulator_value = self._check(
            "initial_accumulator_value", initial_accumulator_value
        )
        strengths = (
            l1_regularization_strength,
            l2_regularization_strength,
            l2_shrinkage_regularization_strength,
            beta,
        )
        for name, value in zip(self._STRENGTHS, strengths, strict=True):
            setattr(self, name, self._check(name, value))

    def table_config(self):
        return super().table_config() | {
            "optimizer.initial_accumulator_value": repr(
                self.initial_accumulator_value
            )
        }

    def slots(self, dim):
        return [("accumulator", tf.float32, dim), ("linear", tf.float32, dim)]

    def _rest(self):
        return [self.learning_rate_power] + [
            getattr(self, name) for name in self._STRENGTHS
        ]

    def get_config(self):
        return (
            super().get_config()
            | {
                "learning_rate_power": self.learning_rate_power,
                "initial_accumulator_value": self.initial_accumulator_value,
            }
            | {name: getattr(self, name) for name in self._STRENGTHS}
        )


@keras.utils.register_keras_serializable(package="tf_ext")
class SparseRMSprop(SparseOptimizer):
    """RMSprop: `keras.optimizers.RMSprop` (Tieleman and Hinton, 2012).

    Args:
      learning_rate: see `SparseOptimizer`.
      rho: float in [0, 1), decay of the mean of squared gradients.
      momentum: float in [0, 1). Above 0 each row keeps a momentum slot.
      epsilon: float >= 0, added under the square root.
      centered: bool, whether the mean gradient is subtracted, which keeps
        one more slot.
      weight_decay: see `SparseOptimizer`.

    Example:
    >>> import tf_ext
    >>> tf_ext.optimizers.SparseRMSprop(momentum=0.9).slots(dim=4)
    [('velocity', tf.float32, 4), ('momentum', tf.float32, 4)]
    """

    _rule = "rmsprop"

    def __init__(
        self,
        learning_rate=None,
        rho=0.9,
        momentum=0.0,
        epsilon=1e-7,
        centered=False,
        weight_decay=None,
    ):
        super().__init__(learning_rate, weight_decay)
        self.rho = self._check("rho", rho, below=1.0)
        self.momentum = self._check("momentum", momentum, below=1.0)
        self.epsilon = self._check("epsilon", epsilon)
        self.centered = bool(centered)

    def table_config(self):
        return super().table_config() | {
            "optimizer.centered": str(int(self.centered)),
            "optimizer.momentum_field": str(int(self.momentum > 0)),
        }

    def slots(self, dim):
        fields = [("velocity", tf.float32, dim)]
        if self.momentum:
            fields.append(("momentum", tf.float32, dim))
        if self.centered:
            fields.append(("average_gradient", tf.float32, dim))
        return fields

    def _rest(self):
        return [self.rho, self.momentum, self.epsilon]

    def get_config(self):
        return super().get_config() | {
            "rho": self.rho,
            "momentum": self.momentum,
            "epsilon": self.epsilon,
            "centered": self.centered,
        }


def _adagrad(dim):
    """Rate and initial accumulator of Adagrad and its kin, given by name.

    The gradient of a mean loss shrinks with the batch, and Keras's accumulator
    of 0.1 and epsilon of 1e-7 are far above its square: rows would hardly move.
    These are far below what a row seen often gathers in any usual batch, and
    just enough for one seen once in 8,192 not to be moved as far.

    A row of dim 1 is a term of the logit, whose gradient is not scaled down by
    layers above.
    """
    return (0.025, 1e-7) if dim == 1 else (_embedding_rate(0.7, dim), 3e-10)


def _embedding_rate(scale, dim):
    # The weights of a row move together, and the more there are, the smaller
    # the kernel of the layer above starts.
    return scale / math.sqrt(dim)


# From benchmarks/default_rates.py: see docs/learning_rates.md.
_BY_NAME = {
    "sgd": lambda dim: SparseSGD(10.0),
    "adagrad": lambda dim: SparseAdagrad(*_adagrad(dim), epsilon=0.0),
    "row_wise_adagrad": lambda dim: SparseRowWiseAdagrad(
        *_adagrad(dim), epsilon=0.0
    ),
    "adam": lambda dim: SparseAdam(
        0.01 if dim == 1 else _embedding_rate(0.4, dim)
    ),
    "ftrl": lambda dim: SparseFtrl(
        _adagrad(dim)[0], initial_accumulator_value=_adagrad(dim)[1]
    ),
    "rmsprop": lambda dim: SparseRMSprop(
        0.005 if dim == 1 else _embedding_rate(0.2, dim), epsilon=1e-15
    ),
}


def get(identifier, dim):
    """The rule of a name, an instance or a Keras configuration.

    A name stands for hyperparameters that learn as they are in batches of 256
    to 8,192, and depend on `dim` alone. For dims above 1, `r` being the root of
    `dim`:

    - "sgd": `SparseSGD(10.0)`
    - "adagrad": `SparseAdagrad(0.7 / r, 3e-10, epsilon=0.0)`
    - "row_wise_adagrad": `SparseRowWiseAdagrad` with the same
    - "adam": `SparseAdam(0.4 / r)`
    - "ftrl": `SparseFtrl(0.7 / r, initial_accumulator_value=3e-10)`
    - "rmsprop": `SparseRMSprop(0.2 / r, epsilon=1e-15)`

    For dim 1, a term of a linear model, rates are 0.025 in place of 0.7 / r
    with accumulators from 1e-7, and 0.01 and 0.005 of Adam and RMSprop.

    An object that is given no learning rate follows the model optimizer's, and
    has Keras's defaults for all else: `SparseAdagrad()` is not "adagrad".

    Args:
      identifier: a `SparseOptimizer`; one of the names above; or what
        `keras.saving` made of one, which holds all hyperparameters.
      dim: int, weights in a row.

    Returns:
      A `SparseOptimizer`.

    Raises:
      ValueError: for anything else; the message lists the names.

    Example:
    >>> import tf_ext
    >>> tf_ext.tables.rules.get("adagrad", dim=4).learning_rate
    0.35
    """
    if isinstance(identifier, SparseOptimizer):
        return identifier
    if isinstance(identifier, str) and identifier in _BY_NAME:
        return _BY_NAME[identifier](dim)
    if isinstance(identifier, dict):
        return keras.utils.deserialize_keras_object(identifier)
    raise ValueError(
        "Argument `optimizer` of a table must be a "
        f"tf_ext.optimizers.SparseOptimizer or one of {sorted(_BY_NAME)}. "
        f"Received: {identifier!r}"
    )
