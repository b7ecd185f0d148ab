// rpoll and rselect, over rsockets and other descriptors.
#include "rsock.h"
#include <time.h>

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int64_t deadline(int64_t timeout) { return timeout ? now() + timeout : -1; }

// poll_timeout returns the timeout of poll until end, in ms, rounded up.
static int poll_timeout(int64_t end)
{
	int64_t ns = end < 0 ? -1 : end - now();
	return end < 0 ? -1 : ns <= 0 ? 0 : ns / 1000000 >= INT32_MAX ? INT32_MAX : (ns + 999999) / 1000000;
}

// The events that a sleeping thread has armed, for its cancellation.
struct armed_one {
	uint32_t handle; // another thread may close the rsocket meanwhile
	int events;
};

static void disarm_one(void *v)
{
	struct armed_one *a = v;
	engine->rs_disarm(a->handle, a->events);
}

int wait_rsock(struct rsock *s, int events, int64_t end)
{
	for (;;) {
		struct armed_one a = {s->handle, events};
		int revents, fds[2], err = engine->rs_arm(a.handle, events, &revents, fds);
		if (err)
			return err;
		pthread_cleanup_push(disarm_one, &a);
		if (!(revents & (events | POLLERR | POLLHUP))) {
			struct pollfd p = {.fd = fds[events & POLLIN ? 0 : 1], .events = POLLIN};
			int n = poll(&p, 1, poll_timeout(end));
			if (n < 0)
				err = errno;
			else if (!n && end >= 0 && now() >= end)
				err = EAGAIN;
		}
		pthread_cleanup_pop(1);
		if (err || revents & (events | POLLERR | POLLHUP))
			return err;
	}
}

// events_of and revents_of map the events of poll to those of rsockets and back. Several events of
// poll have the same meaning.
static int events_of(int events)
{
	return (events & (POLLIN | POLLRDNORM) ? POLLIN : 0) | (events & (POLLOUT | POLLWRNORM) ? POLLOUT : 0);
}

static int revents_of(int events, int ready)
{
	int got = ready & (POLLERR | POLLHUP);
	if (ready & POLLIN)
		got |= events & (POLLIN | POLLRDNORM);
	if (ready & POLLOUT)
		got |= events & (POLLOUT | POLLWRNORM);
	return got;
}

// The interval, in ms, at which a thread polls if it waits only for an rsocket to hang up. It has
// no descriptor to sleep on.
#define HANGUP_POLL 100

// check_rsocks sets revents of the rsockets among fds. It returns the number of those that are
// ready, or -1. If real is not NULL, it also arms the rsockets, up to the first that is ready. It
// stores the descriptors to sleep on after the first n elements of real, two for each rsocket, and
// the handles for disarm in armed. It sets *again to 1 if an rsocket has no descriptor to sleep on.
static int check_rsocks(struct pollfd *fds, nfds_t n, struct pollfd *real, uint32_t *armed, int *again)
{
	int ready = 0;
	for (nfds_t i = 0; i < n; i++) {
		struct rsock *s = find_rsock(fds[i].fd);
		int events = events_of(fds[i].events), revents = 0, to[2] = {-1, -1};
		if (!s)
			continue;
		uint32_t handle = s->handle;
		int err = engine->rs_arm(handle, real ? events : 0, &revents, to);
		// EBADF: another thread has closed it.
		if (err && err != EBADF)
			return result(err);
		fds[i].revents = err ? POLLNVAL : revents_of(fds[i].events, revents);
		if (real) {
			real[n + 2 * i].fd = to[0];
			real[n + 2 * i + 1].fd = to[1];
			real[n + 2 * i].events = real[n + 2 * i + 1].events = POLLIN;
			if (events && !err)
				armed[i] = handle;
			if (!events)
				*again = 1;
		}
		if (fds[i].revents) {
			ready++;
			if (real)
				break; // the caller will not sleep
		}
	}
	return ready;
}

// disarm uses the handles, because the descriptors may belong to other rsockets by now.
static void disarm(struct pollfd *fds, nfds_t n, uint32_t *armed)
{
	for (nfds_t i = 0; i < n; i++) {
		if (armed[i])
			engine->rs_disarm(armed[i], events_of(fds[i].events));
		armed[i] = 0;
	}
}

// poll_others sets revents of the descriptors that are not rsockets. It returns the number of those
// that are ready, or -1.
static int poll_others(struct pollfd *fds, nfds_t n, struct pollfd *real, nfds_t all, int timeout)
{
	int ready = 0, got = poll(real, all, timeout);
	for (nfds_t i = 0; got > 0 && i < n; i++) {
		if (real[i].fd >= 0) {
			fds[i].revents = real[i].revents;
			ready += real[i].revents != 0;
		}
	}
	return got < 0 ? -1 : ready;
}

// Up to this number of descriptors, no heap memory is needed.
#define STACK_FDS 64

// The state of a call of rpoll: the program's descriptors, those to sleep on, and the armed
// rsockets.
struct polling {
	struct pollfd *fds, *real;
	nfds_t n;
	uint32_t *armed;
	int on_heap;
};

static void stop_polling(void *v)
{
	struct polling *p = v;
	int err = errno;
	disarm(p->fds, p->n, p->armed);
	if (p->on_heap)
		free(p->real);
	errno = err;
}

// poll_rsocks polls fds, some of which are rsockets. until is the deadline in ns; negative: none.
static int poll_rsocks(struct polling *p, int64_t until)
{
	nfds_t n = p->n;
	int rsocks = 0;
	struct pollfd *fds = p->fds, *real = p->real;
	for (nfds_t i = 0; i < n; i++) {
		real[i] = fds[i];
		fds[i].revents = 0;
		if (fds[i].fd >= 0 && find_rsock(fds[i].fd)) {
			real[i].fd = -1;
			rsocks++;
		}
	}
	if (rsocks)
		enter_engine();
	// The first pass does not wait. Later passes arm the rsockets, check them again, and sleep.
	for (int sleeps = 0; ; sleeps = 1) {
		int wait = 0, again = 0;
		if (sleeps) {
			wait = poll_timeout(until);
			for (nfds_t i = n; i < 3 * n; i++)
				real[i] = (struct pollfd){.fd = -1};
		}
		int of_rsocks = rsocks ? check_rsocks(fds, n, sleeps ? real : NULL, p->armed, &again) : 0;
		int final = until >= 0 && wait == 0 && (sleeps || !until);
		if (of_rsocks)
			wait = 0;
		if (again && (wait < 0 || wait > HANGUP_POLL))
			wait = HANGUP_POLL;
		int ready = of_rsocks < 0 ? -1 : poll_others(fds, n, real, sleeps && !of_rsocks ? 3 * n : n, wait);
		int err = errno;
		disarm(fds, n, p->armed);
		errno = err;
		if (ready < 0)
			return -1;
		ready += of_rsocks;
		if (ready && sleeps && of_rsocks) // check_rsocks has stopped at the first that is ready
			ready = (of_rsocks = check_rsocks(fds, n, NULL, NULL, NULL)) < 0 ? -1 : of_rsocks + poll_others(fds, n, real, n, 0);
		if (ready || final)
			return ready;
	}
}

// poll_until is poll with a deadline. until is in ns; negative: none.
static int poll_until(struct pollfd *fds, nfds_t n, int64_t until)
{
	struct pollfd few[3 * STACK_FDS];
	uint32_t few_armed[STACK_FDS] = {0};
	struct polling p = {.fds = fds, .real = few, .n = n, .armed = few_armed};
	int ready;
	if (n > STACK_FDS) {
		if (n > SIZE_MAX / (4 * sizeof *p.real) || !(p.real = calloc(n, 3 * sizeof *p.real + sizeof *p.armed)))
			return result(ENOMEM);
		p.armed = (uint32_t *)(p.real + 3 * n);
		p.on_heap = 1;
	}
	pthread_cleanup_push(stop_polling, &p);
	ready = poll_rsocks(&p, until);
	pthread_cleanup_pop(1);
	return ready;
}

PUBLIC int rpoll(struct pollfd *fds, nfds_t n, int timeout)
{
	return poll_until(fds, n, timeout < 0 ? -1 : timeout == 0 ? 0 : now() + timeout * 1000000LL);
}

// rselect is rpoll with sets. Unlike select, it does not change the timeout.
PUBLIC int rselect(int n, fd_set *r, fd_set *w, fd_set *x, struct timeval *timeout)
{
	struct pollfd fds[FD_SETSIZE];
	nfds_t used = 0;
	int64_t until = -1;
	if (n < 0 || n > FD_SETSIZE || (timeout && (timeout->tv_sec < 0 || timeout->tv_usec < 0)))
		return result(EINVAL);
	if (timeout && timeout->tv_sec < INT32_MAX) { // a longer timeout is infinite
		until = timeout->tv_sec * 1000000000LL + timeout->tv_usec * 1000LL;
		if (until)
			until += now();
	}
	for (int fd = 0; fd < n; fd++) {
		int events = (r && FD_ISSET(fd, r) ? POLLIN : 0) | (w && FD_ISSET(fd, w) ? POLLOUT : 0) | (x && FD_ISSET(fd, x) ? POLLPRI : 0);
		if (events)
			fds[used++] = (struct pollfd){.fd = fd, .events = events};
	}
	int ready = poll_until(fds, used, until), count = 0;
	if (ready < 0)
		return -1;
	for (nfds_t i = 0; i < used; i++)
		if (fds[i].revents & POLLNVAL)
			return result(EBADF);
	for (nfds_t i = 0; i < used; i++) {
		int fd = fds[i].fd, got = fds[i].revents, asked = fds[i].events;
		if (asked & POLLIN && !(got & (POLLIN | POLLHUP | POLLERR)))
			FD_CLR(fd, r);
		if (asked & POLLOUT && !(got & (POLLOUT | POLLERR | POLLHUP)))
			FD_CLR(fd, w);
		if (asked & POLLPRI && !(got & POLLPRI))
			FD_CLR(fd, x);
		count += (r && FD_ISSET(fd, r)) + (w && FD_ISSET(fd, w)) + (x && FD_ISSET(fd, x));
	}
	return count;
}
