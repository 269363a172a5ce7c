#include "cc/core/crc32c.h"

#include <array>
#include <cstring>

#ifdef __x86_64__
#include <nmmintrin.h>
#endif

namespace tf_ext {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected

std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) {
      rest = (rest >> 1) ^ ((rest & 1) != 0 ? kPolynomial : 0);
    }
    table[byte] = rest;
  }
  return table;
}

#ifdef __x86_64__
__attribute__((target("sse4.2"))) uint32_t ExtendBySse42(uint32_t crc,
                                                         const void* data,
                                                         size_t size) {
  const uint8_t* at = static_cast<const uint8_t*>(data);
  uint64_t state = ~crc;
  for (; size >= sizeof(uint64_t); size -= sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, at, sizeof(word));
    state = _mm_crc32_u64(state, word);
    at += sizeof(word);
  }
  uint32_t rest = static_cast<uint32_t>(state);
  for (; size > 0; --size) rest = _mm_crc32_u8(rest, *at++);
  return ~rest;
}
#endif

}  // namespace

uint32_t ExtendCrc32cPortably(uint32_t crc, const void* data, size_t size) {
  static const std::array<uint32_t, 256> table = MakeTable();
  const uint8_t* at = static_cast<const uint8_t*>(data);
  uint32_t state = ~crc;
  for (; size > 0; --size) {
    state = (state >> 8) ^ table[(state ^ *at++) & 0xff];
  }
  return ~state;
}

uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t size) {
#ifdef __x86_64__
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return ExtendBySse42(crc, data, size);
#endif
  return ExtendCrc32cPortably(crc, data, size);
}

}  // namespace tf_ext
