// A concurrent hash table from signs (any int64) to rows.
//
// This is the contract; the design is in stripe.h, bucket_index.h and
// row_slabs.h.
#ifndef TF_EXT_CC_CORE_TABLE_H_
#define TF_EXT_CC_CORE_TABLE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cc/core/config.h"
#include "cc/core/initializer.h"
#include "cc/core/parallel.h"
#include "cc/core/row_layout.h"
#include "cc/core/slab_memory.h"
#include "cc/core/snapshot_chunk.h"
#include "cc/core/status.h"
#include "cc/core/update_rule.h"

namespace tf_ext {

class Stripe;
struct RowFormat;
struct SignPart;

struct TableStats {
  int64_t rows = 0;
  int64_t free_rows = 0;  // erased rows, to be used again
  int64_t stripes = 0;
  int64_t row_bytes = 0;    // stride of a row
  int64_t slab_bytes = 0;   // memory that rows, free ones too, occupy
  int64_t index_bytes = 0;  // memory taken for the indexes
  int64_t max_stripe_rows = 0;
  int64_t min_stripe_rows = 0;
  int64_t max_probe_length = 0;  // buckets looked at for the worst present sign
};

// A field to export or import: `name` is in layout(), `data` points at
// [n, count] values of the field's type.
struct ConstFieldData {
  std::string name;
  const void* data;
};

struct ExportedRows {
  std::vector<int64_t> signs;
  // One a requested field, [signs.size(), count] values, as raw bytes.
  std::vector<std::vector<uint8_t>> fields;
  int64_t next_cursor = 0;  // -1: that was all
};

// A field in the rows of a snapshot: `offset` bytes from a row's start.
struct StoredField {
  std::string name;
  FieldType type;
  int64_t count;
  int64_t offset;
};

// Rows of a snapshot, and which of them are wanted: those of shard `shard` of
// `shards`. A table's fields that are not among `fields` start as a new row's.
struct StoredRows {
  std::vector<StoredField> fields;
  int64_t row_bytes;
  int64_t shard = 0;
  int64_t shards = 1;
};

// Takes the chunks of a file, in order.
using ChunkSink = std::function<Status(const ChunkEncoder::Chunk& chunk)>;

struct WrittenRows {
  int64_t rows = 0;
  int64_t erased = 0;
};

class Table {
 public:
  static Status Create(const TableConfig& config,
                       std::unique_ptr<Table>* table);
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  const TableConfig& config() const { return config_; }
  const RowLayout& layout() const { return layout_; }

  // All methods can be called from several threads at once. Signs may repeat
  // in a batch. None throws; out of memory is kResourceExhausted.

  // out: [n, dim]. An absent sign is created if `insert`; else it reads the
  // weights it would start with and nothing changes.
  Status Pull(const int64_t* signs, int64_t n, bool insert, float* out,
              const ParallelFor& parallel_for) {
    return Pull({{signs, n, out}}, insert, parallel_for);
  }
  // The same for parts that go to different places of one buffer.
  struct PullPart {
    const int64_t* signs;
    int64_t n;
    float* out;
  };
  Status Pull(const std::vector<PullPart>& parts, bool insert,
              const ParallelFor& parallel_for);

  // gradients: [n, dim]. Absent signs are created first. Refused whole, table
  // unchanged, if a gradient is not finite or a hyperparameter is out of range.
  // A sign that is there twice is updated twice, in order.
  Status Push(const int64_t* signs, const float* gradients, int64_t n,
              const double* hyperparameters, int64_t hyperparameter_count,
              int64_t step, const ParallelFor& parallel_for, int64_t* updated);

  // Copies up to `limit` rows (-1: all) from `cursor` on (0: the first; else
  // the next_cursor of the call before), in the order of stripes and of row
  // numbers in them. Rows present throughout a
  // walk are seen exactly once, whatever is inserted or erased meanwhile.
  // All fields of a row are copied under one lock hold.
  Status Export(int64_t cursor, int64_t limit,
                const std::vector<std::string>& fields,
                ExportedRows* rows) const;

  // Sets the given fields of the signs; creates absent rows, whose other
  // fields start as a new row's. A sign that is there twice: the last wins.
  Status Import(const int64_t* signs, int64_t n,
                const std::vector<ConstFieldData>& fields,
                const ParallelFor& parallel_for);

  // Removes rows; returns how many were there.
  Status Erase(const int64_t* signs, int64_t n, const ParallelFor& parallel_for,
               int64_t* erased);
  // Removes all rows and gives their memory back; returns how many there were.
  int64_t Clear();

  // Snapshots, in table_snapshot.cc; their format is in docs/snapshots.md.
  //
  // A chain is a full snapshot and the deltas that continue it, each known by
  // its id. A table has one chain at most, and marks its changes since the last
  // snapshot of it that was committed.

  // Begins to save `id` as the first snapshot of a chain, or, with a `base`, as
  // the delta that follows it. Then WriteRows for all stripes, then
  // EndChainSave; if it was not committed, all is as before.
  Status BeginChainSave(const std::string& id, const std::string& base);
  Status EndChainSave(const std::string& id, bool committed);
  // Says that the table holds what the snapshot `id` of a chain does, and marks
  // changes from now on; "" ends the chain.
  Status SetChain(const std::string& id);
  // The id of the chain's last snapshot; "" if there is no chain.
  std::string Chain() const;

  // Writes the rows of stripes [first_stripe, end_stripe) as one file: those
  // present when it began, less those erased meanwhile. `changed`: only rows
  // and erased signs of the delta that BeginChainSave began. A stripe is
  // locked while the rows of one chunk are copied.
  Status WriteRows(int first_stripe, int end_stripe, bool changed,
                   const ChunkFormat& format, const ChunkSink& sink,
                   WrittenRows* written) const;

  // Fails if the fields of the rows are not those of the table.
  Status CheckStoredRows(const StoredRows& stored) const;
  // Erases and sets the rows of a chunk that belong to the shard.
  Status ApplyChunk(const StoredRows& stored, const ChunkView& chunk,
                    int64_t* rows);

  int64_t Size() const;
  TableStats Stats() const;
  // For tests: rows in each stripe.
  std::vector<int64_t> StripeSizes() const;

 private:
  explicit Table(const TableConfig& config);

  // Deals the signs out and runs share(stripe number, items, count) for each
  // stripe that got some, several at the same time.
  template <typename Part, typename Share>
  Status ForEachStripe(const std::vector<Part>& parts,
                       const ParallelFor& parallel_for, const Share& share);
  // Of one part, whose positions count from 0.
  template <typename Share>
  Status ForEachStripe(const int64_t* signs, int64_t n,
                       const ParallelFor& parallel_for, const Share& share);
  // Throws std::bad_alloc.
  Status PullParts(const std::vector<SignPart>& parts, bool insert, float* out,
                   const ParallelFor& parallel_for);
  Status OutOfMemory() const;
  // Bytes of stored rows and where they go in the table's.
  struct CopiedBytes {
    int64_t to;
    int64_t from;
    int64_t bytes;
  };
  Status ResolveStoredRows(const StoredRows& stored,
                           std::vector<CopiedBytes>* copied) const;
  Status EraseStored(const StoredRows& stored, const uint8_t* signs, int64_t n);
  // nullptr and an error that lists the fields, if there is none of the name.
  Status FindField(const std::string& name, const Field** field) const;

  const TableConfig config_;
  const RowLayout layout_;
  const Initializer initializer_;
  const UpdateRule rule_;
  const std::unique_ptr<const RowFormat> format_;
  SlabMemory memory_;
  std::vector<std::unique_ptr<Stripe>> stripes_;

  mutable std::mutex chain_mutex_;
  std::string chain_;   // id of its last snapshot; "": there is none
  std::string saving_;  // id of the one that is being written
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_H_
