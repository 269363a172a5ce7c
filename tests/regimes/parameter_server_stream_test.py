# SPDX-License-Identifier: Apache-2.0
"""Streams that the chief of parameter servers reads."""

import pathlib
import tempfile

import pytest
from absl.testing import absltest
from cases import stream_cases
from clusters import parameter_server_util as util
from killed_training import Kill, KilledError
from models import id_counting_models as models

import tf_ext

pytestmark = [
    pytest.mark.process("shared_cluster"),
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests("*"),
]

setUpModule = util.shared


class StreamTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.folder = pathlib.Path(folder) / "data"
        self.folder.mkdir()
        self.points = pathlib.Path(folder) / "points"

    def _train(self, *callbacks, **options):
        with util.shared().strategy.scope():
            model, table = models.counting_model()
        data = tf_ext.data.stream(
            tf_ext.data.DirectorySource(self.folder),
            models.SCHEMA,
            batch_size=16,
            **{"follow": False, **options},
        )
        points = tf_ext.callbacks.TableSnapshot(self.points, steps=2)
        model.fit(
            data,
            verbose=0,
            callbacks=[points, *callbacks],
        )
        return models.counts(table)

    def test_each_record_once(self):
        stream_cases.write(self.folder)
        with self.assertRaises(KilledError):
            self._train(Kill(5))
        found = self._train()
        wanted = dict.fromkeys(range(stream_cases.RECORDS), 1.0)
        self.assertEqual(found, wanted)


if __name__ == "__main__":
    absltest.main()
