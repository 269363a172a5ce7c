// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "cc/core/records/example_columns.h"
#include "cc/core/records/record_block.h"
#include "cc/core/records/text_lines.h"
#include "cc/python/dense_array.h"
#include "cc/python/modules.h"
#include "pybind11/numpy.h"
#include "pybind11/stl.h"

namespace tf_ext {
namespace {

namespace py = pybind11;

template <typename T>
py::array Copied(const std::vector<T>& values) {
  return py::array_t<T>(values.size(), values.data());
}

py::tuple Split(const py::bytes& block) {
  const std::string_view text = block;
  RecordBlock found;
  {
    py::gil_scoped_release release;
    found = SplitRecords(text);
  }
  return py::make_tuple(Copied(found.begins), Copied(found.ends),
                        found.consumed, found.damaged, found.next_size);
}

ValueKind KindOf(const std::string& name) {
  if (name == "string") return ValueKind::kBytes;
  return name == "float32" ? ValueKind::kFloat : ValueKind::kInt64;
}

py::tuple ColumnTuple(const ExampleField& field, const ExampleColumn& column) {
  py::object values;
  switch (field.kind) {
    case ValueKind::kBytes:
      values = py::make_tuple(py::bytes(column.text),
                              py::array(Copied(column.ends)));
      break;
    case ValueKind::kInt64:
      values = Copied(column.ints);
      break;
    case ValueKind::kFloat:
      values = Copied(column.floats);
      break;
  }
  return py::make_tuple(
      values, field.bag ? Copied(column.splits) : Copied(column.given));
}

py::tuple Decode(
    const py::bytes& block, const DenseArray<int64_t>& begins,
    const DenseArray<int64_t>& ends,
    const std::vector<std::tuple<std::string, std::string, bool>>& fields) {
  const std::string_view text = block;
  // Where texts end and rows are split is 32 bits wide, and no column has more
  // values than its block has bytes.
  if (text.size() > std::numeric_limits<int32_t>::max()) {
    throw py::value_error("block must be below 2 GiB.");
  }
  const int64_t records = begins.size();
  if (ends.size() != records) {
    throw py::value_error("begins and ends must be of the same size.");
  }
  // Copies, which no other thread can change once they are checked.
  const std::vector<int64_t> begin(begins.data(), begins.data() + records);
  const std::vector<int64_t> end(ends.data(), ends.data() + records);
  for (int64_t i = 0; i < records; ++i) {
    if (begin[i] < 0 || end[i] < begin[i] ||
        end[i] > static_cast<int64_t>(text.size()) - 4) {
      throw py::value_error("begins and ends must be within the block.");
    }
  }
  std::vector<ExampleField> wanted;
  for (const auto& [name, dtype, bag] : fields) {
    wanted.push_back({name, KindOf(dtype), bag});
  }
  ExampleColumns columns(std::move(wanted));
  std::vector<uint8_t> errors(records);
  {
    py::gil_scoped_release release;
    for (int64_t i = 0; i < records; ++i) {
      const ExampleError error =
          HasChecksum(text, begin[i], end[i])
              ? columns.Append(text.substr(begin[i], end[i] - begin[i]))
              : ExampleError::kChecksum;
      errors[i] = static_cast<uint8_t>(error);
    }
  }
  py::list found;
  for (size_t i = 0; i < columns.fields().size(); ++i) {
    found.append(ColumnTuple(columns.fields()[i], columns.columns()[i]));
  }
  return py::make_tuple(found, Copied(errors));
}

template <typename Fn>
py::array Found(const Fn& find) {
  std::vector<int64_t> found;
  {
    py::gil_scoped_release release;
    found = find();
  }
  return Copied(found);
}

int64_t Count(const py::bytes& text) {
  const std::string_view view = text;
  py::gil_scoped_release release;
  return CountLines(view);
}

py::array Ends(const py::bytes& text) {
  const std::string_view view = text;
  return Found([view] { return LineEnds(view); });
}

py::array OddQuotes(const py::bytes& text) {
  const std::string_view view = text;
  return Found([view] { return LinesWithOddQuotes(view); });
}

py::array WrongQuotes(const py::bytes& text, const DenseArray<int64_t>& ends,
                      const py::bytes& separator) {
  const std::string_view view = text, one = separator;
  if (one.size() != 1) throw py::value_error("separator must be one byte.");
  const int64_t* data = ends.data();
  return Found([&] { return WronglyQuoted(view, data, ends.size(), one[0]); });
}

}  // namespace

void DefineRecords(py::module_* m) {
  m->def("split_records", &Split, py::arg("block"));
  m->def("decode_examples", &Decode, py::arg("block"), py::arg("begins"),
         py::arg("ends"), py::arg("fields"));
  m->def("count_lines", &Count, py::arg("text"));
  m->def("line_ends", &Ends, py::arg("text"));
  m->def("lines_with_odd_quotes", &OddQuotes, py::arg("text"));
  m->def("wrongly_quoted", &WrongQuotes, py::arg("text"), py::arg("ends"),
         py::arg("separator"));
}

}  // namespace tf_ext
