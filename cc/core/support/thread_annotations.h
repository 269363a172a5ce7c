// SPDX-License-Identifier: Apache-2.0
// Which lock guards what, as attributes that `clang -Wthread-safety` checks;
// other compilers see none.
// https://clang.llvm.org/docs/ThreadSafetyAnalysis.html says what each means.
//
// The analysis does not follow closures, nor locks of elements of a list.
// There, AssertHeld tells it, without any code, what the function around has
// locked.
#ifndef TF_EXT_CC_CORE_SUPPORT_THREAD_ANNOTATIONS_H_
#define TF_EXT_CC_CORE_SUPPORT_THREAD_ANNOTATIONS_H_

#ifdef __clang__
#define TF_EXT_THREAD_ATTRIBUTE(...) __attribute__((__VA_ARGS__))
#else
#define TF_EXT_THREAD_ATTRIBUTE(...)
#endif

// Of classes.
#define TF_EXT_CAPABILITY(name) TF_EXT_THREAD_ATTRIBUTE(capability(name))
#define TF_EXT_SCOPED_CAPABILITY TF_EXT_THREAD_ATTRIBUTE(scoped_lockable)

// Of members.
#define TF_EXT_GUARDED_BY(mutex) TF_EXT_THREAD_ATTRIBUTE(guarded_by(mutex))

// Of functions.
#define TF_EXT_REQUIRES(...) \
  TF_EXT_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define TF_EXT_REQUIRES_SHARED(...) \
  TF_EXT_THREAD_ATTRIBUTE(requires_shared_capability(__VA_ARGS__))
#define TF_EXT_ACQUIRE(...) \
  TF_EXT_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define TF_EXT_ACQUIRE_SHARED(...) \
  TF_EXT_THREAD_ATTRIBUTE(acquire_shared_capability(__VA_ARGS__))
#define TF_EXT_TRY_ACQUIRE(...) \
  TF_EXT_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define TF_EXT_TRY_ACQUIRE_SHARED(...) \
  TF_EXT_THREAD_ATTRIBUTE(try_acquire_shared_capability(__VA_ARGS__))
#define TF_EXT_RELEASE(...) \
  TF_EXT_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define TF_EXT_RELEASE_SHARED(...) \
  TF_EXT_THREAD_ATTRIBUTE(release_shared_capability(__VA_ARGS__))
#define TF_EXT_ASSERT_HELD(...) \
  TF_EXT_THREAD_ATTRIBUTE(assert_capability(__VA_ARGS__))
#define TF_EXT_ASSERT_HELD_SHARED(...) \
  TF_EXT_THREAD_ATTRIBUTE(assert_shared_capability(__VA_ARGS__))
#define TF_EXT_RETURNS_MUTEX(mutex) \
  TF_EXT_THREAD_ATTRIBUTE(lock_returned(mutex))
// For locks of which there is a number that is known only at run time.
#define TF_EXT_UNCHECKED TF_EXT_THREAD_ATTRIBUTE(no_thread_safety_analysis)

#endif  // TF_EXT_CC_CORE_SUPPORT_THREAD_ANNOTATIONS_H_
