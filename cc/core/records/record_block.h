// SPDX-License-Identifier: Apache-2.0
// The records of a block of a TFRecord file. Each has a length (8 bytes, little
// endian), the checksum of the length (4), data and the checksum of the data
// (4).
#ifndef TF_EXT_CC_CORE_RECORDS_RECORD_BLOCK_H_
#define TF_EXT_CC_CORE_RECORDS_RECORD_BLOCK_H_

#include <cstdint>
#include <string_view>
#include <vector>

namespace tf_ext {

struct RecordBlock {
  // Where the data of the whole records begin and end.
  std::vector<int64_t> begins;
  std::vector<int64_t> ends;
  // The bytes of the whole records; what follows begins a record.
  int64_t consumed = 0;
  // Whether the length at `consumed` does not have its checksum, so that
  // nobody knows where the next record begins.
  bool damaged = false;
  // What the record at `consumed` has in all; 0 if its length is not there.
  uint64_t next_size = 0;
};

RecordBlock SplitRecords(std::string_view block);

// Whether the data from `begin` up to `end` have the checksum that follows
// them.
bool HasChecksum(std::string_view block, int64_t begin, int64_t end);

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_RECORDS_RECORD_BLOCK_H_
