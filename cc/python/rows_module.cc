// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cc/core/initializers/initializer.h"
#include "cc/core/rules/narrow.h"
#include "cc/core/table/config.h"
#include "cc/core/table/row_format.h"
#include "cc/core/table/row_layout.h"
#include "cc/python/check.h"
#include "cc/python/dense_array.h"
#include "cc/python/modules.h"
#include "pybind11/numpy.h"
#include "pybind11/pybind11.h"

namespace tf_ext {
namespace {

namespace py = pybind11;

// Returns (the configuration in canonical form, its fields as manifests list
// them, without the sign).
py::tuple TableLayout(const std::string& text) {
  const TableConfig config = ParsedConfig(text);
  const RowLayout layout(config);
  py::list fields;
  for (const Field& field : layout.fields()) {
    fields.append(
        py::make_tuple(field.name, FieldTypeName(field.type), field.count));
  }
  return py::make_tuple(TableConfigToText(config), fields);
}

// New rows of the signs as files have them, uint8 [n, row bytes]. Weights
// before position `first` are unspecified.
py::array_t<uint8_t> NewRows(const std::string& text,
                             const DenseArray<int64_t>& signs, int64_t first) {
  const TableConfig config = ParsedConfig(text);
  if (first < 0 || first > config.dim) {
    throw py::value_error("first must be from 0 to " +
                          std::to_string(config.dim) + ", but is " +
                          std::to_string(first) + ".");
  }
  const RowLayout layout(config);
  const Initializer initializer(config.initializer, config.name, config.seed,
                                config.dim);
  const RowFormat format(layout, &initializer,
                         RoundingStream(config.seed, config.name),
                         &config.unknown, /*shrinks=*/nullptr,
                         /*moves=*/nullptr);
  const int64_t n = signs.size();
  const int64_t bytes = layout.raw_bytes();
  py::array_t<uint8_t> rows({n, bytes});
  uint8_t* const out = rows.mutable_data();
  const int64_t* const in = signs.data();
  {
    py::gil_scoped_release release;
    std::vector<uint8_t> row(layout.stride());
    for (int64_t i = 0; i < n; ++i) {
      format.Start(row.data(), in[i], /*with_weights=*/false);
      format.StartWeights(in[i], first, row.data() + RowLayout::kWeightsOffset);
      std::memcpy(out + i * bytes, row.data(), bytes);
    }
  }
  return rows;
}

// Rounds float32 to the nearest values of a type, which are returned as their
// bits, and how many were beyond its largest finite value.
py::tuple RoundedTo(const std::string& dtype, const DenseArray<float>& values) {
  for (const FieldTypeInfo& info : kFieldTypes) {
    if (dtype != info.name || info.bytes != sizeof(uint16_t)) continue;
    py::array_t<uint16_t> rounded(std::vector<py::ssize_t>(
        values.shape(), values.shape() + values.ndim()));
    const int64_t saturated = NarrowToNearest(
        info.type, values.data(), values.size(), rounded.mutable_data());
    return py::make_tuple(rounded, saturated);
  }
  throw py::value_error("dtype must be \"float16\" or \"bfloat16\", but is \"" +
                        dtype + "\".");
}

}  // namespace

void DefineRows(py::module_* m) {
  m->def("table_layout", &TableLayout, py::arg("config"));
  m->def("new_rows", &NewRows, py::arg("config"), py::arg("signs"),
         py::arg("first") = 0);
  m->def("rounded_to", &RoundedTo, py::arg("dtype"), py::arg("values"));
}

}  // namespace tf_ext
