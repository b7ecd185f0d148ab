//go:build linux && cgo && (amd64 || arm64)

// Go's threads never run a handler of the program's: their stacks are too small for one that was installed without SA_ONSTACK. They
// begin with every signal blocked, as the front loads the engine so; but Go unblocks some in each thread, of which the program
// may use SIGPROF. Another of them, SIGSTKFLT, nobody has ever used. Each thread that Go makes sends it to itself while it is
// blocked. So it is handled when Go unblocks it, and the handler blocks SIGPROF again. Where the program has an action of its
// own for SIGSTKFLT, or has reset those of all signals, it is not sent, and SIGPROF stays unblocked in new threads.
//
// The engine is linked with --wrap=pthread_create, by which Go makes its threads.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <ucontext.h>

static void block_profiling(int sig, siginfo_t *info, void *context)
{
	(void)sig; (void)info;
	sigaddset(&((ucontext_t *)context)->uc_sigmask, SIGPROF);
}

__attribute__((constructor(101))) static void handle_stkflt(void)
{
	struct sigaction before, a = {.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
	if (sigaction(SIGSTKFLT, NULL, &before) || before.sa_handler != SIG_DFL)
		return; // somebody has used it
	a.sa_sigaction = block_profiling;
	sigfillset(&a.sa_mask);
	sigaction(SIGSTKFLT, &a, NULL);
}

static int handled(void)
{
	struct sigaction now;
	return !sigaction(SIGSTKFLT, NULL, &now) && now.sa_flags & SA_SIGINFO && now.sa_sigaction == block_profiling;
}

struct start {
	void *(*f)(void *);
	void *arg;
};

static void *start_thread(void *v)
{
	struct start s = *(struct start *)v;
	free(v);
	sigset_t all;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, NULL);
	if (handled())
		pthread_kill(pthread_self(), SIGSTKFLT);
	return s.f(s.arg);
}

// Not there where the engine is linked without --wrap, as by go vet and go build ./...
extern int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) __attribute__((weak));
int __wrap_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*f)(void *), void *arg)
{
	struct start *s = malloc(sizeof *s);
	if (!s)
		return EAGAIN;
	s->f = f;
	s->arg = arg;
	int err = __real_pthread_create(t, attr, start_thread, s);
	if (err)
		free(s);
	return err;
}
