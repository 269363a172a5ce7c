# SPDX-License-Identifier: Apache-2.0
"""Exports of stock ops predict what the trained model does, anywhere."""

import json
import pathlib
import pickle
import tempfile

import numpy as np
import processes
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized
from cases import stock_export_cases as cases
from tensorflow.core.protobuf import saved_model_pb2

import tf_ext
from tf_ext.serving.signature import Signature, infer, name_outputs

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "ExportTest::test_where_tf_ext_cannot_be_imported",
    ),
]

# dtype -> how far outputs may be off, of weights below 1.5.
_ATOL = {"float32": 1e-6, "float16": 3e-3, "bfloat16": 2e-2, "int8": 3e-2}


class ExportTest(parameterized.TestCase):
    """All models are exported once, and loaded by one process each way."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.directory = pathlib.Path(
            cls.enterClassContext(
                tempfile.TemporaryDirectory(prefix="tf_ext_export_")
            )
        )
        cls.models = {
            "functional": (
                cases.trained(cases.functional(), cases.functional_batch),
                cases.functional_batch,
            ),
            "subclassed": (
                cases.trained(cases.Subclassed(), cases.subclassed_batch),
                cases.subclassed_batch,
            ),
            "sequences": (
                cases.trained(cases.Sequences(), cases.sequences_batch),
                cases.sequences_batch,
            ),
            "mixed": (
                cases.trained(cases.mixed(), cases.mixed_batch),
                cases.mixed_batch,
            ),
            "plain": (
                cases.without_tables(),
                lambda rng: tf.constant(rng.normal(size=(5, 3)), tf.float32),
            ),
        }
        cls.cases = [
            # Two versions, which are loaded side by side.
            cls._export("functional"),
            cls._export("functional", dtype="int8"),
            cls._export("subclassed"),
            cls._export("sequences"),
            # Half precision of one table costs less than of four.
            cls._export("mixed", dtype="float16"),
            cls._export("mixed", dtype="bfloat16"),
            cls._export("plain"),
        ]
        cls.cases.append(cls._saved_again(cls.cases[0]))

    @classmethod
    def _export(cls, name, **options):
        model, make = cls.models[name]
        batch = make(np.random.default_rng(7))
        expected = name_outputs(model(batch, training=False))
        path = tf_ext.serving.export(model, cls.directory / name, **options)
        signature = Signature(infer(model, None, None))
        return {
            "path": path,
            "batch": _plain(batch),
            "named": _arrays(signature.unpack(batch)),
            "expected": _arrays(expected),
            "atol": _ATOL[options.get("dtype", "float32")],
            # Without rows, and the model once: two traces of the others take
            # 740 kB.
            "most_bytes": 1_000_000 if name == "sequences" else 500_000,
        }

    @classmethod
    def _saved_again(cls, case):
        """The case of what Python loaded, and saved once more."""
        loaded = tf.saved_model.load(case["path"])
        path = str(cls.directory / "saved_again")
        tf.saved_model.save(loaded, path, signatures=loaded.signatures)
        return {**case, "path": path}

    def test_where_tf_ext_cannot_be_imported(self):
        path = self.directory / "cases"
        path.write_bytes(pickle.dumps(self.cases))
        printed = processes.run("stock_load_program.py", path)
        self.assertIn(f"{len(self.cases)} cases are served", printed)

    @pytest.mark.slow
    def test_graphs_are_small(self):
        for case in self.cases:
            size = pathlib.Path(case["path"], "saved_model.pb").stat().st_size
            self.assertLess(size, case["most_bytes"], case["path"])

    @pytest.mark.slow
    def test_in_sessions_of_the_c_interface(self):
        # The first twice: sessions of one process share no rows.
        plan, wanted = [], []
        for case in [*self.cases, self.cases[0]]:
            signature = _signature_of(case["path"])
            name = min(
                name
                for name, value in case["expected"].items()
                if value.dtype == np.float32
            )
            wanted.append((case["expected"][name], case["atol"]))
            plan.append(
                {
                    "path": case["path"],
                    "feeds": {
                        signature.inputs[key].name: _nested(value)
                        for key, value in case["named"].items()
                    },
                    "fetch": signature.outputs[name].name,
                }
            )
        plan_path = self.directory / "plan"
        plan_path.write_text(json.dumps(plan))
        results = self.directory / "results.npz"
        processes.run("cpp_session_program.py", plan_path, results, "stock")
        with np.load(results) as found:
            self.assertLen(found, len(wanted))
            for index, (expected, atol) in enumerate(wanted):
                np.testing.assert_allclose(
                    found[str(index)], expected, rtol=0, atol=atol
                )


def _signature_of(path):
    saved = saved_model_pb2.SavedModel.FromString(
        pathlib.Path(path, "saved_model.pb").read_bytes()
    )
    return saved.meta_graphs[0].signature_def["serving_default"]


def _arrays(tensors):
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _plain(batch):
    """What can be pickled without TensorFlow."""
    if isinstance(batch, dict):
        return {key: _plain(value) for key, value in batch.items()}
    if isinstance(batch, tf.RaggedTensor):
        return {
            "values": batch.values.numpy(),
            "row_splits": batch.row_splits.numpy(),
        }
    if isinstance(batch, tf.SparseTensor):
        return {
            name: getattr(batch, name).numpy()
            for name in ("indices", "values", "dense_shape")
        }
    return batch.numpy()


def _nested(array):
    if array.dtype == object:
        return "str", np.vectorize(bytes.decode)(array).tolist()
    return str(array.dtype), array.tolist()


if __name__ == "__main__":
    absltest.main()
