# SPDX-License-Identifier: Apache-2.0
"""The installed package: metadata, lazy import, version guard."""

import collections
import importlib.metadata
import inspect
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import unittest

import pytest
from absl.testing import absltest, parameterized
from oracles import snapshot_files_util

import tf_ext

pytestmark = pytest.mark.slow_tests(
    "ImportChangesNothingTest::test_tensorflow_and_keras_stay_as_they_are",
    "LazyImportTest::test_a_*",
    "NotCompiledTest::test_import_says_what_to_do_after_tensorflow",
    "RegistrationTest::test_*",
    "VersionGuardTest::test_other_minor_is_refused_before_the_library_is_loaded",
)

_PACKAGE = pathlib.Path(tf_ext.__file__).parent

_BLOCK_TENSORFLOW = """
    import sys

    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in ("tensorflow", "keras", "tf_keras"):
                raise ModuleNotFoundError(f"No module named {name!r}")

    sys.meta_path.insert(0, Blocker())
"""


def _run(*programs):
    """Runs Python in a new process; its output, or a failure that shows it."""
    done = subprocess.run(
        [sys.executable, "-c", "".join(map(textwrap.dedent, programs))],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode != 0:
        raise AssertionError(f"{done.stdout}\n{done.stderr}")
    return done.stdout


def _distribution():
    """What pip has written, if pip has installed this copy."""
    try:
        distribution = importlib.metadata.distribution("tf-ext")
    except importlib.metadata.PackageNotFoundError:
        raise unittest.SkipTest("tf-ext is not installed with pip") from None
    init = pathlib.Path(distribution.locate_file("tf_ext/__init__.py"))
    if not init.exists() or not init.samefile(_PACKAGE / "__init__.py"):
        raise unittest.SkipTest(
            f"another copy than pip's is tested: {_PACKAGE}"
        )
    return distribution


def _built_for():
    """Major and minor version of the TensorFlow of the build."""
    from tf_ext import _build_info

    return [int(n) for n in _build_info.TENSORFLOW_VERSION.split(".")[:2]]


class MetadataTest(absltest.TestCase):
    def test_wheel_is_of_one_python_and_platform(self):
        wheel = _distribution().read_text("WHEEL")
        version = f"cp{sys.version_info.major}{sys.version_info.minor}"
        system, machine = sysconfig.get_platform().split("-")
        # Of a release, what auditwheel has found.
        self.assertRegex(
            wheel,
            rf"Tag: {version}-{version}-({system}|manylinux_\d+_\d+)_"
            rf"{machine}\n",
        )
        self.assertIn("Root-Is-Purelib: false\n", wheel)

    def test_version_is_the_packages_with_the_tensorflow_it_was_built_for(
        self,
    ):
        major, minor = _built_for()
        self.assertEqual(
            _distribution().version, f"{tf_ext.__version__}+tf{major}.{minor}"
        )

    def test_license(self):
        distribution = _distribution()
        self.assertEqual(
            distribution.metadata["License-Expression"], "Apache-2.0"
        )
        self.assertEqual(
            distribution.metadata.get_all("License-File"), ["LICENSE"]
        )
        text = distribution.read_text("licenses/LICENSE")
        self.assertIn("Apache License\n", text)
        self.assertIn("Version 2.0, January 2004\n", text)
        self.assertIn("END OF TERMS AND CONDITIONS\n", text)

    def test_requires_the_tensorflow_minor_it_was_built_for(self):
        major, minor = _built_for()
        requirement = f"tensorflow<{major}.{minor + 1},>={major}.{minor}"
        self.assertIn(requirement, _distribution().requires)

    def test_wheel_holds_the_package_alone(self):
        folders = {
            file.parts[0]
            for file in _distribution().files
            if file.parts[0] not in ("..", "__pycache__")
        }
        self.assertSetEqual(
            {f for f in folders if not f.endswith(".dist-info")}, {"tf_ext"}
        )

    def test_types_are_shipped(self):
        files = {str(file) for file in _distribution().files}
        self.assertIn("tf_ext/py.typed", files)

    def test_build_info_is_there(self):
        import tensorflow as tf

        major, minor = _built_for()
        self.assertStartsWith(tf.__version__, f"{major}.{minor}.")


class LazyImportTest(absltest.TestCase):
    def test_import_loads_neither_tensorflow_nor_keras_nor_numpy(self):
        heavy = _run("""
            import sys
            import tf_ext
            heavy = {"tensorflow", "keras", "tf_keras", "numpy"}
            print(sorted(heavy & set(sys.modules)))
        """)
        self.assertEqual(heavy.strip(), "[]")

    def test_hashing_works_without_tensorflow(self):
        _run(
            _BLOCK_TENSORFLOW,
            """
            import tf_ext
            import tf_ext._core
            tf_ext.hashing
            assert set(tf_ext.hashing.__all__)
            for name in tf_ext.hashing.__all__:
                getattr(tf_ext.hashing, name)
            """,
        )

    def test_snapshots_work_without_tensorflow(self):
        with tempfile.TemporaryDirectory() as directory:
            manifest = snapshot_files_util.write(
                f"{directory}/0", [{"rows": [(7, 1.5), (8, 2.5)]}]
            )
            self.assertEqual(manifest.rows, 2)
            printed = _run(
                _BLOCK_TENSORFLOW,
                f"path = {directory!r}\n",
                """
                import tf_ext
                from tf_ext.snapshot.cli import main

                for name in tf_ext.snapshot.__all__:
                    getattr(tf_ext.snapshot, name)
                tf_ext.snapshot.compact(f"{path}/0", f"{path}/all")
                tf_ext.snapshot.reshard(f"{path}/0", f"{path}/2", 2)
                tf_ext.snapshot.transform(
                    f"{path}/0", f"{path}/wide", dim=3, optimizer="adagrad"
                )
                for name in ("0", "all", "2", "wide"):
                    snapshot = tf_ext.snapshot.open_snapshot(f"{path}/{name}")
                    rows = {}
                    for signs, fields in snapshot.chunks():
                        rows.update(zip(signs, fields["weights"][:, 0]))
                    assert rows == {7: 1.5, 8: 2.5}, rows
                    assert main(["verify", f"{path}/{name}"]) == 0
                """,
            )
        self.assertEqual(printed.count("is whole"), 4)

    def test_other_names_say_that_tensorflow_is_missing(self):
        _run(
            _BLOCK_TENSORFLOW,
            """
            import tf_ext
            try:
                tf_ext.SparseTable
            except ModuleNotFoundError as error:
                assert "tensorflow" in str(error), error
            else:
                raise AssertionError("loaded without TensorFlow")
            """,
        )

    def test_a_saved_model_is_loaded_with_tf_ext_imported_first(self):
        self._load_after("import tf_ext; from tensorflow import keras")

    @pytest.mark.slow
    def test_a_saved_model_is_loaded_in_any_order_of_imports(self):
        self._load_after(
            "import tf_ext, keras",
            "from tf_ext.layers import Retrieval; import keras",
            "import tf_ext; tf_ext.SparseTable; import keras",
        )

    def _load_after(self, *orders):
        with tempfile.TemporaryDirectory() as directory:
            path = f"path = {directory!r} + '/model.keras'\n"
            _run(
                path,
                """
                import tensorflow as tf
                import tf_ext

                item = tf.keras.Input((), dtype="int64", name="item")
                column = tf_ext.feature_column.category_column("item")
                table = tf_ext.SparseTable("items", 2)
                layer = tf_ext.layers.EmbeddingFeatures([column], table)
                tf_ext.Model({"item": item}, layer({"item": item})).save(path)
                """,
            )
            for imports in orders:
                with self.subTest(imports):
                    printed = _run(
                        f"{imports}\n{path}",
                        """
                        model = keras.models.load_model(path)
                        import inspect
                        import sys
                        import tensorflow

                        assert inspect.getsource(tensorflow)
                        print(type(model).__module__)
                        names = [type(f).__module__ for f in sys.meta_path]
                        print("tf_ext._when_imported" in names)
                        """,
                    )
                    self.assertEqual(
                        printed.split(), ["tf_ext.models.model", "False"]
                    )

    def test_a_failure_to_register_is_not_that_of_the_import(self):
        _run("""
            import tf_ext

            tf_ext._import_all = lambda: 1 / 0
            import tensorflow as tf

            assert tf.constant(1) + 1 == 2
            try:
                tf_ext.ops.library()
            except ZeroDivisionError:
                pass
            else:
                raise AssertionError("registered")
            """)

    def test_every_public_name_is_there(self):
        for name in tf_ext.__all__:
            self.assertIsNotNone(getattr(tf_ext, name), name)
        self.assertCountEqual(tf_ext.__all__, dir(tf_ext))
        for name in tf_ext._SUBPACKAGES:
            module = getattr(tf_ext, name)
            self.assertCountEqual(module.__all__, dir(module), name)
            for public in dir(module):
                self.assertTrue(hasattr(module, public), f"{name}.{public}")

    def test_every_public_name_has_one_path(self):
        paths = collections.defaultdict(list)
        for name in tf_ext.__all__:
            value = getattr(tf_ext, name)
            if not inspect.ismodule(value):
                paths[id(value)].append(f"tf_ext.{name}")
                continue
            for member in value.__all__:
                found = getattr(value, member)
                if callable(found):
                    paths[id(found)].append(f"tf_ext.{name}.{member}")
        self.assertGreater(len(paths), 50)
        self.assertEmpty([each for each in paths.values() if len(each) > 1])

    def test_private_ops_are_not_among_the_public_ones(self):
        for name in tf_ext.ops.__all__:
            self.assertNotRegex(name, "exchange|owner|release|save|restore")

    def test_unknown_name_lists_the_known_ones(self):
        with self.assertRaisesRegex(
            AttributeError, "no attribute 'Tables'.*SparseTable"
        ):
            _ = tf_ext.Tables


class NotCompiledTest(parameterized.TestCase):
    """A copy of the sources alone, as a clone has it."""

    @parameterized.named_parameters(
        ("import", "-c", "import tf_ext"),
        ("after_tensorflow", "-c", "import tensorflow, tf_ext"),
        ("submodule", "-c", "import tf_ext.hashing"),
        ("command", "-m", "tf_ext.snapshot"),
    )
    def test_import_says_what_to_do(self, *arguments):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        package = shutil.copytree(
            _PACKAGE,
            folder / "tf_ext",
            ignore=shutil.ignore_patterns("*.so", "_build_info.py", "__pyc*"),
        )
        environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3")
        environment.pop("PYTHONSAFEPATH", None)
        environment.pop("PYTHONPATH", None)
        done = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=folder,
            env=environment,
            check=False,
        )
        self.assertEqual(done.returncode, 1)
        version = ".".join(map(str, sys.version_info[:2]))
        self.assertEqual(
            done.stderr.splitlines()[-1],
            f"ImportError: tf_ext in {package} is not compiled for Python "
            f"{version}: tf_ext._core is missing. If tf_ext is installed, run "
            "Python in a folder other than its source folder; else run `pip "
            "install .` in the source folder, or `python setup.py build_ext "
            "--inplace` to use it there.",
        )
        self.assertNotIn("circular", done.stderr)
        self.assertEqual(done.stderr.count("Traceback"), 1, done.stderr)


class RegistrationTest(absltest.TestCase):
    def test_import_after_tensorflow_registers_the_ops(self):
        _run("""
            import tensorflow as tf
            import tf_ext

            graph = tf.compat.v1.GraphDef()
            graph.node.add(name="handle", op="TfExt>SparseTableServingHandle")
            with tf.Graph().as_default():
                try:
                    tf.import_graph_def(graph)
                except ValueError as error:
                    # The op is known; its attributes are missing.
                    assert "config" in str(error), error
                else:
                    raise AssertionError("a node without attributes")
        """)

    def test_library_registers_all_in_any_order_of_imports(self):
        _run("""
            import tf_ext
            import tensorflow as tf

            tf_ext.ops.library()
            for name in ("Model", "EmbeddingFeatures", "SparseTable", "CTR"):
                found = tf.keras.utils.get_registered_object(f"tf_ext>{name}")
                assert found is not None, name
        """)

    def test_import_leaves_devices_and_threads_open(self):
        _run("""
            import tensorflow as tf
            import tf_ext

            tf.config.threading.set_inter_op_parallelism_threads(3)
            [cpu, *_] = tf.config.list_physical_devices("CPU")
            tf.config.set_logical_device_configuration(
                cpu, [tf.config.LogicalDeviceConfiguration()] * 2
            )
            assert len(tf.config.list_logical_devices("CPU")) == 2
        """)


class VersionGuardTest(absltest.TestCase):
    def _guarded(self, built, running):
        return _run(f"""
            import sys
            import types

            info = types.ModuleType("tf_ext._build_info")
            info.TENSORFLOW_VERSION = {built!r}
            sys.modules["tf_ext._build_info"] = info

            import tensorflow as tf

            tf.__version__ = {running!r}

            def load(path):
                print("loaded")
                raise SystemExit

            tf.load_op_library = load
            try:
                from tf_ext.ops import _library
                _library.library()
            except ImportError as error:
                print(error)
        """)

    def test_other_minor_is_refused_before_the_library_is_loaded(self):
        message = self._guarded(built="2.21.0", running="2.20.1")
        self.assertNotIn("loaded", message)
        self.assertIn("2.21", message)
        self.assertIn("2.20.1", message)

    @pytest.mark.slow
    def test_other_major_is_refused(self):
        message = self._guarded(built="2.21.0", running="3.21.0")
        self.assertNotIn("loaded", message)
        self.assertIn("3.21.0", message)

    @pytest.mark.slow
    def test_other_patch_is_loaded(self):
        self.assertEqual(
            self._guarded(built="2.21.0", running="2.21.3").strip(), "loaded"
        )


class ImportChangesNothingTest(absltest.TestCase):
    def test_tensorflow_and_keras_stay_as_they_are(self):
        _run("""
            import inspect

            import tensorflow as tf

            keras = tf.keras

            def spaces():
                for module in (tf, keras):
                    yield module
                    # Touching a lazy module loads it: the same before and
                    # after.
                    for name in dir(module):
                        value = getattr(module, name)
                        if inspect.ismodule(value) or inspect.isclass(value):
                            yield value

            def attributes(spaces):
                return {
                    (repr(space), name): id(value)
                    for space in spaces
                    for name, value in vars(space).items()
                    if inspect.isroutine(value) or inspect.isclass(value)
                }

            observed = list(spaces())
            before = attributes(observed)
            registered = set(keras.utils.get_custom_objects())

            import tf_ext
            for name in tf_ext.__all__:
                getattr(tf_ext, name)

            after = attributes(observed)
            changed = {
                key for key, value in before.items() if after[key] != value
            }
            added = {key for key in after.keys() - before.keys()}
            assert not changed, changed
            assert not added, added
            # Serialisable classes are registered under the package's name.
            new = set(keras.utils.get_custom_objects()) - registered
            strangers = {n for n in new if not n.startswith("tf_ext>")}
            assert not strangers, strangers
            """)


if __name__ == "__main__":
    absltest.main()
