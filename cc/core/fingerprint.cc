// Fingerprint64 of FarmHash (Geoff Pike, Google; MIT licence;
// https://github.com/google/farmhash), written anew from the published
// algorithm, there called farmhashna::Hash64. Its result for a text never
// changes, so neither may anything here.
#include "cc/core/fingerprint.h"

#include <cstring>
#include <utility>

namespace tf_ext {
namespace {

#if defined(__BYTE_ORDER__)
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "Load64 and Load32 read little-endian words");
#endif

constexpr uint64_t kMul0 = 0xc3a5c85c97cb3127u;
constexpr uint64_t kMul1 = 0xb492b66fbe98f273u;
constexpr uint64_t kMul2 = 0x9ae16a3b2f90404fu;

constexpr size_t kBlockBytes = 64;

inline uint64_t Load64(const char* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

inline uint64_t Load32(const char* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

inline uint64_t RotateRight(uint64_t x, int bits) {
  return (x >> bits) | (x << (64 - bits));
}

inline uint64_t ShiftMix(uint64_t x) { return x ^ (x >> 47); }

// Two words to one.
inline uint64_t Mix(uint64_t u, uint64_t v, uint64_t mul) {
  const uint64_t a = ShiftMix((u ^ v) * mul);
  return ShiftMix((v ^ a) * mul) * mul;
}

inline uint64_t MulForSize(size_t size) { return kMul2 + size * 2; }

inline uint64_t HashUpTo16(const char* s, size_t size) {
  if (size >= 8) {
    const uint64_t mul = MulForSize(size);
    const uint64_t a = Load64(s) + kMul2;
    const uint64_t b = Load64(s + size - 8);
    const uint64_t c = RotateRight(b, 37) * mul + a;
    const uint64_t d = (RotateRight(a, 25) + b) * mul;
    return Mix(c, d, mul);
  }
  if (size >= 4) {
    return Mix(size + (Load32(s) << 3), Load32(s + size - 4), MulForSize(size));
  }
  if (size > 0) {
    const uint64_t first = static_cast<uint8_t>(s[0]);
    const uint64_t middle = static_cast<uint8_t>(s[size >> 1]);
    const uint64_t last = static_cast<uint8_t>(s[size - 1]);
    return ShiftMix((first + (middle << 8)) * kMul2 ^
                    (size + (last << 2)) * kMul0) *
           kMul2;
  }
  return kMul2;
}

// The first and last 16 bytes of a text, before they are mixed to one word.
struct Ends {
  uint64_t a, u, v;
};

inline Ends HashEnds(const char* s, size_t size, uint64_t first_mul,
                     uint64_t mul) {
  const uint64_t a = Load64(s) * first_mul;
  const uint64_t b = Load64(s + 8);
  const uint64_t c = Load64(s + size - 8) * mul;
  const uint64_t d = Load64(s + size - 16) * kMul2;
  return {a, RotateRight(a + b, 43) + RotateRight(c, 30) + d,
          a + RotateRight(b + kMul2, 18) + c};
}

inline uint64_t HashUpTo32(const char* s, size_t size) {
  const uint64_t mul = MulForSize(size);
  const Ends ends = HashEnds(s, size, kMul1, mul);
  return Mix(ends.u, ends.v, mul);
}

uint64_t HashUpTo64(const char* s, size_t size) {
  const uint64_t mul = MulForSize(size);
  const Ends ends = HashEnds(s, size, kMul2, mul);
  const uint64_t y = ends.u;
  const uint64_t z = Mix(y, ends.v, mul);
  const uint64_t e = Load64(s + 16) * mul;
  const uint64_t f = Load64(s + 24);
  const uint64_t g = (y + Load64(s + size - 32)) * mul;
  const uint64_t h = (z + Load64(s + size - 24)) * mul;
  return Mix(RotateRight(e + f, 43) + RotateRight(g, 30) + h,
             e + RotateRight(f + ends.a, 18) + g, mul);
}

struct Pair {
  uint64_t first = 0;
  uint64_t second = 0;
};

// 32 bytes into a pair of seeds.
inline Pair MixPair(const char* s, uint64_t a, uint64_t b) {
  a += Load64(s);
  const uint64_t start = a;
  b = RotateRight(b + a + Load64(s + 24), 21);
  a += Load64(s + 8) + Load64(s + 16);
  b += RotateRight(a, 44);
  return {a + Load64(s + 24), b + start};
}

struct LongState {
  uint64_t x, y, z;
  Pair v, w;

  // One block. `scale` is 1 in the loop and 9 for the last block.
  void Add(const char* s, uint64_t mul, uint64_t scale) {
    x = RotateRight(x + y + v.first + Load64(s + 8), 37) * mul;
    y = RotateRight(y + v.second + Load64(s + 48), 42) * mul;
    x ^= w.second * scale;
    y += v.first * scale + Load64(s + 40);
    z = RotateRight(z + w.first, 33) * mul;
    v = MixPair(s, v.second * mul, x + w.first);
    w = MixPair(s + 32, z + w.second, y + Load64(s + 16));
    std::swap(z, x);
  }
};

uint64_t HashLong(const char* s, size_t size) {
  constexpr uint64_t kSeed = 81;
  LongState state;
  state.y = kSeed * kMul1 + 113;
  state.z = ShiftMix(state.y * kMul2 + 113) * kMul2;
  state.x = kSeed * kMul2 + Load64(s);

  // The last block always ends with the text, so it can overlap the one
  // before it.
  const size_t tail = (size - 1) % kBlockBytes;
  const char* const end = s + (size - 1 - tail);
  for (; s != end; s += kBlockBytes) state.Add(s, kMul1, 1);

  const uint64_t mul = kMul1 + ((state.z & 0xff) << 1);
  state.w.first += tail;
  state.v.first += state.w.first;
  state.w.first += state.v.first;
  state.Add(end + tail + 1 - kBlockBytes, mul, 9);
  return Mix(Mix(state.v.first, state.w.first, mul) +
                 ShiftMix(state.y) * kMul0 + state.z,
             Mix(state.v.second, state.w.second, mul) + state.x, mul);
}

}  // namespace

uint64_t Fingerprint64(const char* data, size_t size) {
  if (size <= 16) return HashUpTo16(data, size);
  if (size <= 32) return HashUpTo32(data, size);
  if (size <= 64) return HashUpTo64(data, size);
  return HashLong(data, size);
}

}  // namespace tf_ext
