// SPDX-License-Identifier: Apache-2.0
#include "cc/python/values.h"

#include <cmath>

namespace tf_ext {
namespace {

namespace py = pybind11;

std::string TypeOf(py::handle object) {
  return py::str(py::type::handle_of(object).attr("__name__"));
}

}  // namespace

std::string DtypeOf(const py::array& array) {
  return py::str(static_cast<py::object>(array.dtype()));
}

std::string_view ViewText(py::handle object, const std::string& where) {
  if (PyBytes_Check(object.ptr())) {
    return {PyBytes_AS_STRING(object.ptr()),
            static_cast<size_t>(PyBytes_GET_SIZE(object.ptr()))};
  }
  if (!PyUnicode_Check(object.ptr())) {
    throw py::value_error(where + " must be str or bytes, but is of type " +
                          TypeOf(object) + ".");
  }
  Py_ssize_t size = 0;
  const char* const data = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (data == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_UnicodeEncodeError) == 0) {
      throw py::error_already_set();  // no memory
    }
    PyErr_Clear();
    throw py::value_error(where +
                          " has a lone surrogate, which UTF-8 cannot encode;"
                          " encode it to bytes yourself.");
  }
  return {data, static_cast<size_t>(size)};
}

Values::Values(const py::object& values, const std::string& name, Nan nan)
    : name_(name) {
  if (py::isinstance<py::tuple>(values)) {
    KeepTexts(py::reinterpret_borrow<py::tuple>(values));
  } else {
    KeepArray(py::array(values), nan);
  }
}

void Values::KeepArray(const py::array& array, Nan nan) {
  size_ = array.size();
  const char kind = array.dtype().kind();
  if (kind == 'S') {
    KeepBytes(array);
  } else if (kind == 'U' || kind == 'O' || kind == 'T') {
    KeepObjects(array);
  } else if (kind == 'f') {
    KeepFloats(array, nan);
  } else {
    KeepIntegers(array);
  }
}

HashInput Values::input() const {
  HashInput input = input_;
  input.n = size_;
  input.batch = size_;
  return input;
}

void Values::KeepTexts(const py::tuple& texts) {
  if (texts.size() != 2 && texts.size() != 3) {
    throw py::value_error(name_ + " must be a pair, or a pair and indices.");
  }
  const auto offsets = texts[0].cast<DenseArray<int32_t>>();
  const auto text = texts[1].cast<DenseArray<uint8_t>>();
  if (offsets.ndim() != 1 || offsets.size() == 0 ||
      !TextArray::Fits(offsets.data(), offsets.size() - 1, text.size())) {
    throw py::value_error(name_ + " has offsets that are not within its " +
                          std::to_string(text.size()) + " bytes of text.");
  }
  size_ = offsets.size() - 1;
  kept_ = text;
  offsets_ = offsets;
  text_array_ =
      TextArray(offsets.data(), reinterpret_cast<const char*>(text.data()));
  if (texts.size() == 2) {
    SetTexts(&text_array_, &input_);
    return;
  }
  const auto indices = texts[2].cast<DenseArray<int32_t>>();
  if (indices.ndim() != 1 ||
      !IndexedTexts::Fits(indices.data(), indices.size(), size_)) {
    throw py::value_error(name_ + " has indices that are not of its " +
                          std::to_string(size_) + " texts.");
  }
  size_ = indices.size();
  indices_ = indices;
  indexed_texts_ = IndexedTexts(text_array_, indices.data());
  SetTexts(&indexed_texts_, &input_);
  SetTexts(&text_array_, &distinct_);
  distinct_.n = distinct_.batch = offsets.size() - 1;
  input_.distinct = &distinct_;
  input_.places = indices.data();
}

void Values::KeepIntegers(const py::array& array) {
  const char kind = array.dtype().kind();
  if (kind == 'b' || (kind != 'i' && kind != 'u') ||
      (kind == 'u' && array.itemsize() == sizeof(uint64_t))) {
    throw py::value_error(
        name_ +
        " must be strings, bytes, integers of up to 64 bits with a"
        " sign or 32 without, or floats with boundaries, but its dtype is " +
        DtypeOf(array) + ". Convert it first.");
  }
  kept_ = Cast<int64_t>(array);
  input_.type = ValueType::kInt64;
  input_.values = kept_.data();
}

void Values::KeepFloats(const py::array& array, Nan nan) {
  kept_ = Cast<float>(array);
  input_.type = ValueType::kFloat;
  input_.values = kept_.data();
  if (nan == Nan::kAllowed) return;
  const auto* const floats = static_cast<const float*>(kept_.data());
  for (int64_t i = 0; i < size_; ++i) {
    if (!std::isnan(floats[i])) continue;
    throw py::value_error(name_ + " has NaN at position " + std::to_string(i) +
                          ", which is missing and has no sign. Drop it"
                          " first.");
  }
}

void Values::KeepBytes(const py::array& array) {
  kept_ = py::array(array.attr("astype")(array.dtype(), py::arg("order") = "C",
                                         py::arg("copy") = false));
  bytes_ = {static_cast<const char*>(kept_.data()),
            static_cast<size_t>(array.itemsize())};
  input_.type = ValueType::kString;
  input_.values = &bytes_;
  input_.view_strings = ViewBytes;
}

void Values::KeepObjects(const py::array& array) {
  // A copy, whose objects no other thread can remove while the GIL is
  // released.
  kept_ = py::array(array.attr("astype")("O")).attr("ravel")();
  const auto* const objects = static_cast<PyObject* const*>(kept_.data());
  texts_.resize(size_);
  for (int64_t i = 0; i < size_; ++i) {
    texts_[i] =
        ViewText(objects[i], name_ + " at position " + std::to_string(i));
  }
  input_.type = ValueType::kString;
  input_.values = texts_.data();
  input_.view_strings = ViewObjects;
}

// NumPy pads its fixed-size strings with zero bytes.
void Values::ViewBytes(const void* values, int64_t begin, int64_t n,
                       std::string_view* views) {
  const Bytes& bytes = *static_cast<const Bytes*>(values);
  for (int64_t k = 0; k < n; ++k) {
    const char* const item = bytes.data + (begin + k) * bytes.item_size;
    size_t size = bytes.item_size;
    while (size > 0 && item[size - 1] == '\0') --size;
    views[k] = {item, size};
  }
}

void Values::ViewObjects(const void* values, int64_t begin, int64_t n,
                         std::string_view* views) {
  for (int64_t k = 0; k < n; ++k) {
    views[k] = static_cast<const std::string_view*>(values)[begin + k];
  }
}

}  // namespace tf_ext
