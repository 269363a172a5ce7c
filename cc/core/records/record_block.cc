// SPDX-License-Identifier: Apache-2.0
#include "cc/core/records/record_block.h"

#include <cstring>
#include <limits>

#include "cc/core/snapshot/crc32c.h"

namespace tf_ext {
namespace {

constexpr size_t kHeader = 12;
constexpr size_t kFooter = 4;

// Data that contain checksums of their own would have degenerate ones.
uint32_t Masked(uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

uint32_t Load32(const char* data) {
  uint32_t value;
  std::memcpy(&value, data, sizeof(value));
  return value;
}

bool Matches(const char* data, size_t size, const char* checksum) {
  return Masked(ExtendCrc32c(0, data, size)) == Load32(checksum);
}

}  // namespace

RecordBlock SplitRecords(std::string_view block) {
  RecordBlock found;
  size_t place = 0;
  while (block.size() - place >= kHeader) {
    const char* const header = block.data() + place;
    uint64_t size;
    std::memcpy(&size, header, sizeof(size));
    if (!Matches(header, sizeof(size), header + sizeof(size)) ||
        size > std::numeric_limits<int64_t>::max() - kHeader - kFooter) {
      found.damaged = true;
      break;
    }
    found.next_size = kHeader + size + kFooter;
    if (block.size() - place < found.next_size) break;
    found.begins.push_back(place + kHeader);
    found.ends.push_back(place + kHeader + size);
    place += found.next_size;
    found.next_size = 0;
  }
  found.consumed = place;
  return found;
}

bool HasChecksum(std::string_view block, int64_t begin, int64_t end) {
  const char* const data = block.data() + begin;
  return Matches(data, end - begin, block.data() + end);
}

}  // namespace tf_ext
