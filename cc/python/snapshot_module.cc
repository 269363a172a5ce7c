// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cc/core/hashing/mix.h"
#include "cc/core/rules/absent_rows.h"
#include "cc/core/rules/shrinkage.h"
#include "cc/core/snapshot/counter_chunks.h"
#include "cc/core/snapshot/crc32c.h"
#include "cc/core/snapshot/sign_set.h"
#include "cc/core/snapshot/snapshot_chunk.h"
#include "cc/core/table/config.h"
#include "cc/core/table/row_layout.h"
#include "cc/core/table/table_absent.h"
#include "cc/python/check.h"
#include "cc/python/dense_array.h"
#include "cc/python/modules.h"
#include "pybind11/numpy.h"
#include "pybind11/pybind11.h"

namespace tf_ext {
namespace {

namespace py = pybind11;

using Signs = DenseArray<int64_t>;
using Rows = DenseArray<uint8_t>;

constexpr int64_t kSignBytes = sizeof(int64_t);

// ChunkBytesFor, for any number.
int64_t CheckedChunkBytesFor(int64_t row_bytes) {
  const int64_t bytes =
      ChunkBytesFor(std::clamp(row_bytes, kSignBytes, kMaxStoredRowBytes));
  Check(CheckChunkFormat({bytes, row_bytes, /*tag=*/0}));
  return bytes;
}

Signs CopySigns(const uint8_t* data, int64_t n) {
  Signs signs(n);
  if (n > 0) std::memcpy(signs.mutable_data(), data, n * kSignBytes);
  return signs;
}

// Returns (erased before, rows [n, row_bytes], erased after, CRC32C) of a
// chunk; the rows are a view of `data`. Damage is a ValueError with its byte.
py::tuple DecodeToArrays(const py::bytes& data, int64_t chunk_bytes,
                         int64_t row_bytes, uint64_t tag, int64_t index) {
  const ChunkFormat format = {chunk_bytes, row_bytes, tag};
  const auto* const bytes =
      reinterpret_cast<const uint8_t*>(PyBytes_AS_STRING(data.ptr()));
  const int64_t size = PyBytes_GET_SIZE(data.ptr());
  ChunkView chunk;
  Status status;
  {
    py::gil_scoped_release release;
    status = DecodeChunk(format, bytes, size, index, &chunk);
  }
  Check(status);
  py::array_t<uint8_t> rows({chunk.rows, row_bytes}, chunk.row_data, data);
  rows.attr("setflags")(py::arg("write") = false);
  return py::make_tuple(CopySigns(chunk.signs_before, chunk.erased_before),
                        rows, CopySigns(chunk.signs_after, chunk.erased_after),
                        chunk.crc32c);
}

Signs ShardsOf(const Signs& signs, int64_t num_shards) {
  if (num_shards < 1) {
    throw py::value_error("num_shards must be at least 1, but it is " +
                          std::to_string(num_shards) + ".");
  }
  Signs shards(signs.size());
  int64_t* const out = shards.mutable_data();
  for (int64_t i = 0; i < signs.size(); ++i) {
    out[i] = ShardOf(signs.data()[i], num_shards);
  }
  return shards;
}

void AddSigns(SignSet* set, const Signs& signs) {
  for (int64_t i = 0; i < signs.size(); ++i) set->Add(signs.data()[i]);
}

// Adds signs from the last to the first; returns whether each was new.
py::array_t<bool> AddFromTheEnd(SignSet* set, const Signs& signs) {
  py::array_t<bool> added(signs.size());
  bool* const out = added.mutable_data();
  for (int64_t i = signs.size() - 1; i >= 0; --i) {
    out[i] = set->Add(signs.data()[i]);
  }
  return added;
}

py::array_t<bool> ContainsEach(const SignSet& set, const Signs& signs) {
  py::array_t<bool> contains(signs.size());
  bool* const out = contains.mutable_data();
  for (int64_t i = 0; i < signs.size(); ++i) {
    out[i] = set.Contains(signs.data()[i]);
  }
  return contains;
}

// The keys, uint64, by which files of counters are ordered.
py::array_t<uint64_t> CounterKeys(const Signs& signs) {
  py::array_t<uint64_t> keys(signs.size());
  uint64_t* const out = keys.mutable_data();
  for (int64_t i = 0; i < signs.size(); ++i) {
    out[i] = CounterKey(signs.data()[i]);
  }
  return keys;
}

// Checks counters, uint8 [n, kStoredCounterBytes], of the next chunk of a file.
void CheckCounters(CounterCheck* check, const Rows& counters) {
  if (counters.ndim() != 2 || counters.shape(1) != kStoredCounterBytes) {
    throw py::value_error("counters must be of shape [n, 12].");
  }
  ChunkView chunk = {};
  chunk.rows = counters.shape(0);
  chunk.row_data = counters.data();
  Check(check->Check(chunk));
}

// Rows of files, uint8 [n, row_bytes], of a table that changes rows while they
// are absent from pushes, as of the clocks that were saved with them.
Rows CatchUpRows(const std::string& text, const Rows& rows, int64_t clock,
                 const py::bytes& absent_state) {
  const TableConfig config = ParsedConfig(text);
  const RowLayout layout(config);
  if (!config.shrinks() && !config.moves_absent_rows()) {
    throw py::value_error("config must be of a table that changes rows.");
  }
  const int64_t bytes = layout.raw_bytes();
  if (rows.ndim() != 2 || rows.shape(1) != bytes) {
    throw py::value_error("rows must be of shape [n, " + std::to_string(bytes) +
                          "].");
  }
  if (clock < 0 || clock > Shrinkage::kLast) {
    throw py::value_error("clock must be from 0 to " +
                          std::to_string(Shrinkage::kLast) + ".");
  }
  const int64_t n = rows.shape(0);
  const std::string state = absent_state;
  Rows result(std::vector<py::ssize_t>{n, bytes});
  uint8_t* const out = result.mutable_data();
  const uint8_t* const in = rows.data();
  Status status;
  {
    py::gil_scoped_release release;
    if (n > 0) std::memcpy(out, in, n * bytes);
    std::unique_ptr<Shrinkage> shrinkage;
    if (config.shrinks()) {
      shrinkage = std::make_unique<Shrinkage>(
          config.l2, config.l1, config.dim, layout.Find(kShrunkField)->offset);
    }
    const std::unique_ptr<AbsentRows> absent = MakeAbsentRows(config, layout);
    if (absent != nullptr) {
      status = absent->history().SetState(state);
      const auto view = absent->history().view();
      for (int64_t i = 0; status.ok() && i < n; ++i) {
        absent->Settle(*view, shrinkage.get(), clock, out + i * bytes);
      }
    } else {
      std::vector<const uint8_t*> each(n);
      for (int64_t i = 0; i < n; ++i) each[i] = in + i * bytes;
      shrinkage->ShrinkStored(each.data(), clock, n, config.dtype,
                              out + RowLayout::kWeightsOffset, bytes);
    }
  }
  Check(status);
  return result;
}

// The state of a table that has made `steps`, none of which has moved a row.
py::bytes NewAbsentState(const std::string& text, int64_t steps) {
  const TableConfig config = ParsedConfig(text);
  if (steps < 0 || steps > AbsentHistory::kLast) {
    throw py::value_error("steps must be from 0 to " +
                          std::to_string(AbsentHistory::kLast) + ", but are " +
                          std::to_string(steps) + ".");
  }
  const std::unique_ptr<AbsentRows> absent =
      MakeAbsentRows(config, RowLayout(config));
  if (absent == nullptr) return "";
  absent->history().BeginAfter(steps);
  return absent->history().State();
}

// The clock of a state, for how far a shard is ahead of others.
int64_t AbsentSteps(const py::bytes& state) {
  return AbsentHistory::ClockOf(state);
}

// Raises unless it is a state of the table's history of absent rows.
void CheckAbsentState(const std::string& text, const py::bytes& state) {
  const TableConfig config = ParsedConfig(text);
  const std::unique_ptr<AbsentRows> absent =
      MakeAbsentRows(config, RowLayout(config));
  if (absent != nullptr) Check(absent->history().SetState(state));
}

// Encodes a file of rows chunk by chunk.
class RowFileEncoder {
 public:
  RowFileEncoder(int64_t row_bytes, uint64_t tag)
      : row_bytes_(row_bytes),
        encoder_({CheckedChunkBytesFor(row_bytes), row_bytes, tag}) {}

  // Adds rows [n, row_bytes]; returns the chunks that have become full.
  py::bytes AddRows(const Rows& rows) {
    if (rows.ndim() != 2 || rows.shape(1) != row_bytes_) {
      throw py::value_error("rows must be of shape [n, " +
                            std::to_string(row_bytes_) + "].");
    }
    std::string full;
    const uint8_t* from = rows.data();
    for (int64_t left = rows.shape(0); left > 0;) {
      if (encoder_.RoomForRows() == 0) Finish(false, &full);
      const int64_t n = std::min(left, encoder_.RoomForRows());
      std::memcpy(encoder_.rows_end(), from, n * row_bytes_);
      encoder_.AddRows(n);
      from += n * row_bytes_;
      left -= n;
      rows_ += n;
    }
    return py::bytes(full);
  }

  // Returns the chunk that has rows already, padded; nothing if it has none.
  // `bytes` and `crc32c` are then those of a file with all rows so far.
  py::bytes Flush() {
    std::string chunk;
    if (!encoder_.empty()) Finish(false, &chunk);
    return py::bytes(chunk);
  }

  // Returns the last chunk.
  py::bytes FinishFile() {
    std::string last;
    Finish(true, &last);
    return py::bytes(last);
  }

  int64_t rows() const { return rows_; }
  int64_t bytes() const { return bytes_; }
  uint32_t crc32c() const { return crc32c_; }

 private:
  void Finish(bool last, std::string* out) {
    const ChunkEncoder::Chunk chunk = encoder_.Finish(last);
    out->append(reinterpret_cast<const char*>(chunk.data), chunk.bytes);
    bytes_ += chunk.bytes;
    crc32c_ = CombineCrc32c(crc32c_, chunk.crc32c, chunk.bytes);
  }

  const int64_t row_bytes_;
  ChunkEncoder encoder_;
  int64_t rows_ = 0;
  int64_t bytes_ = 0;
  uint32_t crc32c_ = 0;
};

}  // namespace

void DefineSnapshots(py::module_* m) {
  m->def("combine_crc32c", &CombineCrc32c, py::arg("first"), py::arg("second"),
         py::arg("size"));
  m->attr("CHUNK_HEADER_BYTES") = kChunkHeaderBytes;
  m->attr("MAX_ROW_BYTES") = kMaxStoredRowBytes;
  m->def("chunk_bytes_for", &CheckedChunkBytesFor, py::arg("row_bytes"));
  m->def("decode_chunk", &DecodeToArrays, py::arg("data"),
         py::arg("chunk_bytes"), py::arg("row_bytes"), py::arg("tag"),
         py::arg("index"));
  m->def("shard_of", &ShardsOf, py::arg("signs"), py::arg("num_shards"));
  py::class_<SignSet>(*m, "SignSet")
      .def(py::init<>())
      .def("__len__", &SignSet::size)
      .def("add", &AddSigns, py::arg("signs"))
      .def("add_from_the_end", &AddFromTheEnd, py::arg("signs"))
      .def("contains", &ContainsEach, py::arg("signs"));
  m->attr("SHRUNK_FIELD") = kShrunkField;
  m->attr("LAST_SHRINKAGE_CLOCK") = Shrinkage::kLast;
  m->attr("CAUGHT_UP_FIELD") = kCaughtUpField;
  m->def("catch_up_rows", &CatchUpRows, py::arg("config"), py::arg("rows"),
         py::arg("clock"), py::arg("absent_state"));
  m->def("new_absent_state", &NewAbsentState, py::arg("config"),
         py::arg("steps") = 0);
  m->def("absent_steps", &AbsentSteps, py::arg("state"));
  m->def("check_absent_state", &CheckAbsentState, py::arg("config"),
         py::arg("state"));
  m->attr("COUNTER_BYTES") = kStoredCounterBytes;
  m->def("counter_keys", &CounterKeys, py::arg("signs"));
  py::class_<CounterCheck>(*m, "CounterCheck")
      .def(py::init<int, bool>(), py::arg("n"), py::arg("older"))
      .def("check", &CheckCounters, py::arg("counters"));
  py::class_<RowFileEncoder>(*m, "RowFileEncoder")
      .def(py::init<int64_t, uint64_t>(), py::arg("row_bytes"), py::arg("tag"))
      .def("add_rows", &RowFileEncoder::AddRows, py::arg("rows"))
      .def("flush", &RowFileEncoder::Flush)
      .def("finish", &RowFileEncoder::FinishFile)
      .def_property_readonly("rows", &RowFileEncoder::rows)
      .def_property_readonly("bytes", &RowFileEncoder::bytes)
      .def_property_readonly("crc32c", &RowFileEncoder::crc32c);
}

}  // namespace tf_ext
