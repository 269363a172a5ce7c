// SPDX-License-Identifier: Apache-2.0
// The standard library's mutexes and locks, with thread_annotations.h.
#ifndef TF_EXT_CC_CORE_SUPPORT_MUTEX_H_
#define TF_EXT_CC_CORE_SUPPORT_MUTEX_H_

#include <condition_variable>
#include <mutex>
#include <shared_mutex>

#include "cc/core/support/thread_annotations.h"

namespace tf_ext {

class TF_EXT_CAPABILITY("mutex") Mutex {
 public:
  void lock() TF_EXT_ACQUIRE() { mutex_.lock(); }
  bool try_lock() TF_EXT_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void unlock() TF_EXT_RELEASE() { mutex_.unlock(); }

  // Unlocks while it waits for a notification, and may return without one.
  void Wait(std::condition_variable* condition) TF_EXT_REQUIRES(this) {
    std::unique_lock<std::mutex> lock(mutex_, std::adopt_lock);
    condition->wait(lock);
    lock.release();
  }

 private:
  std::mutex mutex_;
};

class TF_EXT_CAPABILITY("mutex") SharedMutex {
 public:
  void lock() TF_EXT_ACQUIRE() { mutex_.lock(); }
  void unlock() TF_EXT_RELEASE() { mutex_.unlock(); }
  void lock_shared() TF_EXT_ACQUIRE_SHARED() { mutex_.lock_shared(); }
  void unlock_shared() TF_EXT_RELEASE_SHARED() { mutex_.unlock_shared(); }
  void AssertHeld() const TF_EXT_ASSERT_HELD() {}

 private:
  std::shared_mutex mutex_;
};

// Any of the mutexes, until the end of the scope.
template <class AnyMutex>
class TF_EXT_SCOPED_CAPABILITY ExclusiveLock {
 public:
  explicit ExclusiveLock(AnyMutex& mutex) TF_EXT_ACQUIRE(mutex)
      : mutex_(mutex) {
    mutex.lock();
  }
  ExclusiveLock(AnyMutex& mutex, std::adopt_lock_t) TF_EXT_REQUIRES(mutex)
      : mutex_(mutex) {}
  ~ExclusiveLock() TF_EXT_RELEASE() { mutex_.unlock(); }
  ExclusiveLock(const ExclusiveLock&) = delete;
  ExclusiveLock& operator=(const ExclusiveLock&) = delete;

 private:
  AnyMutex& mutex_;
};

template <class AnyMutex>
class TF_EXT_SCOPED_CAPABILITY SharedLock {
 public:
  explicit SharedLock(AnyMutex& mutex) TF_EXT_ACQUIRE_SHARED(mutex)
      : mutex_(mutex) {
    mutex.lock_shared();
  }
  ~SharedLock() TF_EXT_RELEASE() { mutex_.unlock_shared(); }
  SharedLock(const SharedLock&) = delete;
  SharedLock& operator=(const SharedLock&) = delete;

 private:
  AnyMutex& mutex_;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_SUPPORT_MUTEX_H_
