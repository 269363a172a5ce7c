# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's C++ loader of SavedModels, through its C API.

TensorFlow Serving, Java and Go load models in the same way: into a session that
runs nodes of the graph, without Python. The module does not import TensorFlow,
so that only the libraries are loaded.

    cpp_session_program.py PLAN RESULTS [stock]

makes the calls listed in the JSON file PLAN (see `main`) and writes the outputs
to the `.npz` file RESULTS.
"""

import ctypes
import importlib.util
import json
import pathlib
import sys

import numpy as np

# TF_DataType, and what NumPy calls the same.
_STRING = 7
_TYPES = {
    1: np.dtype("float32"),
    2: np.dtype("float64"),
    3: np.dtype("int32"),
    9: np.dtype("int64"),
    10: np.dtype("bool"),
}
_NUMBERS = {dtype: number for number, dtype in _TYPES.items()}
_STRING_BYTES = 24  # sizeof(TF_TString)


class _Output(ctypes.Structure):
    _fields_ = (("operation", ctypes.c_void_p), ("index", ctypes.c_int))


def _folder_of(package):
    [folder] = importlib.util.find_spec(package).submodule_search_locations
    return pathlib.Path(folder)


def _load_tensorflow():
    folder = _folder_of("tensorflow")
    ctypes.CDLL(
        str(folder / "libtensorflow_framework.so.2"), ctypes.RTLD_GLOBAL
    )
    library = ctypes.CDLL(
        str(folder / "libtensorflow_cc.so.2"), ctypes.RTLD_GLOBAL
    )
    for name in (
        "TF_NewStatus",
        "TF_Message",
        "TF_LoadLibrary",
        "TF_NewGraph",
        "TF_NewSessionOptions",
        "TF_LoadSessionFromSavedModel",
        "TF_GraphOperationByName",
        "TF_AllocateTensor",
        "TF_TensorData",
    ):
        getattr(library, name).restype = ctypes.c_void_p
    library.TF_Message.restype = ctypes.c_char_p
    library.TF_StringGetDataPointer.restype = ctypes.c_void_p
    library.TF_StringGetSize.restype = ctypes.c_size_t
    library.TF_Dim.restype = ctypes.c_int64
    return library


_TF = _load_tensorflow()


class _Status:
    def __init__(self):
        self.pointer = ctypes.c_void_p(_TF.TF_NewStatus())

    def check(self):
        if _TF.TF_GetCode(self.pointer) != 0:
            raise RuntimeError(_TF.TF_Message(self.pointer).decode())
        _TF.TF_DeleteStatus(self.pointer)


def load_ops():
    """Registers the ops of tf_ext, as `tf_ext.ops.library` does."""
    status = _Status()
    path = _folder_of("tf_ext") / "_tf_ext_ops.so"
    _TF.TF_LoadLibrary(str(path).encode(), status.pointer)
    status.check()


def _tensor_of(array):
    is_text = array.dtype.kind in "OSU"
    number = _STRING if is_text else _NUMBERS[array.dtype]
    size = _STRING_BYTES * array.size if is_text else array.nbytes
    dims = (ctypes.c_int64 * array.ndim)(*array.shape)
    tensor = ctypes.c_void_p(
        _TF.TF_AllocateTensor(number, dims, array.ndim, ctypes.c_size_t(size))
    )
    data = _TF.TF_TensorData(tensor)
    if not is_text:
        ctypes.memmove(data, np.ascontiguousarray(array).ctypes.data, size)
        return tensor
    for index, text in enumerate(array.ravel()):
        text = text.encode() if isinstance(text, str) else bytes(text)
        place = ctypes.c_void_p(data + _STRING_BYTES * index)
        _TF.TF_StringInit(place)
        _TF.TF_StringCopy(place, text, ctypes.c_size_t(len(text)))
    return tensor


def _array_of(tensor):
    shape = [
        _TF.TF_Dim(tensor, index) for index in range(_TF.TF_NumDims(tensor))
    ]
    array = np.empty(shape, _TYPES[_TF.TF_TensorType(tensor)])
    ctypes.memmove(array.ctypes.data, _TF.TF_TensorData(tensor), array.nbytes)
    return array


class Session:
    """A SavedModel in a session of its own.

    Args:
      path: string, the SavedModel's directory.

    Raises:
      RuntimeError: TensorFlow's message.
    """

    def __init__(self, path):
        self._graph = ctypes.c_void_p(_TF.TF_NewGraph())
        options = ctypes.c_void_p(_TF.TF_NewSessionOptions())
        tags = (ctypes.c_char_p * 1)(b"serve")
        status = _Status()
        self._session = ctypes.c_void_p(
            _TF.TF_LoadSessionFromSavedModel(
                options, None, str(path).encode(), tags, 1, self._graph, None,
                status.pointer,
            )
        )  # fmt: skip
        _TF.TF_DeleteSessionOptions(options)
        status.check()

    def run(self, feeds, fetch):
        """Runs the graph.

        Args:
          feeds: dict of arrays, keyed by names of tensors ("node:0").
          fetch: string, the name of a tensor.

        Returns:
          A NumPy array.
        """
        names = list(feeds)
        inputs = (_Output * len(names))(*map(self._output, names))
        values = (ctypes.c_void_p * len(names))(
            *(_tensor_of(np.asarray(feeds[name])).value for name in names)
        )
        outputs = (_Output * 1)(self._output(fetch))
        fetched = (ctypes.c_void_p * 1)()
        status = _Status()
        _TF.TF_SessionRun(
            self._session, None, inputs, values, len(names), outputs, fetched,
            1, None, 0, None, status.pointer,
        )  # fmt: skip
        for value in values:
            _TF.TF_DeleteTensor(ctypes.c_void_p(value))
        status.check()
        tensor = ctypes.c_void_p(fetched[0])
        array = _array_of(tensor)
        _TF.TF_DeleteTensor(tensor)
        return array

    def close(self):
        """Ends the session; frees what it holds."""
        for function in (_TF.TF_CloseSession, _TF.TF_DeleteSession):
            status = _Status()
            function(self._session, status.pointer)
            status.check()
        _TF.TF_DeleteGraph(self._graph)

    def _output(self, name):
        node, _, index = name.partition(":")
        operation = _TF.TF_GraphOperationByName(self._graph, node.encode())
        if operation is None:
            raise RuntimeError(f"The graph has no node {node!r}.")
        return _Output(operation, int(index))


def main(plan, results, ops="tf_ext"):
    """Runs a plan: a list of `{"path", "feeds", "fetch"}`.

    With `ops` "stock" nothing of tf_ext is loaded.

    `feeds` has `{name of a tensor: [dtype, nested lists]}`. Sessions stay open
    until all ran; one of a path that comes again is a new one.
    """
    if ops != "stock":
        load_ops()
    calls = json.loads(pathlib.Path(plan).read_text())
    sessions = [Session(call["path"]) for call in calls]
    outputs = {}
    for index, (session, call) in enumerate(zip(sessions, calls)):
        feeds = {
            name: np.array(values, dtype)
            for name, (dtype, values) in call["feeds"].items()
        }
        outputs[str(index)] = session.run(feeds, call["fetch"])
    for session in sessions:
        session.close()
    np.savez(results, **outputs)


if __name__ == "__main__":
    main(*sys.argv[1:])
