// SPDX-License-Identifier: Apache-2.0
// The clock of another machine, for a process that preloads this library:
// TF_EXT_TEST_CLOCK_SECONDS is how far it is ahead. Deadlines that it gives to
// the kernel are of the kernel's clock. Those of the monotonic clock are not
// changed: they are of less than 30 years.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const time_t kNoUptime = 1000000000;

static time_t Ahead(void) {
  static time_t ahead;
  static int is_known;
  if (!is_known) {
    const char* const text = getenv("TF_EXT_TEST_CLOCK_SECONDS");
    ahead = text ? atol(text) : 0;
    is_known = 1;
  }
  return ahead;
}

static void* Next(const char* name, const char* version) {
  void* const found = version ? dlvsym(RTLD_NEXT, name, version) : NULL;
  return found ? found : dlsym(RTLD_NEXT, name);
}

#define NEXT(name, version)      \
  static __typeof__(&name) next; \
  if (!next) next = (__typeof__(&name))Next(#name, version)

static const struct timespec* OfKernel(const struct timespec* deadline,
                                       struct timespec* changed) {
  if (!deadline || deadline->tv_sec < kNoUptime) return deadline;
  *changed = *deadline;
  changed->tv_sec -= Ahead();
  return changed;
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  NEXT(clock_gettime, NULL);
  const int result = next(clock, now);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) {
    now->tv_sec += Ahead();
  }
  return result;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  NEXT(gettimeofday, NULL);
  const int result = next(now, zone);
  now->tv_sec += Ahead();
  return result;
}

time_t time(time_t* now) {
  struct timespec found;
  clock_gettime(CLOCK_REALTIME, &found);
  if (now) *now = found.tv_sec;
  return found.tv_sec;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec* until,
                    struct timespec* left) {
  NEXT(clock_nanosleep, NULL);
  struct timespec changed;
  if (flags & TIMER_ABSTIME) until = OfKernel(until, &changed);
  return next(clock, flags, until, left);
}

int pthread_cond_timedwait(pthread_cond_t* restrict condition,
                           pthread_mutex_t* restrict mutex,
                           const struct timespec* restrict deadline) {
  NEXT(pthread_cond_timedwait, "GLIBC_2.3.2");
  struct timespec changed;
  return next(condition, mutex, OfKernel(deadline, &changed));
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           clockid_t clock, const struct timespec* deadline) {
  NEXT(pthread_cond_clockwait, NULL);
  struct timespec changed;
  return next(condition, mutex, clock, OfKernel(deadline, &changed));
}

int pthread_mutex_timedlock(pthread_mutex_t* restrict mutex,
                            const struct timespec* restrict deadline) {
  NEXT(pthread_mutex_timedlock, NULL);
  struct timespec changed;
  return next(mutex, OfKernel(deadline, &changed));
}

int sem_timedwait(sem_t* restrict semaphore,
                  const struct timespec* restrict deadline) {
  NEXT(sem_timedwait, NULL);
  struct timespec changed;
  return next(semaphore, OfKernel(deadline, &changed));
}

int sem_clockwait(sem_t* semaphore, clockid_t clock,
                  const struct timespec* deadline) {
  NEXT(sem_clockwait, NULL);
  struct timespec changed;
  return next(semaphore, clock, OfKernel(deadline, &changed));
}

long syscall(long number, ...) {
  NEXT(syscall, NULL);
  long given[6];
  va_list arguments;
  va_start(arguments, number);
  for (int i = 0; i < 6; ++i) given[i] = va_arg(arguments, long);
  va_end(arguments);
  struct timespec changed;
  if (number == SYS_futex && (given[1] & FUTEX_CLOCK_REALTIME)) {
    given[3] = (long)OfKernel((const struct timespec*)given[3], &changed);
  }
  return next(number, given[0], given[1], given[2], given[3], given[4],
              given[5]);
}
