// How objects of libibverbs.so.1 and librdmacm.so.1 end, and what their locks do in a child after fork. Who includes this has a
// function lost, which reports whether the process is such a child.
//
// No lock is held where a thread may be cancelled (pthreads(7) lists where). The engine's functions are no such place: Go makes its
// system calls itself.
#ifndef LIFE_H
#define LIFE_H

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

// lock locks a mutex, but not in a child after fork: a thread of the parent's may have held it, which the child does not have.
static inline void lock(pthread_mutex_t *m)
{
	if (!lost())
		pthread_mutex_lock(m);
}

static inline void unlock(pthread_mutex_t *m)
{
	if (!lost())
		pthread_mutex_unlock(m);
}

// forbid_cancel and allow_cancel are around what must not end half done.
static inline int forbid_cancel(void)
{
	int before;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}

static inline void allow_cancel(int before) { pthread_setcancelstate(before, &before); }

// An object's life. Of several threads that destroy it at once, one does.
struct life {
	int state;
};

enum { ALIVE, ENDING, GONE };

// publish and reached are around the way of an object through the engine, from the thread that has made it to one that takes an event.
static inline void publish(struct life *l) { __atomic_store_n(&l->state, ALIVE, __ATOMIC_RELEASE); }
static inline void reached(struct life *l) { (void)__atomic_load_n(&l->state, __ATOMIC_ACQUIRE); }

// begin_destroy returns 0 to the thread that may destroy an object. Others get what the kernel says: EBUSY, and later ENOENT.
static inline int begin_destroy(struct life *l)
{
	int was = ALIVE;
	if (__atomic_compare_exchange_n(&l->state, &was, ENDING, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return 0;
	return was == GONE ? ENOENT : EBUSY;
}

// keep ends a destruction that has failed, and returns the error. The same holds for one that is to be gone on with later.
static inline int keep(struct life *l, int err)
{
	__atomic_store_n(&l->state, ALIVE, __ATOMIC_RELEASE);
	return err;
}

// take_count reads an eventfd that counts events, and leaves one for the caller. It returns 0, or -1 and sets errno. A thread that is
// cancelled after it has read, which the C library allows, gives the event back.
struct count {
	int fd;
	uint64_t n;
};

static inline void give_count_back(void *v)
{
	struct count *c = v;
	if (c->n && write(c->fd, &c->n, sizeof c->n) < 0)
		return; // the channel was destroyed
}

static inline int take_count(int fd)
{
	struct count c = {fd, 0};
	ssize_t got;
	pthread_cleanup_push(give_count_back, &c);
	got = read(fd, &c.n, sizeof c.n);
	pthread_cleanup_pop(0);
	return got == sizeof c.n ? 0 : -1;
}

// forget says that the engine has forgotten an object, whose destruction may still wait for acknowledgements.
static inline void forget(struct life *l) { __atomic_store_n(&l->state, GONE, __ATOMIC_RELEASE); }

#define RETIRED 256

// retire frees the memory of a destroyed object, but only when as many others have been retired. Some programs have threads
// that call a function once more with an object that another thread has just destroyed: rping's that takes events may be
// overtaken, between two of them, by the one that destroys the channel. With a kernel's device they get an errno. The caller
// has therefore set the object's handle to 0, and its descriptors to -1, as soon as the engine has forgotten it. Such a program
// remains wrong: who is later than RETIRED objects finds memory that is freed.
static inline void retire(void *object)
{
	static void *retired[RETIRED];
	static unsigned int next;
	unsigned int at = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED) % RETIRED;
	free(__atomic_exchange_n(&retired[at], object, __ATOMIC_ACQ_REL));
}

// end_destroy ends a destruction, and the object with it.
static inline void end_destroy(struct life *l, void *object)
{
	forget(l);
	retire(object);
}

#endif
