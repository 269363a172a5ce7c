// FarmHash's Fingerprint64: fixed for ever, the same as
// tf.strings.to_hash_bucket_fast, BigQuery's FARM_FINGERPRINT, Guava's
// farmHashFingerprint64 and ClickHouse's farmFingerprint64.
#ifndef TF_EXT_CC_CORE_FINGERPRINT_H_
#define TF_EXT_CC_CORE_FINGERPRINT_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace tf_ext {

uint64_t Fingerprint64(const char* data, size_t size);

inline uint64_t Fingerprint64(const std::string& text) {
  return Fingerprint64(text.data(), text.size());
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_FINGERPRINT_H_
