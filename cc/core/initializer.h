// Initial weights of a row. They depend on (seed, table id, sign, position)
// only, and are bitwise the same on every instruction set.
#ifndef TF_EXT_CC_CORE_INITIALIZER_H_
#define TF_EXT_CC_CORE_INITIALIZER_H_

#include <cstdint>

#include "cc/core/config.h"
#include "cc/core/initializer_args.h"

namespace tf_ext {

class Initializer {
 public:
  // The table id is Fingerprint64(config.name).
  explicit Initializer(const TableConfig& config);

  // out: [dim].
  void Fill(int64_t sign, float* out) const { fill_(args_, sign, out); }

 private:
  InitializerArgs args_;
  InitializerFn fill_;  // picked for this CPU once
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_INITIALIZER_H_
