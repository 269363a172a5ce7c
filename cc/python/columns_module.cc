// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cc/core/bags/combine.h"
#include "cc/core/bags/unique.h"
#include "cc/core/hashing/hash_columns.h"
#include "cc/core/support/parallel.h"
#include "cc/core/support/status.h"
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

// (input, bucket_size, missing, boundaries) of a part of a column.
using PartTuple = std::tuple<int64_t, int64_t, std::optional<std::string>,
                             std::vector<float>>;
// (namespace, bucket_size, identity, parts) of a column.
using ColumnTuple =
    std::tuple<std::string, int64_t, bool, std::vector<PartTuple>>;
template <typename T>
using Optionals = std::vector<std::optional<DenseArray<T>>>;

// What is hashed of a batch.
struct Inputs {
  Inputs(const std::vector<std::string>& names,
         const std::vector<py::object>& values,
         const Optionals<int64_t>& row_splits, const Optionals<float>& weights,
         int64_t batch) {
    if (names.size() != values.size() || row_splits.size() != values.size() ||
        weights.size() != values.size()) {
      throw py::value_error("Each input must have a name and row splits.");
    }
    for (size_t i = 0; i < values.size(); ++i) {
      kept.push_back(
          std::make_unique<Values>(values[i], names[i], Values::Nan::kAllowed));
      HashInput input = kept.back()->input();
      input.batch = batch;
      if (row_splits[i].has_value()) {
        if (row_splits[i]->size() < 1) {
          throw py::value_error(names[i] + " has no row splits.");
        }
        input.row_splits = row_splits[i]->data();
        input.batch = row_splits[i]->size() - 1;
      }
      if (weights[i].has_value()) {
        if (weights[i]->size() != input.n) {
          throw py::value_error(names[i] + " has another number of weights.");
        }
        input.weights = weights[i]->data();
      }
      types.push_back(input.type);
      inputs.push_back(input);
    }
    if (batch < 0) throw py::value_error("The batch must not be negative.");
  }

  std::vector<std::unique_ptr<Values>> kept;
  std::vector<HashInput> inputs;
  std::vector<ValueType> types;
};

// The same columns of any batch.
class HashedColumns {
 public:
  explicit HashedColumns(const std::vector<ColumnTuple>& columns) {
    for (const auto& [ns, bucket_size, identity, parts] : columns) {
      HashColumn column;
      column.ns = ns;
      column.bucket_size = bucket_size;
      column.identity = identity;
      for (const auto& [input, part_size, missing, boundaries] : parts) {
        HashPart part;
        part.input = input;
        part.bucket_size = part_size;
        part.has_missing = missing.has_value();
        part.missing = missing.value_or("");
        part.boundaries = boundaries;
        column.parts.push_back(std::move(part));
      }
      columns_.push_back(std::move(column));
    }
  }

  // Returns signs [batch, columns], of columns that have one of each bag.
  py::array_t<int64_t> HashRows(const std::vector<std::string>& names,
                                const std::vector<py::object>& values,
                                int64_t batch) const {
    const Inputs read(names, values, Optionals<int64_t>(values.size()),
                      Optionals<float>(values.size()), batch);
    std::unique_ptr<ColumnHasher> hasher;
    Check(ColumnHasher::Create(columns_, read.types, &hasher));
    Check(hasher->CheckInputs(read.inputs, &batch));
    if (batch > 0 && !hasher->HaveOneSign(read.inputs)) {
      throw py::value_error("A column does not have one sign of each row.");
    }
    py::array_t<int64_t> signs =
        AlignedArray<int64_t>(batch, hasher->num_columns());
    int64_t* const out = signs.mutable_data();
    py::gil_scoped_release release;
    hasher->HashRows(read.inputs, batch, out);
    return signs;
  }

  // Returns (signs [m], row_splits [columns * batch + 1], weights [m] or
  // None). Without row splits, each bag has as many of the values.
  py::tuple Hash(const std::vector<std::string>& names,
                 const std::vector<py::object>& values,
                 const Optionals<int64_t>& row_splits,
                 const Optionals<float>& weights, int64_t batch) const {
    Inputs read(names, values, row_splits, weights, batch);
    std::vector<HashInput>& inputs = read.inputs;
    std::unique_ptr<ColumnHasher> hasher;
    std::vector<int64_t> splits;
    Status status = Begin(read.types, inputs, &hasher, &batch, &splits);
    Check(status);
    py::array_t<int64_t> signs(splits.back());
    std::optional<py::array_t<float>> products;
    if (hasher->HasWeights(inputs)) products.emplace(splits.back());
    int64_t* const out = signs.mutable_data();
    float* const weights_out =
        products.has_value() ? products->mutable_data() : nullptr;
    {
      py::gil_scoped_release release;
      hasher->Hash(inputs, batch, splits.data(), SerialFor, out, weights_out);
    }
    return py::make_tuple(
        signs, py::array_t<int64_t>(splits.size(), splits.data()), products);
  }

 private:
  // The part before the number of signs is known.
  Status Begin(const std::vector<ValueType>& types,
               const std::vector<HashInput>& inputs,
               std::unique_ptr<ColumnHasher>* hasher, int64_t* batch,
               std::vector<int64_t>* splits) const {
    py::gil_scoped_release release;
    TF_EXT_RETURN_IF_ERROR(ColumnHasher::Create(columns_, types, hasher));
    TF_EXT_RETURN_IF_ERROR((*hasher)->CheckInputs(inputs, batch));
    splits->resize((*hasher)->num_columns() * *batch + 1);
    return (*hasher)->CountSigns(inputs, *batch, SerialFor, splits->data());
  }

  std::vector<HashColumn> columns_;
};

// Returns (the distinct signs [u], the place of each of them, int32 [n]).
py::tuple UniqueOf(const DenseArray<int64_t>& signs) {
  py::array_t<int32_t> inverse(signs.size());
  const int64_t* const in = signs.data();
  int32_t* const out = inverse.mutable_data();
  UniqueSigns unique;
  Status status;
  {
    py::gil_scoped_release release;
    status = UniqueByShard(in, signs.size(), 1, &unique, out);
  }
  Check(status);
  return py::make_tuple(
      py::array_t<int64_t>(unique.signs.size(), unique.signs.data()), inverse);
}

// The bags of columns, side by side: float32 [batch, columns * dim].
py::array_t<float> Combined(const DenseArray<float>& rows,
                            const DenseArray<int32_t>& inverse,
                            const DenseArray<int64_t>& row_splits,
                            const std::optional<DenseArray<float>>& weights,
                            const std::vector<std::string>& combiners) {
  Bags bags;
  for (const std::string& name : combiners) {
    Check(ParseCombiner(name, &bags.combiners.emplace_back()));
  }
  const auto columns = static_cast<py::ssize_t>(combiners.size());
  if (rows.ndim() != 2 || columns == 0 || row_splits.size() < 1 ||
      (row_splits.size() - 1) % columns != 0 ||
      (weights.has_value() && weights->size() != inverse.size())) {
    throw py::value_error("The sizes of bags do not fit together.");
  }
  bags.batch = (row_splits.size() - 1) / columns;
  bags.dim = rows.shape(1);
  bags.unique = rows.shape(0);
  bags.n = inverse.size();
  bags.rows = rows.data();
  bags.inverse = inverse.data();
  bags.row_splits = row_splits.data();
  bags.weights = weights.has_value() ? weights->data() : nullptr;
  Check(CheckBags(bags));
  py::array_t<float> combined(
      {static_cast<py::ssize_t>(bags.batch), columns * rows.shape(1)});
  float* const out = combined.mutable_data();
  py::gil_scoped_release release;
  CombineBags(bags, SerialFor, out);
  return combined;
}

}  // namespace

void DefineColumns(py::module_* m) {
  py::class_<HashedColumns>(*m, "HashedColumns")
      .def(py::init<const std::vector<ColumnTuple>&>(), py::arg("columns"))
      .def("hash_rows", &HashedColumns::HashRows, py::arg("names"),
           py::arg("values"), py::arg("batch"))
      .def("hash", &HashedColumns::Hash, py::arg("names"), py::arg("values"),
           py::arg("row_splits"), py::arg("weights"), py::arg("batch"));
  m->def("unique", &UniqueOf, py::arg("signs"));
  m->def("combine_bags", &Combined, py::arg("rows"), py::arg("inverse"),
         py::arg("row_splits"), py::arg("weights"), py::arg("combiners"));
}

}  // namespace tf_ext
