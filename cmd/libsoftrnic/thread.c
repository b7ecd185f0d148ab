//go:build linux && cgo && (amd64 || arm64)

// Go's threads never run a handler of the program's: their stacks are too small for one that was installed without SA_ONSTACK. They
// begin with every signal blocked, as the front loads the engine so; but Go unblocks some in each thread, of which the program may
// use SIGCHLD, SIGPROF, SIGSTKFLT and the first real-time signal. So each thread that Go makes queues a signal to itself which it has
// blocked. It is handled when Go unblocks that, and the handler blocks the others again.
//
// The signal is SIGSETXID, by which the C library makes all threads change their user: it has a handler as soon as there are two
// threads, and sigaction refuses to change it. Other signals may lose their handler while they wait, and then end the process. What
// was not sent here is passed on to the C library's handler, which is still called for every signal of its own.
//
// The engine is linked with --wrap=pthread_create, by which Go makes its threads.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>
#include <sys/syscall.h>

#define SIGSETXID 33

// BIT is a signal's in the kernel's sets, of 64 signals.
#define BIT(sig) ((uint64_t)1 << ((sig) - 1))

// What a thread of Go's takes: faults, and what the C library sends.
#define TAKEN (BIT(SIGILL) | BIT(SIGTRAP) | BIT(SIGBUS) | BIT(SIGFPE) | BIT(SIGSEGV) | BIT(32) | BIT(SIGSETXID))

// The kernel's struct sigaction.
struct action {
	void (*handler)(int, siginfo_t *, void *);
	unsigned long flags;
	void (*restorer)(void);
	uint64_t mask;
};

static struct action of_libc; // its handler is NULL until handle_setxid is installed
static pthread_mutex_t installing = PTHREAD_MUTEX_INITIALIZER;

static void handle_setxid(int sig, siginfo_t *info, void *context)
{
	if (info->si_code == SI_QUEUE && info->si_pid == getpid() && info->si_value.sival_ptr == (void *)&of_libc)
		memcpy(&((ucontext_t *)context)->uc_sigmask, &(uint64_t){~TAKEN}, sizeof(uint64_t)); // no more is there
	else
		of_libc.handler(sig, info, context);
}

// install puts handle_setxid before the C library's handler. It returns whether it is there.
static int install(void)
{
	pthread_mutex_lock(&installing);
	if (!of_libc.handler) {
		struct action a;
		if (!syscall(SYS_rt_sigaction, SIGSETXID, NULL, &a, sizeof a.mask) && (void *)a.handler != SIG_DFL &&
		    (void *)a.handler != SIG_IGN && a.flags & SA_SIGINFO) {
			of_libc = a;
			a.handler = handle_setxid;
			a.flags |= SA_ONSTACK;
			a.mask = ~TAKEN; // nor is the handler interrupted; the kernel delivers what a thread has sent itself first
			if (syscall(SYS_rt_sigaction, SIGSETXID, &a, NULL, sizeof a.mask))
				of_libc.handler = NULL;
		}
	}
	int there = of_libc.handler != NULL;
	pthread_mutex_unlock(&installing);
	return there;
}

struct start {
	void *(*f)(void *);
	void *arg;
};

static void *start_thread(void *v)
{
	struct start s = *(struct start *)v;
	free(v);
	if (install()) {
		uint64_t all = ~(uint64_t)0;
		siginfo_t info;
		memset(&info, 0, sizeof info);
		info.si_code = SI_QUEUE;
		info.si_pid = getpid();
		info.si_value.sival_ptr = &of_libc;
		syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, sizeof all);
		syscall(SYS_rt_tgsigqueueinfo, info.si_pid, syscall(SYS_gettid), SIGSETXID, &info);
	}
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
