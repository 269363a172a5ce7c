// SPDX-License-Identifier: Apache-2.0
// Fingerprint64 of FarmHash (Geoff Pike, Google; MIT licence;
// https://github.com/google/farmhash), a new implementation of the published
// algorithm, farmhashna::Hash64. Its results never change, so neither may this
// code.
#include "cc/core/hashing/fingerprint.h"

#include <cstring>
#include <utility>

#include "cc/core/hashing/fingerprint_words.inc"
#include "cc/core/support/cpu.h"

namespace tf_ext {
namespace {

#if defined(__BYTE_ORDER__)
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "Load64 and Load32 read little-endian words");
#endif

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

// Texts of up to 64 bytes are passed as a type with Word(i), the 8 bytes from
// byte i on, so that they need not be contiguous.

// `word` holds the text, the first byte lowest.
inline uint64_t HashUpTo7(uint64_t word, size_t size) {
  if (size >= 4) {
    const uint64_t first = word & 0xffffffffu;
    const uint64_t last = (word >> (8 * (size - 4))) & 0xffffffffu;
    return Mix(size + (first << 3), last, MulForSize(size));
  }
  if (size > 0) {
    const uint64_t first = word & 0xff;
    const uint64_t middle = (word >> (8 * (size >> 1))) & 0xff;
    const uint64_t last = (word >> (8 * (size - 1))) & 0xff;
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

template <typename Text>
inline Ends HashEnds(const Text& s, size_t size, uint64_t first_mul,
                     uint64_t mul) {
  const uint64_t a = s.Word(0) * first_mul;
  const uint64_t b = s.Word(8);
  const uint64_t c = s.Word(size - 8) * mul;
  const uint64_t d = s.Word(size - 16) * kMul2;
  return {a, RotateRight(a + b, 43) + RotateRight(c, 30) + d,
          a + RotateRight(b + kMul2, 18) + c};
}

template <typename Text>
inline uint64_t Hash17To32(const Text& s, size_t size) {
  const uint64_t mul = MulForSize(size);
  const Ends ends = HashEnds(s, size, kMul1, mul);
  return Mix(ends.u, ends.v, mul);
}

template <typename Text>
uint64_t Hash33To64(const Text& s, size_t size) {
  const uint64_t mul = MulForSize(size);
  const Ends ends = HashEnds(s, size, kMul2, mul);
  const uint64_t y = ends.u;
  const uint64_t z = Mix(y, ends.v, mul);
  const uint64_t e = s.Word(16) * mul;
  const uint64_t f = s.Word(24);
  const uint64_t g = (y + s.Word(size - 32)) * mul;
  const uint64_t h = (z + s.Word(size - 24)) * mul;
  return Mix(RotateRight(e + f, 43) + RotateRight(g, 30) + h,
             e + RotateRight(f + ends.a, 18) + g, mul);
}

// 8 to 64 bytes.
template <typename Text>
inline uint64_t HashShort(const Text& s, size_t size) {
  if (size <= 16) return Hash8To16(s.Word(0), s.Word(size - 8), size);
  if (size <= 32) return Hash17To32(s, size);
  return Hash33To64(s, size);
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

// The first 8 bytes of a text, zero after its end.
inline uint64_t FirstWord(const char* s, size_t size) {
  if (size >= 8) return Load64(s);
  if (size >= 4) {
    return Load32(s) | Load32(s + size - 4) << (8 * (size - 4));
  }
  uint64_t word = 0;
  for (size_t i = 0; i < size; ++i) {
    word |= static_cast<uint64_t>(static_cast<uint8_t>(s[i])) << (8 * i);
  }
  return word;
}

struct FlatText {
  const char* data;

  uint64_t Word(size_t i) const { return Load64(data + i); }
};

struct PrefixedText {
  const char* prefix;  // zero bytes follow
  size_t prefix_size;
  const char* text;
  uint64_t first_word;  // of text

  uint64_t Word(size_t i) const {
    if (i >= prefix_size) return Load64(text + (i - prefix_size));
    const uint64_t word = Load64(prefix + i);
    const size_t from_prefix = prefix_size - i;
    return from_prefix < 8 ? word | first_word << (8 * from_prefix) : word;
  }
};

constexpr size_t kMaxShort = 64;

}  // namespace

uint64_t Fingerprint64(const char* data, size_t size) {
  if (size < 8) return HashUpTo7(FirstWord(data, size), size);
  if (size <= kMaxShort) return HashShort(FlatText{data}, size);
  return HashLong(data, size);
}

PrefixFingerprint::PrefixFingerprint(std::string_view prefix)
    : padded_(prefix) {
  padded_.append(kPadding, '\0');
}

uint64_t PrefixFingerprint::One(std::string_view text) const {
  const size_t size = prefix_size() + text.size();
  if (size > kMaxShort) return Joined(text);
  const uint64_t first_word = FirstWord(text.data(), text.size());
  if (size < 8) {
    const uint64_t prefix_word = Load64(padded_.data());
    return HashUpTo7(prefix_word | first_word << (8 * prefix_size()), size);
  }
  return HashShort(
      PrefixedText{padded_.data(), prefix_size(), text.data(), first_word},
      size);
}

uint64_t PrefixFingerprint::Joined(std::string_view text) const {
  char stack[512];
  std::string heap;
  const size_t size = prefix_size() + text.size();
  char* joined = stack;
  if (size > sizeof(stack)) {
    heap.resize(size);
    joined = heap.data();
  }
  prefix().copy(joined, prefix_size());
  text.copy(joined + prefix_size(), text.size());
  return HashLong(joined, size);
}

void PrefixFingerprint::Fingerprints(const std::string_view* texts, int64_t n,
                                     int64_t* out) const {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<int64_t>(One(texts[i]));
}

size_t PrefixFingerprint::MostOfWords() const {
#ifdef __x86_64__
  if (CurrentSimdLevel() >= SimdLevel::kAvx512 && prefix_size() < 8) {
    return 16 - prefix_size();
  }
#endif
  return 0;
}

void PrefixFingerprint::OfWords(TextWords* words, int n, int64_t* out) const {
#ifdef __x86_64__
  HashWordsAvx512(words, n, Load64(padded_.data()), prefix_size());
  std::memcpy(out, words->first, n * sizeof(*out));
#endif
}

}  // namespace tf_ext
