// SPDX-License-Identifier: Apache-2.0
// Kernels that inspect, export, import, clear and compact a table.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cc/core/rules/narrow.h"
#include "cc/core/table/config.h"
#include "cc/core/table/row_layout.h"
#include "cc/core/table/table.h"
#include "cc/ops/kernel_util.h"
#include "cc/ops/table/field_types.h"
#include "cc/ops/table/table_resource.h"

namespace tf_ext {
namespace {

using tensorflow::DataTypeString;

// The rows of a page of an export, which are in memory twice: as returned by
// the core, and in the output.
constexpr int64_t kExportPageRows = 65536;

std::string DescribeFields(const RowLayout& layout) {
  return absl::StrJoin(layout.fields(), ", ",
                       [](std::string* out, const Field& field) {
                         absl::StrAppend(out, field.name, " ",
                                         DataTypeString(ToDataType(field.type)),
                                         "[", field.count, "]");
                       });
}

// The fields that an export or import names, with their types: those in which
// they are stored, or float32 for all floats.
class FieldList {
 public:
  void Init(OpKernelConstruction* ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("field_names", &names_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("Tfields", &types_));
    OP_REQUIRES(
        ctx, names_.size() == types_.size(),
        InvalidArgument(
            "field_names and Tfields must have one entry per field, but "
            "they have ",
            names_.size(), " and ", types_.size(), "."));
    std::vector<std::string> sorted = names_;
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    OP_REQUIRES(ctx, twice == sorted.end(),
                InvalidArgument("field_names must name each field once, but '",
                                twice == sorted.end() ? "" : *twice,
                                "' appears twice."));
  }

  const std::vector<std::string>& names() const { return names_; }
  const std::vector<DataType>& types() const { return types_; }

  // The fields of `table` that have these names, in this order.
  absl::Status Resolve(const Table& table,
                       std::vector<const Field*>* fields) const {
    fields->clear();
    for (size_t i = 0; i < names_.size(); ++i) {
      const Field* field = table.layout().Find(names_[i]);
      if (field == nullptr || !CanHave(*field, types_[i])) {
        return InvalidArgument(
            "There is no field '", names_[i], "' of type ",
            DataTypeString(types_[i]), " in the table '", table.config().name,
            "'. Its fields are: ", DescribeFields(table.layout()), ".");
      }
      fields->push_back(field);
    }
    return absl::OkStatus();
  }

 private:
  static bool CanHave(const Field& field, DataType type) {
    return type == ToDataType(field.type) ||
           (type == tensorflow::DT_FLOAT && InfoOf(field.type).is_float);
  }

  std::vector<std::string> names_;
  std::vector<DataType> types_;
};

absl::Status RunSparseTableSize(OpKernelContext* ctx) {
  std::shared_ptr<Table> table;
  TF_RETURN_IF_ERROR(LookupTable(ctx, 0, &table));
  return SetScalarOutput<int64_t>(ctx, 0, table->Size());
}

absl::Status RunSparseTableShrinkageClock(OpKernelContext* ctx) {
  std::shared_ptr<Table> table;
  int64_t clock;
  TF_RETURN_IF_ERROR(LookupTable(ctx, 0, &table));
  TF_RETURN_IF_ERROR(ScalarInput(ctx, "clock", 1, &clock));
  if (clock >= 0) TF_RETURN_IF_ERROR(ToTf(table->SetShrinkageClock(clock)));
  return SetScalarOutput<int64_t>(ctx, 0, table->ShrinkageClock());
}

absl::Status RunSparseTableAbsentState(OpKernelContext* ctx) {
  std::shared_ptr<Table> table;
  TF_RETURN_IF_ERROR(LookupTable(ctx, 0, &table));
  TF_RETURN_IF_ERROR(CheckScalar("state", ctx->input(1)));
  const tstring& state = ctx->input(1).scalar<tstring>()();
  if (!state.empty()) TF_RETURN_IF_ERROR(ToTf(table->SetAbsentState(state)));
  std::string now;
  TF_RETURN_IF_ERROR(ToTf(table->AbsentState(&now)));
  return SetScalarOutput<tstring>(ctx, 0, now);
}

absl::Status RunSparseTableStats(OpKernelContext* ctx) {
  std::shared_ptr<Table> table;
  TF_RETURN_IF_ERROR(LookupTable(ctx, 0, &table));
  const TableStats stats = table->Stats();
  // The order is part of the op's interface.
  const int64_t values[] = {stats.rows,
                            stats.free_rows,
                            stats.stripes,
                            stats.row_bytes,
                            stats.slab_bytes,
                            stats.index_bytes,
                            stats.max_stripe_rows,
                            stats.min_stripe_rows,
                            stats.max_probe_length,
                            stats.waiting,
                            stats.counter_bytes,
                            stats.admitted,
                            stats.evicted,
                            stats.saturated,
                            stats.updated};
  static_assert(sizeof(TableStats) == sizeof(values),
                "every field of TableStats is reported");
  int64_t* output = nullptr;
  TF_RETURN_IF_ERROR(
      AllocateOutput(ctx, 0, TensorShape({std::size(values)}), &output));
  std::copy(std::begin(values), std::end(values), output);
  return absl::OkStatus();
}

absl::Status RunSparseTableConfig(OpKernelContext* ctx) {
  std::shared_ptr<Table> table;
  TF_RETURN_IF_ERROR(LookupTable(ctx, 0, &table));
  return SetScalarOutput<tstring>(ctx, 0, TableConfigToText(table->config()));
}

absl::Status RunSparseTableClear(OpKernelContext* ctx) {
  std::shared_ptr<Table> table;
  TF_RETURN_IF_ERROR(LookupTable(ctx, 0, &table));
  int64_t* cleared = nullptr;
  TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, TensorShape({}), &cleared));
  return ToTf(table->Clear(cleared));
}

absl::Status RunSparseTableCompact(OpKernelContext* ctx) {
  std::shared_ptr<Table> table;
  TF_RETURN_IF_ERROR(LookupTable(ctx, 0, &table));
  int64_t* bytes = nullptr;
  TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, TensorShape({}), &bytes));
  return ToTf(table->Compact(MakeParallelFor(ctx), bytes));
}

absl::Status RunSparseTableErase(OpKernelContext* ctx) {
  std::shared_ptr<Table> table;
  TF_RETURN_IF_ERROR(LookupTable(ctx, 0, &table));
  const Tensor& signs = ctx->input(1);
  TF_RETURN_IF_ERROR(CheckVector("signs", signs));
  int64_t* erased = nullptr;
  TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, TensorShape({}), &erased));
  return ToTf(table->Erase(signs.flat<int64_t>().data(), signs.dim_size(0),
                           MakeParallelFor(ctx), erased));
}

// The tensors that an export fills page by page.
class ExportBuffers {
 public:
  // `types`: those of the tensors of the fields.
  ExportBuffers(OpKernelContext* ctx, std::vector<const Field*> fields,
                const std::vector<DataType>& types)
      : ctx_(ctx),
        fields_(std::move(fields)),
        types_(types),
        values_(fields_.size()) {}

  // Makes room for `rows` rows in all, keeping the existing ones.
  absl::Status Reserve(int64_t rows) {
    if (reserved_ && rows <= signs_.dim_size(0)) return absl::OkStatus();
    TF_RETURN_IF_ERROR(
        Grow(tensorflow::DT_INT64, TensorShape({rows}), &signs_));
    for (size_t i = 0; i < fields_.size(); ++i) {
      TF_RETURN_IF_ERROR(
          Grow(types_[i], TensorShape({rows, fields_[i]->count}), &values_[i]));
    }
    reserved_ = true;
    return absl::OkStatus();
  }

  absl::Status Append(const ExportedRows& page) {
    const int64_t n = static_cast<int64_t>(page.signs.size());
    if (rows_ + n > signs_.dim_size(0)) {
      // The table has grown during the export: grow enough to copy rarely.
      TF_RETURN_IF_ERROR(Reserve(rows_ + n + rows_ / 4));
    }
    if (n == 0) return absl::OkStatus();
    std::copy(page.signs.begin(), page.signs.end(),
              signs_.flat<int64_t>().data() + rows_);
    for (size_t i = 0; i < fields_.size(); ++i) {
      const Field& field = *fields_[i];
      if (types_[i] == ToDataType(field.type)) {
        std::memcpy(
            static_cast<char*>(values_[i].data()) + rows_ * field.bytes(),
            page.fields[i].data(), n * field.bytes());
      } else {
        WidenTo(field.type, page.fields[i].data(), n * field.count,
                values_[i].flat<float>().data() + rows_ * field.count);
      }
    }
    rows_ += n;
    return absl::OkStatus();
  }

  int64_t rows() const { return rows_; }
  Tensor signs() const { return signs_.Slice(0, rows_); }
  Tensor values(size_t i) const { return values_[i].Slice(0, rows_); }

 private:
  absl::Status Grow(DataType type, const TensorShape& shape, Tensor* tensor) {
    Tensor larger;
    TF_RETURN_IF_ERROR(ctx_->allocate_temp(type, shape, &larger));
    if (rows_ > 0) {
      std::memcpy(larger.data(), tensor->data(),
                  tensor->Slice(0, rows_).TotalBytes());
    }
    *tensor = std::move(larger);
    return absl::OkStatus();
  }

  OpKernelContext* const ctx_;
  const std::vector<const Field*> fields_;
  const std::vector<DataType>& types_;
  bool reserved_ = false;
  int64_t rows_ = 0;
  Tensor signs_;
  std::vector<Tensor> values_;  // one per field
};

class SparseTableExportOp : public OpKernel {
 public:
  explicit SparseTableExportOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    field_list_.Init(ctx);
  }

  void Compute(OpKernelContext* ctx) override {
    std::shared_ptr<Table> held;
    OP_REQUIRES_OK(ctx, LookupTable(ctx, kHandle, &held));
    const Table& table = *held;
    int64_t cursor, limit;
    OP_REQUIRES_OK(ctx, ScalarInput(ctx, "cursor", kCursor, &cursor));
    OP_REQUIRES_OK(ctx, ScalarInput(ctx, "limit", kLimit, &limit));
    std::vector<const Field*> fields;
    OP_REQUIRES_OK(ctx, field_list_.Resolve(table, &fields));
    ExportBuffers buffers(ctx, std::move(fields), field_list_.types());
    OP_REQUIRES_OK(ctx, CopyRows(table, limit, &cursor, &buffers));

    OP_REQUIRES_OK(ctx, SetScalarOutput(ctx, kNextCursor, cursor));
    ctx->set_output(kSigns, buffers.signs());
    for (size_t i = 0; i < field_list_.names().size(); ++i) {
      ctx->set_output(kFields + i, buffers.values(i));
    }
  }

 private:
  enum Inputs { kHandle, kCursor, kLimit };
  enum Outputs { kSigns, kNextCursor, kFields };

  absl::Status CopyRows(const Table& table, int64_t limit, int64_t* cursor,
                        ExportBuffers* buffers) const {
    const std::vector<int64_t> sizes = table.StripeSizes();
    const int64_t size = std::accumulate(sizes.begin(), sizes.end(), 0LL);
    const bool all = limit < 0 || limit >= size;
    TF_RETURN_IF_ERROR(buffers->Reserve(all ? size : limit));
    // Pages of whole stripes, which are the fastest to copy.
    const int64_t page_rows =
        all ? std::max(kExportPageRows,
                       *std::max_element(sizes.begin(), sizes.end()))
            : limit;
    ExportedRows page;
    do {
      const int64_t left = limit < 0 ? page_rows : limit - buffers->rows();
      TF_RETURN_IF_ERROR(ToTf(table.Export(*cursor, std::min(page_rows, left),
                                           field_list_.names(), &page)));
      TF_RETURN_IF_ERROR(buffers->Append(page));
      *cursor = page.next_cursor;
    } while (all && *cursor != -1 && (limit < 0 || buffers->rows() < limit));
    return absl::OkStatus();
  }

  FieldList field_list_;
};

class SparseTableImportOp : public OpKernel {
 public:
  explicit SparseTableImportOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    field_list_.Init(ctx);
  }

  void Compute(OpKernelContext* ctx) override {
    std::shared_ptr<Table> held;
    OP_REQUIRES_OK(ctx, LookupTable(ctx, kHandle, &held));
    Table& table = *held;
    std::vector<const Field*> fields;
    OP_REQUIRES_OK(ctx, CheckInputs(ctx, table, &fields));
    std::vector<Tensor> stored(fields.size());
    std::vector<ConstFieldData> data;
    int64_t saturated = 0;
    for (size_t i = 0; i < fields.size(); ++i) {
      OP_REQUIRES_OK(ctx, AsStored(ctx, *fields[i], ctx->input(kFields + i),
                                   &stored[i], &saturated));
      data.push_back({fields[i]->name, stored[i].data()});
    }
    int64_t* imported = nullptr;
    OP_REQUIRES_OK(ctx, AllocateOutput(ctx, 0, TensorShape({}), &imported));

    const Tensor& signs = ctx->input(kSigns);
    const int64_t n = signs.dim_size(0);
    if (ctx->input(kClear).scalar<bool>()()) {
      int64_t unused;
      OP_REQUIRES_OK(ctx, ToTf(table.Clear(&unused)));
    }
    OP_REQUIRES_OK(ctx, ToTf(table.Import(signs.flat<int64_t>().data(), n, data,
                                          MakeParallelFor(ctx))));
    table.CountSaturated(saturated);
    *imported = n;
  }

 private:
  enum Inputs { kHandle, kSigns, kClear, kFields };

  // The values of a field in the type in which rows store them. `*saturated`:
  // adds how many were limited.
  static absl::Status AsStored(OpKernelContext* ctx, const Field& field,
                               const Tensor& values, Tensor* stored,
                               int64_t* saturated) {
    if (values.dtype() == ToDataType(field.type)) {
      *stored = values;
      return absl::OkStatus();
    }
    TF_RETURN_IF_ERROR(
        ctx->allocate_temp(ToDataType(field.type), values.shape(), stored));
    *saturated += NarrowToNearest(field.type, values.flat<float>().data(),
                                  values.NumElements(), stored->data());
    return absl::OkStatus();
  }

  absl::Status CheckInputs(OpKernelContext* ctx, const Table& table,
                           std::vector<const Field*>* fields) const {
    TF_RETURN_IF_ERROR(CheckVector("signs", ctx->input(kSigns)));
    TF_RETURN_IF_ERROR(CheckScalar("clear", ctx->input(kClear)));
    TF_RETURN_IF_ERROR(field_list_.Resolve(table, fields));
    const int64_t n = ctx->input(kSigns).dim_size(0);
    for (size_t i = 0; i < fields->size(); ++i) {
      const Field& field = *(*fields)[i];
      const Tensor& values = ctx->input(kFields + i);
      if (values.shape() != TensorShape({n, field.count})) {
        return InvalidArgument(
            "fields[", i, "] ('", field.name, "') must be of shape [", n, ",",
            field.count,
            "] (as signs, the field's values a row), but its "
            "shape is ",
            values.shape().DebugString(), ".");
      }
    }
    return absl::OkStatus();
  }

  FieldList field_list_;
};

TF_EXT_REGISTER_FUNCTION(SparseTableSize);
TF_EXT_REGISTER_FUNCTION(SparseTableShrinkageClock);
TF_EXT_REGISTER_FUNCTION(SparseTableAbsentState);
TF_EXT_REGISTER_FUNCTION(SparseTableStats);
TF_EXT_REGISTER_FUNCTION(SparseTableConfig);
TF_EXT_REGISTER_FUNCTION(SparseTableClear);
TF_EXT_REGISTER_FUNCTION(SparseTableCompact);
TF_EXT_REGISTER_FUNCTION(SparseTableErase);
TF_EXT_REGISTER_KERNEL(SparseTableExport, SparseTableExportOp);
TF_EXT_REGISTER_KERNEL(SparseTableImport, SparseTableImportOp);

}  // namespace
}  // namespace tf_ext
