#include "cc/core/table.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "cc/core/stripe.h"
#include "cc/core/table_stripes.h"

namespace tf_ext {
namespace {

// Values of a block of the check for non-finite gradients.
constexpr int64_t kValuesPerBlock = 1 << 18;

constexpr int kCursorRowBits = 40;

bool AllFinite(const float* values, int64_t n) {
  // An exponent of all ones carries into the sign bit. Integers, because the
  // compiler turns this into vector instructions.
  uint32_t carry = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, values + i, sizeof(bits));
    carry |= (bits & 0x7f800000u) + 0x00800000u;
  }
  return (carry & 0x80000000u) == 0;
}

// n if all are finite.
int64_t FirstNonFinite(const float* values, int64_t n,
                       const ParallelFor& parallel_for) {
  const int64_t blocks = std::max<int64_t>(1, n / kValuesPerBlock);
  std::atomic<int64_t> first{n};
  const auto check = [&](int64_t b) {
    const int64_t end = n * (b + 1) / blocks;
    int64_t i = n * b / blocks;
    if (AllFinite(values + i, end - i)) return;
    while (AllFinite(values + i, 1)) ++i;
    int64_t found = first.load();
    while (i < found && !first.compare_exchange_weak(found, i)) {
    }
  };
  RunBlocks(blocks, parallel_for, check);
  return first.load();
}

}  // namespace

Status Table::Create(const TableConfig& config, std::unique_ptr<Table>* table) {
  const Status status = CheckTableConfig(config);
  if (!status.ok()) return status;
  try {
    table->reset(new Table(config));
  } catch (const std::bad_alloc&) {
    return Status::ResourceExhausted("out of memory while making table \"" +
                                     config.name + "\".");
  }
  return Status::Ok();
}

Table::Table(const TableConfig& config)
    : config_(config),
      layout_(config),
      initializer_(config),
      rule_(config, layout_),
      format_(std::make_unique<RowFormat>(layout_, &initializer_)) {
  stripes_.reserve(kStripes);
  for (int i = 0; i < kStripes; ++i) {
    stripes_.push_back(std::make_unique<Stripe>(i, format_.get(), &memory_));
  }
}

Table::~Table() = default;

Status Table::OutOfMemory() const {
  return Status::ResourceExhausted(
      "out of memory in table \"" + config_.name + "\", which has " +
      std::to_string(Size()) + " rows of " + std::to_string(layout_.stride()) +
      " bytes; use more shards, or erase rows. Part of the batch may have "
      "been applied.");
}

Status Table::FindField(const std::string& name, const Field** field) const {
  *field = layout_.Find(name);
  if (*field != nullptr) return Status::Ok();
  std::string allowed;
  for (const Field& each : layout_.fields()) {
    if (!allowed.empty()) allowed += ", ";
    allowed += each.name;
  }
  return Status::InvalidArgument("table \"" + config_.name +
                                 "\" has no field \"" + name +
                                 "\"; its fields are " + allowed + ".");
}

Status Table::Push(const int64_t* signs, const float* gradients, int64_t n,
                   const double* hyperparameters, int64_t hyperparameter_count,
                   int64_t step, const ParallelFor& parallel_for,
                   int64_t* updated) {
  *updated = 0;
  Status status = CheckCount(n);
  if (!status.ok()) return status;
  status = rule_.Check(hyperparameters, hyperparameter_count, step);
  if (!status.ok()) return status;
  const int64_t values = n * config_.dim;
  const int64_t bad = FirstNonFinite(gradients, values, parallel_for);
  if (bad < values) {
    const int64_t i = bad / config_.dim;
    return Status::InvalidArgument(
        "gradients[" + std::to_string(i) + ", " +
        std::to_string(bad % config_.dim) + "] of sign " +
        std::to_string(signs[i]) + " is " + std::to_string(gradients[bad]) +
        "; gradients must be finite. Table \"" + config_.name +
        "\" was not changed. Look for NaN and "
        "infinity in labels, sample weights and "
        "features, lower the learning rate, clip "
        "gradients, or leave such steps out with "
        "on_nonfinite=\"skip\" of "
        "tf_ext.optimizers.Optimizer.");
  }
  try {
    const UpdateRule::Push push =
        rule_.Prepare(hyperparameters, hyperparameter_count, step);
    status = ForEachStripe(signs, n, parallel_for,
                           [&](int s, BatchItem* items, int64_t count) {
                             stripes_[s]->Push(items, count, push, gradients);
                           });
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  }
  if (status.ok()) *updated = n;
  return status;
}

Status Table::Export(int64_t cursor, int64_t limit,
                     const std::vector<std::string>& fields,
                     ExportedRows* rows) const {
  constexpr int64_t kEnd = int64_t{kStripes} << kCursorRowBits;
  if (cursor < 0 || cursor >= kEnd) {
    return Status::InvalidArgument("cursor is " + std::to_string(cursor) +
                                   "; it must be 0 or the "
                                   "next_cursor of the export before, below " +
                                   std::to_string(kEnd) + ".");
  }
  if (limit < -1) {
    return Status::InvalidArgument("limit is " + std::to_string(limit) +
                                   "; it must be -1 (all rows) or at least "
                                   "0.");
  }
  std::vector<const Field*> found(fields.size());
  for (size_t f = 0; f < fields.size(); ++f) {
    const Status status = FindField(fields[f], &found[f]);
    if (!status.ok()) return status;
  }
  rows->signs.clear();
  rows->fields.assign(fields.size(), {});
  rows->next_cursor = -1;
  const ExportSink sink = {found, &rows->signs, &rows->fields};
  const int64_t most = limit == -1 ? INT64_MAX : limit;
  // A cursor's row number has more bits than a row number; beyond is the end.
  uint32_t row = static_cast<uint32_t>(
      std::min<int64_t>(cursor & ((int64_t{1} << kCursorRowBits) - 1), kNoRow));
  try {
    for (int64_t s = cursor >> kCursorRowBits; s < kStripes; ++s, row = 0) {
      const int64_t left = most - static_cast<int64_t>(rows->signs.size());
      row = stripes_[s]->Export(row, left, sink);
      if (row == kNoRow) continue;
      rows->next_cursor = (s << kCursorRowBits) | row;
      break;
    }
  } catch (const std::bad_alloc&) {
    *rows = ExportedRows();
    return Status::ResourceExhausted(
        "out of memory while exporting rows of table \"" + config_.name +
        "\"; use a smaller limit.");
  }
  return Status::Ok();
}

Status Table::Import(const int64_t* signs, int64_t n,
                     const std::vector<ConstFieldData>& fields,
                     const ParallelFor& parallel_for) {
  Status status = CheckCount(n);
  if (!status.ok()) return status;
  std::vector<BoundField> bound;
  for (const ConstFieldData& each : fields) {
    const Field* field = nullptr;
    status = FindField(each.name, &field);
    if (!status.ok()) return status;
    for (const BoundField& before : bound) {
      if (before.offset != field->offset) continue;
      return Status::InvalidArgument("field \"" + each.name +
                                     "\" is there twice; each field of table "
                                     "\"" +
                                     config_.name + "\" can be given once.");
    }
    const int64_t bytes = field->bytes();
    bound.push_back(
        {field->offset, bytes, static_cast<const uint8_t*>(each.data), bytes});
  }
  return ForEachStripe(signs, n, parallel_for,
                       [&](int s, BatchItem* items, int64_t count) {
                         stripes_[s]->Import(items, count, bound);
                       });
}

Status Table::Erase(const int64_t* signs, int64_t n,
                    const ParallelFor& parallel_for, int64_t* erased) {
  *erased = 0;
  Status status = CheckCount(n);
  if (!status.ok()) return status;
  std::atomic<int64_t> total{0};
  status = ForEachStripe(signs, n, parallel_for,
                         [&](int s, BatchItem* items, int64_t count) {
                           total += stripes_[s]->Erase(items, count);
                         });
  *erased = total;
  return status;
}

int64_t Table::Clear() {
  int64_t cleared = 0;
  for (const auto& stripe : stripes_) cleared += stripe->Clear();
  return cleared;
}

int64_t Table::Size() const {
  int64_t size = 0;
  for (const auto& stripe : stripes_) size += stripe->Size();
  return size;
}

TableStats Table::Stats() const {
  TableStats total;
  total.stripes = kStripes;
  total.row_bytes = layout_.stride();
  total.min_stripe_rows = INT64_MAX;
  for (const auto& stripe : stripes_) {
    const Stripe::Stats stats = stripe->GetStats();
    total.rows += stats.rows;
    total.free_rows += stats.free_rows;
    total.slab_bytes += stats.slab_bytes;
    total.index_bytes += stats.index_bytes;
    total.max_stripe_rows = std::max(total.max_stripe_rows, stats.rows);
    total.min_stripe_rows = std::min(total.min_stripe_rows, stats.rows);
    total.max_probe_length =
        std::max(total.max_probe_length, stats.max_probe_length);
  }
  return total;
}

std::vector<int64_t> Table::StripeSizes() const {
  std::vector<int64_t> sizes;
  for (const auto& stripe : stripes_) sizes.push_back(stripe->Size());
  return sizes;
}

}  // namespace tf_ext
