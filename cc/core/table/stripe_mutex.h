// SPDX-License-Identifier: Apache-2.0
// The lock of a stripe, for std::shared_lock and std::unique_lock.
//
// std::shared_mutex is not used, because in glibc it admits readers as long as
// there is another one, so a writer can wait forever while other threads read
// repeatedly. This mutex admits no new reader while a writer waits.
#ifndef TF_EXT_CC_CORE_TABLE_STRIPE_MUTEX_H_
#define TF_EXT_CC_CORE_TABLE_STRIPE_MUTEX_H_

#include <pthread.h>

namespace tf_ext {

class StripeMutex {
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

  void lock() { pthread_rwlock_wrlock(&lock_); }
  void unlock() { pthread_rwlock_unlock(&lock_); }
  void lock_shared() { pthread_rwlock_rdlock(&lock_); }
  // Fails if a writer holds the lock or waits for it.
  bool try_lock_shared() { return pthread_rwlock_tryrdlock(&lock_) == 0; }
  void unlock_shared() { pthread_rwlock_unlock(&lock_); }

 private:
  pthread_rwlock_t lock_;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_STRIPE_MUTEX_H_
