# SPDX-License-Identifier: Apache-2.0
"""PCGrad on dense vectors."""

import numpy as np


def projected_sum(gradients, order=None):
    """The sum of projected gradients `[tasks, n]`, as the paper has it."""
    gradients = np.asarray(gradients, np.float64)
    total = np.zeros(gradients.shape[1])
    for task, gradient in enumerate(gradients):
        projected = gradient.copy()
        others = [j for j in range(len(gradients)) if j != task]
        for other in others if order is None else order(task, others):
            product = projected @ gradients[other]
            if product < 0:
                projected -= (
                    product
                    / (gradients[other] @ gradients[other])
                    * gradients[other]
                )
        total += projected
    return total
