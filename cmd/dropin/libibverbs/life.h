// The life of objects of libibverbs.so.1 and librdmacm.so.1. A file that includes this header
// declares front_generation, the number of this process.
//
// A child after fork has copies of its parent's objects. The engine of the child, if it has one,
// does not know their handles. Threads that the child does not have may have held their locks, and
// may have waited for them. Their descriptors are shared with the parent, and are not read.
//
// No lock is held at a cancellation point (pthreads(7) lists them). The engine's functions are not
// cancellation points, because Go makes its system calls directly.
#ifndef LIFE_H
#define LIFE_H

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

// forbid_cancel and allow_cancel enclose code that must not be cancelled.
static inline int forbid_cancel(void)
{
	int before;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}

static inline void allow_cancel(int before) { pthread_setcancelstate(before, &before); }

// The state of an object. If several threads destroy the object at once, only one succeeds.
struct life {
	int state;
	unsigned int generation; // of the process that has created the object
};

enum { ALIVE, DESTROYING, GONE };

// publish begins an object's life. publish and acquire order its initialization before its use by a
// thread that takes one of its events from the engine.
static inline void publish(struct life *l)
{
	l->generation = front_generation;
	__atomic_store_n(&l->state, ALIVE, __ATOMIC_RELEASE);
}

static inline void acquire(struct life *l) { (void)__atomic_load_n(&l->state, __ATOMIC_ACQUIRE); }

// inherited reports whether an object is the copy of one of an earlier process.
static inline int inherited(const struct life *l) { return l->generation != front_generation; }

// lock locks a mutex of an object, unless it is inherited.
static inline void lock(const struct life *l, pthread_mutex_t *m)
{
	if (!inherited(l))
		pthread_mutex_lock(m);
}

static inline void unlock(const struct life *l, pthread_mutex_t *m)
{
	if (!inherited(l))
		pthread_mutex_unlock(m);
}

// close_copy closes a descriptor of an inherited object. The parent's remains open.
static inline void close_copy(int *fd)
{
	int before = forbid_cancel(), copy = __atomic_exchange_n(fd, -1, __ATOMIC_RELAXED);
	if (copy >= 0)
		close(copy);
	allow_cancel(before);
}

// begin_destroy returns 0 to the thread that may destroy an object. Others get the kernel's errors:
// EBUSY, and later ENOENT. For an inherited object it returns ENODEV.
static inline int begin_destroy(struct life *l)
{
	if (inherited(l))
		return ENODEV;
	int was = ALIVE;
	if (__atomic_compare_exchange_n(&l->state, &was, DESTROYING, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return 0;
	return was == GONE ? ENOENT : EBUSY;
}

// undo_destroy ends a destruction that has failed or was cancelled, so that it can be tried again.
// It returns err.
static inline int undo_destroy(struct life *l, int err)
{
	__atomic_store_n(&l->state, ALIVE, __ATOMIC_RELEASE);
	return err;
}

// read_event takes one event from an eventfd. It returns 0, or -1 and sets errno. The C library may
// cancel a thread after the thread has read. In this case the event is written back.
struct count {
	int fd;
	uint64_t n;
};

static inline void return_event(void *v)
{
	struct count *c = v;
	if (c->n && write(c->fd, &c->n, sizeof c->n) < 0)
		return; // the channel was destroyed
}

static inline int read_event(int fd)
{
	struct count c = {fd, 0};
	ssize_t got;
	pthread_cleanup_push(return_event, &c);
	got = read(fd, &c.n, sizeof c.n);
	pthread_cleanup_pop(0);
	return got == sizeof c.n ? 0 : -1;
}

// mark_gone marks an object that the engine has destroyed. Its destruction may still wait for
// acknowledgements.
static inline void mark_gone(struct life *l) { __atomic_store_n(&l->state, GONE, __ATOMIC_RELEASE); }

#define RETIRED 256

// retire frees the memory of a destroyed object after RETIRED others have been retired. Some
// programs call a function with an object that another thread has just destroyed. In rping, for
// example, one thread takes events of a channel while another destroys it. A kernel device returns
// an errno to such a call. So does this library: as soon as the engine has destroyed an object, the
// object's handle becomes 0, and its descriptors -1. Such a program remains wrong: after RETIRED
// more objects the memory is freed.
static inline void retire(void *object)
{
	static void *retired[RETIRED];
	static unsigned int next;
	unsigned int at = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED) % RETIRED;
	free(__atomic_exchange_n(&retired[at], object, __ATOMIC_ACQ_REL));
}

// end_destroy ends a destruction and retires the object.
static inline void end_destroy(struct life *l, void *object)
{
	mark_gone(l);
	retire(object);
}

#endif
