# SPDX-License-Identifier: Apache-2.0
"""Keras models become models with tables on parameter servers, and back."""

import pytest
import tensorflow as tf
from cases import convert_cases
from clusters import parameter_server_util as util
from clusters.case_workers import Worker, alone

import tf_ext

pytestmark = [
    pytest.mark.process("shared_cluster"),
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow,
]

setUpModule = util.shared


class ServersTest(tf.test.TestCase):
    def test_trains_on_and_returns(self):
        before = convert_cases.keras_model()
        with util.shared().strategy.scope():
            done = tf_ext.convert.model_from_keras(before)
        tensors = convert_cases.tensors
        features, labels = convert_cases.data()
        for table in done.model.tables:
            self.assertLen(table.rows.shards, 2)
        self.assertAllClose(
            done.model.predict(features, batch_size=16, verbose=0),
            before.predict(tensors(features), verbose=0),
            1e-6,
            1e-6,
        )
        done.model.fit(
            features, labels, batch_size=16, max_inflight_steps=1, verbose=0
        )
        expected = done.model.predict(features, batch_size=16, verbose=0)
        vocabularies = {
            "token": convert_cases.TOKENS,
            "ids": list(range(15)),
        }
        back = tf_ext.convert.model_to_keras(done.model, vocabularies)
        self.assertEqual(set(back.left.values()), {0})
        found = back.model(tensors(features))
        self.assertAllClose(found, expected, 1e-6, 1e-6)

    def test_rows_of_files_are_on_all_of_them(self):
        expected = convert_cases.taken_from_files(alone())
        found = convert_cases.taken_from_files(
            Worker(util.shared().strategy, 0, 1), max_inflight_steps=1
        )
        convert_cases.assert_as_alone(self, found, expected)


if __name__ == "__main__":
    tf.test.main()
