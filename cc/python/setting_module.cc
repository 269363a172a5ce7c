// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "cc/python/modules.h"

namespace tf_ext {
namespace {

namespace py = pybind11;

// Sets a context variable in a `with` block. Python raises KeyboardInterrupt
// between its own instructions, and would do so between setting a variable and
// the block, or at the begin of what resets it. It runs none of them here.
class Setting {
 public:
  Setting(py::object variable, py::object value, py::object entered)
      : variable_(std::move(variable)),
        value_(std::move(value)),
        entered_(std::move(entered)) {}

  py::object Enter() {
    token_ = py::reinterpret_steal<py::object>(
        PyContextVar_Set(variable_.ptr(), value_.ptr()));
    if (!token_) throw py::error_already_set();
    return entered_;
  }

  void Exit() {
    if (!token_) throw py::value_error("The block has not begun.");
    if (PyContextVar_Reset(variable_.ptr(), token_.ptr()) != 0) {
      throw py::error_already_set();
    }
  }

 private:
  py::object variable_, value_, entered_, token_;
};

}  // namespace

void DefineSetting(py::module_* m) {
  py::class_<Setting>(*m, "Setting")
      .def(py::init<py::object, py::object, py::object>(), py::arg("variable"),
           py::arg("value"), py::arg("entered") = py::none())
      .def("__enter__", &Setting::Enter)
      .def("__exit__",
           [](Setting& setting, const py::args&) { setting.Exit(); });
}

}  // namespace tf_ext
