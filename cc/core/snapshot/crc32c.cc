// SPDX-License-Identifier: Apache-2.0
#include "cc/core/snapshot/crc32c.h"

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

// Polynomials over GF(2) modulo the CRC's, the highest power in the lowest
// bit: a CRC is one, and to append n zero bytes is to multiply by x^(8 n).
uint32_t Multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 1u << 31; a != 0; bit >>= 1) {
    if ((a & bit) != 0) {
      product ^= b;
      a ^= bit;
    }
    b = (b >> 1) ^ ((b & 1) != 0 ? kPolynomial : 0);
  }
  return product;
}

// x^(8 n)
uint32_t PowerOfByte(uint64_t n) {
  uint32_t result = 1u << 31;        // x^0
  uint32_t square = 1u << (31 - 8);  // x^8
  for (; n != 0; n >>= 1) {
    if ((n & 1) != 0) result = Multiply(result, square);
    square = Multiply(square, square);
  }
  return result;
}

#ifdef __x86_64__
// The instruction has a latency of three cycles and a throughput of one per
// cycle: three parts of a block are interleaved.
constexpr size_t kPartBytes = 8192;

__attribute__((target("sse4.2"))) uint32_t ExtendBySse42(uint32_t crc,
                                                         const void* data,
                                                         size_t size) {
  static const uint32_t skip_part = PowerOfByte(kPartBytes);
  const uint8_t* at = static_cast<const uint8_t*>(data);
  uint64_t state = static_cast<uint32_t>(~crc);
  for (; size >= 3 * kPartBytes; size -= 3 * kPartBytes) {
    uint64_t second = 0, third = 0;
    for (const uint8_t* end = at + kPartBytes; at < end; at += 8) {
      uint64_t words[3];
      std::memcpy(&words[0], at, 8);
      std::memcpy(&words[1], at + kPartBytes, 8);
      std::memcpy(&words[2], at + 2 * kPartBytes, 8);
      state = _mm_crc32_u64(state, words[0]);
      second = _mm_crc32_u64(second, words[1]);
      third = _mm_crc32_u64(third, words[2]);
    }
    state = Multiply(static_cast<uint32_t>(state), skip_part) ^ second;
    state = Multiply(static_cast<uint32_t>(state), skip_part) ^ third;
    at += 2 * kPartBytes;
  }
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

uint32_t CombineCrc32c(uint32_t first, uint32_t second, uint64_t size) {
  return Multiply(first, PowerOfByte(size)) ^ second;
}

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
