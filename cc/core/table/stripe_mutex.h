// SPDX-License-Identifier: Apache-2.0
// The mutex of a stripe, for ExclusiveLock and SharedLock.
//
// std::shared_mutex is not used, because in glibc it admits readers as long as
// there is another one, so a writer can wait forever while other threads read
// repeatedly. This mutex admits no new reader while a writer waits.
#ifndef TF_EXT_CC_CORE_TABLE_STRIPE_MUTEX_H_
#define TF_EXT_CC_CORE_TABLE_STRIPE_MUTEX_H_

#include <pthread.h>

#include "cc/core/support/mutex.h"

namespace tf_ext {

class TF_EXT_CAPABILITY("mutex") StripeMutex {
 public:
  StripeMutex() {
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
#ifdef __GLIBC__
    pthread_rwlockattr_setkind_np(&attributes,
                                  PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
#endif
    pthread_rwlock_init(&lock_, &attributes);
    pthread_rwlockattr_destroy(&attributes);
  }
  ~StripeMutex() { pthread_rwlock_destroy(&lock_); }
  StripeMutex(const StripeMutex&) = delete;
  StripeMutex& operator=(const StripeMutex&) = delete;

  void lock() TF_EXT_ACQUIRE() { pthread_rwlock_wrlock(&lock_); }
  void unlock() TF_EXT_RELEASE() { pthread_rwlock_unlock(&lock_); }
  void lock_shared() TF_EXT_ACQUIRE_SHARED() { pthread_rwlock_rdlock(&lock_); }
  // Fails if a writer holds the lock or waits for it.
  bool try_lock_shared() TF_EXT_TRY_ACQUIRE_SHARED(true) {
    return pthread_rwlock_tryrdlock(&lock_) == 0;
  }
  void unlock_shared() TF_EXT_RELEASE_SHARED() {
    pthread_rwlock_unlock(&lock_);
  }

  void AssertHeld() const TF_EXT_ASSERT_HELD() {}
  void AssertReadable() const TF_EXT_ASSERT_HELD_SHARED() {}

 private:
  pthread_rwlock_t lock_;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_STRIPE_MUTEX_H_
