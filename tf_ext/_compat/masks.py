# SPDX-License-Identifier: Apache-2.0
"""The masks that Keras keeps with tensors."""

from tf_ext._keras import IS_KERAS_3, keras


def take_masks_of_outputs(layer):
    """Makes Keras leave the masks alone that a layer's `call` sets itself.

    Seen in: Keras 3.15 and tf_keras 2.18 to 2.21, which would otherwise call
    `compute_mask` after `call`.
    """
    layer.supports_masking = False
    layer._compute_output_and_mask_jointly = True  # tf_keras


def set_keras_mask(tensor, mask):
    """Sets the mask that Keras's layers find with a tensor.

    Seen in: Keras 3.15 and tf_keras 2.18 to 2.21, which read this attribute.

    Args:
      tensor: tensor `[batch_size, length, ...]`.
      mask: bool `[batch_size, length]`.
    """
    tensor._keras_mask = mask
    # Keras 3's MultiHeadAttention takes the mask off its inputs.
    tensor._tf_ext_mask = mask


if IS_KERAS_3:

    @keras.utils.register_keras_serializable(package="tf_ext")
    class KerasMask(keras.Operation):
        """The mask of a tensor, as a node of a functional model.

        Keras 3 records the mask of a symbolic tensor as an input of the layers
        that take it, so something has to make it when the model is called.

        Seen in: Keras 3.15.
        """

        def call(self, inputs):
            """The mask that `set_keras_mask` has set."""
            return inputs._tf_ext_mask

        def compute_output_spec(self, inputs):
            """The spec of the mask, bool `[batch_size, length]`."""
            return keras.KerasTensor(inputs.shape[:2], "bool")


def set_symbolic_mask(symbolic):
    """Gives a layer's symbolic output a mask; in functional models of Keras 3.

    Seen in: Keras 3.15. Without it, layers of a functional model get no mask
    when the model is made, and those that cannot do without fail.

    Args:
      symbolic: KerasTensor `[batch_size, length, ...]`, whose tensor
        `set_keras_mask` will give a mask.
    """
    symbolic._keras_mask = KerasMask()(symbolic)
