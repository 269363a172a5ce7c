// SPDX-License-Identifier: Apache-2.0
// CRC32C (Castagnoli), the checksum of snapshots.
#ifndef TF_EXT_CC_CORE_SNAPSHOT_CRC32C_H_
#define TF_EXT_CC_CORE_SNAPSHOT_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace tf_ext {

// The CRC32C of `size` bytes that follow those whose CRC32C is `crc` (0: that
// follow none). By the processor's instruction if it has one.
uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t size);

// The CRC32C of bytes whose CRC32C is `first`, followed by `size` bytes whose
// own is `second`.
uint32_t CombineCrc32c(uint32_t first, uint32_t second, uint64_t size);

// ExtendCrc32c by a table, which every processor can.
uint32_t ExtendCrc32cPortably(uint32_t crc, const void* data, size_t size);

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_SNAPSHOT_CRC32C_H_
