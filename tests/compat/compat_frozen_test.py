# SPDX-License-Identifier: Apache-2.0
"""Graphs of functions whose variables have become inputs."""

import tensorflow as tf
from absl.testing import absltest

from tf_ext._compat.frozen import with_variables_as_inputs


class FrozenTest(tf.test.TestCase):
    def test_variables_are_inputs_in_loops_too(self):
        by, start, unused = (tf.Variable(n) for n in (2.0, 3.0, 4.0))

        @tf.function
        def power(**given):
            tf.identity(unused)
            found = start * given["x"]
            for _ in tf.range(given["n"]):
                found *= by
            return {"found": found, "start": start + 0.0}

        concrete = power.get_concrete_function(
            x=tf.TensorSpec([None]), n=tf.TensorSpec([], tf.int32)
        )
        graph, inputs, outputs, variables = with_variables_as_inputs(concrete)
        self.assertLen(inputs, 2)
        self.assertLen(variables, len(concrete.variables))
        names = [n for n in variables if n]

        def imported(*tensors):
            given = dict(zip([*inputs, *names], tensors, strict=True))
            return tf.import_graph_def(graph, given, outputs)

        function = tf.compat.v1.wrap_function(
            imported,
            [
                *concrete.structured_input_signature[1].values(),
                *(tf.TensorSpec([]) for _ in names),
            ],
        )
        values = [
            tf.constant({id(by): 5.0, id(start): 7.0}.get(id(v), 0.0))
            for v, name in zip(concrete.variables, variables)
            if name
        ]
        batch = {"x": tf.constant([1.0, 2.0]), "n": tf.constant(2)}
        order = concrete.structured_input_signature[1]
        found = function(*(batch[name] for name in order), *values)
        self.assertAllEqual(found[0], [175.0, 350.0])
        self.assertAllEqual(found[1], 7.0)


if __name__ == "__main__":
    absltest.main()
