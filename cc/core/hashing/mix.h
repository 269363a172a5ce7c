// SPDX-License-Identifier: Apache-2.0
// Bit mixers. Shard, stripe and slot of a sign come from independent bits, so
// that neither sequential signs nor multiples of a power of two collide often.
#ifndef TF_EXT_CC_CORE_HASHING_MIX_H_
#define TF_EXT_CC_CORE_HASHING_MIX_H_

#include <cstdint>

namespace tf_ext {

// The finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable
// pseudorandom number generators", 2014; constants of Stafford's variant 13).
inline uint64_t Mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Stripe (high bits), tag and slot (other bits) inside a shard.
inline uint64_t TableHash(int64_t sign) {
  return Mix64(static_cast<uint64_t>(sign) + 0x9e3779b97f4a7c15u);
}

// The sign of a TableHash, which is a bijection.
inline int64_t SignOfTableHash(uint64_t hash) {
  // The steps of Mix64 backwards: the constants are the inverses modulo 2^64.
  hash = (hash ^ (hash >> 31) ^ (hash >> 62)) * 0x319642b2d24d8ec3u;
  hash = (hash ^ (hash >> 27) ^ (hash >> 54)) * 0x96de1b173f119089u;
  hash = hash ^ (hash >> 30) ^ (hash >> 60);
  return static_cast<int64_t>(hash - 0x9e3779b97f4a7c15u);
}

inline constexpr int kStripeBits = 6;
inline constexpr int kStripes = 1 << kStripeBits;

// The stripe of a sign inside its shard.
inline int StripeOf(uint64_t table_hash) {
  return static_cast<int>(table_hash >> (64 - kStripeBits));
}

// The shard that owns a sign: another mix, so that the signs of one shard
// still fill all its stripes.
inline int64_t ShardOf(int64_t sign, int64_t num_shards) {
  const uint64_t hash =
      Mix64(static_cast<uint64_t>(sign) ^ 0xd1b54a32d192ed03u);
  return static_cast<int64_t>((static_cast<unsigned __int128>(hash) *
                               static_cast<unsigned __int128>(num_shards)) >>
                              64);
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_HASHING_MIX_H_
