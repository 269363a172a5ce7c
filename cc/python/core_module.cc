// SPDX-License-Identifier: Apache-2.0
// tf_ext._core: hashing, initial rows, snapshots and TFRecord for NumPy users,
// and the descriptions of update rules. Needs no TensorFlow.

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cc/core/hashing/fingerprint.h"
#include "cc/core/hashing/hash_columns.h"
#include "cc/core/initializers/initializer.h"
#include "cc/core/rules/narrow.h"
#include "cc/core/rules/shrinkage.h"
#include "cc/core/snapshot/crc32c.h"
#include "cc/core/support/status.h"
#include "cc/core/table/config.h"
#include "cc/core/table/row_format.h"
#include "cc/core/table/row_layout.h"
#include "cc/python/check.h"
#include "cc/python/dense_array.h"
#include "cc/python/modules.h"
#include "cc/python/values.h"
#include "pybind11/numpy.h"
#include "pybind11/pybind11.h"
#include "pybind11/stl.h"

namespace tf_ext {
namespace {

namespace py = pybind11;

// The version of the definition of signs.
constexpr int kHashVersion = 1;

py::array_t<int64_t> LikeArray(const py::array& array) {
  return py::array_t<int64_t>(
      std::vector<py::ssize_t>(array.shape(), array.shape() + array.ndim()));
}

// The part that runs without the GIL; `signs` has the inputs' size.
Status HashOneColumn(const HashColumn& column,
                     const std::vector<HashInput>& inputs, int64_t* signs) {
  std::vector<ValueType> types;
  for (const HashInput& input : inputs) types.push_back(input.type);
  std::unique_ptr<ColumnHasher> hasher;
  TF_EXT_RETURN_IF_ERROR(ColumnHasher::Create({column}, types, &hasher));
  int64_t batch = 0;
  TF_EXT_RETURN_IF_ERROR(hasher->CheckInputs(inputs, &batch));
  std::vector<int64_t> row_splits(batch + 1);
  TF_EXT_RETURN_IF_ERROR(
      hasher->CountSigns(inputs, batch, SerialFor, row_splits.data()));
  hasher->Hash(inputs, batch, row_splits.data(), SerialFor, signs, nullptr);
  return Status::Ok();
}

py::array_t<int64_t> HashArrays(const HashColumn& column,
                                const std::vector<py::array>& arrays,
                                const std::vector<std::string>& names) {
  std::vector<std::unique_ptr<Values>> values;
  std::vector<HashInput> inputs;
  for (size_t i = 0; i < arrays.size(); ++i) {
    values.push_back(std::make_unique<Values>(arrays[i], names[i]));
    inputs.push_back(values.back()->input());
  }
  py::array_t<int64_t> signs = LikeArray(arrays[0]);
  int64_t* const data = signs.mutable_data();
  Status status;
  {
    py::gil_scoped_release release;
    status = HashOneColumn(column, inputs, data);
  }
  Check(status);
  return signs;
}

py::array_t<int64_t> HashCategory(const py::array& values, const py::object& ns,
                                  int64_t bucket_size,
                                  const std::vector<float>& boundaries) {
  HashColumn column;
  column.ns = ViewText(ns, "namespace");
  column.bucket_size = bucket_size;
  column.parts.resize(1);
  column.parts[0].boundaries = boundaries;
  return HashArrays(column, {values}, {"values"});
}

void CheckOnePerPart(const char* name, size_t size, size_t parts) {
  if (size == parts) return;
  throw py::value_error(std::string(name) + " must have " +
                        std::to_string(parts) +
                        " entries, one for each of values, but has " +
                        std::to_string(size) + ".");
}

py::array_t<int64_t> HashCross(
    const std::vector<py::array>& values, const py::object& ns,
    int64_t bucket_size, const std::vector<int64_t>& part_bucket_sizes,
    const std::vector<std::vector<float>>& part_boundaries) {
  const size_t parts = values.size();
  if (parts < 2) {
    throw py::value_error(
        "values must have at least 2 arrays to cross, but"
        " has " +
        std::to_string(parts) + ".");
  }
  CheckOnePerPart("part_bucket_sizes", part_bucket_sizes.size(), parts);
  CheckOnePerPart("part_boundaries", part_boundaries.size(), parts);
  HashColumn column;
  column.ns = ViewText(ns, "namespace");
  column.bucket_size = bucket_size;
  column.parts.resize(parts);
  std::vector<std::string> names;
  for (size_t p = 0; p < parts; ++p) {
    names.push_back("values[" + std::to_string(p) + "]");
    column.parts[p].input = static_cast<int64_t>(p);
    column.parts[p].bucket_size = part_bucket_sizes[p];
    column.parts[p].boundaries = part_boundaries[p];
    const py::tuple shape = values[p].attr("shape");
    const py::tuple first = values[0].attr("shape");
    if (shape.equal(first)) continue;
    throw py::value_error("The arrays of values must have one shape, but " +
                          names[p] + " has " + std::string(py::str(shape)) +
                          " and values[0] has " + std::string(py::str(first)) +
                          ".");
  }
  return HashArrays(column, values, names);
}

py::array_t<uint64_t> FingerprintArray(const py::array& texts) {
  const Values values(texts, "values");
  if (!values.is_text()) {
    throw py::value_error("values must be strings or bytes, but its dtype is " +
                          DtypeOf(texts) + ".");
  }
  py::array_t<int64_t> fingerprints = LikeArray(texts);
  int64_t* const out = fingerprints.mutable_data();
  {
    py::gil_scoped_release release;
    const HashInput input = values.input();
    for (int64_t i = 0; i < input.n; ++i) {
      std::string_view text;
      input.view_strings(input.values, i, 1, &text);
      out[i] = static_cast<int64_t>(Fingerprint64(text));
    }
  }
  return fingerprints.attr("view")("uint64");
}

// The signs in the memory of a C++ array.
py::array DenseSigns(const py::array& signs) {
  if (!py::isinstance<py::array_t<int64_t>>(signs)) {
    throw py::value_error("signs must be int64, but their dtype is " +
                          DtypeOf(signs) + ".");
  }
  return Cast<int64_t>(signs);
}

// What is read of signs that have no row: `[..., dim]`; of those that share
// one, the initial weights of that.
py::array_t<float> InitialRows(const std::string& config_text,
                               const py::array& signs) {
  const TableConfig config = ParsedConfig(config_text);
  const py::array flat = DenseSigns(signs);
  std::vector<py::ssize_t> shape(signs.shape(), signs.shape() + signs.ndim());
  shape.push_back(config.dim);
  py::array_t<float> rows(shape);
  const auto* const in = static_cast<const int64_t*>(flat.data());
  float* const out = rows.mutable_data();
  const int64_t n = flat.size();
  {
    py::gil_scoped_release release;
    const Initializer initializer(config.initializer, config.name, config.seed,
                                  config.dim);
    const RowFormat format(RowLayout(config), &initializer,
                           RoundingStream(config.seed, config.name),
                           &config.unknown, /*shrinks=*/nullptr,
                           /*moves=*/nullptr);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t sign = config.unknown.is_shared()
                               ? config.unknown.SharedSignOf(in[i])
                               : in[i];
      format.FillUnknown(sign, out + i * config.dim);
    }
  }
  return rows;
}

// The signs of the rows that signs share while they have none; the signs
// themselves if the table has no shared rows.
py::array SharedSigns(const std::string& config_text, const py::array& signs) {
  const TableConfig config = ParsedConfig(config_text);
  const py::array flat = DenseSigns(signs);
  py::array_t<int64_t> shared(
      std::vector<py::ssize_t>(signs.shape(), signs.shape() + signs.ndim()));
  const auto* const in = static_cast<const int64_t*>(flat.data());
  for (int64_t i = 0; i < flat.size(); ++i) {
    shared.mutable_data()[i] =
        config.unknown.is_shared() ? config.unknown.SharedSignOf(in[i]) : in[i];
  }
  return shared;
}

PYBIND11_MODULE(_core, m) {
  m.doc() =
      "Hashing and snapshots for NumPy, what update rules are, and TFRecord; "
      "see "
      "tf_ext.hashing, tf_ext.snapshot, tf_ext.optimizers, tf_ext.data.";
  m.attr("HASH_VERSION") = kHashVersion;
  m.def("fingerprint64", [](const py::bytes& text) {
    return Fingerprint64(ViewText(text, "text"));
  });
  m.def("fingerprint64", [](const py::str& text) {
    return Fingerprint64(ViewText(text, "text"));
  });
  m.def("fingerprint64", &FingerprintArray, py::arg("values"));
  m.def("hash_category", &HashCategory, py::arg("values"), py::arg("namespace"),
        py::arg("bucket_size") = 0,
        py::arg("boundaries") = std::vector<float>());
  m.def("hash_cross", &HashCross, py::arg("values"), py::arg("namespace"),
        py::arg("bucket_size"), py::arg("part_bucket_sizes"),
        py::arg("part_boundaries"));
  m.def("crc32c", [](const py::bytes& data) {
    return ExtendCrc32c(0, PyBytes_AS_STRING(data.ptr()),
                        PyBytes_GET_SIZE(data.ptr()));
  });
  m.def("initial_rows", &InitialRows, py::arg("config"), py::arg("signs"));
  m.def("shared_signs", &SharedSigns, py::arg("config"), py::arg("signs"));
  m.attr("FIRST_SHARED_SIGN") = kFirstSharedSign;
  m.attr("MOST_SHARED_ROWS") = kMostSharedRows;
  m.attr("MOST_L1_OF_L2") = Shrinkage::kMostL1OfL2;
  DefineColumns(&m);
  DefineRecords(&m);
  DefineRows(&m);
  DefineRules(&m);
  DefineSetting(&m);
  DefineSignals(&m);
  DefineSnapshots(&m);
}

}  // namespace
}  // namespace tf_ext
